// NVRTC, as far as runtime/cuda/nvrtc.h asks for it: the system's C++ compiler, with emulator.h in front of the text.
// Texts that the project generates are compiled when one of their kernels is first launched (module.h).
#include "runtime/cuda/nvrtc.h"

#include <cctype>
#include <cstdlib>
#include <cstring>

#include "emulator/module.h"

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

nvrtcResult compile(_nvrtcProgram& program, uint64_t architecture, bool fuse) {
  fwemu::ImageHeader header{};
  fwemu::Recipe& recipe = header.recipe;
  program.name.copy(recipe.name, sizeof recipe.name - 1);
  recipe.architecture = architecture;
  recipe.fuse = fuse ? 1 : 0;
  recipe.races = watches_races() ? 1 : 0;
  std::vector<std::byte> object;
  if (!fwemu::is_generated(program.source)) {
    object = fwemu::compile_object(program.source, recipe, program.log);
    if (object.empty()) return compilation;
  }
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
    return compile(*program, std::stoull(architecture), fuse);
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
