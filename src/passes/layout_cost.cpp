#include "passes/layout_cost.h"

#include <algorithm>
#include <map>

#include "passes/upstream.h"

namespace fusewright {
namespace {

// cuDNN's own transposes take longer than our copies of the same bytes.
constexpr int64_t library_copy_quarters = 5;
// Below this many channels, and where they do not fill vectors of 16 bytes, cuDNN is no faster in channels last.
constexpr int64_t fewest_channels = 16, channel_bytes = 16;
// Nor are gradients of weights of this many taps along a dimension.
constexpr int64_t many_taps = 5;
// Shorter pieces of memory waste the difference (straighten.cpp).
constexpr int64_t fast_piece = 64;

// A convolution of one tap is a matrix product, which reads either order.
bool is_matrix_product(const Graph& graph, Value v) {
  const Node& node = graph[v];
  const Shape& weight = graph.shape(node.op == Op::conv_weight_grad ? v : node.operands[1]);
  const Ints& stride = node.ints("stride");
  return std::all_of(weight.begin() + 2, weight.end(), [](const Size& taps) { return taps.is(1); }) &&
         std::all_of(stride.begin(), stride.end(), [](int64_t step) { return step == 1; });
}

// On tensor cores, or as if.
bool is_faster_in_channels_last(const Graph& graph, Value v) {
  const Node& node = graph[v];
  auto many_channels = [&](Value t) {
    const int64_t channels = graph.hint(graph.shape(t)[1]);
    return channels >= fewest_channels && channels * size_of(graph.dtype(t)) % channel_bytes == 0;
  };
  if (is_matrix_product(graph, v) || !many_channels(v) || !many_channels(node.operands[0]) ||
      !many_channels(node.operands[1]))
    return false;
  if (node.op != Op::conv_weight_grad) return true;
  const Shape& weight = node.type.shape;
  return std::all_of(weight.begin() + 2, weight.end(), [&](const Size& taps) { return graph.hint(taps) < many_taps; });
}

// Given row-major operands where channels last is faster, the library transposes all of them and the result. Given one
// in channels last, it brings the other into the same order and leaves the result there; where that is no faster, the
// call itself takes longer.
int64_t moved_by_library(const Graph& graph, Value v) {
  const Node& node = graph[v];
  const Order last = channels_last(node.type.rank());
  const Value a = node.operands[0], b = node.operands[1];
  const bool given = graph.type(a).order == last || graph.type(b).order == last;
  const bool faster = is_faster_in_channels_last(graph, v);
  if (!given && !faster) return 0;
  int64_t transposed = 0, all = 0;
  for (Value t : {a, b, v}) {
    all += graph.bytes(t);
    if (!lies_in(graph, t, last) || (t == v && !given)) transposed += 2 * graph.bytes(t);
  }
  const bool slower = !faster && !is_matrix_product(graph, v);
  return transposed * library_copy_quarters / 4 + (slower ? all / 4 : 0);
}

bool is_inside_a_kernel(const Node& node) { return node.kind() == Kind::pointwise || node.kind() == Kind::movement; }

// How often the bytes of its data a reduction moves beside reading them, because its rows lie in memory in short pieces
// between those of other rows: the channels of a group, channels last. `straighten` then copies the data and leaves
// results to another kernel, or lets it waste what is read and written.
int64_t wasteful_factor(const Graph& graph, const Node& node) {
  const Value data = node.operands[0];
  const Type& type = graph.type(data);
  const Ints& dims = node.ints("dims");
  int64_t piece = size_of(type.dtype);
  bool inside = true, interrupted = false;
  for (int i = type.rank(); i-- > 0;) {
    const int d = type.order.empty() ? i : type.order[static_cast<size_t>(i)];
    const int64_t size = graph.hint(type.shape[static_cast<size_t>(d)]);
    if (size == 1) continue;
    const bool reduced = std::find(dims.begin(), dims.end(), d) != dims.end();
    inside = inside && reduced;
    if (inside) piece *= size;
    interrupted = interrupted || (reduced && !inside);
  }
  if (!interrupted || piece == size_of(type.dtype)) return 0;
  return std::min<int64_t>(piece < fast_piece ? 2 * (fast_piece / piece - 1) : 0, 3);
}

}  // namespace

Order channels_last(int rank) {
  Order order = {0};
  for (int d = 2; d < rank; ++d) order.push_back(d);
  order.push_back(1);
  return order;
}

bool lies_in(const Graph& graph, Value v, const Order& order) {
  const Type& type = graph.type(v);
  auto dimension = [&](const Order& of, int i) { return of.empty() ? i : of[static_cast<size_t>(i)]; };
  auto next = [&](const Order& of, int i) {
    while (i < type.rank() && type.shape[static_cast<size_t>(dimension(of, i))].is(1)) ++i;
    return i;
  };
  for (int i = next(type.order, 0), j = next(order, 0); i < type.rank() && j < type.rank();
       i = next(type.order, i + 1), j = next(order, j + 1))
    if (dimension(type.order, i) != dimension(order, j)) return false;
  return true;
}

bool takes_both_orders(const Graph& graph, Value v, const Options& options) {
  const Node& node = graph[v];
  if (!options.cuda || node.kind() != Kind::contraction || node.op == Op::matmul) return false;
  if (node.type.rank() != 4 && node.type.rank() != 5) return false;
  const bool half = node.type.dtype == DType::f16 || node.type.dtype == DType::bf16;
  return node.integer("groups") == 1 && (half || (node.type.dtype == DType::f32 && options.tf32_convolution));
}

int64_t layout_cost(const Graph& graph, const Options& options) {
  int64_t cost = 0;
  std::map<Value, int64_t> wasted;  // what reductions read
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const Value v = static_cast<Value>(i);
    const Node& node = graph.nodes[i];
    if (is_layout_copy(graph, v)) cost += 2 * graph.bytes(v);
    if (takes_both_orders(graph, v, options)) cost += moved_by_library(graph, v);
    if (node.kind() != Kind::reduce) continue;
    const int64_t factor = wasteful_factor(graph, node);
    if (factor == 0) continue;
    walk_upstream(graph, node.operands[0], [&](Value next) {
      if (is_inside_a_kernel(graph[next])) return true;
      if (graph.bytes(next) >= graph.bytes(node.operands[0]) / 4)
        wasted[next] = std::max(wasted[next], factor * graph.bytes(next));
      return false;
    });
  }
  for (const auto& [value, bytes] : wasted) cost += bytes;
  // A result that lies across what its kernel reduces is written by another, which reads the data once more.
  for (const Output& output : graph.outputs) {
    if (output.is_saved() || graph[output.value].kind() != Kind::pointwise) continue;
    bool across = false, reduces = false;
    walk_upstream(graph, output.value, [&](Value next) {
      reduces = reduces || graph[next].kind() == Kind::reduce;
      if (graph.shape(next) == graph.shape(output.value)) across = across || !lies_in(graph, next, output.order);
      return is_inside_a_kernel(graph[next]);
    });
    if (across && reduces && !is_layout_copy(graph, output.value)) cost += graph.bytes(output.value);
  }
  return cost;
}

}  // namespace fusewright
