// Rewrites that do not change a bit of the result, but for the sign of a zero gradient (merge_masks): common
// subexpressions, views of views, casts, broadcasts and shifts that do nothing. (A transposed matrix product is the
// product of the transposed: the order in which a contraction adds up is not part of its meaning.)
#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "passes/program.h"
#include "passes/rebuild.h"

namespace fusewright {
namespace {

bool is_identity(const Ints& dims) {
  for (size_t i = 0; i < dims.size(); ++i)
    if (dims[i] != static_cast<int64_t>(i)) return false;
  return true;
}

bool swaps_last_two(const Ints& dims) {
  if (dims.size() < 2) return false;
  Ints swapped = dims;
  std::swap(swapped[dims.size() - 1], swapped[dims.size() - 2]);
  return is_identity(swapped);
}

Value simplify_movement(Builder& b, const Node& node, Value x) {
  const Node from = b.graph()[x];
  if (node.op == Op::reshape || node.op == Op::expand) {
    if (from.type.shape == node.type.shape) return x;
    if (node.op == Op::reshape && from.op == Op::reshape) return b.reshape(from.operands[0], node.type.shape);
    if (node.op == Op::expand && from.op == Op::expand) return b.expand(from.operands[0], node.type.shape);
    return -1;
  }
  Ints dims = node.ints("dims");
  if (from.op == Op::permute) {
    for (int64_t& d : dims) d = from.ints("dims")[static_cast<size_t>(d)];
    return is_identity(dims) ? from.operands[0] : b.permute(from.operands[0], dims);
  }
  if (from.op == Op::matmul && from.operands.size() == 2 && swaps_last_two(dims)) {
    Value left = b.permute(from.operands[1], dims), right = b.permute(from.operands[0], dims);
    return b.binary(Op::matmul, left, right);
  }
  return is_identity(dims) ? x : -1;
}

// An operand that is repeated explicitly where the operation would repeat it anyway.
void drop_expands(const Graph& graph, const Node& node, std::vector<Value>& operands) {
  auto covers = [&](size_t except, size_t from_right) {
    for (size_t i = 0; i < operands.size(); ++i) {
      if (i == except) continue;
      const Shape& shape = graph.shape(operands[i]);
      if (from_right < shape.size() && !shape[shape.size() - 1 - from_right].is(1)) return true;
    }
    return false;
  };
  for (size_t i = 0; i < operands.size(); ++i) {
    const Node& operand = graph[operands[i]];
    if (operand.op != Op::expand) continue;
    const Shape& inner = graph.shape(operand.operands[0]);
    bool redundant = true;
    for (size_t r = 0; r < node.type.shape.size(); ++r) {
      if (r >= operand.type.shape.size()) break;
      bool repeated = r >= inner.size() || (inner[inner.size() - 1 - r].is(1) &&
                                            !operand.type.shape[operand.type.shape.size() - 1 - r].is(1));
      if (repeated && !covers(i, r)) redundant = false;
    }
    if (redundant) operands[i] = operand.operands[0];
  }
}

// Gradients of piecewise functions arrive as masked parts. The part that is not taken contributes nothing, whatever it
// is multiplied by, so masks move outwards and meet: (c ? a : 0) + (c ? 0 : b) k is c ? a : b k, which is what
// PyTorch's own derivatives compute (and keeps the sign of a zero).
Value merge_masks(Builder& b, const Node& node, const std::vector<Value>& operands) {
  const Graph& graph = b.graph();
  auto zero = [&](Value v) { return is_constant(graph, v, 0); };
  if (node.op == Op::mul) {
    for (size_t i : {size_t{0}, size_t{1}}) {
      const Node mask = graph[operands[i]];
      Value factor = operands[1 - i];
      const Node& number = graph[factor];
      bool finite = number.op == Op::constant && std::isfinite(number.number("value"));
      if (mask.op != Op::select || !finite) continue;
      Value c = mask.operands[0], x = mask.operands[1], y = mask.operands[2];
      if (zero(y)) return b.op(Op::select, {c, b.binary(Op::mul, x, factor), y});
      if (zero(x)) return b.op(Op::select, {c, x, b.binary(Op::mul, y, factor)});
    }
  } else if (node.op == Op::add) {
    const Node p = graph[operands[0]], q = graph[operands[1]];
    if (p.op != Op::select || q.op != Op::select || p.operands[0] != q.operands[0]) return -1;
    if (zero(p.operands[2]) && zero(q.operands[1]))
      return b.op(Op::select, {p.operands[0], p.operands[1], q.operands[2]});
    if (zero(p.operands[1]) && zero(q.operands[2]))
      return b.op(Op::select, {p.operands[0], q.operands[1], p.operands[2]});
  }
  return -1;
}

Value simplify_pointwise(Builder& b, const Node& node, const std::vector<Value>& operands) {
  const Graph& graph = b.graph();
  auto keeps_type = [&](Value v) { return graph.shape(v) == node.type.shape && graph.dtype(v) == node.type.dtype; };
  switch (node.op) {
    case Op::cast:
      if (keeps_type(operands[0])) return operands[0];
      break;
    case Op::mul:
      if (is_constant(graph, operands[1], 1) && keeps_type(operands[0])) return operands[0];
      if (is_constant(graph, operands[0], 1) && keeps_type(operands[1])) return operands[1];
      break;
    case Op::div:
      if (is_constant(graph, operands[1], 1) && keeps_type(operands[0])) return operands[0];
      break;
    case Op::neg:
      if (graph[operands[0]].op == Op::neg) return graph[operands[0]].operands[0];
      break;
    case Op::select:
      if (operands[1] == operands[2] && keeps_type(operands[1])) return operands[1];
      break;
    default:
      break;
  }
  Value merged = merge_masks(b, node, operands);
  return merged >= 0 && b.shape(merged) == node.type.shape ? merged : -1;
}

Value simplify_reduce(Builder& b, const Node& node, Value x) {
  const Shape& shape = b.shape(x);
  for (int64_t d : node.ints("dims"))
    if (!shape[static_cast<size_t>(d)].is(1)) return -1;
  return shape == node.type.shape ? x : b.reshape(x, node.type.shape);  // nothing is reduced
}

// A shift that moves and cuts nothing: a slice of everything, or what is concatenated with nothing.
Value simplify_shift(Builder& b, const Node& node, Value x) {
  const Ints& start = node.ints("start");
  const bool moves = std::any_of(start.begin(), start.end(), [](int64_t n) { return n != 0; });
  return moves || b.shape(x) != node.type.shape ? -1 : x;
}

std::string key_of(const Graph& graph, Value v) {
  const Node& node = graph[v];
  Graph single;  // the printer spells attributes; operands by number
  single.nodes.push_back({node.op, {}, node.attrs, node.type, -1});
  std::string key = print(single);
  for (Value operand : node.operands) key += "," + std::to_string(operand);
  return key;
}

Graph simplified(const Graph& graph, bool after_differentiation) {
  std::unordered_map<std::string, Value> known;
  return rebuild(graph, [&](Builder& b, const Node& node, std::vector<Value>& operands) {
    size_t before = b.graph().nodes.size();
    Value v = -1;
    switch (node.kind()) {
      case Kind::movement:
        v = simplify_movement(b, node, operands[0]);
        break;
      case Kind::reduce:
        v = simplify_reduce(b, node, operands[0]);
        break;
      case Kind::window:
        if (node.op == Op::shift) v = simplify_shift(b, node, operands[0]);
        break;
      case Kind::pointwise:
        drop_expands(b.graph(), node, operands);
        if (node.op == Op::stop_gradient && after_differentiation)
          v = operands[0];
        else
          v = simplify_pointwise(b, node, operands);
        break;
      default:
        break;
    }
    if (v < 0) v = copy_node(b, node, operands);
    // Operations just added are shared with equal ones from before.
    std::vector<Value> renamed;
    Graph& to = b.graph();
    size_t end = to.nodes.size();
    for (size_t i = before; i < end; ++i) {
      for (Value& operand : to.nodes[i].operands)
        if (operand >= static_cast<Value>(before)) operand = renamed[static_cast<size_t>(operand) - before];
      auto [it, fresh] = known.try_emplace(key_of(to, static_cast<Value>(i)), static_cast<Value>(i));
      renamed.push_back(it->second);
    }
    return v >= static_cast<Value>(before) ? renamed[static_cast<size_t>(v) - before] : v;
  });
}

void until_stable(Graph& graph, bool after_differentiation) {
  for (int round = 0; round < 4; ++round) {
    size_t before = graph.nodes.size();
    graph = simplified(graph, after_differentiation);
    remove_dead(graph);
    if (graph.nodes.size() == before) break;
  }
}

}  // namespace

void simplify(Program& program) {
  // stop_gradient has done its work once the gradients are built, and in inference.
  bool differentiated = !program.training() || !program.gradient_for_input.empty();
  until_stable(program.forward, differentiated);
  if (!program.backward.outputs.empty()) until_stable(program.backward, differentiated);
}

}  // namespace fusewright
