// The scalar mathematics that generated kernels call: one function per operator, named as the operator.
//
// Needs prelude.h in front; includes nothing. Polynomials come from fit/minimax.py.
// Bounds, held by tests/kernels/math_test.cpp on the processor: 2 ulp for every input, special values as in C and
// PyTorch, no flushing of denormals. On CUDA sin, cos, pow, fmod and roundings are the device's own. Float functions
// have a form of their own on CUDA where the device's approximations (MUFU) or FMNMX.NAN save instructions: a kernel
// that moves 8 bytes an element at the speed of memory has 27 issue slots for it. The bound next to each is the largest
// error found with every approximation as wrong as its manual allows, at random or always the same way
// (tests/kernels/math_device_test.cpp). Straight-line code without tables or calls, so that loops vectorise; sin, cos
// and fmod of double are the exceptions: they branch to a rare slow path. Flags: -ffp-contract=off -fno-math-errno
// -fno-trapping-math, never fast-math; NVRTC may fuse products into sums.
#ifndef FW_KERNELS_MATH_H  // not `#pragma once`, which warns in pasted text
#define FW_KERNELS_MATH_H

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
#if FW_CUDA
template <>
struct Divisor<float> {
  float value, scale, reciprocal;
};
// Scaled so that neither the number nor its reciprocal is denormal. Where a numerator leaves the range of float with
// it, the quotient does too.
FW_FN Divisor<float> divisor_of(float b) {
  const float scale = abs(b) < 0x1p-60f ? 0x1p60f : abs(b) > 0x1p60f ? 0x1p-60f : 1.0f;
  const float y = rcp_approx(b * scale);
  const float e = mad(-(b * scale), y, 1.0f);
  return {b * scale, scale, abs(e) < 1 ? mad(y, e, y) : y};
}
// As div above; 0.5 ulp, 1.5 in denormal results and where the residual is denormal.
FW_FN float div(float a, Divisor<float> b) {
  a *= b.scale;
  const float q = a * b.reciprocal;
  const float r = mad(-q, b.value, a);
  return abs(r) < abs(a) ? mad(r, b.reciprocal, q) : q;
}
#endif

// ---------------------------------------------------------------- exponential family

// e^r = 1 + r + r^2 exp_tail(r) for |r| <= ln(2) / 2
FW_FN float exp_tail(float r) {
  return poly(r, 0x1.fffffep-2f, 0x1.5554bp-3f, 0x1.55572cp-5f, 0x1.1227bcp-7f, 0x1.6b5a84p-10f);
}
FW_FN double exp_tail(double r) {
  return poly(r, 0x1.p-1, 0x1.5555555555559p-3, 0x1.5555555555551p-5, 0x1.111111110f64bp-7, 0x1.6c16c16c18e4ap-10,
              0x1.a01a01b00a393p-13, 0x1.a01a01970d442p-16, 0x1.71ddf7f876f3bp-19, 0x1.27e50040e3e6p-22,
              0x1.af5f5d8839245p-26, 0x1.1f370200db0f1p-29);
}

// A value p * 2^n, not yet put together so that a factor can join before the result becomes denormal.
template <class T>
struct scaled {
  T p;
  typename ieee<T>::bits n;  // n + 2 bias in the low bits
};
template <class T>
FW_FN T value_of(scaled<T> s) {  // in two steps, because 2^n itself may overflow or be denormal
  const auto half_n = s.n >> 1;
  return s.p * float_of(half_n << ieee<T>::mantissa) * float_of((s.n - half_n) << ieee<T>::mantissa);
}

// x = n ln(2) + r + r_lo, with n + offset in the low bits of `n`.
template <class T>
struct exp_argument {
  T r, r_lo;
  typename ieee<T>::bits n;
};
template <class T>
FW_FN exp_argument<T> exp_reduce(T x, T offset) {
  const T shifter = ieee<T>::shifter + offset;
  const T t = mad(x, ieee<T>::log2e, shifter);
  const T n = t - shifter;
  const T r_hi = mad(n, -ieee<T>::ln2_hi, x);
  const T r = mad(n, -ieee<T>::ln2_lo, r_hi);
  return {r, mad(n, -ieee<T>::ln2_lo, r_hi - r), bits_of(t)};
}
template <class T>
FW_FN T exp_of_reduced(T r) {
  return mad(mad(exp_tail(r), r, T(1)), r, T(1));
}
template <class T>
FW_FN scaled<T> exp_parts(T x) {  // for |x| <= exp_range
  const exp_argument<T> a = exp_reduce(x, T(2 * ieee<T>::bias));
  return {exp_of_reduced(a.r), a.n};
}
template <class T>
FW_FN T exp(T x) {
  return value_of(exp_parts(clamp(x, ieee<T>::exp_range)));
}

