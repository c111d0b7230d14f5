// Points test_emulated to the emulator, before anything asks for a GPU. ctest's ENVIRONMENT cannot: CMake's
// gtest_discover_tests takes a list of several variables apart and keeps the first.
#include <cstdlib>

namespace {

const bool emulated = [] {
  setenv("FUSEWRIGHT_TEST_EMULATOR", "1", 1);
  setenv("FUSEWRIGHT_TUNE", "0", 0);  // the processor's times mean nothing, and would take long
  setenv("FUSEWRIGHT_CUDA_LIBRARY", FUSEWRIGHT_CUDA_EMULATOR, 1);
  setenv("FUSEWRIGHT_NVRTC_LIBRARY", FUSEWRIGHT_NVRTC_EMULATOR, 1);
  return true;
}();

}  // namespace
