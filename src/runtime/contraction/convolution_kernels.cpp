#include "runtime/contraction/convolution_kernels.h"

#include "embedded_kernels.h"
#include "runtime/posix.h"

namespace fusewright {
namespace {

constexpr DType types[] = {DType::f32, DType::f16, DType::bf16};
constexpr size_t type_count = std::size(types);
constexpr size_t most_shapes =
    std::max<size_t>({fw::conv_shape_count, fw::conv_hopper_shape_count, fw::conv_weight_shape_count});

const char* text_of(DType type) {
  return type == DType::f32 ? "float" : type == DType::f16 ? "fw::half" : "fw::bfloat16";
}

size_t shapes_of(ConvolutionKernels::Kind kind) {
  return kind == ConvolutionKernels::result          ? fw::conv_shape_count
         : kind == ConvolutionKernels::hopper_result ? fw::conv_hopper_shape_count
                                                     : fw::conv_weight_shape_count;
}

std::vector<std::string> entries_of_text(ConvolutionKernels::Kind kind) {
  std::vector<std::string> entries;
  for (const char* entry : ConvolutionKernels::entries_of[kind])
    if (entry != nullptr) entries.push_back(entry);
  return entries;
}

}  // namespace

ConvolutionKernels& ConvolutionKernels::instance() {
  return ProcessSingleton<ConvolutionKernels>::get([] { return new ConvolutionKernels; });
}

ConvolutionKernels::ConvolutionKernels() : modules_(type_count * kinds * most_shapes) {
  for (const DType type : types)
    for (const Kind kind : {result, hopper_result, weight})
      for (size_t shape = 0; shape < shapes_of(kind); ++shape)
        modules_[place(type, kind, shape)] =
            std::make_unique<BackgroundModule>([=] { return source(type, kind, shape); }, entries_of_text(kind),
                                               "some convolutions stay the library's on this device");
}

size_t ConvolutionKernels::place(DType type, Kind kind, size_t shape) {
  const size_t at = type == DType::f32 ? 0 : type == DType::f16 ? 1 : 2;
  return (at * kinds + static_cast<size_t>(kind)) * most_shapes + shape;
}

std::string ConvolutionKernels::source(DType type, Kind kind, size_t shape) {
  std::string all = std::string(embedded_prelude) + embedded_cuda_device + embedded_hopper + embedded_convolution;
  const auto add = [&](const char* name, uint32_t threads, const char* args, const std::string& function) {
    const char* const alone = kind == hopper_result && name == std::string("fw_conv") ? ", 1) " : ") ";
    all += std::string("extern \"C\" __global__ void __launch_bounds__(") + std::to_string(threads) + alone + name +
           "(const __grid_constant__ fw::" + args + " args) { fw::" + function + "(args); }\n";
  };
  const std::string type_name = text_of(type), number = std::to_string(shape);
  if (kind == result) {
    add("fw_conv_scales", fw::conv_pack_threads, "ConvArgs", "conv_scales");
    add("fw_conv_pack", fw::conv_pack_threads, "ConvArgs", "conv_pack<" + type_name + ">");
    add("fw_conv", fw::conv_threads(fw::conv_shapes[shape]), "ConvArgs", "convolve<" + type_name + ", " + number + ">");
  } else if (kind == hopper_result) {
    all += "#if defined(FW_EMULATOR) || __CUDA_ARCH__ == 900\n";  // later architectures have no wgmma
    add("fw_conv_scales", fw::conv_pack_threads, "ConvArgs", "conv_scales");
    add("fw_conv_pack", fw::conv_pack_threads, "ConvArgs", "conv_pack_hopper<" + type_name + ">");
    add("fw_conv", fw::conv_hopper_threads, "ConvArgs", "convolve_hopper<" + type_name + ", " + number + ">");
    all += "#endif\n";
  } else {
    add("fw_conv_weight", fw::conv_threads(fw::conv_weight_shapes[shape]), "ConvWeightArgs",
        "convolve_weight<" + type_name + ", " + number + ">");
    add("fw_conv_weight_sum", fw::conv_sum_threads, "ConvWeightArgs", "conv_weight_sum<" + type_name + ">");
  }
  return all;
}

bool ConvolutionKernels::ready(DType type, Kind kind, size_t shape, int device) {
  return modules_[place(type, kind, shape)]->ready(device);
}

bool ConvolutionKernels::settled(DType type, Kind kind, size_t shape, int device) const {
  return modules_[place(type, kind, shape)]->settled(device);
}

void ConvolutionKernels::run(const ConvolutionPlan& plan, DType type, char* workspace, void* to, int device,
                             void* stream) const {
  ++convolutions_;
  const BackgroundModule& module = *modules_[place(type, kind_of(plan), plan.shape())];
  const fw::ConvArgs args = plan.arguments(workspace, to);
  cuda::LaunchShape shape;
  shape.threads = fw::conv_pack_threads;
  if (type == DType::f32) {
    shape.blocks = plan.scale_blocks();
    shape.shared_bytes = fw::conv_scales_shared_bytes;
    module.launch(0, device, shape, &args, stream);
    shape.overlaps = true;
  }
  shape.blocks = plan.pack_blocks();
  shape.shared_bytes = 0;
  module.launch(1, device, shape, &args, stream);
  shape.blocks = plan.blocks();
  shape.threads = plan.threads();
  shape.shared_bytes = plan.shared_bytes();
  shape.overlaps = true;
  module.launch(2, device, shape, &args, stream);
}

void ConvolutionKernels::run(const WeightGradientPlan& plan, DType type, char* workspace, void* to, int device,
                             void* stream) const {
  ++convolutions_;
  const BackgroundModule& module = *modules_[place(type, weight, plan.shape())];
  const fw::ConvWeightArgs args = plan.arguments(workspace, to);
  cuda::LaunchShape shape;
  shape.blocks = plan.blocks();
  shape.threads = fw::conv_threads(fw::conv_weight_shapes[plan.shape()]);
  shape.shared_bytes = plan.shared_bytes();
  module.launch(0, device, shape, &args, stream);
  shape.blocks = plan.sum_blocks();
  shape.threads = fw::conv_sum_threads;
  shape.shared_bytes = 0;
  shape.overlaps = true;
  module.launch(1, device, shape, &args, stream);
}

}  // namespace fusewright
