// Checks the float functions that math.h has for CUDA alone, here, on the processor: the text for the device, with the
// approximating instructions as wrong as NVIDIA's manual allows. tests/kernels/math_test.cpp checks the rest.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <string>

namespace {

// How approximations are wrong: each by a random part of its bound; by all of it, up or down; or one up, the next down.
enum class Wrong { no, random, up, down, up_down, down_up };
constexpr Wrong all_ways[] = {Wrong::up, Wrong::down, Wrong::up_down, Wrong::down_up, Wrong::random};
Wrong wrong = Wrong::no;
std::uint64_t state;  // xorshift: the same numbers in each run
bool second;          // of two approximations in turn
void be_wrong(Wrong how) { wrong = how, second = false; }

double random_part() {  // in [-1, 1]
  state ^= state << 13, state ^= state >> 7, state ^= state << 17;
  return static_cast<double>(static_cast<std::int64_t>(state)) * 0x1p-63;
}

// A float within `bound` units of the last place of `exact`, as far away as there is one. Special values are exact, and
// what is denormal is flushed anyway.
float approximate(double exact, double bound) {
  const auto nearest = static_cast<float>(exact);
  if (wrong == Wrong::no || !std::isnormal(nearest)) return nearest;
  const double reach = bound * std::ldexp(1.0, std::ilogb(exact) - 23);
  const bool up = wrong == Wrong::up || wrong == (second ? Wrong::down_up : Wrong::up_down);
  const double part = wrong == Wrong::random ? random_part() : up ? 1 : -1;
  second = !second;
  const auto y = static_cast<float>(exact + part * reach);
  return std::fabs(y - exact) <= reach ? y : std::nextafterf(y, nearest);  // rounding may carry it too far
}

}  // namespace

// Defines the names that math.h takes from CUDA. Its namespace gets another name: math_test.cpp has the CPU's
// functions.
#define __CUDACC_RTC__
#define FW_EMULATOR
#define __device__
#define __forceinline__ inline __attribute__((always_inline))
#define fw fw_device
#define FW_APPROXIMATE(exact, bound) approximate(exact, bound)
static inline unsigned __float_as_uint(float x) { return __builtin_bit_cast(unsigned, x); }
static inline float __uint_as_float(unsigned x) { return __builtin_bit_cast(float, x); }
static inline long long __double_as_longlong(double x) { return __builtin_bit_cast(long long, x); }
static inline double __longlong_as_double(long long x) { return __builtin_bit_cast(double, x); }
static inline float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
static inline double __fma_rn(double a, double b, double c) { return __builtin_fma(a, b, c); }
static inline double __dsqrt_rn(double x) { return __builtin_sqrt(x); }
#include "../../src/kernels/prelude.h"
// prelude.h first: math.h finds it included
#include "../../src/kernels/math.h"
// math.h first: extrema.h tests it
#include "extrema.h"

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

// Distance in units of the last place; a wrong NaN or a wrong sign of zero counts as infinitely wrong.
double ulp_error(float y, double exact) {
  if (std::isnan(exact) || std::isnan(y)) return std::isnan(exact) == std::isnan(y) ? 0 : kInf;
  if ((y == 0 || static_cast<float>(exact) == 0) && std::signbit(y) != std::signbit(exact)) return kInf;
  const double limit = 0x1p128;
  const double clamped = std::min(std::max(exact, -limit), limit);
  const double value = std::min(std::max(static_cast<double>(y), -limit), limit);
  const int e = clamped == 0 ? -126 : std::min(std::max(std::ilogb(clamped), -126), 127);
  return std::fabs(std::ldexp(value - clamped, 23 - e));
}

