// The result of a convolution on Hopper (sm_90a), for 33 rows and more:
//
//   x --halves--> ring of stages --wgmma--> sums in registers --scale, bias--> y
//   w --packed, bulk copies--^
//
// Two producer warpgroups stage a box of x for each chunk of channels, and ask for the chunk's weights. Two consumer
// warpgroups multiply 64 rows by blocks of 64 results. An instruction reads 8 lines of 8 neighbours: a tap is another
// start address. Blocks of threads run tiles one after the other, so that producers are ahead of consumers.
//
// Needs result.h and device/hopper.h in front; includes nothing.
#ifndef FW_KERNELS_CONVOLVE_RESULT_HOPPER_H
#define FW_KERNELS_CONVOLVE_RESULT_HOPPER_H

#if FW_SM90
namespace fw {
namespace hopper_convolution {

FW_WGMMA(64)

constexpr u32 producer_barrier = 1, first_consumer_barrier = 2;
constexpr u32 sums_of_block = wgmma_accumulators(conv_hopper_block);
// Where a float32 with a scale of f16 could overflow in TF32.
constexpr i32 largest_power = 100;

struct Ring {
  u64 *full, *empty;
  char* stages;
  u32 stage_bytes, count, stage = 0, parity = 0, uses = 0;  // stages used before, by this block

  FW_FN void next() {
    ++uses;
    if (++stage == count) {
      stage = 0;
      parity ^= 1;
    }
  }
  FW_FN char* data() const { return stages + stage * stage_bytes; }
};

// The place of a column in the tile: blocks of 8 lines of 8 neighbours.
struct alignas(8) Column {
  u16 n, z, y, x;
};
FW_FN Column column_at(const ConvArgs& a, u32 column) {
  const u32 line = column / 8 % 8, within = column % 8;
  u32 block = column / conv_hopper_block;
  const auto next = [&](u32 tile, u32 unit) {
    const u32 count = tile / unit, part = block % count;
    block /= count;
    return part * unit;
  };
  Column at;
  at.x = u16(next(a.axes[2].tile, a.lines == 2 ? 64 : 8) + within + (a.lines == 2 ? line * 8 : 0));
  at.y = u16(next(a.axes[1].tile, a.lines == 1 ? 8 : 1) + (a.lines == 1 ? line : 0));
  at.z = u16(next(a.axes[0].tile, a.lines == 0 ? 8 : 1) + (a.lines == 0 ? line : 0));
  at.n = u16(block * (a.lines == 3 ? 8 : 1) + (a.lines == 3 ? line : 0));
  return at;
}
// From one line of an instruction to the next, in bytes of a plane.
FW_FN u32 line_stride(const ConvArgs& a, const ConvTile& t) {
  const u32 positions = a.lines == 2   ? 8
                        : a.lines == 1 ? a.axes[1].step * t.width
                        : a.lines == 0 ? a.axes[0].step * t.extent[1] * t.width
                                       : t.extent[0] * t.extent[1] * t.width;
  return positions * conv_unit_bytes;
}

template <class T>
FW_FN ConvOperand<T> operand_of(const ConvArgs& a, const ConvTile& t, const i32* places) {
  ConvOperand<T> x;
  x.data =
      static_cast<const T*>(a.x.data) + t.batch * a.x.batch_stride + i64(t.group) * a.channels * a.x.channel_stride;
  x.places = places;
  x.positions = conv_positions(t);
  x.plane_positions = a.positions;
  x.channels = a.channels;
  x.channel_stride = a.x.channel_stride;
  x.vectors = a.vectors;
  return x;
}

// A chunk of a tile, among those that a block stages one after the other.
struct Chunk {
  ConvTile t;
  u32 tile, number, table;  // `table`: of the places of the tile, 0 or 1

