#pragma once
// Tests the extrema of math.h in its form for CPUs or for devices: include this header after the one to test.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>

namespace {

template <std::size_t N>
void expect_extrema_propagate_nan(const float (&values)[N]) {
  for (float a : values) {
    for (float b : values) {
      const bool nan = std::isnan(a) || std::isnan(b);
      EXPECT_EQ(std::isnan(fw::maximum(a, b)), nan);
      EXPECT_EQ(std::isnan(fw::minimum(a, b)), nan);
      if (nan) continue;
      for (float c : {b, -b}) {
        EXPECT_EQ(fw::maximum(a, c), std::fmax(a, c));
        EXPECT_EQ(fw::minimum(a, c), std::fmin(a, c));
      }
    }
  }
}

}  // namespace
