#pragma once
#include <map>
#include <string>
#include <vector>

#include "codegen/kernel_code.h"
#include "ir/ir.h"
#include "launch/geometry.h"
#include "runtime/plan/strides.h"

namespace fusewright {

// Where a scalar argument of a kernel comes from.
struct KernelNumber {
  enum class Source { constant, size, scalar } source;
  double value = 0;
  Size size;
  size_t scalar = 0;  // position among the graph's scalar inputs
};
KernelNumber number_of(const Graph& graph, Value v);

// A LoopGeometry that knows how sizes and scalar arguments follow from the symbols of a call.
class KernelGeometry : public LoopGeometry {
 public:
  KernelGeometry(const Graph& graph, const KernelCode& code, const std::map<std::string, int>& slots);

  Geometry bind(const std::vector<const Tensor*>& operands, const int64_t* symbols) const {
    return LoopGeometry::bind(operands, sizes(symbols));
  }
  std::vector<int64_t> sizes(const int64_t* symbols) const;
  // in the order of code.numbers; scalar inputs by position among the graph's
  std::vector<double> numbers(const int64_t* symbols, const std::vector<double>& scalars) const;

 private:
  struct Number : KernelNumber {
    SizeProgram program;  // of the size
  };
  std::vector<SizeProgram> axis_sizes_;
  std::vector<Number> numbers_;
};

}  // namespace fusewright
