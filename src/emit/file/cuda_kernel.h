// A kernel of an emitted file on a GPU: its variants, launched by rule with the CUDA runtime.
#pragma once
#include <cuda_runtime.h>

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "launch/cuda_arguments.h"
#include "launch/cuda_shape.h"
#include "launch/recent.h"

namespace fusewright {

inline void check_cuda(cudaError_t error, const std::string& what) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // it is reported here, and not by the next call
  throw std::runtime_error(what + ": " + cudaGetErrorString(error));
}

inline int device_attribute(cudaDeviceAttr attribute, int device) {
  int value = 0;
  check_cuda(cudaDeviceGetAttribute(&value, attribute, device), "cudaDeviceGetAttribute");
  return value;
}

#if CUDART_VERSION >= 11080
// PyTorch may bring a runtime that is older than the compiler (2.0 brings that of CUDA 11.7). There this call is null;
// without the pragma the extension could not be loaded.
#pragma weak cudaLaunchKernelExC

inline int driver_version() {
  static const int version = [] {
    int found = 0;
    check_cuda(cudaDriverGetVersion(&found), "cudaDriverGetVersion");
    return found;
  }();
  return version;
}
#endif

// The variants for offsets of one width.
class CudaVariants : CudaRules {
 public:
  struct Text {
    Variant variant;
    std::vector<std::pair<std::string, const void*>> entries;
  };

  // `wide`: for tensors with offsets of more than 31 bits.
  CudaVariants(const KernelLoops& code, const std::vector<Text>& texts, bool wide) : CudaRules(code), wide_(wide) {
    for (const Text& text : texts) {
      if (text.variant.wide != wide) continue;
      for (const auto& entry : text.entries) functions_[{text.variant, entry.first}] = entry.second;
      variants_.push_back(text.variant);
      variants_.back().wide = false;  // the rules ask for the narrow ones
    }
  }

  // False: the other one is for these tensors.
  bool run(const KernelCall& call) const {
    const std::shared_ptr<const Prepared> prepared = find(call);
    if (!prepared->fits) return false;
    const Launches& made = prepared->launches;
    std::vector<void*> memory;
    for (const Launches::Buffer& buffer : made.buffers)
      memory.push_back(call.allocate(std::max<int64_t>(buffer.bytes, 1)));
    for (const Launches::Launch& l : made.launches)
      launch(l, filled(l.arguments, call.operands, call.numbers, made.buffers, memory), call);
    return true;
  }

 private:
  // What follows from the sizes and strides of a call, for the next one like it.
  struct Prepared {
    std::vector<int64_t> key;
    bool fits;
    Launches launches;
  };

  std::shared_ptr<const Prepared> find(const KernelCall& call) const {
    std::vector<int64_t> key = {call.device};
    key.insert(key.end(), call.sizes.begin(), call.sizes.end());
    add_places(key, call.operands);
    if (auto known = recent_.find(key)) return known;
    auto prepared = std::make_shared<Prepared>(prepare(call));
    prepared->key = std::move(key);
    recent_.add(prepared);
    return prepared;
  }

