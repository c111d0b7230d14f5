#pragma once

#include <string>
#include <vector>

namespace fusewright {

// The few things we need of a file system, by POSIX. Not std::filesystem: PyTorch's libraries export copies of its
// functions from the compiler that built them, and where the dynamic linker picks those for our calls they crash.
std::vector<std::string> list_directory(
    const std::string& path);               // names, without . and ..; empty when it cannot be read
void remove_tree(const std::string& path);  // as far as it can
// Creates the missing directories of a path, for us alone; returns 0 or the errno that explains the failure.
int make_directories(const std::string& path);
std::string absolute_path(const std::string& path);   // without . and .. and doubled slashes; links stay
std::string canonical_path(const std::string& path);  // links followed; the path itself if that fails

}  // namespace fusewright
