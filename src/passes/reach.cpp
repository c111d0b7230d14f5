// Inputs from which no differentiable path leads to a result have no gradient in eager: None, and not zeros. Before
// anything is rewritten, because a rule may take the only path away (a bias before BatchNorm): that gradient is a zero.
// And results that a wanted input leads to need a gradient.
#include "passes/program.h"

namespace fusewright {

namespace {

// From a node's result to its operands, a zero perhaps. Running statistics move outside of autograd.
bool carries_gradient(const Node& node) {
  switch (node.op) {
    case Op::stop_gradient:
    case Op::batch_norm_running_mean:
    case Op::batch_norm_running_var:
      return false;
    default:
      return is_float(node.type.dtype);
  }
}

}  // namespace

std::vector<bool> influenced(const Graph& graph, const std::vector<bool>& wrt) {
  std::vector<bool> result(graph.nodes.size());
  for (size_t i = 0; i < wrt.size(); ++i) result[static_cast<size_t>(graph.inputs[i])] = wrt[i];
  for (size_t i = 0; i < graph.nodes.size(); ++i)
    if (carries_gradient(graph.nodes[i]))
      for (Value v : graph.nodes[i].operands) result[i] = result[i] || result[static_cast<size_t>(v)];
  return result;
}

std::vector<std::vector<bool>> leads_to(const Graph& graph, const Program& program) {
  std::vector<std::vector<bool>> result;
  for (int input : program.gradient_for_input) {
    std::vector<bool> alone(graph.inputs.size());
    alone[static_cast<size_t>(input)] = true;
    const std::vector<bool> values = influenced(graph, alone);
    std::vector<bool>& outputs = result.emplace_back();
    for (int output : program.gradient_of_output)
      outputs.push_back(values[static_cast<size_t>(graph.outputs[static_cast<size_t>(output)].value)]);
  }
  return result;
}

void reach(Program& program) {
  const Graph& graph = program.forward;
  const std::vector<bool> tracked = influenced(graph, program.wrt);
  std::vector<bool> reached(graph.nodes.size());
  for (const Output& output : graph.outputs)
    program.tracked.push_back(output.differentiable && tracked[static_cast<size_t>(output.value)]);
  for (const Output& output : graph.outputs)
    if (output.differentiable) reached[static_cast<size_t>(output.value)] = true;
  for (size_t i = graph.nodes.size(); i-- > 0;)
    if (reached[i] && carries_gradient(graph.nodes[i]))
      for (Value v : graph.nodes[i].operands) reached[static_cast<size_t>(v)] = true;
  for (size_t i = 0; i < program.wrt.size(); ++i)
    program.wrt[i] = program.wrt[i] && reached[static_cast<size_t>(graph.inputs[i])];
}

}  // namespace fusewright
