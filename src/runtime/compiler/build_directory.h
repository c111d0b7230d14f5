#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "runtime/compiler/compile_error.h"
#include "runtime/posix.h"

namespace fusewright {

// The place for temporary files is missing, full or closed to us: no fault of the compiler or the source.
class BuildDirectoryError : public CompileError {
  using CompileError::CompileError;
};

// A fresh directory of ours alone (mode 0700) in TMPDIR, else /tmp; removed with all it holds.
class BuildDirectory {
 public:
  BuildDirectory();
  ~BuildDirectory();
  BuildDirectory(const BuildDirectory&) = delete;
  BuildDirectory& operator=(const BuildDirectory&) = delete;

  const std::string& path() const { return path_; }
  std::string file(const char* name) const { return path_ + "/" + name; }

 private:
  std::string path_;
  UniqueFd lock_;  // held for life; other processes remove directories that nobody holds
};

// Throws BuildDirectoryError.
void write_file(const std::string& path, std::span<const std::byte> bytes);

}  // namespace fusewright
