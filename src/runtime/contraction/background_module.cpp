#include "runtime/contraction/background_module.h"

#include "base/log.h"
#include "runtime/compiler/background.h"

namespace fusewright {

BackgroundModule::BackgroundModule(std::function<std::string()> source, std::vector<std::string> entries,
                                   std::string unavailable)
    : source_(std::move(source)), entries_(std::move(entries)), unavailable_(std::move(unavailable)) {}

bool BackgroundModule::ready(int device) {
  {
    const std::lock_guard lock(mutex_);
    Loaded& loaded = devices_[device];
    if (loaded.module != nullptr) return true;
    if (loaded.begun) return false;
    loaded.begun = true;
  }
  Background::instance().add([this, device, architecture = cuda::device(device).architecture] {
    Loaded loaded;
    loaded.begun = loaded.done = true;
    try {
      loaded.module = cuda::compile({source_()}, architecture)[0];
      for (const std::string& entry : entries_) loaded.kernels.push_back(loaded.module->kernel(entry, device));
    } catch (const std::exception& error) {
      loaded.module = nullptr;
      log(LogLevel::warning, unavailable_ + ": " + error.what());
    }
    const std::lock_guard lock(mutex_);
    devices_[device] = std::move(loaded);
  });
  return false;
}

bool BackgroundModule::settled(int device) const {
  const std::lock_guard lock(mutex_);
  const auto found = devices_.find(device);
  return found == devices_.end() || found->second.done || !found->second.begun;
}

void BackgroundModule::launch(size_t entry, int device, cuda::LaunchShape shape, const void* arguments,
                              void* stream) const {
  void* kernel;
  {
    const std::lock_guard lock(mutex_);
    kernel = devices_.at(device).kernels[entry];
  }
  cuda::launch(kernel, entries_[entry], device, shape, arguments, stream);
}

}  // namespace fusewright
