// Runs a toy kernel in an emitted file on the CPU.
#pragma once
#include <map>
#include <string>

#include "toy_rules.h"

namespace fusewright {

class ToyCpuKernel {
 public:
  ToyCpuKernel(const KernelLoops& code, const std::map<std::string, const void*>& symbols)
      : entry_(reinterpret_cast<Entry>(const_cast<void*>(symbols.at(code.name)))) {}

  void run(const KernelCall& call) const {
    const ToyArguments arguments = toy_arguments(call.operands, call.sizes.at(0));
    entry_(&arguments);
  }

 private:
  using Entry = void (*)(const ToyArguments*);
  Entry entry_;
};

}  // namespace fusewright
