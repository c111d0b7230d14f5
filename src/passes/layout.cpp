// Memory order of every value: results of pointwise operations, pooling and convolution follow their operand's, so that
// a channels-last model stays channels-last and no pass over memory only transposes.
//
// On a GPU the pass may also move convolutions of a row-major model to channels last, where cuDNN's tensor-core kernels
// live: called with row-major tensors it transposes all of them, inside. The result stays channels last through
// the region: pointwise kernels read and write any mixture (kernels/cuda_tile.h). What they cannot mix becomes a copy
// into the other order, a `cast` to its own element type, which `fuse` gives a kernel of its own.
#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "passes/layout_cost.h"
#include "passes/program.h"
#include "passes/rebuild.h"
#include "passes/upstream.h"

namespace fusewright {
namespace {

// A memory order without what does not show in it.
Order plain(Order order) { return is_row_major(order) ? Order{} : order; }

// Where the elements of a reshaped tensor lie: dimensions that are split or merged lie next to each other.
std::optional<Order> order_through_reshape(const Graph& graph, const Type& type, const Shape& to) {
  const Shape& from = type.shape;
  const Order& order = type.order;
  // Runs of dimensions with the same product: [n, c, h, w] -> [n, g, c/g, h, w] has [c] -> [g, c/g].
  std::vector<std::pair<size_t, size_t>> ends;  // of each run, on both sides
  size_t i = 0, j = 0;
  while (i < from.size() || j < to.size()) {
    Size left = i < from.size() ? from[i++] : Size(1), right = j < to.size() ? to[j++] : Size(1);
    while (!(left == right)) {
      const int64_t l = graph.hint(left), r = graph.hint(right);
      if (l < r && i < from.size())
        left = left * from[i++];
      else if (r < l && j < to.size())
        right = right * to[j++];
      else
        return std::nullopt;
    }
    ends.emplace_back(i, j);
  }
  Order result;
  for (size_t at = 0; at < order.size();) {
    const auto d = static_cast<size_t>(order[at]);
    const auto run = std::find_if(ends.begin(), ends.end(), [&](const auto& end) { return d < end.first; });
    const size_t first = run == ends.begin() ? 0 : std::prev(run)->first;
    const size_t first_of_result = run == ends.begin() ? 0 : std::prev(run)->second;
    for (size_t k = first; k < run->first; ++k, ++at)
      if (at >= order.size() || order[at] != static_cast<int>(k)) return std::nullopt;
    for (size_t k = first_of_result; k < run->second; ++k) result.push_back(static_cast<int>(k));
  }
  return result.size() == to.size() ? std::optional(plain(result)) : std::nullopt;
}

// Where the elements of what is moved lie, if that is an order of its dimensions.
std::optional<Order> order_through(const Graph& graph, const Node& node) {
  const Type& from = graph.type(node.operands[0]);
  if (from.order.empty() && node.op != Op::permute) return Order{};
  if (node.op == Op::reshape) return order_through_reshape(graph, from, node.type.shape);
  if (node.op == Op::expand) return from.rank() == node.type.rank() ? from.order : Order{};
  const Ints& dims = node.ints("dims");
  Order order;
  for (int i = 0; i < from.rank(); ++i) {
    const int d = from.order.empty() ? i : from.order[static_cast<size_t>(i)];
    order.push_back(static_cast<int>(std::find(dims.begin(), dims.end(), d) - dims.begin()));
  }
  // Of other views, kernels that compute from them write row-major: matrix products read those.
  return is_row_major(order) || order != channels_last(node.type.rank()) ? Order{} : order;
}

Order order_of(const Graph& graph, const Node& node) {
  switch (node.kind()) {
    case Kind::pointwise:
    case Kind::window:
    case Kind::contraction:
      if (node.op == Op::matmul || node.op == Op::conv_weight_grad) return {};
      for (Value v : node.operands)
        if (graph.type(v).rank() == node.type.rank() && !lies_in(graph, v, {})) return graph.type(v).order;
      return {};
    case Kind::reduce:
      return node.integer("keepdim") ? graph.type(node.operands[0]).order : Order{};
    case Kind::movement:
      return order_through(graph, node).value_or(Order{});
    default:
      return node.type.order;
  }
}

// What is only kept for the backward lies as it was computed; what the user sees lies as eager's does.
void keep_saved_orders(Graph& graph) {
  for (Output& output : graph.outputs)
    if (output.is_saved()) output.order = graph.type(output.value).order;
}

void propagate(Graph& graph) {
  for (Node& node : graph.nodes) node.type.order = order_of(graph, node);
  keep_saved_orders(graph);
}

// Kernels write results as they are asked for. (A library chooses; what was given stays.)
void settle_results(Graph& graph) {
  for (const Output& output : graph.outputs) {
    Node& node = graph[output.value];
    if (node.kind() != Kind::source && node.kind() != Kind::contraction) node.type.order = output.order;
  }
}

// ---- the choice of channels last ---------------------------------------------------------------------------------

// A copy of the graph in which some contractions run in channels last.
class Relayout {
 public:
  Relayout(const Graph& from, const std::set<Value>& chosen, const Options& options)
      : from_(from), chosen_(chosen), options_(options), users_(from.users()) {
    find_reductions();
    find_mixtures();
    for (const Output& output : from.outputs)
      if (!output.is_saved()) given_[output.value] = output.order;
  }

