#include "emulator/compile.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cctype>
#include <cstdlib>
#include <sstream>
#include <stdexcept>
#include <string_view>

#include "emulator/module.h"
#include "runtime/compiler/build_directory.h"
#include "runtime/compiler/subprocess.h"
#include "runtime/posix.h"

namespace fwemu {

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

namespace {

// FW_EMULATOR and __CUDACC__ choose the branches; the compiler counts lines as NVRTC would.
std::string full_text(const std::string& source, const Recipe& recipe) {
  std::string text = "#define FW_EMULATOR 1\n#define __CUDACC__ 1\n#define __CUDACC_RTC__ 1\n";
  if (recipe.races != 0) text += "#define FWEMU_RACES 1\n";
  text += "#define __CUDA_ARCH__ " + std::to_string(recipe.architecture) + "0\n" + preamble();
  text += "#line 1 \"" + std::string(recipe.name) + "\"\n" + source + "\n#line 1 \"trampolines\"\n";
  const std::string visible = "extern \"C\" __attribute__((visibility(\"default\"))) ";
  for (const auto& [name, bounds] : find_kernels(source)) {
    text += "static void fwemu_call_" + name + "(const void* p) { fwemu::call_kernel(" + name + ", p); }\n";
    text += visible + "const fwemu::Kernel fwemu_kernel_" + name + ";\nconst fwemu::Kernel fwemu_kernel_" + name +
            " = {fwemu_call_" + name + ", fwemu::argument_bytes(" + name + "), " +
            (recipe.races != 0 ? "true" : "false") + ", fwemu::bounds(" + bounds + ").threads, fwemu::bounds(" +
            bounds + ").blocks};\n";
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

}  // namespace

std::vector<std::byte> compile_object(const std::string& source, const Recipe& recipe, std::string& log) {
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
  if (recipe.races != 0) command.push_back("-fsanitize=thread");
  command.push_back(recipe.fuse != 0 ? "-ffp-contract=fast" : "-ffp-contract=off");
  for (const std::string& word : {std::string("-o"), library, std::string("-x"), std::string("c++"), std::string("-"),
                                  std::string("-Wl,--as-needed"), std::string("-lm"), std::string("-lgcc")}) {
    command.push_back(word);
  }
  fusewright::SubprocessOptions options;
  options.stdin_text = full_text(source, recipe);
  const fusewright::SubprocessResult result = fusewright::run_subprocess(command, options);
  log = result.output;
  if (result.ok()) return read_file(library);
  if (log.empty()) log = command[0] + ": " + result.describe();
  return {};
}

}  // namespace fwemu