const float kSpecial[] = {0.0f,
                          1.0f,
                          2.0f,
                          0.5f,
                          0.25f,
                          3.0f,
                          INFINITY,
                          NAN,
                          0x1p-149f,
                          0x1.8p-148f,
                          0x1p-126f,
                          0x1.fffffcp-127f,
                          0x1.fffffep127f,
                          0x1p127f,
                          0x1p126f,
                          0x1p125f,
                          0x1.000002p125f,
                          0x1p24f,
                          0x1p-24f,
                          0x1p-100f,
                          0x1.fffffep-1f,
                          0x1.000002p0f,
                          88.72283f,
                          88.72284f,
                          87.3365f,
                          103.97208f,
                          103.9721f,
                          104.0f,
                          104.5f,
                          105.0f,
                          127.99999f,
                          128.0f,
                          126.0f,
                          126.00001f,
                          149.0f,
                          149.5f,
                          150.0f,
                          151.0f,
                          70.0f,
                          70.5f,
                          0.9f,
                          0.92f,
                          1.36f,
                          3.93f,
                          3.95f,
                          9.01f,
                          10.2f,
                          1e10f,
                          1e30f};

struct Unary {
  const char* name;
  float (*device)(float);
  double (*exact)(double);
  double bound = 2;     // in units of the last place
  double smallest = 0;  // what is below it may become 0
};
#define FW_UNARY(name, reference, ...)                                                                    \
  Unary {                                                                                                 \
    #name, [](float x) { return fw::name(x); }, [](double x) -> double { return reference; }, __VA_ARGS__ \
  }
// Where an error of ex2_approx reaches the result undiminished the bound is its own and the last roundings'.
const Unary kUnary[] = {FW_UNARY(exp, std::exp(x), 2.7),
                        FW_UNARY(exp2, std::exp2(x), 2.2),
                        FW_UNARY(sigmoid, 1 / (1 + std::exp(-x)), 6.1, 0x1p-126),
                        FW_UNARY(expm1, std::expm1(x)),
                        FW_UNARY(tanh, std::tanh(x)),
                        FW_UNARY(erf, std::erf(x)),
                        FW_UNARY(erfc, std::erfc(x)),
                        FW_UNARY(log, std::log(x)),
                        FW_UNARY(log2, std::log2(x)),
                        FW_UNARY(log1p, std::log1p(x)),
                        FW_UNARY(reciprocal, 1 / x),
                        FW_UNARY(rsqrt, 1 / std::sqrt(x)),
                        FW_UNARY(sqrt, std::sqrt(x))};

// The same random numbers whatever ran before.
class Device : public testing::Test {
  void SetUp() override { state = 88172645463325252u; }
};
class DeviceTest : public Device, public testing::WithParamInterface<Unary> {};

TEST_P(DeviceTest, WithinItsBoundHoweverWrongTheApproximations) {
  const Unary& u = GetParam();
  double worst = 0;
  float at = 0;
  const auto see = [&](float x) {
    const double exact = u.exact(x);
    for (const Wrong w : all_ways) {
      be_wrong(w);
      const float y = u.device(x);
      const double error = y == 0 && std::fabs(exact) < u.smallest ? 0 : ulp_error(y, exact);
      if (error > worst) worst = error, at = x;
    }
  };
  for (std::uint64_t b = 0; b < (1ull << 32); b += 9001) see(fw::float_of(static_cast<fw::u32>(b)));
  for (float x = -12; x < 12; x += 0x1p-14f) see(x);
  for (float x = -106; x < 87; x += 0x1p-11f) see(x);
  for (float x = 87; x < 89; x += 0x1p-17f) see(x);  // where exp has its worst
  for (float x : kSpecial) {
    for (float y : {x, std::nextafterf(x, 0), std::nextafterf(x, INFINITY)}) see(y), see(-y);
  }
  wrong = Wrong::no;
  std::printf("  %s: %.3f ulp at %a\n", u.name, worst, at);
  EXPECT_LE(worst, u.bound) << u.name << " at " << at;
}

INSTANTIATE_TEST_SUITE_P(Math, DeviceTest, testing::ValuesIn(kUnary),
                         [](const auto& info) { return std::string(info.param.name); });