#if FW_CUDA
// 2^n 2^f with |f| <= 1/2. n is clamped to the exponents of normal numbers, by a saturated sum, and f takes what lies
// beyond: the last product makes denormal results, 0 and infinity. 2.7 ulp, of which 2.1 are
// the instruction's.
FW_FN float exp(float x) {
  constexpr float range = 253, shifter = ieee<float>::shifter + 127;
  const float t = mad(mad_saturated(x, ieee<float>::log2e / range, 126 / range), range, shifter - 126);
  const float n = t - shifter;
  const float f = mad(x, ieee<float>::log2e_lo, mad(x, ieee<float>::log2e, -n));
  return ex2_approx(f) * float_of(bits_of(t) << 23);
}
#endif

template <class T>
FW_FN scaled<T> exp2_parts(T hi, T lo) {  // 2^(hi + lo) for |hi| <= exp2_range
  constexpr T shifter = ieee<T>::shifter + 2 * ieee<T>::bias;
  const T t = hi + shifter;
  const T r = ((hi - (t - shifter)) + lo) * ieee<T>::ln2;
  return {exp_of_reduced(r), bits_of(t)};
}
template <class T>
FW_FN T exp2(T x) {
  return value_of(exp2_parts(clamp(x, ieee<T>::exp2_range), T(0)));
}
#if FW_CUDA
FW_FN float exp2(float x) {  // 2.1 ulp, the instruction's own, which flushes denormal results
  const bool tiny = x < -125;
  const float y = ex2_approx(tiny ? x + 24 : x);
  return tiny ? y * 0x1p-24f : y;
}
#endif

// (e^x - 1) * unit, but for the sign of zero; x reduced so that x.n, as an exponent, makes 2^n * unit.
template <class T>
FW_FN pair<T> expm1_of(exp_argument<T> x, T unit) {
  const T m = mad(x.r * x.r, exp_tail(x.r), x.r_lo) + x.r;  // e^r - 1
  const T s = float_of(x.n << ieee<T>::mantissa);
  const T c = s - unit;
  const T h = mad(s, m, c);
  return {h, mad(s, m, c - h)};
}
template <class T>
FW_FN T expm1(T x) {
  T c = x > ieee<T>::expm1_max ? ieee<T>::expm1_max : x;
  c = c < ieee<T>::expm1_min ? ieee<T>::expm1_min : c;
  const T half_result = expm1_of(exp_reduce(c, T(ieee<T>::bias - 1)), T(0.5)).hi;  // 2^n may overflow
  return abs(x) < T(0x1p-64) ? x : 2 * half_result;                                // half a denormal is not exact
}

// Near 1 / d for 1 <= d <= 2. In float without the divider, which serves all lanes in turn.
FW_FN double rough_reciprocal(double d) { return 1 / d; }
FW_FN float rough_reciprocal(float d) {
#if FW_FMA
  const float y = poly(d, 210 / 99.0f, -144 / 99.0f, 32 / 99.0f);  // Chebyshev's: within 1/99
  return mad(y, mad(-d, y, 1.0f), y);
#else
  return 1 / d;
#endif
}
// Near 1 / d for 1 <= d < 2^100.
template <class T>
FW_FN T near_reciprocal(T d) {
  return 1 / d;
}
#if FW_CUDA
FW_FN float near_reciprocal(float d) { return rcp_approx(d); }
#endif
// (a + a_lo) / (d + d_lo), given y near 1 / d.
template <class T>
FW_FN T quotient(T a, T a_lo, T d, T d_lo, T y) {
  const T q = a * y;
  return mad(mad(-d_lo, q, residual(a, q, d) + a_lo), y, q);
}
template <class T>
FW_FN T quotient(T a, T d, T d_lo, T y) {
  const T q = a * y;
  return mad(mad(-d_lo, q, residual(a, q, d)), y, q);
}

template <class T>
FW_FN T tanh(T x) {
  const T a = at_most(abs(x), ieee<T>::tanh_range);
  const pair<T> m = expm1_of(exp_reduce(-2 * a, T(ieee<T>::bias)), T(1));  // -m / (2 + m)
  const T d = 2 + m.hi;
  const T d_lo = ((2 - d) + m.hi) + m.lo;
  return copysign(quotient(m.hi, m.lo, d, d_lo, rough_reciprocal(d)), x);
}

