#pragma once
#include <string>
#include <vector>

#include "passes/fusion.h"
#include "schedule/schedule.h"

namespace fusewright {

// A generated kernel: its text and what the executor must hand to it.
struct KernelCode {
  struct Operand {  // one pointer, with a stride for each axis
    Value value;
    bool store;
    DType dtype;
    Dims dims;
    // A sum on the side: the kernel adds to a buffer of its own for each part of the rows, laid out in loop order;
    // `dtype` is the buffer's.
    bool side = false;
  };
  std::string name;               // also the symbol: fw_row_group_norm_silu_mul_silu
  std::string text;               // without the prelude
  std::vector<Operand> operands;  // in the order of Args::pointers
  std::vector<Value> numbers;     // in the order of Args::numbers: constants, extents, scalar inputs
  std::vector<Axis> axes;
  LoopNest nest;
  std::vector<int> origins;  // the user's operators that it computes
};

// C++ for the system's compiler.
KernelCode emit_cpp(const Graph& graph, const Kernel& kernel);

// The text in front of every kernel (src/kernels, embedded by the build).
const std::string& cpp_prelude();

}  // namespace fusewright
