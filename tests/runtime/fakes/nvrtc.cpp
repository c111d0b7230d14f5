// An NVRTC for tests: fakes.h. Its output is a line with the kind and the target, then the source. A function is left
// out where FAKE_INCOMPLETE is defined.
#include "runtime/cuda/nvrtc.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "runtime/fakes/fakes.h"

namespace fusewright::cuda {

struct _nvrtcProgram {
  std::string source, target, log;
};

using testing::FakeNvrtc;

// The signatures are the table's.
extern "C" {
#define DECLARE(result, name, parameters) result name parameters;
FUSEWRIGHT_NVRTC_FUNCTIONS(DECLARE)
#undef DECLARE
}

namespace {

enum { INVALID_PROGRAM = 4, COMPILATION = 6 };

FakeNvrtc state;

nvrtcResult wanted_error(const char* function) {
  const std::lock_guard lock(state.mutex);
  const auto error = state.errors.find(function);
  return error != state.errors.end() ? error->second : 0;
}

std::string result_of(nvrtcProgram program, const char* kind) {
  return std::string(kind) + " " + program->target + "\n" + program->source;
}

nvrtcResult copy(const std::string& text, char* place) {
  std::memcpy(place, text.c_str(), text.size() + 1);
  return 0;
}

}  // namespace

extern "C" {

FakeNvrtc* fake_nvrtc() { return &state; }

const char* nvrtcGetErrorString(nvrtcResult result) {
  return result == COMPILATION ? "NVRTC_ERROR_COMPILATION" : result == 1 ? "NVRTC_ERROR_OUT_OF_MEMORY" : "NVRTC_ERROR";
}

nvrtcResult nvrtcVersion(int* major, int* minor) {
  *major = state.major;
  *minor = state.minor;
  return wanted_error("nvrtcVersion");
}

nvrtcResult nvrtcGetNumSupportedArchs(int* count) {
  *count = static_cast<int>(state.architectures.size());
  return 0;
}

nvrtcResult nvrtcGetSupportedArchs(int* architectures) {
  std::copy(state.architectures.begin(), state.architectures.end(), architectures);
  return 0;
}

nvrtcResult nvrtcCreateProgram(nvrtcProgram* program, const char* source, const char*, int headers,
                               const char* const* header_texts, const char* const* header_names) {
  if (headers != 0 || header_texts != nullptr || header_names != nullptr) return INVALID_PROGRAM;
  if (const nvrtcResult error = wanted_error("nvrtcCreateProgram")) return error;
  const std::lock_guard lock(state.mutex);
  *program = new _nvrtcProgram{source, "", ""};
  state.programs.insert(*program);
  return 0;
}

nvrtcResult nvrtcDestroyProgram(nvrtcProgram* program) {
  const std::lock_guard lock(state.mutex);
  if (state.programs.erase(*program) == 0) return INVALID_PROGRAM;
  delete *program;
  *program = nullptr;
  return 0;
}

nvrtcResult nvrtcCompileProgram(nvrtcProgram program, int count, const char* const* options) {
  {
    const std::lock_guard lock(state.mutex);
    state.options.assign(options, options + count);
    ++state.compilations;
    state.most_at_once = std::max(state.most_at_once, ++state.at_once);
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(state.milliseconds));
  const std::lock_guard lock(state.mutex);
  --state.at_once;
  const std::string first = options[0];
  program->target = first.substr(first.find('=') + 1);
  if (program->source.find("#error") == std::string::npos) return 0;
  program->log = "kernel.cu(1): catastrophic error: #error directive\n";
  return COMPILATION;
}

nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram program, size_t* size) {
  *size = program->log.size() + 1;
  return 0;
}
nvrtcResult nvrtcGetProgramLog(nvrtcProgram program, char* log) { return copy(program->log, log); }

nvrtcResult nvrtcGetCUBINSize(nvrtcProgram program, size_t* size) {
  *size = result_of(program, "cubin").size() + 1;
  return wanted_error("nvrtcGetCUBINSize");
}
#ifndef FAKE_INCOMPLETE
nvrtcResult nvrtcGetCUBIN(nvrtcProgram program, char* cubin) { return copy(result_of(program, "cubin"), cubin); }
#endif

nvrtcResult nvrtcGetPTXSize(nvrtcProgram program, size_t* size) {
  *size = result_of(program, "ptx").size() + 1;
  return wanted_error("nvrtcGetPTXSize");
}
nvrtcResult nvrtcGetPTX(nvrtcProgram program, char* ptx) { return copy(result_of(program, "ptx"), ptx); }

}  // extern "C"
}  // namespace fusewright::cuda
