#include "schedule/kernel.h"

#include <algorithm>

namespace fusewright {

bool Kernel::reduces() const {
  return std::any_of(axes.begin(), axes.end(), [](const Axis& axis) { return axis.reduced; });
}

bool Kernel::has_windows() const {
  return std::any_of(axes.begin(), axes.end(), [](const Axis& axis) { return axis.tap; });
}

bool Kernel::is_pointwise() const {
  const auto meets_others = [](const Step& step) {
    return step.role == Step::Role::reduce || step.role == Step::Role::contract;
  };
  return !reduces() && !has_windows() && std::none_of(steps.begin(), steps.end(), meets_others);
}

Value Kernel::contraction() const {
  for (const Step& step : steps)
    if (step.role == Step::Role::contract) return step.value;
  return -1;
}

std::vector<Value> Kernel::loaded() const {
  std::vector<Value> values;
  for (const Step& step : steps)
    if (step.role == Step::Role::load) values.push_back(step.value);
  return values;
}

std::vector<Value> Kernel::stored() const {
  std::vector<Value> values;
  for (const Step& step : steps)
    if (step.stored) values.push_back(step.value);
  return values;
}

bool loads(const Graph& graph, const Step& step, Value input) {
  return step.role == Step::Role::load && graph.base(step.value) == input;
}

std::vector<int> loops_in_memory(const Graph& graph, const Kernel& kernel, const Step& step) {
  std::vector<int> loops;
  const Type& type = graph.type(step.value);
  for (int d = 0; d < type.rank(); ++d) {
    const int dim = type.order.empty() ? d : type.order[static_cast<size_t>(d)];
    for (int a : step.dims[static_cast<size_t>(dim)])
      if (!kernel.axes[static_cast<size_t>(a)].tap && std::find(loops.begin(), loops.end(), a) == loops.end())
        loops.push_back(a);
  }
  return loops;
}

}  // namespace fusewright
