#pragma once
// The kernels of kernels/contract, compiled once for a process and device.
#include <atomic>
#include <string>

#include "runtime/contraction/background_module.h"
#include "runtime/contraction/product_plan.h"
#include "runtime/cuda/cuda.h"

namespace fusewright {

// Names the environment variable that says who computes products of f32, `library` or `own`; empty: whatever is faster.
constexpr const char* product_variable = "FUSEWRIGHT_FLOAT32_MATMUL";

class ProductKernels {
 public:
  static ProductKernels& instance();

  // The text has kernels for this device, and they are loaded there (background_module.h).
  bool ready(int device);
  bool settled(int device) const { return module_.settled(device); }

  // Puts the launches of a plan on the stream.
  void run(const ProductPlan& plan, char* workspace, float* result, int device, void* stream) const;
  uint64_t products() const { return products_; }  // that were computed here

  static const std::string& source();
  static bool serves(cuda::Architecture architecture) { return architecture.major == 9; }

 private:
  enum Entry { pack, check, multiply, finish, entries };
  ProductKernels();

  BackgroundModule module_;
  mutable std::atomic<uint64_t> products_ = 0;
};

}  // namespace fusewright
