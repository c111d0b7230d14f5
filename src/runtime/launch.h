#pragma once
#include <map>
#include <string>
#include <vector>

#include "codegen/kernel_code.h"
#include "fusewright/host.h"
#include "ir/ir.h"

namespace fusewright {

// Reads the values of size symbols off the inputs' sizes, and refuses inputs that contradict them.
class SymbolBinder {
 public:
  SymbolBinder() = default;
  explicit SymbolBinder(const Graph& graph);
  const std::map<std::string, int>& slots() const { return slots_; }
  std::vector<int64_t> bind(const Graph& graph, const std::vector<Tensor>& tensors) const;

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
  struct Side {  // a sum on the side: its operand, and the axes of its result in loop order
    size_t operand;
    std::vector<int> axes;
    DType dtype;  // of the buffer
  };
  struct Geometry;
  class SideBuffers;
  void merge_loops(Geometry& geometry, const std::vector<int>& loops) const;

  const LoopNest nest_;
  std::vector<bool> pinned_;
  std::vector<SizeProgram> axis_sizes_;
  std::vector<std::vector<OperandAxis>> strides_;
  std::vector<bool> along_line_;  // per operand: it varies along the innermost loop
  std::vector<Number> numbers_;
  std::vector<Side> sides_;
  Entry entry_ = nullptr;
  int64_t row_bytes_ = 0, sums_bytes_ = 0;
};

}  // namespace fusewright
