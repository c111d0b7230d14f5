#pragma once
#include <ATen/core/Tensor.h>

#include <optional>

#include "fusewright/host.h"

namespace fusewright {

// Tests: regions of CPU tensors are compiled for GPU 0 and run by the CUDA path, whose libraries must then be an
// emulator's. Memory and library calls stay the CPU's.
void emulate_cuda(bool enabled);
bool emulates_cuda();

// The user allows TF32 in cuDNN's convolutions (torch.backends.cudnn.allow_tf32, cudnn.conv.fp32_precision).
bool allows_tf32_convolution();
// The same for cuBLAS's matrix products (torch.backends.cuda.matmul.allow_tf32, cuda.matmul.fp32_precision).
bool allows_tf32_products();

// Whether the library may round float32 to TF32 on a GPU: in convolutions, and in matrix products.
struct Tf32 {
  static Tf32 of(at::Device device);  // as it is now; without meaning on a CPU
  bool operator==(const Tf32& other) const { return convolutions == other.convolutions && products == other.products; }
  class Restored;

  std::optional<bool> convolutions, products;
};

// While it lives, the setting is that one again.
class Tf32::Restored {
 public:
  explicit Restored(const Tf32& wanted);
  ~Restored();
  Restored(const Restored&) = delete;

 private:
  Tf32 before_;
  bool changed_ = false;
};

// Index of the GPU whose kernels serve tensors of this device; -1: kernels for the CPU.
int gpu_of(at::Device device);

// PyTorch's threads, allocator and contractions for tensors of one device, and its stream at the time of making: a host
// lives for one call.
class TorchHost : public Host {
 public:
  explicit TorchHost(at::Device device);

  void parallel_for(int64_t n, int64_t grain, const std::function<void(int64_t, int64_t)>& body) override;
  void allocate(Tensor& t) override;
  void named(const std::string& name, const std::function<void()>& work) override;
  Tensor call(const LibraryCall& call, const std::vector<Tensor>& operands) override;
  Tensor call_exactly(const LibraryCall& what, const std::vector<Tensor>& operands) override;
  double distance(const Tensor& a, const Tensor& b) override;
  int device() const override { return gpu_; }
  void* stream() override { return stream_; }
  bool deterministic() const override;  // torch.use_deterministic_algorithms
  bool exact_matrix_products() const override;
  bool allows_tf32_convolutions() const override;
  void copy(const Tensor& from, Tensor& to) override;
  void clear(Tensor& t) override;

  // An undefined gradient is zero: one element, repeated by strides of 0.
  Tensor zeros(const std::vector<int64_t>& sizes, DType dtype);

 private:
  at::Tensor view(const Tensor& t) const;
  at::Tensor shape_only(const LibraryCall& call, const at::Tensor& like) const;

  at::Device device_;
  int gpu_;
  void* stream_;
};

}  // namespace fusewright
