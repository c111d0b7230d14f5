// Packs the weight of a convolution: as the fragments that lanes hold, in the order in which `convolve` takes them.
//
//   scales   for each row a power of two that brings its largest number to [2^14, 2^15), and whether halves can carry
//   it pack     the fragments, for each phase of the result
//
// Needs result.h in front; includes nothing.
#ifndef FW_KERNELS_CONVOLVE_PACK_H
#define FW_KERNELS_CONVOLVE_PACK_H

namespace fw {

constexpr i32 conv_weight_power = 14;

FW_FN i64 conv_tap_of_kernel(const ConvAxis* axes, u32 tap) {
  const u32 x = tap % axes[2].kernel, line = tap / axes[2].kernel, y = line % axes[1].kernel, z = line / axes[1].kernel;
  return i64(z) * axes[0].weight_stride + i64(y) * axes[1].weight_stride + i64(x) * axes[2].weight_stride;
}

// A block for each row.
FW_FN void conv_scales(const ConvArgs& a) {
  follow_last_launch();
  constexpr ConvBlock<conv_pack_threads> team;
  u32* const exchange = reinterpret_cast<u32*>(shared_memory());
  const u32 group = block_index() / a.rows, row = block_index() % a.rows;
  const float* const weight = static_cast<const float*>(a.w.data) + group * a.w.group_stride + row * a.w.row_stride;
  const u32 taps = a.axes[0].kernel * a.axes[1].kernel * a.axes[2].kernel;
  const u32 units = (a.channels + conv_unit - 1) / conv_unit * taps;
  u32 largest = 0, least = 0xffffffffu;  // of units, zeros left out
  bool infinite = false;
  for (u32 u = thread_index(); u < units; u += conv_pack_threads) {
    const u32 first = u / taps * conv_unit;
    const float* const at = weight + conv_tap_of_kernel(a.axes, u % taps);
    u32 most = 0;
#pragma unroll
    for (u32 i = 0; i < conv_unit; ++i) {
      const u32 bits = first + i < a.channels ? bits_of(at[(first + i) * a.w.channel_stride]) & 0x7fffffffu : 0;
      infinite = infinite || bits >= conv_infinity;
      if (bits < conv_infinity) most = conv_larger(most, bits);
    }
    largest = conv_larger(largest, most);
    if (most != 0 && most < least) least = most;
  }
  largest = conv_largest(team, largest, exchange);
  least = ~conv_largest(team, ~least, exchange + conv_most_warps);
  infinite = conv_any(team, infinite, exchange + 2 * conv_most_warps);
  if (thread_index() != 0) return;
  const i32 exponent = largest == 0 ? 0 : conv_exponent(largest, conv_weight_power);
  const bool small = largest != 0 && float_of(least) * conv_power(exponent) < conv_least_half;
  a.exponents[block_index()] = exponent;
  a.wide[block_index()] = infinite || small;
}

FW_FN u32 conv_halves(half first, half second) { return u32(first.bits) | u32(second.bits) << 16; }
FW_FN u32 conv_halves(bfloat16 first, bfloat16 second) { return u32(first.bits) | u32(second.bits) << 16; }

// A step of a block of rows, in the order in which they are packed.
struct ConvPacking {
  ConvTile t{};  // the phase and its taps
  u32 row_block, group, chunk, step;

