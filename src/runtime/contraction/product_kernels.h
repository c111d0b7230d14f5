#pragma once
// The kernels of kernels/contract, compiled once for a process and device.
#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "runtime/contraction/product_plan.h"
#include "runtime/cuda/cuda.h"

namespace fusewright {

// FUSEWRIGHT_FLOAT32_MATMUL: who computes products of f32, `library` or `own`; empty: whatever is faster.
std::string wanted_matrix_product();

class ProductKernels {
 public:
  static ProductKernels& instance();

  // The text has kernels for this device, and they are loaded there. Otherwise compiling them is begun, or goes on, in
  // the background: nobody waits for it.
  bool ready(int device);

  bool settled(int device) const;  // nothing is on its way in the background

  // Puts the launches of a plan on the stream.
  void run(const ProductPlan& plan, char* workspace, float* result, int device, void* stream) const;
  uint64_t products() const { return products_; }  // that were computed here

  static const std::string& source();
  static bool serves(cuda::Architecture architecture) { return architecture.major == 9; }

 private:
  enum Entry { pack, check, multiply, finish, entries };
  struct Loaded {
    bool begun = false, done = false;
    std::shared_ptr<cuda::Module> module;
    std::array<void*, entries> kernels{};
  };
  static const char* name_of(Entry entry);

  mutable std::atomic<uint64_t> products_ = 0;
  mutable std::mutex mutex_;
  std::map<int, Loaded> devices_;
};

}  // namespace fusewright
