#pragma once
#include <utility>

#include "ir/builder.h"

namespace fusewright {

// Copies a graph operation by operation; `replace(builder, node, operands)` returns the value that stands for `node`.
// The usual body of a pass.
template <class Replace>
Graph rebuild(const Graph& from, Replace replace) {
  Graph to;
  to.origins = from.origins;
  to.hints = from.hints;
  to.dynamic = from.dynamic;
  to.changing = from.changing;
  Builder builder(to);
  std::vector<Value> renamed(from.nodes.size(), -1);
  for (Value v : from.inputs) {
    to.nodes.push_back(from[v]);
    renamed[static_cast<size_t>(v)] = static_cast<Value>(to.nodes.size()) - 1;
    to.inputs.push_back(renamed[static_cast<size_t>(v)]);
  }
  for (size_t i = 0; i < from.nodes.size(); ++i) {
    if (renamed[i] >= 0) continue;
    const Node& node = from.nodes[i];
    std::vector<Value> operands;
    for (Value v : node.operands) operands.push_back(renamed[static_cast<size_t>(v)]);
    builder.set_origin(node.origin);
    renamed[i] = replace(builder, node, operands);
  }
  for (const Output& output : from.outputs) {
    to.outputs.push_back(output);
    to.outputs.back().value = renamed[static_cast<size_t>(output.value)];
  }
  return to;
}

// The node as it is, with new operands.
inline Value copy_node(Builder& builder, const Node& node, std::vector<Value> operands) {
  Graph& graph = builder.graph();
  graph.nodes.push_back({node.op, std::move(operands), node.attrs, node.type, node.origin, node.joint});
  return static_cast<Value>(graph.nodes.size()) - 1;
}

// Of the graph itself: a number of the user's may be another in the next call.
inline bool is_constant(const Graph& graph, Value v, double value) {
  const Node& node = graph[v];
  return node.op == Op::constant && !node.has("runtime") && node.number("value") == value;
}

}  // namespace fusewright
