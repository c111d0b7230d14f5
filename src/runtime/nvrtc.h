#pragma once
// NVRTC, NVIDIA's compiler of CUDA text as a library, opened when the process first asks for a GPU. Our own
// declarations of the little we use: no header of CUDA is needed to build this.
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "runtime/cuda.h"
#include "runtime/shared_library.h"

namespace fusewright::cuda {

using nvrtcResult = int;
using nvrtcProgram = struct _nvrtcProgram*;

// Every function of NVRTC that we call: result, symbol and parameters. Each of them must exist in tests/emulator and in
// tests/runtime/fakes/nvrtc.cpp too, so the list stays short.
#define FUSEWRIGHT_NVRTC_FUNCTIONS(X)                                                                            \
  X(const char*, nvrtcGetErrorString, (nvrtcResult result))                                                      \
  X(nvrtcResult, nvrtcVersion, (int* major, int* minor))                                                         \
  X(nvrtcResult, nvrtcGetNumSupportedArchs, (int* count))                                                        \
  X(nvrtcResult, nvrtcGetSupportedArchs, (int* architectures))                                                   \
  X(nvrtcResult, nvrtcCreateProgram,                                                                             \
    (nvrtcProgram * program, const char* source, const char* name, int headers, const char* const* header_texts, \
     const char* const* header_names))                                                                           \
  X(nvrtcResult, nvrtcDestroyProgram, (nvrtcProgram * program))                                                  \
  X(nvrtcResult, nvrtcCompileProgram, (nvrtcProgram program, int count, const char* const* options))             \
  X(nvrtcResult, nvrtcGetProgramLogSize, (nvrtcProgram program, size_t * size))                                  \
  X(nvrtcResult, nvrtcGetProgramLog, (nvrtcProgram program, char* log))                                          \
  X(nvrtcResult, nvrtcGetCUBINSize, (nvrtcProgram program, size_t * size))                                       \
  X(nvrtcResult, nvrtcGetCUBIN, (nvrtcProgram program, char* cubin))                                             \
  X(nvrtcResult, nvrtcGetPTXSize, (nvrtcProgram program, size_t * size))                                         \
  X(nvrtcResult, nvrtcGetPTX, (nvrtcProgram program, char* ptx))

}  // namespace fusewright::cuda
