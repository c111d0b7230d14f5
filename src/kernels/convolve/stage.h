// Staging of operands in shared memory, as tensor cores read them: one plane for each 8 channels, in which a position
// has 16 bytes. A tap is a distance between addresses, whatever the tap, the stride and the layout in global memory
// are.
//
// f32 is staged as halves, scaled by a power of two that a sample of the first numbers gives. Numbers from 2^-20 to 2^9
// of the sample's largest keep 11 bits, which is what TF32 has. If a unit of 8 channels lies outside, the whole stage
// is computed from global memory in TF32 instead (`is_wide`).
//
// Needs arguments.h in front; includes nothing.
#ifndef FW_KERNELS_CONVOLVE_STAGE_H
#define FW_KERNELS_CONVOLVE_STAGE_H

namespace fw {

FW_FN float conv_power(i32 exponent) { return float_of(u32(exponent + 127) << 23); }  // from -126 to 127

// number * 2^power for any power that two floats can carry.
FW_FN float conv_scaled(float number, i32 power) {
  const i32 first = power / 2;
  return number * conv_power(first) * conv_power(power - first);
}

constexpr u32 conv_infinity = 0x7f800000u;
constexpr float conv_largest_half = 65504.0f, conv_least_half = 0x1p-14f;
constexpr i32 conv_sample_power = 6;  // the sample's largest number is scaled to 2^6 or more, below 2^7

// The exponent of the scale that brings a number to 2^power or more, below twice that.
FW_FN i32 conv_exponent(u32 largest, i32 power) {
  const i32 exponent = power + 127 - i32(largest >> 23);
  return exponent < -126 ? -126 : exponent > 126 ? 126 : exponent;
}

FW_FN u32 conv_pair(float first, float second) {
#if defined(FW_EMULATOR)
  return u32(to_half(first).bits) | u32(to_half(second).bits) << 16;
#else
  u32 pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  return pair;
#endif
}

FW_FN u32 conv_larger(u32 a, u32 b) { return a > b ? a : b; }

// Threads that stage together: all of a block, or warpgroups with a barrier of their own.
template <u32 count>
struct ConvBlock {
  static constexpr u32 threads = count;
  FW_FN u32 thread() const { return thread_index(); }
  FW_FN u32 warp() const { return warp_index(); }
  FW_FN void wait() const { barrier(); }
};
#if FW_SM90
template <u32 count>
struct ConvGroup {
  static constexpr u32 threads = count;
  u32 named;
  FW_FN u32 thread() const { return thread_index() % threads; }
  FW_FN u32 warp() const { return warp_index() % (threads / warp_size); }
  FW_FN void wait() const { named_barrier_wait(named, threads); }
};
#endif

// The largest of all threads' numbers. `exchange`: a word for each warp, which nobody reads any more.
template <class Team>
FW_FN u32 conv_largest(const Team& team, u32 own, u32* exchange) {
#pragma unroll
  for (u32 offset = 16; offset > 0; offset /= 2) own = conv_larger(own, shuffle_xor(own, offset));
  if (lane_index() == 0) exchange[team.warp()] = own;
  team.wait();
  u32 most = 0;
#pragma unroll
  for (u32 w = 0; w < Team::threads / warp_size; ++w) most = conv_larger(most, exchange[w]);
  return most;
}

constexpr u32 conv_unit_floats = conv_unit * u32(sizeof(float));  // bytes

FW_FN float conv_largest_of(const float (&numbers)[conv_unit]) {
  float largest = fabsf(numbers[0]);
#pragma unroll
  for (u32 i = 1; i < conv_unit; ++i) largest = max_or_nan(largest, fabsf(numbers[i]));
  return largest;
}

// The numbers that halves carry with this scale.
struct ConvRange {
  float scale, least, most;

