#pragma once
#include <map>
#include <string>
#include <vector>

#include "codegen/kernel_code.h"
#include "fusewright/tensor.h"
#include "ir/ir.h"

namespace fusewright {

// The loops of a kernel for the tensors of one call.
struct Geometry {
  size_t axes, operands;
  std::vector<int64_t> sizes, strides;
  int64_t& stride(size_t operand, size_t axis) { return strides[operand * axes + axis]; }
  int64_t stride(size_t operand, size_t axis) const { return strides[operand * axes + axis]; }
  int64_t extent(const std::vector<int>& loops) const;
};

// Strides of a packed tensor whose dimensions lie in this order.
void set_strides(Tensor& tensor, const Order& order);

// Works out sizes, strides and scalar arguments of a kernel from what it is called with. The same for all backends.
class KernelGeometry {
 public:
  KernelGeometry(const Graph& graph, const KernelCode& code, const std::map<std::string, int>& slots);

  // operands in the order of code.operands
  Geometry bind(const std::vector<const Tensor*>& operands, const int64_t* symbols) const;
  // in the order of code.numbers; scalar inputs by position among the graph's
  std::vector<double> numbers(const int64_t* symbols, const std::vector<double>& scalars) const;

  // Neighbouring loops that are one stretch of memory for every operand become one: the inner takes the product, the
  // outer size 1. The text of a kernel fixes its loops; this is how [n, c, h, w] still runs as a few long lines.
  // `line`: the loop that is vectorised.
  enum class Text {
    all_axes,  // the text adds up every axis of every operand; sums on the side are contiguous along the line (C++)
    own_axes,  // the text knows which axes an operand has (CUDA)
  };
  void merge(Geometry& geometry, const std::vector<int>& loops, int line, Text text) const;

 private:
  struct Number {
    enum class Source { constant, size, scalar } source;
    double value = 0;
    SizeProgram size;
    size_t scalar = 0;
  };
  struct OperandAxis {  // stride of `axis` = stride of `dim` times the sizes of `inner` axes
    int axis, dim;
    std::vector<int> inner;
  };
  bool varies(size_t operand, size_t axis) const { return varies_[operand * axis_sizes_.size() + axis]; }

  std::vector<bool> pinned_, side_;
  std::vector<SizeProgram> axis_sizes_;
  std::vector<std::vector<OperandAxis>> strides_;
  std::vector<bool> varies_;  // [operand][axis]
  std::vector<Number> numbers_;
};

}  // namespace fusewright
