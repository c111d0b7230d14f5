#pragma once
#include <cstdint>

namespace fusewright {

// Division of n < 2^31 by an invariant, as a multiplication: the layout of fw::Divider in kernels/cuda_device.h.
struct Divider {
  uint32_t divisor, multiplier, shift;
};

// For 1 <= divisor <= 2^31. With 2^(shift - 1) < divisor <= 2^shift, the multiplier is 2^(31 + shift) / divisor rounded
// up: it fits 32 bits, and its error times n is below 2^(31 + shift), so the quotient is never one too large.
constexpr Divider make_divider(uint32_t divisor) {
  uint32_t shift = 0;
  while ((uint64_t{1} << shift) < divisor) ++shift;
  const uint64_t power = uint64_t{1} << (31 + shift);
  return {divisor, static_cast<uint32_t>((power + divisor - 1) / divisor), shift};
}

}  // namespace fusewright
