#include "passes/row_constants.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <utility>

#include "passes/rebuild.h"
#include "passes/upstream.h"

namespace fusewright {
namespace {

using Operands = std::vector<Value>;

// The rows of a shape: the dimensions along which their constants do not vary.
class Rows {
 public:
  // Those of a value that does not vary along all of the shape; none if it does, or nowhere varies less.
  static std::optional<Rows> of(const Graph& graph, Value v, const Shape& full) {
    const Shape& shape = graph.shape(v);
    if (shape.size() > full.size()) return {};
    Rows rows(graph, full);
    for (size_t d = 0; d < full.size(); ++d) {
      const size_t missing = full.size() - shape.size();
      if (!full[d].is(1) && (d < missing || shape[d - missing].is(1))) rows.along_.push_back(d);
    }
    if (rows.along_.empty()) return {};
    return rows;
  }

  bool is_constant(Value v) const {
    const Shape& shape = graph_->shape(v);
    if (shape.size() > full_.size()) return false;
    const size_t missing = full_.size() - shape.size();
    return std::all_of(along_.begin(), along_.end(), [&](size_t d) { return d < missing || shape[d - missing].is(1); });
  }
  bool is_whole(Value v) const { return graph_->shape(v) == full_; }

 private:
  Rows(const Graph& graph, Shape full) : graph_(&graph), full_(std::move(full)) {}
  const Graph* graph_;
  Shape full_;
  std::vector<size_t> along_;
};

// number * (product of `varying`) * (product of `constants`) / (product of `divisors`); all but `varying` are constants
// of a row.
struct Product {
  double number = 1;
  Operands varying, constants, divisors;
};

bool is_number(const Node& node) { return node.op == Op::constant && !node.has("runtime"); }

void split_constant(const Graph& graph, Value v, Product& product) {
  const Node& node = graph[v];
  if (is_number(node)) {
    product.number *= node.number("value");
  } else if (node.op == Op::mul) {
    for (Value operand : node.operands) split_constant(graph, operand, product);
  } else if (node.op == Op::neg) {
    product.number = -product.number;
    split_constant(graph, node.operands[0], product);
  } else if (node.op == Op::div && !is_number(graph[node.operands[1]])) {
    split_constant(graph, node.operands[0], product);
    product.divisors.push_back(node.operands[1]);
  } else {
    product.constants.push_back(v);
  }
}

// A product without constants of the row stays one factor: what is not moved keeps its order of operations.
Product split(const Graph& graph, Value v, const Rows& rows) {
  Product product;
  if (rows.is_constant(v)) {
    split_constant(graph, v, product);
    return product;
  }
  const Node& node = graph[v];
  if (node.op == Op::neg) {
    product = split(graph, node.operands[0], rows);
    product.number = -product.number;
  } else if (node.op == Op::div && rows.is_constant(node.operands[1])) {
    product = split(graph, node.operands[0], rows);
    product.divisors.push_back(node.operands[1]);
  } else if (node.op == Op::mul) {
    product = split(graph, node.operands[0], rows);
    Product other = split(graph, node.operands[1], rows);
    product.number *= other.number;
    for (auto list : {&Product::varying, &Product::constants, &Product::divisors})
      (product.*list).insert((product.*list).end(), (other.*list).begin(), (other.*list).end());
  }
  if (product.constants.empty() && product.divisors.empty() && product.number == 1) product.varying = {v};
  return product;
}

Value multiply(Builder& b, Operands factors) {
  // Equal products are seen to be equal; sums come before the small numbers that bring them down.
  std::sort(factors.begin(), factors.end(), std::greater<>());
  Value product = factors[0];
  for (size_t i = 1; i < factors.size(); ++i) product = b.binary(Op::mul, product, factors[i]);
  return product;
}

// Constants and divisors, times the number; -1 for 1. A sign alone stays with the caller, who adds or subtracts.
Value constant_part(Builder& b, const Product& product, DType dtype) {
  Value result = product.constants.empty() ? -1 : multiply(b, product.constants);
  const double number = std::abs(product.number);
  if (number != 1) {
    Value factor = b.constant(number, dtype);
    result = result < 0 ? factor : b.binary(Op::mul, result, factor);
  }
  for (Value divisor : product.divisors)
    result = b.binary(Op::div, result < 0 ? b.constant(1, dtype) : result, divisor);
  return result;
}

Value without_sign(Builder& b, const Product& product, DType dtype) {
  Value constant = constant_part(b, product, dtype);
  if (product.varying.empty()) return constant < 0 ? b.constant(1, dtype) : constant;
  Value varying = product.varying[0];
  for (size_t i = 1; i < product.varying.size(); ++i) varying = b.binary(Op::mul, varying, product.varying[i]);
  return constant < 0 ? varying : b.binary(Op::mul, varying, constant);
}

// What both lists have; it is taken out of them.
Operands take_common(Operands& a, Operands& b) {
  Operands common;
  std::erase_if(a, [&](Value v) {
    auto it = std::find(b.begin(), b.end(), v);
    if (it == b.end()) return false;
    common.push_back(v);
    b.erase(it);
    return true;
  });
  return common;
}

bool is_floating_point(const Node& node) { return node.type.dtype == DType::f32 || node.type.dtype == DType::f64; }

// base * scale + offset, with constants of the row for both; `steps` operations on elements so far.
struct Affine {
  Value base;
  Product scale;
  Value offset = -1;
  int steps = 0;
};

Value shift(Builder& b, Op op, Value offset, Value by) {
  if (offset < 0) return op == Op::add ? by : b.unary(Op::neg, by);
  return b.binary(op, offset, by);
}

Affine affine(Builder& b, Value v, const Rows& rows) {
  const Node node = b.graph()[v];
  const bool binary = node.operands.size() == 2;
  const bool left = binary && rows.is_whole(node.operands[0]) && rows.is_constant(node.operands[1]);
  const bool right = binary && rows.is_whole(node.operands[1]) && rows.is_constant(node.operands[0]);
  const Affine atom{v, {}, -1, 0};
  if (node.op == Op::neg) {
    Affine result = affine(b, node.operands[0], rows);
    result.scale.number = -result.scale.number;
    if (result.offset >= 0) result.offset = b.unary(Op::neg, result.offset);
    ++result.steps;
    return result;
  }
  if (!left && !right) return atom;
  const Value constant = node.operands[left ? 1 : 0];
  Affine result = affine(b, node.operands[left ? 0 : 1], rows);
  ++result.steps;
  switch (node.op) {
    case Op::mul:
      split_constant(b.graph(), constant, result.scale);
      if (result.offset >= 0) result.offset = b.binary(Op::mul, result.offset, constant);
      return result;
    case Op::div:
      if (!left) return atom;
      result.scale.divisors.push_back(constant);
      if (result.offset >= 0) result.offset = b.binary(Op::div, result.offset, constant);
      return result;
    case Op::add:
    case Op::sub:
      // A distance is taken before it is scaled: x * k - mean * k would lose what the two have in common.
      if (result.scale.constants.empty() && result.scale.divisors.empty()) return atom;
      if (node.op == Op::sub && !left) {
        result.scale.number = -result.scale.number;
        result.offset = result.offset < 0 ? constant : b.binary(Op::sub, constant, result.offset);
      } else {
        result.offset = shift(b, node.op, result.offset, constant);
      }
      return result;
    default:
      return atom;
  }
}

// The first value on the way up that is constant for rows and comes from a reduction: whose rows they are.
std::optional<Rows> rows_above(const Graph& graph, Value v) {
  const Shape& full = graph.shape(v);
  for (;;) {
    const Node& node = graph[v];
    if (node.op != Op::add && node.op != Op::sub && node.op != Op::mul && node.op != Op::div && node.op != Op::neg)
      return {};
    Value next = -1;
    for (Value operand : node.operands) {
      if (graph.shape(operand) == full) {
        if (next >= 0) return {};
        next = operand;
      } else if (auto rows = Rows::of(graph, operand, full); rows && depends_on_reduction(graph, operand)) {
        return rows;
      }
    }
    if (next < 0) return {};
    v = next;
  }
}

}  // namespace

int uses(const Graph& graph, Value v) {
  int count = 0;
  for (const Node& node : graph.nodes)
    count += static_cast<int>(std::count(node.operands.begin(), node.operands.end(), v));
  for (const Output& output : graph.outputs) count += output.value == v;
  return count;
}

bool depends_on_reduction(const Graph& graph, Value v) {
  bool found = false;
  walk_upstream(graph, v, [&](Value next) {
    found |= graph[next].kind() == Kind::reduce;
    return !found && graph[next].kind() != Kind::contraction;
  });
  return found;
}

// ((x - mean) k + b + c) / d = (x - mean) (k / d) + (b + c) / d: whatever constants a chain multiplies to and adds to a
// row's elements, two are left, computed once for the row.
Value norm_is_affine(Builder& b, const Node& node, const Operands& operands, const Graph& before) {
  const bool applies = node.op == Op::add || node.op == Op::sub || node.op == Op::mul || node.op == Op::div;
  if (!applies || !is_floating_point(node)) return -1;
  Graph& graph = b.graph();
  for (size_t i : {size_t{0}, size_t{1}})  // what others need is there anyway
    if (graph.shape(operands[i]) == node.type.shape && uses(before, node.operands[i]) > 1) return -1;
  const size_t size = graph.nodes.size();
  const Value copy = copy_node(b, node, operands);
  if (auto rows = rows_above(graph, copy)) {
    const Affine found = affine(b, copy, *rows);
    if (found.steps > 1 + (found.offset >= 0)) {
      Value scale = constant_part(b, found.scale, node.type.dtype);
      if (found.scale.number < 0) scale = b.unary(Op::neg, scale < 0 ? b.constant(1, node.type.dtype) : scale);
      Value result = scale < 0 ? found.base : b.binary(Op::mul, found.base, scale);
      if (found.offset >= 0) result = b.binary(Op::add, result, found.offset);
      if (graph.shape(result) == node.type.shape) return result;
    }
  }
  graph.nodes.resize(size);
  return -1;
}

// x k + y k = (x + y) k, where k is a constant of the row that comes from a reduction: the gradient of a norm. Fewer
// products, and its terms cancel before they are rounded to the size of k.
Value common_factor_leaves_terms(Builder& b, const Node& node, const Operands& operands, const Graph&) {
  if ((node.op != Op::add && node.op != Op::sub) || !is_floating_point(node)) return -1;
  Graph& graph = b.graph();
  const Shape full = node.type.shape;
  auto rows_of_factor = [&](Value v) -> std::optional<Rows> {
    for (Value factor : graph[v].operands)
      if (auto rows = Rows::of(graph, factor, full); rows && depends_on_reduction(graph, factor)) return rows;
    return {};
  };
  for (Value operand : operands) {
    if (graph.shape(operand) != full || graph[operand].op != Op::mul) continue;
    const std::optional<Rows> rows = rows_of_factor(operand);
    if (!rows) continue;
    Product left = split(graph, operands[0], *rows), right = split(graph, operands[1], *rows), common;
    common.constants = take_common(left.constants, right.constants);
    common.divisors = take_common(left.divisors, right.divisors);
    auto comes_from_reduction = [&](Value v) { return depends_on_reduction(graph, v); };
    if (std::none_of(common.constants.begin(), common.constants.end(), comes_from_reduction)) continue;
    const size_t size = graph.nodes.size();
    const DType dtype = node.type.dtype;
    const bool minus = (node.op == Op::sub) ^ (left.number < 0) ^ (right.number < 0);
    Value sum = b.binary(minus ? Op::sub : Op::add, without_sign(b, left, dtype), without_sign(b, right, dtype));
    Value factor = constant_part(b, common, dtype);
    if (left.number < 0) factor = b.unary(Op::neg, factor);
    Value result = b.binary(Op::mul, sum, factor);
    if (graph.shape(sum) == full && graph.shape(result) == full && rows->is_constant(factor)) return result;
    graph.nodes.resize(size);
  }
  return -1;
}

}  // namespace fusewright
