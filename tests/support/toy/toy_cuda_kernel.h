// Runs a toy kernel in an emitted file on a GPU.
#pragma once
#include <cuda_runtime.h>

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "toy_rules.h"

namespace fusewright {

class ToyCudaKernel {
 public:
  struct Text {
    int items;
    std::vector<std::pair<std::string, const void*>> entries;
  };

  ToyCudaKernel(const KernelLoops&, const std::vector<Text>& texts) : text_(texts.at(0)) {}

  void run(const KernelCall& call) const {
    ToyArguments made = toy_arguments(call.operands, call.sizes.at(0));
    if (made.n == 0) return;
    void* arguments[] = {&made};
    const dim3 grid(static_cast<unsigned>(toy_blocks(made.n, text_.items))), block(toy_threads);
    const auto stream = static_cast<cudaStream_t>(call.stream);
    if (cudaLaunchKernel(text_.entries.at(0).second, grid, block, arguments, 0, stream) != cudaSuccess)
      throw std::runtime_error("a toy kernel was not launched");
  }

 private:
  Text text_;
};

}  // namespace fusewright
