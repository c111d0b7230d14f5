// Memory order of every value: results of pointwise operations, pooling and convolution follow their operand's, so that
// a channels-last model stays channels-last and no pass over memory only transposes.
//
// On a GPU the pass may also move convolutions of a row-major model to channels last, where cuDNN's tensor-core kernels
// live: called with row-major tensors it transposes all of them, inside. The result stays channels last through
// the region: pointwise kernels read and write any mixture (kernels/cuda_tile.h). What they cannot mix becomes a copy
// into the other order, a `cast` to its own element type, which `fuse` gives a kernel of its own.
#include <map>
#include <set>

#include "passes/program.h"
#include "passes/rebuild.h"
#include "passes/upstream.h"

namespace fusewright {
namespace {

const Order channels_last = {0, 2, 3, 1};

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

bool is_saved(const Output& output) { return output.name.rfind("saved", 0) == 0; }

// What is only kept for the backward lies as it was computed; what the user sees lies as eager's does.
void keep_saved_orders(Graph& graph) {
  for (Output& output : graph.outputs)
    if (is_saved(output)) output.order = graph.type(output.value).order;
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

// A tensor whose image is one pixel lies both ways.
bool lies_in(const Graph& graph, Value v, const Order& order) {
  const Type& type = graph.type(v);
  return type.order == order || (type.rank() == 4 && type.shape[2].is(1) && type.shape[3].is(1));
}

// cuDNN runs it on tensor cores, which want channels last and 16 bytes of channels.
bool wants_channels_last(const Graph& graph, Value v, const Options& options) {
  const Node& node = graph[v];
  if (!options.cuda || node.kind() != Kind::contraction || node.op == Op::matmul || node.type.rank() != 4) return false;
  if (node.integer("transposed") || node.integer("groups") != 1) return false;
  const bool half = node.type.dtype == DType::f16 || node.type.dtype == DType::bf16;
  if (!half && !(node.type.dtype == DType::f32 && options.tf32_convolution)) return false;
  auto whole = [&](Value t) { return graph.hint(graph.shape(t)[1]) * size_of(graph.dtype(t)) % 16 == 0; };
  return whole(v) && whole(node.operands[0]) && whole(node.operands[1]);
}

// The estimate by which layouts are compared: the time of what is moved only to transpose, in bytes read and written at
// the speed of a copy, for the sizes at capture. Ours are copies from one order into another; the library's own take a
// quarter longer (measured on an H200). Given row-major operands it transposes all of them and the result; given one in
// channels last, it brings the other into the same order and leaves the result there. Changes inside a pointwise kernel
// are free.
int64_t transposed_bytes(const Graph& graph, const Options& options) {
  int64_t ours = 0, library = 0;
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const Value v = static_cast<Value>(i);
    if (is_layout_copy(graph, v)) ours += 2 * graph.bytes(v);
    if (!wants_channels_last(graph, v, options)) continue;
    const Value a = graph[v].operands[0], b = graph[v].operands[1];
    const bool given = graph.type(a).order == channels_last || graph.type(b).order == channels_last;
    for (Value operand : {a, b})
      if (!lies_in(graph, operand, channels_last)) library += 2 * graph.bytes(operand);
    if (!given || !lies_in(graph, v, channels_last)) library += 2 * graph.bytes(v);
  }
  return ours + library + library / 4;
}

// A copy of the graph in which some contractions run in channels last.
class Relayout {
 public:
  Relayout(const Graph& from, std::set<Value> chosen) : from_(from), chosen_(std::move(chosen)) {
    find_reductions();
    find_mixtures();
    for (const Output& output : from.outputs)
      if (!is_saved(output)) given_[output.value] = output.order;
  }

  Graph run() {
    Graph to = rebuild(from_, [&](Builder& b, const Node& node, std::vector<Value>& operands) {
      const Value old = static_cast<Value>(&node - from_.nodes.data());
      const bool chosen = chosen_.count(old) != 0;
      for (size_t k = 0; k < operands.size(); ++k) {
        if (mixed_.count(node.operands[k]) && (is_inside(node) || is_heavy(node)))
          operands[k] = copied(b, operands[k], channels_last);
        if (chosen || !follows(node))
          operands[k] =
              lying(b, operands[k], node.operands[k], chosen ? channels_last : from_.type(node.operands[k]).order);
      }
      const Value v = copy_node(b, node, operands);
      Graph& graph = b.graph();
      graph[v].type.order = chosen ? channels_last : order_of(graph, node_with(node, operands));
      if (auto given = given_.find(old); given != given_.end() && is_free(old)) graph[v].type.order = given->second;
      return v;
    });
    copy_outputs(to);
    keep_saved_orders(to);
    return to;
  }

 private:
  static Node node_with(Node node, std::vector<Value> operands) {
    node.operands = std::move(operands);
    return node;
  }

  // Operations that take channels last as it comes. Others get their operands as they lay before the choice.
  static bool follows(const Node& node) {
    if (node.kind() == Kind::contraction) return node.op == Op::matmul;
    if (node.kind() == Kind::movement) return node.op == Op::expand;
    if (node.kind() != Kind::reduce) return true;
    for (int64_t d : node.ints("dims"))
      if (d == 1) return false;
    return true;
  }