template <class T>
FW_FN T sigmoid(T x) {  // 1 / (1 + e^-x), from e^-|x| so that small results keep their digits
  const T e = value_of(exp_parts(-at_most(abs(x), ieee<T>::exp_range)));
  const T d = 1 + e;
  return quotient(x < 0 ? e : T(1), d, e - (d - 1), rough_reciprocal(d));
}
#if FW_CUDA
// tanh(x) = x + x u tanh_tail(u), u = x^2, for |x| <= 0.9
FW_FN float tanh_tail(float u) {
  return poly(u, -0x1.555504p-2f, 0x1.11017ap-3f, -0x1.b8161ep-5f, 0x1.567e1ap-6f, -0x1.c19324p-8f, 0x1.55cf2ep-10f);
}
// Beyond 0.9: 1 - 2 / (e^2x + 1), where little of the approximations' errors is left. 1.8 ulp.
FW_FN float tanh(float x) {
  const float u = x * x;
  const float small = mad(x, mad(u, tanh_tail(u), 0.0f), x);  // + 0: otherwise -0 would become 0
  const float e = ex2_approx(abs(x) * (2 * ieee<float>::log2e));
  const float large = mad(rcp_approx(e + 1), -2.0f, 1.0f);
  return abs(x) < 0.9f ? small : copysign(large, x);
}

// e^-x = 2^t e^d, where d is what rounding t took away; one residual step for the reciprocal, which takes d in. What is
// below the normal numbers becomes 0. 5.1 ulp, of which 4.2 are ex2_approx's, where its result is just above a power
// of 2 and its reciprocal just below one.
FW_FN float sigmoid(float x) {
  const float c = min_or_nan(max_or_nan(x, -88.5f), 88.5f);  // 2^t is finite
  const float t = c * -ieee<float>::log2e;
  const float d = mad(t, -ieee<float>::ln2_rest, mad(t, -ieee<float>::ln2, -c));
  const float e = ex2_approx(t);
  const float y = rcp_approx(1 + e);
  const float rest = 1 - y;
  return mad(y, mad(-rest, d, mad(-y, e, rest)), y);
}
#endif

// ---------------------------------------------------------------- logarithms

// log(1 + f) = f + f^2 log_tail(f) for sqrt(1/2) <= 1 + f <= sqrt(2)
FW_FN float log_tail(float f) {
  return poly(f, -0x1.fffff8p-2f, 0x1.55555p-2f, -0x1.00043p-2f, 0x1.99a3dcp-3f, -0x1.5425fcp-3f, 0x1.2274d2p-3f,
              -0x1.0f45b8p-3f, 0x1.08317ep-3f, -0x1.37abe6p-4f);
}
FW_FN double log_tail(double f) {
  return poly(f, -0x1.p-1, 0x1.555555555556bp-2, -0x1.ffffffffffe7bp-3, 0x1.9999999994d56p-3, -0x1.555555556b2ep-3,
              0x1.249249275fa43p-3, -0x1.fffffff38e21fp-4, 0x1.c71c702d48f2ep-4, -0x1.99999aa744038p-4,
              0x1.745d58ebe28d4p-4, -0x1.555575d318276p-4, 0x1.3b0d761aa9c4dp-4, -0x1.24895d4d5035fp-4,
              0x1.116a327ce8d6dp-4, -0x1.00ceef198c61ep-4, 0x1.dc9309d9a94fap-5, -0x1.b4655a1981781p-5,
              0x1.bbcc2a02f0104p-5, -0x1.01061e8e5b9d4p-4, 0x1.d2599a227f738p-5, -0x1.8d28087ffefcbp-6);
}

// x = 2^e (1 + f) with f as above.
template <class T>
struct decomposed {
  T e, f;
  typename ieee<T>::bits e_field;  // e as the exponent field of a number
};
template <class T>
FW_FN decomposed<T> decompose_normal(T x, T offset) {
  using F = ieee<T>;
  const auto mantissa_mask = (typename F::bits(1) << F::mantissa) - 1;
  const auto b = bits_of(x) + ((F::bias << F::mantissa) - F::root_half);
  const T f = float_of((b & mantissa_mask) + F::root_half) - 1;
  return {static_cast<T>(static_cast<i32>(b >> F::mantissa)) - offset, f, b & ~mantissa_mask};
}
template <class T>
FW_FN decomposed<T> decompose(T x) {
  using F = ieee<T>;
  const bool denormal = x < F::min_normal;
  return decompose_normal(denormal ? x * T(u64(1) << F::mantissa) : x,
                          denormal ? T(F::bias + F::mantissa) : T(F::bias));
}
template <class T>
FW_FN T log_of(decomposed<T> x) {
  const T tail = x.f * log_tail(x.f);
  return mad(x.e, ieee<T>::ln2_hi, mad(x.f, tail, x.e * ieee<T>::ln2_lo) + x.f);
}
template <class T>
FW_FN T log_or_special(T x, T finite) {
  const T special = x == 0 ? -infinity<T>() : nan<T>();
  const T positive = x < infinity<T>() ? finite : x;
  return x > 0 ? positive : special;
}
template <class T>
FW_FN T log(T x) {
  return log_or_special(x, log_of(decompose(x)));
}
template <class T>
FW_FN T log2(T x) {
  const decomposed<T> d = decompose(x);
  const T tail = d.f * log_tail(d.f);
  return log_or_special(x, d.e + mad(d.f, mad(tail, ieee<T>::log2e, ieee<T>::log2e_less_1), d.f));
}
template <class T>
FW_FN T log1p(T x) {
  const T u = 1 + x;
  const T x_in_u = u - 1;
  const T lost = (1 - (u - x_in_u)) + (x - x_in_u);  // 1 + x = u + lost, exactly
  decomposed<T> d = decompose_normal(u, T(ieee<T>::bias));
  // lost * 2^-e, in two factors because e may exceed the bias by one
  d.f += lost * T(0.5) * float_of(((2 * ieee<T>::bias + 1) << ieee<T>::mantissa) - d.e_field);
  return copysign(log_or_special(u, log_of(d)), x);
}
#if FW_CUDA
// The e of a normal x as its exponent field, and as a number.
FW_FN u32 log_exponent(float x) { return (bits_of(x) - ieee<float>::root_half) & 0xff800000; }
FW_FN float log_exponent(u32 field, float offset) {
  return mad(static_cast<float>(static_cast<i32>(field)), 0x1p-23f, offset);
}
FW_FN float log_of(float e, float f) { return mad(e, ieee<float>::ln2, mad(f, f * log_tail(f), f)); }
// The instruction is exact for 0, infinity, NaN and negative numbers.
FW_FN float log2_or_special(float x, float finite) { return bits_of(x) - 1 >= 0x7f7fffff ? lg2_approx(x) : finite; }

