#include "runtime/cuda/shared_library.h"

#include <dlfcn.h>
#include <unistd.h>

#include "runtime/cache/paths.h"

namespace fusewright {

SharedLibrary SharedLibrary::open(const std::string& name, std::string& why_not) {
  SharedLibrary library;
  library.handle_ = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library.handle_ == nullptr) {
    const char* message = dlerror();
    why_not = message != nullptr ? message : name + ": cannot be opened";
  }
  return library;
}

void* SharedLibrary::symbol(const char* name) const { return dlsym(handle_, name); }

std::string file_of_code(const void* address) {
  Dl_info info{};
  if (dladdr(address, &info) == 0 || info.dli_fname == nullptr) return "";
  return canonical_path(info.dli_fname);
}

SharedLibrary find_library(const LibraryPlaces& places, const std::function<bool(SharedLibrary&, std::string&)>& accept,
                           std::string& why_not) {
  std::vector<std::string> candidates;
  std::string reasons;
  const auto refuse = [&](const std::string& reason) { reasons += (reasons.empty() ? "" : "; ") + reason; };
  if (places.chosen.starts_with('/')) {
    candidates = {places.chosen};
  } else if (!places.chosen.empty()) {
    refuse("'" + places.chosen + "' is no absolute path");
  } else {
    for (const std::string& name : places.names) {
      candidates.push_back(name);
      for (const std::string& directory : places.directories) {
        const std::string path = directory + "/" + name;
        if (access(path.c_str(), F_OK) == 0) candidates.push_back(path);
      }
    }
  }
  for (const std::string& candidate : candidates) {
    std::string reason;
    SharedLibrary library = SharedLibrary::open(candidate, reason);
    if (!library) {
      refuse(reason);  // the linker's words begin with the name
    } else if (accept(library, reason)) {
      return library;
    } else {
      refuse(candidate + ": " + reason);
    }
  }
  why_not = places.what + (places.chosen.empty() ? ": " : ", by " + places.variable + ": ") + reasons;
  if (places.chosen.empty() && !places.directories.empty()) {
    why_not += "; also looked in";
    for (const std::string& directory : places.directories) why_not += " " + directory;
  }
  return SharedLibrary();
}

}  // namespace fusewright
