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
    if (graph.shape(v).size() > full.size()) return {};
    Rows rows(graph, full);
    for (int64_t d = 0; d < static_cast<int64_t>(full.size()); ++d)
      if (!full[static_cast<size_t>(d)].is(1) && invariant(graph, v, full.size(), {d})) rows.along_.push_back(d);
    if (rows.along_.empty()) return {};
    return rows;
  }

  bool is_constant(Value v) const {
    return graph_->shape(v).size() <= full_.size() && invariant(*graph_, v, full_.size(), along_);
  }
  bool is_whole(Value v) const { return graph_->shape(v) == full_; }

 private:
  Rows(const Graph& graph, Shape full) : graph_(&graph), full_(std::move(full)) {}
  const Graph* graph_;
  Shape full_;
  Ints along_;
};

// number * (product of `varying`) * (product of `constants`) / (product of `divisors`); all but `varying` are constants
// of a row.
struct Product {
  double number = 1;
  Operands varying, constants, divisors;
  int budget = 32;  // of nodes to look into: a factor that is squared again and again would double them each time
};

bool is_number(const Node& node) { return node.op == Op::constant && !node.has("runtime"); }

void split_constant(const Graph& graph, Value v, Product& product) {
  const Node& node = graph[v];
  // A mean is one factor: sums multiplied before they are divided by the number of their terms would be too large.
  const bool mean =
      node.op == Op::div && graph[node.operands[0]].op == Op::sum && graph[node.operands[1]].op == Op::extent;
  if (is_number(node)) {
    product.number *= node.number("value");
  } else if (--product.budget < 0 || mean) {
    product.constants.push_back(v);
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
void split(const Graph& graph, Value v, const Rows& rows, Product& product) {
  if (rows.is_constant(v)) return split_constant(graph, v, product);
  const Node& node = graph[v];
  const Product before = product;
  if (--product.budget >= 0) {
    if (node.op == Op::neg) {
      split(graph, node.operands[0], rows, product);
      product.number = -product.number;
    } else if (node.op == Op::div && rows.is_constant(node.operands[1])) {
      split(graph, node.operands[0], rows, product);
      product.divisors.push_back(node.operands[1]);
    } else if (node.op == Op::mul) {
      for (Value operand : node.operands) split(graph, operand, rows, product);
    }
  }
  if (product.constants.size() > before.constants.size() || product.divisors.size() > before.divisors.size() ||
      product.number != before.number)
    return;
  product.varying = before.varying;
  product.varying.push_back(v);
}

Product split(const Graph& graph, Value v, const Rows& rows) {
  Product product;
  split(graph, v, rows, product);
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

bool is_wide_float(const Node& node) { return is_float(node.type.dtype) && !is_narrow_float(node.type.dtype); }

// The reciprocal of a deviation, which is bounded where there is an epsilon.
bool is_deviation(const Graph& graph, Value v) { return graph[v].op == Op::rsqrt && depends_on_reduction(graph, v); }

// Softmax's: a sum of exponentials, the largest of which is 1.
bool is_sum_of_exponentials(const Graph& graph, Value v) {
  if (graph[v].op != Op::sum || graph[graph[v].operands[0]].op != Op::exp) return false;
  const Node& shifted = graph[graph[graph[v].operands[0]].operands[0]];
  if (shifted.op != Op::sub) return false;
  Value largest = shifted.operands[1];
  if (graph[largest].op == Op::stop_gradient) largest = graph[largest].operands[0];
  return graph[largest].op == Op::amax && graph[largest].ints("dims") == graph[v].ints("dims");
}

// Of ordinary size, so that a product with it is finite where the chain's is.
bool is_ordinary_number(const Graph& graph, Value v) {
  const Node& node = graph[v];
  return node.op == Op::constant && std::abs(node.number("value")) > 1e-6 && std::abs(node.number("value")) < 1e6;
}

// What a norm multiplies its row with: one of those, times weights and numbers.
bool is_factor_of_norm(const Graph& graph, Value v) {
  const Node& node = graph[v];
  if (is_deviation(graph, v)) return true;
  if (node.op == Op::div && is_sum_of_exponentials(graph, node.operands[1]))
    return !depends_on_reduction(graph, node.operands[0]);
  if (node.op == Op::div)
    return is_ordinary_number(graph, node.operands[1]) && is_factor_of_norm(graph, node.operands[0]);
  if (node.op != Op::mul) return false;
  for (size_t i : {size_t{0}, size_t{1}})
    if (!depends_on_reduction(graph, node.operands[1 - i])) return is_factor_of_norm(graph, node.operands[i]);
  return false;
}

// base * scale + offset, with constants of the row for both; `steps` operations on elements so far.
struct Affine {
  Value base;
  Value scale = -1, offset = -1;
  int steps = 0;
  bool normalised = false;  // the scale has what makes it a norm
};

// Only what a norm is made of: elsewhere products of constants may be too large or too small where the chain's are not,
// and sums that nearly cancel lose digits, or their gradients do.
Affine affine(Builder& b, Value v, const Rows& rows) {
  const Graph& graph = b.graph();
  const Node node = graph[v];
  const Affine atom{v};
  if (node.operands.size() != 2) return atom;
  const bool left = rows.is_whole(node.operands[0]) && rows.is_constant(node.operands[1]);
  const bool right = rows.is_whole(node.operands[1]) && rows.is_constant(node.operands[0]);
  if (!left && !right) return atom;
  const Value constant = node.operands[left ? 1 : 0];
  const bool number = is_ordinary_number(graph, constant);
  const bool fixed = !depends_on_reduction(graph, constant), weight = fixed && graph[constant].op != Op::constant;
  Affine result = affine(b, node.operands[left ? 0 : 1], rows);
  ++result.steps;
  auto scaled = [&](Op op, Value by) { return by < 0 ? by : b.binary(op, by, constant); };
  if (node.op == Op::mul) {
    const bool norm = is_factor_of_norm(graph, constant) && !result.normalised && result.offset < 0;
    if (!norm && !number && (!weight || result.offset >= 0)) return atom;
    result.normalised |= norm;
    result.scale = result.scale < 0 ? constant : scaled(Op::mul, result.scale);
    result.offset = scaled(Op::mul, result.offset);
    return result;
  }
  if (node.op == Op::div && left) {
    const bool softmax = is_sum_of_exponentials(graph, constant) && result.scale < 0;
    if (!softmax && !number) return atom;
    result.normalised |= softmax;
    result.scale = scaled(Op::div, result.scale < 0 ? b.constant(1, node.type.dtype) : result.scale);
    result.offset = scaled(Op::div, result.offset);
    return result;
  }
  // Of a distance from a mean, which has been taken before it is scaled; x * k - mean * k would lose what they share.
  const Node& base = graph[result.base];
  const bool distance = base.op == Op::sub && rows.is_constant(base.operands[1]);
  if (node.op == Op::add && fixed && distance && result.normalised) {
    result.offset = result.offset < 0 ? constant : b.binary(Op::add, result.offset, constant);
    return result;
  }
  return atom;
}

// The first value on the way up that is constant for rows and makes a norm: whose rows they are.
std::optional<Rows> rows_above(const Graph& graph, Value v) {
  const Shape& full = graph.shape(v);
  for (;;) {
    const Node& node = graph[v];
    if (node.op != Op::add && node.op != Op::mul && node.op != Op::div) return {};
    Value next = -1;
    for (Value operand : node.operands) {
      if (graph.shape(operand) == full) {
        if (next >= 0) return {};
        next = operand;
      } else if (is_factor_of_norm(graph, operand) || is_sum_of_exponentials(graph, operand)) {
        return Rows::of(graph, operand, full);
      }
    }
    if (next < 0) return {};
    v = next;
  }
}

}  // namespace

bool invariant(const Graph& graph, Value v, size_t rank, const Ints& dims) {
  const Shape& shape = graph.shape(v);
  return std::none_of(dims.begin(), dims.end(), [&](int64_t dim) {
    const size_t d = static_cast<size_t>(dim), missing = rank - shape.size();
    return d >= missing && !shape[d - missing].is(1);
  });
}

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

// ((x - mean) k + b + c) / 2 = (x - mean) (k / 2) + (b + c) / 2: whatever weights, biases and numbers a chain
// multiplies to a norm and adds to it, two constants are left, computed once for the row.
Value norm_is_affine(Builder& b, const Node& node, const Operands& operands, const Graph& before) {
  const bool applies = node.op == Op::add || node.op == Op::mul || node.op == Op::div;
  if (!applies || !is_wide_float(node)) return -1;
  Graph& graph = b.graph();
  for (size_t i : {size_t{0}, size_t{1}})  // what others need is there anyway
    if (graph.shape(operands[i]) == node.type.shape && uses(before, node.operands[i]) > 1) return -1;
  const size_t size = graph.nodes.size();
  const Value copy = copy_node(b, node, operands);
  if (auto rows = rows_above(graph, copy)) {
    const Affine found = affine(b, copy, *rows);
    if (found.normalised && found.steps > 1 + (found.offset >= 0)) {
      Value result = b.binary(Op::mul, found.base, found.scale);
      if (found.offset >= 0) result = b.binary(Op::add, result, found.offset);
      if (graph.shape(result) == node.type.shape) return result;
    }
  }
  graph.nodes.resize(size);
  return -1;
}

// x k + y k = (x + y) k, where k is the reciprocal of a row's deviation: the gradient of a norm. Fewer products, and
// its terms cancel before they are rounded to the size of k.
Value common_factor_leaves_terms(Builder& b, const Node& node, const Operands& operands, const Graph&) {
  if ((node.op != Op::add && node.op != Op::sub) || !is_wide_float(node)) return -1;
  Graph& graph = b.graph();
  const Shape full = node.type.shape;
  auto rows_of_factor = [&](Value v) -> std::optional<Rows> {
    for (Value factor : graph[v].operands)
      if (auto rows = Rows::of(graph, factor, full); rows && depends_on_reduction(graph, factor)) return rows;
    return {};
  };
  auto deviation = [&](Value v) { return is_deviation(graph, v); };
  for (Value operand : operands) {
    if (graph.shape(operand) != full || graph[operand].op != Op::mul) continue;
    const std::optional<Rows> rows = rows_of_factor(operand);
    if (!rows) continue;
    Product left = split(graph, operands[0], *rows), right = split(graph, operands[1], *rows), common;
    common.constants = take_common(left.constants, right.constants);
    common.divisors = take_common(left.divisors, right.divisors);
    if (std::none_of(common.constants.begin(), common.constants.end(), deviation)) continue;
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

// With y = e / s, s the sum of the exponentials e, the gradient (g / s - sum(g y / s)) e is (g - sum(g y)) y: two
// divisions less for each element, and of all that the forward computes the backward needs y alone.
Value softmax_gradient_reads_result(Builder& b, const Node& node, const Operands& operands, const Graph&) {
  if (node.op != Op::mul) return -1;
  const Graph& graph = b.graph();
  auto is = [&](Value v, Op op) { return graph[v].op == op; };
  for (size_t i : {size_t{0}, size_t{1}}) {
    const Value both = operands[i], e = operands[1 - i];
    if (!is(both, Op::add)) continue;
    for (size_t k : {size_t{0}, size_t{1}}) {
      const Value direct = graph[both].operands[k], total = graph[both].operands[1 - k];
      if (!is(direct, Op::div) || !is(total, Op::sum) || !graph[total].integer("keepdim")) continue;
      const Value g = graph[direct].operands[0], s = graph[direct].operands[1];
      if (!is_sum_of_exponentials(graph, s) || graph[s].operands[0] != e) continue;
      const Value product = graph[total].operands[0];  // -g (y / s)
      if (!is(product, Op::mul) || graph.shape(product) != graph.shape(e)) continue;
      if (!graph[s].integer("keepdim") || graph[total].ints("dims") != graph[s].ints("dims")) continue;
      const Value minus = graph[product].operands[0], share = graph[product].operands[1];
      if (!is(minus, Op::neg) || graph[minus].operands[0] != g) continue;
      if (!is(share, Op::div) || graph[share].operands[1] != s) continue;
      const Value y = graph[share].operands[0];
      if (!is(y, Op::div) || graph[y].operands != Operands{e, s}) continue;
      const Value mean = b.reduce(Op::sum, b.binary(Op::mul, g, y), Ints(graph[total].ints("dims")), true);
      return b.binary(Op::mul, b.binary(Op::sub, g, mean), y);
    }
  }
  return -1;
}

}  // namespace fusewright
