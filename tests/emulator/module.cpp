#include "emulator/module.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "embedded_emulator.h"
#include "emulator/block.h"
#include "runtime/compiler/build_directory.h"
#include "runtime/compiler/subprocess.h"

namespace fwemu {

std::string preamble() {
  return std::string(fusewright::embedded_interface) + "\n" + fusewright::embedded_emulator + "\n";
}

static uint64_t number_of(const std::string& text) {  // FNV-1a
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

uint64_t interface_number() {
  static const uint64_t number = number_of(preamble());
  return number;
}

bool is_generated(const std::string& text) { return text.starts_with("#define FW_VECTOR "); }

namespace {

// With FUSEWRIGHT_EMULATOR_TEXTS, every generated text that a process loads is left in that folder, once, under a
// number of its own and without the headers, which are the same in all of them: tests/nvrtc has the real NVRTC compile
// it.
void keep_text(const std::string& text) {
  const char* folder = std::getenv("FUSEWRIGHT_EMULATOR_TEXTS");
  if (folder == nullptr || *folder == 0 || !is_generated(text)) return;
  const size_t headers = text.find("\n//"), last = text.rfind("#endif  // FW_KERNELS_");
  if (headers == std::string::npos || last == std::string::npos) return;
  const std::string kept = text.substr(0, headers + 1) + text.substr(text.find('\n', last) + 1);
  char name[32];
  std::snprintf(name, sizeof name, "%016llx.cu", static_cast<unsigned long long>(number_of(kept)));
  const std::filesystem::path place = std::filesystem::path(folder) / name;
  std::error_code none;
  if (std::filesystem::exists(place, none)) return;
  std::filesystem::create_directories(folder, none);
  // Whole or not at all: others may look for it at the same time.
  const std::filesystem::path draft = place.string() + "." + std::to_string(getpid());
  std::ofstream(draft) << kept;
  std::filesystem::rename(draft, place, none);
}

void load_object(Image& image) {
  image.library = std::make_unique<fusewright::CompiledLibrary>(image.object);
  const auto bind = reinterpret_cast<void (*)(const Runtime*)>(image.library->symbol("fwemu_bind"));
  if (bind == nullptr) throw std::runtime_error("the image has no fwemu_bind");
  bind(&Block::runtime);
}

}  // namespace

std::unique_ptr<Image> load_image(const void* bytes) {
  ImageHeader header;
  std::memcpy(&header, bytes, sizeof header);
  if (std::memcmp(header.magic, image_magic, sizeof header.magic) != 0) {
    throw std::runtime_error("the image was not compiled by the emulator's NVRTC");
  }
  if (header.interface != interface_number()) {
    throw std::runtime_error("the image was compiled by the NVRTC of another emulator");
  }
  const auto* object = static_cast<const std::byte*>(bytes) + sizeof header;
  auto image = std::make_unique<Image>();
  image->object.assign(object, object + header.object_bytes);
  image->text.assign(reinterpret_cast<const char*>(object + header.object_bytes), header.text_bytes);
  image->recipe = header.recipe;
  image->kernels = find_kernels(image->text);
  if (!image->object.empty()) load_object(*image);
  keep_text(image->text);
  return image;
}

bool has_kernel(const Image& image, const std::string& name) {
  return std::any_of(image.kernels.begin(), image.kernels.end(),
                     [&](const FoundKernel& kernel) { return kernel.name == name; });
}

const Kernel* find_kernel(Image& image, const std::string& name) {
  const std::scoped_lock lock(image.mutex);
  if (image.library == nullptr) {
    std::string log;
    image.object = compile_object(image.text, image.recipe, log);
    if (image.object.empty()) throw std::runtime_error("the emulator cannot compile the text:\n" + log);
    load_object(image);
  }
  return static_cast<const Kernel*>(image.library->symbol(("fwemu_kernel_" + name).c_str()));
}

std::string quote(const Image& image, int line) {
  std::string text = "line " + std::to_string(line);
  size_t start = 0;
  for (int i = 1; i < line && start != std::string::npos; ++i) {
    start = image.text.find('\n', start);
    if (start != std::string::npos) ++start;
  }
  if (start == std::string::npos) return text;
  std::string code = image.text.substr(start, image.text.find('\n', start) - start);
  code.erase(0, code.find_first_not_of(' '));
  if (code.size() > 100) code = code.substr(0, 97) + "...";
  return code.empty() ? text : text + " `" + code + "`";
}

int line_of(const Image& image, const void* program_counter) {
  Dl_info info;
  const std::string tool = fusewright::find_program("addr2line");
  if (tool.empty() || dladdr(program_counter, &info) == 0) return 0;
  const void* here = image.library->symbol("fwemu_bind");
  Dl_info ours;
  if (dladdr(here, &ours) == 0 || ours.dli_fbase != info.dli_fbase) return 0;
  try {
    const fusewright::BuildDirectory directory;
    const std::string file = directory.file("kernel.so");
    fusewright::write_file(file, image.object);
    char offset[32];
    std::snprintf(offset, sizeof offset, "0x%zx",
                  static_cast<size_t>(static_cast<const char*>(program_counter) - static_cast<char*>(info.dli_fbase)));
    // Innermost first; what was inlined into a kernel is mostly of the headers, so the last line is the kernel's own.
    const auto result = fusewright::run_subprocess({tool, "-i", "-e", file, offset});
    int line = 0;
    for (size_t at = 0; result.ok() && at < result.output.size();) {
      const size_t end = std::min(result.output.find('\n', at), result.output.size());
      const size_t colon = result.output.rfind(':', end);
      if (colon != std::string::npos && colon >= at) {
        if (const int number = std::atoi(result.output.c_str() + colon + 1); number > 0) line = number;
      }
      at = end + 1;
    }
    return line;
  } catch (const std::exception&) {
    return 0;
  }
}

}  // namespace fwemu
