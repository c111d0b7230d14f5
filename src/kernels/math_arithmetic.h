// Part of math.h: formats, building blocks and all that needs no series.
#ifndef FW_KERNELS_MATH_ARITHMETIC_H
#define FW_KERNELS_MATH_ARITHMETIC_H

#if FW_CUDA || defined(__FMA__) || defined(__ARM_FEATURE_FMA)
#define FW_FMA 1
#else
#define FW_FMA 0
#endif

namespace fw {

// ---------------------------------------------------------------- formats and building blocks

template <class T>
struct ieee;
template <>
struct ieee<float> {
  using bits = u32;
  static constexpr int mantissa = 23;
  static constexpr u32 bias = 127;
  static constexpr u32 sign = 0x80000000u;
  static constexpr u32 infinity = 0x7f800000u, nan = 0x7fc00000u;
  static constexpr u32 root_half = 0x3f3504f3u;  // bits of sqrt(1/2)
  static constexpr float min_normal = 0x1p-126f;
  static constexpr float shifter = 0x1.8p23f;  // adding it rounds to an integer, held in the low bits
  static constexpr float log2e = 0x1.715476p+0f, log2e_lo = 0x1.4ae0cp-26f, log2e_less_1 = 0x1.c551dap-2f;
  static constexpr float ln2 = 0x1.62e43p-1f, ln2_rest = -0x1.05c61p-29f;
  static constexpr float ln2_hi = 0x1.62e4p-1f, ln2_lo = 0x1.7f7d1cp-20f;  // n * ln2_hi is exact
  static constexpr float pio2_hi = 0x1.921fb6p+0f, pio2_lo = -0x1.777a5cp-25f;
  static constexpr float exp_range = 104, exp2_range = 151;     // beyond: 0 and infinity
  static constexpr float expm1_min = -20, expm1_max = 89;       // beyond: -1 and infinity
  static constexpr float tanh_range = 10, erfc_range = 10.19f;  // beyond: 1 and 0
  static constexpr float erfcx_hi = 0x1.058672p+0f, erfcx_lo = -0x1.134278p-26f;
};
template <>
struct ieee<double> {
  using bits = u64;
  static constexpr int mantissa = 52;
  static constexpr u64 bias = 1023;
  static constexpr u64 sign = 0x8000000000000000u;
  static constexpr u64 infinity = 0x7ff0000000000000u, nan = 0x7ff8000000000000u;
  static constexpr u64 root_half = 0x3fe6a09e667f3bcdu;
  static constexpr double min_normal = 0x1p-1022;
  static constexpr double shifter = 0x1.8p52;
  static constexpr double log2e = 0x1.71547652b82fep+0, log2e_less_1 = 0x1.c551d94ae0bf8p-2;
  static constexpr double ln2 = 0x1.62e42fefa39efp-1;
  static constexpr double ln2_hi = 0x1.62e42fefa3p-1, ln2_lo = 0x1.3de6af278ece6p-42;
  static constexpr double pio2_hi = 0x1.921fb54442d18p+0, pio2_lo = 0x1.1a62633145c07p-54;
  static constexpr double exp_range = 746, exp2_range = 1076;
  static constexpr double expm1_min = -40, expm1_max = 710;
  static constexpr double tanh_range = 22, erfc_range = 27.3;
  static constexpr double erfcx_hi = 0x1.058671b52c776p+0, erfcx_lo = -0x1.b0353dd6169e9p-56;
};

template <class T>
FW_FN T infinity() {
  return float_of(ieee<T>::infinity);
}
template <class T>
FW_FN T nan() {
  return float_of(ieee<T>::nan);
}

// a * b + c, fused where the machine can; no formula here relies on the fusion.
#if FW_CUDA
FW_FN float mad(float a, float b, float c) { return __fmaf_rn(a, b, c); }
FW_FN double mad(double a, double b, double c) { return __fma_rn(a, b, c); }
#elif FW_FMA
FW_FN float mad(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
FW_FN double mad(double a, double b, double c) { return __builtin_fma(a, b, c); }
#else
FW_FN float mad(float a, float b, float c) { return a * b + c; }
FW_FN double mad(double a, double b, double c) { return a * b + c; }
#endif

// What rounding took from p = a * b, exactly.
template <class T>
FW_FN T product_error(T a, T b, T p) {
#if FW_FMA
  return mad(a, b, -p);
#else
  constexpr T split = T(u64(1) << (ieee<T>::mantissa / 2 + 1)) + 1;  // Veltkamp's halves, Dekker's sum
  const T a_hi = a * split - (a * split - a), a_lo = a - a_hi;
  const T b_hi = b * split - (b * split - b), b_lo = b - b_hi;
  return a_lo * b_lo - (((p - a_hi * b_hi) - a_lo * b_hi) - a_hi * b_lo);
#endif
}

// a - q * d, exact if q is close to a / d.
template <class T>
FW_FN T residual(T a, T q, T d) {
#if FW_FMA
  return mad(-q, d, a);
#else
  const T p = q * d;
  return (a - p) - product_error(q, d, p);
#endif
}

// An unevaluated sum.
template <class T>
struct pair {
  T hi, lo;
};

// c0 + c1 x + c2 x^2 + ...
template <class T>
FW_FN T poly(T, T c0) {
  return c0;
}
template <class T, class... C>
FW_FN T poly(T x, T c0, C... c) {
  return mad(x, poly(x, c...), c0);
}

// ---------------------------------------------------------------- sign, rounding

#if FW_CUDA
FW_FN float abs(float x) { return ::fabsf(x); }  // part of the instruction that takes it
FW_FN double abs(double x) { return ::fabs(x); }
#else
FW_FN float abs(float x) { return float_of(bits_of(x) & ~ieee<float>::sign); }
FW_FN double abs(double x) { return float_of(bits_of(x) & ~ieee<double>::sign); }
#endif
FW_FN i64 neg(i64 x) { return static_cast<i64>(0 - static_cast<u64>(x)); }
FW_FN i64 abs(i64 x) { return x < 0 ? neg(x) : x; }
FW_FN float neg(float x) { return -x; }
FW_FN double neg(double x) { return -x; }
template <class T>
FW_FN T sign(T x) {  // 0 for NaN, as in PyTorch
  return T(T(0) < x) - T(x < T(0));
}
template <class T>
FW_FN bool isnan(T x) {
  return x != x;
}
template <class T>
FW_FN T copysign(T magnitude, T x) {
  return float_of((bits_of(magnitude) & ~ieee<T>::sign) | (bits_of(x) & ieee<T>::sign));
}
template <class T>
FW_FN T signed_as(T magnitude, T x) {  // copysign of what has no sign of its own: an instruction less on CUDA
  return float_of(bits_of(magnitude) | (bits_of(x) & ieee<T>::sign));
}

template <class T>
FW_FN T at_most(T x, T limit) {  // keeps NaN, unlike minimum instructions
  return x > limit ? limit : x;
}
#if FW_CUDA
FW_FN float at_most(float x, float limit) { return min_or_nan(x, limit); }
#endif
template <class T>
FW_FN T clamp(T x, T range) {
  return copysign(at_most(abs(x), range), x);
}

#if FW_CUDA
FW_FN float floor(float x) { return ::floorf(x); }
FW_FN float ceil(float x) { return ::ceilf(x); }
FW_FN float trunc(float x) { return ::truncf(x); }
FW_FN float round(float x) { return ::rintf(x); }
FW_FN double floor(double x) { return ::floor(x); }
FW_FN double ceil(double x) { return ::ceil(x); }
FW_FN double trunc(double x) { return ::trunc(x); }
FW_FN double round(double x) { return ::rint(x); }
#elif defined(__SSE4_1__) || defined(__aarch64__)
FW_FN float floor(float x) { return __builtin_floorf(x); }
FW_FN float ceil(float x) { return __builtin_ceilf(x); }
FW_FN float trunc(float x) { return __builtin_truncf(x); }
FW_FN float round(float x) { return __builtin_rintf(x); }
FW_FN double floor(double x) { return __builtin_floor(x); }
FW_FN double ceil(double x) { return __builtin_ceil(x); }
FW_FN double trunc(double x) { return __builtin_trunc(x); }
FW_FN double round(double x) { return __builtin_rint(x); }
#else
template <class T>
FW_FN T round(T x) {
  constexpr T big = T(u64(1) << ieee<T>::mantissa);
  const T a = abs(x);
  return a < big ? copysign((a + big) - big, x) : x;
}
template <class T>
FW_FN T floor(T x) {
  const T r = round(x);
  return copysign(r > x ? r - 1 : r, x);
}
template <class T>
FW_FN T ceil(T x) {
  const T r = round(x);
  return copysign(r < x ? r + 1 : r, x);
}
template <class T>
FW_FN T trunc(T x) {
  return copysign(floor(abs(x)), x);
}
#endif

// ---------------------------------------------------------------- comparison and choice

#define FW_OPERATOR(result, name, op) \
  template <class T>                  \
  FW_FN result name(T a, T b) {       \
    return a op b;                    \
  }
FW_OPERATOR(bool, lt, <)
FW_OPERATOR(bool, le, <=)
FW_OPERATOR(bool, gt, >)
FW_OPERATOR(bool, ge, >=)
FW_OPERATOR(bool, eq, ==)
FW_OPERATOR(bool, ne, !=)
FW_OPERATOR(bool, logical_and, &&)
FW_OPERATOR(bool, logical_or, ||)
template <class T>
FW_FN bool logical_not(T a) {
  return !a;
}
template <class T>
FW_FN T select(bool condition, T a, T b) {
  return condition ? a : b;
}
template <class T>
FW_FN T maximum(T a, T b) {  // NaN if either is
  const T m = a > b ? a : b;
  return a != a ? a : m;
}
template <class T>
FW_FN T minimum(T a, T b) {
  const T m = a < b ? a : b;
  return a != a ? a : m;
}
#if FW_CUDA
FW_FN float maximum(float a, float b) { return max_or_nan(a, b); }
FW_FN float minimum(float a, float b) { return min_or_nan(a, b); }
#endif

// ---------------------------------------------------------------- arithmetic

FW_OPERATOR(T, add, +)
FW_OPERATOR(T, sub, -)
FW_OPERATOR(T, mul, *)
FW_OPERATOR(T, div, /)
#undef FW_OPERATOR
// Integers wrap around.
FW_FN i64 add(i64 a, i64 b) { return static_cast<i64>(static_cast<u64>(a) + static_cast<u64>(b)); }
FW_FN i64 sub(i64 a, i64 b) { return static_cast<i64>(static_cast<u64>(a) - static_cast<u64>(b)); }
FW_FN i64 mul(i64 a, i64 b) { return static_cast<i64>(static_cast<u64>(a) * static_cast<u64>(b)); }
template <class T>
FW_FN T square(T x) {
  return mul(x, x);
}
#if FW_CUDA
FW_FN double sqrt(double x) { return __dsqrt_rn(x); }
// x rsqrt(x) with one residual step; 0.5 ulp, 0.75 where the residual is denormal.
FW_FN float sqrt(float x) {
  const bool tiny = x < ieee<float>::min_normal;
  const float s = tiny ? x * 0x1p24f : x;
  const float y = rsqrt_approx(s);
  const float g = s * y;
  const float better = mad(mad(-g, g, s), 0.5f * y, g);
  const float r = x == 0 || x == infinity<float>() ? x : better;
  return tiny ? r * 0x1p-12f : r;
}
#else
FW_FN float sqrt(float x) { return __builtin_sqrtf(x); }
FW_FN double sqrt(double x) { return __builtin_sqrt(x); }
#endif
template <class T>
FW_FN T reciprocal(T x) {
  return 1 / x;
}
template <class T>
FW_FN T rsqrt(T x) {
  return 1 / sqrt(x);
}
#if FW_CUDA
// Scaled so that neither the operand nor the result of the instruction is denormal; 1.0 ulp, all the instruction's.
FW_FN float reciprocal(float x) {
  const float s = abs(x) < 1 ? 0x1p24f : 0.25f;
  return rcp_approx(x * s) * s;
}
// One residual step, which also makes x / x = 1; 0.5 ulp, 1.0 in denormal results and next to overflow.
// A tiny a is scaled too, for its residual would be denormal. No residual below |a| means
// that q is final: 0 with its sign, infinity or NaN.
FW_FN float div(float a, float b) {
  const bool tiny = (abs(b) < 0x1p-24f) | (abs(a) < 0x1p-100f);  // not ||, which costs an instruction more
  a = tiny ? a * 0x1p24f : a, b = tiny ? b * 0x1p24f : b;
  const bool huge = abs(b) > 0x1p125f;
  a = huge ? a * 0.25f : a, b = huge ? b * 0.25f : b;
  const float y = rcp_approx(b);
  const float q = a * y;
  const float r = mad(-q, b, a);
  return abs(r) < abs(a) ? mad(r, y, q) : q;
}
// One Newton step; 1.0 ulp. At 0 and infinity it is undefined, and the instruction's result final.
FW_FN float rsqrt(float x) {
  const bool tiny = x < ieee<float>::min_normal;
  const float s = tiny ? x * 0x1p24f : x;
  const float y = rsqrt_approx(s);
  const float e = mad(-(s * y), y, 1.0f);
  const float r = abs(e) < 1 ? mad(0.5f * y, e, y) : y;
  return tiny ? r * 0x1p12f : r;
}
#endif

// A number that many are divided by.
template <class T>
struct Divisor {
  T value;
};
template <class T>
FW_FN Divisor<T> divisor_of(T b) {
  return {b};
}
template <class T>
FW_FN T div(T a, Divisor<T> b) {
  return a / b.value;
}
// One that counts something.
template <class T>
FW_FN Divisor<T> count_of(T n) {
  return {n};
}
#if FW_CUDA
// The reciprocal is the sum of the two, of one sign, so that infinities meet no others.
template <>
struct Divisor<float> {
  float scale, reciprocal, rest;
};
// Of what neither is denormal nor has a denormal reciprocal. 0 and infinity have a residual that is undefined.
FW_FN Divisor<float> exact_reciprocal(float b, float scale) {
  const float y = rcp_approx(b);
  const float e = mad(-b, y, 1.0f);
  const float nearest = abs(e) < 1 ? mad(y, e, y) : y;
  const float below = mad(-b, nearest, 1.0f) < 0 ? float_of(bits_of(nearest) - 1) : nearest;
  const float residual = mad(-b, below, 1.0f);
  return {scale, below, below * (residual > 0 ? residual : 0x1p-60f)};
}
// Scaled so that neither is. Where a numerator leaves the range of float with it, the quotient does too.
FW_FN Divisor<float> divisor_of(float b) {
  const float scale = abs(b) < 0x1p-60f ? 0x1p60f : abs(b) > 0x1p60f ? 0x1p-60f : 1.0f;
  return exact_reciprocal(b * scale, scale);
}
// From 1 to 2^60: nothing has to be scaled. Or 0, of what has no elements.
FW_FN Divisor<float> count_of(float n) { return exact_reciprocal(n, 1.0f); }
// As div above; 0.5 ulp, 1.0 just above the denormal numbers, 1.5 in them.
FW_FN float div(float a, Divisor<float> b) {
  a *= b.scale;
  return mad(a, b.reciprocal, a * b.rest);
}
#endif

// ---------------------------------------------------------------- division with remainder

#if FW_CUDA
FW_FN float fmod(float x, float y) { return ::fmodf(x, y); }
FW_FN double fmod(double x, double y) { return ::fmod(x, y); }
#else
// A step takes 51 bits off the quotient of at most 277 bits, exactly.
FW_FN double fmod_step(double rest, double y, double inverse) { return residual(rest, round(rest * inverse), y); }
FW_FN float fmod(float x, float y) {
  const double b = abs(y), inverse = 1 / b;
  double r = abs(x);
  r = fmod_step(r, b, inverse), r = fmod_step(r, b, inverse);
  r = fmod_step(r, b, inverse), r = fmod_step(r, b, inverse);
  r = fmod_step(r, b, inverse), r = fmod_step(r, b, inverse);
  r = r < 0 ? r + b : r;
  const float finite = copysign(static_cast<float>(r), x);
  return abs(y) == infinity<float>() && abs(x) < infinity<float>() ? x : finite;
}
FW_FN double fmod(double x, double y) {
  const double b = abs(y);
  double r = abs(x);
  if (!(b > 0) || !(r < infinity<double>())) return nan<double>();
  while (r >= b) {  // subtract b times the largest power of two: exact
    const u64 steps = (bits_of(r) >> 52) - (bits_of(b) >> 52);
    double t = b;
    for (u64 i = 0; i < steps; ++i) t *= 2;
    r -= t > r ? t / 2 : t;
  }
  return copysign(r, x);
}
#endif

// As in Python: the sign of the divisor.
template <class T>
FW_FN T remainder(T a, T b) {
  const T r = fmod(a, b);
  return r != 0 && (b < 0) != (r < 0) ? r + b : r;
}
template <class T>
FW_FN T floor_divide(T a, T b) {  // PyTorch's steps, so that the rounding is PyTorch's too
  const T r = fmod(a, b);
  const T q = (a - r) / b;
  const T whole = r != 0 && (b < 0) != (r < 0) ? q - 1 : q;
  const T down = floor(whole);
  const T nearest = whole - down > T(0.5) ? down + 1 : down;
  const T finite = whole != 0 ? nearest : copysign(T(0), a / b);
  return b == 0 ? a / b : finite;
}
// Integers: a zero divisor gives 0 instead of a trap, and -1 is kept from the divider, which traps on the
// least i64.
FW_FN i64 fmod(i64 a, i64 b) { return b == 0 || b == -1 ? 0 : a % (b == 0 || b == -1 ? 1 : b); }
FW_FN i64 remainder(i64 a, i64 b) {
  const i64 r = fmod(a, b);
  return r != 0 && (b < 0) != (r < 0) ? r + b : r;
}
FW_FN i64 floor_divide(i64 a, i64 b) {
  const i64 q = a / (b == 0 || b == -1 ? 1 : b);
  const i64 down = fmod(a, b) != 0 && (a < 0) != (b < 0) ? q - 1 : q;
  return b == 0 ? 0 : b == -1 ? neg(a) : down;
}

}  // namespace fw

#endif  // FW_KERNELS_MATH_ARITHMETIC_H
