// The product's own way to a kernel, cuda.h, with the fake libraries in the place of the driver and NVRTC.
#include <cstdlib>
#include <filesystem>

#include "emulator/harness.h"
#include "fusewright/error.h"
#include "launch/divider.h"
#include "runtime/cuda/cuda_runtime.h"

namespace fwemu::testing {
namespace {

const std::string text = R"(
namespace {
struct Args {
  const float* x;
  float* out;
  fw::Divider columns;
  int count;
};
}
extern "C" __global__ void __launch_bounds__(128) rows(const __grid_constant__ Args a) {
  const fw::u32 i = fw::block_index() * 128 + fw::thread_index();
  if (i < a.count) a.out[i] = a.x[i] + fw::divide(i, a.columns).quotient;
}
extern "C" __global__ void broken(const __grid_constant__ Args a) {
  if (fw::thread_index() < 8) fw::barrier();
  fw::barrier();
}
)";

struct Arguments {
  const float* x;
  float* out;
  fusewright::Divider columns;
  int count;
};

TEST(EmulatedRuntime, CompilesCachesAndLaunches) {
  fusewright::cuda::RuntimeOptions options;
  options.cuda_library = FUSEWRIGHT_CUDA_EMULATOR;
  options.nvrtc_library = FUSEWRIGHT_NVRTC_EMULATOR;
  char directory[] = "/tmp/fusewright-emulator-test-XXXXXX";
  ASSERT_NE(mkdtemp(directory), nullptr);
  fusewright::DiskCache cache(std::string(directory) + "/cache");
  const DeviceArray<float> x(1000, [](size_t i) { return i; }), out(1000);
  const Arguments arguments = {x.data(), out.data(), fusewright::make_divider(77), 1000};
  for (int round = 0; round < 2; ++round) {  // the second from the disk
    fusewright::cuda::Runtime runtime(options, cache);
    ASSERT_TRUE(runtime.available()) << runtime.unavailable_because();
    EXPECT_EQ(runtime.device(0).architecture, (fusewright::cuda::Architecture{9, 0}));
    const auto module = runtime.compile({with_headers(text)}, {9, 0})[0];
    runtime.launch(module->kernel("rows", 0), "rows", 0, {8, 128, 0}, &arguments, nullptr);
    for (int i = 0; i < 1000; ++i) ASSERT_EQ(out[i], static_cast<float>(i + i / 77));
    EXPECT_FALSE(runtime.is_capturing(nullptr));
    try {
      runtime.launch(module->kernel("broken", 0), "broken", 0, {1, 32, 0}, &arguments, nullptr);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const fusewright::Error& error) {
      EXPECT_NE(std::string(error.what()).find("threads 0-7 wait at the barrier of line"), std::string::npos)
          << error.what();
    }
  }
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace fwemu::testing
