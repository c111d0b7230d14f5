#pragma once
// The kernels of one text, compiled in the background once for a process and device. Nobody waits for them.
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/cuda/cuda.h"

namespace fusewright {

class BackgroundModule {
 public:
  // `unavailable`: what is logged where the text cannot be compiled or loaded, in front of the reason.
  BackgroundModule(std::function<std::string()> source, std::vector<std::string> entries, std::string unavailable);

  // The kernels are loaded on this device. Otherwise compiling them is begun, or goes on.
  bool ready(int device);
  bool settled(int device) const;  // nothing is on its way

  // Puts a kernel on the stream. The module is ready.
  void launch(size_t entry, int device, cuda::LaunchShape shape, const void* arguments, void* stream) const;

 private:
  struct Loaded {
    bool begun = false, done = false;
    std::shared_ptr<cuda::Module> module;
    std::vector<void*> kernels;
  };

  const std::function<std::string()> source_;
  const std::vector<std::string> entries_;
  const std::string unavailable_;
  mutable std::mutex mutex_;
  std::map<int, Loaded> devices_;
};

}  // namespace fusewright
