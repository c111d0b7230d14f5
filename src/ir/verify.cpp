#include "ir/builder.h"

namespace fusewright {

void verify(const Graph& graph) {
  Graph scratch = graph;  // inference may want to unify; in a sound graph it has nothing left to do
  Builder builder(scratch);
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    const OpInfo& row = info(node.op);
    int count = static_cast<int>(node.operands.size());
    auto at = [&] { return "%" + std::to_string(i) + " = " + graph.describe(static_cast<Value>(i)) + ": "; };
    for (Value v : node.operands)
      require(v >= 0 && v < static_cast<Value>(i), "%", i, " = ", row.name, ": operand %", v,
              " is not defined before its use");
    require(count >= row.min_operands && count <= row.max_operands, at(), "has ", count, " operands");
    require(is_order(node.type.order, node.type.rank()), at(), "memory order does not name each of ", node.type.rank(),
            " dimensions once");
    if (node.kind() == Kind::source) continue;
    Attrs attrs = node.attrs;
    Type type = infer_type(builder, node.op, node.operands, attrs);
    require(type.dtype == node.type.dtype, at(), "is ", name_of(node.type.dtype), ", should be ", name_of(type.dtype));
    require(type.shape == node.type.shape, at(), "has shape ", str(node.type.shape), ", should be ", str(type.shape));
  }
  std::set<int> replaced;
  for (const Output& output : graph.outputs) {
    require(output.value >= 0 && output.value < static_cast<Value>(graph.nodes.size()), "output %", output.value,
            " does not exist");
    require(is_order(output.order, graph.type(output.value).rank()), "output %", output.value,
            ": memory order does not name each of ", graph.type(output.value).rank(), " dimensions once");
    if (output.into < 0) continue;
    require(output.into < static_cast<int>(graph.inputs.size()), "output %", output.value, ": no input ", output.into);
    const Node& input = graph[graph.inputs[static_cast<size_t>(output.into)]];
    require(input.op == Op::input, "output %", output.value, " goes into a number");
    require(input.type.dtype == graph.dtype(output.value) && input.type.shape == graph.shape(output.value), "output %",
            output.value, ": ", name_of(graph.dtype(output.value)), str(graph.shape(output.value)),
            " does not fit into '", input.text("name"), "'");
    require(replaced.insert(output.into).second, "two outputs go into '", input.text("name"), "'");
  }
}

}  // namespace fusewright