  Graph run() {
    Graph to = rebuild(from_, [&](Builder& b, const Node& node, std::vector<Value>& operands) {
      const Value old = static_cast<Value>(&node - from_.nodes.data());
      const bool chosen = chosen_.count(old) != 0;
      const bool follows = !chosen && takes_any_order(b.graph(), node, operands);
      const bool row_major = wants_row_major(from_, old, options_);
      for (size_t k = 0; k < operands.size(); ++k) {
        const Value operand = node.operands[k];
        const Order last = channels_last(from_.type(operand).rank());
        if (mixed_.count(operand) && (is_inside(node) || is_heavy(node))) operands[k] = copied(b, operands[k], last);
        if (follows) continue;
        const Order order = chosen ? last : row_major ? Order{} : from_.type(operand).order;
        if (lies_in(b.graph(), operands[k], order)) continue;
        operands[k] = lying(b, operands[k], operand, order);
        if (chosen && !is_weight(node, k)) border.insert(old);
        if (chosen_.count(operand)) border.insert(operand);
      }
      const Value v = copy_node(b, node, operands);
      Graph& graph = b.graph();
      graph[v].type.order = chosen ? channels_last(node.type.rank()) : order_of(graph, node_with(node, operands));
      if (auto given = given_.find(old); given != given_.end() && is_free(old)) graph[v].type.order = given->second;
      return v;
    });
    copy_outputs(to);
    keep_saved_orders(to);
    return to;
  }

  std::set<Value> border;  // of those chosen: an image that it reads or makes is brought into another order

 private:
  static Node node_with(Node node, std::vector<Value> operands) {
    node.operands = std::move(operands);
    return node;
  }

  static bool is_weight(const Node& node, size_t operand) {
    return operand == 1 && (node.op == Op::conv || node.op == Op::conv_input_grad);
  }

  // Operations that take channels last as it comes. Others get their operands as they lay before the choice.
  static bool takes_any_order(const Graph& graph, const Node& node, const std::vector<Value>& operands) {
    if (node.kind() == Kind::contraction) return node.op == Op::matmul;
    if (node.kind() != Kind::movement) return true;
    return order_through(graph, node_with(node, operands)).has_value();
  }

  static bool is_inside(const Node& node) { return node.kind() == Kind::pointwise || node.kind() == Kind::movement; }
  static bool is_heavy(const Node& node) { return node.kind() == Kind::reduce || node.kind() == Kind::window; }

