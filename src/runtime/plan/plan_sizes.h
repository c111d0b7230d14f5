#pragma once
// Shared by plan.cpp, which computes it, and plan_run.cpp, which runs a call.
#include "runtime/plan/memory_plan.h"
#include "runtime/plan/plan.h"

namespace fusewright {

// What follows from the sizes of a call's inputs.
struct Plan::Sizes {
  std::vector<int64_t> key;  // the sizes, of all tensors
  std::vector<int64_t> symbols;
  std::vector<Tensor> tensors;   // by place: as it is allocated, without memory
  std::vector<int64_t> offsets;  // by place: in the block of temporaries, or -1
  BlockPlan block;
};

}  // namespace fusewright
