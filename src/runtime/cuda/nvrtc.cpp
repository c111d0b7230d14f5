#include "runtime/cuda/nvrtc.h"

#include <sys/stat.h>

#include <algorithm>

#include "runtime/compiler/compile_error.h"

namespace fusewright::cuda {
namespace {

// Returns the first function that the library lacks, or nullptr.
const char* load_functions(const SharedLibrary& library, Nvrtc::Functions& functions) {
#define FUSEWRIGHT_LOAD(result, name, parameters)                                     \
  functions.name = reinterpret_cast<decltype(functions.name)>(library.symbol(#name)); \
  if (functions.name == nullptr) return #name;
  FUSEWRIGHT_NVRTC_FUNCTIONS(FUSEWRIGHT_LOAD)
#undef FUSEWRIGHT_LOAD
  return nullptr;
}

// NVRTC opens libnvrtc-builtins by its name alone when it first compiles, and NVIDIA's packages set no search path in
// it. The linker knows a library by name once it is loaded, so we load the one beside it first. Where there is none
// the system's is used, and if there is none either, NVRTC says so.
void load_builtins(const std::string& nvrtc_file, const std::string& version) {
  const size_t slash = nvrtc_file.rfind('/');
  if (slash == std::string::npos) return;
  std::string ignored;
  SharedLibrary::open(nvrtc_file.substr(0, slash) + "/libnvrtc-builtins.so." + version, ignored);
}

}  // namespace

std::shared_ptr<const Nvrtc> Nvrtc::open(const std::string& chosen, const std::vector<std::string>& directories,
                                         int newest_major, std::string& why_not) {
  // NVRTC 11.2 to 11.8 have one name.
  const LibraryPlaces places{"no NVRTC",
                             "FUSEWRIGHT_NVRTC_LIBRARY",
                             chosen,
                             {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2"},
                             directories};
  std::shared_ptr<Nvrtc> nvrtc(new Nvrtc);
  const auto accept = [&](const SharedLibrary& library, std::string& reason) {
    return nvrtc->start(library, newest_major, reason);
  };
  return find_library(places, accept, why_not) ? nvrtc : nullptr;
}

bool Nvrtc::start(const SharedLibrary& library, int newest_major, std::string& why_not) {
  if (const char* missing = load_functions(library, functions_)) {
    why_not = std::string("it has no function ") + missing;
    return false;
  }
  try {
    check(functions_.nvrtcVersion(&major_, &minor_), "nvrtcVersion");
    if (newest_major != 0 && major_ > newest_major) {
      why_not = "NVRTC " + version() + " is too new for the driver, which is of CUDA " + std::to_string(newest_major);
      return false;
    }
    int count = 0;
    check(functions_.nvrtcGetNumSupportedArchs(&count), "nvrtcGetNumSupportedArchs");
    architectures_.assign(static_cast<size_t>(std::max(count, 0)), 0);
    check(functions_.nvrtcGetSupportedArchs(architectures_.data()), "nvrtcGetSupportedArchs");
  } catch (const CompileError& error) {
    why_not = error.what();
    return false;
  }
  std::sort(architectures_.begin(), architectures_.end());
  identity_ = "NVRTC " + version();
  const std::string file = file_of_code(reinterpret_cast<const void*>(functions_.nvrtcVersion));
  // The version has no patch level.
  struct stat status;
  if (!file.empty() && stat(file.c_str(), &status) == 0) {
    identity_ += " " + std::to_string(status.st_size) + " " + std::to_string(status.st_mtim.tv_sec) + "." +
                 std::to_string(status.st_mtim.tv_nsec);
  }
  load_builtins(file, version());
  return true;
}

Target Nvrtc::target(Architecture architecture) const {
  const int wanted = 10 * architecture.major + architecture.minor;
  const auto next = std::upper_bound(architectures_.begin(), architectures_.end(), wanted);
  if (next == architectures_.begin()) {
    throw CompileError("NVRTC " + version() + " cannot compile for a GPU of compute capability " +
                       std::to_string(architecture.major) + "." + std::to_string(architecture.minor) +
                       (architectures_.empty() ? "" : "; its first is " + std::to_string(architectures_[0])));
  }
  const int found = next[-1];
  // PTX without a letter runs on every later GPU.
  if (found != wanted) return {"compute_" + std::to_string(found), true, found / 10};
  // From 9.0 on, code with the letter runs on this very architecture only, which is all we want of it, and may use all
  // of its instructions (wgmma); NVRTC knows the letter since 12.0.
  const bool specific = architecture.major >= 9 && major_ >= 12;
  return {"sm_" + std::to_string(found) + (specific ? "a" : ""), false, found / 10};
}

std::vector<std::string> Nvrtc::options(const Target& target) {
  // Division, roots and denormals exact, and products fused into sums: as nvcc compiles PyTorch's own kernels, whose
  // error ours are measured by. All are defaults, but they are a promise. No include directory: kernels include
  // nothing.
  return {"--gpu-architecture=" + target.name,
          "--std=c++17",
          "--fmad=true",
          "--ftz=false",
          "--prec-div=true",
          "--prec-sqrt=true"};
}

std::vector<std::byte> Nvrtc::compile(const std::string& source, const Target& target,
                                      const std::vector<std::string>& more) const {
  nvrtcProgram program = nullptr;
  check(functions_.nvrtcCreateProgram(&program, source.c_str(), "kernel.cu", 0, nullptr, nullptr),
        "nvrtcCreateProgram");
  const std::unique_ptr<nvrtcProgram, nvrtcResult (*)(nvrtcProgram*)> owner(&program, functions_.nvrtcDestroyProgram);

  std::vector<std::string> words = options(target);
  words.insert(words.end(), more.begin(), more.end());
  std::vector<const char*> arguments;
  for (const std::string& word : words) arguments.push_back(word.c_str());
  const nvrtcResult result =
      functions_.nvrtcCompileProgram(program, static_cast<int>(arguments.size()), arguments.data());
  if (result != 0) {
    std::string message =
        "NVRTC " + version() + " failed for " + target.name + " (" + functions_.nvrtcGetErrorString(result) + ")\n";
    size_t size = 0;
    if (functions_.nvrtcGetProgramLogSize(program, &size) == 0 && size > 1) {
      std::string text(size, '\0');
      if (functions_.nvrtcGetProgramLog(program, text.data()) == 0) message += text.c_str();
      if (!message.ends_with('\n')) message += '\n';
    }
    throw CompileError(message);
  }

  size_t size = 0;
  const auto get_size = target.ptx ? functions_.nvrtcGetPTXSize : functions_.nvrtcGetCUBINSize;
  const auto get = target.ptx ? functions_.nvrtcGetPTX : functions_.nvrtcGetCUBIN;
  check(get_size(program, &size), target.ptx ? "nvrtcGetPTXSize" : "nvrtcGetCUBINSize");
  std::vector<std::byte> bytes(size);  // PTX with the zero at its end, which the driver wants
  check(get(program, reinterpret_cast<char*>(bytes.data())), target.ptx ? "nvrtcGetPTX" : "nvrtcGetCUBIN");
  return bytes;
}

void Nvrtc::check(nvrtcResult result, const char* function) const {
  if (result != 0) throw CompileError(std::string(function) + ": " + functions_.nvrtcGetErrorString(result));
}

}  // namespace fusewright::cuda
