#pragma once
#include <cstdint>

namespace fusewright {

// The layout of fw::Args in kernels/cpu_loops.h, and the numbers that both sides must agree on.
struct KernelArgs {
  void* const* pointers;
  const int64_t* sizes;
  const int64_t* strides;
  const double* numbers;
  void* rows;
  void* partial;
  int64_t splits;
  const int64_t* side_sizes;
  int64_t block;
};

constexpr int64_t kernel_lanes = 1024, kernel_rows_at_once = 16;

}  // namespace fusewright
