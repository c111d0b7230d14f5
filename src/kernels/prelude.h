// Types, bit casts and dtype conversions for generated kernels.
//
// The text is pasted in front of generated code and compiled by g++, clang, nvcc or NVRTC: no header may be
// included here. Everything is straight-line code, so that a `#pragma omp simd` loop over it vectorises.
#ifndef FW_KERNELS_PRELUDE_H  // not `#pragma once`, which warns in pasted text
#define FW_KERNELS_PRELUDE_H

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define FW_CUDA 1
#define FW_FN __device__ __forceinline__
#else
#define FW_CUDA 0
#define FW_FN inline __attribute__((always_inline))
#endif

namespace fw {

using i8 = signed char;
using u8 = unsigned char;
using i16 = short;
using u16 = unsigned short;
using i32 = int;
using u32 = unsigned int;
#if FW_CUDA
using i64 = long long;
using u64 = unsigned long long;
#else
using i64 = __INT64_TYPE__;  // the same type as int64_t
using u64 = __UINT64_TYPE__;
#endif

#if FW_CUDA
FW_FN u32 bits_of(float x) { return __float_as_uint(x); }
FW_FN u64 bits_of(double x) { return __double_as_longlong(x); }
FW_FN float float_of(u32 b) { return __uint_as_float(b); }
FW_FN double float_of(u64 b) { return __longlong_as_double(b); }
#else
FW_FN u32 bits_of(float x) { return __builtin_bit_cast(u32, x); }
FW_FN u64 bits_of(double x) { return __builtin_bit_cast(u64, x); }
FW_FN float float_of(u32 b) { return __builtin_bit_cast(float, b); }
FW_FN double float_of(u64 b) { return __builtin_bit_cast(double, b); }
#endif

#if FW_CUDA
// ---------------------------------------------------------------- single instructions of the device

// Approximations are those of the .ftz forms: denormal operands and results count as 0. In the emulator they are exact;
// a test may define FW_APPROXIMATE to make them as wrong as the manual allows: `exact` is a double, `error` its bound
// in units of the last place.
#ifdef FW_EMULATOR
#ifndef FW_APPROXIMATE
#define FW_APPROXIMATE(exact, error) static_cast<float>(exact)
#endif
FW_FN float flushed(float x) { return (bits_of(x) & 0x7f800000) == 0 ? float_of(bits_of(x) & 0x80000000) : x; }
FW_FN float ex2_approx(float x) { return flushed(FW_APPROXIMATE(__builtin_exp2(double(flushed(x))), 2.1)); }
FW_FN float rcp_approx(float x) { return x == 1 ? x : flushed(FW_APPROXIMATE(1.0 / flushed(x), 1.0)); }
FW_FN float rsqrt_approx(float x) { return flushed(FW_APPROXIMATE(1.0 / __builtin_sqrt(double(flushed(x))), 2.1436)); }
FW_FN float lg2_approx(float x) { return FW_APPROXIMATE(__builtin_log2(double(flushed(x))), 4.0); }
FW_FN float mad_saturated(float a, float b, float c) {
  const float r = __builtin_fmaf(a, b, c);
  return r > 0 ? (r < 1 ? r : 1) : 0;  // 0 for NaN
}
FW_FN float min_of_numbers(float a, float b) { return __builtin_fminf(a, b); }
#else
FW_FN float ex2_approx(float x) {  // the manual says 2 ulp; 2.07 were seen
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}
FW_FN float rcp_approx(float x) {  // 1 / x within 1 ulp; 1 of 1
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}
FW_FN float rsqrt_approx(float x) {  // 1 / sqrt(x), relative error 2^-22.9
  float r;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}
FW_FN float lg2_approx(float x) {  // log2(x) within 2^-22, or that much of a result beyond 1
  float r;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}
FW_FN float mad_saturated(float a, float b, float c) {  // a * b + c, clamped to [0, 1]; 0 for NaN
  float r;
  asm("fma.rn.sat.f32 %0, %1, %2, %3;" : "=f"(r) : "f"(a), "f"(b), "f"(c));
  return r;
}
FW_FN float min_of_numbers(float a, float b) {  // the number, if the other is NaN
  float r;
  asm("min.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}
#endif

// NaN if either is.
#if defined(FW_EMULATOR) || __CUDA_ARCH__ < 800
FW_FN float max_or_nan(float a, float b) { return a > b || a != a ? a : b; }
FW_FN float min_or_nan(float a, float b) { return a < b || a != a ? a : b; }
#else
FW_FN float max_or_nan(float a, float b) {
  float r;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}
FW_FN float min_or_nan(float a, float b) {
  float r;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}
#endif
#endif  // FW_CUDA

// Storage only: values are float in registers.
struct half {
  u16 bits;
};
struct bfloat16 {
  u16 bits;
};

FW_FN float to_float(bfloat16 h) { return float_of(u32(h.bits) << 16); }

// To 16 bits: nearest, ties to even; any NaN becomes a quiet one.
#if FW_CUDA && !defined(FW_EMULATOR)
FW_FN float to_float(half h) {
  float r;
  asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(h.bits));
  return r;
}
FW_FN half to_half(float x) {
  half r;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r.bits) : "f"(x));
  return r;
}
#else
FW_FN float to_float(half h) {
  const u32 magnitude = u32(h.bits & 0x7fff) << 13;
  const u32 rebased = magnitude + ((127 - 15) << 23);
  // A denormal half is its mantissa on top of 2^-14, less 2^-14: right even where float denormals are
  // flushed.
  const float denormal = float_of(rebased + (1 << 23)) - 0x1p-14f;
  const u32 finite = h.bits & 0x7c00 ? rebased : bits_of(denormal);
  const u32 value = magnitude >= (0x7c00u << 13) ? magnitude | 0x7f800000 : finite;
  return float_of(value | (u32(h.bits & 0x8000) << 16));
}
FW_FN half to_half(float x) {
  const u32 b = bits_of(x);
  const u32 magnitude = b & 0x7fffffff;
  const u32 normal = (magnitude - ((127 - 15) << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;
  // Adding 0.5 aligns the denormal's last bit with the last bit of a float, and so rounds it.
  const u32 denormal = bits_of(float_of(magnitude) + 0.5f) - 0x3f000000;
  const u32 finite = magnitude < ((127 - 14) << 23) ? denormal : normal;
  const u32 infinite = magnitude > 0x7f800000 ? 0x7e00 : 0x7c00;
  const u32 value = magnitude >= 0x477ff000 ? infinite : finite;  // 65520 rounds to infinity
  return {u16(value | (b >> 16 & 0x8000))};
}
#endif

#if FW_CUDA && !defined(FW_EMULATOR) && __CUDA_ARCH__ >= 800
FW_FN bfloat16 to_bfloat16(float x) {
  bfloat16 r;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r.bits) : "f"(x));
  return r;
}
#else
FW_FN bfloat16 to_bfloat16(float x) {
  const u32 b = bits_of(x);
  const u32 rounded = (b + 0x7fff + ((b >> 16) & 1)) >> 16;
  return {u16((b & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : rounded)};
}
#endif

template <class A, class B>
struct same {
  static constexpr bool value = false;
};
template <class A>
struct same<A, A> {
  static constexpr bool value = true;
};

// The cast of PyTorch between any two of bool, u8, i8, i16, i32, i64, half, bfloat16, float and double.
template <class To, class From>
FW_FN To convert(From v) {
  constexpr bool from_float = same<From, float>::value || same<From, double>::value;
  if constexpr (same<To, From>::value) {
    return v;
  } else if constexpr (same<From, half>::value || same<From, bfloat16>::value) {
    return convert<To>(to_float(v));
  } else if constexpr (same<To, half>::value) {
    return to_half(static_cast<float>(v));
  } else if constexpr (same<To, bfloat16>::value) {
    return to_bfloat16(static_cast<float>(v));
  } else if constexpr (same<To, bool>::value) {
    return v != 0;
  } else if constexpr (from_float && same<To, u8>::value) {
    return static_cast<u8>(static_cast<i64>(v));  // a direct cast of a negative number is undefined
  } else if constexpr (from_float && sizeof(To) < sizeof(i32)) {
    return static_cast<To>(static_cast<i32>(v));
  } else {
    return static_cast<To>(v);
  }
}

// A value as it is read back after it has been stored as a `Storage`.
template <class Storage, class Register, class From>
FW_FN Register as_stored(From v) {
#if FW_CUDA && !defined(FW_EMULATOR) && __CUDA_ARCH__ >= 800
  // One at a time is a slow instruction of another unit: two at a time, of which one is nothing.
  if constexpr (same<Storage, bfloat16>::value && same<From, float>::value && same<Register, float>::value) {
    u32 pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(v), "f"(0.0f));
    return float_of(pair);  // the upper half of a float
  } else if constexpr (same<Storage, half>::value && same<From, float>::value && same<Register, float>::value) {
    u32 pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(0.0f), "f"(v));
    return to_float(half{u16(pair)});
  } else
#endif
    return convert<Register>(convert<Storage>(v));
}

FW_FN i64 min_of(i64 a, i64 b) { return a < b ? a : b; }
FW_FN i64 max_of(i64 a, i64 b) { return a > b ? a : b; }
FW_FN i64 ceil_div(i64 a, i64 b) { return a >= 0 ? (a + b - 1) / b : -(-a / b); }  // b > 0

// Elements that an average pooling window divides by, along one dimension.
FW_FN i64 pool_count(i64 position, i64 kernel, i64 stride, i64 padding, i64 size, bool include_padding) {
  const i64 begin = position * stride - padding;
  const i64 end = min_of(begin + kernel, size + padding);
  return include_padding ? end - begin : min_of(end, size) - max_of(begin, 0);
}

}  // namespace fw

#endif  // FW_KERNELS_PRELUDE_H
