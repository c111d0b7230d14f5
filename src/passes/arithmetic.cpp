#include "passes/arithmetic.h"

namespace fusewright {
namespace {

int64_t elements(const Graph& graph, Value v) {
  int64_t count = 1;
  for (const Size& size : graph.shape(v)) count *= graph.hint(size);
  return count;
}

// Every element of x (of y, unless transposed) meets the weights of its channel: w[channel, ...].
int64_t convolution(const Graph& graph, Value v) {
  const Node& node = graph[v];
  const bool transposed = node.integer("transposed") != 0;
  Value x = v, y = node.operands[0], w = node.operands[1];  // conv_input_grad(dL_dy, w)
  if (node.op == Op::conv) std::swap(x, y);
  if (node.op == Op::conv_weight_grad) std::swap(x, w);
  const int64_t channels = std::max<int64_t>(graph.hint(graph.shape(w)[0]), 1);
  return 2 * elements(graph, transposed ? x : y) * (elements(graph, w) / channels);
}

int64_t contraction(const Graph& graph, Value v) {
  const Node& node = graph[v];
  const int64_t bias = node.operands.size() == 3 ? elements(graph, v) : 0;
  if (node.op != Op::matmul) return convolution(graph, v) + bias;
  return 2 * elements(graph, v) * graph.hint(graph.shape(node.operands[0]).back()) + bias;
}

int64_t work(const Graph& graph, const Kernel& kernel, const Step& step) {
  const Node& node = graph[step.value];
  switch (step.role) {
    case Step::Role::compute:
      return node.kind() == Kind::pointwise && node.op != Op::cast ? elements(graph, step.value) : 0;
    case Step::Role::reduce:
      return elements(graph, node.operands[0]);
    case Step::Role::contract:
      return contraction(graph, step.value);
    case Step::Role::window: {
      int64_t taps = 1;
      for (int axis : step.taps) taps *= kernel.axes[static_cast<size_t>(axis)].kernel;
      return elements(graph, step.value) * taps;
    }
    default:
      return 0;
  }
}

}  // namespace

int64_t operations(const Graph& graph, const Group& group) {
  int64_t total = 0;
  for (const Step& step : group.kernel.steps) total += work(graph, group.kernel, step);
  return total;
}

int64_t operations(const Program& program) {
  int64_t total = 0;
  for (const Group& group : program.forward_fusion.groups) total += operations(program.forward, group);
  for (const Group& group : program.backward_fusion.groups) total += operations(program.backward, group);
  return total;
}

Program without_rules(const Graph& graph, const Program& program, const std::set<std::string>& rules) {
  Program other;
  other.forward = graph;
  other.wrt = program.wrt;
  other.options = program.options;
  other.options.disabled_rewrites.insert(rules.begin(), rules.end());
  run_pipeline(other);
  return other;
}

}  // namespace fusewright
