#pragma once

#include <string>
#include <vector>

namespace fusewright {

// A library that is found when the program runs. It is never closed: NVIDIA's libraries keep threads and exit handlers,
// and PyTorch uses them too.
class SharedLibrary {
 public:
  SharedLibrary() = default;
  // A name alone (the system's linker searches for it) or an absolute path; without success, `why_not` holds the
  // linker's own words.
  static SharedLibrary open(const std::string& name, std::string& why_not);

  explicit operator bool() const { return handle_ != nullptr; }
  void* symbol(const char* name) const;  // nullptr if there is none

 private:
  void* handle_ = nullptr;
};

// The file that holds the code at an address, links followed; empty if nobody knows.
std::string file_of_code(const void* address);

}  // namespace fusewright
