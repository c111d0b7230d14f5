// The CUDA runtime, as far as an emitted file asks for it, over the libraries of tests/emulator: a kernel's address is
// looked up in `emulated_kernels`, its text is compiled when it is first launched.
#pragma once
#include <dlfcn.h>

#include <cstdlib>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#define CUDART_VERSION 11000

using cudaError_t = int;
using cudaStream_t = void*;
constexpr cudaError_t cudaSuccess = 0;
enum cudaDeviceAttr {
  cudaDevAttrMultiProcessorCount = 16,
  cudaDevAttrL2CacheSize = 38,
  cudaDevAttrComputeCapabilityMajor = 75,
  cudaDevAttrMaxSharedMemoryPerBlockOptin = 97,
};
enum { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
struct dim3 {
  unsigned x, y = 1, z = 1;
  explicit dim3(unsigned n) : x(n) {}
};

struct EmulatedKernel {
  std::string entry;
  const std::string* source;
};
inline std::map<const void*, EmulatedKernel>& emulated_kernels() {
  static std::map<const void*, EmulatedKernel> all;
  return all;
}
inline int& emulated_launches() {
  static int count = 0;
  return count;
}

template <class Function>
Function emulator_function(const char* variable, const char* name) {
  void* library = dlopen(std::getenv(variable), RTLD_NOW | RTLD_LOCAL);
  void* found = library == nullptr ? nullptr : dlsym(library, name);
  if (found == nullptr) throw std::runtime_error(std::string("the emulator has no ") + name);
  return reinterpret_cast<Function>(found);
}
#define FW_DRIVER(name, ...) emulator_function<int (*)(__VA_ARGS__)>("FUSEWRIGHT_CUDA_LIBRARY", #name)
#define FW_NVRTC(name, ...) emulator_function<int (*)(__VA_ARGS__)>("FUSEWRIGHT_NVRTC_LIBRARY", #name)

inline void* emulated_module(const std::string& source) {
  static std::map<std::string, void*> loaded;
  void*& module = loaded[source];
  if (module != nullptr) return module;
  void* program = nullptr;
  FW_NVRTC(nvrtcCreateProgram, void**, const char*, const char*, int, void*, void*)
  (&program, source.c_str(), "emitted", 0, nullptr, nullptr);
  const char* options[] = {"--gpu-architecture=sm_90a"};
  if (FW_NVRTC(nvrtcCompileProgram, void*, int, const char* const*)(program, 1, options) != 0) {
    std::string log(1 << 20, 0);
    FW_NVRTC(nvrtcGetProgramLog, void*, char*)(program, log.data());
    throw std::runtime_error(log.c_str());
  }
  size_t size = 0;
  FW_NVRTC(nvrtcGetCUBINSize, void*, size_t*)(program, &size);
  std::vector<char> image(size);
  FW_NVRTC(nvrtcGetCUBIN, void*, char*)(program, image.data());
  if (FW_DRIVER(cuModuleLoadData, void**, const void*)(&module, image.data()) != 0)
    throw std::runtime_error("the emulator loads no such module");
  return module;
}

inline void* emulated_function(const void* kernel) {
  const EmulatedKernel& known = emulated_kernels().at(kernel);
  void* function = nullptr;
  if (FW_DRIVER(cuModuleGetFunction, void**, void*, const char*)(&function, emulated_module(*known.source),
                                                                 known.entry.c_str()) != 0)
    throw std::runtime_error("no kernel " + known.entry);
  return function;
}

inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline const char* cudaGetErrorString(cudaError_t error) {
  const char* text = nullptr;
  FW_DRIVER(cuGetErrorString, int, const char**)(error, &text);
  return text;
}
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  return FW_DRIVER(cuDeviceGetAttribute, int*, int, int)(value, attribute, device);
}
inline cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* kernel, int threads,
                                                                 size_t shared) {
  return FW_DRIVER(cuOccupancyMaxActiveBlocksPerMultiprocessor, int*, void*, int, size_t)(
      blocks, emulated_function(kernel), threads, shared);
}
inline cudaError_t cudaFuncSetAttribute(const void* kernel, int attribute, int value) {
  return FW_DRIVER(cuFuncSetAttribute, void*, int, int)(emulated_function(kernel), attribute, value);
}
inline cudaError_t cudaLaunchKernel(const void* kernel, dim3 grid, dim3 block, void** arguments, size_t shared,
                                    cudaStream_t stream) {
  ++emulated_launches();
  return FW_DRIVER(cuLaunchKernel, void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*,
                   void**, void**)(emulated_function(kernel), grid.x, 1, 1, block.x, 1, 1,
                                   static_cast<unsigned>(shared), stream, arguments, nullptr);
}
