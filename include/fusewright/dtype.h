#pragma once
#include <cstdint>
#include <string_view>

namespace fusewright {

enum class DType : uint8_t { f16, bf16, f32, f64, i8, u8, i16, i32, i64, b8 };

constexpr bool is_float(DType t) { return t <= DType::f64; }
constexpr bool is_narrow_float(DType t) { return t == DType::f16 || t == DType::bf16; }

constexpr int64_t size_of(DType t) {
  switch (t) {
    case DType::f64:
    case DType::i64:
      return 8;
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::f16:
    case DType::bf16:
    case DType::i16:
      return 2;
    default:
      return 1;
  }
}

// What values of a type are while a kernel computes with them: float for 16- and 32-bit floats, double for double,
// 64-bit for integers, bool for b8.
constexpr DType compute_type(DType t) {
  if (t == DType::f64 || t == DType::b8) return t;
  return is_float(t) ? DType::f32 : DType::i64;
}

const char* name_of(DType t);
DType parse_dtype(std::string_view name);  // throws Error

}  // namespace fusewright
