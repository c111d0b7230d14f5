// A convolution as a step of a plan, or a gradient of one: kernels of our own, or the host's library.
#include "schedule/convolution.h"

#include <algorithm>

#include "runtime/contraction/contest.h"
#include "runtime/contraction/convolution_kernels.h"
#include "runtime/cuda/tuner.h"

namespace fusewright {
namespace {

// A model of cuDNN on an H200: operations in a microsecond with f32 (TF32) and 16 bits, bytes of memory, and a call. It
// transposes tensors that are row-major.
constexpr double single_operations = 250e6, half_operations = 450e6, bytes_in_a_microsecond = 3.5e6;
constexpr double call_microseconds = 8, transposed = 3, fewest_channels = 32;
// Ours take this many times what their plan says.
constexpr double optimism = 3;

double size_of_all(const std::vector<const Tensor*>& tensors) {
  double bytes = 0;
  for (const Tensor* t : tensors) bytes += static_cast<double>(t->elements() * size_of(t->dtype));
  return bytes;
}

template <class Plan>
class OwnConvolution final : public OwnContraction {
 public:
  OwnConvolution(const LibraryCall& call, Plan plan, const std::vector<const Tensor*>& operands, const Tensor& result,
                 cuda::Device device)
      : plan_(std::move(plan)), type_(result.dtype), device_(std::move(device)) {
    const bool weight = call.kind == LibraryCall::Kind::conv_weight_grad;
    const Tensor& filter = weight ? result : *operands[1];
    what_ = call.kind == LibraryCall::Kind::conv              ? "convolutions"
            : call.kind == LibraryCall::Kind::conv_input_grad ? "gradients of convolutions' inputs"
                                                              : "gradients of convolutions' weights";
    what_ += " of";
    const auto add = [&](const char* name, const Tensor& t) {
      what_ += std::string(" ") + name;
      for (int d = 0; d < t.rank; ++d) what_ += (d > 0 ? "x" : " ") + std::to_string(t.sizes[static_cast<size_t>(d)]);
      if (t.rank > 1) mix(bucket_, t.strides[1] == 1 && t.sizes[1] > 1);
    };
    mix(bucket_, static_cast<uint64_t>(call.kind));
    mix(bucket_, static_cast<uint64_t>(type_));
    mix(bucket_, call.transposed);
    for (const auto* option : {&call.stride, &call.padding, &call.dilation})
      for (int64_t n : *option) mix(bucket_, static_cast<uint64_t>(n));
    mix(bucket_, static_cast<uint64_t>(call.groups));
    add("filters", filter);
    for (int d = 0; d < filter.rank; ++d) mix(bucket_, static_cast<uint64_t>(filter.sizes[static_cast<size_t>(d)]));
    const std::vector<const Tensor*> images =
        weight ? std::vector{operands[0], operands[1]} : std::vector{operands[0], &result};
    for (const Tensor* t : images) {
      add("and images", *t);
      for (int d = 0; d < t->rank; ++d) mix_size(bucket_, t->sizes[static_cast<size_t>(d)]);
    }
    // Multiplications: those of what is not spread over the taps, for all channels of the other; and for the channels
    // that cuDNN adds where there are few.
    const bool spread = call.transposed != (call.kind == LibraryCall::Kind::conv_input_grad);
    const Tensor& dense = weight ? *operands[call.transposed ? 1 : 0] : spread ? *operands[0] : result;
    const int64_t narrowest = std::min(filter.sizes[0] / call.groups, filter.sizes[1]);
    double added = std::max(1.0, fewest_channels / static_cast<double>(narrowest));
    if (filter.rank == 5) added *= added;  // cuDNN's kernels for volumes are slower still
    const double operations = 2.0 * added * static_cast<double>(dense.elements()) *
                              static_cast<double>(filter.elements()) / static_cast<double>(filter.sizes[0]);
    const double rate = type_ == DType::f32 ? single_operations : half_operations;
    const bool row_major =
        std::any_of(images.begin(), images.end(), [](const Tensor* t) { return t->strides[1] != 1; });
    const bool one_tap = filter.elements() == filter.sizes[0] * filter.sizes[1];  // a matrix product reads either order
    const double moved = size_of_all(images) * (row_major && !one_tap ? transposed : 1);
    library_microseconds_ = operations / rate + moved / bytes_in_a_microsecond + call_microseconds;
  }

  std::string what() const override { return what_; }
  std::string kernel() const override { return kind() == ConvolutionKernels::weight ? "fw_conv_weight" : "fw_conv"; }
  std::string version() const override {
    return cuda::key_of(ConvolutionKernels::source(type_, kind(), plan_.shape()), device_.architecture);
  }
  uint64_t bucket() const override { return bucket_; }
  double own_microseconds() const override { return optimism * plan_.microseconds(); }
  double library_microseconds() const override { return library_microseconds_; }
  bool approximates() const override { return type_ == DType::f32; }
  bool ready(int device) const override {
    return ConvolutionKernels::instance().ready(type_, kind(), plan_.shape(), device);
  }
  bool settled(int device) const override {
    return ConvolutionKernels::instance().settled(type_, kind(), plan_.shape(), device);
  }
  int64_t workspace_bytes() const override { return plan_.workspace_bytes(); }
  void launch(Host& host, char* workspace, void* result) const override {
    ConvolutionKernels::instance().run(plan_, type_, workspace, result, host.device(), host.stream());
  }

 private:
  ConvolutionKernels::Kind kind() const { return ConvolutionKernels::kind_of(plan_); }

  const Plan plan_;
  const DType type_;
  const cuda::Device device_;
  std::string what_;
  uint64_t bucket_ = 0;
  double library_microseconds_ = 0;
};

class ConvolutionLauncher final : public ContestLauncher {
 public:
  ConvolutionLauncher(const Graph& graph, const Kernel& kernel, const std::vector<Order>& orders)
      : ContestLauncher(graph, kernel, convolution_schedule()),
        order_(orders[static_cast<size_t>(kernel.contraction())]) {}

 private:
  std::shared_ptr<const OwnContraction> own(Host& host, const std::vector<const Tensor*>& operands,
                                            const Tensor& result) const override {
    const cuda::Device& device = cuda::device(host.device());
    if (!ConvolutionKernels::serves(device.architecture)) return nullptr;
    // Halves with scales have TF32's accuracy.
    if (result.dtype == DType::f32 && !host.allows_tf32_convolutions()) return nullptr;
    const ConvolutionDevice limits{device.multiprocessors, device.shared_bytes, device.architecture.major == 9};
    const std::vector<const Tensor*> read(operands.begin(), operands.end() - 1);
    const auto made = [&](auto plan) -> std::shared_ptr<const OwnContraction> {
      if (!plan) return nullptr;
      using Plan = typename decltype(plan)::value_type;
      return std::make_shared<OwnConvolution<Plan>>(call(), std::move(*plan), read, result, device);
    };
    if (call().kind == LibraryCall::Kind::conv_weight_grad)
      return made(WeightGradientPlan::of(call(), read, result, limits));
    return made(ConvolutionPlan::of(call(), read, result, limits));
  }
  WantedVariant wanted() const override { return wanted_variant(convolution_variable); }
  Order result_order() const override { return order_; }

  const Order order_;
};

}  // namespace

std::unique_ptr<Launcher> Convolution::launcher(const LauncherInputs& inputs) const {
  return std::make_unique<ConvolutionLauncher>(inputs.graph, inputs.kernel, inputs.orders);
}

}  // namespace fusewright
