#include "runtime/cuda/cuda_module.h"

#include "ir/error.h"
#include "runtime/compiler/compile_error.h"

namespace fusewright::cuda {
namespace {

std::string text_of(Architecture architecture) {
  return std::to_string(architecture.major) + "." + std::to_string(architecture.minor);
}

}  // namespace

LoadedModule::LoadedModule(std::shared_ptr<Driver> driver, Architecture architecture, std::vector<std::byte> image)
    : driver_(std::move(driver)), architecture_(architecture), image_(std::move(image)) {}

LoadedModule::~LoadedModule() {
  if (!driver_->usable_here()) return;
  for (const auto& [device, loaded] : devices_) {
    try {
      const ContextScope scope(*driver_, device);
      driver_->call().cuModuleUnload(loaded.module);
    } catch (const Error&) {
      // The process ends and the driver has gone first: so has the module.
    }
  }
}

void* LoadedModule::kernel(const std::string& name, int device) {
  const Device& properties = driver_->device(device);
  if (properties.architecture != architecture_) {
    fail("kernel '", name, "' was compiled for compute capability ", text_of(architecture_), ", GPU ", device, " (",
         properties.name, ") has ", text_of(properties.architecture));
  }
  const std::lock_guard lock(mutex_);
  auto loaded = devices_.find(device);
  if (loaded != devices_.end()) {
    if (const auto known = loaded->second.kernels.find(name); known != loaded->second.kernels.end()) {
      return known->second;
    }
  }
  const ContextScope scope(*driver_, device);
  const BesideCaptures beside(*driver_);
  if (loaded == devices_.end()) {
    const CUmodule module = load(device);
    loaded = devices_.emplace(device, OnDevice{module, {}}).first;
  }
  return loaded->second.kernels[name] = find(loaded->second.module, name, device);
}

CUmodule LoadedModule::load(int device) const {
  CUmodule module = nullptr;
  const CUresult result = driver_->call().cuModuleLoadData(&module, image_.data());
  if (result == CUDA_SUCCESS) return module;
  throw CompileError("a compiled kernel cannot be loaded on GPU " + std::to_string(device) + " (" +
                     driver_->device(device).name + "): " + driver_->describe("cuModuleLoadData", result));
}

CUfunction LoadedModule::find(CUmodule module, const std::string& name, int device) const {
  const Driver::Functions& call = driver_->call();
  CUfunction function = nullptr;
  const CUresult result = call.cuModuleGetFunction(&function, module, name.c_str());
  require(result != CUDA_ERROR_NOT_FOUND, "the module has no kernel '", name, "'");
  driver_->check(result, "cuModuleGetFunction");
  // A launch may ask for all the shared memory that the device has, less the kernel's own arrays.
  int own = 0;
  driver_->check(call.cuFuncGetAttribute(&own, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, function), "cuFuncGetAttribute");
  const int64_t rest = driver_->device(device).shared_bytes - own;
  driver_->check(
      call.cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, static_cast<int>(rest)),
      "cuFuncSetAttribute");
  return function;
}

}  // namespace fusewright::cuda
