// Checks src/kernels/prelude.h and math.h as host C++: errors in ulp against a wider libm, special values,
// conversions, and that the compiler vectorises a loop over every float function. Build it with and without
// -march=native: the two take different paths (with and without fused multiply-add).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "../../src/kernels/prelude.h"
// prelude.h first: math.h finds it included
#include "../../src/kernels/math.h"
// math.h first: extrema.h tests it
#include "extrema.h"

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr double kInfD = std::numeric_limits<double>::infinity();

// Distance of y from the exact value in units of the last place of T; 2^emax stands for infinity. A wrong NaN
// or a wrong sign of zero counts as infinitely wrong.
template <class T, class Wide>
double ulp_error(T y, Wide exact) {
  constexpr int digits = std::numeric_limits<T>::digits, emax = std::numeric_limits<T>::max_exponent;
  if (std::isnan(exact) || std::isnan(y)) return std::isnan(exact) == std::isnan(y) ? 0 : kInfD;
  if ((y == 0 || static_cast<T>(exact) == 0) && std::signbit(y) != std::signbit(exact)) return kInfD;
  const Wide limit = std::ldexp(Wide(1), emax);
  const Wide clamped = std::fmin(std::fmax(exact, -limit), limit);
  const Wide value = std::fmin(std::fmax(static_cast<Wide>(y), -limit), limit);
  int e = std::numeric_limits<T>::min_exponent;
  if (clamped != 0) std::frexp(clamped, &e);
  e = std::min(std::max(e, std::numeric_limits<T>::min_exponent), emax);
  return static_cast<double>(std::fabs(std::ldexp(value - clamped, digits - e)));
}

template <class T>
struct Worst {
  double error = 0;
  T x = 0, y = 0;
  void see(double e, T at, T at2 = 0) {
    if (e > error) error = e, x = at, y = at2;
  }
};

struct Unary {
  const char* name;
  float (*f)(float);
  double (*d)(double);
  long double (*exact)(long double);
  double (*exact_for_float)(double);
};

template <class W>
W exact_sigmoid(W x) {
  return 1 / (1 + std::exp(-x));
}
template <class W>
W exact_rsqrt(W x) {
  return 1 / std::sqrt(x);
}
template <class W>
W exact_reciprocal(W x) {
  return 1 / x;
}

#define FW_STD(name)                                                                                               \
  Unary {                                                                                                          \
    #name, [](float x) { return fw::name(x); }, [](double x) { return fw::name(x); },                              \
        [](long double x) -> long double { return std::name(x); }, [](double x) -> double { return std::name(x); } \
  }
#define FW_AS(name, reference)                                                                                     \
  Unary {                                                                                                          \
    #name, [](float x) { return fw::name(x); }, [](double x) { return fw::name(x); },                              \
        [](long double x) -> long double { return reference(x); }, [](double x) -> double { return reference(x); } \
  }

const Unary kUnary[] = {FW_STD(exp),
                        FW_STD(expm1),
                        FW_STD(log),
                        FW_STD(log1p),
                        FW_STD(exp2),
                        FW_STD(log2),
                        FW_STD(erf),
                        FW_STD(erfc),
                        FW_STD(tanh),
                        FW_STD(sin),
                        FW_STD(cos),
                        FW_STD(atan),
                        FW_STD(sqrt),
                        FW_STD(floor),
                        FW_STD(ceil),
                        FW_STD(trunc),
                        FW_STD(abs),
                        FW_AS(round, std::nearbyint),
                        FW_AS(sigmoid, exact_sigmoid),
                        FW_AS(rsqrt, exact_rsqrt),
                        FW_AS(reciprocal, exact_reciprocal)};

const float kSpecial[] = {0.0f, -0.0f, kInf, -kInf, NAN, 1.0f, -1.0f, 0x1p-149f, -0x1p-149f, 0x1p-126f, -0x1p-126f,
                          0x1.fffffep-127f, 0x1.fffffep127f, -0x1.fffffep127f, 0.5f, -0.5f, 1.5f, 2.5f, -1.5f, -2.5f,
                          2.0f, -2.0f, 3.0f, -3.0f, 8388607.5f, 8388608.0f, 16777217.0f, -8388607.5f, 0x1.fffffep-1f,
                          0x1.000002p0f, 88.72283f, 88.72284f, -87.3365f, -103.97208f, -103.9721f, -104.0f, 127.99999f,
                          128.0f, -126.0f, -149.0f, -149.5f, -150.0f, 0x1.8p-1f, 1e10f, -1e10f, 0x1p64f, 9.9f, 10.05f,
                          10.06f, 10.2f, 3.93f, 3.92f, 9.01f, -0x1.fffffep-1f,
                          // neighbours of multiples of pi / 2
                          1.5707964f, 3.1415927f, 0x1.f9cbe2p+7f, 0x1.921fb6p+100f, 0x1.f37426p+95f};

