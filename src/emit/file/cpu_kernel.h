// A kernel of an emitted file on the CPU, on PyTorch's threads.
#pragma once
#include <ATen/Parallel.h>

#include <map>
#include <string>

#include "launch/cpu_rules.h"

namespace fusewright {

class CpuKernel {
 public:
  // `symbols`: the kernel by its name, and what else of its text is asked for.
  CpuKernel(const KernelLoops& code, const std::map<std::string, const void*>& symbols) : rules_(code) {
    const auto sizes = symbols.find("fw_state_sizes");
    rules_.attach(reinterpret_cast<CpuRules::Entry>(const_cast<void*>(symbols.at(code.name))),
                  sizes == symbols.end() ? nullptr : static_cast<const int64_t*>(sizes->second));
  }

  void run(const KernelCall& call) const {
    rules_.run(call.operands, call.sizes, call.numbers, [](int64_t n, int64_t grain, const auto& body) {
      if (n > 0) at::parallel_for(0, n, grain, body);
    });
  }

 private:
  CpuRules rules_;
};

}  // namespace fusewright
