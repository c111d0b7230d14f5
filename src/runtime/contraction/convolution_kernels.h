#pragma once
// The kernels of kernels/convolve, one text for each type and shape of blocks, compiled once for a process and device.
#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "fusewright/dtype.h"
#include "runtime/contraction/background_module.h"
#include "runtime/contraction/convolution_plan.h"

namespace fusewright {

// Names the environment variable that says who computes convolutions, `library` or `own`; empty: whatever is faster.
constexpr const char* convolution_variable = "FUSEWRIGHT_CONVOLUTION";

class ConvolutionKernels {
 public:
  static ConvolutionKernels& instance();
  static bool serves(cuda::Architecture architecture) { return architecture.major >= 8; }

  enum Kind { result, hopper_result, weight, kinds };
  static Kind kind_of(const ConvolutionPlan& plan) { return plan.on_hopper() ? hopper_result : result; }
  static Kind kind_of(const WeightGradientPlan&) { return weight; }
  bool ready(DType type, Kind kind, size_t shape, int device);
  bool settled(DType type, Kind kind, size_t shape, int device) const;

  void run(const ConvolutionPlan& plan, DType type, char* workspace, void* result, int device, void* stream) const;
  void run(const WeightGradientPlan& plan, DType type, char* workspace, void* result, int device, void* stream) const;
  uint64_t convolutions() const { return convolutions_; }  // that were computed here

  static std::string source(DType type, Kind kind, size_t shape);
  static constexpr const char* entries_of[kinds][3] = {{"fw_conv_scales", "fw_conv_pack", "fw_conv"},
                                                       {"fw_conv_scales", "fw_conv_pack", "fw_conv"},
                                                       {"fw_conv_weight", "fw_conv_weight_sum", nullptr}};

 private:
  ConvolutionKernels();
  static size_t place(DType type, Kind kind, size_t shape);

  std::vector<std::unique_ptr<BackgroundModule>> modules_;
  mutable std::atomic<uint64_t> convolutions_ = 0;
};

}  // namespace fusewright
