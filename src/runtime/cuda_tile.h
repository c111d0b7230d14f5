#pragma once
#include <cstdint>

#include "codegen/kernel_code.h"
#include "runtime/geometry.h"

namespace fusewright {

// Operands of a pointwise kernel that do not lie along its lines and so go through tiles in shared memory
// (kernels/cuda_tile.h): channels last beside row-major.
struct Tiling {
  uint64_t operands = 0;  // a bit for each; 0: all lie well
  int across = -1;        // the axis along which these lie
  bool has(size_t operand) const { return operand < 64 && (operands >> operand & 1) != 0; }
  auto operator<=>(const Tiling&) const = default;
};
Tiling find_tiling(const KernelCode& code, const Geometry& g);

constexpr int widest_in_tile = 4;  // elements; a thread turns squares of them in its registers

// The tile of a block of 256 threads, in vectors, and how many of them cover the kernel's two axes.
struct TileShape {
  int64_t items;          // vectors that a thread computes
  int64_t width, length;  // across and along
  int64_t tiles_across, tiles_along;
  int64_t shared_bytes;
};
TileShape tile_shape(const KernelCode& code, const Geometry& g, const Tiling& tiling, int vector);

}  // namespace fusewright
