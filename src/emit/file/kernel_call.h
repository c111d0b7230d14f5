// What the two halves of an emitted extension say to each other: one knows PyTorch, the other the kernels.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "launch/kernel_loops.h"

namespace fusewright {

struct KernelCall {
  std::vector<const Tensor*> operands;  // in the order of KernelLoops::operands
  std::vector<int64_t> sizes;           // of the kernel's axes
  std::vector<double> numbers;
  int device = 0;
  void* stream = nullptr;
  std::function<void*(int64_t)> allocate;  // bytes that live as long as the call
};

const std::vector<KernelLoops>& kernels();
void run_kernel(size_t kernel, const KernelCall& call);

}  // namespace fusewright