FW_FN float log(float x) {  // 0.92 ulp
  const bool tiny = x < ieee<float>::min_normal;
  x = tiny ? x * 0x1p23f : x;
  const u32 e = log_exponent(x);
  const float f = float_of(bits_of(x) - e) - 1;
  return log2_or_special(x, log_of(log_exponent(e, tiny ? -23.0f : 0.0f), f));
}
FW_FN float log2(float x) {  // 1.05 ulp
  const bool tiny = x < ieee<float>::min_normal;
  x = tiny ? x * 0x1p23f : x;
  const u32 e = log_exponent(x);
  const float f = float_of(bits_of(x) - e) - 1;
  const float tail = mad(f * log_tail(f), ieee<float>::log2e, ieee<float>::log2e_less_1);
  return log2_or_special(x, log_exponent(e, tiny ? -23.0f : 0.0f) + mad(f, tail, f));
}
// f = (1 + x) 2^-e - 1 from x 2^-e and 2^-e - 1, so that nothing of x is lost. 1.4 ulp.
FW_FN float log1p(float x) {
  const float u = 1 + x;
  const u32 e = log_exponent(u);
  const float f = float_of(bits_of(x) - e) + mad(float_of(0x40800000 - e), 0.25f, -1.0f);
  return copysign(log2_or_special(u, log_of(log_exponent(e, 0.0f), f)), x);
}
#endif

// ---------------------------------------------------------------- error function

