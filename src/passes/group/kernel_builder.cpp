#include "passes/group/kernel_builder.h"

#include <algorithm>
#include <optional>

#include "passes/program.h"
#include "passes/streams.h"

namespace fusewright {
namespace {

constexpr size_t max_steps = 400;

}  // namespace

int KernelBuilder::add_item(Value v) {
  const Node& node = graph()[v];
  if (node.kind() == Kind::reduce) return add_reduce(v, node);
  Dims dims = place(node.type.shape);
  if (node.op == Op::shift) return at_shift(v, node, dims);
  if (node.kind() == Kind::window) return add_window(v, node, dims);
  if (node.kind() == Kind::pointwise) return at(v, dims, true);
  // A view or an input as a result of its own: copied, element by element.
  Watch watch(*this, dims);
  int source = at(v, dims, true);
  return add_step(Step::Role::compute, v, dims, {source});
}

int KernelBuilder::add_once(Value v) {
  const size_t before = kernel_.steps.size();
  const int item = at(v, {}, true);
  for (size_t s = 0; s < kernel_.steps.size(); ++s) {
    Step& step = kernel_.steps[s];
    if (step.role != Step::Role::load || !step.dims.empty()) continue;
    if (s < before) throw StopFusing{"different_iteration_space"};
    step.once = true;
  }
  kernel_.steps[static_cast<size_t>(item)].once = true;
  return item;
}

std::vector<int> KernelBuilder::loops(bool with_reduced) const {
  std::vector<int> result;
  for (size_t a = 0; a < kernel_.axes.size(); ++a)
    if (!kernel_.axes[a].tap && (with_reduced || !kernel_.axes[a].reduced)) result.push_back(static_cast<int>(a));
  return result;
}

Dims KernelBuilder::place(const Shape& shape) {
  if (kernel_.steps.empty() && kernel_.axes.empty()) {
    Dims dims;
    for (const Size& size : shape) {
      dims.emplace_back();
      if (!size.is(1)) dims.back().push_back(new_axis(size));
    }
    return dims;
  }
  Kernel before = kernel_;
  try {
    return regroup(loops(true), shape);
  } catch (const StopFusing&) {
    kernel_ = before;
  }
  try {
    return regroup(loops(false), shape);
  } catch (const StopFusing&) {
    throw StopFusing{"different_iteration_space"};
  }
}

int KernelBuilder::new_axis(const Size& size) {
  Axis fresh;
  fresh.size = size;
  kernel_.axes.push_back(std::move(fresh));
  return static_cast<int>(kernel_.axes.size()) - 1;
}

void KernelBuilder::split(int a, const Size& outer, const Size& inner) {
  for (const Axis& other : kernel_.axes)
    if (other.tap && other.base == a) throw StopFusing{"window_dimension"};
  if (axis(a).tap || axis(a).pinned) throw StopFusing{"window_dimension"};
  // Keep the loops in row-major order: the inner half is inserted right after.
  Axis half = axis(a);
  half.size = inner;
  axis(a).size = outer;
  kernel_.axes.insert(kernel_.axes.begin() + a + 1, half);
  auto shift = [&](int& other) {
    if (other > a) ++other;
  };
  for (Axis& other : kernel_.axes) shift(other.base);
  for (Step& step : kernel_.steps) {
    for (int& tap : step.taps) shift(tap);
    for (auto& list : step.dims) {
      for (int& other : list) shift(other);
      for (size_t i = 0; i < list.size(); ++i)
        if (list[i] == a) list.insert(list.begin() + static_cast<long>(i) + 1, a + 1), ++i;
    }
  }
  for (auto* list : watched_) {
    for (int& other : *list) shift(other);
    for (size_t i = 0; i < list->size(); ++i)
      if ((*list)[i] == a) list->insert(list->begin() + static_cast<long>(i) + 1, a + 1), ++i;
  }
}

Dims KernelBuilder::regroup(std::vector<int> axes, const Shape& shape) {
  Dims dims(shape.size());
  Watch watch(*this, axes, dims);
  size_t next = 0;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (shape[d].is(1)) continue;
    // The run of axes whose product is this dimension, else split the axis in which it ends.
    while (true) {
      Size got = 1;
      size_t end = next;
      while (end < axes.size() && !(got == shape[d])) got = got * axis(axes[end++]).size;
      if (got == shape[d]) {
        dims[d].assign(axes.begin() + static_cast<long>(next), axes.begin() + static_cast<long>(end));
        next = end;
        break;
      }
      split_for(axes, next, shape[d]);
    }
  }
  for (; next < axes.size(); ++next)
    if (!axis(axes[next]).size.is(1)) throw StopFusing{"reshape_boundary"};
  return dims;
}

