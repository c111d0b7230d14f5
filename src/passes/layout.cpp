// Memory order of every value: results of pointwise operations, pooling and convolution follow their operand's, so that
// a channels-last model stays channels-last and no pass over memory only transposes.
#include "passes/program.h"

namespace fusewright {
namespace {

Order order_of(const Graph& graph, const Node& node) {
  switch (node.kind()) {
    case Kind::pointwise:
    case Kind::window:
    case Kind::contraction:
      if (node.op == Op::matmul || node.op == Op::conv_weight_grad) return {};
      for (Value v : node.operands)
        if (graph.type(v).rank() == node.type.rank() && !graph.type(v).order.empty()) return graph.type(v).order;
      return {};
    case Kind::reduce:
      return node.integer("keepdim") ? graph.type(node.operands[0]).order : Order{};
    case Kind::movement:
      if (node.op == Op::expand && graph.type(node.operands[0]).rank() == node.type.rank())
        return graph.type(node.operands[0]).order;
      return {};
    default:
      return node.type.order;
  }
}

void propagate(Graph& graph) {
  for (Node& node : graph.nodes) node.type.order = order_of(graph, node);
  // What is only kept for the backward lies as it was computed; what the user sees lies as eager's does.
  for (Output& output : graph.outputs)
    if (output.name.rfind("saved", 0) == 0) output.order = graph.type(output.value).order;
}

}  // namespace

void layout(Program& program) {
  propagate(program.forward);
  propagate(program.backward);
}

}  // namespace fusewright
