#pragma once
// Memory that both the processor and a GPU reach, so that graphs run on a GPU without PyTorch. In the emulator all
// memory is.
#include <dlfcn.h>

#include <cstdlib>

#include "support/execution.h"

namespace fusewright::testing {

class GpuHost : public ForwardingHost, private Memory {
 public:
  GpuHost() {
    const char* chosen = std::getenv("FUSEWRIGHT_CUDA_LIBRARY");
    library_ = dlopen(chosen && *chosen ? chosen : "libcuda.so.1", RTLD_NOW);
    require(library_, "no CUDA driver: ", dlerror());
    find(allocate_managed_, "cuMemAllocManaged");
    if (allocate_managed_) {
      int (*retain)(void**, int) = nullptr;
      int (*set_current)(void*) = nullptr;
      find(retain, "cuDevicePrimaryCtxRetain");
      find(set_current, "cuCtxSetCurrent");
      find(free_, "cuMemFree_v2");
      find(wait_, "cuCtxSynchronize");
      require(retain && set_current && free_ && wait_, "the CUDA driver lacks a function");
      void* context = nullptr;
      check(retain(&context, 0), "cuDevicePrimaryCtxRetain");
      check(set_current(context), "cuCtxSetCurrent");
    }
    Memory::of_tests() = this;
  }
  ~GpuHost() override { Memory::of_tests() = nullptr; }

  int device() const override { return 0; }
  void allocate(Tensor& tensor) override {
    int64_t last = 0;
    for (size_t d = 0; d < static_cast<size_t>(tensor.rank); ++d)
      last += std::max<int64_t>(tensor.sizes[d] - 1, 0) * tensor.strides[d];
    tensor.owner = bytes(static_cast<size_t>((last + 1) * size_of(tensor.dtype)));
    tensor.data = tensor.owner.get();
  }
  Tensor call(const LibraryCall& call, const std::vector<Tensor>& operands) override {
    wait();
    Tensor result = ForwardingHost::call(call, operands);  // in memory of the processor's
    Tensor placed = result;
    allocate(placed);
    plain_host().copy(result, placed);
    return placed;
  }
  void copy(const Tensor& from, Tensor& to) override {
    wait();
    ForwardingHost::copy(from, to);
  }
  void clear(Tensor& tensor) override {
    wait();
    ForwardingHost::clear(tensor);
  }

 private:
  template <class Function>
  void find(Function*& function, const char* name) {
    function = reinterpret_cast<Function*>(dlsym(library_, name));
  }
  static void check(int result, const char* name) { require(result == 0, name, " failed: ", result); }

  std::shared_ptr<void> bytes(size_t count) override {
    if (!allocate_managed_) return Memory::bytes(count);
    unsigned long long address = 0;
    constexpr unsigned attach_global = 1;
    check(allocate_managed_(&address, std::max<size_t>(count, 16), attach_global), "cuMemAllocManaged");
    return {reinterpret_cast<void*>(address), [this](void* p) {
              wait();
              free_(reinterpret_cast<unsigned long long>(p));
            }};
  }
  void wait() override {
    if (wait_) check(wait_(), "cuCtxSynchronize");
  }

  void* library_ = nullptr;
  int (*allocate_managed_)(unsigned long long*, size_t, unsigned) = nullptr;
  int (*free_)(unsigned long long) = nullptr;
  int (*wait_)() = nullptr;
};

}  // namespace fusewright::testing
