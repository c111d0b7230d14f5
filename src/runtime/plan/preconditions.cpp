#include "runtime/plan/preconditions.h"

#include "ir/error.h"

namespace fusewright {
namespace {

// Dimensions of a node's operand, or of its result, that must not be empty.
Shape positive_sizes(const Graph& graph, const Node& node) {
  Shape sizes;
  switch (node.op) {
    case Op::amax:
    case Op::amin:
    case Op::argmax:
    case Op::argmin:
      for (int64_t d : node.ints("dims")) sizes.push_back(graph.shape(node.operands[0])[static_cast<size_t>(d)]);
      break;
    case Op::max_pool:
    case Op::avg_pool: {
      // Every dimension but the batch, which unbatched pooling does not have.
      size_t first = graph.shape(node.operands[0]).size() > node.ints("kernel").size() + 1 ? 1 : 0;
      for (const Shape* shape : {&graph.shape(node.operands[0]), &node.type.shape})
        sizes.insert(sizes.end(), shape->begin() + static_cast<long>(first), shape->end());
      break;
    }
    default:
      break;
  }
  return sizes;
}

std::vector<std::pair<Size, Value>> wanted_sizes(const Graph& graph) {
  std::vector<std::pair<Size, Value>> wanted;
  for (size_t v = 0; v < graph.nodes.size(); ++v)
    for (const Size& size : positive_sizes(graph, graph.nodes[v]))
      // A size that is part of the graph's text was checked when the operation was added.
      if (!size.constant() || *size.constant() <= 0) wanted.emplace_back(size, static_cast<Value>(v));
  return wanted;
}

}  // namespace

Shape Preconditions::sizes(const Graph& graph) {
  Shape result;
  for (const auto& [size, v] : wanted_sizes(graph)) result.push_back(size);
  return result;
}

Preconditions::Preconditions(const Graph& graph) {
  const std::vector<std::pair<Size, Value>> wanted = wanted_sizes(graph);
  if (wanted.empty()) return;
  for (Value v : graph.inputs) {
    inputs_.inputs.push_back(static_cast<Value>(inputs_.nodes.size()));
    inputs_.nodes.push_back(graph[v]);
  }
  binder_ = SymbolBinder(inputs_);
  for (const auto& [size, v] : wanted)
    positive_.push_back({SizeProgram(size, binder_.slots()), graph.describe(v) + ": " + size.str()});
}

void Preconditions::check(const std::vector<Tensor>& inputs) const {
  if (positive_.empty()) return;
  std::vector<int64_t> symbols = binder_.bind(inputs_, inputs);
  for (const Positive& positive : positive_) {
    int64_t size = positive.size.run(symbols.data());
    if (size <= 0) throw SizeError(positive.what + " is " + std::to_string(size) + ", but must be positive");
  }
}

}  // namespace fusewright
