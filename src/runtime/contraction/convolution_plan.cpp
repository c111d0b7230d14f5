#include "runtime/contraction/convolution_plan.h"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>

namespace fusewright {
namespace {

using Axes = fw::ConvAxis[fw::conv_axes];

constexpr int64_t most =
    int64_t{1} << 30;  // elements that the images of a tile reach over: kernels count bytes in 32 bits
// Shared memory that leaves room for a second block, and for weights in the L1 cache.
constexpr int64_t wanted_shared_bytes = 80 << 10, most_partial_bytes = int64_t{64} << 20;

// A model of an H200: cycles of a processor for an instruction of its tensor cores, and for a unit of 8 channels that
// is staged; what a block takes beside; bytes of memory in a microsecond.
constexpr double mma_cycles = 1.7, unit_cycles = 0.8, block_cycles = 2500, cycles_in_a_microsecond = 1600;
constexpr double bytes_in_a_microsecond = 3.5e6, launch_microseconds = 2.5;
// On Hopper: cycles for an instruction of 64 x 64, a staged unit, a result, and a tile beside.
constexpr double wgmma_cycles = 34, hopper_unit_cycles = 2.5, result_cycles = 0.03, hopper_tile_cycles = 1500;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
uint32_t u32_of(int64_t n) { return static_cast<uint32_t>(n); }
int32_t i32_of(int64_t n) { return static_cast<int32_t>(n); }
size_t index(int64_t n) { return static_cast<size_t>(n); }

bool is_served(DType type) { return type == DType::f32 || type == DType::f16 || type == DType::bf16; }

// The volume's axis that a tensor's dimension is: those of images and lines are the last ones.
int64_t dimension_of(const Tensor& t, size_t axis) {
  const int64_t d = static_cast<int64_t>(axis) + t.rank - 3;
  return d >= 2 ? d : -1;
}
int64_t size_along(const Tensor& t, size_t axis) {
  const int64_t d = dimension_of(t, axis);
  return d < 0 ? 1 : t.sizes[index(d)];
}
int64_t stride_along(const Tensor& t, size_t axis) {
  const int64_t d = dimension_of(t, axis);
  return d < 0 ? 0 : t.strides[index(d)];
}
int64_t option_along(const std::vector<int64_t>& option, size_t axis, int64_t without) {
  const int64_t d = static_cast<int64_t>(axis + option.size()) - 3;
  return d < 0 ? without : option[index(d)];
}

bool is_spread(const LibraryCall& call) { return call.transposed != (call.kind == LibraryCall::Kind::conv_input_grad); }

// Elements from the first of an image to its last.
int64_t reach_of(const Tensor& t) {
  int64_t reach = 0;
  for (size_t d = 1; d < index(t.rank); ++d) reach += (t.sizes[d] - 1) * t.strides[d];
  return reach;
}

bool has_positive_strides(const Tensor& t) {
  for (size_t d = 0; d < index(t.rank); ++d)
    if (t.strides[d] < 0) return false;
  return true;
}

// 16 bytes along the channels may be read at once. `group_channels`: where the next group begins.
bool reads_vectors(const Tensor& t, int64_t group_channels) {
  const int64_t count = 16 / size_of(t.dtype);
  if (t.strides[1] != 1 || reinterpret_cast<uintptr_t>(t.data) % 16 != 0) return false;
  if (t.sizes[1] != group_channels && group_channels % count != 0) return false;
  for (int d = 0; d < t.rank; ++d)
    if (d != 1 && t.sizes[index(d)] > 1 && t.strides[index(d)] % count != 0) return false;
  return true;
}

fw::ConvImages images_of(const Tensor& t) { return {t.data, t.strides[0], i32_of(t.sizes[1] == 1 ? 0 : t.strides[1])}; }

// The axes of a convolution whose result j reads from position j * stride - padding on.
bool set_axes(Axes& axes, const LibraryCall& call, const Tensor& read, const Tensor& weight, const Tensor& result) {
  for (size_t d = 0; d < fw::conv_axes; ++d) {
    fw::ConvAxis& axis = axes[d];
    const int64_t stride = option_along(call.stride, d, 1), padding = option_along(call.padding, d, 0);
    const int64_t dilation = option_along(call.dilation, d, 1), taps = size_along(weight, d);
    const int64_t results = size_along(result, d);
    axis.size = u32_of(size_along(read, d));
    axis.stride = i32_of(stride_along(read, d));
    axis.result_stride = i32_of(stride_along(result, d));
    axis.weight_stride = i32_of(stride_along(weight, d));
    axis.kernel = u32_of(taps);
    if (!is_spread(call) || call.kind == LibraryCall::Kind::conv_weight_grad) {
      axis.phase_count = 1;
      axis.step = u32_of(stride);
      axis.result_step = 1;
      axis.phases[0] = {u32_of(results), u32_of(taps), 0, 1, i32_of(-padding), i32_of(dilation)};
      continue;
    }
    if (stride > fw::conv_most_phases) return false;
    axis.phase_count = u32_of(stride);
    axis.step = 1;
    axis.result_step = u32_of(stride);
    const int64_t together = std::gcd(stride, dilation);
    for (int64_t r = 0; r < stride; ++r) {
      fw::ConvPhase& phase = axis.phases[r];
      phase = {};
      phase.count = u32_of(results > r ? ceil_div(results - r, stride) : 0);
      int64_t first = 0;
      while (first < taps && (r + padding - first * dilation) % stride != 0) ++first;
      if (first == taps) continue;
      // The taps of a phase, with ascending offsets: the last one first.
      const int64_t tap_step = stride / together;
      phase.taps = u32_of(ceil_div(taps - first, tap_step));
      phase.first_tap = i32_of(first + (int64_t{phase.taps} - 1) * tap_step);
      phase.tap_step = i32_of(-tap_step);
      phase.offset_step = i32_of(dilation / together);
      phase.first_offset = i32_of((r + padding - int64_t{phase.first_tap} * dilation) / stride);
    }
  }
  return true;
}

uint32_t most_results(const fw::ConvAxis& axis) {
  uint32_t count = 0;
  for (uint32_t r = 0; r < axis.phase_count; ++r) count = std::max(count, axis.phases[r].count);
  return count;
}

int64_t most_taps(const Axes& axes) {
  int64_t taps = 1;
  for (const fw::ConvAxis& axis : axes) {
    uint32_t along = 0;
    for (uint32_t r = 0; r < axis.phase_count; ++r) along = std::max(along, axis.phases[r].taps);
    taps *= along;
  }
  return taps;
}

// Positions along an axis that the results of a tile read; where a stride takes them apart, each part is as long.
int64_t extent_of(const fw::ConvAxis& axis, int64_t tile, bool last) {
  int64_t longest = 1;
  for (uint32_t r = 0; r < axis.phase_count; ++r) {
    const fw::ConvPhase& phase = axis.phases[r];
    if (phase.taps == 0) continue;
    const int64_t reach = (int64_t{phase.taps} - 1) * phase.offset_step;
    longest = std::max(longest, (tile - 1) * int64_t{axis.step} + reach + 1);
  }
  return last ? ceil_div(longest, axis.step) * axis.step : longest;
}

struct Tile {
  std::array<int64_t, 3> size{1, 1, 1};
  int64_t batches = 1;
  int64_t positions = 0, tiles = 0;

