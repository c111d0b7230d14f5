#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/cuda/cuda.h"
#include "runtime/cuda/cuda_driver.h"

namespace fusewright::cuda {

// Machine code or PTX, loaded on each device that asks for a kernel of it. Keeps the driver, so it may outlive the
// Runtime that made it.
class LoadedModule : public Module {
 public:
  LoadedModule(std::shared_ptr<Driver> driver, Architecture architecture, std::vector<std::byte> image);
  ~LoadedModule() override;

  void* kernel(const std::string& name, int device) override;

 private:
  struct OnDevice {
    CUmodule module = nullptr;
    std::map<std::string, CUfunction> kernels;
  };

  CUmodule load(int device) const;
  CUfunction find(CUmodule module, const std::string& name, int device) const;

  const std::shared_ptr<Driver> driver_;
  const Architecture architecture_;
  const std::vector<std::byte> image_;
  std::mutex mutex_;
  std::map<int, OnDevice> devices_;
};

}  // namespace fusewright::cuda
