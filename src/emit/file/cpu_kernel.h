// A kernel of an emitted file on the CPU, on PyTorch's threads.
#pragma once
#include <ATen/Parallel.h>

#include "launch/cpu_rules.h"

namespace fusewright {

inline void run_on_threads(const CpuRules& kernel, const KernelCall& call) {
  kernel.run(call.operands, call.sizes, call.numbers, [](int64_t n, int64_t grain, const auto& body) {
    if (n > 0) at::parallel_for(0, n, grain, body);
  });
}

}  // namespace fusewright
