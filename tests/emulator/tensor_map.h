#pragma once
// The contents that cuTensorMapEncodeTiled writes into a CUtensorMap. The device's own encoding is not published;
// this one serves the emulator.
#include <cstdint>
#include <string>

#include "kernels/prelude.h"

#include "kernels/device/shapes.h"

namespace fwemu {

using fw::Descriptor;
using fw::Swizzle;

// The driver's numbers.
enum TensorMapType : uint32_t {
  map_u8,
  map_u16,
  map_u32,
  map_i32,
  map_u64,
  map_i64,
  map_f16,
  map_f32,
  map_f64,
  map_bf16,
  map_f32_ftz,
  map_tf32,
  map_tf32_ftz,
  map_types
};
enum TensorMapSwizzle : uint32_t { map_swizzle_none, map_swizzle_32, map_swizzle_64, map_swizzle_128, map_swizzles };
enum TensorMapFill : uint32_t { map_fill_zero, map_fill_nan, map_fills };

struct TensorMapArguments {
  uint32_t type, rank;
  void* address;
  const uint64_t *dimensions, *strides;  // strides of all but the innermost, in bytes
  const uint32_t *box, *element_strides;
  uint32_t interleave, swizzle, l2_promotion, fill;
};

struct alignas(64) EncodedTensorMap {
  uint64_t magic;
  const char* address;
  uint32_t last[5];     // of each dimension: its size less 1
  uint32_t units[4];    // strides in 16 bytes
  uint8_t box_last[5];  // size of the box less 1
  uint8_t element_strides[5];
  uint8_t rank, type, swizzle, fill;
};
static_assert(sizeof(EncodedTensorMap) == 128);

// Empty, or what the driver would refuse.
std::string encode_tensor_map(void* map, const TensorMapArguments& arguments);
// Null if these bytes are none of ours.
const EncodedTensorMap* tensor_map_at(const void* map);

// One box of a tensor, as a copy takes it.
struct Tile {
  EncodedTensorMap map;
  int at[5];

  unsigned bytes() const;
  // Copies it to shared memory, where `address` is that of `to`.
  void copy(char* to, unsigned address) const;
};

}  // namespace fwemu
