#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "fusewright/tensor.h"
#include "launch/kernel_loops.h"

namespace fusewright {

// The loops of a kernel for the tensors of one call.
struct Geometry {
  size_t axes, operands;
  std::vector<int64_t> sizes, strides;
  int64_t& stride(size_t operand, size_t axis) { return strides[operand * axes + axis]; }
  int64_t stride(size_t operand, size_t axis) const { return strides[operand * axes + axis]; }
  int64_t extent(const std::vector<int>& loops) const {
    int64_t product = 1;
    for (int a : loops) product *= sizes[static_cast<size_t>(a)];
    return product;
  }
};

// Works out strides of the loops from the tensors that a kernel is called with. The same for all backends.
class LoopGeometry {
 public:
  explicit LoopGeometry(const KernelLoops& code) : axes_(code.axes.size()) {
    for (const KernelLoops::Axis& axis : code.axes) pinned_.push_back(axis.pinned || axis.tap);
    varies_.assign(code.operands.size() * axes_, false);
    for (size_t o = 0; o < code.operands.size(); ++o) {
      const auto& dims = code.operands[o].dims;
      std::vector<OperandAxis> list;
      for (size_t d = 0; d < dims.size(); ++d) {
        for (size_t i = 0; i < dims[d].size(); ++i) {
          list.push_back(
              {dims[d][i], static_cast<int>(d), {dims[d].begin() + static_cast<long>(i) + 1, dims[d].end()}});
          varies_[o * axes_ + static_cast<size_t>(dims[d][i])] = true;
        }
      }
      strides_.push_back(std::move(list));
      side_.push_back(code.operands[o].side);
    }
  }

  // operands in the order of KernelLoops::operands; a size for each axis
  Geometry bind(const std::vector<const Tensor*>& operands, const std::vector<int64_t>& sizes) const {
    Geometry g;
    g.axes = std::max<size_t>(axes_, 1);
    g.operands = operands.size();
    g.sizes = sizes;
    g.sizes.resize(g.axes, 1);
    g.strides.assign(g.axes * std::max<size_t>(g.operands, 1), 0);
    for (size_t o = 0; o < operands.size(); ++o) {
      for (const OperandAxis& entry : strides_[o]) {
        int64_t stride = operands[o]->strides[static_cast<size_t>(entry.dim)];
        for (int a : entry.inner) stride *= g.sizes[static_cast<size_t>(a)];
        g.stride(o, static_cast<size_t>(entry.axis)) += stride;
      }
    }
    return g;
  }

  // Neighbouring loops that are one stretch of memory for every operand become one: the inner takes the product, the
  // outer size 1. The text of a kernel fixes its loops; this is how [n, c, h, w] still runs as a few long lines.
  // `line`: the loop that is vectorised.
  enum class Text {
    all_axes,  // the text adds up every axis of every operand; sums on the side are contiguous along the line (C++)
    own_axes,  // the text knows which axes an operand has (CUDA)
  };
  void merge(Geometry& g, const std::vector<int>& loops, int line, Text text) const {
    // Whether operand o sees `outer` and `inner` as one stretch. A loop of size 1 takes over any stride, except in the
    // line for operands that the text holds as one number there (stride 0).
    auto joins = [&](size_t o, size_t outer, size_t inner) {
      bool one = g.sizes[inner] == 1, in_line = static_cast<int>(inner) == line;
      if (text == Text::own_axes && varies(o, outer) && !varies(o, inner)) return false;
      if (side_[o]) {
        // Its result has an axis or has none; and where the text adds to it along the line, by steps of 1.
        if (varies(o, outer) != varies(o, inner)) return false;
        if (one && text == Text::all_axes && in_line && varies(o, inner)) return g.stride(o, outer) == 1;
      }
      if (one && (!in_line || varies(o, inner))) return true;
      return g.stride(o, outer) == (one ? 0 : g.stride(o, inner) * g.sizes[inner]);
    };
    for (size_t i = loops.size(); i-- > 1;) {
      size_t inner = static_cast<size_t>(loops[i]);
      for (size_t k = i; k-- > 0;) {
        size_t outer = static_cast<size_t>(loops[k]);
        if (g.sizes[outer] == 1) continue;
        if (pinned_[inner] || pinned_[outer]) break;
        bool joined = true;
        for (size_t o = 0; o < g.operands && joined; ++o) joined = joins(o, outer, inner);
        if (!joined) break;
        if (g.sizes[inner] == 1)
          for (size_t o = 0; o < g.operands; ++o) g.stride(o, inner) = g.stride(o, outer);
        g.sizes[inner] *= g.sizes[outer];
        g.sizes[outer] = 1;
      }
    }
  }

 private:
  struct OperandAxis {  // stride of `axis` = stride of `dim` times the sizes of `inner` axes
    int axis, dim;
    std::vector<int> inner;
  };
  bool varies(size_t operand, size_t axis) const { return varies_[operand * axes_ + axis]; }

  size_t axes_;
  std::vector<bool> pinned_, side_;
  std::vector<std::vector<OperandAxis>> strides_;
  std::vector<bool> varies_;  // [operand][axis]
};

}  // namespace fusewright
