#pragma once
#include <algorithm>
#include <cstdint>
#include <tuple>

#include "launch/geometry.h"

namespace fusewright {

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline int64_t power_of_two_from(int64_t n) {
  int64_t power = 1;
  while (power < n) power *= 2;
  return power;
}

// Operands of a pointwise kernel that do not lie along its lines and so go through tiles in shared memory
// (kernels/cuda_tile.h): channels last beside row-major.
struct Tiling {
  uint64_t operands = 0;  // a bit for each; 0: all lie well
  int across = -1;        // the axis along which these lie
  bool has(size_t operand) const { return operand < 64 && (operands >> operand & 1) != 0; }
  bool operator==(const Tiling& o) const { return operands == o.operands && across == o.across; }
  bool operator<(const Tiling& o) const { return std::tie(operands, across) < std::tie(o.operands, o.across); }
};

constexpr int widest_in_tile = 4;  // elements; a thread turns squares of them in its registers

// The tile of a block of 256 threads, in vectors, and how many of them cover the kernel's two axes.
struct TileShape {
  static constexpr int64_t threads = 256, shortest = 4;
  int64_t items;          // vectors that a thread computes
  int64_t width, length;  // across and along
  int64_t tiles_across, tiles_along;
  int64_t shared_bytes;
};

// The axis along which most bytes lie, of those operands that do not lie along the line.
inline Tiling find_tiling(const KernelLoops& code, const Geometry& g) {
  Tiling best;
  if (!code.cuda.can_tile) return best;
  const auto inner = static_cast<size_t>(code.nest.inner);
  if (g.sizes[inner] < TileShape::shortest) return best;
  int64_t most = 0;
  for (int a : code.nest.reduced) {
    const auto axis = static_cast<size_t>(a);
    if (g.sizes[axis] < TileShape::shortest) continue;
    Tiling found;
    found.across = a;
    int64_t bytes = 0;
    for (const CudaLoops::Vector& v : code.cuda.vectors) {
      const auto operand = static_cast<size_t>(v.operand);
      const int64_t along = g.stride(operand, inner);
      if (along == 0 || along == 1 || g.stride(operand, axis) != 1) continue;
      found.operands |= uint64_t{1} << operand;
      bytes += size_of(code.operands[operand].dtype);
    }
    if (bytes > most) best = found, most = bytes;
  }
  return best;
}

// As many vectors across as along, as far as the two axes have them. A thread turns `groups` squares of vectors.
inline TileShape tile_shape(const KernelLoops& code, const Geometry& g, const Tiling& tiling, int vector) {
  TileShape shape;
  shape.items = std::max(vector, 4);
  const int64_t groups = shape.items / vector, squares = TileShape::threads * groups;
  const int64_t across = ceil_div(g.sizes[static_cast<size_t>(tiling.across)], vector);
  const int64_t along = g.sizes[static_cast<size_t>(code.nest.inner)] / vector;
  shape.width = std::clamp<int64_t>(power_of_two_from(across), groups, vector > 1 ? 16 : 32);
  shape.length = std::clamp<int64_t>(power_of_two_from(along), groups, squares / shape.width);
  shape.width = squares / shape.length;
  shape.tiles_across = ceil_div(across, shape.width);
  shape.tiles_along = ceil_div(along, shape.length);
  shape.shared_bytes = 0;
  for (size_t o = 0; o < code.operands.size(); ++o)
    if (tiling.has(o))
      shape.shared_bytes += size_of(code.operands[o].dtype) * TileShape::threads * shape.items * vector;
  return shape;
}

}  // namespace fusewright