  // What reductions and windows are computed from, and what is computed from them: their kernels do not use tiles.
  void find_reductions() {
    near_reduction_.assign(from_.nodes.size(), false);
    near_window_.assign(from_.nodes.size(), false);
    auto mark = [&](size_t i, const Node& by) {
      near_reduction_[i] = true;
      if (by.kind() == Kind::window) near_window_[i] = true;
    };
    for (size_t i = 0; i < from_.nodes.size(); ++i) {
      const Node& node = from_.nodes[i];
      if (is_heavy(node)) {
        mark(i, node);
        for (Value operand : node.operands)
          walk_upstream(from_, operand, [&](Value next) {
            mark(static_cast<size_t>(next), node);
            return is_inside(from_[next]);
          });
      } else if (is_inside(node)) {
        for (Value operand : node.operands) {
          if (from_[operand].kind() == Kind::source || from_[operand].kind() == Kind::contraction) continue;
          near_reduction_[i] = near_reduction_[i] || near_reduction_[static_cast<size_t>(operand)];
          near_window_[i] = near_window_[i] || near_window_[static_cast<size_t>(operand)];
        }
      }
    }
  }

  // Computed by a kernel that stays pointwise: it can write any order.
  bool is_free(Value old) const {
    if (from_[old].kind() != Kind::pointwise) return false;
    bool free = true;
    walk_upstream(from_, old, [&](Value next) {
      free &= !near_reduction_[static_cast<size_t>(next)];
      return free && is_inside(from_[next]);
    });
    return free;
  }

  // The value in this order: its kernel writes it so, or a copy is made.
  Value lying(Builder& b, Value v, Value old, const Order& order) {
    Graph& graph = b.graph();
    const bool first = moved_.insert(v).second;
    if (first && is_free(old) && !given_.count(old)) {
      graph[v].type.order = order;
      return v;
    }
    return copied(b, v, order);
  }

  Value copied(Builder& b, Value v, const Order& order) {
    auto [copy, fresh] = copies_.try_emplace({v, order}, -1);
    if (fresh) copy->second = layout_copy(b.graph(), v, order);
    return copy->second;
  }

  // A reduction whose operands lie in both orders reads those that are row-major as copies.
  void find_mixtures() {
    Graph graph = from_;
    for (size_t i = 0; i < graph.nodes.size(); ++i)
      graph.nodes[i].type.order = chosen_.count(static_cast<Value>(i)) ? channels_last(graph.nodes[i].type.rank())
                                                                       : order_of(graph, graph.nodes[i]);
    for (const Node& node : graph.nodes) {
      if (!is_heavy(node)) continue;
      std::set<Value> row_major;
      bool last = false;
      walk_upstream(graph, node.operands[0], [&](Value next) {
        const Node& leaf = graph[next];
        if (is_inside(leaf)) return true;
        if (leaf.type.rank() < 4 || !(product(leaf.type.shape) == product(graph.shape(node.operands[0])))) return false;
        last |= leaf.type.order == channels_last(leaf.type.rank());
        if (leaf.type.order.empty()) row_major.insert(next);
        return false;
      });
      if (last) mixed_.insert(row_major.begin(), row_major.end());
    }
  }

  // Results that the user sees, where no kernel can write them as he expects them: pointwise kernels can, and what
  // lies across a reduction is left to one of those (straighten.cpp).
  void copy_outputs(Graph& graph) {
    Builder b(graph);
    for (size_t i = 0; i < graph.outputs.size(); ++i) {
      Output& output = graph.outputs[i];
      const Value old = from_.outputs[i].value;
      if (output.is_saved() || graph.type(output.value).order.empty() || lies_in(graph, output.value, output.order))
        continue;
      const bool left_apart = from_[old].kind() == Kind::pointwise && !near_window_[static_cast<size_t>(old)];
      if (left_apart && users_[static_cast<size_t>(old)].empty()) continue;
      output.value = copied(b, output.value, output.order);
      if (chosen_.count(old) && from_[old].op != Op::conv_weight_grad) border.insert(old);
    }
  }

