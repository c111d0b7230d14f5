// The result of a convolution, and of one that is spread: transposed, or the gradient of an input.
//
//   x --halves, 8 channels a unit--> stage --ldmatrix--> mma --> sums in registers --scale, bias--> y
//   w --pack--> fragments --from the L1 cache----------^
//
// A block computes a tile of results for 16 to 128 rows (channels of the result), from one staged box of the operand
// for each chunk of channels. All taps read that box. Layouts, sizes, strides, dilations and paddings are arguments.
//
// Needs stage.h in front; includes nothing.
#ifndef FW_KERNELS_CONVOLVE_RESULT_H
#define FW_KERNELS_CONVOLVE_RESULT_H

namespace fw {

struct ConvTile {
  u32 group, row, batch, batches;  // rows are the group's
  u32 phase[conv_axes], phase_number;
  u32 first[conv_axes], valid[conv_axes];  // results of the phase
  u32 taps[conv_axes], all_taps;
  i32 origin[conv_axes];                 // the position where the box begins
  u32 extent[conv_axes], spread, width;  // of the box; positions of one phase of the last axis, and of all
};

// The box of an axis. Along the last axis positions that a stride takes together lie together.
FW_FN u32 conv_extent(const ConvAxis& axis, const ConvPhase& phase) {
  return (axis.tile - 1) * axis.step + (phase.taps - 1) * u32(phase.offset_step) + 1;
}

// The tile of this number. Returns whether it has results.
FW_FN bool find_tile(const ConvArgs& a, u32 block, u32 rows_of_tile, ConvTile& t) {
  t = {};
  const auto next = [&](u32 count) {
    const u32 part = block % count;
    block /= count;
    return part;
  };
  t.row = next(a.row_tiles) * rows_of_tile;
  t.group = next(a.groups);
  t.phase_number = 0;
  t.all_taps = 1;
#pragma unroll
  for (u32 d = 0; d < conv_axes; ++d) {
    t.phase[d] = next(a.axes[d].phase_count);
    t.phase_number = t.phase_number * a.axes[d].phase_count + t.phase[d];
  }
  bool any = true;
#pragma unroll
  for (u32 i = 0; i < conv_axes; ++i) {
    const u32 d = conv_axes - 1 - i;
    const ConvAxis& axis = a.axes[d];
    const ConvPhase& phase = axis.phases[t.phase[d]];
    t.first[d] = next(axis.tiles) * axis.tile;
    any = any && t.first[d] < phase.count;
    const u32 left = phase.count - t.first[d];
    t.valid[d] = left < axis.tile ? left : axis.tile;
    t.taps[d] = phase.taps;
    t.all_taps *= phase.taps;
    t.extent[d] = 1;
    if (phase.taps == 0) continue;
    t.origin[d] = i32(t.first[d] * axis.step) + phase.first_offset;
    t.extent[d] = conv_extent(axis, phase);
  }
  t.batch = block * a.batch_tile;
  t.batches = a.batches - t.batch < a.batch_tile ? a.batches - t.batch : a.batch_tile;
  const u32 step = a.axes[conv_axes - 1].step;
  t.spread = (t.extent[conv_axes - 1] + step - 1) / step;
  t.width = t.spread * step;
  return any;
}

FW_FN u32 conv_positions(const ConvTile& t) { return t.batches * t.extent[0] * t.extent[1] * t.width; }

// Where the positions of the box are in memory.
template <class Team>
FW_FN void find_places(const Team& team, const ConvAxis* axes, const ConvTile& t, i64 batch_stride, i32* places) {
  const u32 positions = conv_positions(t), step = axes[2].step;
  // Digits of a position, counted up by the number of threads: no divisions.
  const u32 lines = Team::threads / t.width, slots = Team::threads % t.width;
  const u32 images = lines / t.extent[1], rows = lines % t.extent[1];
  u32 slot = team.thread() % t.width, y = team.thread() / t.width, z = y / t.extent[1], n = 0;
  y %= t.extent[1];
  for (u32 p = team.thread(); p < positions; p += Team::threads) {
    while (z >= t.extent[0]) {
      z -= t.extent[0];
      ++n;
    }
    u32 x = slot;
    if (step > 1) x = slot % t.spread * step + slot / t.spread;
    const u32 at[conv_axes] = {u32(t.origin[0] + i32(z)), u32(t.origin[1] + i32(y)), u32(t.origin[2] + i32(x))};
    bool inside = x < t.extent[2];
    i32 place = i32(n) * i32(batch_stride);
#pragma unroll
    for (u32 d = 0; d < conv_axes; ++d) {
      inside = inside && at[d] < axes[d].size;  // negative ones are large
      place += i32(at[d]) * axes[d].stride;
    }
    places[p] = inside ? place : -1;
    slot += slots;
    y += rows;
    z += images;
    if (slot >= t.width) {
      slot -= t.width;
      ++y;
    }
    if (y >= t.extent[1]) {
      y -= t.extent[1];
      ++z;
    }
  }
}

// The position of a result's tap with the least offsets, in bytes of a plane; and of a tap relative to that.
FW_FN u32 conv_from(const ConvAxis* axes, const ConvTile& t, u32 n, u32 z, u32 y, u32 x) {
  return (((n * t.extent[0] + z * axes[0].step) * t.extent[1] + y * axes[1].step) * t.width + x) * conv_unit_bytes;
}
FW_FN u32 conv_tap_offset(const ConvAxis* axes, const ConvTile& t, u32 tap) {
  u32 offset[conv_axes];
#pragma unroll
  for (u32 i = 0; i < conv_axes; ++i) {
    const u32 d = conv_axes - 1 - i;
    const ConvPhase& phase = axes[d].phases[t.phase[d]];
    offset[d] = tap % t.taps[d] * u32(phase.offset_step);
    tap /= t.taps[d];
  }
  const u32 step = axes[2].step;
  return ((offset[0] * t.extent[1] + offset[1]) * t.width + offset[2] % step * t.spread + offset[2] / step) *
         conv_unit_bytes;
}

// From the weight of a row's first tap to that of a tap of the phase.
FW_FN i64 conv_weight_offset(const ConvAxis* axes, const ConvTile& t, u32 tap) {
  i64 offset = 0;
#pragma unroll
  for (u32 i = 0; i < conv_axes; ++i) {
    const u32 d = conv_axes - 1 - i;
    const ConvPhase& phase = axes[d].phases[t.phase[d]];
    offset += i64(phase.first_tap + i32(tap % t.taps[d]) * phase.tap_step) * axes[d].weight_stride;
    tap /= t.taps[d];
  }
  return offset;
}

// Where a result of the tile is in memory.
FW_FN i32 conv_to(const ConvArgs& a, const ConvTile& t, u32 n, u32 z, u32 y, u32 x) {
  const u32 at[conv_axes] = {z, y, x};
  i32 place = i32(n * a.y.batch_stride);
#pragma unroll
  for (u32 d = 0; d < conv_axes; ++d)
    place += i32(t.phase[d] + (t.first[d] + at[d]) * a.axes[d].result_step) * a.axes[d].result_stride;
  return place;
}

template <class T, u32 number>
FW_FN void convolve(const ConvArgs& a) {
  constexpr ConvShape shape = conv_shapes[number];
  constexpr u32 threads = conv_threads(shape), tile_columns = conv_tile_columns(shape);
  constexpr u32 fragments = shape.fragments, columns = shape.columns;
  using Staged = typename ConvStaged<T>::type;
  constexpr ConvBlock<threads> team;
  follow_last_launch();
  ConvTile t;
  if (!find_tile(a, block_index(), conv_tile_rows(shape), t)) return;

  const ConvShared places = conv_shared(a, tile_columns);
  char* const shared = shared_memory();
  u32* const from = reinterpret_cast<u32*>(shared + places.from);
  i32* const to = reinterpret_cast<i32*>(shared + places.to);
  u32* const units = reinterpret_cast<u32*>(shared + places.units);
  u32* const exchange = reinterpret_cast<u32*>(shared + places.exchange);
  char* const zero = shared + places.zero;
  ConvOperand<T> x;
  x.data =
      static_cast<const T*>(a.x.data) + t.batch * a.x.batch_stride + i64(t.group) * a.channels * a.x.channel_stride;
  x.places = reinterpret_cast<i32*>(shared + places.places);
  x.stage = shared + places.stage;
  x.positions = t.all_taps > 0 ? conv_positions(t) : 0;
  x.plane_positions = a.positions;
  x.channels = a.channels;
  x.channel_stride = a.x.channel_stride;
  x.vectors = a.vectors;

  const u32 thread = thread_index(), lane = lane_index();
  if (thread < 4) reinterpret_cast<u32*>(zero)[thread] = 0;
  if (t.all_taps > 0) find_places(team, a.axes, t, a.x.batch_stride, const_cast<i32*>(x.places));
  for (u32 c = thread; c < tile_columns; c += threads) {
    const u32 ix = c % a.axes[2].tile, line = c / a.axes[2].tile, iy = line % a.axes[1].tile;
    const u32 plane = line / a.axes[1].tile, iz = plane % a.axes[0].tile, n = plane / a.axes[0].tile;
    const bool valid = n < t.batches && iz < t.valid[0] && iy < t.valid[1] && ix < t.valid[2];
    from[c] = valid && t.all_taps > 0 ? conv_from(a.axes, t, n, iz, iy, ix) : 0;
    to[c] = valid ? conv_to(a, t, n, iz, iy, ix) : -1;
  }
  const u32 chunk_units = conv_chunk_units(a, t.all_taps), steps = chunk_units / conv_step_units;
  for (u32 u = thread; u < chunk_units; u += threads) {
    const u32 tap = u / a.planes, plane = u % a.planes;
    units[u] =
        tap < t.all_taps ? plane * a.positions * conv_unit_bytes + conv_tap_offset(a.axes, t, tap) : conv_no_unit;
  }
  barrier();

  const u32 warp_row = warp_index() / shape.column_warps, warp_column = warp_index() % shape.column_warps;
  const u32 first_row = t.row + warp_row * fragments * conv_rows, first_column = warp_column * columns * 8;
  float sums[fragments][columns][4] = {};
  // Lanes 0 to 15 name the rows of both halves of the depth for 8 columns, lanes 16 to 31 those for the next 8.
  const u32 of_step = lane / 8 % 2;
  u32 starts[columns / 2];
#pragma unroll
  for (u32 j = 0; j < columns / 2; ++j) starts[j] = from[first_column + j * 16 + lane / 16 * 8 + lane % 8];

  const u64 block_steps = conv_block_steps(a);
  const u64 group_block = u64(t.phase_number * a.groups + t.group) * a.row_blocks;
  const u32* packed = a.packed + (group_block + first_row / conv_rows) * block_steps * conv_step_words + lane * 4;
  const auto load_rows = [&](u32(&to)[fragments][4]) {
#pragma unroll
    for (u32 f = 0; f < fragments; ++f) load_vector<4>(packed + f * block_steps * conv_step_words, read_only, to[f]);
    packed += conv_step_words;
  };
  bool wide_rows = false;
  if constexpr (same<T, float>::value)
    for (u32 row = t.row + thread; row < a.rows && row < t.row + conv_tile_rows(shape); row += threads)
      wide_rows = wide_rows || a.wide[t.group * a.rows + row] != 0;

  for (u32 chunk = 0; chunk < a.chunks && steps > 0; ++chunk) {
    if (chunk > 0) barrier();
    const u32 first_channel = chunk * a.planes * conv_unit;
    const i32 before = x.exponent;
    const bool own_wide = x.template put<2>(team, first_channel, a.planes, exchange);
    bool wide = conv_any(team, own_wide || wide_rows, exchange + conv_most_warps);
    if constexpr (!same<T, float>::value) wide = false;
    i32 change = x.exponent - before;
    if constexpr (same<T, float>::value)
      if (wide) change += x.widen(team, first_channel, a.planes, exchange);
    if (change != 0 && chunk > 0) {
#pragma unroll
      for (u32 f = 0; f < fragments; ++f)
#pragma unroll
        for (u32 j = 0; j < columns; ++j)
#pragma unroll
          for (u32 i = 0; i < 4; ++i) sums[f][j][i] = conv_scaled(sums[f][j][i], change);
    }

    if (!wide) {
      u32 next[fragments][4];
      load_rows(next);
      for (u32 step = 0; step < steps; ++step) {
        u32 rows[fragments][4];
#pragma unroll
        for (u32 f = 0; f < fragments; ++f)
#pragma unroll
          for (u32 i = 0; i < 4; ++i) rows[f][i] = next[f][i];
        if (step + 1 < steps) load_rows(next);
        const u32 unit = units[step * conv_step_units + of_step];
        u32 numbers[columns][2];
#pragma unroll
        for (u32 j = 0; j < columns / 2; ++j) {
          u32 four[4];
          load_matrices<4>(four, unit == conv_no_unit ? zero : x.stage + starts[j] + unit);
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
      packed += steps * conv_step_words;
      const float scale = conv_power(x.exponent);
      const float* const weight = static_cast<const float*>(a.w.data) + t.group * a.w.group_stride;
      for (u32 u = 0; u < t.all_taps * a.planes; ++u) {
        const u32 tap = u / a.planes, plane = u % a.planes, channel = first_channel + plane * conv_unit + lane % 4;
        const u32 offset = conv_tap_offset(a.axes, t, tap);
        const i64 weight_offset = conv_weight_offset(a.axes, t, tap);
        u32 numbers[columns][2];
#pragma unroll
        for (u32 j = 0; j < columns; ++j)
#pragma unroll
          for (u32 i = 0; i < 2; ++i) {
            const u32 position = (from[first_column + j * 8 + lane / 4] + offset) / conv_unit_bytes;
            numbers[j][i] = to_tf32(x.number(position, channel + 4 * i) * scale).bits;
          }
#pragma unroll
        for (u32 f = 0; f < fragments; ++f) {
          u32 rows[4];
#pragma unroll
          for (u32 i = 0; i < 4; ++i) {
            const u32 row = first_row + f * conv_rows + i % 2 * 8 + lane / 4, at = channel + i / 2 * 4;
            float w = 0;
            if (row < a.rows && at < a.channels)
              w = weight[row * a.w.row_stride + at * a.w.channel_stride + weight_offset] *
                  conv_power(a.exponents[t.group * a.rows + row]);
            rows[i] = to_tf32(w).bits;
          }
#pragma unroll
          for (u32 j = 0; j < columns; ++j) mma<tf32>(sums[f][j], rows, numbers[j]);
        }
      }
    }
  }

  float bias[fragments][2];
  float scale[fragments][2][2];  // in two parts: their product may be beyond a float
#pragma unroll
  for (u32 f = 0; f < fragments; ++f)
#pragma unroll
    for (u32 h = 0; h < 2; ++h) {
      const u32 row = first_row + f * conv_rows + h * 8 + lane / 4, of_all = t.group * a.rows + row;
      const bool inside = row < a.rows;
      bias[f][h] = inside && a.bias != nullptr ? convert<float>(static_cast<const T*>(a.bias)[of_all]) : 0;
      const i32 power = same<T, float>::value && inside ? -(x.exponent + a.exponents[of_all]) : 0;
      scale[f][h][0] = conv_power(power / 2);
      scale[f][h][1] = conv_power(power - power / 2);
    }
  T* const result = static_cast<T*>(a.y.data) + t.batch * a.y.batch_stride + i64(t.group) * a.rows * a.y.channel_stride;
#pragma unroll
  for (u32 j = 0; j < columns; ++j) {
    const u32 column = first_column + j * 8 + lane % 4 * 2;
    const i32 place[2] = {to[column], to[column + 1]};
#pragma unroll
    for (u32 f = 0; f < fragments; ++f)
#pragma unroll
      for (u32 h = 0; h < 2; ++h) {
        const u32 row = first_row + f * conv_rows + h * 8 + lane / 4;
        if (row >= a.rows) continue;
        T values[2];
#pragma unroll
        for (u32 i = 0; i < 2; ++i) {
          const float sum = sums[f][j][2 * h + i];
          if constexpr (same<T, float>::value)
            values[i] = fmaf(sum * scale[f][h][0], scale[f][h][1], bias[f][h]);
          else
            values[i] = convert<T>(sum + bias[f][h]);
        }
        const u32 of_row = row * u32(a.y.channel_stride);
        if (a.pairs) {
          if (place[0] >= 0) store_vector<2>(result + (of_row + u32(place[0])), values);
        } else {
#pragma unroll
          for (u32 i = 0; i < 2; ++i)
            if (place[i] >= 0) store(result + (of_row + u32(place[i])), values[i]);
        }
      }
  }
}

}  // namespace fw

#endif  // FW_KERNELS_CONVOLVE_RESULT_H