class UnaryTest : public testing::TestWithParam<Unary> {};

TEST_P(UnaryTest, FloatWithinTwoUlp) {
  const Unary& u = GetParam();
  Worst<float> worst;
  const auto see = [&](float x) { worst.see(ulp_error(u.f(x), u.exact_for_float(x)), x); };
  for (std::uint64_t b = 0; b < (1ull << 32); b += 4007) see(fw::float_of(static_cast<fw::u32>(b)));
  for (float x = -12; x < 12; x += 0x1p-15f) see(x);  // where most functions have their worst
  for (float x : kSpecial) see(x);
  std::printf("  %s: %.3f ulp at %a\n", u.name, worst.error, worst.x);
  EXPECT_LE(worst.error, 2.0) << u.name << " at " << worst.x;
}

TEST_P(UnaryTest, DoubleWithinTwoUlp) {
  const Unary& u = GetParam();
  Worst<double> worst;
  const auto see = [&](double x) { worst.see(ulp_error(u.d(x), u.exact(x)), x); };
  std::mt19937_64 random(7);
  std::uniform_real_distribution<double> near(-30, 30), wide(-800, 800), unit(-1.5, 1.5);
  for (int i = 0; i < 100000; ++i) {
    see(fw::float_of(static_cast<fw::u64>(random())));  // all exponents
    see(near(random)), see(wide(random)), see(unit(random));
    see(1 + std::ldexp(unit(random), -static_cast<int>(random() % 52)));
    see(std::ldexp(unit(random), -static_cast<int>(random() % 52)));
    const double quarter = static_cast<double>(random() >> (random() % 52 + 12)) * 0x1.921fb54442d18p+0;
    see(quarter), see(std::nextafter(quarter, 0));  // next to a zero of sin or cos
  }
  for (double x : {709.78,
                   709.79,
                   -708.4,
                   -745.13,
                   -745.14,
                   -1074.0,
                   -1075.1,
                   1023.999,
                   1024.0,
                   26.5,
                   27.2,
                   27.3,
                   5.9,
                   0x1p-1074,
                   -0x1p-1074,
                   0x1p-1022,
                   0x1.fffffffffffffp1023,
                   0x1.6ac5b262ca1ffp+849,
                   0x1p20,
                   0x1p21}) {
    see(x), see(-x);
  }
  for (float x : kSpecial) see(x);
  std::printf("  %s: %.3f ulp at %a\n", u.name, worst.error, worst.x);
  EXPECT_LE(worst.error, 2.0) << u.name << " at " << worst.x;
}

INSTANTIATE_TEST_SUITE_P(Math, UnaryTest, testing::ValuesIn(kUnary),
                         [](const auto& info) { return std::string(info.param.name); });

// 1 + erf has an error of the size of 1's last place, whatever it leaves.
TEST(Math, NormalCdf) {
  const auto see = [](auto x) {
    using T = decltype(x);
    const T unit = std::numeric_limits<T>::epsilon() / 2;  // of results from 1/2 on
    const long double exact = std::erfc(-static_cast<long double>(x) / std::sqrt(2.0L)) / 2;
    const T y = fw::normal_cdf(x);
    ASSERT_EQ(std::isnan(y), std::isnan(x)) << x;
    ASSERT_FALSE(std::fabs(y - exact) > 2 * unit) << x;
  };
  for (std::uint64_t b = 0; b < (1ull << 32); b += 40009) see(fw::float_of(static_cast<fw::u32>(b)));
  for (float x = -12; x < 12; x += 0x1p-11f) see(x), see(double(x) * 0.9);
  for (float x : kSpecial) see(x), see(double(x));
  EXPECT_EQ(fw::normal_cdf(0.0f), 0.5f);
  EXPECT_EQ(fw::normal_cdf(kInf), 1.0f);
  EXPECT_EQ(fw::normal_cdf(-kInf), 0.0f);
  EXPECT_EQ(fw::normal_cdf(kInfD), 1.0);
  EXPECT_EQ(fw::normal_cdf(-kInfD), 0.0);
}

