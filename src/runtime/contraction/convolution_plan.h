#pragma once
// How a convolution is computed by the kernels of kernels/convolve: what follows from its sizes and strides.
#include <cstdint>
#include <optional>
#include <vector>

#include "fusewright/host.h"
#include "fusewright/tensor.h"
#include "kernels/prelude.h"

#include "kernels/convolve/arguments.h"

namespace fusewright {

// A GPU as far as plans depend on it.
struct ConvolutionDevice {
  int processors = 0;
  int64_t shared_bytes = 0;  // of a block
  bool hopper = false;       // has the instructions of sm_90a
  int shape = -1;            // tests: only this shape of blocks
};

// A result, or the gradient of an input. `operands`: the tensor that is read, the weight and perhaps a bias; `result`
// has its sizes and strides, and no memory yet.
class ConvolutionPlan {
 public:
  // Nothing: what only the library takes.
  static std::optional<ConvolutionPlan> of(const LibraryCall& call, const std::vector<const Tensor*>& operands,
                                           const Tensor& result, ConvolutionDevice device);

  // The arguments of all launches. `workspace` is aligned to 16 bytes.
  fw::ConvArgs arguments(char* workspace, void* result) const;

  int64_t workspace_bytes() const { return workspace_; }
  bool on_hopper() const { return on_hopper_; }
  size_t shape() const { return shape_; }  // among fw::conv_shapes, or fw::conv_hopper_shapes
  uint32_t blocks() const { return blocks_; }
  uint32_t threads() const;
  uint32_t shared_bytes() const { return shared_bytes_; }
  uint32_t scale_blocks() const { return args_.groups * args_.rows; }
  uint32_t pack_blocks() const { return pack_blocks_; }
  double microseconds() const { return microseconds_; }  // what it should take, by a model of an H200

 private:
  bool choose(ConvolutionDevice device, int64_t element_bytes);
  double taps_of_a_phase() const;
  void choose_portable(const ConvolutionDevice& device, double& least);
  void choose_on_hopper(const ConvolutionDevice& device, int64_t element_bytes, double& least);

  fw::ConvArgs args_{};
  bool on_hopper_ = false;
  size_t shape_ = 0;
  uint32_t blocks_ = 0, shared_bytes_ = 0, pack_blocks_ = 0;
  int64_t packed_bytes_ = 0, workspace_ = 0;
  double microseconds_ = 0;
};

// The gradient of a weight. `operands`: that of the result, and the tensor that the convolution read.
class WeightGradientPlan {
 public:
  static std::optional<WeightGradientPlan> of(const LibraryCall& call, const std::vector<const Tensor*>& operands,
                                              const Tensor& result, ConvolutionDevice device);

  fw::ConvWeightArgs arguments(char* workspace, void* result) const;

  int64_t workspace_bytes() const { return workspace_; }
  size_t shape() const { return shape_; }  // among fw::conv_weight_shapes
  uint32_t blocks() const { return blocks_; }
  uint32_t shared_bytes() const { return shared_bytes_; }
  uint32_t sum_blocks() const { return sum_blocks_; }
  double microseconds() const { return microseconds_; }

 private:
  bool choose(ConvolutionDevice device, int64_t element_bytes);

  fw::ConvWeightArgs args_{};
  size_t shape_ = 0;
  uint32_t blocks_ = 0, shared_bytes_ = 0, sum_blocks_ = 0;
  int64_t workspace_ = 0;
  double microseconds_ = 0;
};

}  // namespace fusewright