  FW_FN explicit ConvRange(i32 exponent)
      : scale(conv_power(exponent)),
        least(conv_least_half * conv_power(-exponent)),
        most(exponent < -112 ? float_of(conv_infinity - 1) : conv_largest_half * conv_power(-exponent)) {}
  // `largest`: of a unit. Zeros alone are carried.
  FW_FN bool exceeded_by(float largest) const { return !(largest <= most) || (largest != 0 && largest < least); }
};

// Counts two digits up by `step`, the lower one below `limit`, without divisions.
struct ConvWalk {
  u32 fast, slow, limit, fast_step, slow_step;

  FW_FN ConvWalk(u32 start, u32 step, u32 below)
      : fast(start % below), slow(start / below), limit(below), fast_step(step % below), slow_step(step / below) {}
  FW_FN void next() {
    fast += fast_step;
    slow += slow_step;
    if (fast >= limit) {
      fast -= limit;
      ++slow;
    }
  }
};

// An operand as a block stages it.
template <class T>
struct ConvOperand {
  const T* data;      // of the first image of the tile, and of the group's first channel
  const i32* places;  // by position: its distance from `data`; -1: outside, where zeros are read
  char* stage;
  u32 positions, plane_positions;  // that are staged; from one plane to the next
  u32 channels;                    // of the group
  i32 channel_stride;
  bool vectors;
  i32 exponent = 0;  // staged numbers are 2^exponent times theirs
  bool known = false;

  FW_FN T number(u32 position, u32 channel) const {
    const i32 place = places[position];
    return place >= 0 && channel < channels ? data[place + i64(channel) * channel_stride] : T{};
  }

  // 8 neighbouring channels of a position, of a plane behind a channel. What all threads share is added to the address
  // apart from what they do not: the latter has 32 bits.
  FW_FN void load_unit(u32 position, u32 first_channel, u32 plane, bool whole, T (&to)[conv_unit]) const {
    const i32 place = position < positions ? places[position] : -1;
    const bool inside = place >= 0;
    const u32 offset = u32(place + i32(plane * conv_unit) * channel_stride) * u32(sizeof(T));
    const char* const first = reinterpret_cast<const char*>(data + i64(first_channel) * channel_stride);
    const i64 bytes = i64(channel_stride) * i64(sizeof(T));
#pragma unroll
    for (u32 i = 0; i < conv_unit; ++i) to[i] = T{};
    if (vectors && whole) {
      if (inside) load_vector<conv_unit>(reinterpret_cast<const T*>(first + offset), plain, to);
    } else if (whole) {
#pragma unroll
      for (u32 i = 0; i < conv_unit; ++i)
        if (inside) to[i] = *reinterpret_cast<const T*>(first + i * bytes + offset);
    } else {
#pragma unroll
      for (u32 i = 0; i < conv_unit; ++i)
        if (inside && first_channel + plane * conv_unit + i < channels)
          to[i] = *reinterpret_cast<const T*>(first + i * bytes + offset);
    }
  }

  // Begins to copy planes to `raw`, where each thread has places of its own (f32). Behind it copy_async_commit.
  template <class Team>
  FW_FN void copy(const Team& team, u32 first_channel, u32 planes, char* raw) const {
    static_assert(same<T, float>::value, "4 bytes are the least that is copied");
    constexpr u32 of_unit = Team::threads * conv_unit_floats;
    const u32 items = planes * positions;
    const bool whole = first_channel + planes * conv_unit <= channels;
    const char* const first = reinterpret_cast<const char*>(data + i64(first_channel) * channel_stride);
    const i64 bytes = i64(channel_stride) * i64(sizeof(T));
    ConvWalk walk(team.thread(), Team::threads, channel_stride == 1 ? planes : positions);
    raw += team.thread() * (vectors && whole ? 16 : 4);
    for (u32 start = team.thread(); start < items; start += Team::threads, walk.next(), raw += of_unit) {
      const u32 plane = channel_stride == 1 ? walk.fast : walk.slow;
      const i32 place = places[channel_stride == 1 ? walk.slow : walk.fast];
      const bool inside = place >= 0;
      const u32 offset = inside ? u32(place + i32(plane * conv_unit) * channel_stride) * u32(sizeof(T)) : 0;
      if (vectors && whole) {
#pragma unroll
        for (u32 i = 0; i < 2; ++i)
          copy_async<16>(raw + i * Team::threads * 16, first + offset + i * 16, inside ? 16 : 0);
        continue;
      }
      const u32 channel = first_channel + plane * conv_unit;
      const u32 left = whole ? conv_unit : channel < channels ? channels - channel : 0;
#pragma unroll
      for (u32 i = 0; i < conv_unit; ++i) {
        const bool read = inside && i < left;
        copy_async<4>(raw + i * Team::threads * 4, read ? first + i * bytes + offset : first, read ? 4 : 0);
      }
    }
  }

