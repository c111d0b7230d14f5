// One number for one value. Kernels compute with 16-bit values in f32, and a value goes to memory rounded. A value that
// has a copy in memory (a result, saved for the backward, read by another kernel) is that rounded number everywhere: in
// the kernel that stores it, in kernels that compute it again, in forward and backward. All other values stay
// unrounded.
//
// An operation that hands on an element of its operand (a maximum, a view, a branch of `select`) has a number in memory
// only if its operand has: otherwise no element would equal its own maximum. Rounding is monotone, so the result stays
// the same.
#include "passes/program.h"

namespace fusewright {
namespace {

// Results that are elements of the operands, or their negatives.
bool hands_on(const Node& node) {
  switch (node.op) {
    case Op::amax:
    case Op::amin:
    case Op::maximum:
    case Op::minimum:
    case Op::select:
    case Op::shift:
    case Op::neg:
    case Op::abs:
    case Op::stop_gradient:
      return true;
    default:
      return node.kind() == Kind::movement;
  }
}

struct Half {
  Graph& graph;
  Fusion& fusion;
  std::vector<bool> in_memory;  // per value

  Half(Graph& of, Fusion& groups) : graph(of), fusion(groups), in_memory(of.nodes.size()) {
    for (const Group& group : fusion.groups)
      for (const Step& step : group.kernel.steps)
        if (step.stored) mark(step.value);
  }

  void mark(Value v) { in_memory[static_cast<size_t>(v)] = true; }

  void hand_on_to_operands() {
    for (size_t i = graph.nodes.size(); i-- > 0;) {
      const Node& node = graph.nodes[i];
      if (!in_memory[i] || !(hands_on(node) || is_layout_copy(graph, static_cast<Value>(i)))) continue;
      for (Value operand : node.operands)
        if (graph.dtype(operand) == node.type.dtype) mark(operand);
    }
  }

  // Whether what is computed can be another number than the rounded one. A maximum of rounded elements is rounded; a
  // constant that a branch hands on is not.
  bool needs_rounding(const Kernel& kernel, const Step& step) const {
    const Node& node = graph[step.value];
    if (!is_narrow_float(node.type.dtype) || node.op == Op::cast) return false;
    if (!hands_on(node)) return true;
    for (int operand : step.operands)
      if (kernel.steps[static_cast<size_t>(operand)].role == Step::Role::scalar) return true;
    return false;
  }

  void mark_steps() {
    for (Group& group : fusion.groups) {
      std::vector<Step>& steps = group.kernel.steps;
      std::vector<bool> used(steps.size());
      for (const Step& step : steps)
        for (int operand : step.operands) used[static_cast<size_t>(operand)] = true;
      for (size_t s = 0; s < steps.size(); ++s) {
        Step& step = steps[s];
        const bool computed = step.role == Step::Role::compute || step.role == Step::Role::window ||
                              (step.role == Step::Role::reduce && !step.side);
        step.rounded =
            computed && used[s] && in_memory[static_cast<size_t>(step.value)] && needs_rounding(group.kernel, step);
      }
    }
  }
};

// What has a copy in memory in one half is that number in the other. Returns whether that is news for `to`.
bool carry_over(const Half& from, Half& to) {
  std::vector<bool> joint;
  for (size_t i = 0; i < from.graph.nodes.size(); ++i) {
    const int number = from.graph.nodes[i].joint;
    if (number < 0 || !from.in_memory[i]) continue;
    if (joint.size() <= static_cast<size_t>(number)) joint.resize(static_cast<size_t>(number) + 1);
    joint[static_cast<size_t>(number)] = true;
  }
  bool news = false;
  for (size_t i = 0; i < to.graph.nodes.size(); ++i) {
    const int number = to.graph.nodes[i].joint;
    if (number < 0 || static_cast<size_t>(number) >= joint.size() || !joint[static_cast<size_t>(number)]) continue;
    news |= !to.in_memory[i];
    to.mark(static_cast<Value>(i));
  }
  return news;
}

}  // namespace

void round(Program& program) {
  Half forward(program.forward, program.forward_fusion), backward(program.backward, program.backward_fusion);
  for (bool news = true; news;) {
    forward.hand_on_to_operands();
    news = carry_over(forward, backward);
    backward.hand_on_to_operands();
    news |= carry_over(backward, forward);
  }
  forward.mark_steps();
  backward.mark_steps();
}

}  // namespace fusewright
