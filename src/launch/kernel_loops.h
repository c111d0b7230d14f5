#pragma once
// What launching a kernel takes to know of it. Everything in this folder is C++17 over the standard library alone: the
// library includes it, and files that `emit` writes carry it.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "fusewright/dtype.h"

namespace fusewright {

// How a kernel walks its axes, whose names are indices.
struct Loops {
  enum class Kind { pointwise, row, column };
  Kind kind = Kind::pointwise;
  std::vector<int> kept;     // loops over results (without `inner`), outermost first
  std::vector<int> reduced;  // loops over what is reduced (without `inner`); in a pointwise kernel: all outer loops
  int inner = -1;            // the loop that is vectorised; -1: a single element

  // Reductions that need results of reductions come in later passes over the row: variance after mean.
  int stages = 1;
};

// What the launcher must know of a CUDA kernel beside its loops.
struct CudaLoops {
  std::vector<int> anchor_axes, walked_axes;  // a row's coordinates: a team stays at the first, walks over the second
  std::vector<std::vector<int64_t>> sums;     // per pass: the bytes of each accumulator
  std::vector<bool> position_side;            // per sum on the side: it varies along the row
  struct Vector {
    int operand, axis;
  };
  std::vector<Vector> vectors;  // operands that are read or written by whole vectors, along this axis
  struct Walking {              // the variant that holds no rows in registers has a text, and passes, of its own,
    int stages = 0;             // with entries for split rows and for sums on the side
    std::vector<std::vector<int64_t>> sums;
    std::vector<bool> leaves_sums;  // of a pass: for another one, or totals
    bool final_phase = false;       // values of the row are stored behind the last pass
  };
  Walking walking;
  std::vector<int> items;  // vectors of a row that a thread may hold in registers: one variant for each
  std::vector<int> ahead;  // operands that come through shared memory, asked for before their row's turn,
  std::vector<int> fixed;  // and those that stay there, the same for all rows of a team
  bool can_tile = false;   // there is a text for operands that lie along another axis than the lines

  bool has_sides() const { return !position_side.empty(); }
  int64_t sides_at_positions() const { return std::count(position_side.begin(), position_side.end(), true); }
  int64_t sides_at_anchors() const { return std::count(position_side.begin(), position_side.end(), false); }
};

struct KernelLoops {
  struct Operand {  // one pointer, with a stride for each axis
    std::string name;
    DType dtype = DType::f32;
    bool store = false, side = false;    // a sum on the side: `dtype` is its buffer's
    std::vector<std::vector<int>> dims;  // per dimension of the tensor: its axes, outermost first; none: size 1
  };
  struct Axis {
    bool pinned = false;  // never merged with a neighbour
    bool tap = false;     // no loop: a position that a window derives from one
  };
  std::string name;
  std::vector<Operand> operands;
  std::vector<Axis> axes;
  Loops nest;
  CudaLoops cuda;
  std::vector<DType> numbers;  // scalar arguments, as the kernel computes with them
};

}  // namespace fusewright