  const Graph& from_;
  const std::set<Value>& chosen_;
  const Options& options_;
  const std::vector<std::vector<Value>> users_;
  std::vector<bool> near_reduction_, near_window_;
  std::map<Value, Order> given_;  // results of the region: the order that the caller expects
  std::set<Value> mixed_;         // of from_: read by reductions as copies
  std::set<Value> moved_;         // have been given another order, or a copy
  std::map<std::pair<Value, Order>, Value> copies_;
};

// The backward reads what the forward saved as it lies.
void hand_over(const Program& program, const Graph& forward, Graph& backward) {
  for (size_t i = 0; i < program.saved.size(); ++i) {
    const Program::Saved& saved = program.saved[i];
    if (!saved.is_input)
      backward[backward.inputs[i]].type.order = forward.outputs[static_cast<size_t>(saved.index)].order;
  }
  propagate(backward);
}

// Forward and backward with some of their convolutions in channels last.
struct Candidate {
  Candidate(const Program& program, std::set<Value> in_forward, std::set<Value> in_backward)
      : chosen{std::move(in_forward), std::move(in_backward)}, backward(program.backward) {
    Relayout first(program.forward, chosen[0], program.options);
    forward = first.run();
    hand_over(program, forward, backward);
    Relayout second(backward, chosen[1], program.options);
    Graph laid_out = second.run();
    backward = std::move(laid_out);
    border[0] = std::move(first.border);
    border[1] = std::move(second.border);
    cost = layout_cost(forward, program.options) + layout_cost(backward, program.options);
  }

  std::set<Value> chosen[2], border[2];  // of the forward and the backward as they were
  Graph forward, backward;
  int64_t cost;
};

// All convolutions, if that is cheaper than none; then without each that is better left alone. Only one at the border
// of what lies in channels last can be: to take out another would add copies on both of its sides.
bool choose_channels_last(Program& program) {
  auto convolutions = [&](const Graph& graph) {
    std::set<Value> found;
    for (size_t i = 0; i < graph.nodes.size(); ++i)
      if (takes_both_orders(graph, static_cast<Value>(i), program.options)) found.insert(static_cast<Value>(i));
    return found;
  };
  const std::set<Value> all[2] = {convolutions(program.forward), convolutions(program.backward)};
  if (all[0].empty() && all[1].empty()) return false;
  const int64_t none = Candidate(program, {}, {}).cost;
  Candidate best(program, all[0], all[1]);
  std::set<Value> tried[2];
  for (bool again = true; again;) {
    again = false;
    for (int half : {0, 1})
      for (Value v : std::set<Value>(best.border[half])) {
        if (!best.chosen[half].count(v) || !tried[half].insert(v).second) continue;
        std::set<Value> chosen[2] = {best.chosen[0], best.chosen[1]};
        chosen[half].erase(v);
        Candidate without(program, std::move(chosen[0]), std::move(chosen[1]));
        if (without.cost >= best.cost) continue;
        best = std::move(without);
        again = true;
      }
  }
  if (best.cost >= none) return false;
  program.forward = std::move(best.forward);
  program.backward = std::move(best.backward);
  return true;
}

}  // namespace

bool is_layout_copy(const Graph& graph, Value v) {
  return graph[v].op == Op::cast && graph.dtype(graph[v].operands[0]) == graph.dtype(v);
}

Value layout_copy(Graph& graph, Value v, const Order& order) {
  Type type = graph.type(v);
  type.order = order;
  const char* name = order.size() >= 4 && order == channels_last(type.rank()) ? "channels_last"
                     : order.empty()                                          ? "contiguous"
                                                                              : "permuted";
  const int origin = graph.add_origin({name, ""});
  graph.nodes.push_back({Op::cast, {v}, {{"dtype", type.dtype}}, type, origin});
  return static_cast<Value>(graph.nodes.size()) - 1;
}

void layout(Program& program) {
  const bool choose = program.options.cuda && !disabled_rules(program.options).count("channels_last");
  propagate(program.forward);
  hand_over(program, program.forward, program.backward);
  if (choose && choose_channels_last(program)) program.rewrites.push_back("channels_last");
  settle_results(program.forward);
  settle_results(program.backward);
}

}  // namespace fusewright