  int64_t results() const { return size[0] * size[1] * size[2] * batches; }
};

// Sizes that cut `count` into equal parts, at most `limit` long.
std::vector<int64_t> cuts_of(int64_t count, int64_t limit) {
  std::vector<int64_t> cuts;
  for (int64_t parts = std::max<int64_t>(1, ceil_div(count, limit)); parts <= count; ++parts) {
    const int64_t size = ceil_div(count, parts);
    if (cuts.empty() || cuts.back() != size) cuts.push_back(size);
    if (size == 1 || cuts.size() > 12) break;
  }
  return cuts;
}

// Calls `visit` for tiles of at most `most_results` results.
template <class Visit>
void for_tiles(const Axes& axes, int64_t batches, int64_t limit, Visit visit) {
  std::array<int64_t, 3> counts;
  for (size_t d = 0; d < 3; ++d) counts[d] = most_results(axes[d]);
  for (int64_t x : cuts_of(counts[2], limit))
    for (int64_t y : cuts_of(counts[1], limit / x))
      for (int64_t z : cuts_of(counts[0], limit / (x * y))) {
        Tile tile;
        tile.size = {z, y, x};
        const bool whole = z == counts[0] && y == counts[1] && x == counts[2];
        if (whole) tile.batches = std::min(batches, limit / (x * y * z));
        tile.positions =
            tile.batches * extent_of(axes[0], z, false) * extent_of(axes[1], y, false) * extent_of(axes[2], x, true);
        tile.tiles =
            ceil_div(counts[0], z) * ceil_div(counts[1], y) * ceil_div(counts[2], x) * ceil_div(batches, tile.batches);
        visit(tile);
      }
}

// Calls `visit` for tiles of at most `limit` blocks of 8 lines along the axis `lines` (3: images) of 8 neighbours.
template <class Visit>
void for_blocks(const Axes& axes, int64_t batches, uint32_t lines, int64_t limit, Visit visit) {
  int64_t counts[4], units[4] = {1, 1, 8, 1};
  for (size_t d = 0; d < 3; ++d) counts[d] = most_results(axes[d]);
  counts[3] = batches;
  units[lines] *= 8;
  int64_t parts[4];
  for (parts[2] = 1; parts[2] <= std::min(limit, ceil_div(counts[2], units[2])); ++parts[2])
    for (parts[1] = 1; parts[1] * parts[2] <= limit && parts[1] <= ceil_div(counts[1], units[1]); ++parts[1])
      for (parts[0] = 1; parts[0] * parts[1] * parts[2] <= limit && parts[0] <= ceil_div(counts[0], units[0]);
           ++parts[0]) {
        parts[3] = std::min(limit / (parts[0] * parts[1] * parts[2]), ceil_div(batches, units[3]));
        Tile tile;
        for (size_t d = 0; d < 3; ++d) tile.size[d] = parts[d] * units[d];
        tile.batches = parts[3] * units[3];
        tile.positions = tile.batches * extent_of(axes[0], tile.size[0], false) *
                         extent_of(axes[1], tile.size[1], false) * extent_of(axes[2], tile.size[2], true);
        tile.tiles = ceil_div(batches, tile.batches);
        for (size_t d = 0; d < 3; ++d) tile.tiles *= ceil_div(counts[d], tile.size[d]);
        visit(tile);
      }
}

void set_tile(Axes& axes, const Tile& tile) {
  for (size_t d = 0; d < fw::conv_axes; ++d) {
    axes[d].tile = u32_of(tile.size[d]);
    axes[d].tiles = u32_of(ceil_div(most_results(axes[d]), tile.size[d]));
  }
}

int64_t phases_of(const Axes& axes) { return int64_t{axes[0].phase_count} * axes[1].phase_count * axes[2].phase_count; }

bool fits(const Tensor& t) { return reach_of(t) < most && has_positive_strides(t) && t.rank >= 3 && t.rank <= 5; }

// Images of a tile lie within 31 bits of each other.
bool fits(const Tensor& t, int64_t batches) { return (batches - 1) * t.strides[0] + reach_of(t) < most; }

// The time of blocks that take so many cycles each.
double waves(double blocks, double cycles, const ConvolutionDevice& device) {
  const double each = std::max(blocks / device.processors, 1.0);  // of a processor, one after the other
  return each * cycles / cycles_in_a_microsecond;
}

}  // namespace

std::optional<ConvolutionPlan> ConvolutionPlan::of(const LibraryCall& call, const std::vector<const Tensor*>& operands,
                                                   const Tensor& result, ConvolutionDevice device) {
  const Tensor &x = *operands[0], &w = *operands[1];
  if (!is_served(x.dtype) || w.dtype != x.dtype || result.dtype != x.dtype || w.rank != x.rank || result.rank != x.rank)
    return std::nullopt;
  if (!fits(x) || !fits(result) || !has_positive_strides(w) || x.elements() == 0 || w.elements() == 0 ||
      result.elements() == 0)
    return std::nullopt;
  ConvolutionPlan plan;
  fw::ConvArgs& a = plan.args_;
  // Rows are channels of the result: the weight's first dimension, where a convolution is computed forwards.
  const bool spread = is_spread(call);
  const size_t rows = spread ? 1 : 0, channels = 1 - rows;
  a.groups = u32_of(call.groups);
  a.rows = u32_of(spread ? w.sizes[1] : w.sizes[0] / call.groups);
  a.channels = u32_of(spread ? w.sizes[0] / call.groups : w.sizes[1]);
  if (x.sizes[1] != int64_t{a.channels} * call.groups || result.sizes[1] != int64_t{a.rows} * call.groups)
    return std::nullopt;
  a.x = images_of(x);
  a.y = images_of(result);
  a.w = {w.data, w.strides[rows], w.strides[channels], w.strides[0] * (spread ? a.channels : a.rows)};
  if (operands.size() == 3) {
    const Tensor& bias = *operands[2];
    if (bias.dtype != x.dtype || bias.rank != 1 || bias.strides[0] != 1) return std::nullopt;
    a.bias = bias.data;
  }
  a.batches = u32_of(x.sizes[0]);
  a.vectors = reads_vectors(x, a.channels);
  if (!set_axes(a.axes, call, x, w, result)) return std::nullopt;
  if (!plan.choose(device, size_of(x.dtype))) return std::nullopt;
  if (!fits(x, a.batch_tile) || !fits(result, a.batch_tile)) return std::nullopt;
  // Two neighbours are written at once where all pairs of a tile are neighbours, at even places.
  const auto even = [](int64_t n) { return n % 2 == 0; };
  const fw::ConvAxis& last = a.axes[2];
  bool pairs = last.phase_count == 1 && last.result_stride == 1 && even(last.tile) && even(last.phases[0].count);
  for (int d = 0; d + 1 < result.rank; ++d)
    pairs = pairs && (result.sizes[index(d)] == 1 || even(result.strides[index(d)]));
  a.pairs = pairs;
  return plan;
}

bool ConvolutionPlan::choose(ConvolutionDevice device, int64_t element_bytes) {
  fw::ConvArgs& a = args_;
  double least = std::numeric_limits<double>::infinity();
  if (device.hopper) choose_on_hopper(device, element_bytes, least);
  if (!device.hopper || device.shape < 0) choose_portable(device, least);
  if (least == std::numeric_limits<double>::infinity()) return false;
  const int64_t blocks = phases_of(a.axes) * a.groups * a.row_blocks * static_cast<int64_t>(fw::conv_block_steps(a));
  if (blocks > most || int64_t{a.groups} * a.rows > most) return false;
  const int64_t threads = on_hopper_ ? fw::conv_step_units * fw::conv_hopper_rows : 32;  // of a step
  pack_blocks_ = u32_of(ceil_div(blocks * threads, fw::conv_pack_threads));
  packed_bytes_ = int64_t{pack_blocks_} * fw::conv_pack_threads * 16;
  workspace_ = packed_bytes_ + 2 * 16 * ceil_div(4 * int64_t{a.groups} * a.rows, 16);
  double read = static_cast<double>(a.batches) * a.groups * a.channels;
  double written = static_cast<double>(a.batches) * a.groups * a.rows;
  for (const fw::ConvAxis& axis : a.axes) {
    read *= axis.size;
    double results = 0;
    for (uint32_t r = 0; r < axis.phase_count; ++r) results += axis.phases[r].count;
    written *= results;
  }
  const double bytes = (read + written) * static_cast<double>(element_bytes);
  microseconds_ = std::max(least, bytes / bytes_in_a_microsecond) + 3 * launch_microseconds;
  return true;
}

// Taps of a phase, on average.
double ConvolutionPlan::taps_of_a_phase() const {
  const fw::ConvArgs& a = args_;
  return static_cast<double>(int64_t{a.axes[0].kernel} * a.axes[1].kernel * a.axes[2].kernel) /
         static_cast<double>(phases_of(a.axes));
}

void ConvolutionPlan::choose_portable(const ConvolutionDevice& device, double& least) {
  fw::ConvArgs& a = args_;
  const int64_t taps = most_taps(a.axes), planes = ceil_div(a.channels, fw::conv_unit), phases = phases_of(a.axes);
  const int64_t most_shared = std::min<int64_t>(wanted_shared_bytes, device.shared_bytes);
  for (size_t shape = 0; shape < fw::conv_shape_count; ++shape) {
    if (device.shape >= 0 && static_cast<size_t>(device.shape) != shape) continue;
    const fw::ConvShape& s = fw::conv_shapes[shape];
    const int64_t tile_rows = fw::conv_tile_rows(s), row_tiles = ceil_div(a.rows, tile_rows);
    for_tiles(a.axes, a.batches, fw::conv_tile_columns(s), [&](const Tile& tile) {
      fw::ConvArgs with = a;
      with.positions = u32_of(tile.positions);
      // As many channels at once as fit.
      for (int64_t chunks = 1; chunks <= planes; ++chunks) {
        if (chunks > 1 && ceil_div(planes, chunks) == ceil_div(planes, chunks - 1)) continue;
        with.planes = u32_of(ceil_div(planes, chunks));
        with.chunks = u32_of(ceil_div(planes, with.planes));
        with.units = fw::conv_chunk_units(with, u32_of(taps));
        const fw::ConvShared shared = fw::conv_shared(with, fw::conv_tile_columns(s));
        if (shared.bytes > most_shared) continue;
        const double blocks = static_cast<double>(row_tiles * a.groups * phases * tile.tiles);
        const double steps = taps_of_a_phase() * static_cast<double>(planes) / 2.0 + with.chunks;
        const double products = steps * static_cast<double>(tile_rows / 16 * fw::conv_tile_columns(s) / 8);
        const double staged = static_cast<double>(tile.positions * planes);
        const double cycles = products * mma_cycles + staged * unit_cycles + block_cycles + with.chunks * 300.0;
        const double time = waves(blocks, cycles, device);
        if (time >= least) break;
        least = time;
        on_hopper_ = false;
        shape_ = shape;
        a.planes = with.planes;
        a.chunks = with.chunks;
        a.units = with.units;
        a.positions = with.positions;
        a.row_tiles = u32_of(row_tiles);
        a.row_blocks = u32_of(row_tiles * tile_rows / fw::conv_rows);
        a.batch_tile = u32_of(tile.batches);
        a.batch_tiles = u32_of(ceil_div(a.batches, tile.batches));
        set_tile(a.axes, tile);
        blocks_ = u32_of(static_cast<int64_t>(blocks));
        shared_bytes_ = shared.bytes;
        break;
      }
    });
  }
}

void ConvolutionPlan::choose_on_hopper(const ConvolutionDevice& device, int64_t element_bytes, double& least) {
  fw::ConvArgs& a = args_;
  const int64_t taps = most_taps(a.axes), planes = ceil_div(a.channels, fw::conv_unit), phases = phases_of(a.axes);
  // Units of a step that lie in one chunk follow each other in memory. What fills up a step must not be infinite.
  const bool may_be_odd = planes == 1 && a.axes[2].step == 1 && element_bytes == 4;
  for (size_t shape = 0; shape < fw::conv_hopper_shape_count; ++shape) {
    if (device.shape >= 0 && static_cast<size_t>(device.shape) != shape) continue;
    const fw::ConvHopperShape& s = fw::conv_hopper_shapes[shape];
    const int64_t tile_rows = fw::conv_hopper_tile_rows(s), row_tiles = ceil_div(a.rows, tile_rows);
    for (uint32_t lines = 0; lines <= fw::conv_axes; ++lines)
      for_blocks(
          a.axes, a.batches, lines, fw::conv_hopper_tile_columns(s) / fw::conv_hopper_block, [&](const Tile& tile) {
            fw::ConvArgs with = a;
            with.positions = u32_of(tile.positions);
            for (int64_t chunk = 1; chunk <= planes; ++chunk) {
              const int64_t together = ceil_div(planes, chunk);
              with.planes = u32_of(may_be_odd ? together : together + together % 2);
              with.chunks = u32_of(ceil_div(planes, with.planes));
              with.units = fw::conv_chunk_units(with, u32_of(taps));
              if (with.planes > 4 && chunk < planes) continue;  // short stages let producers be ahead
              with.stages = 1;
              const fw::ConvHopperShared one = fw::conv_hopper_shared(with, s, element_bytes == 4);
              const int64_t stages = (device.shared_bytes - one.ring) / one.stage_bytes;
              if (device.shared_bytes < one.ring || stages < 2) continue;
              with.stages = u32_of(std::min<int64_t>(stages, fw::conv_most_stages));
              const double tiles = static_cast<double>(row_tiles * a.groups * phases * tile.tiles);
              const double steps = taps_of_a_phase() * with.planes * with.chunks / 2.0;
              const double products = steps * static_cast<double>(fw::conv_hopper_consumers * s.blocks) * wgmma_cycles;
              const double staged =
                  static_cast<double>(tile.positions * with.planes * with.chunks) * hopper_unit_cycles;
              const double written = static_cast<double>(tile_rows * fw::conv_hopper_tile_columns(s)) * result_cycles;
              const double cycles = std::max(products + written, staged) + hopper_tile_cycles + with.chunks * 100.0;
              const double time = waves(tiles, cycles, device);
              if (time >= least) break;
              least = time;
              on_hopper_ = true;
              shape_ = shape;
              a.planes = with.planes;
              a.chunks = with.chunks;
              a.units = with.units;
              a.stages = with.stages;
              a.positions = with.positions;
              a.lines = lines;
              a.row_tiles = u32_of(row_tiles);
              a.row_blocks = u32_of(row_tiles * s.row_groups);
              a.batch_tile = u32_of(tile.batches);
              a.batch_tiles = u32_of(ceil_div(a.batches, tile.batches));
              a.tiles = u32_of(static_cast<int64_t>(tiles));
              set_tile(a.axes, tile);
              blocks_ = std::min(a.tiles, static_cast<uint32_t>(device.processors));
              shared_bytes_ = fw::conv_hopper_shared(with, s, element_bytes == 4).bytes;
              break;
            }
          });
  }
}

uint32_t ConvolutionPlan::threads() const {
  return on_hopper_ ? fw::conv_hopper_threads : fw::conv_threads(fw::conv_shapes[shape_]);
}

fw::ConvArgs ConvolutionPlan::arguments(char* workspace, void* result) const {
  fw::ConvArgs a = args_;
  a.packed = reinterpret_cast<uint32_t*>(workspace);
  a.exponents = reinterpret_cast<int32_t*>(workspace + packed_bytes_);
  a.wide = reinterpret_cast<uint32_t*>(workspace + packed_bytes_ + 16 * ceil_div(4 * int64_t{a.groups} * a.rows, 16));
  a.y.data = result;
  return a;
}

// ---------------------------------------------------------------- gradients of weights

std::optional<WeightGradientPlan> WeightGradientPlan::of(const LibraryCall& call,
                                                         const std::vector<const Tensor*>& operands,
                                                         const Tensor& result, ConvolutionDevice device) {
  // Rows are the weight's first dimension: channels of what is spread over the taps.
  const Tensor &left = *operands[call.transposed ? 1 : 0], &right = *operands[call.transposed ? 0 : 1];
  if (!is_served(left.dtype) || right.dtype != left.dtype || result.dtype != left.dtype || left.rank != right.rank ||
      result.rank != left.rank)
    return std::nullopt;
  if (!fits(left) || !fits(right) || left.elements() == 0 || right.elements() == 0 || result.elements() == 0)
    return std::nullopt;
  WeightGradientPlan plan;
  fw::ConvWeightArgs& a = plan.args_;
  a.groups = u32_of(call.groups);
  a.rows = u32_of(result.sizes[0] / call.groups);
  a.channels = u32_of(result.sizes[1]);
  if (left.sizes[1] != int64_t{a.rows} * call.groups || right.sizes[1] != int64_t{a.channels} * call.groups)
    return std::nullopt;
  a.a = images_of(left);
  a.b = images_of(right);
  a.row_stride = result.strides[0];
  a.channel_stride = result.strides[1];
  a.group_stride = result.strides[0] * a.rows;
  a.batches = u32_of(left.sizes[0]);
  a.a_vectors = reads_vectors(left, a.rows);
  a.b_vectors = reads_vectors(right, a.channels);
  if (!set_axes(a.axes, call, right, result, left)) return std::nullopt;
  a.taps = u32_of(most_taps(a.axes));
  if (!plan.choose(device, size_of(left.dtype))) return std::nullopt;
  if (!fits(left, a.batch_tile) || !fits(right, a.batch_tile)) return std::nullopt;
  return plan;
}

bool WeightGradientPlan::choose(ConvolutionDevice device, int64_t element_bytes) {
  fw::ConvWeightArgs& a = args_;
  const int64_t units = ceil_div(a.channels, fw::conv_unit) * a.taps, width = units * fw::conv_unit;
  const int64_t most_shared = std::min<int64_t>(wanted_shared_bytes, device.shared_bytes);
  double least = std::numeric_limits<double>::infinity();
  for (size_t shape = 0; shape < fw::conv_weight_shape_count; ++shape) {
    if (device.shape >= 0 && static_cast<size_t>(device.shape) != shape) continue;
    const fw::ConvShape& s = fw::conv_weight_shapes[shape];
    const int64_t tile_rows = fw::conv_tile_rows(s), row_tiles = ceil_div(a.rows, tile_rows);
    const int64_t tile_units = fw::conv_weight_units(s), unit_tiles = ceil_div(units, tile_units);
    int64_t planes = 0;
    for (int64_t first = 0; first < units; first += tile_units)
      planes = std::max(planes, (std::min(first + tile_units, units) - 1) / a.taps + 1 - first / a.taps);
    for_tiles(a.axes, a.batches, 256, [&](const Tile& tile) {
      fw::ConvWeightArgs with = a;
      with.positions = u32_of(tile.positions);
      with.points = u32_of(ceil_div(tile.results(), 16) * 16);
      with.planes = u32_of(planes);
      const fw::ConvWeightShared shared = fw::conv_weight_shared(with, s);
      if (shared.bytes > most_shared) return;
      const double together = static_cast<double>(row_tiles * unit_tiles * a.groups);
      const double products = with.points / 16.0 * static_cast<double>(tile_rows / 16 * tile_units);
      const double staged = static_cast<double>(with.points * tile_rows / 8 + tile.positions * planes);
      const double cycles = products * mma_cycles + staged * unit_cycles + 800;
      // Two blocks for each processor, where tiles and memory for the parts suffice.
      const int64_t part = 4 * int64_t{a.groups} * a.rows * width;
      int64_t splits =
          std::min<int64_t>(tile.tiles, std::max<int64_t>(1, 2 * device.processors / static_cast<int64_t>(together)));
      splits = std::max<int64_t>(1, std::min(splits, most_partial_bytes / part));
      const double rounds = static_cast<double>(ceil_div(tile.tiles, splits));
      double time = waves(together * static_cast<double>(splits), rounds * cycles + block_cycles, device);
      time += static_cast<double>(2 * splits * part) / bytes_in_a_microsecond;
      if (time >= least) return;
      least = time;
      shape_ = shape;
      a.positions = with.positions;
      a.points = with.points;
      a.planes = with.planes;
      a.row_tiles = u32_of(row_tiles);
      a.unit_tiles = u32_of(unit_tiles);
      a.splits = u32_of(splits);
      a.batch_tile = u32_of(tile.batches);
      a.batch_tiles = u32_of(ceil_div(a.batches, tile.batches));
      set_tile(a.axes, tile);
      blocks_ = u32_of(static_cast<int64_t>(together) * splits);
      shared_bytes_ = shared.bytes;
      workspace_ = splits * part;
    });
  }
  if (least == std::numeric_limits<double>::infinity()) return false;
  sum_blocks_ = u32_of(ceil_div(int64_t{a.groups} * a.rows * a.channels * a.taps, fw::conv_sum_threads));
  double numbers = static_cast<double>(a.batches) * a.groups * a.channels;
  for (const fw::ConvAxis& axis : a.axes) numbers *= axis.size;
  microseconds_ =
      std::max(least, numbers * static_cast<double>(element_bytes) / bytes_in_a_microsecond) + 2 * launch_microseconds;
  return true;
}

fw::ConvWeightArgs WeightGradientPlan::arguments(char* workspace, void* result) const {
  fw::ConvWeightArgs a = args_;
  a.partial = reinterpret_cast<float*>(workspace);
  a.dw = result;
  return a;
}

}  // namespace fusewright
