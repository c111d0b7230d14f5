#include "runtime/plan/plan.h"

#include <algorithm>

#include "runtime/plan/plan_sizes.h"
#include "runtime/plan/strides.h"
#include "schedule/schedule.h"

namespace fusewright {

Shape rows_to_count_in(const Kernel& kernel) {
  Shape result;
  if (std::any_of(kernel.steps.begin(), kernel.steps.end(), [](const Step& step) { return step.once; }))
    for (const Axis& axis : kernel.axes)
      if (!axis.reduced && !axis.tap) result.push_back(axis.size);
  return result;
}

// The value is a tensor during a call; and so is what it is a view of.
void Plan::give_place(Value v) {
  int& place = places_[static_cast<size_t>(v)];
  if (place >= 0) return;
  place = static_cast<int>(placed_.size());
  placed_.push_back(v);
  auto& shape = shapes_.emplace_back();
  const Node& node = graph_[v];
  if (node.op == Op::input || node.op == Op::scalar_input || node.op == Op::constant) return;
  require(node.type.rank() <= max_rank, graph_.describe(v), ": more than ", max_rank, " dimensions");
  for (const Size& size : node.type.shape) shape.emplace_back(size, binder_.slots());
  if (node.kind() == Kind::movement) give_place(node.operands[0]);
}

Plan::Plan(Graph graph, const Fusion& fusion, bool cuda, bool tune, bool owns_inputs)
    : graph_(std::move(graph)),
      tune_(tune),
      binder_(graph_),
      borrowed_(graph_.borrowed_outputs()),
      in_place_(fusion.in_place) {
  places_.assign(graph_.nodes.size(), -1);
  for (const Node& node : graph_.nodes) orders_.push_back(node.type.order);
  for (const Output& output : graph_.outputs) {
    orders_[static_cast<size_t>(output.value)] = output.order;
    give_place(output.value);
  }
  for (Value v : graph_.inputs) {
    give_place(v);
    scalar_count_ += graph_[v].op == Op::scalar_input;
  }
  for (const Group& group : fusion.groups) add_step(group, cuda ? Dialect::cuda : Dialect::cpp);
  plan_lifetimes(owns_inputs);
}

void Plan::add_step(const Group& group, Dialect dialect) {
  Step step{group.schedule->launcher({graph_, group.kernel, dialect, binder_.slots(), orders_})};
  for (const KernelCode::Operand& operand : step.launcher->code().operands) {
    give_place(operand.value);
    if (!operand.store) continue;
    for (int output : in_place_) step.updates |= graph_.outputs[static_cast<size_t>(output)].value == operand.value;
  }
  for (const Size& size : rows_to_count_in(group.kernel)) rows_.emplace_back(size, binder_.slots());
  steps_.push_back(std::move(step));
}

// Memory goes back after its last reader.
void Plan::plan_lifetimes(bool owns_inputs) {
  std::vector<int> last(graph_.nodes.size(), -1);
  // A view holds the memory of what it is a view of, and so does every view between them.
  auto mark = [&](Value v, int step) {
    last[static_cast<size_t>(v)] = step;
    while (graph_[v].kind() == Kind::movement) last[static_cast<size_t>(v = graph_[v].operands[0])] = step;
  };
  for (size_t s = 0; s < steps_.size(); ++s)
    for (const KernelCode::Operand& operand : steps_[s].launcher->code().operands)
      mark(operand.value, static_cast<int>(s));
  for (const Output& output : graph_.outputs) mark(output.value, -1);
  const int end = static_cast<int>(steps_.size()) - 1;
  auto hold = [&](Value v, size_t s, bool temporary) {
    const int until = last[static_cast<size_t>(v)];
    (temporary && until >= 0 ? temporaries_ : others_).push_back({v, static_cast<int>(s), until < 0 ? end : until});
  };
  for (size_t s = 0; s < steps_.size(); ++s) {
    const Launcher& launcher = *steps_[s].launcher;
    for (const KernelCode::Operand& operand : launcher.code().operands)
      if (operand.store) hold(operand.value, s, !launcher.makes_result());
  }
  for (Value v : graph_.inputs)
    if (owns_inputs && last[static_cast<size_t>(v)] >= 0) owned_.push_back({v, 0, last[static_cast<size_t>(v)]});
  for (size_t v = 0; v < last.size(); ++v)
    if (last[v] >= 0) steps_[static_cast<size_t>(last[v])].release.push_back(static_cast<Value>(v));
}

std::vector<std::string> Plan::sources(int device) const {
  std::vector<std::string> result;
  for (const Step& step : steps_)
    for (std::string& source : step.launcher->sources(device)) result.push_back(std::move(source));
  return result;
}

void Plan::attach(const std::vector<CompiledSource>& compiled, int device) {
  auto next = compiled.begin();
  for (const Step& step : steps_) {
    auto end = next + static_cast<long>(step.launcher->sources(device).size());
    step.launcher->attach({next, end}, device);
    next = end;
  }
}

bool Plan::complete() const {
  return std::all_of(steps_.begin(), steps_.end(), [](const Step& step) { return step.launcher->complete(); });
}

// `inputs`: one for each of the graph's, scalars too. Throws Error if they contradict each other.
std::shared_ptr<Plan::Sizes> Plan::sizes_of(const std::vector<Tensor>& inputs) const {
  preconditions_.check(inputs);
  auto sizes = std::make_shared<Sizes>();
  sizes->symbols = binder_.bind(graph_, inputs);
  for (const SizeProgram& size : rows_)
    if (size.run(sizes->symbols.data()) == 0) throw SizeError("no row of a kernel is there to count");
  sizes->tensors.resize(placed_.size());
  for (size_t place = 0; place < placed_.size(); ++place) {
    const auto& shape = shapes_[place];
    const Value v = placed_[place];
    Tensor& tensor = sizes->tensors[place];
    tensor.dtype = graph_.dtype(v);
    tensor.rank = static_cast<int>(shape.size());
    for (size_t d = 0; d < shape.size(); ++d) {
      tensor.sizes[d] = shape[d].run(sizes->symbols.data());
      if (tensor.sizes[d] < 0) fail(graph_.describe(v), ": dimension ", d, " of the result would be ", tensor.sizes[d]);
    }
    set_strides(tensor, orders_[static_cast<size_t>(v)]);
  }
  auto bytes = [&](const Held& held) {
    const Tensor& tensor = sizes->tensors[static_cast<size_t>(places_[static_cast<size_t>(held.value)])];
    return tensor.elements() * size_of(tensor.dtype);
  };
  std::vector<Lifetime> lifetimes;
  for (const Held& held : temporaries_) lifetimes.push_back({bytes(held), held.first, held.last});
  std::vector<int64_t> beside(steps_.size());
  for (const Held& held : others_)
    for (int s = held.first; s <= held.last; ++s) beside[static_cast<size_t>(s)] += whole_granules(bytes(held));
  std::vector<int64_t> released(steps_.size());
  for (const Held& held : owned_)
    for (size_t i = 0; i < graph_.inputs.size(); ++i)
      if (graph_.inputs[i] == held.value)
        released[static_cast<size_t>(held.last)] +=
            whole_granules(inputs[i].elements() * size_of(graph_.dtype(held.value)));
  sizes->block = plan_block(lifetimes, beside, released);
  sizes->offsets.assign(placed_.size(), -1);
  for (size_t i = 0; i < temporaries_.size(); ++i)
    sizes->offsets[static_cast<size_t>(places_[static_cast<size_t>(temporaries_[i].value)])] = sizes->block.offsets[i];
  return sizes;
}

std::vector<Plan::KernelReport> Plan::kernels() const {
  std::vector<KernelReport> result;
  for (const Step& step : steps_) {
    if (step.launcher->library_call() >= 0) continue;
    const KernelCode& code = step.launcher->code();
    KernelReport report{&code, 0, 0};
    for (const auto& operand : code.operands) {
      int64_t bytes = size_of(operand.dtype);
      for (const Size& size : graph_.shape(operand.value)) bytes *= graph_.hint(size);
      (operand.store ? report.bytes_written : report.bytes_read) += bytes;
    }
    result.push_back(report);
  }
  return result;
}

std::vector<Value> Plan::library_calls() const {
  std::vector<Value> result;
  for (const Step& step : steps_)
    if (const Value call = step.launcher->library_call(); call >= 0) result.push_back(call);
  return result;
}

}  // namespace fusewright
