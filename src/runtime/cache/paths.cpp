#include "runtime/cache/paths.h"

#include <dirent.h>
#include <ftw.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <memory>

namespace fusewright {

std::vector<std::string> list_directory(const std::string& path) {
  std::vector<std::string> names;
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(::opendir(path.c_str()), ::closedir);
  if (!directory) return names;
  while (const dirent* entry = ::readdir(directory.get())) {
    std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(std::move(name));
  }
  return names;
}

void remove_tree(const std::string& path) {
  const auto remove_one = [](const char* name, const struct stat*, int, FTW*) { return std::remove(name), 0; };
  ::nftw(path.c_str(), remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

int make_directories(const std::string& path) {
  int first_error = 0;  // EACCES above the path says more than the ENOENT that follows from it
  for (size_t slash = path.find('/', 1);; slash = path.find('/', slash + 1)) {
    const int error = ::mkdir(path.substr(0, slash).c_str(), 0700) == 0 ? 0 : errno;
    if (slash == std::string::npos) return error == 0 || error == EEXIST ? 0 : (first_error ? first_error : error);
    if (first_error == 0 && error != EEXIST) first_error = error;
  }
}

std::string absolute_path(const std::string& path) {
  std::string whole = path;
  if (path.empty() || path[0] != '/') {
    const std::unique_ptr<char, void (*)(void*)> current(::getcwd(nullptr, 0), std::free);
    whole = std::string(current ? current.get() : "") + "/" + path;
  }
  std::vector<std::string> parts;
  for (size_t start = 0; start < whole.size();) {
    const size_t end = std::min(whole.find('/', start), whole.size());
    const std::string part = whole.substr(start, end - start);
    if (part == "..") {
      if (!parts.empty()) parts.pop_back();
    } else if (!part.empty() && part != ".") {
      parts.push_back(part);
    }
    start = end + 1;
  }
  std::string result;
  for (const std::string& part : parts) result += "/" + part;
  return result.empty() ? "/" : result;
}

std::string canonical_path(const std::string& path) {
  const std::unique_ptr<char, void (*)(void*)> resolved(::realpath(path.c_str(), nullptr), std::free);
  return resolved ? resolved.get() : path;
}

}  // namespace fusewright
