#pragma once
// NVIDIA's driver, libcuda.so.1, opened when the process first asks for a GPU. Our own declarations of the little we
// use: no header of CUDA is needed to build this.
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/cuda.h"
#include "runtime/shared_library.h"

namespace fusewright::cuda {

using CUresult = int;
using CUdevice = int;
using CUcontext = struct CUctx_st*;
using CUmodule = struct CUmod_st*;
using CUfunction = struct CUfunc_st*;
using CUstream = struct CUstream_st*;

// Every function of the driver that we call: symbol and parameters; all return CUresult. Each of them must exist in
// tests/emulator and in tests/runtime/fakes/cuda.cpp too, so the list stays short.
//
// Modules, not libraries (cuLibraryLoadData): those exist since CUDA 12 only, and they load a kernel on a device when
// it is first launched there, where an out-of-memory comes too late to choose another way and a recording of a CUDA
// graph is broken by it. A module for each device is loaded by Module::kernel, ahead of all that.
#define FUSEWRIGHT_CUDA_FUNCTIONS(X)                                                                             \
  X(cuGetErrorName, (CUresult error, const char** name))                                                         \
  X(cuGetErrorString, (CUresult error, const char** text))                                                       \
  X(cuDriverGetVersion, (int* version))                                                                          \
  X(cuInit, (unsigned flags))                                                                                    \
  X(cuDeviceGetCount, (int* count))                                                                              \
  X(cuDeviceGet, (CUdevice * device, int index))                                                                 \
  X(cuDeviceGetName, (char* name, int size, CUdevice device))                                                    \
  X(cuDeviceGetAttribute, (int* value, int attribute, CUdevice device))                                          \
  X(cuDevicePrimaryCtxRetain, (CUcontext * context, CUdevice device))                                            \
  X(cuDevicePrimaryCtxRelease_v2, (CUdevice device))                                                             \
  X(cuCtxGetCurrent, (CUcontext * context))                                                                      \
  X(cuCtxPushCurrent_v2, (CUcontext context))                                                                    \
  X(cuCtxPopCurrent_v2, (CUcontext * context))                                                                   \
  X(cuThreadExchangeStreamCaptureMode, (int* mode))                                                              \
  X(cuModuleLoadData, (CUmodule * module, const void* image))                                                    \
  X(cuModuleUnload, (CUmodule module))                                                                           \
  X(cuModuleGetFunction, (CUfunction * function, CUmodule module, const char* name))                             \
  X(cuFuncGetAttribute, (int* value, int attribute, CUfunction function))                                        \
  X(cuFuncSetAttribute, (CUfunction function, int attribute, int value))                                         \
  X(cuLaunchKernel,                                                                                              \
    (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y, \
     unsigned block_z, unsigned shared_bytes, CUstream stream, void** parameters, void** extra))                 \
  X(cuStreamIsCapturing, (CUstream stream, int* status))

// The values of CUDA's enums that we use.
enum : CUresult {
  CUDA_SUCCESS = 0,
  CUDA_ERROR_INVALID_CONTEXT = 201,
  CUDA_ERROR_NOT_FOUND = 500,
  CUDA_ERROR_STREAM_CAPTURE_IMPLICIT = 906,
};
enum DeviceAttribute : int {
  CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
  CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE = 38,
  CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
  CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
  CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97,
};
enum FunctionAttribute : int {
  CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES = 1,
  CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8,
};
enum CaptureMode : int { CU_STREAM_CAPTURE_MODE_RELAXED = 2 };
enum CaptureStatus : int { CU_STREAM_CAPTURE_STATUS_NONE = 0 };

}  // namespace fusewright::cuda
