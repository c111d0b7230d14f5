#pragma once
// Reads the counters of the emulated driver: "emulator_launches" and others of tests/emulator/libcuda.cpp.
#include <dlfcn.h>

#include <cstdint>
#include <cstdlib>

namespace fusewright::testing {

inline uint64_t emulator_count(const char* name) {
  void* library = dlopen(std::getenv("FUSEWRIGHT_CUDA_LIBRARY"), RTLD_NOW | RTLD_NOLOAD);
  auto* count = library == nullptr ? nullptr : reinterpret_cast<uint64_t (*)()>(dlsym(library, name));
  return count == nullptr ? 0 : count();
}

}  // namespace fusewright::testing
