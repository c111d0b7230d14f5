// Part of math.h: logarithms, powers, angles.
#ifndef FW_KERNELS_MATH_LOGARITHM_H
#define FW_KERNELS_MATH_LOGARITHM_H

namespace fw {

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

}  // namespace fw

#endif  // FW_KERNELS_MATH_LOGARITHM_H
