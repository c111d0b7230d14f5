// NVRTC, as far as runtime/cuda/nvrtc.h asks for it: the system's C++ compiler, with emulator.h in front of the text.
#include <fcntl.h>
#include <sys/stat.h>

#include <cctype>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string_view>

#include "emulator/module.h"
#include "runtime/compiler/build_directory.h"
#include "runtime/compiler/subprocess.h"
#include "runtime/cuda/nvrtc.h"
#include "runtime/posix.h"

using namespace fusewright::cuda;

struct fusewright::cuda::_nvrtcProgram {
  std::string source, name, log;
  std::vector<std::byte> image;
};

namespace {

enum : nvrtcResult { success = 0, invalid_input = 3, invalid_option = 5, compilation = 6, internal = 11 };

// Kernels tell of each access to memory, and the emulator finds races in shared memory (races.h).
bool watches_races() {
  const char* value = std::getenv("FUSEWRIGHT_EMULATOR_RACES");
  return value != nullptr && *value != 0 && *value != '0';
}

struct FoundKernel {
  std::string name, bounds;  // what stands between the parentheses of __launch_bounds__
};

// Every `extern "C" __global__ void` is followed by the name of a kernel, perhaps behind launch bounds.
std::vector<FoundKernel> find_kernels(const std::string& text) {
  constexpr std::string_view head = "extern \"C\" __global__ void";  // no static: kernels are compiled until the end
  std::vector<FoundKernel> kernels;
  for (size_t at = text.find(head); at != std::string::npos; at = text.find(head, at)) {
    at += head.size();
    const auto skip_space = [&] { at = std::min(text.find_first_not_of(" \n\t", at), text.size()); };
    skip_space();
    std::string bounds;
    if (text.compare(at, 17, "__launch_bounds__") == 0) {
      const size_t open = std::min(text.find('(', at), text.size() - 1) + 1;
      at = open;
      for (int depth = 1; at < text.size() && depth != 0; ++at) depth += text[at] == '(' ? 1 : text[at] == ')' ? -1 : 0;
      bounds = text.substr(open, at - open - 1);
      skip_space();
    }
    size_t end = at;
    while (end < text.size() && (std::isalnum(static_cast<unsigned char>(text[end])) != 0 || text[end] == '_')) ++end;
    kernels.push_back({text.substr(at, end - at), bounds});
  }
  return kernels;
}

// FW_EMULATOR and __CUDACC__ choose the branches; the compiler counts lines as NVRTC would.
std::string full_text(const _nvrtcProgram& program, const std::string& architecture, bool races) {
  std::string text = "#define FW_EMULATOR 1\n#define __CUDACC__ 1\n#define __CUDACC_RTC__ 1\n";
  if (races) text += "#define FWEMU_RACES 1\n";
  text += "#define __CUDA_ARCH__ " + architecture + "0\n" + fwemu::preamble();
  text += "#line 1 \"" + program.name + "\"\n" + program.source + "\n#line 1 \"trampolines\"\n";
  const std::string visible = "extern \"C\" __attribute__((visibility(\"default\"))) ";
  for (const auto& [name, bounds] : find_kernels(program.source)) {
    text += "static void fwemu_call_" + name + "(const void* p) { fwemu::call_kernel(" + name + ", p); }\n";
    text += visible + "const fwemu::Kernel fwemu_kernel_" + name + ";\nconst fwemu::Kernel fwemu_kernel_" + name +
            " = {fwemu_call_" + name + ", fwemu::argument_bytes(" + name + "), " + (races ? "true" : "false") +
            ", fwemu::bounds(" + bounds + ").threads, fwemu::bounds(" + bounds + ").blocks};\n";
  }
  text += visible +
          "__attribute__((no_sanitize(\"thread\"))) void fwemu_bind(const fwemu::Runtime* runtime) { fwemu::runtime = "
          "runtime; }\n";
  return text;
}

std::vector<std::string> compiler() {
  for (const char* variable : {"FUSEWRIGHT_CXX", "CXX"}) {
    if (const char* value = std::getenv(variable); value != nullptr && *value != 0) {
      std::istringstream stream(value);
      std::vector<std::string> words;
      for (std::string word; stream >> word;) words.push_back(word);
      if (!words.empty() && !fusewright::find_program(words[0]).empty()) return words;
    }
  }
  for (const char* name : {"g++", "c++", "clang++"}) {
    if (!fusewright::find_program(name).empty()) return {name};
  }
  return {};
}

std::vector<std::byte> read_file(const std::string& path) {
  const fusewright::UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status;
  if (!file || fstat(file.get(), &status) != 0) throw std::runtime_error("the compiler left no library");
  std::vector<std::byte> bytes(static_cast<size_t>(status.st_size));
  if (fusewright::read_all(file.get(), bytes) != 0) throw std::runtime_error("cannot read the compiled library");
  return bytes;
}

nvrtcResult compile(_nvrtcProgram& program, const std::string& architecture, bool fuse) {
  std::vector<std::string> command = compiler();
  if (command.empty()) throw std::runtime_error("the emulator found no C++ compiler");
  const fusewright::BuildDirectory directory;
  const std::string library = directory.file("kernel.so");
  // -g1: lines for faults. Functions of libm and libgcc are all that kernels may need.
  for (const char* word : {"-std=c++20", "-O1", "-g1", "-fPIC", "-shared", "-fvisibility=hidden", "-fno-exceptions",
                           "-fno-rtti", "-fno-math-errno", "-fno-trapping-math", "-fno-strict-aliasing", "-fwrapv",
                           "-fno-stack-protector", "-w", "-nostdlib"}) {
    command.push_back(word);
  }
#if defined(__x86_64__)
  // Without it a fused multiply-add is a slow call. Not -march=native: on processors with AVX-512 a switch between
  // fibers then costs ten times as much.
  if (__builtin_cpu_supports("fma")) command.push_back("-mfma");
#endif
  if (watches_races()) command.push_back("-fsanitize=thread");
  command.push_back(fuse ? "-ffp-contract=fast" : "-ffp-contract=off");
  for (const std::string& word : {std::string("-o"), library, std::string("-x"), std::string("c++"), std::string("-"),
                                  std::string("-Wl,--as-needed"), std::string("-lm"), std::string("-lgcc")}) {
    command.push_back(word);
  }
  fusewright::SubprocessOptions options;
  options.stdin_text = full_text(program, architecture, watches_races());
  const fusewright::SubprocessResult result = fusewright::run_subprocess(command, options);
  program.log = result.output;
  if (!result.ok()) {
    if (program.log.empty()) program.log = command[0] + ": " + result.describe();
    return compilation;
  }
  const std::vector<std::byte> object = read_file(library);
  fwemu::ImageHeader header;
  std::memcpy(header.magic, fwemu::image_magic, sizeof header.magic);
  header.interface = fwemu::interface_number();
  header.object_bytes = object.size();
  header.text_bytes = program.source.size();
  const auto append = [&](const void* bytes, size_t size) {
    const auto* from = static_cast<const std::byte*>(bytes);
    program.image.insert(program.image.end(), from, from + size);
  };
  program.image.clear();
  append(&header, sizeof header);
  append(object.data(), object.size());
  append(program.source.data(), program.source.size());
  return success;
}

}  // namespace