TEST(Math, PowOfFloat) {
  Worst<float> worst;
  const auto see = [&](float x, float y) { worst.see(ulp_error(fw::pow(x, y), std::pow(double(x), double(y))), x, y); };
  std::mt19937 random(3);
  std::uniform_real_distribution<float> base(0, 4), exponent(-40, 40);
  for (int i = 0; i < 1000000; ++i) {
    see(base(random), exponent(random));
    const float x = fw::float_of(static_cast<fw::u32>(random() & 0x7fffffff));
    see(x, exponent(random) * 127 / (40 * std::fabs(std::log2(x))));  // results over the whole range
    see(fw::float_of(static_cast<fw::u32>(random())), fw::float_of(static_cast<fw::u32>(random())));
    see(-base(random), std::rint(exponent(random)));
  }
  for (float x : kSpecial) {
    for (float y : kSpecial) see(x, y);
  }
  std::printf("  pow: %.3f ulp at %a, %a\n", worst.error, worst.x, worst.y);
  EXPECT_LE(worst.error, 2.0) << worst.x << " ^ " << worst.y;
}

TEST(Math, PowOfDouble) {
  Worst<double> worst;
  const auto see = [&](double x, double y) {
    worst.see(ulp_error(fw::pow(x, y), std::pow(static_cast<long double>(x), static_cast<long double>(y))), x, y);
  };
  std::mt19937_64 random(3);
  std::uniform_real_distribution<double> base(0, 4), exponent(-300, 300), unit(-1, 1);
  for (int i = 0; i < 200000; ++i) {
    see(base(random), exponent(random));
    const double x = fw::float_of(static_cast<fw::u64>(random() >> 1));
    see(x, unit(random) * 1074 / std::fabs(std::log2(x)));
    const double near_1 = 1 + std::ldexp(unit(random), -static_cast<int>(random() % 50));
    see(near_1, unit(random) * 1074 / std::fabs(std::log2(near_1)));
    see(-base(random), std::rint(exponent(random)));
  }
  for (float x : kSpecial) {
    for (float y : kSpecial) see(x, y);
  }
  std::printf("  pow: %.3f ulp at %a, %a\n", worst.error, worst.x, worst.y);
  EXPECT_LE(worst.error, 2.0) << worst.x << " ^ " << worst.y;
}

// ---------------------------------------------------------------- exact operators

template <class T>
bool identical(T a, T b) {
  return (std::isnan(a) && std::isnan(b)) || (a == b && std::signbit(a) == std::signbit(b));
}

// PyTorch's div_floor_floating.
template <class T>
T torch_floor_divide(T a, T b) {
  if (b == 0) return a / b;
  const T mod = std::fmod(a, b);
  T q = (a - mod) / b;
  if (mod != 0 && (b < 0) != (mod < 0)) q -= T(1);
  if (q == 0) return std::copysign(T(0), a / b);
  T down = std::floor(q);
  if (q - down > T(0.5)) down += T(1);
  return down;
}
template <class T>
T torch_remainder(T a, T b) {
  T mod = std::fmod(a, b);
  if (mod != 0 && (b < 0) != (mod < 0)) mod += b;
  return mod;
}

template <class T>
void expect_division_exact(T a, T b) {
  ASSERT_TRUE(identical(fw::fmod(a, b), std::fmod(a, b))) << a << " fmod " << b << " gave " << fw::fmod(a, b);
  ASSERT_TRUE(identical(fw::remainder(a, b), torch_remainder(a, b))) << a << " remainder " << b;
  ASSERT_TRUE(identical(fw::floor_divide(a, b), torch_floor_divide(a, b))) << a << " floor_divide " << b;
}

