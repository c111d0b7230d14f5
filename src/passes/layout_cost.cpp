#include "passes/layout_cost.h"

#include <algorithm>
#include <map>

#include "passes/upstream.h"

namespace fusewright {
namespace {

// cuDNN's own transposes take longer than our copies of the same bytes.
constexpr int64_t library_copy_quarters = 5;
// Below this many channels, and where they do not fill vectors of 16 bytes, cuDNN is no faster in channels last. Of
// volumes in f32 it wants more, unless they are spread out (the forward of a transposed convolution).
constexpr int64_t fewest_channels = 16, fewest_of_volumes = 32, channel_bytes = 16;
// Nor are gradients of weights of this many taps along a dimension; of a depthwise convolution in f32 they take four
// times as long.
constexpr int64_t many_taps = 5, many_taps_of_one_channel = 7;
// Volumes in f32 are spread out fast by steps and taps up to these.
constexpr int64_t largest_step = 2, most_taps_of_steps = 4;
// PyTorch's own kernels for row-major depthwise convolutions lose as much as moving their result this often; the
// gradient of a weight of one tap loses once.
constexpr int64_t depthwise_loss = 5;
// An image of f32 with fewer channels is made in channels last seven times as slowly.
constexpr int64_t fewest_of_image = 8;
// Shorter pieces of memory waste the difference (straighten.cpp).
constexpr int64_t fast_piece = 64;

const Shape& weight_of(const Graph& graph, Value v) {
  const Node& node = graph[v];
  return graph.shape(node.op == Op::conv_weight_grad ? v : node.operands[1]);
}

// Whether a test holds for the taps along each dimension.
template <class Test>
bool all_taps(const Graph& graph, Value v, Test test) {
  const Shape& weight = weight_of(graph, v);
  return std::all_of(weight.begin() + 2, weight.end(), [&](const Size& taps) { return test(graph.hint(taps)); });
}

bool has_one_tap(const Graph& graph, Value v) {
  const Shape& weight = weight_of(graph, v);
  return std::all_of(weight.begin() + 2, weight.end(), [](const Size& taps) { return taps.is(1); });
}

// A convolution of one tap is a matrix product, which reads either order.
bool is_matrix_product(const Graph& graph, Value v) {
  const Ints& stride = graph[v].ints("stride");
  return graph[v].integer("groups") == 1 && has_one_tap(graph, v) &&
         std::all_of(stride.begin(), stride.end(), [](int64_t step) { return step == 1; });
}

// As many results as operands, each of one channel, at the sizes of the capture: channels are symbols.
bool is_depthwise(const Graph& graph, Value v) {
  const int64_t groups = graph[v].integer("groups");
  const Shape& weight = weight_of(graph, v);
  return groups > 1 && graph.hint(weight[1]) == 1 && graph.hint(weight[0]) == groups;
}

// The forward of a transposed convolution, and the gradient of an ordinary one: each element of the operand is spread
// over its taps.
bool spreads(const Node& node) {
  return node.op != Op::conv_weight_grad && (node.op == Op::conv_input_grad) != (node.integer("transposed") != 0);
}

// On tensor cores, or as if.
bool is_faster_in_channels_last(const Graph& graph, Value v) {
  const Node& node = graph[v];
  if (is_depthwise(graph, v)) return true;
  const bool volume_of_f32 = node.type.rank() == 5 && node.type.dtype == DType::f32;
  const int64_t fewest = volume_of_f32 && !spreads(node) ? fewest_of_volumes : fewest_channels;
  auto many_channels = [&](Value t) {
    const int64_t channels = graph.hint(graph.shape(t)[1]);
    return channels >= fewest && channels * size_of(graph.dtype(t)) % channel_bytes == 0;
  };
  if (is_matrix_product(graph, v) || !many_channels(v) || !many_channels(node.operands[0]) ||
      !many_channels(node.operands[1]))
    return false;
  if (volume_of_f32 && spreads(node)) {
    const Ints& stride = node.ints("stride");
    return std::all_of(stride.begin(), stride.end(), [](int64_t step) { return step <= largest_step; }) &&
           all_taps(graph, v, [](int64_t taps) { return taps <= most_taps_of_steps; });
  }
  return node.op != Op::conv_weight_grad || all_taps(graph, v, [](int64_t taps) { return taps < many_taps; });
}

// What the library loses beside moving tensors.
int64_t lost_by_library(const Graph& graph, Value v, bool given, bool faster, int64_t all) {
  const Node& node = graph[v];
  if (is_depthwise(graph, v)) {
    if (given) return 0;
    const bool weight = node.op == Op::conv_weight_grad;
    const int64_t result = graph.bytes(weight ? node.operands[0] : v);
    return weight && has_one_tap(graph, v) ? result : depthwise_loss * result;
  }
  return faster || is_matrix_product(graph, v) ? 0 : all / 4;
}

// A convolution for which the library has kernels for tensor cores, if not for its sizes.
bool may_move(const Graph& graph, Value v, const Options& options) {
  const Node& node = graph[v];
  if (!options.cuda || node.kind() != Kind::contraction || node.op == Op::matmul) return false;
  if (node.type.rank() != 4 && node.type.rank() != 5) return false;
  const bool half = node.type.dtype == DType::f16 || node.type.dtype == DType::bf16;
  if (!half && (node.type.dtype != DType::f32 || !options.tf32_convolution)) return false;
  const bool depthwise_image = node.type.rank() == 4 && node.integer("transposed") == 0 && is_depthwise(graph, v);
  return node.integer("groups") == 1 || depthwise_image;
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
  if (!given && is_depthwise(graph, v)) transposed = 0;  // another kernel serves
  return transposed * library_copy_quarters / 4 + lost_by_library(graph, v, given, faster, all);
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

bool wants_row_major(const Graph& graph, Value v, const Options& options) {
  const Node& node = graph[v];
  if (!may_move(graph, v, options) || node.type.rank() != 4 || node.type.dtype != DType::f32) return false;
  if (is_depthwise(graph, v))
    return node.op == Op::conv_weight_grad &&
           !all_taps(graph, v, [](int64_t taps) { return taps < many_taps_of_one_channel; });
  const bool makes_image = node.op != Op::conv_weight_grad && !spreads(node) && !is_matrix_product(graph, v);
  return makes_image && graph.hint(node.type.shape[1]) < fewest_of_image;
}

bool takes_both_orders(const Graph& graph, Value v, const Options& options) {
  return may_move(graph, v, options) && !wants_row_major(graph, v, options);
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
