#include "launch/divider.h"

#include <gtest/gtest.h>

#include <random>

namespace fusewright {
namespace {

// fw::quotient of kernels/cuda_device.h.
uint32_t quotient(uint32_t n, Divider d) {
  return static_cast<uint32_t>(uint64_t{n << 1} * d.multiplier >> 32) >> d.shift;
}

// A quotient is wrong first where it steps up: right there, and one before.
void check_steps(uint32_t divisor, uint32_t quotient_of_step) {
  const Divider d = make_divider(divisor);
  const uint64_t step = uint64_t{divisor} * quotient_of_step;
  for (const uint64_t n : {step, step - 1, step + divisor - 1}) {
    if (n >= uint64_t{1} << 31) continue;
    ASSERT_EQ(quotient(static_cast<uint32_t>(n), d), n / divisor) << n << " / " << divisor;
  }
}

TEST(Divider, EverySmallDivisorAtItsLastSteps) {
  constexpr uint32_t last = 0x7fffffff;
  for (uint32_t divisor = 1; divisor <= 1 << 20; ++divisor) {
    ASSERT_EQ(quotient(0, make_divider(divisor)), 0u);
    ASSERT_EQ(quotient(last, make_divider(divisor)), last / divisor) << divisor;
    for (const uint32_t q : {1u, last / divisor, last / divisor / 2 + 1}) check_steps(divisor, q);
  }
}

TEST(Divider, DivisorsAroundPowersOfTwo) {
  for (int power = 0; power <= 31; ++power) {
    for (int64_t offset = -3; offset <= 3; ++offset) {
      const int64_t divisor = (int64_t{1} << power) + offset;
      if (divisor < 1 || divisor > int64_t{1} << 31) continue;
      const auto most = static_cast<uint32_t>(0x7fffffff / divisor);
      for (uint32_t q = most; q > 0 && q + 1000 > most; --q) check_steps(static_cast<uint32_t>(divisor), q);
      for (uint32_t q = 1; q <= most && q < 1000; ++q) check_steps(static_cast<uint32_t>(divisor), q);
    }
  }
}

TEST(Divider, AnyDivisorAndNumber) {
  std::mt19937 random(1);
  for (int i = 0; i < 2'000'000; ++i) {
    const auto divisor = static_cast<uint32_t>((random() >> 1 >> random() % 31) | 1);
    const auto n = static_cast<uint32_t>(random() >> 1 >> random() % 31);
    ASSERT_EQ(quotient(n, make_divider(divisor)), n / divisor) << n << " / " << divisor;
  }
}

}  // namespace
}  // namespace fusewright