void KernelBuilder::split_for(const std::vector<int>& axes, size_t first, const Size& size) {
  Size got = 1;
  for (size_t i = first; i < axes.size(); ++i) {
    const Size& own = axis(axes[i]).size;
    if (auto missing = Size::exact_quotient(size, got)) {
      auto inner = Size::exact_quotient(own, *missing);
      if (inner && !inner->is(1)) return split(axes[i], *missing, *inner);
    }
    got = got * own;
  }
  throw StopFusing{"reshape_boundary"};
}

int KernelBuilder::find(Step::Role role, Value v, const Dims& dims) const {
  for (size_t s = 0; s < kernel_.steps.size(); ++s) {
    const Step& step = kernel_.steps[s];
    if (step.role == role && step.value == v && step.dims == dims) return static_cast<int>(s);
  }
  return -1;
}

int KernelBuilder::add_step(Step::Role role, Value v, Dims dims, std::vector<int> operands) {
  if (int known = find(role, v, dims); known >= 0) return known;
  if (kernel_.steps.size() >= max_steps) {
    // The latest value that did fit goes to memory.
    Value last = -1;
    for (const Step& step : kernel_.steps)
      if (step.role == Step::Role::compute && graph()[step.value].kind() == Kind::pointwise) last = step.value;
    throw StopFusing{"kernel_too_large", last};
  }
  kernel_.steps.push_back({role, v, std::move(dims), std::move(operands), {}, false});
  return static_cast<int>(kernel_.steps.size()) - 1;
}

int KernelBuilder::at(Value v, Dims dims, bool compute_here) {
  const Node& node = graph()[v];
  switch (node.op) {
    case Op::input:
      return add_step(Step::Role::load, v, std::move(dims), {});
    case Op::constant:
    case Op::extent:
    case Op::scalar_input:
      return add_step(Step::Role::scalar, v, {}, {});
    case Op::iota:
      for (int a : dims[0]) axis(a).pinned = true;
      return add_step(Step::Role::iota, v, std::move(dims), {});
    default:
      break;
  }
  if (node.op == Op::shift && (compute_here || world_.home_of(v) < 0 || world_.home_of(v) == self_))
    return at_shift(v, node, std::move(dims));
  // A row's constant that is computed here as well needs no memory.
  if (const int known = find(Step::Role::compute, v, dims); known >= 0 && node.kind() == Kind::pointwise) return known;
  if (!compute_here && world_.in_memory(v)) {
    if (world_.home_of(v) != self_) return add_step(Step::Role::load, v, std::move(dims), {});
    if (node.kind() == Kind::reduce || node.kind() == Kind::window) {
      int known = find(node.kind() == Kind::reduce ? Step::Role::reduce : Step::Role::window, v, dims);
      if (known < 0) throw StopFusing{"different_iteration_space"};
      if (kernel_.steps[static_cast<size_t>(known)].side) throw StopFusing{"different_reduction"};
      return known;
    }
  }
  switch (node.kind()) {
    case Kind::pointwise:
      return at_pointwise(v, node, std::move(dims));
    case Kind::movement:
      return at_movement(v, node, std::move(dims));
    default:
      fail(graph().describe(v), ": not in memory although a kernel reads it");
  }
}

