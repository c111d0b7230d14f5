#include "emulator/harness.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <stdexcept>

#include "embedded_kernels.h"

namespace fwemu::testing {

const Libraries& Libraries::get() {
  static const Libraries libraries = [] {
    Libraries found{};
    const auto open = [](const char* path) {
      void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
      if (library == nullptr) throw std::runtime_error(dlerror());
      return library;
    };
    const auto fill = [](void* library, const char* name, auto& function) {
      function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, name));
      if (function == nullptr) throw std::runtime_error(std::string("no function ") + name);
    };
    void* cuda = open(FUSEWRIGHT_CUDA_EMULATOR);
    void* nvrtc = open(FUSEWRIGHT_NVRTC_EMULATOR);
#define FWEMU_FILL(name, parameters) fill(cuda, #name, found.name);
    FUSEWRIGHT_CUDA_FUNCTIONS(FWEMU_FILL)
#undef FWEMU_FILL
#define FWEMU_FILL(result, name, parameters) fill(nvrtc, #name, found.name);
    FUSEWRIGHT_NVRTC_FUNCTIONS(FWEMU_FILL)
#undef FWEMU_FILL
    fill(cuda, "emulator_allocate", found.emulator_allocate);
    fill(cuda, "emulator_allocate_aligned", found.emulator_allocate_aligned);
    fill(cuda, "emulator_free", found.emulator_free);
    return found;
  }();
  return libraries;
}

std::string with_headers(const std::string& text) {
  using namespace fusewright;
  return std::string(embedded_prelude) + "\n" + embedded_math + "\n" + embedded_cuda_device + "\n" + text;
}

Program::Program(const std::string& text, const std::string& architecture)
    : Program(WholeText{with_headers(text)}, architecture) {}

Program::Program(const WholeText& source, const std::string& architecture) {
  const Libraries& call = Libraries::get();
  const std::string option = "--gpu-architecture=" + architecture;
  const char* options[] = {option.c_str(), "--std=c++17"};
  fusewright::cuda::nvrtcProgram program = nullptr;
  call.nvrtcCreateProgram(&program, source.text.c_str(), "kernel.cu", 0, nullptr, nullptr);
  const int result = call.nvrtcCompileProgram(program, 2, options);
  size_t size = 0;
  call.nvrtcGetProgramLogSize(program, &size);
  log_.resize(size);
  call.nvrtcGetProgramLog(program, log_.data());
  log_.resize(size - 1);
  if (result == 0) {
    call.nvrtcGetCUBINSize(program, &size);
    std::vector<char> image(size);
    call.nvrtcGetCUBIN(program, image.data());
    EXPECT_EQ(call.cuModuleLoadData(&module_, image.data()), 0);
  }
  call.nvrtcDestroyProgram(&program);
}

Program::~Program() {
  if (module_ != nullptr) Libraries::get().cuModuleUnload(module_);
}

std::string Program::launch_bytes(const std::string& kernel, unsigned blocks, unsigned threads, unsigned shared_bytes,
                                  const void* arguments, unsigned cluster) const {
  const Libraries& call = Libraries::get();
  if (module_ == nullptr) return "it did not compile: " + log_;
  const auto text_of = [&](int error) {
    const char* text = "";
    if (error != 0) call.cuGetErrorString(error, &text);
    return std::string(text);
  };
  CUfunction function = nullptr;
  if (const int error = call.cuModuleGetFunction(&function, module_, kernel.c_str())) return text_of(error);
  if (const int error = call.cuFuncSetAttribute(
          function, fusewright::cuda::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 227 << 10)) {
    return text_of(error);
  }
  void* parameters[] = {const_cast<void*>(arguments)};
  if (cluster == 1) {
    return text_of(
        call.cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, shared_bytes, nullptr, parameters, nullptr));
  }
  using namespace fusewright::cuda;
  CUlaunchAttribute dimensions{CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, 0, {.dimensions = {cluster, 1, 1}}};
  const CUlaunchConfig config{blocks, 1, 1, threads, 1, 1, shared_bytes, nullptr, &dimensions, 1};
  return text_of(call.cuLaunchKernelEx(&config, function, parameters, nullptr));
}

Seed::Seed(unsigned seed) { setenv("FUSEWRIGHT_EMULATOR_SEED", std::to_string(seed).c_str(), 1); }
Seed::~Seed() { unsetenv("FUSEWRIGHT_EMULATOR_SEED"); }

int line_with(const std::string& text, const std::string& code) {
  const std::string all = with_headers(text);
  const size_t at = all.find(code, all.size() - text.size());
  EXPECT_NE(at, std::string::npos) << code;
  return static_cast<int>(std::count(all.begin(), all.begin() + static_cast<ptrdiff_t>(at), '\n')) + 1;
}

}  // namespace fwemu::testing
