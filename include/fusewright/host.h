#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "fusewright/tensor.h"

namespace fusewright {

// A contraction as the host's library is asked for it.
struct LibraryCall {
  enum class Kind { matmul, conv, conv_input_grad, conv_weight_grad };
  Kind kind;
  bool transposed = false;
  int64_t groups = 1;
  std::vector<int64_t> stride, padding, dilation, output_padding;
  // Sizes of the result, evaluated for this call.
  int rank = 0;
  std::array<int64_t, max_rank> sizes{};
};

// What the core asks of the program around it: threads, memory, contractions. PyTorch fills it in with its thread pool,
// its allocator and ATen; plain_host() has a pool and correct loops of its own.
class Host {
 public:
  virtual ~Host() = default;
  // body(begin, end) over [0, n), in pieces of at least `grain`.
  virtual void parallel_for(int64_t n, int64_t grain, const std::function<void(int64_t, int64_t)>& body) = 0;
  // Fresh memory for a tensor whose sizes and strides are set.
  virtual void allocate(Tensor& tensor) = 0;
  // Runs a kernel's work under its name: a host with a profiler shows it there.
  virtual void named(const std::string&, const std::function<void()>& work) { work(); }
  // The result of a contraction of two operands, with a bias where a third follows; its strides are the library's
  // choice.
  virtual Tensor call(const LibraryCall& call, const std::vector<Tensor>& operands) = 0;
  // The same in float32's full accuracy, whatever the user allows.
  virtual Tensor call_exactly(const LibraryCall& what, const std::vector<Tensor>& operands) {
    return call(what, operands);
  }
  // The norm of a - b, relative to that of b. Waits for the device.
  virtual double distance(const Tensor&, const Tensor&) { return 0; }
  // Where tensors live and kernels run. -1: the CPU, else the index of a GPU, with the stream that kernels are put on.
  virtual int device() const { return -1; }
  virtual void* stream() { return nullptr; }
  // Matrix products of float32 must have float32's accuracy: the user did not allow less.
  virtual bool exact_matrix_products() const { return true; }
  // Convolutions of float32 may have TF32's accuracy.
  virtual bool allows_tf32_convolutions() const { return false; }
  // Asks for results that do not depend on timing: the same on every run, whatever was measured.
  virtual bool deterministic() const { return false; }
  // `to` has memory and the sizes of `from`; both may have any strides.
  virtual void copy(const Tensor& from, Tensor& to);
  virtual void clear(Tensor& tensor);  // all elements are 0
};

Host& plain_host();

}  // namespace fusewright