int KernelBuilder::at_pointwise(Value v, const Node& node, Dims dims) {
  if (int known = find(Step::Role::compute, v, dims); known >= 0) return known;
  std::vector<int> operands;
  Watch watch(*this, dims);
  for (Value operand : node.operands) {
    const Shape& shape = graph().shape(operand);
    Dims own(shape.size());
    for (size_t d = 0; d < shape.size(); ++d)
      if (!shape[d].is(1)) own[d] = dims[d + dims.size() - shape.size()];
    operands.push_back(at(operand, std::move(own)));
  }
  return add_step(Step::Role::compute, v, dims, std::move(operands));
}

int KernelBuilder::at_movement(Value v, const Node& node, Dims dims) {
  Value operand = node.operands[0];
  const Shape& shape = graph().shape(operand);
  if (node.op == Op::permute) {
    Dims own(dims.size());
    for (size_t d = 0; d < dims.size(); ++d) own[static_cast<size_t>(node.ints("dims")[d])] = dims[d];
    return at(operand, std::move(own));
  }
  if (node.op == Op::expand) {
    Dims own(shape.size());
    for (size_t d = 0; d < shape.size(); ++d)
      if (!shape[d].is(1)) own[d] = dims[d + dims.size() - shape.size()];
    return at(operand, std::move(own));
  }
  std::vector<int> flat;
  for (const auto& list : dims) flat.insert(flat.end(), list.begin(), list.end());
  Dims own;
  try {
    own = regroup(flat, shape);
  } catch (const StopFusing& stop) {
    throw StopFusing{stop.reason, v};
  }
  return at(operand, std::move(own));
}

int KernelBuilder::at_shift(Value v, const Node& node, Dims dims) {
  if (int known = find(Step::Role::window, v, dims); known >= 0) return known;
  const Shape& inner_shape = graph().shape(node.operands[0]);
  Dims own(dims.size());
  std::vector<int> taps;
  for (size_t d = 0; d < dims.size(); ++d)
    for (int a : dims[d])
      if (axis(a).tap) throw StopFusing{"window_in_window", v};
  Watch watch(*this, dims), inner(*this, own);
  for (size_t d = 0; d < dims.size(); ++d) {
    const int64_t start = node.ints("start")[d];
    if (start == 0 && inner_shape[d] == node.type.shape[d]) {
      own[d] = dims[d];
      continue;
    }
    if (dims[d].size() > 1) throw StopFusing{"window_dimension", v};
    Axis tap;
    tap.size = inner_shape[d];
    tap.tap = true;
    tap.base = dims[d].empty() ? -1 : dims[d][0];
    tap.padding = -start;
    if (tap.base >= 0) axis(tap.base).pinned = true;
    kernel_.axes.push_back(tap);
    taps.push_back(static_cast<int>(kernel_.axes.size()) - 1);
    own[d] = {taps.back()};
  }
  require(!taps.empty(), graph().describe(v), ": a shift that moves nothing is no step of a kernel");
  Watch watched_taps(*this, taps);
  const int operand = at(node.operands[0], own);
  kernel_.steps.push_back({Step::Role::window, v, dims, {operand}, taps, false});
  return static_cast<int>(kernel_.steps.size()) - 1;
}

