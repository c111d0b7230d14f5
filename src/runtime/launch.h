#pragma once
#include <map>
#include <string>
#include <vector>

#include "codegen/kernel_code.h"
#include "fusewright/host.h"
#include "ir/ir.h"
#include "runtime/geometry.h"

namespace fusewright {

// Reads the values of size symbols off the inputs' sizes, and refuses inputs that contradict them.
class SymbolBinder {
 public:
  SymbolBinder() = default;
  explicit SymbolBinder(const Graph& graph);
  const std::map<std::string, int>& slots() const { return slots_; }
  std::vector<int64_t> bind(const Graph& graph, const std::vector<Tensor>& tensors) const;
  // The same over another kind of integer, unchecked. `size(input, dim)` gives the inputs' sizes; see SizeProgram.
  template <class T, class Sizes, class Apply>
  std::vector<T> solve(Sizes size, Apply apply) const {
    std::vector<T> symbols(slots_.size() + 1, T(0));
    for (const Solve& s : solve_) {
      T rest = size(s.input, s.dim) - s.offset.run_over(symbols, apply);
      symbols[static_cast<size_t>(s.slot)] = apply(SizeCall::floordiv, rest, T(s.coefficient));
    }
    return symbols;
  }

 private:
  struct Solve {  // symbol = (size - offset) / coefficient, with offset over symbols solved before
    int input, dim, slot;
    int64_t coefficient;
    SizeProgram offset;
  };
  struct Check {
    int input, dim;
    SizeProgram size;
  };
  std::map<std::string, int> slots_;
  std::vector<Solve> solve_;
  std::vector<Check> checks_;
};

// Turns tensors into a kernel's arguments and hands its work to the host's threads.
class Launcher {
 public:
  Launcher(const Graph& graph, const KernelCode& code, const std::map<std::string, int>& slots);
  using Entry = void (*)(const void* args, int phase, int64_t begin, int64_t end);
  void attach(Entry entry, const int64_t* state_sizes);
  // operands in the order of code.operands; scalar_inputs by position in the graph's scalar inputs
  void run(Host& host, const std::vector<const Tensor*>& operands, const int64_t* symbols,
           const std::vector<double>& scalars) const;

 private:
  struct Side {  // a sum on the side: its operand, and the axes of its result in loop order
    size_t operand;
    std::vector<int> axes;
    DType dtype;  // of the buffer
  };
  class SideBuffers;

  const LoopNest nest_;
  KernelGeometry geometry_;
  std::vector<Side> sides_;
  Entry entry_ = nullptr;
  int64_t row_bytes_ = 0, sums_bytes_ = 0;
};

}  // namespace fusewright
