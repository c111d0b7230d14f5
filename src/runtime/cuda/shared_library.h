#pragma once

#include <functional>
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

// Where a library may be.
struct LibraryPlaces {
  std::string what;                      // for the reason: "no CUDA driver"
  std::string variable;                  // the environment variable that may name it
  std::string chosen;                    // that variable's value: an absolute path, then the only place
  std::vector<std::string> names;        // best first; as the system's linker finds them,
  std::vector<std::string> directories;  // then in these
};

// The first library that opens and that `accept` takes. If there is none, `why_not` says what was tried and what was
// wrong with each; `accept` writes what is wrong with one it refuses.
SharedLibrary find_library(const LibraryPlaces& places, const std::function<bool(SharedLibrary&, std::string&)>& accept,
                           std::string& why_not);

}  // namespace fusewright
