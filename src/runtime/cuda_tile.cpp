#include "runtime/cuda_tile.h"

#include <algorithm>
#include <bit>

namespace fusewright {
namespace {

constexpr int64_t threads = 256, shortest = 4;

int64_t power_of_two_from(int64_t n) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(n, 1))));
}

}  // namespace

// The axis along which most bytes lie, of those operands that do not lie along the line.
Tiling find_tiling(const KernelCode& code, const Geometry& g) {
  Tiling best;
  if (code.cuda.tiled_text.empty()) return best;
  const auto inner = static_cast<size_t>(code.nest.inner);
  if (g.sizes[inner] < shortest) return best;
  int64_t most = 0;
  for (int a : code.nest.reduced) {
    const auto axis = static_cast<size_t>(a);
    if (g.sizes[axis] < shortest) continue;
    Tiling found;
    found.across = a;
    int64_t bytes = 0;
    for (const CudaCode::Vector& v : code.cuda.vectors) {
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
TileShape tile_shape(const KernelCode& code, const Geometry& g, const Tiling& tiling, int vector) {
  TileShape shape;
  shape.items = std::max(vector, 4);
  const int64_t groups = shape.items / vector, squares = threads * groups;
  const int64_t across = (g.sizes[static_cast<size_t>(tiling.across)] + vector - 1) / vector;
  const int64_t along = g.sizes[static_cast<size_t>(code.nest.inner)] / vector;
  shape.width = std::clamp<int64_t>(power_of_two_from(across), groups, vector > 1 ? 16 : 32);
  shape.length = std::clamp<int64_t>(power_of_two_from(along), groups, squares / shape.width);
  shape.width = squares / shape.length;
  shape.tiles_across = (across + shape.width - 1) / shape.width;
  shape.tiles_along = (along + shape.length - 1) / shape.length;
  shape.shared_bytes = 0;
  for (size_t o = 0; o < code.operands.size(); ++o)
    if (tiling.has(o)) shape.shared_bytes += size_of(code.operands[o].dtype) * threads * shape.items * vector;
  return shape;
}

}  // namespace fusewright