  static bool is_inside(const Node& node) { return node.kind() == Kind::pointwise || node.kind() == Kind::movement; }
  static bool is_heavy(const Node& node) { return node.kind() == Kind::reduce || node.kind() == Kind::window; }

  // What reductions and windows are computed from, and what is computed from them: their kernels do not use tiles.
  void find_reductions() {
    near_reduction_.assign(from_.nodes.size(), false);
    for (size_t i = 0; i < from_.nodes.size(); ++i) {
      const Node& node = from_.nodes[i];
      if (is_heavy(node)) {
        near_reduction_[i] = true;
        for (Value operand : node.operands)
          walk_upstream(from_, operand, [&](Value next) {
            near_reduction_[static_cast<size_t>(next)] = true;
            return is_inside(from_[next]);
          });
      } else if (is_inside(node)) {
        for (Value operand : node.operands)
          if (from_[operand].kind() != Kind::source && from_[operand].kind() != Kind::contraction)
            near_reduction_[i] = near_reduction_[i] || near_reduction_[static_cast<size_t>(operand)];
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

  // The value in this order: it is, or its kernel writes it so, or a copy is made.
  Value lying(Builder& b, Value v, Value old, const Order& order) {
    Graph& graph = b.graph();
    if (graph.type(v).rank() != 4 || lies_in(graph, v, order)) return v;
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
      graph.nodes[i].type.order =
          chosen_.count(static_cast<Value>(i)) ? channels_last : order_of(graph, graph.nodes[i]);
    for (const Node& node : graph.nodes) {
      if (!is_heavy(node)) continue;
      std::set<Value> row_major;
      bool last = false;
      walk_upstream(graph, node.operands[0], [&](Value next) {
        const Node& leaf = graph[next];
        if (is_inside(leaf)) return true;
        if (leaf.type.rank() != 4 || leaf.type.shape != graph.shape(node.operands[0])) return false;
        last |= leaf.type.order == channels_last;
        if (leaf.type.order.empty()) row_major.insert(next);
        return false;
      });
      if (last) mixed_.insert(row_major.begin(), row_major.end());
    }
  }

  // Results that the user sees, where no pointwise kernel can write them as he expects them.
  void copy_outputs(Graph& graph) {
    Builder b(graph);
    for (size_t i = 0; i < graph.outputs.size(); ++i) {
      Output& output = graph.outputs[i];
      if (is_saved(output) || graph.type(output.value).order != channels_last) continue;
      if (!lies_in(graph, output.value, output.order)) output.value = copied(b, output.value, output.order);
    }
  }

  const Graph& from_;
  const std::set<Value> chosen_;
  std::vector<bool> near_reduction_;
  std::map<Value, Order> given_;  // results of the region: the order that the caller expects
  std::set<Value> mixed_;         // of from_: read by reductions as copies
  std::set<Value> moved_;         // have been given another order, or a copy
  std::map<std::pair<Value, Order>, Value> copies_;
};

// All contractions that want it, then without each that is better left alone, if that is cheaper than none. `mixed`:
// some inputs are in channels last by our own choice.
bool choose_channels_last(Graph& graph, const Options& options, bool mixed) {
  std::set<Value> chosen;
  for (size_t i = 0; i < graph.nodes.size(); ++i)
    if (wants_channels_last(graph, static_cast<Value>(i), options)) chosen.insert(static_cast<Value>(i));
  if (chosen.empty() && !mixed) return false;
  Graph none = Relayout(graph, {}).run(), best = Relayout(graph, chosen).run();
  const int64_t most = transposed_bytes(none, options);
  int64_t least = transposed_bytes(best, options);
  for (Value v : std::set<Value>(chosen)) {
    chosen.erase(v);
    Graph without = Relayout(graph, chosen).run();
    if (int64_t bytes = transposed_bytes(without, options); bytes < least)
      best = std::move(without), least = bytes;
    else
      chosen.insert(v);
  }
  const bool cheaper = least < most;
  if (cheaper || mixed) graph = std::move(cheaper ? best : none);
  return cheaper;
}

}  // namespace

bool is_layout_copy(const Graph& graph, Value v) {
  return graph[v].op == Op::cast && graph.dtype(graph[v].operands[0]) == graph.dtype(v);
}

Value layout_copy(Graph& graph, Value v, const Order& order) {
  Type type = graph.type(v);
  type.order = order;
  const char* name = order == channels_last ? "channels_last" : order.empty() ? "contiguous" : "permuted";
  const int origin = graph.add_origin({name, ""});
  graph.nodes.push_back({Op::cast, {v}, {{"dtype", type.dtype}}, type, origin});
  return static_cast<Value>(graph.nodes.size()) - 1;
}

void layout(Program& program) {
  const bool choose = program.options.cuda && !disabled_rules(program.options).count("channels_last");
  propagate(program.forward);
  bool chosen = choose && choose_channels_last(program.forward, program.options, false);
  for (size_t i = 0; i < program.saved.size(); ++i) {
    const Program::Saved& saved = program.saved[i];
    if (!saved.is_input)
      program.backward[program.backward.inputs[i]].type.order =
          program.forward.outputs[static_cast<size_t>(saved.index)].order;
  }
  propagate(program.backward);
  if (choose) chosen |= choose_channels_last(program.backward, program.options, chosen);
  settle_results(program.forward);
  settle_results(program.backward);
  if (chosen) program.rewrites.push_back("channels_last");
}

}  // namespace fusewright
