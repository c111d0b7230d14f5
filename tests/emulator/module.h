#pragma once
// The "cubin" of the fake NVRTC, which the fake driver loads: a shared object and the text it was made from.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "emulator/interface.h"
#include "runtime/compiler/compiled_library.h"

namespace fwemu {

struct ImageHeader {
  char magic[16];                     // image_magic
  uint64_t interface;                 // the number of the texts it was compiled with
  uint64_t object_bytes, text_bytes;  // both follow, in this order
};
constexpr char image_magic[16] = "fw emulator 001";

struct Image {
  std::vector<std::byte> object;
  std::string text;
  std::unique_ptr<fusewright::CompiledLibrary> library;
};

// Throws std::exception if it is none of ours, or was compiled with another interface.h or emulator.h.
std::unique_ptr<Image> load_image(const void* bytes);
// Null if there is none of this name.
const Kernel* find_kernel(const Image& image, const std::string& name);

// interface.h and emulator.h.
std::string preamble();
uint64_t interface_number();  // of these texts

// "line 12 `code`" of the text.
std::string quote(const Image& image, int line);
// The line of the text behind an instruction, from the debug information; 0 if it cannot be had.
int line_of(const Image& image, const void* program_counter);

}  // namespace fwemu