  Prepared prepare(const KernelCall& call) const {
    Call c;
    c.device = call.device;
    c.stream = call.stream;
    c.processors = device_attribute(cudaDevAttrMultiProcessorCount, call.device);
    c.shared_limit = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, call.device);
    c.l2_bytes = device_attribute(cudaDevAttrL2CacheSize, call.device);
    bind(c, loops_.bind(call.operands, call.sizes), call.operands);
    if (c.wide != wide_) return {{}, false, {}};
    if (wide_) c.widest = 1;
#ifndef FW_WITHOUT_TILES
    if (plan_tiled(c, call.operands)) return {{}, true, launches(c, call.operands)};
#endif
    if (!plan(c, rule(c, c.widest)))
      throw std::runtime_error(code_.name + ": tensors of these sizes are more than a launch can have");
    return {{}, true, launches(c, call.operands)};
  }

  const void* function(const Variant& variant, const std::string& entry) const {
    return functions_.at({variant, entry});
  }

  int resident_blocks(const Call& c, const char* entry) const override {
    const void* kernel = function(c.variant, code_.name + entry);
    const uint32_t shared = shared_bytes(c);
    const std::lock_guard<std::mutex> lock(mutex_);
    allow_shared(kernel, shared, c.device);
    const auto key = std::make_tuple(kernel, c.device, c.threads, shared);
    const auto known = resident_.find(key);
    if (known != resident_.end()) return known->second;
    int blocks = 0;
    check_cuda(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, static_cast<int>(c.threads), shared),
               code_.name + entry);
    return resident_[key] = blocks;
  }

  bool tiles_are_ready(const Call&, const Variant& variant) const override { return has(variant); }

  // More shared memory than every device has must be asked for, once for a kernel on a device.
  void allow_shared(const void* kernel, uint32_t bytes, int device) const {
    if (bytes <= 48 << 10 || !allowed_.insert({kernel, device}).second) return;
    const int most = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most), code_.name);
  }

#if CUDART_VERSION >= 11080
  // Text for an architecture before sm_90, which a newer device can run too, has no instruction to wait with.
  bool waits(const void* kernel) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto known = waits_.find(kernel);
    if (known != waits_.end()) return known->second;
    cudaFuncAttributes attributes = {};
    check_cuda(cudaFuncGetAttributes(&attributes, kernel), code_.name);
    return waits_[kernel] = attributes.ptxVersion >= 90;
  }
#endif

  void launch(const Launches::Launch& l, std::vector<char> bytes, const KernelCall& call) const {
    if (l.blocks >= int64_t{1} << 31)
      throw std::runtime_error(l.entry + ": tensors of these sizes are more than a launch can have");
    const void* kernel = function(l.variant, l.entry);
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      allow_shared(kernel, l.shared_bytes, call.device);
    }
    const auto stream = static_cast<cudaStream_t>(call.stream);
    const dim3 grid(static_cast<unsigned>(l.blocks)), block(l.threads);
    void* arguments[] = {bytes.data()};
#if CUDART_VERSION >= 11080
    // From sm_90 on a kernel may begin while the one before it ends; its text waits for what it needs of that one.
    if (l.overlap && cudaLaunchKernelExC != nullptr &&
        launches_overlap(device_attribute(cudaDevAttrComputeCapabilityMajor, call.device), driver_version()) &&
        waits(kernel)) {
      cudaLaunchAttribute attribute;
      attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
      attribute.val.programmaticStreamSerializationAllowed = 1;
      cudaLaunchConfig_t config = {};
      config.gridDim = grid;
      config.blockDim = block;
      config.dynamicSmemBytes = l.shared_bytes;
      config.stream = stream;
      config.attrs = &attribute;
      config.numAttrs = 1;
      return check_cuda(cudaLaunchKernelExC(&config, kernel, arguments), "launch of " + l.entry);
    }
#endif
    check_cuda(cudaLaunchKernel(kernel, grid, block, arguments, l.shared_bytes, stream), "launch of " + l.entry);
  }

  bool wide_;
  std::map<std::pair<Variant, std::string>, const void*> functions_;
  mutable std::mutex mutex_;
  Recent<Prepared> recent_;
  mutable std::map<std::tuple<const void*, int, int64_t, uint32_t>, int> resident_;
  mutable std::set<std::pair<const void*, int>> allowed_;
  mutable std::map<const void*, bool> waits_;
};

class CudaKernel {
 public:
  using Text = CudaVariants::Text;
  CudaKernel(const KernelLoops& code, const std::vector<Text>& texts)
      : narrow_(code, texts, false), wide_(code, texts, true) {}

  void run(const KernelCall& call) const {
    if (!narrow_.run(call)) wide_.run(call);
  }

 private:
  CudaVariants narrow_, wide_;
};

}  // namespace fusewright