TEST(Math, DivisionWithRemainderIsExact) {
  std::mt19937_64 random(5);
  std::uniform_real_distribution<double> near(-100, 100);
  for (int i = 0; i < 300000; ++i) {
    const auto bits = random();
    expect_division_exact(fw::float_of(static_cast<fw::u32>(bits)), fw::float_of(static_cast<fw::u32>(bits >> 32)));
    expect_division_exact(static_cast<float>(near(random)), static_cast<float>(near(random)));
    expect_division_exact(std::rint(static_cast<float>(near(random))), std::rint(static_cast<float>(near(random))));
    expect_division_exact(near(random), near(random));
  }
  for (int i = 0; i < 2000; ++i) {
    expect_division_exact(fw::float_of(static_cast<fw::u64>(random())), fw::float_of(static_cast<fw::u64>(random())));
  }
  for (float a : kSpecial) {
    for (float b : kSpecial) expect_division_exact(a, b), expect_division_exact(double(a), double(b));
  }
}

TEST(Math, MaximumAndMinimumPropagateNan) { expect_extrema_propagate_nan(kSpecial); }

TEST(Math, SignComparisonsAndChoice) {
  EXPECT_EQ(fw::sign(-3.0f), -1);
  EXPECT_EQ(fw::sign(0x1p-149f), 1);
  EXPECT_EQ(fw::sign(static_cast<float>(NAN)), 0);  // as torch.sign
  EXPECT_FALSE(std::signbit(fw::sign(-0.0f)));
  EXPECT_EQ(fw::sign(fw::i64(-7)), -1);
  EXPECT_TRUE(fw::lt(1.0f, 2.0f) && fw::le(2.0, 2.0) && fw::gt(fw::i64(3), fw::i64(2)) && fw::ge(2.0f, 2.0f));
  EXPECT_TRUE(fw::eq(0.0f, -0.0f) && fw::ne(NAN, NAN) && fw::isnan(NAN) && !fw::isnan(1.0));
  EXPECT_TRUE(fw::logical_and(1.0f, -2.0f) && fw::logical_or(false, true) && fw::logical_not(fw::i64(0)));
  EXPECT_TRUE(fw::logical_and(0.5f, 0.25f) && fw::logical_and(static_cast<float>(NAN), 1.0f));
  EXPECT_EQ(fw::select(false, 1.0f, 2.0f), 2.0f);
  EXPECT_EQ(fw::square(-3.0f), 9.0f);
  EXPECT_TRUE(std::signbit(fw::neg(0.0f)));
}

TEST(Math, Integers) {
  constexpr fw::i64 least = std::numeric_limits<fw::i64>::min(), most = std::numeric_limits<fw::i64>::max();
  EXPECT_EQ(fw::add(most, fw::i64(1)), least);
  EXPECT_EQ(fw::sub(least, fw::i64(1)), most);
  EXPECT_EQ(fw::mul(most, fw::i64(2)), -2);
  EXPECT_EQ(fw::neg(least), least);
  EXPECT_EQ(fw::abs(least), least);
  EXPECT_EQ(fw::abs(fw::i64(-5)), 5);
  EXPECT_EQ(fw::maximum(fw::i64(-5), fw::i64(4)), 4);
  EXPECT_EQ(fw::minimum(fw::i64(-5), fw::i64(4)), -5);
  for (fw::i64 b : {fw::i64(0), fw::i64(-1)}) EXPECT_EQ(fw::remainder(least, b), 0);
  EXPECT_EQ(fw::floor_divide(fw::i64(7), fw::i64(0)), 0);
  EXPECT_EQ(fw::floor_divide(least, fw::i64(-1)), least);
  for (fw::i64 a = -20; a <= 20; ++a) {
    for (fw::i64 b = -7; b <= 7; ++b) {
      if (b == 0) continue;
      const auto q = static_cast<fw::i64>(std::floor(double(a) / double(b)));
      EXPECT_EQ(fw::floor_divide(a, b), q);
      EXPECT_EQ(fw::remainder(a, b), a - q * b);
      EXPECT_EQ(fw::fmod(a, b), a % b);
    }
  }
}

// ---------------------------------------------------------------- conversions

double value_of_bits(unsigned bits, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const double sign = bits >> (exponent_bits + mantissa_bits) ? -1 : 1;
  const int e = bits >> mantissa_bits & ((1 << exponent_bits) - 1), m = bits & ((1 << mantissa_bits) - 1);
  if (e == (1 << exponent_bits) - 1) return m ? NAN : sign * kInfD;
  return sign *
         (e ? std::ldexp(m + (1 << mantissa_bits), e - bias - mantissa_bits) : std::ldexp(m, 1 - bias - mantissa_bits));
}