#define FWEMU_EXPORT extern "C" __attribute__((visibility("default")))

FWEMU_EXPORT const char* nvrtcGetErrorString(nvrtcResult result) {
  switch (result) {
    case success:
      return "NVRTC_SUCCESS";
    case invalid_input:
      return "NVRTC_ERROR_INVALID_INPUT";
    case invalid_option:
      return "NVRTC_ERROR_INVALID_OPTION";
    case compilation:
      return "NVRTC_ERROR_COMPILATION";
    default:
      return "NVRTC_ERROR_INTERNAL_ERROR";
  }
}

FWEMU_EXPORT nvrtcResult nvrtcVersion(int* major, int* minor) {
  *major = 13;
  *minor = watches_races() ? 1 : 0;  // a cache that asks for the version keeps them apart
  return success;
}

static constexpr int architectures[] = {75, 80, 86, 89, 90, 100, 120};

FWEMU_EXPORT nvrtcResult nvrtcGetNumSupportedArchs(int* count) {
  *count = static_cast<int>(std::size(architectures));
  return success;
}

FWEMU_EXPORT nvrtcResult nvrtcGetSupportedArchs(int* list) {
  std::memcpy(list, architectures, sizeof architectures);
  return success;
}

FWEMU_EXPORT nvrtcResult nvrtcCreateProgram(nvrtcProgram* program, const char* source, const char* name, int headers,
                                            const char* const*, const char* const*) {
  if (source == nullptr || headers != 0) return invalid_input;
  *program = new _nvrtcProgram{source, name != nullptr ? name : "default_program", "", {}};
  return success;
}

FWEMU_EXPORT nvrtcResult nvrtcDestroyProgram(nvrtcProgram* program) {
  delete *program;
  *program = nullptr;
  return success;
}

FWEMU_EXPORT nvrtcResult nvrtcCompileProgram(nvrtcProgram program, int count, const char* const* options) {
  std::string architecture = "75";
  bool fuse = true;
  for (int i = 0; i < count; ++i) {
    const std::string option = options[i];
    if (option.starts_with("--gpu-architecture=") || option.starts_with("-arch=")) {
      architecture.clear();
      for (const char c : option.substr(option.rfind('_') + 1)) {
        if (std::isdigit(static_cast<unsigned char>(c)) != 0) architecture += c;
      }
      if (architecture.empty()) {
        program->log = "no such architecture: " + option;
        return invalid_option;
      }
    }
    if (option == "--fmad=false" || option == "-fmad=false") fuse = false;
  }
  try {
    return compile(*program, architecture, fuse);
  } catch (const std::exception& error) {
    program->log = error.what();
    return internal;
  }
}

FWEMU_EXPORT nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram program, size_t* size) {
  *size = program->log.size() + 1;
  return success;
}

FWEMU_EXPORT nvrtcResult nvrtcGetProgramLog(nvrtcProgram program, char* log) {
  std::memcpy(log, program->log.c_str(), program->log.size() + 1);
  return success;
}

FWEMU_EXPORT nvrtcResult nvrtcGetCUBINSize(nvrtcProgram program, size_t* size) {
  *size = program->image.size();
  return success;
}

FWEMU_EXPORT nvrtcResult nvrtcGetCUBIN(nvrtcProgram program, char* cubin) {
  std::memcpy(cubin, program->image.data(), program->image.size());
  return success;
}

// The driver loads either.
FWEMU_EXPORT nvrtcResult nvrtcGetPTXSize(nvrtcProgram program, size_t* size) {
  return nvrtcGetCUBINSize(program, size);
}

FWEMU_EXPORT nvrtcResult nvrtcGetPTX(nvrtcProgram program, char* ptx) { return nvrtcGetCUBIN(program, ptx); }

// A function of the table that is not here does not link.
extern "C" {
#define FWEMU_DECLARE(result, name, parameters) result name parameters;
FUSEWRIGHT_NVRTC_FUNCTIONS(FWEMU_DECLARE)
}
__attribute__((used)) static void* const all_functions[] = {
#define FWEMU_ADDRESS(result, name, parameters) reinterpret_cast<void*>(&name),
    FUSEWRIGHT_NVRTC_FUNCTIONS(FWEMU_ADDRESS)};
