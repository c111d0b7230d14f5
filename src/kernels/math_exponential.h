// Part of math.h: exponentials, and the functions made of them.
#ifndef FW_KERNELS_MATH_EXPONENTIAL_H
#define FW_KERNELS_MATH_EXPONENTIAL_H

namespace fw {

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
  return {h, mad(s, m, c - h) + (s - (c + unit))};  // c is rounded where s is below half a unit in the last place
}
template <class T>
FW_FN T expm1(T x) {
  T c = x > ieee<T>::expm1_max ? ieee<T>::expm1_max : x;
  c = c < ieee<T>::expm1_min ? ieee<T>::expm1_min : c;
  const T half_result = expm1_of(exp_reduce(c, T(ieee<T>::bias - 1)), T(0.5)).hi;  // 2^n may overflow
  return abs(x) < T(0x1p-64) ? x : 2 * half_result;                                // half a denormal is not exact
}

// Near 1 / d for 1 <= d <= 2. In float without the divider, which serves all lanes in turn. The error of Newton's step
// always has one sign, and `quotient` squares it: at 1e-4 the quotients would be 0.17 ulp too small in the mean, and so
// would the sum of many be.
FW_FN double rough_reciprocal(double d) { return 1 / d; }
FW_FN float rough_reciprocal(float d) {
#if FW_FMA
  const float y = poly(d, 1632 / 577.0f, -1696 / 577.0f, 768 / 577.0f, -128 / 577.0f);  // Chebyshev's: within 1/577
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
// Beyond 0.9: 1 - 1 / (e^2x / 2 + 1/2), where little of the approximations' errors is left. 1.9 ulp.
FW_FN float tanh(float x) {
  const float u = x * x;
  const float small = mad(x, mad(u, tanh_tail(u), 0.0f), x);  // + 0: otherwise -0 would become 0
  const float half_e = ex2_approx(mad(abs(x), 2 * ieee<float>::log2e, -1.0f));
  const float large = 1 - rcp_approx(half_e + 0.5f);
  return abs(x) < 0.9f ? small : signed_as(large, x);
}

// e^-x = 2^t e^d, where d is what rounding t took away, and e^d nearly 1 + d. t stays where 2^t is finite: from there
// on the reciprocal is below the normal numbers, which become 0. NaN in d, of an infinite t, is made a number, and
// meets 2^t = 0. 6.1 ulp, of which 4.2 are ex2_approx's, where its result is just above a power of 2 and its reciprocal
// just below one.
FW_FN float sigmoid(float x) {
  const float t = min_or_nan(x * -ieee<float>::log2e, 127.0f);
  const float d = min_of_numbers(mad(t, -ieee<float>::ln2_rest, mad(t, -ieee<float>::ln2, -x)), 1.0f);
  const float e = ex2_approx(t);
  return rcp_approx(mad(e, d, 1 + e));
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
FW_FN float erf(float x) {  // 1.9 ulp
  const float small = mad(x, erf_near(x * x), x);
  const float large = 1 - ex2_approx(log2_erfc(abs(x)));
  return abs(x) < 0.92f ? small : signed_as(large, x);
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

// ---------------------------------------------------------------- normal distribution

// Phi(x). Far below 0 it has the digits that 1 + erf leaves, as PyTorch's.
template <class T>
FW_FN T normal_cdf(T x) {
  return T(0.5) * (erf(x * float_of(ieee<T>::root_half)) + 1);
}
#if FW_CUDA
// Phi(x) = 1/2 + x normal_near(x^2) for |x| <= 1.36
FW_FN float normal_near(float u) {
  return poly(u, 0x1.98845p-2f, -0x1.10576p-4f, 0x1.46b18cp-7f, -0x1.3563ap-10f, 0x1.c7d6dap-14f, -0x1.a3a2ecp-18f);
}
// log2(Phi(-a)) for a >= 1.36, as exactly as 1 - Phi(-a) needs it; sinks further beyond 5.4
FW_FN float log2_normal_tail(float a) {
  return poly(a, -0x1.010c52p+0f, -0x1.23a29ap+0f, -0x1.e45778p-2f, -0x1.6e4ee2p-5f, 0x1.54862cp-8f, -0x1.24eff8p-12f);
}
// Within 1.3 * 2^-24: 1.3 ulp of results from 1/2 on, more of smaller ones.
FW_FN float normal_cdf(float x) {
  const float near = mad(x, normal_near(x * x), 0.5f);
  const float tail = ex2_approx(log2_normal_tail(abs(x)));
  const float far = x > 0 ? 1 - tail : tail;
  return abs(x) < 1.36f ? near : far;
}
#endif

}  // namespace fw

#endif  // FW_KERNELS_MATH_EXPONENTIAL_H