// Small results have the error of those from 1/2 on, as where 1 + erf makes them.
TEST_F(Device, NormalCdf) {
  double worst = 0;
  float at = 0;
  const auto see = [&](float x) {
    for (const Wrong w : all_ways) {
      be_wrong(w);
      const float y = fw::normal_cdf(x);
      ASSERT_EQ(std::isnan(y), std::isnan(x)) << x;
      const double error = std::fabs(y - std::erfc(-x * std::sqrt(0.5)) / 2) * 0x1p24;
      if (error > worst) worst = error, at = x;
    }
  };
  for (std::uint64_t b = 0; b < (1ull << 32); b += 9001) see(fw::float_of(static_cast<fw::u32>(b)));
  for (float x = -12; x < 12; x += 0x1p-14f) see(x);
  for (float x : kSpecial) {
    for (float y : {x, std::nextafterf(x, 0), std::nextafterf(x, INFINITY)}) see(y), see(-y);
  }
  wrong = Wrong::no;
  std::printf("  normal_cdf: %.3f * 2^-24 at %a\n", worst, at);
  EXPECT_LE(worst, 1.3) << at;
  EXPECT_EQ(fw::normal_cdf(0.0f), 0.5f);
  EXPECT_EQ(fw::normal_cdf(INFINITY), 1.0f);
  EXPECT_EQ(fw::normal_cdf(-INFINITY), 0.0f);
}

TEST_F(Device, DivisionWithinTwoUlp) {
  double worst = 0, of_divisor = 0;  // the second where nothing is near the denormal numbers
  float at = 0, by = 0;
  const auto see = [&](float a, float b) {
    for (const Wrong w : all_ways) {
      be_wrong(w);
      const double exact = static_cast<double>(a) / b;
      if (std::fabs(exact) > 0x1p-100 && std::fabs(exact) < 0x1p127 && std::fabs(a) > 0x1p-60f &&
          std::fabs(a) < 0x1p60f)
        of_divisor = std::max(of_divisor, ulp_error(fw::div(a, fw::divisor_of(b)), exact));
      const double error = std::max(ulp_error(fw::div(a, b), exact), ulp_error(fw::div(a, fw::divisor_of(b)), exact));
      if (error > worst) worst = error, at = a, by = b;
    }
  };
  for (int i = 0; i < 1000000; ++i) {
    random_part();
    const float a = fw::float_of(static_cast<fw::u32>(state)), b = fw::float_of(static_cast<fw::u32>(state >> 32));
    see(a, b);                                      // all exponents
    see(a, a * static_cast<float>(random_part()));  // results near 1
    see(a * 0x1p-120f, b), see(fw::float_of(fw::bits_of(a) & 0x807fffff), std::fabs(std::fmod(b, 1.0f)));
  }
  for (float a : kSpecial) {
    for (float b : kSpecial) see(a, b), see(-a, b), see(a, -b), see(-a, -b);
  }
  std::printf("  div: %.3f ulp at %a / %a\n", worst, at, by);
  EXPECT_LE(worst, 2.0) << at << " / " << by;
  EXPECT_LE(of_divisor, 0.501);
  worst = 0;
  for (int i = 0; i < 1000000; ++i) {  // by counts
    random_part();
    const float a = fw::float_of(static_cast<fw::u32>(state)), n = static_cast<float>((state >> 32) >> (i % 32));
    for (const Wrong w : all_ways) {
      be_wrong(w);
      const double error = ulp_error(fw::div(a, fw::count_of(n)), static_cast<double>(a) / n);
      if (error > worst) worst = error, at = a, by = n;
    }
  }
  std::printf("  div by a count: %.3f ulp at %a / %a\n", worst, at, by);
  EXPECT_LE(worst, 1.5) << at << " / " << by;
  for (int i = 0; i < 1000000; ++i) {
    random_part();
    const float a = fw::float_of(static_cast<fw::u32>(state));
    if (a == 0 || !std::isfinite(a)) continue;
    ASSERT_EQ(fw::div(a, a), 1.0f) << a;
    ASSERT_EQ(fw::div(a, fw::divisor_of(a)), 1.0f) << a;
  }
  wrong = Wrong::no;
}

TEST_F(Device, MaximumAndMinimumPropagateNan) { expect_extrema_propagate_nan(kSpecial); }

}  // namespace
