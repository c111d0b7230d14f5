#include "passes/fusion.h"

#include <algorithm>

namespace fusewright {

bool Kernel::reduces() const {
  return std::any_of(axes.begin(), axes.end(), [](const Axis& axis) { return axis.reduced; });
}

bool Kernel::has_windows() const {
  return std::any_of(axes.begin(), axes.end(), [](const Axis& axis) { return axis.tap; });
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