  // A unit that this thread has copied: the n-th of its own.
  template <class Team>
  FW_FN void copied_unit(const Team& team, const char* raw, u32 n, bool by_vectors, float (&to)[conv_unit]) const {
    raw += n * Team::threads * conv_unit_floats + team.thread() * (by_vectors ? 16 : 4);
    if (by_vectors) {
#pragma unroll
      for (u32 i = 0; i < 2; ++i) {
        float four[4];
        load_vector<4>(reinterpret_cast<const float*>(raw + i * Team::threads * 16), plain, four);
#pragma unroll
        for (u32 k = 0; k < 4; ++k) to[4 * i + k] = four[k];
      }
    } else {
#pragma unroll
      for (u32 i = 0; i < conv_unit; ++i) to[i] = *reinterpret_cast<const float*>(raw + i * Team::threads * 4);
    }
  }

  // As put(), of planes that were copied.
  template <class Team>
  FW_FN bool put_copied(const Team& team, u32 first_channel, u32 planes, const char* raw, u32* exchange) {
    const u32 items = planes * positions;
    const bool by_vectors = vectors && first_channel + planes * conv_unit <= channels;
    if (!known) {
      constexpr u32 sampled = 2;
      float largest[sampled] = {};
#pragma unroll
      for (u32 n = 0; n < sampled; ++n) {
        if (n * Team::threads + team.thread() >= items) continue;
        float numbers[conv_unit];
        copied_unit(team, raw, n, by_vectors, numbers);
        largest[n] = conv_largest_of(numbers);
      }
      choose_scale(team, largest, exchange);
    }
    const ConvRange range(exponent);
    ConvWalk walk(team.thread(), Team::threads, channel_stride == 1 ? planes : positions);
    bool wide = false;
    u32 n = 0;
#pragma unroll 2
    for (u32 start = team.thread(); start < items; start += Team::threads, walk.next(), ++n) {
      float numbers[conv_unit];
      copied_unit(team, raw, n, by_vectors, numbers);
      const u32 plane = channel_stride == 1 ? walk.fast : walk.slow;
      wide = put_unit(plane, channel_stride == 1 ? walk.slow : walk.fast, numbers, range) || wide;
    }
    return wide;
  }

  // Writes halves. Returns whether they cannot carry the unit.
  FW_FN bool put_unit(u32 plane, u32 position, const float (&numbers)[conv_unit], const ConvRange& range) const {
    u32 words[4];
#pragma unroll
    for (u32 i = 0; i < 4; ++i) words[i] = conv_pair(numbers[2 * i] * range.scale, numbers[2 * i + 1] * range.scale);
    store_vector<4>(unit_at(plane, position), words);
    return range.exceeded_by(conv_largest_of(numbers));
  }

