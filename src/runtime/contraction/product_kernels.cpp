#include "runtime/contraction/product_kernels.h"

#include <cstdlib>

#include "base/log.h"
#include "embedded_kernels.h"
#include "runtime/compiler/background.h"
#include "runtime/posix.h"

namespace fusewright {

std::string wanted_matrix_product() {
  const char* text = std::getenv("FUSEWRIGHT_FLOAT32_MATMUL");
  return text != nullptr ? text : "";
}

ProductKernels& ProductKernels::instance() {
  return ProcessSingleton<ProductKernels>::get([] { return new ProductKernels; });
}

const char* ProductKernels::name_of(Entry entry) {
  constexpr const char* names[] = {"fw_matmul_pack", "fw_matmul_check", "fw_matmul", "fw_matmul_finish"};
  return names[entry];
}

const std::string& ProductKernels::source() {
  static const std::string text = [] {
    std::string all = std::string(embedded_prelude) + embedded_cuda_device + embedded_hopper + embedded_product;
    all += "#if defined(FW_EMULATOR) || __CUDA_ARCH__ == 900\n";  // later architectures have no wgmma
    const auto add = [&](Entry entry, const char* bounds, const char* args, const char* function) {
      all += std::string("extern \"C\" __global__ void __launch_bounds__(") + bounds + ") " + name_of(entry) +
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

bool ProductKernels::ready(int device) {
  const cuda::Architecture architecture = cuda::device(device).architecture;
  if (!serves(architecture)) return false;
  {
    const std::lock_guard lock(mutex_);
    Loaded& loaded = devices_[device];
    if (loaded.module != nullptr) return true;
    if (loaded.begun) return false;
    loaded.begun = true;
  }
  Background::instance().add([this, device, architecture] {
    Loaded done;
    done.begun = done.done = true;
    try {
      done.module = cuda::compile({source()}, architecture)[0];
      for (int entry = 0; entry < entries; ++entry)
        done.kernels[static_cast<size_t>(entry)] = done.module->kernel(name_of(static_cast<Entry>(entry)), device);
    } catch (const std::exception& error) {
      done.module = nullptr;
      log(LogLevel::warning, std::string("float32 matrix products stay the library's on this device: ") + error.what());
    }
    const std::lock_guard lock(mutex_);
    devices_[device] = done;
  });
  return false;
}

bool ProductKernels::settled(int device) const {
  const std::lock_guard lock(mutex_);
  const auto found = devices_.find(device);
  return found == devices_.end() || found->second.done || !found->second.begun;
}

void ProductKernels::run(const ProductPlan& plan, char* workspace, float* result, int device, void* stream) const {
  std::array<void*, entries> kernels;
  {
    const std::lock_guard lock(mutex_);
    kernels = devices_.at(device).kernels;
  }
  ++products_;
  for (size_t number = 0; number < plan.strips(); ++number) {
    const ProductPlan::Strip s = plan.strip(number, workspace, result);
    const auto launch = [&](Entry entry, uint32_t blocks, uint32_t threads, uint32_t shared, const void* arguments) {
      cuda::LaunchShape shape;
      shape.blocks = blocks;
      shape.threads = threads;
      shape.shared_bytes = shared;
      shape.overlaps = entry != pack;
      cuda::launch(kernels[entry], name_of(entry), device, shape, arguments, stream);
    };
    launch(pack, s.pack_blocks, fw::pack_threads, fw::pack_shared_bytes, &s.pack);
    launch(check, s.check_blocks, fw::product_threads, fw::product_shared_bytes, &s.product);
    launch(multiply, s.multiply_blocks, fw::product_threads, fw::product_shared_bytes, &s.product);
    launch(finish, s.finish_blocks, fw::finish_threads, fw::finish_shared_bytes, &s.product);
  }
}

}  // namespace fusewright
