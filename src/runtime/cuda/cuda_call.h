#pragma once
// One call of a generated CUDA kernel, between cuda_tune.cpp, which chooses, and cuda_launch.cpp.
#include <atomic>
#include <string>
#include <vector>

#include "launch/cuda_arguments.h"
#include "launch/cuda_shape.h"
#include "runtime/cuda/cuda_launch.h"

namespace fusewright {

inline std::atomic<CandidateHook> candidate_hook = nullptr;

// The launches of a call, with their kernels. They serve every call with the same key.
struct CudaLauncher::Prepared : Launches {
  std::vector<int64_t> key;
  bool lasting = true;         // false: the rule chose because it cannot be timed yet
  std::vector<void*> kernels;  // one for each launch
};

}  // namespace fusewright