int KernelBuilder::add_reduce(Value v, const Node& node) {
  Value operand = node.operands[0];
  const Shape& shape = graph().shape(operand);
  const Ints& reduced_dims = node.ints("dims");
  bool has_reduction = kernel_.reduces();
  bool fresh = kernel_.axes.empty();
  Dims dims;
  if (fresh) {
    dims = place(shape);
  } else {
    try {
      dims = regroup(loops(true), shape);
    } catch (const StopFusing&) {
      throw StopFusing{"different_iteration_space"};
    }
  }
  Watch watch(*this, dims);
  auto is_reduced = [&](size_t d) {
    return std::find(reduced_dims.begin(), reduced_dims.end(), static_cast<int64_t>(d)) != reduced_dims.end();
  };
  bool side = false;
  if (has_reduction) {
    for (size_t d = 0; d < dims.size(); ++d)
      for (int a : dims[d]) side |= axis(a).reduced != is_reduced(d);
    if (side) {
      std::vector<bool> summed;
      for (size_t d = 0; d < dims.size(); ++d) summed.push_back(is_reduced(d));
      if (const char* reason = why_not_join(graph(), kernel_, {v, &dims, &summed}, world_.dialect))
        throw StopFusing{reason};
    }
  } else {
    for (size_t d = 0; d < dims.size(); ++d)
      for (int a : dims[d]) axis(a).reduced = is_reduced(d);
  }
  int inner = at(operand, dims);
  Dims own;
  for (size_t d = 0; d < dims.size(); ++d) {
    if (!is_reduced(d))
      own.push_back(dims[d]);
    else if (node.integer("keepdim"))
      own.emplace_back();
  }
  int step = add_step(Step::Role::reduce, v, std::move(own), {inner});
  kernel_.steps[static_cast<size_t>(step)].side = side;
  return step;
}

int KernelBuilder::add_window(Value v, const Node& node, Dims dims) {
  const Ints &kernel = node.ints("kernel"), &stride = node.ints("stride"), &padding = node.ints("padding");
  bool gather = node.op == Op::max_pool_grad || node.op == Op::avg_pool_grad;
  size_t first = dims.size() - kernel.size();
  const Shape& inner_shape = graph().shape(node.operands[0]);
  if (!gather && overlaps(node) && cost_of(node.operands[0]) >= cost_of_a_function)
    throw StopFusing{"window_overlap", node.operands[0]};
  Watch watch(*this, dims);
  Dims own(dims.begin(), dims.begin() + static_cast<long>(first));
  Step step{Step::Role::window, v, dims, {}, {}, false};
  // Two windows over the same input with the same parameters share their taps, and in the end their loop.
  for (const Step& other : kernel_.steps)
    if (other.role == Step::Role::window && other.dims == dims && same_window(other.value, v)) step.taps = other.taps;
  bool shared = !step.taps.empty();
  for (size_t i = 0; i < kernel.size(); ++i) {
    const std::vector<int>& list = dims[first + i];
    if (list.size() > 1) throw StopFusing{"window_dimension"};
    if (!shared) {
      Axis tap;
      tap.size = inner_shape[first + i];
      tap.tap = true;
      tap.gather = gather;
      tap.base = list.empty() ? -1 : list[0];
      tap.kernel = kernel[i];
      tap.stride = stride[i];
      tap.padding = padding[i];
      tap.dilation = node.has("dilation") ? node.ints("dilation")[i] : 1;
      if (tap.base >= 0) axis(tap.base).pinned = true;
      kernel_.axes.push_back(tap);
      step.taps.push_back(static_cast<int>(kernel_.axes.size()) - 1);
    }
    own.push_back({step.taps[i]});
  }
  Watch taps(*this, own);
  for (Value operand : node.operands) step.operands.push_back(at(operand, own));
  step.dims = dims;
  for (size_t i = 0; i < kernel.size(); ++i) step.taps[i] = own[first + i].at(0);
  kernel_.steps.push_back(std::move(step));
  return static_cast<int>(kernel_.steps.size()) - 1;
}

bool KernelBuilder::same_window(Value a, Value b) const {
  const Node &x = graph()[a], &y = graph()[b];
  return x.operands == y.operands && x.attrs == y.attrs;
}

bool KernelBuilder::overlaps(const Node& node) {
  for (size_t i = 0; i < node.ints("kernel").size(); ++i)
    if (node.ints("kernel")[i] > node.ints("stride")[i]) return true;
  return false;
}

int KernelBuilder::cost_of(Value v) const {
  int cost = 0;
  walk_upstream(graph(), v, [&](Value next) {
    if (world_.in_memory(next) || graph()[next].kind() == Kind::source) return false;
    cost = std::max(cost, info(graph()[next].op).cost);
    return true;
  });
  return cost;
}
}  // namespace fusewright