// Nearest value with so many mantissa bits, ties to even.
double nearest(double x, int exponent_bits, int mantissa_bits) {
  if (std::isnan(x) || std::isinf(x) || x == 0) return x;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int e = std::max(std::ilogb(x), 1 - bias);
  const double rounded = std::ldexp(std::nearbyint(std::ldexp(x, mantissa_bits - e)), e - mantissa_bits);
  return std::fabs(rounded) >= std::ldexp(1.0, bias + 1) ? std::copysign(kInfD, x) : rounded;
}

TEST(Convert, EveryHalfAndBfloat16ToFloatAndBack) {
  for (unsigned b = 0; b < 65536; ++b) {
    const fw::half h{static_cast<fw::u16>(b)};
    const fw::bfloat16 g{static_cast<fw::u16>(b)};
    const double hv = value_of_bits(b, 5, 10), gv = value_of_bits(b, 8, 7);
    ASSERT_TRUE(identical<double>(fw::convert<float>(h), hv)) << b;
    ASSERT_TRUE(identical<double>(fw::convert<double>(g), gv)) << b;
    ASSERT_TRUE(std::isnan(hv) || fw::convert<fw::half>(fw::convert<float>(h)).bits == b);
    ASSERT_TRUE(std::isnan(gv) || fw::convert<fw::bfloat16>(fw::convert<double>(g)).bits == b);
  }
}

TEST(Convert, FloatToHalfAndBfloat16RoundsToNearestEven) {
  const auto check = [](float x) {
    const auto h = fw::convert<fw::half>(x);
    const auto g = fw::convert<fw::bfloat16>(x);
    ASSERT_TRUE(identical(value_of_bits(h.bits, 5, 10), nearest(x, 5, 10))) << x;
    ASSERT_TRUE(identical(value_of_bits(g.bits, 8, 7), nearest(x, 8, 7))) << x;
  };
  for (std::uint64_t b = 0; b < (1ull << 32); b += 4007) check(fw::float_of(static_cast<fw::u32>(b)));
  for (unsigned b = 0; b < 65536; ++b) {  // every value, every tie and their neighbours
    for (int offset : {-1, 0, 1}) {
      for (fw::u32 tie : {fw::u32(b) << 16, fw::u32(b) << 16 | 0x8000u}) check(fw::float_of(tie + offset));
      const float h = fw::to_float(fw::half{static_cast<fw::u16>(b)});
      for (fw::u32 middle : {fw::bits_of(h), fw::bits_of(h) + 0x1000}) check(fw::float_of(middle + offset));
      check(static_cast<float>((2 * int(b % 2048) + 1) * 0x1p-25) + static_cast<float>(offset) * 0x1p-40f);
    }
  }
  EXPECT_EQ(fw::convert<fw::half>(65519.99f).bits, 0x7bff);
  EXPECT_EQ(fw::convert<fw::half>(65520.0f).bits, 0x7c00);
  EXPECT_EQ(fw::convert<fw::half>(1.00048828125 + 1e-12).bits, 0x3c00);  // through float: a tie there
}

TEST(Convert, CastsOfPyTorch) {
  EXPECT_TRUE(fw::convert<bool>(static_cast<float>(NAN)) && fw::convert<bool>(0x1p-149f) && !fw::convert<bool>(-0.0f));
  EXPECT_TRUE(fw::convert<bool>(fw::half{1}) && !fw::convert<bool>(fw::bfloat16{0x8000}));
  EXPECT_EQ(fw::convert<fw::u8>(-1.5f), 255);
  EXPECT_EQ(fw::convert<fw::u8>(300.0), 44);
  EXPECT_EQ(fw::convert<fw::i8>(-1.9f), -1);
  EXPECT_EQ(fw::convert<fw::i64>(-2.9), -2);
  EXPECT_EQ(fw::convert<fw::i64>(fw::half{0xc100}), -2);
  EXPECT_EQ(fw::convert<fw::u8>(true), 1);
  EXPECT_EQ(fw::convert<float>(fw::u8(200)), 200.0f);
  EXPECT_EQ(fw::convert<fw::i8>(fw::i64(300)), 44);
  EXPECT_EQ(fw::convert<fw::half>(fw::i64(2049)).bits, fw::convert<fw::half>(2048.0f).bits);
  EXPECT_EQ(fw::convert<fw::bfloat16>(static_cast<float>(NAN)).bits, 0x7fc0);
}