  // Puts `planes` planes from a channel on into the stage. Returns whether a unit of this thread is too wide for
  // halves.
  template <u32 together, class Team>
  FW_FN bool put(const Team& team, u32 first_channel, u32 planes, u32* exchange) {
    constexpr u32 threads = Team::threads;
    const u32 items = planes * positions;
    ConvWalk walk(team.thread(), threads, channel_stride == 1 ? planes : positions);
    const bool whole = first_channel + planes * conv_unit <= channels;
    bool wide = false;
    for (u32 start = 0; start < items; start += together * threads) {
      T numbers[together][conv_unit];
      u32 plane[together], position[together];
#pragma unroll
      for (u32 k = 0; k < together; ++k) {
        // Neighbouring threads read neighbours in memory.
        plane[k] = channel_stride == 1 ? walk.fast : walk.slow;
        position[k] = channel_stride == 1 ? walk.slow : walk.fast;
        if (plane[k] >= planes) position[k] = positions;
        walk.next();
        load_unit(position[k], first_channel, plane[k], whole, numbers[k]);
      }
      if constexpr (same<T, float>::value) {
        if (start == 0 && !known) {
          float largest[together];
#pragma unroll
          for (u32 k = 0; k < together; ++k) largest[k] = conv_largest_of(numbers[k]);
          choose_scale(team, largest, exchange);
        }
        const ConvRange range(exponent);
#pragma unroll
        for (u32 k = 0; k < together; ++k)
          if (position[k] < positions) wide = put_unit(plane[k], position[k], numbers[k], range) || wide;
      } else {
#pragma unroll
        for (u32 k = 0; k < together; ++k)
          if (position[k] < positions)
            store_vector<conv_unit>(reinterpret_cast<T*>(unit_at(plane[k], position[k])), numbers[k]);
      }
    }
    return wide;
  }

  FW_FN u32* unit_at(u32 plane, u32 position) const {
    return reinterpret_cast<u32*>(stage + (plane * plane_positions + position) * conv_unit_bytes);
  }

  // A sample of zeros leaves the scale as it is.
  template <u32 together, class Team>
  FW_FN void choose_scale(const Team& team, const float (&largest)[together], u32* exchange) {
    u32 own = 0;
#pragma unroll
    for (u32 k = 0; k < together; ++k)
      if (bits_of(largest[k]) < conv_infinity) own = conv_larger(own, bits_of(largest[k]));
    const u32 most = conv_largest(team, own, exchange);
    if (most == 0) return;
    exponent = conv_exponent(most, conv_sample_power);
    known = true;
  }

  // The largest number of a stage, as bits.
  template <class Team>
  FW_FN u32 largest(const Team& team, u32 first_channel, u32 planes, u32* exchange) const {
    u32 own = 0;
    for (u32 item = team.thread(); item < planes * positions; item += Team::threads) {
      T numbers[conv_unit];
      load_unit(item % positions, first_channel, item / positions, false, numbers);
#pragma unroll
      for (u32 i = 0; i < conv_unit; ++i) {
        const u32 bits = bits_of(numbers[i]) & 0x7fffffffu;
        if (bits < conv_infinity) own = conv_larger(own, bits);
      }
    }
    return conv_largest(team, own, exchange);
  }

  // Where the numbers of a stage are larger than the sample: a scale that even TF32 can carry. Returns by how much the
  // exponent has changed.
  template <class Team>
  FW_FN i32 widen(const Team& team, u32 first_channel, u32 planes, u32* exchange) {
    const u32 most = largest(team, first_channel, planes, exchange);
    const i32 of_largest = conv_exponent(most, conv_sample_power), before = exponent;
    if (most != 0 && (!known || of_largest < exponent)) {
      exponent = of_largest;
      known = true;
    }
    return exponent - before;
  }
};

// Whether any thread says so; all threads have passed when it returns. `exchange`: a word for each warp.
template <class Team>
FW_FN bool conv_any(const Team& team, bool own, u32* exchange) {
  const u32 lanes = ballot(own);
  if (lane_index() == 0) exchange[team.warp()] = lanes;
  team.wait();
  u32 any = 0;
#pragma unroll
  for (u32 w = 0; w < Team::threads / warp_size; ++w) any |= exchange[w];
  return any != 0;
}

// The instruction that multiplies operands staged from T.
template <class T>
struct ConvStaged {
  using type = T;
};
template <>
struct ConvStaged<float> {
  using type = half;
};

}  // namespace fw

#endif  // FW_KERNELS_CONVOLVE_STAGE_H
