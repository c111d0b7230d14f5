#pragma once

#include <glob.h>

#include <string>
#include <vector>

namespace fusewright::testing {

// Where packages for Python keep NVRTC: the one of the test extra (`make setup`), or torch's own.
inline std::vector<std::string> package_directories() {
  std::vector<std::string> directories;
  for (const char* place : {FUSEWRIGHT_SOURCE_DIR "/.venv/lib/python*/site-packages", FUSEWRIGHT_SITE_PACKAGES}) {
    glob_t found{};
    if (glob((std::string(place) + "/nvidia/*/lib").c_str(), 0, nullptr, &found) == 0) {
      directories.insert(directories.end(), found.gl_pathv, found.gl_pathv + found.gl_pathc);
    }
    globfree(&found);
  }
  return directories;
}

}  // namespace fusewright::testing