  // Returns whether there is a step of this number.
  FW_FN bool find(const ConvArgs& a, u64 number) {
    const u64 block_steps = conv_block_steps(a);
    u64 block = number / block_steps;
    row_block = u32(block % a.row_blocks);
    block /= a.row_blocks;
    group = u32(block % a.groups);
    u32 phase = u32(block / a.groups);
    t.all_taps = 1;
#pragma unroll
    for (u32 i = 0; i < conv_axes; ++i) {
      const u32 d = conv_axes - 1 - i;
      t.phase[d] = phase % a.axes[d].phase_count;
      phase /= a.axes[d].phase_count;
      t.taps[d] = a.axes[d].phases[t.phase[d]].taps;
      t.all_taps *= t.taps[d];
    }
    if (phase != 0 || t.all_taps == 0) return false;
    const u32 steps = conv_chunk_units(a, t.all_taps) / conv_step_units, within = u32(number % block_steps);
    chunk = within / steps;
    step = within % steps;
    return chunk < a.chunks;
  }
};

// 8 channels of a row's tap, zeros beyond the last, on Hopper: 128 threads for each step of a block of 64 rows.
template <class T>
FW_FN void conv_pack_hopper(const ConvArgs& a) {
  follow_last_launch();
  const u64 thread = u64(block_index()) * conv_pack_threads + thread_index();
  constexpr u32 of_step = conv_step_units * conv_hopper_rows;
  ConvPacking at;
  if (!at.find(a, thread / of_step)) return;
  const u32 within = u32(thread % of_step), unit = at.step * conv_step_units + within / conv_hopper_rows;
  const u32 row = at.row_block * conv_hopper_rows + within % conv_hopper_rows, tap = unit / a.planes;
  const u32 channel = (at.chunk * a.planes + unit % a.planes) * conv_unit;
  const T* const weight = static_cast<const T*>(a.w.data) + at.group * a.w.group_stride + row * a.w.row_stride +
                          conv_weight_offset(a.axes, at.t, tap);
  T numbers[conv_unit] = {};
#pragma unroll
  for (u32 i = 0; i < conv_unit; ++i)
    if (tap < at.t.all_taps && row < a.rows && channel + i < a.channels)
      numbers[i] = weight[(channel + i) * a.w.channel_stride];
  char* const to = reinterpret_cast<char*>(a.packed) + thread * conv_unit_bytes;
  if constexpr (same<T, float>::value) {
    const float scale = row < a.rows ? conv_power(a.exponents[at.group * a.rows + row]) : 0;
    u32 words[4];
#pragma unroll
    for (u32 i = 0; i < 4; ++i) words[i] = conv_pair(numbers[2 * i] * scale, numbers[2 * i + 1] * scale);
    store_vector<4>(reinterpret_cast<u32*>(to), words);
  } else {
    store_vector<conv_unit>(reinterpret_cast<T*>(to), numbers);
  }
}

// A warp for each step of a block of 16 rows.
template <class T>
FW_FN void conv_pack(const ConvArgs& a) {
  follow_last_launch();
  const u64 warp = u64(block_index()) * (conv_pack_threads / warp_size) + warp_index();
  ConvPacking at;
  if (!at.find(a, warp)) return;
  const ConvTile& t = at.t;
  const u32 lane = lane_index(), group = at.group, row = at.row_block * conv_rows + lane / 4;
  const T* const weight = static_cast<const T*>(a.w.data) + group * a.w.group_stride;
  u32 words[4];
#pragma unroll
  for (u32 i = 0; i < 4; ++i) {
    const u32 unit = at.step * conv_step_units + i / 2, tap = unit / a.planes, r = row + i % 2 * 8;
    const u32 channel = (at.chunk * a.planes + unit % a.planes) * conv_unit + lane % 4 * 2;
    T numbers[2] = {};
#pragma unroll
    for (u32 k = 0; k < 2; ++k)
      if (tap < t.all_taps && r < a.rows && channel + k < a.channels)
        numbers[k] =
            weight[r * a.w.row_stride + (channel + k) * a.w.channel_stride + conv_weight_offset(a.axes, t, tap)];
    if constexpr (same<T, float>::value) {
      const float scale = r < a.rows ? conv_power(a.exponents[group * a.rows + r]) : 0;
      words[i] = conv_pair(numbers[0] * scale, numbers[1] * scale);
    } else {
      words[i] = conv_halves(numbers[0], numbers[1]);
    }
  }
  store_vector<4>(a.packed + warp * conv_step_words + lane * 4, words);
}

}  // namespace fw

#endif  // FW_KERNELS_CONVOLVE_PACK_H