// erf(a) = 1 - e^-(a + a erf_exponent(a)) for 0 <= a < 3.93
FW_FN float erf_exponent(float a) {
  return poly(a, 0x1.06eba8p-3f, 0x1.45f3p-1f, 0x1.a4f8cp-4f, -0x1.39b752p-6f, -0x1.640a9ap-13f, 0x1.b75828p-10f,
              -0x1.4e3d62p-11f, 0x1.f2aefcp-14f, -0x1.3b187ep-17f);
}
// erf(x) = x + x erf_small(x^2) for |x| <= 0.5 (float), 1 (double)
FW_FN float erf_small(float u) {
  return poly(u, 0x1.06eba8p-3f, -0x1.812732p-2f, 0x1.ce246ap-4f, -0x1.b64e0ap-6f, 0x1.345528p-8f);
}
FW_FN double erf_small(double u) {
  return poly(u, 0x1.06eba8214db68p-3, -0x1.812746b0379a2p-2, 0x1.ce2f21a03fe0bp-4, -0x1.b82ce311c2f47p-6,
              0x1.565bccf27399fp-8, -0x1.c02daf498e8f7p-11, 0x1.f9a2a4ed05555p-14, -0x1.f4c90e88610d3p-17,
              0x1.b9740ee2ba2b9p-20, -0x1.5bc1f7923682p-23, 0x1.d54e8feb560abp-27, -0x1.a6806e0d1d9a5p-31);
}
// (a + 2) e^(a^2) erfc(a) = erfcx_hi + erfcx_lo + t erfcx_rest(t), t = (a - 2) / (a + 2), for a >= 0.5
FW_FN float erfcx_rest(float t) {
  return poly(t, -0x1.5fd386p-1f, 0x1.1e2de4p-2f, -0x1.2a8aeep-5f, -0x1.605dbap-6f, 0x1.a96a82p-8f, 0x1.90b77ep-9f,
              -0x1.d2b5ecp-11f, -0x1.1f8552p-11f, 0x1.ef398cp-14f);
}
FW_FN double erfcx_rest(double t) {
  return poly(t, -0x1.5fd386754eff8p-1, 0x1.1e2deea6b11abp-2, -0x1.2a88e6107dd9ap-5, -0x1.606e41553c54ap-6,
              0x1.a89eaff9534d4p-8, 0x1.9517bb839489cp-9, -0x1.b6fbfa631d225p-11, -0x1.5ba43d2868f79p-11,
              0x1.2054d83207977p-15, 0x1.2efad94362d08p-13, 0x1.1e6ef135d9c22p-15, -0x1.6c1d8b514cfacp-16,
              -0x1.0e1efb29ebbdbp-16, -0x1.294d55ed354c1p-20, 0x1.dead519011671p-19, 0x1.0b1bfce96429p-19,
              0x1.800a2039adb8ap-23, -0x1.544da8ca6ca5dp-21, -0x1.246fb183ef321p-21, 0x1.606d22faceb49p-23,
              0x1.d5fc45e9979e6p-23, -0x1.6032e8f3ede84p-24);
}
template <class T>
FW_FN T erfc_beyond(T a) {  // for a >= 0.5; every rounding that matters is carried along in a `_lo`
  a = at_most(a, ieee<T>::erfc_range);
  const T s = a * a;
  const exp_argument<T> x = exp_reduce(-s, T(2 * ieee<T>::bias));
  const T e = 1 + x.r;
  const T e_tail = mad(x.r * x.r, exp_tail(x.r), x.r - (e - 1));
  const T e_lo = mad(x.r_lo - product_error(a, a, s), e + e_tail, e_tail);
  const T d = a + 2, d_lo = a - (d - 2), y = near_reciprocal(d);
  const T t = quotient(a - 2, d, d_lo, y);
  const T rest = t * erfcx_rest(t);
  const T g = ieee<T>::erfcx_hi + rest;
  const T g_lo = ((ieee<T>::erfcx_hi - g) + rest) + ieee<T>::erfcx_lo;
  const T p = e * g;
  const T p_lo = mad(e, g_lo, mad(e_lo, g, product_error(e, g, p)));
  return value_of(scaled<T>{quotient(p, p_lo, d, d_lo, y), x.n});
}
template <class T>
FW_FN T erfc(T x) {
  const T a = abs(x);
  const T beyond = erfc_beyond(a);
  return a < T(0.5) ? 1 - mad(x, erf_small(x * x), x) : x < 0 ? 2 - beyond : beyond;
}
#if FW_CUDA
// erf(x) = x + x erf_near(x^2) for |x| <= 0.92
FW_FN float erf_near(float u) {
  return poly(u, 0x1.06eba6p-3f, -0x1.8126eap-2f, 0x1.ce1b1p-4f, -0x1.b693b6p-6f, 0x1.476972p-8f, -0x1.3ac978p-11f);
}
// log2(erfc(a)) for a >= 0.92, as exactly as 1 - erfc(a) needs it; sinks further beyond 3.95
FW_FN float log2_erfc(float a) {
  return poly(a, -0x1.73c47cp-9f, -0x1.9d9b3p+0f, -0x1.e0ff28p-1f, -0x1.0c5f1ap-3f, 0x1.6e1c94p-6f, -0x1.d50778p-10f);
}
FW_FN float erf(float x) {  // 1.7 ulp
  const float small = mad(x, erf_near(x * x), x);
  const float large = 1 - ex2_approx(log2_erfc(abs(x)));
  return abs(x) < 0.92f ? small : copysign(large, x);
}
#else
FW_FN float erf(float x) {
  const float a = at_most(abs(x), 3.93f);
  const float q = erf_exponent(a);
  const float z = mad(a, q, a);
  exp_argument<float> e = exp_reduce(-z, float(ieee<float>::bias));
  e.r_lo -= mad(a, q, a - z);
  return copysign(expm1_of(e, 1.0f).hi, x);
}
#endif
FW_FN double erf(double x) {
  const double a = abs(x);
  return copysign(a < 1 ? mad(a, erf_small(a * a), a) : 1 - erfc_beyond(a), x);
}

// ---------------------------------------------------------------- trigonometry

