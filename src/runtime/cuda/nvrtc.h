#pragma once
// NVRTC, NVIDIA's compiler of CUDA text as a library, opened when the process first asks for a GPU. Our own
// declarations of the little we use: no header of CUDA is needed to build this.
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "runtime/cuda/cuda.h"
#include "runtime/cuda/shared_library.h"

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

// What a source is compiled to.
struct Target {
  std::string name;  // sm_90a, or compute_90
  bool ptx = false;  // text that the driver translates when it is loaded, else machine code
  int major = 0;     // of the architecture: 9
};

// The compiler. Threads may share it.
class Nvrtc {
 public:
  struct Functions {
#define FUSEWRIGHT_MEMBER(result, name, parameters) result(*name) parameters = nullptr;
    FUSEWRIGHT_NVRTC_FUNCTIONS(FUSEWRIGHT_MEMBER)
#undef FUSEWRIGHT_MEMBER
  };

  // Nothing, and the reason, if there is none. What is compiled by an NVRTC of a later major version than the driver's
  // could not be loaded, so such a one is passed over (newest_major = 0: any will do).
  static std::shared_ptr<const Nvrtc> open(const std::string& chosen, const std::vector<std::string>& directories,
                                           int newest_major, std::string& why_not);

  // Machine code for exactly this architecture if NVRTC knows it, else PTX for the latest that it knows before it.
  // Throws CompileError if there is none.
  Target target(Architecture architecture) const;

  // The options, as they go into the key of the cache.
  static std::vector<std::string> options(const Target& target);

  // Throws CompileError with NVRTC's own log. `more`: options beside the usual ones, of tests; no code if they end
  // before there is some.
  std::vector<std::byte> compile(const std::string& source, const Target& target,
                                 const std::vector<std::string>& more = {}) const;

  std::string version() const { return std::to_string(major_) + "." + std::to_string(minor_); }
  int version_number() const { return 1000 * major_ + 10 * minor_; }  // as the driver has it
  const std::string& identity() const { return identity_; }           // version, and size and time stamp of the file

 private:
  Nvrtc() = default;
  bool start(const SharedLibrary& library, int newest_major, std::string& why_not);
  void check(nvrtcResult result, const char* function) const;

  Functions functions_;
  int major_ = 0, minor_ = 0;
  std::vector<int> architectures_;  // 10 * major + minor, ascending
  std::string identity_;
};

}  // namespace fusewright::cuda
