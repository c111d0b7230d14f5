#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace fusewright {

// A loaded kernel library; its functions are valid while the object lives.
class CompiledLibrary {
 public:
  // Throws CompileError if the bytes are no library that this process can load.
  explicit CompiledLibrary(std::span<const std::byte> bytes);
  // A part of a larger library: its functions end in `suffix` there.
  CompiledLibrary(std::shared_ptr<const CompiledLibrary> whole, std::string suffix);
  ~CompiledLibrary();
  CompiledLibrary(const CompiledLibrary&) = delete;
  CompiledLibrary& operator=(const CompiledLibrary&) = delete;

  void* symbol(const char* name) const;  // nullptr if there is none

 private:
  void* handle_ = nullptr;  // none: it is a part
  std::shared_ptr<const CompiledLibrary> whole_;
  std::string suffix_;
};

}  // namespace fusewright