  // Moves to the first chunk of this tile, or of the next that has products. Returns whether there is one.
  FW_FN bool seek(const ConvArgs& a, ConvHopperShape shape) {
    number = 0;
    for (; tile < a.tiles; tile += block_count())
      if (find_tile(a, tile, conv_hopper_tile_rows(shape), t) && t.all_taps != 0) return true;
    return false;
  }
};

template <class T>
FW_FN void produce(const ConvArgs& a, ConvHopperShape shape, const ConvHopperShared& s, Ring ring) {
  constexpr bool copies = same<T, float>::value;  // the next chunk is copied while this one is converted
  char* const shared = shared_memory();
  u32* const exchange = reinterpret_cast<u32*>(shared + s.exchange);
  u32* const wide_at = reinterpret_cast<u32*>(shared + s.wide);
  i32* const exponents = reinterpret_cast<i32*>(shared + s.exponents);
  constexpr ConvGroup<conv_hopper_producers> team{producer_barrier};
  const auto table = [&](u32 number) {
    return reinterpret_cast<i32*>(shared + s.places + number * conv_aligned(4 * a.positions));
  };
  const auto fill_table = [&](const Chunk& c) {
    find_places(team, a.axes, c.t, a.x.batch_stride, table(c.table));
    team.wait();
  };
  const auto raw = [&](u32 use) { return shared + s.raw + use % 2 * conv_raw_bytes(a); };
  const auto copy = [&](const Chunk& c, u32 use) {
    if constexpr (copies) {
      operand_of<T>(a, c.t, table(c.table)).copy(team, c.number * a.planes * conv_unit, a.planes, raw(use));
      copy_async_commit();
    }
  };

  Chunk now;
  now.tile = block_index();
  now.table = 0;
  bool more = now.seek(a, shape);
  if (!more) return;
  fill_table(now);
  copy(now, 0);
  ring.parity = 1;   // the ring begins empty
  i32 exponent = 0;  // of the tile
  bool known = false;
  while (more) {
    Chunk next = now;
    if (++next.number == a.chunks) {
      next.tile += block_count();
      more = next.seek(a, shape);
      next.table ^= 1;
      if (more) fill_table(next);
    }
    if (more)
      copy(next, ring.uses + 1);
    else
      copy_async_commit();

    const ConvTile& t = now.t;
    const u32 steps = conv_chunk_units(a, t.all_taps) / conv_step_units, bytes = steps * conv_hopper_step_bytes;
    const u64 row_block = u64(t.phase_number * a.groups + t.group) * a.row_blocks + t.row / conv_hopper_rows;
    mbarrier_wait(&ring.empty[ring.stage], ring.parity);
    if (team.thread() == 0) {
      mbarrier_expect(&ring.full[ring.stage], shape.row_groups * bytes);
      for (u32 g = 0; g < shape.row_groups; ++g)
        copy_bulk(ring.data() + g * bytes,
                  reinterpret_cast<const char*>(a.packed) +
                      ((row_block + g) * conv_block_steps(a) + u64(now.number) * steps) * conv_hopper_step_bytes,
                  bytes, &ring.full[ring.stage]);
    }
    ConvOperand<T> x = operand_of<T>(a, t, table(now.table));
    x.stage = ring.data() + s.stage_weights;
    const u32 first_channel = now.number * a.planes * conv_unit;
    if constexpr (copies) {
      x.exponent = now.number == 0 ? 0 : exponent;
      x.known = now.number != 0 && known;
      copy_async_wait<1>();
      const bool wide = x.put_copied(team, first_channel, a.planes, raw(ring.uses), exchange);
      exponent = x.exponent;
      known = x.known;
      if (ballot(wide) != 0 && lane_index() == 0)
        wide_at[ring.stage * conv_producer_warps + team.warp()] = ring.uses + 1;
      if (team.thread() == 0) exponents[ring.stage] = exponent;
    } else {
      x.template put<4>(team, first_channel, a.planes, exchange);
    }
    fence_async();
    mbarrier_arrive(&ring.full[ring.stage]);
    ring.next();
    now = next;
  }
}

// The sums of a consumer: blocks of 64 x 64, of which a warp has 16 rows.
template <u32 blocks>
using Sums = float[blocks][sums_of_block];

// Adds the products of a stage that halves cannot carry, in TF32, from global memory.
template <u32 blocks>
FW_FN void add_wide(const ConvArgs& a, const ConvTile& t, const ConvOperand<float>& x, i32 exponent, u32 chunk,
                    u32 first_row, const Column* columns, Sums<blocks>& sums) {
  const u32 lane = lane_index();
  const float scale = conv_power(exponent);
  const float* const weight = static_cast<const float*>(a.w.data) + t.group * a.w.group_stride;
  for (u32 u = 0; u < t.all_taps * a.planes; ++u) {
    const u32 tap = u / a.planes, plane = u % a.planes;
    const u32 channel = (chunk * a.planes + plane) * conv_unit + lane % 4, offset = conv_tap_offset(a.axes, t, tap);
    const i64 weight_offset = conv_weight_offset(a.axes, t, tap);
    u32 rows[4];
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
      const u32 row = first_row + warp_index() % 4 * 16 + i % 2 * 8 + lane / 4, at = channel + i / 2 * 4;
      float w = 0;
      if (row < a.rows && at < a.channels)
        w = weight[row * a.w.row_stride + at * a.w.channel_stride + weight_offset] *
            conv_power(a.exponents[t.group * a.rows + row]);
      rows[i] = to_tf32(w).bits;
    }
#pragma unroll
    for (u32 b = 0; b < blocks; ++b)
#pragma unroll
      for (u32 j = 0; j < 8; ++j) {
        const Column at = columns[b * conv_hopper_block + j * 8 + lane / 4];
        const u32 position = (conv_from(a.axes, t, at.n, at.z, at.y, at.x) + offset) / conv_unit_bytes;
        u32 numbers[2];
#pragma unroll
        for (u32 i = 0; i < 2; ++i)
          numbers[i] = at.n < t.batches ? to_tf32(x.number(position, channel + 4 * i) * scale).bits : 0;
        float four[4];
#pragma unroll
        for (u32 i = 0; i < 4; ++i) four[i] = sums[b][4 * j + i];
        mma<tf32>(four, rows, numbers);
#pragma unroll
        for (u32 i = 0; i < 4; ++i) sums[b][4 * j + i] = four[i];
      }
  }
}

template <class T, u32 number>
FW_FN void consume(const ConvArgs& a, const ConvHopperShared& s, Ring ring) {
  constexpr ConvHopperShape shape = conv_hopper_shapes[number];
  constexpr u32 blocks = shape.blocks;
  using Staged = typename ConvStaged<T>::type;
  char* const shared = shared_memory();
  const u32 consumer = warpgroup_index() - conv_hopper_producers / warpgroup_threads, lane = lane_index();
  const ConvGroup<warpgroup_threads> team{first_consumer_barrier + consumer};
  i32* const places = reinterpret_cast<i32*>(shared + s.consumer_places + consumer * conv_aligned(4 * a.positions));
  i32* const to = reinterpret_cast<i32*>(shared + s.to) + consumer * blocks * conv_hopper_block;
  Column* const columns = reinterpret_cast<Column*>(shared + s.columns) + consumer * blocks * conv_hopper_block;
  u32* const units = reinterpret_cast<u32*>(shared + s.units + consumer * conv_aligned(4 * a.units));
  u32* const exchange = reinterpret_cast<u32*>(shared + s.exchange) + conv_producer_warps + 4 * consumer;
  const u32* const wide_at = reinterpret_cast<u32*>(shared + s.wide);
  const i32* const exponents = reinterpret_cast<i32*>(shared + s.exponents);
  const u32 row_group = shape.row_groups == 2 ? consumer : 0;
  const u32 first_column = shape.row_groups == 2 ? 0 : consumer * blocks * conv_hopper_block;
  const auto release = [](const Ring& at) {
    if (lane_index() == 0) mbarrier_arrive(&at.empty[at.stage]);
  };

  for (u32 c = team.thread(); c < blocks * conv_hopper_block; c += team.threads)
    columns[c] = column_at(a, first_column + c);
  u32 last_phase = 0xffffffffu;
  for (u32 tile = block_index(); tile < a.tiles; tile += block_count()) {
    ConvTile t;
    if (!find_tile(a, tile, conv_hopper_tile_rows(shape), t)) continue;
    const u32 first_row = t.row + row_group * conv_hopper_rows;
    const u32 steps = conv_chunk_units(a, t.all_taps) / conv_step_units;
    team.wait();  // nobody reads tables of the last tile
    // For each step: where its first unit begins, and how far from there the second one, as a descriptor has them.
    if (t.phase_number != last_phase)
      for (u32 step = team.thread(); step < steps; step += team.threads) {
        u32 at[conv_step_units];
#pragma unroll
        for (u32 i = 0; i < conv_step_units; ++i) {
          // The last unit may have no tap: its weights are zeros, and what it reads is finite.
          const u32 u = step * conv_step_units + i, tap = u / a.planes < t.all_taps ? u / a.planes : t.all_taps - 1;
          at[i] = u % a.planes * a.positions * conv_unit_bytes + conv_tap_offset(a.axes, t, tap);
        }
        units[step] = (at[0] | (at[1] - at[0]) << leading_shift) >> 4;
      }
    last_phase = t.phase_number;
    for (u32 c = team.thread(); c < blocks * conv_hopper_block; c += team.threads) {
      const Column at = columns[c];
      const bool valid = at.n < t.batches && at.z < t.valid[0] && at.y < t.valid[1] && at.x < t.valid[2];
      to[c] = valid ? conv_to(a, t, at.n, at.z, at.y, at.x) : -1;
    }
    team.wait();

    u32 starts[blocks];
#pragma unroll
    for (u32 b = 0; b < blocks; ++b) {
      const Column at = columns[b * conv_hopper_block];
      starts[b] = at.n < a.batch_tile && t.all_taps > 0 ? conv_from(a.axes, t, at.n, at.z, at.y, at.x) : 0;
    }
    const u32 stride = line_stride(a, t);
    bool wide_rows = false;
    if constexpr (same<T, float>::value) {
#pragma unroll
      for (u32 i = 0; i < conv_hopper_rows / warp_size; ++i) {
        const u32 row = first_row + i * warp_size + lane;
        wide_rows = wide_rows || (row < a.rows && a.wide[t.group * a.rows + row] != 0);
      }
      wide_rows = ballot(wide_rows) != 0;
    }

    Sums<blocks> sums;
#pragma unroll
    for (u32 b = 0; b < blocks; ++b)
#pragma unroll
      for (u32 i = 0; i < sums_of_block; ++i) sums[b][i] = 0;
    const auto rescale = [&](i32 power) {
#pragma unroll
      for (u32 b = 0; b < blocks; ++b)
#pragma unroll
        for (u32 i = 0; i < sums_of_block; ++i) sums[b][i] = conv_scaled(sums[b][i], power);
    };

    i32 exponent = 0;  // of the sums
    bool has_places = false;
    for (u32 chunk = 0; chunk < a.chunks && steps > 0; ++chunk) {
      mbarrier_wait(&ring.full[ring.stage], ring.parity);
      bool wide = false;
      if constexpr (same<T, float>::value) {
        wide = wide_rows;
#pragma unroll
        for (u32 w = 0; w < conv_producer_warps; ++w)
          wide = wide || wide_at[ring.stage * conv_producer_warps + w] == ring.uses + 1;
        const i32 of_stage = exponents[ring.stage];
        if (chunk == 0) exponent = of_stage;
        // Sums are scaled down only: scaled up they could overflow.
        // Votes tell the compiler that all lanes go the same way: else it would wait for each product.
        wide = ballot(wide || of_stage > exponent) != 0;
        if (ballot(!wide && of_stage < exponent) != 0) {
          rescale(of_stage - exponent);
          exponent = of_stage;
        }
      }
      if (!wide) {
        const u64 rows = describe(ring.data() + row_group * steps * conv_hopper_step_bytes,
                                  conv_hopper_rows * conv_unit_bytes, 8 * conv_unit_bytes);
        const u64 box = describe(ring.data() + s.stage_weights, 0, stride);
        wgmma_fence();
#pragma unroll 1
        for (u32 step = 0; step < steps; ++step) {
          const u64 numbers = box + units[step];
#pragma unroll
          for (u32 b = 0; b < blocks; ++b)
            wgmma<Staged>(sums[b], advance(rows, step * conv_hopper_step_bytes), advance(numbers, starts[b]), true);
        }
        wgmma_commit();
        wgmma_wait<0>();
#pragma unroll
        for (u32 b = 0; b < blocks; ++b) hold(sums[b]);
        release(ring);
        ring.next();
        continue;
      }
      if constexpr (same<T, float>::value) {
        if (!has_places) find_places(team, a.axes, t, a.x.batch_stride, places);
        has_places = true;
        team.wait();
        const ConvOperand<T> x = operand_of<T>(a, t, places);
        const u32 most = x.largest(team, chunk * a.planes * conv_unit, a.planes, exchange);
        team.wait();  // before the next exchange
        if (i32(most >> 23) - 127 + exponent > largest_power) {
          const i32 lower = conv_exponent(most, conv_sample_power);
          rescale(lower - exponent);
          exponent = lower;
        }
        add_wide<blocks>(a, t, x, exponent, chunk, first_row, columns, sums);
        release(ring);
        ring.next();
      }
    }

    float bias[2];
    float scale[2][2];  // in two parts: their product may be beyond a float
#pragma unroll
    for (u32 h = 0; h < 2; ++h) {
      const u32 row = first_row + warp_index() % 4 * 16 + h * 8 + lane / 4, of_all = t.group * a.rows + row;
      const bool inside = row < a.rows;
      bias[h] = inside && a.bias != nullptr ? convert<float>(static_cast<const T*>(a.bias)[of_all]) : 0;
      const i32 power = same<T, float>::value && inside ? -(exponent + a.exponents[of_all]) : 0;
      scale[h][0] = conv_power(power / 2);
      scale[h][1] = conv_power(power - power / 2);
    }
    T* const result =
        static_cast<T*>(a.y.data) + t.batch * a.y.batch_stride + i64(t.group) * a.rows * a.y.channel_stride;
#pragma unroll
    for (u32 b = 0; b < blocks; ++b)
#pragma unroll
      for (u32 j = 0; j < 8; ++j) {
        const u32 column = b * conv_hopper_block + j * 8 + lane % 4 * 2;
        const i32 place[2] = {to[column], to[column + 1]};
#pragma unroll
        for (u32 h = 0; h < 2; ++h) {
          const u32 row = first_row + warp_index() % 4 * 16 + h * 8 + lane / 4;
          if (row >= a.rows) continue;
          T values[2];
#pragma unroll
          for (u32 i = 0; i < 2; ++i) {
            const float sum = sums[b][4 * j + 2 * h + i];
            if constexpr (same<T, float>::value)
              values[i] = fmaf(sum * scale[h][0], scale[h][1], bias[h]);
            else
              values[i] = convert<T>(sum + bias[h]);
          }
          // What all threads share is added to the address apart.
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
}

}  // namespace hopper_convolution

template <class T, u32 number>
FW_FN void convolve_hopper(const ConvArgs& a) {
  constexpr ConvHopperShape shape = conv_hopper_shapes[number];
  follow_last_launch();
  const ConvHopperShared s = conv_hopper_shared(a, shape, same<T, float>::value);
  char* const shared = shared_memory();
  hopper_convolution::Ring ring;
  ring.full = reinterpret_cast<u64*>(shared + s.full);
  ring.empty = reinterpret_cast<u64*>(shared + s.empty);
  ring.stages = shared + s.ring;
  ring.stage_bytes = s.stage_bytes;
  ring.count = a.stages;
  if (thread_index() < conv_producer_warps * conv_most_stages)
    reinterpret_cast<u32*>(shared + s.wide)[thread_index()] = 0;
  if (thread_index() == 0) {
    for (u32 i = 0; i < a.stages; ++i) {
      mbarrier_init(&ring.full[i], conv_hopper_producers);
      mbarrier_init(&ring.empty[i], conv_hopper_consumers * warpgroup_threads / warp_size);
    }
    mbarrier_fence();
  }
  barrier();
  if (thread_index() < conv_hopper_producers) {
    release_registers<72>();
    hopper_convolution::produce<T>(a, shape, s, ring);
  } else {
    request_registers<184>();
    hopper_convolution::consume<T, number>(a, s, ring);
  }
}

}  // namespace fw
#endif  // FW_SM90

#endif  // FW_KERNELS_CONVOLVE_RESULT_HOPPER_H
