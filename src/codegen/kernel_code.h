#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "launch/kernel_loops.h"
#include "schedule/kernel.h"
#include "schedule/walk.h"

namespace fusewright {

// A CUDA kernel beside its usual text.
struct CudaCode : CudaLoops {
  std::string walking_text;  // of the variant that holds no rows in registers
  // Parts of it, each a text by itself: a first call takes one, and all of them take the compiler a second.
  struct WalkingParts {
    std::string whole_rows, split_rows;
    std::string sides;  // adds up sums on the side, for every variant
  } walking_parts;
  // For operands that lie along another axis than the lines: stands behind cuda_tile_prelude. Empty: cannot be done.
  std::string tiled_text;
};

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
  std::string schedule;           // how `explain` calls it: `row`, `window_row`
  std::string name;               // also the symbol: fw_row_group_norm_silu_mul_silu
  std::string text;               // without the prelude
  std::vector<Operand> operands;  // in the order of Args::pointers
  std::vector<Value> numbers;     // in the order of Args::numbers: constants, extents, scalar inputs
  std::vector<Axis> axes;
  LoopNest nest;
  std::vector<int> origins;            // the user's operators that some of its steps come from
  std::vector<std::string> operators;  // what it computes of them: kernel_operators()
  CudaCode cuda;
};

// What launching it takes to know.
KernelLoops loops_of(const Graph& graph, const KernelCode& code);

// C++ statements that fill in `KernelLoops k`: all of it, or what says nothing of how the kernel walks.
std::string loops_as_cpp(const KernelLoops& loops);
std::string interface_as_cpp(const KernelLoops& loops);

// The lines where the user's operators stand, each once.
std::vector<std::string> sources_of(const Graph& graph, const KernelCode& code);

// C++ for the system's compiler.
KernelCode emit_cpp(const Graph& graph, const Kernel& kernel);

// CUDA C++ for NVRTC.
KernelCode emit_cuda(const Graph& graph, const Kernel& kernel);

// The text in front of every kernel (src/kernels, embedded by the build).
const std::string& cpp_prelude();
const std::string& cuda_prelude();
const std::string& cuda_tile_prelude();

}  // namespace fusewright
