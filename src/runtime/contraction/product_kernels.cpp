#include "runtime/contraction/product_kernels.h"

#include <iterator>

#include "embedded_kernels.h"
#include "runtime/posix.h"

namespace fusewright {

namespace {
constexpr const char* names[] = {"fw_matmul_pack", "fw_matmul_check", "fw_matmul", "fw_matmul_finish"};
}  // namespace

ProductKernels::ProductKernels()
    : module_(&ProductKernels::source, {std::begin(names), std::end(names)},
              "float32 matrix products stay the library's on this device") {}

ProductKernels& ProductKernels::instance() {
  return ProcessSingleton<ProductKernels>::get([] { return new ProductKernels; });
}

const std::string& ProductKernels::source() {
  static const std::string text = [] {
    std::string all = std::string(embedded_prelude) + embedded_cuda_device + embedded_hopper + embedded_product;
    all += "#if defined(FW_EMULATOR) || __CUDA_ARCH__ == 900\n";  // later architectures have no wgmma
    const auto add = [&](Entry entry, const char* bounds, const char* args, const char* function) {
      all += std::string("extern \"C\" __global__ void __launch_bounds__(") + bounds + ") " + names[entry] +
             "(const __grid_constant__ fw::" + args + " args) { fw::" + function + "(args); }\n";
    };
    add(pack, "fw::pack_threads", "PackArgs", "pack");
    add(check, "fw::product_threads, 1", "ProductArgs", "check");
    add(multiply, "fw::product_threads, 1", "ProductArgs", "multiply");
    add(finish, "fw::finish_threads", "ProductArgs", "finish");
    return all + "#endif\n";
  }();
  return text;
}

bool ProductKernels::ready(int device) { return serves(cuda::device(device).architecture) && module_.ready(device); }

void ProductKernels::run(const ProductPlan& plan, char* workspace, float* result, int device, void* stream) const {
  ++products_;
  for (size_t number = 0; number < plan.strips(); ++number) {
    const ProductPlan::Strip s = plan.strip(number, workspace, result);
    const auto launch = [&](Entry entry, uint32_t blocks, uint32_t threads, uint32_t shared, const void* arguments) {
      cuda::LaunchShape shape;
      shape.blocks = blocks;
      shape.threads = threads;
      shape.shared_bytes = shared;
      shape.overlaps = entry != pack;
      module_.launch(entry, device, shape, arguments, stream);
    };
    launch(pack, s.pack_blocks, fw::pack_threads, fw::pack_shared_bytes, &s.pack);
    launch(check, s.check_blocks, fw::product_threads, fw::product_shared_bytes, &s.product);
    launch(multiply, s.multiply_blocks, fw::product_threads, fw::product_shared_bytes, &s.product);
    launch(finish, s.finish_blocks, fw::finish_threads, fw::finish_shared_bytes, &s.product);
  }
}

}  // namespace fusewright
