#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "runtime/cache/disk_cache.h"
#include "runtime/compiler/compile_error.h"
#include "runtime/compiler/compile_once.h"
#include "runtime/compiler/compiled_library.h"

namespace fusewright {

// Compiles generated C++ with the system's compiler: FUSEWRIGHT_CXX, else CXX, g++, c++ or clang++. Threads
// may share it. Callers must not hold a lock that the log sink takes (the GIL).
class NativeCompiler {
 public:
  explicit NativeCompiler(DiskCache& cache);
  static NativeCompiler& instance();

  // Finds and tries the compiler, once.
  bool available(std::string* why_not = nullptr);

  // One library per source, in order. What is neither loaded nor in the cache is compiled, in parallel
  // processes (at most MAX_JOBS, else one per processor); the same source never twice, whoever asks.
  // Functions to be found by symbol() are extern "C" with default visibility. Throws CompileError with the
  // compiler's output; with FUSEWRIGHT_KEEP_SOURCES=<directory> each source compiled is kept there.
  std::vector<std::shared_ptr<CompiledLibrary>> compile(const std::vector<std::string>& sources);

  // What else must match for a cached library to be reused: the version of torch, say. Set before compiling.
  void set_key_salt(std::string salt);

  CompileStats stats() const { return libraries_.stats(); }
  KernelKey key_of(const std::string& source);  // throws CompileError without a compiler

 private:
  using Library = std::shared_ptr<CompiledLibrary>;
  struct Toolchain {
    std::vector<std::string> command;  // the program, and words that came with it ("ccache g++")
    std::string identity;              // path, time stamp and version
    std::vector<std::string> flags;    // before the source
    std::vector<std::string> link;     // after it

    std::string all_flags() const;
  };

  const Toolchain& toolchain();
  std::optional<Toolchain> try_command(const std::vector<std::string>& command, std::string* why_not);
  bool probe(Toolchain& toolchain, std::string* why_not);
  Library obtain(const Toolchain& toolchain, const std::string& key, const std::string& source);
  Library load_cached(const std::string& key);
  std::vector<std::byte> build(const Toolchain& toolchain, const std::string& source, const std::string& name);

  DiskCache& cache_;
  std::mutex toolchain_mutex_;
  std::optional<Toolchain> toolchain_;
  std::string no_toolchain_;  // why there is none

  std::mutex salt_mutex_;
  std::string salt_;
  CompileOnce<Library> libraries_;
};

}  // namespace fusewright
