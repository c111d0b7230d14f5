// Algebra that is exact in the reals. Each rule has a name, a condition and a switch (Options::disabled_rewrites or the
// environment's FUSEWRIGHT_DISABLE=name,name). It runs before differentiation, so the backward gets cheaper too, and
// once more after it for what only gradients contain.
#include <algorithm>
#include <cstdlib>
#include <functional>
#include <map>
#include <mutex>
#include <utility>

#include "base/log.h"
#include "passes/program.h"
#include "passes/rebuild.h"
#include "passes/row_constants.h"
#include "passes/upstream.h"

namespace fusewright {
namespace {

using Operands = std::vector<Value>;

// mean(z) over dims, keeping them: div(sum(z), count). Returns z.
Value mean_operand(const Graph& graph, Value v, Ints& dims) {
  const Node& node = graph[v];
  if (node.op != Op::div || graph[node.operands[1]].op != Op::extent) return -1;
  const Node& total = graph[node.operands[0]];
  if (total.op != Op::sum || !total.integer("keepdim")) return -1;
  dims = total.ints("dims");
  Size count = 1;
  for (int64_t d : dims) count = count * graph.shape(total.operands[0])[static_cast<size_t>(d)];
  return graph[node.operands[1]].sizes("size")[0] == count ? total.operands[0] : -1;
}

// z = x + b where b does not vary along dims. Returns {x, b}.
std::pair<Value, Value> shifted(const Graph& graph, Value z, const Ints& dims) {
  const Node& node = graph[z];
  if (node.op != Op::add) return {-1, -1};
  for (size_t i : {size_t{1}, size_t{0}}) {
    Value x = node.operands[1 - i], b = node.operands[i];
    if (graph.shape(x) == node.type.shape && invariant(graph, b, node.type.shape.size(), dims)) return {x, b};
  }
  return {-1, -1};
}

Value mean_like(Builder& b, Value mean, Value x, const Ints& dims) {
  Node node = b.graph()[mean];
  return b.binary(Op::div, b.reduce(Op::sum, x, dims, true), node.operands[1]);
}

// (x + b) - mean(x + b) = x - mean(x) where b is constant over what the mean runs over; mean(x + b) = mean(x) + b.
// A layer's bias in front of a norm is neither read nor given a sum for its gradient, which is exactly zero.
Value shift_cancels_in_norm(Builder& b, const Node& node, const Operands& operands, const Graph&) {
  Graph& graph = b.graph();
  Ints dims;
  if (node.op == Op::sub) {
    Value z = mean_operand(graph, operands[1], dims);
    // The mean itself may have been rewritten already: mean(x) + b.
    if (z < 0 && graph[operands[1]].op == Op::add) {
      Value x = mean_operand(graph, graph[operands[1]].operands[0], dims);
      if (x < 0) return -1;
      auto [inner, shift] = shifted(graph, operands[0], dims);
      if (inner != x || shift != graph[operands[1]].operands[1]) return -1;
      return b.binary(Op::sub, x, graph[operands[1]].operands[0]);
    }
    return -1;
  }
  if (node.op != Op::div) return -1;
  // Seen when the division is about to be copied: mean(z) with z = x + b.
  if (graph[operands[1]].op != Op::extent || graph[operands[0]].op != Op::sum) return -1;
  Value mean = copy_node(b, node, operands);
  Value z = mean_operand(graph, mean, dims);
  if (z < 0) return -1;
  auto [x, shift] = shifted(graph, z, dims);
  if (x < 0) return -1;
  return b.binary(Op::add, mean_like(b, mean, x, dims), shift);
}

// sum over n of (a b)[m, n] = a (sum over n of b): a matrix-vector product instead of a matrix product.
// Only where nobody else needs the product.
Value sum_of_product(Builder& b, const Node& node, const Operands& operands, const Graph& before) {
  if (node.op != Op::sum || uses(before, node.operands[0]) > 1) return -1;
  Node product = b.graph()[operands[0]];
  int64_t last = product.type.rank() - 1;
  if (product.op != Op::matmul || product.operands.size() != 2 || node.ints("dims") != Ints{last}) return -1;
  Value column = b.reduce(Op::sum, product.operands[1], {last}, true);
  Value result = b.binary(Op::matmul, product.operands[0], column);
  return node.integer("keepdim") ? result : b.reshape(result, node.type.shape);
}

// A sum over more dimensions continues from a sum of the same value over fewer: the bias gradient that adds up a whole
// tensor starts from the per-channel sums that are needed anyway. The narrower sum may stand later in the graph; it is
// written here and `simplify` makes the two one.
Value nested_sum(Builder& b, const Node& node, const Operands& operands, const Graph& before) {
  if (node.op != Op::sum) return -1;
  const Ints& dims = node.ints("dims");
  for (const Node& other : before.nodes) {
    if (other.op != Op::sum || other.operands != node.operands || !other.integer("keepdim")) continue;
    const Ints& fewer = other.ints("dims");
    if (fewer.size() >= dims.size() || !std::includes(dims.begin(), dims.end(), fewer.begin(), fewer.end())) continue;
    return b.reduce(Op::sum, b.reduce(Op::sum, operands[0], fewer, true), dims, node.integer("keepdim") != 0);
  }
  return -1;
}

// A sum over these dimensions of a shape goes back into values of that shape, so that one kernel has both.
bool returns_to_rows(const Graph& graph, const Shape& shape, const Ints& dims) {
  for (const Node& node : graph.nodes) {
    if (node.kind() != Kind::pointwise || node.type.shape != shape) continue;
    for (Value operand : node.operands) {
      if (graph.shape(operand) == shape || !invariant(graph, operand, shape.size(), dims)) continue;
      bool found = false;
      walk_upstream(graph, operand, [&](Value v) {
        const Node& sum = graph[v];
        found |= sum.op == Op::sum && sum.ints("dims") == dims && graph.shape(sum.operands[0]) == shape;
        return !found && graph.shape(v) != shape && sum.kind() != Kind::contraction;
      });
      if (found) return true;
    }
  }
  return false;
}

// sum(x k) = k sum(x) and sum(x + y) = sum(x) + sum(y), where k does not vary over the sum and is itself the result of
// a reduction, or stands beside one (a weight of batch_norm): the gradient of a norm then needs one pass over the row
// for all of its sums, not one after the other, and fewer of them.
Value row_constants_leave_sum(Builder& b, const Node& node, const Operands& operands, const Graph& before) {
  if (node.op != Op::sum) return -1;
  Graph& graph = b.graph();
  const Ints dims = node.ints("dims");
  bool keepdim = node.integer("keepdim") != 0;
  const Shape full = graph.shape(operands[0]);
  if (!depends_on_reduction(graph, operands[0])) return -1;
  const bool own = returns_to_rows(before, full, dims);
  auto whole = [&](Value v) { return graph.shape(v) == full; };
  auto leaves = [&](Value v) {
    const Shape& shape = graph.shape(v);
    if (shape.size() > full.size() || whole(v) || !invariant(graph, v, full.size(), dims)) return false;
    const bool number = std::all_of(shape.begin(), shape.end(), [](const Size& s) { return s.is(1); });
    return (own && !number) || depends_on_reduction(graph, v);
  };
  // The factors of a product, those that leave apart.
  auto factor = [&](auto&& self, Value v, Operands& varying, Operands& leaving) -> void {
    const Node term = graph[v];
    if (leaves(v))
      leaving.push_back(v);
    else if (term.op == Op::mul && whole(v) && varying.size() < 16)  // squares of squares double them each time
      for (Value operand : term.operands) self(self, operand, varying, leaving);
    else
      varying.push_back(v);
  };
  // Sums of terms x * k; nothing is gained unless some k leaves.
  bool gained = false;
  std::map<Value, Value> known;  // terms that occur several times are summed once
  auto total = [&](auto&& self, Value v) -> Value {
    if (auto it = known.find(v); it != known.end()) return it->second;
    const Node term = graph[v];
    if ((term.op == Op::add || term.op == Op::sub) && whole(term.operands[0]) && whole(term.operands[1]) &&
        depends_on_reduction(graph, v)) {
      // Two sums instead of one only where something leaves them.
      const size_t size = graph.nodes.size();
      const bool gained_before = std::exchange(gained, false);
      const std::map<Value, Value> known_before = known;
      Value left = self(self, term.operands[0]), right = self(self, term.operands[1]);
      if (gained) return known[v] = b.binary(term.op, left, right);
      graph.nodes.resize(size);
      known = known_before;
      gained = gained_before;
      return known[v] = b.reduce(Op::sum, v, dims, true);
    }
    if (term.op == Op::neg) return known[v] = b.unary(Op::neg, self(self, term.operands[0]));
    Operands varying, leaving;
    if (term.op == Op::mul) factor(factor, v, varying, leaving);
    if (leaving.empty() || varying.empty()) return known[v] = b.reduce(Op::sum, v, dims, true);
    std::sort(varying.begin(), varying.end());  // so that equal products are seen to be equal
    Value product = varying[0];
    for (size_t i = 1; i < varying.size(); ++i) product = b.binary(Op::mul, product, varying[i]);
    if (!whole(product)) return known[v] = b.reduce(Op::sum, v, dims, true);
    gained = true;
    Value result = varying.size() == 1 ? self(self, product) : b.reduce(Op::sum, product, dims, true);
    for (Value k : leaving) result = b.binary(Op::mul, result, k);
    return known[v] = result;
  };
  size_t size = graph.nodes.size();
  Value result = total(total, operands[0]);
  Shape kept = full;
  for (int64_t d : dims) kept[static_cast<size_t>(d)] = 1;
  if (!gained || !(graph.shape(result) == kept)) {
    graph.nodes.resize(size);
    return -1;
  }
  return keepdim ? result : b.reshape(result, node.type.shape);
}

// The sum of distances from the mean is zero, and so is any multiple of it: y + k sum(x - mean(x)) = y. It comes up in
// the gradient of a variance, as what the mean's own gradient contributes.
Value distances_sum_to_zero(Builder& b, const Node& node, const Operands& operands, const Graph&) {
  if (node.op != Op::add) return -1;
  const Graph& graph = b.graph();
  auto is_sum_of_distances = [&](Value v) {
    const Node& term = graph[v];
    if (term.op != Op::sum) return false;
    Value distance = term.operands[0];
    while (graph[distance].op == Op::mul || graph[distance].op == Op::neg) {  // by a number
      const Operands& factors = graph[distance].operands;
      if (factors.size() == 2 && graph[factors[1]].op != Op::constant) return false;
      distance = factors[0];
    }
    Ints dims;
    return graph[distance].op == Op::sub &&
           mean_operand(graph, graph[distance].operands[1], dims) == graph[distance].operands[0] &&
           dims == term.ints("dims");
  };
  auto is_zero = [&](Value v) {  // one of its factors is
    bool found = false;
    walk_upstream(graph, v, [&](Value factor) {
      found |= is_sum_of_distances(factor);
      return !found && (graph[factor].op == Op::mul || graph[factor].op == Op::neg);
    });
    return found;
  };
  for (size_t i : {size_t{0}, size_t{1}})
    if (graph.shape(operands[i]) == node.type.shape && is_zero(operands[1 - i])) return operands[i];
  return -1;
}

// Between -1 and 1, whatever it is computed from.
bool is_bounded(const Graph& graph, Value v) {
  const Node& node = graph[v];
  if (node.op == Op::sigmoid || node.op == Op::tanh) return true;
  return node.op == Op::sub && is_constant(graph, node.operands[0], 1) && graph[node.operands[1]].op == Op::sigmoid;
}

// g s + g s x r = g (s + (x s) r), s a sigmoid of x: a product less than g s (1 + x r), where x s has to be computed
// for something else, as in front of a factor whose gradient is wanted. `rest`: the factors of x r.
Value with_product_in_use(Builder& b, Value term, Operands rest) {
  const Graph& graph = b.graph();
  if (graph[term].op != Op::mul || rest.size() < 2) return -1;
  for (size_t i : {size_t{0}, size_t{1}}) {
    const Value s = graph[term].operands[i], others = graph[term].operands[1 - i];
    if (graph[s].op != Op::sigmoid) continue;
    const Value x = graph[s].operands[0];
    const auto at = std::find(rest.begin(), rest.end(), x);
    if (at == rest.end()) continue;
    for (Value y = 0; y < static_cast<Value>(graph.nodes.size()); ++y) {
      if (graph[y].op != Op::mul || !(graph[y].operands == Operands{x, s} || graph[y].operands == Operands{s, x}))
        continue;
      if (uses(graph, y) == 0) continue;  // by nodes: outputs are named when all is written
      rest.erase(at);
      Value multiple = y;
      for (Value factor : rest) multiple = b.binary(Op::mul, multiple, factor);
      return b.binary(Op::mul, others, b.binary(Op::add, multiple, s));
    }
  }
  return -1;
}

// y + y r = y (1 + r), where y is itself a product: what a term and a multiple of it share is multiplied once. The
// gradient of x s(x) is such a sum: with s' = s (1 - s) it is g s + g x s (1 - s). Where r is a product, no more than
// one of its factors may be large, so that it is not when y r is not; x is one factor, even where it is a product.
Value term_joins_its_multiple(Builder& b, const Node& node, const Operands& operands, const Graph& before) {
  if (node.op != Op::add || !is_float(node.type.dtype)) return -1;
  const Graph& graph = b.graph();
  constexpr size_t most_factors = 16;
  Operands whole;  // that need not be factored: they are at hand
  auto factor = [&](auto&& self, Value v, Operands& factors) -> void {
    const Node& product = graph[v];
    const bool at_hand = std::find(whole.begin(), whole.end(), v) != whole.end();
    if (product.op != Op::mul || at_hand || factors.size() > most_factors) return factors.push_back(v);
    for (Value operand : product.operands) self(self, operand, factors);
  };
  for (size_t i : {size_t{0}, size_t{1}}) {
    const Value term = operands[i], multiple = operands[1 - i];
    if (graph.shape(term) != node.type.shape || uses(before, node.operands[1 - i]) > 1) continue;
    Operands all_factors, shared, rest;
    whole.clear();
    factor(factor, term, all_factors);
    for (Value f : all_factors)
      if (is_bounded(graph, f)) whole.insert(whole.end(), graph[f].operands.begin(), graph[f].operands.end());
    factor(factor, term, shared);
    factor(factor, multiple, rest);
    if (shared.size() < 2 || shared.size() > most_factors || rest.size() > most_factors) continue;
    bool all = true;
    for (Value f : shared) {
      const auto it = std::find(rest.begin(), rest.end(), f);
      all &= it != rest.end();
      if (all) rest.erase(it);
    }
    auto bounded = [&](Value f) { return is_bounded(graph, f); };
    const auto unbounded = std::count_if(rest.begin(), rest.end(), std::not_fn(bounded));
    if (!all || rest.empty() || unbounded > 1) continue;
    if (const Value joined = with_product_in_use(b, term, rest); joined >= 0) return joined;
    Value ratio = rest[0];
    for (size_t k = 1; k < rest.size(); ++k) ratio = b.binary(Op::mul, ratio, rest[k]);
    return b.binary(Op::mul, term, b.binary(Op::add, ratio, b.constant(1, b.dtype(ratio))));
  }
  return -1;
}

// The tensors that a kernel for a value of `shape` reads: it is computed from them by pointwise operations and views.
std::set<Value> tensors_read(const Graph& graph, Value value, const Shape& shape) {
  std::set<Value> read;
  walk_upstream(graph, value, [&](Value v) {
    const Kind kind = graph[v].kind();
    if (kind == Kind::pointwise || kind == Kind::movement) return true;
    if (graph.shape(v) == shape) read.insert(v);
    return false;
  });
  return read;
}

// sum(x) + sum(y) = sum(x + y): terms that cancel do so before the sum is rounded. The gradient of a number that stands
// in a chain twice is such a sum. One of the two must read all tensors that the other reads, so that no kernel reads
// more than before.
Value sums_become_one(Builder& b, const Node& node, const Operands& operands, const Graph& before) {
  if ((node.op != Op::add && node.op != Op::sub) || !is_float(node.type.dtype)) return -1;
  const Graph& graph = b.graph();
  auto sum_of = [](const Graph& of, Value v) { return of[v].op == Op::reshape ? of[v].operands[0] : v; };
  const Node x = graph[sum_of(graph, operands[0])], y = graph[sum_of(graph, operands[1])];
  if (x.op != Op::sum || y.op != Op::sum || operands[0] == operands[1]) return -1;
  if (x.ints("dims") != y.ints("dims") || x.integer("keepdim") != y.integer("keepdim")) return -1;
  if (graph.shape(operands[0]) != graph.shape(operands[1])) return -1;
  const Shape shape = graph.shape(x.operands[0]);
  if (graph.shape(y.operands[0]) != shape) return -1;
  for (Value operand : node.operands)
    for (Value v : {operand, sum_of(before, operand)}) {
      auto is_result = [&](const Output& output) { return output.value == v; };
      if (uses(before, v) > 1 || std::any_of(before.outputs.begin(), before.outputs.end(), is_result)) return -1;
    }
  const std::set<Value> first = tensors_read(graph, x.operands[0], shape);
  const std::set<Value> second = tensors_read(graph, y.operands[0], shape);
  if (first.empty() || second.empty()) return -1;
  const bool covered = std::includes(first.begin(), first.end(), second.begin(), second.end()) ||
                       std::includes(second.begin(), second.end(), first.begin(), first.end());
  if (!covered) return -1;
  const Value terms = b.binary(node.op, x.operands[0], y.operands[0]);
  const Value sum = b.reduce(Op::sum, terms, x.ints("dims"), x.integer("keepdim") != 0);
  return graph.shape(sum) == node.type.shape ? sum : b.reshape(sum, node.type.shape);
}

struct Rule {
  const char* name;
  const char* meaning;
  Value (*apply)(Builder&, const Node&, const Operands&, const Graph& before);  // -1: does not match
};

constexpr Rule rules[] = {
    {"shift_cancels_in_norm", "a bias in front of a norm cancels: it is not read, and its gradient is zero",
     shift_cancels_in_norm},
    {"sum_of_product", "a sum over the columns of a matrix product is a product with the summed columns",
     sum_of_product},
    {"softmax_gradient_reads_result",
     "softmax's gradient is (g - sum(g y)) y: of the forward it reads the result alone", softmax_gradient_reads_result},
    {"sums_become_one", "two sums over the same tensors are one sum: what cancels does so before it is rounded",
     sums_become_one},
    {"nested_sum", "a sum over more dimensions continues from one over fewer", nested_sum},
    {"row_constants_leave_sum",
     "factors that do not vary leave their sum: all sums of a norm's gradient fit in one pass",
     row_constants_leave_sum},
    {"distances_sum_to_zero", "distances from their own mean sum to zero: one sum less in a norm's gradient",
     distances_sum_to_zero},
    {"norm_is_affine", "what a chain multiplies to and adds to a norm meets: one multiply-add for each element",
     norm_is_affine},
    {"common_factor_leaves_terms",
     "the terms of a norm's gradient are added before their common factor multiplies them", common_factor_leaves_terms},
    {"term_joins_its_multiple",
     "y + y r is y (1 + r): what a term and its multiple share is multiplied once, as in a swish's gradient",
     term_joins_its_multiple},
};

// Choices of other passes (layout.cpp, straighten.cpp) that have names of the same kind.
constexpr struct {
  const char *name, *meaning;
} choices[] = {
    {"channels_last", "convolutions run in channels last, where the library is faster"},
    {"one_memory_order",
     "a kernel with a reduction reads and writes in one memory order; the rest is copied or left to "
     "a pointwise kernel"},
};

// A name that is misspelt switches nothing off: say so, once for each in a process.
void warn_if_unknown(const std::string& name) {
  if (!meaning_of_rule(name).empty()) return;
  static std::mutex mutex;
  static std::set<std::string> said;
  std::lock_guard<std::mutex> lock(mutex);
  if (!said.insert(name).second) return;
  std::string known;
  for (const Rule& rule : rules) known += (known.empty() ? "" : ", ") + std::string(rule.name);
  for (const auto& choice : choices) known += ", " + std::string(choice.name);
  log(LogLevel::warning, "FUSEWRIGHT_DISABLE: no rewrite rule '" + name + "'; known: " + known);
}

}  // namespace

std::string meaning_of_rule(const std::string& name) {
  for (const Rule& rule : rules)
    if (name == rule.name) return rule.meaning;
  for (const auto& choice : choices)
    if (name == choice.name) return choice.meaning;
  return {};
}

std::set<std::string> disabled_rules(const Options& options) {
  std::set<std::string> names = options.disabled_rewrites;
  const char* variable = std::getenv("FUSEWRIGHT_DISABLE");
  std::string list = variable ? variable : "";
  std::erase_if(list, [](char c) { return c == ' ' || c == '\t'; });
  for (size_t start = 0; start <= list.size();) {
    size_t end = std::min(list.find(',', start), list.size());
    std::string name = list.substr(start, end - start);
    start = end + 1;
    if (name.empty()) continue;
    warn_if_unknown(name);
    names.insert(std::move(name));
  }
  return names;
}

void rewrite(Program& program) {
  std::set<std::string> off = disabled_rules(program.options);
  for (const Rule& rule : rules) {
    if (off.count(rule.name)) continue;
    bool used = false;
    Graph result = rebuild(program.forward, [&](Builder& b, const Node& node, Operands& operands) {
      Value v = rule.apply(b, node, operands, program.forward);
      used |= v >= 0;
      return v >= 0 ? v : copy_node(b, node, operands);
    });
    if (!used) continue;
    remove_dead(result);
    program.forward = std::move(result);
    if (std::find(program.rewrites.begin(), program.rewrites.end(), rule.name) == program.rewrites.end())
      program.rewrites.push_back(rule.name);
  }
}

}  // namespace fusewright
