#include "emulator/tensor_map.h"

#include <algorithm>
#include <cstring>

namespace fwemu {
namespace {

constexpr uint64_t map_magic = 0x70616d726f736e74;
constexpr unsigned type_bytes[map_types] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4};
constexpr Swizzle swizzles[map_swizzles] = {fw::swizzle_none, fw::swizzle_32, fw::swizzle_64, fw::swizzle_128};

bool is_floating(uint32_t type) { return type >= map_f16; }

// The bits of a NaN of this type.
uint64_t nan_of(uint32_t type) {
  return type == map_f16 ? 0x7e00 : type == map_bf16 ? 0x7fc0 : type == map_f64 ? 0x7ff8000000000000 : 0x7fc00000;
}

unsigned count_of(const EncodedTensorMap& map, unsigned d) {
  const unsigned stride = d == 0 ? 1 : map.element_strides[d];  // the innermost is not looked at
  return (map.box_last[d] + stride) / stride;
}

}  // namespace

std::string encode_tensor_map(void* map, const TensorMapArguments& a) {
  const auto name = [](const char* what, unsigned d) { return std::string(what) + " " + std::to_string(d); };
  if (reinterpret_cast<uintptr_t>(map) % 64 != 0) return "the tensor map is not aligned to 64 bytes";
  if (a.type >= map_types) return "no such type of elements";
  if (a.rank < 1 || a.rank > 5) return "a tensor has 1 to 5 dimensions";
  if (a.interleave != 0) return "the emulator has no interleaved layouts";
  if (a.swizzle >= map_swizzles) return "no such swizzle";
  if (a.l2_promotion > 3) return "no such promotion to the L2 cache";
  if (a.fill >= map_fills) return "no such fill";
  if (a.fill == map_fill_nan && !is_floating(a.type)) return "only floating types are filled with NaN";
  if (reinterpret_cast<uintptr_t>(a.address) % 16 != 0) return "the tensor is not aligned to 16 bytes";
  EncodedTensorMap encoded{};
  encoded.magic = map_magic;
  encoded.address = static_cast<const char*>(a.address);
  encoded.rank = static_cast<uint8_t>(a.rank);
  encoded.type = static_cast<uint8_t>(a.type);
  encoded.swizzle = static_cast<uint8_t>(a.swizzle);
  encoded.fill = static_cast<uint8_t>(a.fill);
  std::fill(std::begin(encoded.element_strides), std::end(encoded.element_strides), 1);
  for (unsigned d = 0; d < a.rank; ++d) {
    if (a.dimensions[d] == 0 || a.dimensions[d] > uint64_t{1} << 32)
      return name("the size of dimension", d) + " is 0 or above 2^32";
    if (a.box[d] == 0 || a.box[d] > 256) return name("the box's size of dimension", d) + " is 0 or above 256";
    if (a.element_strides[d] == 0 || a.element_strides[d] > 8)
      return name("the element stride of dimension", d) + " is 0 or above 8";
    encoded.last[d] = static_cast<uint32_t>(a.dimensions[d] - 1);
    encoded.box_last[d] = static_cast<uint8_t>(a.box[d] - 1);
    encoded.element_strides[d] = static_cast<uint8_t>(a.element_strides[d]);
    if (d + 1 == a.rank) break;
    if (a.strides[d] % 16 != 0) return name("the stride of dimension", d + 1) + " is no multiple of 16 bytes";
    if (a.strides[d] >= uint64_t{1} << 36)
      return name("the stride of dimension", d + 1) + " is 2^36 bytes or more, which the emulator does not hold";
    encoded.units[d] = static_cast<uint32_t>(a.strides[d] / 16);
  }
  const unsigned inner = a.box[0] * type_bytes[a.type];
  if (inner % 16 != 0) return "a row of the box is " + std::to_string(inner) + " bytes, no multiple of 16";
  const unsigned row = fw::swizzle_bytes(swizzles[a.swizzle]);
  if (a.swizzle != map_swizzle_none && inner > row)
    return "a row of the box is " + std::to_string(inner) + " bytes, more than the " + std::to_string(row) +
           " that are swizzled";
  if (a.swizzle != map_swizzle_none && inner < row)
    return "a row of the box is " + std::to_string(inner) + " bytes; the emulator swizzles whole rows of " +
           std::to_string(row);
  std::memcpy(map, &encoded, sizeof encoded);
  return "";
}

const EncodedTensorMap* tensor_map_at(const void* map) {
  const auto* encoded = static_cast<const EncodedTensorMap*>(map);
  return reinterpret_cast<uintptr_t>(map) % 64 == 0 && encoded->magic == map_magic ? encoded : nullptr;
}

unsigned Tile::bytes() const {
  unsigned bytes = type_bytes[map.type];
  for (unsigned d = 0; d < map.rank; ++d) bytes *= count_of(map, d);
  return bytes;
}

void Tile::copy(char* to, unsigned address) const {
  const unsigned element = type_bytes[map.type], rows = bytes() / (count_of(map, 0) * element);
  const uint64_t fill = map.fill == map_fill_nan ? nan_of(map.type) : 0;
  for (unsigned row = 0; row < rows; ++row) {
    const char* from = map.address;
    bool inside = true;
    unsigned rest = row;
    for (unsigned d = 1; d < map.rank; ++d) {
      const int64_t place = at[d] + int64_t{rest % count_of(map, d)} * map.element_strides[d];
      rest /= count_of(map, d);
      inside &= place >= 0 && place <= map.last[d];
      from += place * map.units[d - 1] * 16;
    }
    for (unsigned i = 0; i < count_of(map, 0); ++i) {
      const int64_t place = int64_t{at[0]} + i;
      const unsigned offset = (row * count_of(map, 0) + i) * element;
      char* there = to + (fw::swizzled(address + offset, swizzles[map.swizzle]) - address);
      if (inside && place >= 0 && place <= map.last[0])
        std::memcpy(there, from + place * element, element);
      else
        std::memcpy(there, &fill, element);
    }
  }
}

}  // namespace fwemu
