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
  int vector = 1;         // elements that are read or written at once there
  bool has(size_t operand) const { return operand < 64 && (operands >> operand & 1) != 0; }
  bool operator==(const Tiling& o) const { return key() == o.key(); }
  bool operator<(const Tiling& o) const { return key() < o.key(); }

 private:
  std::tuple<uint64_t, int, int> key() const { return {operands, across, vector}; }
};

constexpr int widest_in_tile = 4;  // elements; a thread turns squares of them in its registers

// The tile of a block of 256 threads, in vectors, and how many of them cover the kernel's two axes.
struct TileShape {
  static constexpr int64_t threads = 256, shortest = 4;
  int64_t items;          // vectors along that a thread computes
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

// What a block of 256 threads can turn at a time (kernels/cuda_tile.h): both sides of the tile have room for all of it,
// and so has shared memory, whose lines are powers of two.
inline bool tile_fits(const TileShape& shape, int64_t across_vector) {
  const int64_t elements_across = shape.width * across_vector, threads = TileShape::threads;
  return shape.width <= threads && shape.length <= threads &&
         power_of_two_from(shape.length) * elements_across <= threads * shape.items &&
         shape.items * (threads / shape.length) >= elements_across &&
         shape.items / across_vector * (threads / shape.width) >= shape.length;
}

// Whole lines of memory on both sides. An axis that is shorter is covered as it is, and the tile is longer on the
// other.
inline TileShape tile_shape(const KernelLoops& code, const Geometry& g, const Tiling& tiling, int vector) {
  TileShape shape;
  shape.items = vector > 1 ? std::max(vector, 4) : 8;
  const int64_t across = ceil_div(g.sizes[static_cast<size_t>(tiling.across)], tiling.vector);
  const int64_t along = g.sizes[static_cast<size_t>(code.nest.inner)] / vector;
  shape.width = std::min<int64_t>(across, tiling.vector > 1 ? 16 : 32);
  shape.length = std::min<int64_t>(along, vector > 1 ? 16 : 32);
  auto grow = [&](int64_t TileShape::*side, int64_t most) {
    TileShape larger = shape;
    larger.*side = std::min(2 * (shape.*side), most);
    if (larger.*side == shape.*side || !tile_fits(larger, tiling.vector)) return false;
    shape = larger;
    return true;
  };
  while (grow(&TileShape::width, across) || grow(&TileShape::length, along)) {
  }
  // No tile has less to do than the others.
  shape.tiles_across = ceil_div(across, shape.width);
  shape.tiles_along = ceil_div(along, shape.length);
  shape.width = ceil_div(across, shape.tiles_across);
  shape.length = ceil_div(along, shape.tiles_along);
  shape.shared_bytes = 0;
  for (size_t o = 0; o < code.operands.size(); ++o)
    if (tiling.has(o))
      shape.shared_bytes += size_of(code.operands[o].dtype) * TileShape::threads * shape.items * vector;
  return shape;
}

}  // namespace fusewright
