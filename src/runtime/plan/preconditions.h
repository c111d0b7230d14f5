#pragma once
#include <string>
#include <vector>

#include "fusewright/tensor.h"
#include "ir/ir.h"
#include "runtime/plan/launch.h"

namespace fusewright {

// What the sizes of a call must be for a graph to have a meaning: a maximum has something to choose from, pooling at
// least one window. Kernels are compiled once for all sizes and do not ask.
class Preconditions {
 public:
  Preconditions() = default;
  // The graph as it was captured: the maxima inside composites (softmax) may well be over nothing.
  explicit Preconditions(const Graph& graph);
  // The sizes that must be positive.
  static Shape sizes(const Graph& graph);
  // `inputs`: one for each of the graph's, scalars too. Throws SizeError.
  void check(const std::vector<Tensor>& inputs) const;

 private:
  struct Positive {
    SizeProgram size;
    std::string what;
  };
  Graph inputs_;  // its inputs alone
  SymbolBinder binder_;
  std::vector<Positive> positive_;
};

}  // namespace fusewright