// atan(t) = t + t^3 atan_tail(t^2) for |t| <= 1
FW_FN float atan_tail(float u) {
  return poly(u, -0x1.55554p-2f, 0x1.999268p-3f, -0x1.24265cp-3f, 0x1.c0cc28p-4f, -0x1.58ca02p-4f, 0x1.dcd004p-5f,
              -0x1.017118p-5f, 0x1.6a097ep-7f, -0x1.de0e9p-10f);
}
FW_FN double atan_tail(double u) {
  return poly(u, -0x1.555555555554ep-2, 0x1.9999999998db7p-3, -0x1.249249245c73bp-3, 0x1.c71c71b78f045p-4,
              -0x1.745d15ea9749bp-4, 0x1.3b139d1ae904ap-4, -0x1.11103df1d0427p-4, 0x1.e1d51d9d2cfbcp-5,
              -0x1.aedd36d6076fdp-5, 0x1.84bf4481ea002p-5, -0x1.5f4473d431acdp-5, 0x1.394f36b801dcfp-5,
              -0x1.0d1cdd21a00dp-5, 0x1.ae01c3a60d6c5p-6, -0x1.32b5016e4f4b9p-6, 0x1.75df92363332dp-7,
              -0x1.73cac26c59554p-8, 0x1.1dda34f989103p-9, -0x1.3bf5677f1286dp-11, 0x1.bc0f12bd50121p-14,
              -0x1.28c745629e871p-17);
}
template <class T>
FW_FN T atan(T x) {
  const T a = abs(x);
  const bool beyond = a > 1;
  const T t = beyond ? -1 / a : a;  // atan(a) = pi / 2 - atan(1 / a)
  const T u = t * t;
  const T y = mad(t * u, atan_tail(u), beyond ? ieee<T>::pio2_lo : T(0)) + t;
  return copysign(beyond ? ieee<T>::pio2_hi + y : y, x);
}

#if FW_CUDA
FW_FN float sin(float x) { return ::sinf(x); }
FW_FN float cos(float x) { return ::cosf(x); }
FW_FN double sin(double x) { return ::sin(x); }
FW_FN double cos(double x) { return ::cos(x); }
#else
// sin(r) = r + r^3 sin_tail(r^2), cos(r) = 1 - r^2 / 2 + r^4 cos_tail(r^2) for |r| <= 1 (float), 0.81
// (double)
FW_FN float sin_tail(float u) { return poly(u, -0x1.555556p-3f, 0x1.11114p-7f, -0x1.a0216cp-13f, 0x1.6e27bcp-19f); }
FW_FN float cos_tail(float u) { return poly(u, 0x1.555556p-5f, -0x1.6c1718p-10f, 0x1.a02fe4p-16f, -0x1.271444p-22f); }
FW_FN double sin_tail(double u) {
  return poly(u, -0x1.5555555555541p-3, 0x1.111111110ec4ep-7, -0x1.a01a019a8cd1ep-13, 0x1.71de342805b0ep-19,
              -0x1.ae5d612502b1cp-26, 0x1.5d47f9a619e25p-33);
}
FW_FN double cos_tail(double u) {
  return poly(u, 0x1.5555555555546p-5, -0x1.6c16c16c14505p-10, 0x1.a01a019b76b7bp-16, -0x1.27e4f7253c938p-22,
              0x1.1ee9505b5a01fp-29, -0x1.8f5e4979ca5edp-37);
}

// x = quadrant * pi / 2 + r, the quadrant modulo 4 in the low bits.
template <class T>
struct angle {
  T r;
  u32 quadrant;
};

// The product x * 2 / pi modulo 4 needs only those digits of 2 / pi that reach below 4 and above the last
// digit of interest; two doubles hold them for 26 consecutive exponents, so four pairs serve every float.
FW_FN angle<float> reduce(float x) {
  const float a = abs(x);
  double hi = 0x1.45f306dc9c883p-1, lo = -0x1.6b01ec5417056p-55;
  hi = a >= 0x1p50f ? -0x1.1b1bbead603d9p-28 : hi, lo = a >= 0x1p50f ? 0x1.5f47d4d377037p-82 : lo;
  hi = a >= 0x1p76f ? -0x1.5ac07b1505c16p-53 : hi, lo = a >= 0x1p76f ? 0x1.a6ee06db14acdp-107 : lo;
  hi = a >= 0x1p102f ? -0x1.505c1596447e5p-81 : hi, lo = a >= 0x1p102f ? 0x1.b14acc9e21c82p-135 : lo;
  const double wide = x;
  const double turns = wide * hi;
  const double t = turns + ieee<double>::shifter;
  const double part = (turns - (t - ieee<double>::shifter)) + mad(wide, lo, product_error(wide, hi, turns));
  return {static_cast<float>(part * ieee<double>::pio2_hi), static_cast<u32>(bits_of(t))};
}

