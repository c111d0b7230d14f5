#pragma once
// The "cubin" of the fake NVRTC, which the fake driver loads: a shared object and the text it was made from. Of a text
// that the project generates it has no object: most variants of a kernel are loaded and never launched, so the first
// launch compiles.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "emulator/compile.h"
#include "emulator/interface.h"
#include "runtime/compiler/compiled_library.h"

namespace fwemu {

struct ImageHeader {
  char magic[16];                     // image_magic
  uint64_t interface;                 // the number of the texts it was compiled with
  uint64_t object_bytes, text_bytes;  // both follow, in this order
  Recipe recipe;
};
constexpr char image_magic[16] = "fw emulator 002";

struct Image {
  std::string text;
  Recipe recipe;
  std::vector<FoundKernel> kernels;
  std::mutex mutex;  // of what follows, while it is empty
  std::vector<std::byte> object;
  std::unique_ptr<fusewright::CompiledLibrary> library;
};

// Throws std::exception if it is none of ours, or was compiled with another interface.h or emulator.h.
std::unique_ptr<Image> load_image(const void* bytes);
bool has_kernel(const Image& image, const std::string& name);
// Compiles the text if nobody has. Throws std::exception with the compiler's words if it refuses.
const Kernel* find_kernel(Image& image, const std::string& name);

// Texts that the project generates begin with their variant; those of the emulator's own tests do not.
bool is_generated(const std::string& text);

// interface.h and emulator.h.
std::string preamble();
uint64_t interface_number();  // of these texts

// "line 12 `code`" of the text.
std::string quote(const Image& image, int line);
// The line of the text behind an instruction, from the debug information; 0 if it cannot be had.
int line_of(const Image& image, const void* program_counter);

}  // namespace fwemu
