// Packs operands of a float32 matrix product (packed.h).
//
// Needs packed.h in front; includes nothing.
#ifndef FW_KERNELS_CONTRACT_PACK_H
#define FW_KERNELS_CONTRACT_PACK_H

namespace fw {

constexpr u32 pack_warps = pack_threads / warp_size;

// ---------------------------------------------------------------- numbers of a row

FW_FN u32 larger(u32 a, u32 b) { return a > b ? a : b; }
FW_FN u32 smaller(u32 a, u32 b) { return a < b ? a : b; }

// The largest number among those of a row that a thread read: its bits without sign, and where it is first.
struct Largest {
  u32 bits = 0, depth = 0;

  FW_FN void add(float number, u32 at) {
    const u32 size = bits_of(number) & 0x7fffffffu;
    if (size > bits) {
      bits = size;
      depth = at;
    }
  }
  // The place, if the number is the largest of the row; else one behind all others.
  FW_FN u32 depth_if(u32 largest) const { return bits == largest ? depth : 0xffffffffu; }
};

// What is known of the numbers of a row that a thread packed.
struct RowLoss {
  float loss = 0, mass = 0;

  FW_FN void add(float scaled, float hi, float lo) {
    const float size = fabsf(scaled), missing = fabsf(scaled - hi - lo);
    mass += size;
    if (size < packed_exactly) loss = max_or_nan(loss, missing);
    if (!(size < float_of(0x7f800000u))) loss = float_of(0x7fc00000u);
  }
};

// `depth`: within the sample.
template <u32 count>
FW_FN void put_sample(const Packed& to, const PackedShape& shape, u64 row_block, u32 row, u32 depth,
                      const half (&magnitude)[count], const half (&zero)[count]) {
  char* const block = to.sample + (row_block * shape.sample_blocks + depth / packed_depth) * packed_bytes;
  const u32 within = depth % packed_depth;
  store_vector<count>(reinterpret_cast<half*>(block + packed_offset(row, within, false)), magnitude);
  store_vector<count>(reinterpret_cast<half*>(block + packed_offset(row, within, true)), zero);
}

// Packs `count` neighbours along the depth, which lie in one unit of 16 bytes, from `depth` on.
template <u32 count>
FW_FN void put_packed(const Packed& to, const PackedShape& shape, u64 row_block, u32 row, u32 depth,
                      const float (&scaled)[count], RowLoss& known) {
  half hi[count], lo[count], magnitude[count], zero[count];
#pragma unroll
  for (u32 i = 0; i < count; ++i) {
    hi[i] = to_half(scaled[i]);
    lo[i] = to_half(scaled[i] - to_float(hi[i]));
    magnitude[i] = {u16(hi[i].bits & 0x7fff)};
    zero[i] = {0};
    known.add(scaled[i], to_float(hi[i]), to_float(lo[i]));
  }
  const u32 block = depth / packed_depth, within = depth % packed_depth;
  const u32 high = packed_offset(row, within, false), low = packed_offset(row, within, true);
  char* const place = to.blocks + (row_block * shape.depth_blocks + block) * packed_bytes;
  store_vector<count>(reinterpret_cast<half*>(place + high), hi);
  store_vector<count>(reinterpret_cast<half*>(place + low), lo);
  const u32 unit = depth / sample_unit, sampled = unit >> shape.sample_shift;
  if (unit == sampled_unit(shape, sampled))
    put_sample<count>(to, shape, row_block, row, sampled * sample_unit + depth % sample_unit, magnitude, zero);
}

// The sample's last blocks are padded with zeros. The threads of a team share the units of a row.
FW_FN void pad_sample(const Packed& to, const PackedShape& shape, u64 row_block, u32 row, u32 thread, u32 team) {
  const half zero[sample_unit] = {};
  const u32 units = shape.sample_blocks * (packed_depth / sample_unit);
  for (u32 n = sampled_units(shape) + thread; n < units; n += team)
    put_sample<sample_unit>(to, shape, row_block, row, n * sample_unit, zero, zero);
}

// ---------------------------------------------------------------- rows that lie along the depth

// Reads `count` numbers of a row from `depth` on; zero beyond the end.
template <u32 count>
FW_FN void load_depth(const GivenOperand& from, const float* row, u32 depth, bool vectors, float (&to)[count]) {
  if (vectors && depth + count <= from.depth) {
    load_vector<count>(row + depth, plain, to);
    return;
  }
#pragma unroll
  for (u32 i = 0; i < count; ++i) to[i] = depth + i < from.depth ? row[(depth + i) * from.depth_stride] : 0.0f;
}

// A team of threads packs a row: a warp, or the block. `exchange` holds 4 numbers for each warp of the block.
template <u32 team>
FW_FN void pack_row(const GivenOperand& from, const Packed& to, const PackedShape& shape, u32 batch, u32 row,
                    bool vectors, u32* exchange) {
  constexpr u32 count = 4, held = 8;
  const u32 thread = thread_index() % team, chunks = shape.depth_blocks * (packed_depth / count);
  const bool inside = row < from.rows;
  const float* const data = from.data + batch * from.batch_stride + (inside ? row : 0) * from.row_stride;
  const auto load = [&](u32 chunk, float(&numbers)[count]) {
    if (inside && chunk < chunks) return load_depth(from, data, chunk * count, vectors, numbers);
#pragma unroll
    for (u32 i = 0; i < count; ++i) numbers[i] = 0;
  };
  Largest own;
  const auto look_at = [&](u32 chunk, const float(&numbers)[count]) {
#pragma unroll
    for (u32 i = 0; i < count; ++i) own.add(numbers[i], chunk * count + i);
  };

  float numbers[held][count];
#pragma unroll
  for (u32 i = 0; i < held; ++i) load(i * team + thread, numbers[i]);
#pragma unroll
  for (u32 i = 0; i < held; ++i) look_at(i * team + thread, numbers[i]);
  for (u32 chunk = held * team + thread; chunk < chunks; chunk += team) {
    float more[count];
    load(chunk, more);
    look_at(chunk, more);
  }
  u32 most = own.bits;
#pragma unroll
  for (u32 offset = 16; offset > 0; offset /= 2) most = larger(most, shuffle_xor(most, offset));
  if constexpr (team > warp_size) {
    if (lane_index() == 0) exchange[warp_index()] = most;
    barrier();
    for (u32 w = 0; w < pack_warps; ++w) most = larger(most, exchange[w]);
  }

  const i32 exponent = exponent_of_row(most);
  const float scale = power_of_two(15 - exponent);
  const u64 row_block = u64(batch) * shape.row_blocks + row / packed_rows;
  RowLoss known;
  const auto put = [&](u32 chunk, float(&of)[count]) {
    if (chunk >= chunks) return;
#pragma unroll
    for (u32 i = 0; i < count; ++i) of[i] *= scale;
    put_packed(to, shape, row_block, row % packed_rows, chunk * count, of, known);
  };
#pragma unroll
  for (u32 i = 0; i < held; ++i) put(i * team + thread, numbers[i]);
  for (u32 chunk = held * team + thread; chunk < chunks; chunk += team) {
    float more[count];
    load(chunk, more);
    put(chunk, more);
  }
  pad_sample(to, shape, row_block, row % packed_rows, thread, team);

  u32 largest = own.depth_if(most);
#pragma unroll
  for (u32 offset = 16; offset > 0; offset /= 2) {
    known.loss = max_or_nan(known.loss, shuffle_xor(known.loss, offset));
    known.mass += shuffle_xor(known.mass, offset);
    largest = smaller(largest, shuffle_xor(largest, offset));
  }
  if constexpr (team > warp_size) {
    u32* const losses = exchange + pack_warps;
    u32* const masses = exchange + 2 * pack_warps;
    u32* const places = exchange + 3 * pack_warps;
    if (lane_index() == 0) {
      places[warp_index()] = largest;
      losses[warp_index()] = bits_of(known.loss);
      masses[warp_index()] = bits_of(known.mass);
    }
    barrier();
    known = {};
    for (u32 w = 0; w < pack_warps; ++w) {
      largest = smaller(largest, places[w]);
      known.loss = max_or_nan(known.loss, float_of(losses[w]));
      known.mass += float_of(masses[w]);
    }
  }
  if (thread == 0) {
    const u64 place = row_block * packed_rows + row % packed_rows;
    to.exponents[place] = exponent;
    to.loss[place] = known.loss;
    to.mass[place] = known.mass;
    to.largest[place] = largest;
  }
}

// ---------------------------------------------------------------- rows that lie side by side

// What is known of a row, as bits: its largest number without sign, where that is, its loss and its mass.
enum Known : u32 { known_most, known_largest, known_loss, known_mass };
FW_FN u32 combined(Known what, u32 a, u32 b) {
  if (what == known_most) return larger(a, b);
  if (what == known_largest) return smaller(a, b);
  if (what == known_loss) return bits_of(max_or_nan(float_of(a), float_of(b)));
  return bits_of(float_of(a) + float_of(b));
}

// The block packs 32 neighbouring rows: a thread reads 4 of them at a place of the depth. `exchange` holds a number for
// each row of each team.
FW_FN void pack_strip(const GivenOperand& from, const Packed& to, const PackedShape& shape, u32 batch, u32 first,
                      bool vectors, u32* exchange) {
  constexpr u32 run = 8;  // numbers along the depth that become a unit of 16 bytes
  const u32 lane = thread_index() % strip_lanes, team = thread_index() / strip_lanes;
  const u32 row = first + 4 * lane, runs = shape.depth_blocks * (packed_depth / run);
  const float* const data = from.data + batch * from.batch_stride;
  const auto load = [&](u32 depth, float(&numbers)[4]) {
    const float* const place = data + depth * from.depth_stride + row * from.row_stride;
    if (vectors && depth < from.depth && row + 4 <= from.rows) {
      load_vector<4>(place, plain, numbers);
      return;
    }
#pragma unroll
    for (u32 j = 0; j < 4; ++j)
      numbers[j] = depth < from.depth && row + j < from.rows ? place[j * from.row_stride] : 0.0f;
  };
  // Puts together what all teams know of a row.
  const auto together = [&](u32 j, Known what, u32 own) {
    exchange[team * strip_rows + 4 * lane + j] = own;
    barrier();
    u32 all = exchange[4 * lane + j];
    for (u32 other = 1; other < strip_teams; ++other)
      all = combined(what, all, exchange[other * strip_rows + 4 * lane + j]);
    barrier();
    return all;
  };

  const auto load_run = [&](u32 r, float(&numbers)[run][4]) {
#pragma unroll
    for (u32 i = 0; i < run; ++i) load(r * run + i, numbers[i]);
  };

  Largest own[4];
  for (u32 r = team; r < runs; r += strip_teams) {
    float numbers[run][4];
    load_run(r, numbers);
#pragma unroll
    for (u32 i = 0; i < run; ++i)
#pragma unroll
      for (u32 j = 0; j < 4; ++j) own[j].add(numbers[i][j], r * run + i);
  }
  const u64 row_block = u64(batch) * shape.row_blocks + row / packed_rows;
  i32 exponents[4];
  float scales[4];
#pragma unroll
  for (u32 j = 0; j < 4; ++j) {
    const u32 most = together(j, known_most, own[j].bits);
    const u32 largest = together(j, known_largest, own[j].depth_if(most));
    if (team == 0) to.largest[row_block * packed_rows + (row + j) % packed_rows] = largest;
    exponents[j] = exponent_of_row(most);
    scales[j] = power_of_two(15 - exponents[j]);
    pad_sample(to, shape, row_block, (row + j) % packed_rows, team, strip_teams);
  }

  RowLoss known[4];
  for (u32 r = team; r < runs; r += strip_teams) {
    float numbers[run][4];
    load_run(r, numbers);
#pragma unroll
    for (u32 j = 0; j < 4; ++j) {
      float scaled[run];
#pragma unroll
      for (u32 i = 0; i < run; ++i) scaled[i] = numbers[i][j] * scales[j];
      put_packed(to, shape, row_block, (row + j) % packed_rows, r * run, scaled, known[j]);
    }
  }
#pragma unroll
  for (u32 j = 0; j < 4; ++j) {
    const u32 loss = together(j, known_loss, bits_of(known[j].loss));
    const u32 mass = together(j, known_mass, bits_of(known[j].mass));
    if (team != 0) continue;
    const u64 place = row_block * packed_rows + (row + j) % packed_rows;
    to.exponents[place] = exponents[j];
    to.loss[place] = float_of(loss);
    to.mass[place] = float_of(mass);
  }
}

// ---------------------------------------------------------------- the kernel

FW_FN void pack(const PackArgs& args) {
  follow_last_launch();
  u32* const exchange = reinterpret_cast<u32*>(shared_memory());
  for (u32 i = block_index() * pack_threads + thread_index(); i < args.flag_count; i += block_count() * pack_threads)
    args.flags[i] = 0;
  const bool first = block_index() < args.blocks_of_a;
  const PackOperand& operand = first ? args.a : args.b;
  const u32 block = first ? block_index() : block_index() - args.blocks_of_a;
  const u32 padded = operand.shape.row_blocks * packed_rows, row = block * rows_packed_by_a_block(operand.by);
  const u32 batch = row / padded, place = row % padded;
  if (operand.by == packed_by_warps)
    pack_row<warp_size>(operand.from, operand.to, operand.shape, batch, place + warp_index(), operand.vectors,
                        exchange);
  else if (operand.by == packed_by_blocks)
    pack_row<pack_threads>(operand.from, operand.to, operand.shape, batch, place, operand.vectors, exchange);
  else
    pack_strip(operand.from, operand.to, operand.shape, batch, place, operand.vectors, exchange);
}

}  // namespace fw

#endif  // FW_KERNELS_CONTRACT_PACK_H