// Any double: integer arithmetic on 192 digits of 2 / pi. Out of line; hardly ever called.
__attribute__((noinline, unused)) static angle<double> reduce_huge(double x) {
  static constexpr u64 two_over_pi[] = {0,  // so that the window may start before the point
                                        0xa2f9836e4e441529,
                                        0xfc2757d1f534ddc0,
                                        0xdb6295993c439041,
                                        0xfe5163abdebbc561,
                                        0xb7246e3a424dd2e0,
                                        0x06492eea09d1921c,
                                        0xfe1deb1cb129a73e,
                                        0xe88235f52ebb4484,
                                        0xe99c7026b45f7e41,
                                        0x3991d639835339f4,
                                        0x9c845f8bbdf9283b,
                                        0x1ff897ffde05980f,
                                        0xef2f118b5a0a6d1f,
                                        0x6d367ecf27cb09b7,
                                        0x4f463f669e5fea2d,
                                        0x7527bac7ebe5f17b,
                                        0x3d0739f78a5292ea,
                                        0x6bfb5fb11f8d5d08,
                                        0x56033046fc7b6bab,
                                        0xf0cfbc209af4361d};
  const u64 b = bits_of(x);
  const u64 m = (b & 0xfffffffffffff) | 0x10000000000000;
  const int e = static_cast<int>(b >> 52 & 0x7ff) - 1075;  // |x| = m 2^e
  const int first = e - 2 + 64;                            // digits before this one only add multiples of 4
  const u64* w = two_over_pi + first / 64;
  const int shift = first % 64;
  u64 window[3];
  for (int i = 0; i < 3; ++i) window[i] = shift ? w[i] << shift | w[i + 1] >> (64 - shift) : w[i];
  // m * window modulo 2^192: two digits of quadrant, then the fraction.
  using u128 = unsigned __int128;
  const u128 p2 = u128(m) * window[2];
  const u128 p1 = u128(m) * window[1] + static_cast<u64>(p2 >> 64);
  const u64 top = m * window[0] + static_cast<u64>(p1 >> 64);
  const u64 hi = top << 2 | static_cast<u64>(p1) >> 62;
  const u64 lo = static_cast<u64>(p1) << 2 | static_cast<u64>(p2) >> 62;
  const i64 fraction = static_cast<i64>(hi);  // in [-1/2, 1/2) of a quadrant
  const u32 quadrant = static_cast<u32>(top >> 62) + (fraction < 0);
  const double f_hi = static_cast<double>(fraction >> 11 << 11) * 0x1p-64;
  const double f_lo = (static_cast<double>(hi & 0x7ff) + static_cast<double>(lo) * 0x1p-64) * 0x1p-64;
  using D = ieee<double>;
  const double p = f_hi * D::pio2_hi;
  const double r = p + (product_error(f_hi, D::pio2_hi, p) + (f_hi * D::pio2_lo + f_lo * D::pio2_hi));
  return {b >> 63 ? -r : r, b >> 63 ? 0 - quadrant : quadrant};
}
FW_FN angle<double> reduce(double x) {
  if (__builtin_expect(abs(x) > 0x1p20 && abs(x) < infinity<double>(), 0)) return reduce_huge(x);
  const double t = mad(x, 0x1.45f306dc9c883p-1, ieee<double>::shifter);
  const double n = t - ieee<double>::shifter;
  // Pieces of 33 bits: their products with n are exact.
  const double r = ((x - n * 0x1.921fb544p+0) - n * 0x1.0b4611a6p-34) - n * 0x1.3198a2ep-69;
  return {r - n * 0x1.b839a252049c1p-104, static_cast<u32>(bits_of(t))};
}

template <class T>
FW_FN T sin_of(angle<T> x) {
  const T u = x.r * x.r;
  const T s = mad(x.r * u, sin_tail(u), x.r);
  const T c = mad(u * u, cos_tail(u), mad(u, T(-0.5), T(1)));
  const T y = x.quadrant & 1 ? c : s;
  const auto flip = typename ieee<T>::bits(x.quadrant & 2) << (sizeof(T) * 8 - 2);
  return float_of(bits_of(y) ^ flip);
}
template <class T>
FW_FN T sin(T x) {
  return x == 0 ? x : sin_of(reduce(x));
}
template <class T>
FW_FN T cos(T x) {
  angle<T> a = reduce(x);
  a.quadrant += 1;
  return sin_of(a);
}
#endif

// ---------------------------------------------------------------- power

