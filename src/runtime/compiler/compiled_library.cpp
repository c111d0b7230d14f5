#include "runtime/compiler/compiled_library.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>

#include "runtime/compiler/build_directory.h"
#include "runtime/compiler/compile_error.h"
#include "runtime/posix.h"

namespace fusewright {
namespace {

// An anonymous file with these bytes, which nobody can change any more; none where the system has no memfd.
UniqueFd make_memory_file(std::span<const std::byte> bytes) {
  constexpr unsigned noexec_seal = 8;  // MFD_NOEXEC_SEAL: some systems insist on it, kernels before 6.3 refuse it
  const unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  UniqueFd file(memfd_create("fusewright-kernel", flags | noexec_seal));
  if (!file) file = UniqueFd(memfd_create("fusewright-kernel", flags));
  if (!file || write_all(file.get(), bytes) != 0) return UniqueFd();
  fcntl(file.get(), F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW);
  return file;
}

// A path of the descriptor never used before. dlopen returns an already loaded library of the same *name*
// unread, and descriptor numbers come again; so a counter is written into the path, in binary: "/." for one,
// "/" for zero. It starts from its own address: the emulator's libraries have counters of theirs in one process.
std::string unique_path_of(int fd) {
  static std::atomic<uint64_t> counter{reinterpret_cast<uintptr_t>(&counter) * 0x9e3779b97f4a7c15};
  std::string path = "/proc/self/fd";
  for (uint64_t bits = ++counter; bits != 0; bits >>= 1) path += (bits & 1) != 0 ? "/." : "/";
  return path + "/" + std::to_string(fd);
}

void* load_library(const std::string& path, std::string& error) {
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  const char* message = handle == nullptr ? dlerror() : nullptr;
  if (message != nullptr) error = message;
  return handle;
}

}  // namespace

CompiledLibrary::CompiledLibrary(std::span<const std::byte> bytes) {
  std::string error = "no memory file";
  if (const UniqueFd file = make_memory_file(bytes)) {
    handle_ = load_library(unique_path_of(file.get()), error);
  }
  if (handle_ != nullptr) return;
  // No memfd or no /proc: a file that only we can reach, removed once it is mapped.
  const BuildDirectory directory;
  const std::string path = directory.file("kernel.so");
  write_file(path, bytes);
  handle_ = load_library(path, error);
  if (handle_ == nullptr) throw CompileError("cannot load a compiled kernel: " + error);
}

CompiledLibrary::CompiledLibrary(std::shared_ptr<const CompiledLibrary> whole, std::string suffix)
    : whole_(std::move(whole)), suffix_(std::move(suffix)) {}

CompiledLibrary::~CompiledLibrary() {
  if (handle_ != nullptr) dlclose(handle_);
}

void* CompiledLibrary::symbol(const char* name) const {
  return whole_ ? whole_->symbol((name + suffix_).c_str()) : dlsym(handle_, name);
}

}  // namespace fusewright
