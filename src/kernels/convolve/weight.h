// The gradient of a convolution's weight: a product along positions.
//
//   a --halves, 8 channels a unit--> stage --ldmatrix, transposed--> mma --> sums in registers --> partial sums
//   b --the same, with the box of all taps--^                                            --conv_weight_sum--> dw
//
// A block has 16 to 64 rows (channels of a) and some units (a tap and 8 channels of b). It adds up every `splits`-th
// tile of positions. conv_weight_sum adds the parts in a fixed order.
//
// Needs pack.h in front; includes nothing.
#ifndef FW_KERNELS_CONVOLVE_WEIGHT_H
#define FW_KERNELS_CONVOLVE_WEIGHT_H

namespace fw {

FW_FN u32 conv_weight_columns(const ConvWeightArgs& a) {  // of the partial sums
  return (a.channels + conv_unit - 1) / conv_unit * a.taps * conv_unit;
}

template <class T, u32 number>
FW_FN void convolve_weight(const ConvWeightArgs& a) {
  constexpr ConvShape shape = conv_weight_shapes[number];
  constexpr u32 threads = conv_threads(shape), tile_rows = conv_tile_rows(shape), tile_units = conv_weight_units(shape);
  constexpr u32 fragments = shape.fragments, columns = shape.columns;
  static_assert(shape.row_warps == 1, "all warps have the same rows");
  using Staged = typename ConvStaged<T>::type;
  constexpr ConvBlock<threads> team;
  follow_last_launch();

  const ConvWeightShared places = conv_weight_shared(a, shape);
  char* const shared = shared_memory();
  i32* const a_places = reinterpret_cast<i32*>(shared + places.a_places);
  i32* const b_places = reinterpret_cast<i32*>(shared + places.b_places);
  u32* const from = reinterpret_cast<u32*>(shared + places.from);
  u32* const units = reinterpret_cast<u32*>(shared + places.units);
  u32* const exchange = reinterpret_cast<u32*>(shared + places.exchange);
  char* const zero = shared + places.zero;

  u32 block = block_index();
  const auto next = [&](u32 count) {
    const u32 part = block % count;
    block /= count;
    return part;
  };
  const u32 first_row = next(a.row_tiles) * tile_rows, first_unit = next(a.unit_tiles) * tile_units;
  const u32 group = next(a.groups), split = block;
  const u32 all_units = conv_weight_columns(a) / conv_unit;
  const u32 last_unit = first_unit + tile_units < all_units ? first_unit + tile_units : all_units;
  const u32 first_plane = first_unit / a.taps, b_planes = (last_unit - 1) / a.taps + 1 - first_plane;

  ConvOperand<T> left, right;
  left.places = a_places;
  left.stage = shared + places.a_stage;
  left.positions = left.plane_positions = a.points;
  left.channels = a.rows;
  left.channel_stride = a.a.channel_stride;
  left.vectors = a.a_vectors;
  right.places = b_places;
  right.stage = shared + places.b_stage;
  right.plane_positions = a.positions;
  right.channels = a.channels;
  right.channel_stride = a.b.channel_stride;
  right.vectors = a.b_vectors;

  const u32 thread = thread_index(), lane = lane_index(), first_column = warp_index() * columns;
  if (thread < 4) reinterpret_cast<u32*>(zero)[thread] = 0;
  float sums[fragments][columns][4] = {};

  const u32 tiles = a.axes[0].tiles * a.axes[1].tiles * a.axes[2].tiles * a.batch_tiles;
  for (u32 tile = split; tile < tiles; tile += a.splits) {
    ConvTile t{};
    t.all_taps = a.taps;
    u32 rest = tile;
#pragma unroll
    for (u32 i = 0; i < conv_axes; ++i) {
      const u32 d = conv_axes - 1 - i;
      const ConvAxis& axis = a.axes[d];
      const ConvPhase& phase = axis.phases[0];
      t.first[d] = rest % axis.tiles * axis.tile;
      rest /= axis.tiles;
      const u32 left_over = phase.count - t.first[d];
      t.valid[d] = left_over < axis.tile ? left_over : axis.tile;
      t.taps[d] = phase.taps;
      t.origin[d] = i32(t.first[d] * axis.step) + phase.first_offset;
      t.extent[d] = conv_extent(axis, phase);
    }
    t.batch = rest * a.batch_tile;
    t.batches = a.batches - t.batch < a.batch_tile ? a.batches - t.batch : a.batch_tile;
    t.spread = (t.extent[2] + a.axes[2].step - 1) / a.axes[2].step;
    t.width = t.spread * a.axes[2].step;

    if (tile != split) barrier();
    find_places(team, a.axes, t, a.b.batch_stride, b_places);
    for (u32 p = thread; p < a.points; p += threads) {
      const u32 ix = p % a.axes[2].tile, line = p / a.axes[2].tile, iy = line % a.axes[1].tile;
      const u32 plane = line / a.axes[1].tile, iz = plane % a.axes[0].tile, n = plane / a.axes[0].tile;
      const bool valid = n < t.batches && iz < t.valid[0] && iy < t.valid[1] && ix < t.valid[2];
      const u32 at[conv_axes] = {iz, iy, ix};
      i32 place = i32(n * a.a.batch_stride);
#pragma unroll
      for (u32 d = 0; d < conv_axes; ++d) place += i32(t.first[d] + at[d]) * a.axes[d].result_stride;
      a_places[p] = valid ? place : -1;
      from[p] = valid ? conv_from(a.axes, t, n, iz, iy, ix) : conv_no_unit;
    }
    if (tile == split)
      for (u32 u = thread; u < tile_units; u += threads) {
        const u32 unit = first_unit + u;
        units[u] = unit < all_units ? (unit / a.taps - first_plane) * a.positions * conv_unit_bytes +
                                          conv_tap_offset(a.axes, t, unit % a.taps)
                                    : conv_no_unit;
      }
    barrier();

    left.data = static_cast<const T*>(a.a.data) + t.batch * a.a.batch_stride + i64(group) * a.rows * a.a.channel_stride;
    right.data =
        static_cast<const T*>(a.b.data) + t.batch * a.b.batch_stride + i64(group) * a.channels * a.b.channel_stride;
    right.positions = conv_positions(t);
    const i32 before = left.exponent + right.exponent;
    const u32 b_channel = first_plane * conv_unit;
    bool wide = left.template put<2>(team, first_row, tile_rows / conv_unit, exchange);
    wide = right.template put<2>(team, b_channel, b_planes, exchange + conv_most_warps) || wide;
    wide = conv_any(team, wide, exchange + 2 * conv_most_warps);
    if constexpr (!same<T, float>::value) wide = false;
    i32 change = left.exponent + right.exponent - before;
    if constexpr (same<T, float>::value)
      if (wide) {
        change += left.widen(team, first_row, tile_rows / conv_unit, exchange);
        change += right.widen(team, b_channel, b_planes, exchange + conv_most_warps);
      }
    if (change != 0 && tile != split) {
#pragma unroll
      for (u32 f = 0; f < fragments; ++f)
#pragma unroll
        for (u32 j = 0; j < columns; ++j)
#pragma unroll
          for (u32 i = 0; i < 4; ++i) sums[f][j][i] = conv_scaled(sums[f][j][i], change);
    }

    if (!wide) {
      for (u32 point = 0; point < a.points; point += 16) {
        u32 rows[fragments][4];
#pragma unroll
        for (u32 f = 0; f < fragments; ++f) {
          // Matrices: rows 0 to 7 and 8 to 15 of the first 8 points, then of the next.
          const u32 plane = f * 2 + lane / 8 % 2, at = point + lane / 16 * 8 + lane % 8;
          load_matrices<4, true>(rows[f], left.unit_at(plane, at));
        }
        const u32 start = from[point + lane % 16];
        u32 numbers[columns][2];
#pragma unroll
        for (u32 j = 0; j < columns / 2; ++j) {
          const u32 unit = units[first_column + 2 * j + lane / 16];
          const bool none = start == conv_no_unit || unit == conv_no_unit;
          u32 four[4];
          load_matrices<4, true>(four, none ? zero : right.stage + start + unit);
          numbers[2 * j][0] = four[0];
          numbers[2 * j][1] = four[1];
          numbers[2 * j + 1][0] = four[2];
          numbers[2 * j + 1][1] = four[3];
        }
#pragma unroll
        for (u32 f = 0; f < fragments; ++f)
#pragma unroll
          for (u32 j = 0; j < columns; ++j) mma<Staged>(sums[f][j], rows[f], numbers[j]);
      }
      continue;
    }
    if constexpr (same<T, float>::value) {
      const float a_scale = conv_power(left.exponent), b_scale = conv_power(right.exponent);
      for (u32 point = 0; point < a.points; point += 8) {
        u32 rows[fragments][4];
#pragma unroll
        for (u32 f = 0; f < fragments; ++f)
#pragma unroll
          for (u32 i = 0; i < 4; ++i) {
            const u32 row = first_row + f * conv_rows + i % 2 * 8 + lane / 4;
            rows[f][i] = to_tf32(left.number(point + lane % 4 + i / 2 * 4, row) * a_scale).bits;
          }
#pragma unroll
        for (u32 j = 0; j < columns; ++j) {
          const u32 number_of_unit = first_unit + first_column + j, unit = units[first_column + j];
          const u32 tap_offset = unit == conv_no_unit ? 0 : conv_tap_offset(a.axes, t, number_of_unit % a.taps);
          u32 numbers[2];
#pragma unroll
          for (u32 i = 0; i < 2; ++i) {
            const u32 start = from[point + lane % 4 + i * 4];
            float value = 0;
            if (start != conv_no_unit && unit != conv_no_unit)
              value =
                  right.number((start + tap_offset) / conv_unit_bytes, number_of_unit / a.taps * conv_unit + lane / 4);
            numbers[i] = to_tf32(value * b_scale).bits;
          }
#pragma unroll
          for (u32 f = 0; f < fragments; ++f) mma<tf32>(sums[f][j], rows[f], numbers);
        }
      }
    }
  }

  const u32 width = conv_weight_columns(a);
  float* const to = a.partial + (u64(split) * a.groups + group) * a.rows * width;
  const i32 power = same<T, float>::value ? -(left.exponent + right.exponent) : 0;
#pragma unroll
  for (u32 f = 0; f < fragments; ++f)
#pragma unroll
    for (u32 h = 0; h < 2; ++h) {
      const u32 row = first_row + f * conv_rows + h * 8 + lane / 4;
      if (row >= a.rows) continue;
#pragma unroll
      for (u32 j = 0; j < columns; ++j) {
        const u32 unit = first_unit + first_column + j;
        if (unit >= all_units) continue;
        const float pair[2] = {conv_scaled(sums[f][j][2 * h], power), conv_scaled(sums[f][j][2 * h + 1], power)};
        store_vector<2>(to + u64(row) * width + unit * conv_unit + lane % 4 * 2, pair);
      }
    }
}

// A thread for each number of dw: channels and taps of a row follow each other as they do there.
template <class T>
FW_FN void conv_weight_sum(const ConvWeightArgs& a) {
  follow_last_launch();
  const u64 thread = u64(block_index()) * conv_sum_threads + thread_index();
  const u32 tap = u32(thread % a.taps), width = conv_weight_columns(a);
  const u64 line = thread / a.taps;
  const u32 channel = u32(line % a.channels);
  const u64 row = line / a.channels;  // of all groups
  if (row >= u64(a.groups) * a.rows) return;
  const float* part =
      a.partial + row * width + (u64(channel / conv_unit) * a.taps + tap) * conv_unit + channel % conv_unit;
  float sum = 0;
  for (u32 s = 0; s < a.splits; ++s) sum += part[u64(s) * a.groups * a.rows * width];
  T* const to =
      static_cast<T*>(a.dw) + row / a.rows * a.group_stride + row % a.rows * a.row_stride + channel * a.channel_stride;
  store(to + conv_tap_of_kernel(a.axes, tap), convert<T>(sum));
}

}  // namespace fw

#endif  // FW_KERNELS_CONVOLVE_WEIGHT_H
