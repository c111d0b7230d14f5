// Algebra that is exact in the reals. Each rule has a name, a condition and a switch (Options::disabled_rewrites or the
// environment's FUSEWRIGHT_DISABLE=name,name). It runs before differentiation, so the backward gets cheaper too, and
// once more after it for what only gradients contain.
#include <algorithm>
#include <cstdlib>
#include <map>
#include <mutex>

#include "passes/program.h"
#include "passes/rebuild.h"
#include "passes/upstream.h"
#include "runtime/log.h"

namespace fusewright {
namespace {

using Operands = std::vector<Value>;

bool names_dim(const Ints& dims, size_t d) {
  return std::find(dims.begin(), dims.end(), static_cast<int64_t>(d)) != dims.end();
}

// v does not vary along any of `dims` of a shape with `rank` dimensions.
bool invariant(const Graph& graph, Value v, size_t rank, const Ints& dims) {
  const Shape& shape = graph.shape(v);
  for (size_t d = 0; d < shape.size(); ++d)
    if (!shape[d].is(1) && names_dim(dims, d + rank - shape.size())) return false;
  return true;
}

int uses(const Graph& graph, Value v) {
  int count = 0;
  for (const Node& node : graph.nodes)
    count += static_cast<int>(std::count(node.operands.begin(), node.operands.end(), v));
  for (const Output& output : graph.outputs) count += output.value == v;
  return count;
}

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

bool depends_on_reduction(const Graph& graph, Value v) {
  bool found = false;
  walk_upstream(graph, v, [&](Value next) {
    found |= graph[next].kind() == Kind::reduce;
    return !found && graph[next].kind() != Kind::contraction;
  });
  return found;
}

// sum(x k) = k sum(x) and sum(x + y) = sum(x) + sum(y), where k is itself the result of a reduction and does not vary
// over the sum: the gradient of a norm then needs one pass over the row for all of its sums, not one after the other.
Value row_constants_leave_sum(Builder& b, const Node& node, const Operands& operands, const Graph&) {
  if (node.op != Op::sum) return -1;
  Graph& graph = b.graph();
  const Ints dims = node.ints("dims");
  bool keepdim = node.integer("keepdim") != 0;
  size_t rank = graph.shape(operands[0]).size();
  auto constant_in_row = [&](Value v) {
    return graph.shape(v).size() <= rank && invariant(graph, v, rank, dims) && depends_on_reduction(graph, v);
  };
  // Sums of terms x * k; nothing is gained unless some k leaves.
  bool gained = false;
  std::map<Value, Value> known;  // terms that occur several times are summed once
  auto total = [&](auto&& self, Value v) -> Value {
    if (auto it = known.find(v); it != known.end()) return it->second;
    Value& result = known[v];
    const Node term = graph[v];
    Shape full = term.type.shape;
    auto whole = [&](Value x) { return graph.shape(x) == full; };
    if ((term.op == Op::add || term.op == Op::sub) && whole(term.operands[0]) && whole(term.operands[1]) &&
        depends_on_reduction(graph, v)) {
      Value left = self(self, term.operands[0]), right = self(self, term.operands[1]);
      return result = b.binary(term.op, left, right);
    }
    if (term.op == Op::neg) return result = b.unary(Op::neg, self(self, term.operands[0]));
    if (term.op == Op::mul)
      for (size_t i : {size_t{0}, size_t{1}})
        if (whole(term.operands[i]) && constant_in_row(term.operands[1 - i])) {
          gained = true;
          Value k = term.operands[1 - i];
          return result = b.binary(Op::mul, self(self, term.operands[i]), k);
        }
    return result = b.reduce(Op::sum, v, dims, true);
  };
  if (!depends_on_reduction(graph, operands[0])) return -1;
  size_t before = graph.nodes.size();
  Value result = total(total, operands[0]);
  Shape kept = graph.shape(operands[0]);
  for (int64_t d : dims) kept[static_cast<size_t>(d)] = 1;
  if (!gained || !(graph.shape(result) == kept)) {
    graph.nodes.resize(before);
    return -1;
  }
  return keepdim ? result : b.reshape(result, node.type.shape);
}

struct Rule {
  const char* name;
  Value (*apply)(Builder&, const Node&, const Operands&, const Graph& before);  // -1: does not match
};

constexpr Rule rules[] = {
    {"shift_cancels_in_norm", shift_cancels_in_norm},
    {"sum_of_product", sum_of_product},
    {"nested_sum", nested_sum},
    {"row_constants_leave_sum", row_constants_leave_sum},
};

// A name that is misspelt switches nothing off: say so, once for each in a process.
void warn_if_unknown(const std::string& name) {
  if (std::any_of(std::begin(rules), std::end(rules), [&](const Rule& rule) { return name == rule.name; })) return;
  static std::mutex mutex;
  static std::set<std::string> said;
  std::lock_guard<std::mutex> lock(mutex);
  if (!said.insert(name).second) return;
  std::string known;
  for (const Rule& rule : rules) known += (known.empty() ? "" : ", ") + std::string(rule.name);
  log(LogLevel::warning, "FUSEWRIGHT_DISABLE: no rewrite rule '" + name + "'; known: " + known);
}

std::set<std::string> disabled(const Options& options) {
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

}  // namespace

void rewrite(Program& program) {
  std::set<std::string> off = disabled(program.options);
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
