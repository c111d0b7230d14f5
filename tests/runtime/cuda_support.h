#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include "runtime/compiler/compile_error.h"
#include "runtime/cuda/cuda_runtime.h"
#include "runtime/fakes/fakes.h"
#include "test_support.h"

namespace fusewright::testing {

// A Runtime on the fake libraries, whose state is as new for each test.
class CudaTest : public ::testing::Test {
 protected:
  CudaTest() {
    reset(cuda);
    reset(nvrtc);
    options.cuda_library = FAKE_CUDA;
    options.nvrtc_library = FAKE_NVRTC;
    options.jobs = 4;
  }
  // Whatever a test does, nothing may be left and no call may have been wrong.
  void TearDown() override {
    EXPECT_EQ(cuda.misuses, 0);
    EXPECT_TRUE(cuda.modules.empty());
    EXPECT_EQ(cuda.events, 0);
    for (const auto& [device, count] : cuda.contexts) EXPECT_EQ(count, 0) << "contexts of device " << device;
    EXPECT_TRUE(nvrtc.programs.empty());
  }

  template <class Fake>
  static Fake& state_of(const char* library, const char* function) {
    void* handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) throw std::runtime_error(dlerror());
    return *reinterpret_cast<Fake* (*)()>(dlsym(handle, function))();
  }
  template <class Fake>
  static void reset(Fake& fake) {
    fake.~Fake();
    new (&fake) Fake();
  }

  static std::string source(const std::string& name) {
    return "extern \"C\" __global__ void " + name + "(Arguments arguments) {}\n";
  }

  FakeCuda& cuda = state_of<FakeCuda>(FAKE_CUDA, "fake_cuda");
  FakeNvrtc& nvrtc = state_of<FakeNvrtc>(FAKE_NVRTC, "fake_nvrtc");
  TemporaryDirectory directory;
  const std::string root = directory / "cache";
  DiskCache cache{root};
  cuda::RuntimeOptions options;
  LogCapture log;
};

// Returns the message of the exception that an expression throws; empty if it throws none of this type.
template <class Exception, class Function>
std::string message_of(Function function) {
  try {
    function();
  } catch (const Exception& error) {
    return error.what();
  }
  return "";
}

inline ::testing::AssertionResult has(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "'" << part << "' is not in: " << text;
}
#define EXPECT_HAS(text, part) EXPECT_TRUE(has(text, part))

}  // namespace fusewright::testing
