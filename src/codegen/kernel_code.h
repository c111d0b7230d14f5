#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "passes/fusion.h"
#include "schedule/schedule.h"

namespace fusewright {

// What the launcher must know of a CUDA kernel beside its text.
struct CudaCode {
  std::vector<int> anchor_axes, walked_axes;  // a row's coordinates: a team stays at the first, walks over the second
  std::vector<std::vector<int64_t>> sums;     // per pass: the bytes of each accumulator
  std::vector<bool> position_side;            // per sum on the side: it varies along the row
  struct Vector {
    int operand, axis;
  };
  std::vector<Vector> vectors;  // operands that are read or written by whole vectors, along this axis
  struct Walking {              // the variant that holds no rows in registers has a text, and passes, of its own
    std::string text;           // with entries for split rows and for sums on the side
    int stages = 0;
    std::vector<std::vector<int64_t>> sums;
    bool final_phase = false;
  };
  Walking walking;
  bool final_phase = false;  // values of the row are stored behind the last pass
  std::vector<int> items;    // vectors of a row that a thread may hold in registers: one variant for each
  std::vector<int> ahead;    // operands that come through shared memory, asked for before their row's turn
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
  std::string name;               // also the symbol: fw_row_group_norm_silu_mul_silu
  std::string text;               // without the prelude
  std::vector<Operand> operands;  // in the order of Args::pointers
  std::vector<Value> numbers;     // in the order of Args::numbers: constants, extents, scalar inputs
  std::vector<Axis> axes;
  LoopNest nest;
  std::vector<int> origins;  // the user's operators that it computes
  CudaCode cuda;
};

// C++ for the system's compiler.
KernelCode emit_cpp(const Graph& graph, const Kernel& kernel);

// CUDA C++ for NVRTC.
KernelCode emit_cuda(const Graph& graph, const Kernel& kernel);

// The text in front of every kernel (src/kernels, embedded by the build).
const std::string& cpp_prelude();
const std::string& cuda_prelude();
const std::string& cuda_tile_prelude();

}  // namespace fusewright