#if FW_CUDA
FW_FN float pow(float x, float y) { return ::powf(x, y); }
FW_FN double pow(double x, double y) { return ::pow(x, y); }
#else
// What C says of pow(x, y), given the power of |x|.
template <class T>
FW_FN T pow_or_special(T x, T y, T magnitude) {
  const bool whole = y == trunc(y);
  const bool odd = whole && (y * T(0.5) != trunc(y * T(0.5)));
  T r = odd ? copysign(magnitude, x) : magnitude;
  r = x < 0 && x > -infinity<T>() && !whole ? nan<T>() : r;
  r = x != x || y != y ? x + y : r;
  const bool one = x == 1 || y == 0 || (x == -1 && abs(y) == infinity<T>());
  return one ? T(1) : r;
}
// The tails of exp and log as far as a float needs them: to 32 and 35 bits.
FW_FN double exp_tail_short(double r) {
  return poly(r, 0x1.00000026c3p-1, 0x1.555554ff2b84ep-3, 0x1.5554af9b1ec1bp-5, 0x1.111171bbba99ap-7,
              0x1.6d7349f49c03cp-10, 0x1.a054e366527ecp-13);
}
FW_FN double log_tail_short(double f) {
  return poly(f, -0x1.00000001da521p-1, 0x1.555555cf52ba1p-2, -0x1.fffff90a986edp-3, 0x1.999910edaebdfp-3,
              -0x1.5556b4af7a43ep-3, 0x1.24abbd3bc099dp-3, -0x1.ffe48db7d16f8p-4, 0x1.c2f462d0e851cp-4,
              -0x1.96a39befac797p-4, 0x1.9a3cb0b99d3b6p-4, -0x1.944589b935c83p-4, 0x1.b6c6efb3f3495p-5);
}
FW_FN float pow(float x, float y) {  // 2^(y log2(x)) in double, where denormal floats are normal
  using D = ieee<double>;
  const double a = abs(x);
  const decomposed<double> d = decompose_normal(a, double(D::bias));
  const double tail = d.f * log_tail_short(d.f);
  double l = d.e + mad(d.f, mad(tail, D::log2e, D::log2e_less_1), d.f);
  l = a > 0 ? l : -infinity<double>();
  l = a < infinity<double>() ? l : infinity<double>();
  const double p = clamp(y * l, 200.0);  // beyond: 0 and infinity
  constexpr double shifter = D::shifter + D::bias;
  const double t = p + shifter;
  const double r = (p - (t - shifter)) * D::ln2;
  const double e = mad(mad(exp_tail_short(r), r, 1.0), r, 1.0) * float_of(bits_of(t) << D::mantissa);
  return pow_or_special(x, y, static_cast<float>(e));
}

FW_FN pair<double> sum(double a, double b) {  // for |a| >= |b|, or a = 0
  const double s = a + b;
  return {s, (a - s) + b};
}
FW_FN pair<double> product(pair<double> a, pair<double> b) {
  const double p = a.hi * b.hi;
  return {p, product_error(a.hi, b.hi, p) + mad(a.hi, b.lo, a.lo * b.hi)};
}
// atanh(s) = s + s u (1/3 + u atanh_tail(u)), u = s^2, for |s| <= 3 - 2 sqrt(2)
FW_FN double atanh_tail(double u) {
  return poly(u, 0x1.999999999999ap-3, 0x1.2492492492363p-3, 0x1.c71c71c747eb7p-4, 0x1.745d172bc6758p-4,
              0x1.3b13ba5bf77bap-4, 0x1.110f1bc75aabap-4, 0x1.e265a47482d8fp-5, 0x1.a505a201edbc6p-5,
              0x1.ecbf569eed59cp-5);
}
// log2(a) to 66 bits, which is what a result near 2^1024 needs: log(1 + f) = 2 atanh(f / (2 + f)).
FW_FN pair<double> log2_pair(double a) {
  const decomposed<double> x = decompose(a);
  const pair<double> d = sum(2.0, x.f);
  pair<double> s = {x.f / d.hi, 0};
  const double p = s.hi * d.hi;
  s.lo = (((x.f - p) - product_error(s.hi, d.hi, p)) - s.hi * d.lo) / d.hi;
  const pair<double> u = product(s, s);
  pair<double> w = sum(0x1.5555555555555p-2, u.hi * atanh_tail(u.hi));
  w.lo += 0x1.5555555555555p-56;
  const pair<double> z = product(product(s, u), w);
  pair<double> l = sum(s.hi, z.hi);
  l.lo += s.lo + z.lo;
  const pair<double> scaled_l = product(l, {0x1.71547652b82fep+1, 0x1.777d0ffda0d24p-55});  // 2 / ln 2
  pair<double> r = sum(x.e, scaled_l.hi);
  r.lo += scaled_l.lo;
  return r;
}
FW_FN double pow(double x, double y) {
  using D = ieee<double>;
  const double a = abs(x);
  pair<double> l = log2_pair(a);
  l.hi = a > 0 ? l.hi : -infinity<double>();
  l.hi = a < infinity<double>() ? l.hi : infinity<double>();
  const double hi = y * l.hi;
  const double lo = mad(y, l.lo, product_error(y, l.hi, hi));
  const bool inside = abs(hi) < D::exp2_range;
  return pow_or_special(x, y, value_of(exp2_parts(clamp(hi, D::exp2_range), inside ? lo : 0.0)));
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

#endif  // FW_KERNELS_MATH_H
