#pragma once

#include <cstddef>
#include <span>

namespace fusewright {

// A loaded kernel library; its functions are valid while the object lives.
class CompiledLibrary {
 public:
  // Throws CompileError if the bytes are no library that this process can load.
  explicit CompiledLibrary(std::span<const std::byte> bytes);
  ~CompiledLibrary();
  CompiledLibrary(const CompiledLibrary&) = delete;
  CompiledLibrary& operator=(const CompiledLibrary&) = delete;

  void* symbol(const char* name) const;  // nullptr if there is none

 private:
  void* handle_ = nullptr;
};

}  // namespace fusewright