// ---------------------------------------------------------------- the text as the kernel compiler sees it

std::string output_of(const std::string& command, int& status) {
  std::string text;
  FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  char buffer[4096];
  while (pipe && fgets(buffer, sizeof buffer, pipe)) text += buffer;
  status = pipe ? pclose(pipe) : -1;
  return text;
}

// One loop per line; the compiler must report each line as vectorised.
TEST(Kernels, EveryFloatLoopVectorises) {
  const char* chosen = std::getenv("CXX");
  const std::string cxx = chosen ? chosen : "c++";
  int status = 0;
  const bool clang = output_of(cxx + " --version", status).find("clang") != std::string::npos;
  ASSERT_EQ(status, 0) << cxx;

  const std::string root = FUSEWRIGHT_SOURCE_DIR "/src/kernels/";

  std::vector<std::string> names, loops;
  const auto loop = [&](const std::string& name, const std::string& in, const std::string& out, const std::string& e) {
    names.push_back(name);
    loops.push_back("void loop" + std::to_string(loops.size()) + "(const " + in + "* __restrict x, const " + in +
                    "* __restrict y, " + out +
                    "* __restrict z, long n) {\n_Pragma(\"omp simd\") for (long i = 0; i < n; ++i) { z[i] = " + e +
                    "; (void)y; }\n}\n");
  };
  for (const Unary& u : kUnary) loop(u.name, "float", "float", "fw::" + std::string(u.name) + "(x[i])");
  for (const char* f : {"neg", "sign", "square", "normal_cdf"})
    loop(f, "float", "float", "fw::" + std::string(f) + "(x[i])");
  for (const char* f : {"add", "sub", "mul", "div", "maximum", "minimum", "pow", "fmod", "remainder", "floor_divide"}) {
    loop(f, "float", "float", "fw::" + std::string(f) + "(x[i], y[i])");
  }
  for (const char* f : {"lt", "le", "gt", "ge", "eq", "ne", "logical_and", "logical_or"}) {
    loop(f, "float", "float", "fw::select(fw::" + std::string(f) + "(x[i], y[i]), x[i], 0.0f)");
  }
  for (const char* t : {"fw::half", "fw::bfloat16"}) {
    loop(std::string("load ") + t, t, "float", "fw::convert<float>(x[i])");
    loop(std::string("store ") + t, "float", t, "fw::convert<" + std::string(t) + ">(x[i])");
  }
  std::string text = "#include \"" + root + "prelude.h\"\n#include \"" + root + "math.h\"\n";
  std::vector<long> lines;
  for (const std::string& l : loops) {
    lines.push_back(std::count(text.begin(), text.end(), '\n') + 2);
    text += l;
  }
  std::string folder = testing::TempDir() + "fw_math_XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const std::string source = folder + "/loops.cpp";
  std::ofstream(source) << text;
  const std::string report = output_of(cxx +
                                           " -std=c++17 -O3 -march=native -ffp-contract=off -fno-math-errno "
                                           "-fno-trapping-math -fopenmp-simd -fno-exceptions " +
                                           (clang ? "-Rpass=loop-vectorize" : "-fopt-info-vec-optimized") +
                                           " -Wall -Wextra -c " + source + " -o " + folder + "/loops.o",
                                       status);
  ASSERT_EQ(status, 0) << report;
  EXPECT_EQ(report.find("warning:"), std::string::npos) << report;

  std::set<long> vectorised;
  std::stringstream stream(report);
  for (std::string line; std::getline(stream, line);) {
    const auto at = line.find("loops.cpp:");
    const bool good =
        line.find("loop vectorized") != std::string::npos || line.find("vectorized loop") != std::string::npos;
    if (at != std::string::npos && good) vectorised.insert(std::atol(line.c_str() + at + 10));
  }
  for (std::size_t i = 0; i < names.size(); ++i) {
    EXPECT_TRUE(vectorised.count(lines[i])) << names[i] << " was not vectorised";
  }
  const std::string symbols = output_of("nm -u " + folder + "/loops.o", status);
  EXPECT_TRUE(status != 0 || symbols.empty()) << "calls out of the kernel: " << symbols;
  std::filesystem::remove_all(folder);
}

}  // namespace
