// On a real GPU, where there is one: the same Runtime, with the system's libraries.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "nvrtc_places.h"
#include "runtime/compiler/compile_error.h"
#include "runtime/cuda/cuda_runtime.h"
#include "test_support.h"

namespace fusewright {
namespace {

using namespace testing;
using cuda::CUresult;
using cuda::Runtime;

struct Arguments {
  const float* x;
  float* y;
  int64_t n;
  float factor;
};

// Through all the dynamic shared memory that it is given, to see that it is there.
constexpr const char* kernel = R"(
struct Arguments { const float* x; float* y; long long n; float factor; };
extern "C" __global__ void NAME(const __grid_constant__ Arguments a) {
  extern __shared__ float scratch[];
  unsigned bytes;
  asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(bytes));
  for (unsigned i = threadIdx.x; i < bytes / 4; i += blockDim.x) scratch[i] = a.factor;
  __syncthreads();
  const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  const float factor = bytes == 0 ? a.factor : scratch[bytes / 4 - 1];
  if (i < a.n) a.y[i] = a.x[i] * factor;
}
)";

std::string source(const std::string& name) {
  std::string text = kernel;
  return text.replace(text.find("NAME"), 4, name);
}

// Calls a function of the driver that only tests need.
template <class... Parameters>
void call(const char* name, Parameters... parameters) {
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  const auto function = reinterpret_cast<CUresult (*)(Parameters...)>(dlsym(library, name));
  ASSERT_NE(function, nullptr) << name;
  ASSERT_EQ(function(parameters...), 0) << name;
}

class CudaDeviceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!runtime.available()) GTEST_SKIP() << runtime.unavailable_because();
    std::string why_not;
    driver = cuda::Driver::open(options().cuda_library, why_not);
  }
  static cuda::RuntimeOptions options() {
    cuda::RuntimeOptions found = cuda::RuntimeOptions::from_environment();
    found.directories = package_directories();
    return found;
  }
  cuda::Architecture architecture() { return runtime.device(0).architecture; }

  // Memory of the device with these numbers in it.
  float* upload(const std::vector<float>& numbers) {
    uint64_t address = 0;
    const cuda::ContextScope scope(*driver, 0);
    call("cuMemAlloc_v2", &address, numbers.size() * sizeof(float));
    call("cuMemcpyHtoD_v2", address, numbers.data(), numbers.size() * sizeof(float));
    addresses.push_back(address);
    return reinterpret_cast<float*>(address);
  }
  std::vector<float> download(const float* place, size_t count) {
    std::vector<float> numbers(count);
    const cuda::ContextScope scope(*driver, 0);
    call("cuMemcpyDtoH_v2", static_cast<void*>(numbers.data()), reinterpret_cast<uint64_t>(place),
         count * sizeof(float));
    return numbers;
  }
  void TearDown() override {
    for (const uint64_t address : addresses) {
      const cuda::ContextScope scope(*driver, 0);
      call("cuMemFree_v2", address);
    }
  }
  void synchronize() {
    const cuda::ContextScope scope(*driver, 0);
    call("cuCtxSynchronize");
  }

  DiskCache cache{""};
  Runtime runtime{options(), cache};
  std::shared_ptr<cuda::Driver> driver;
  std::vector<uint64_t> addresses;
};

TEST_F(CudaDeviceTest, RunsFromAnyThreadWithAllTheSharedMemory) {
  const cuda::Device& device = runtime.device(0);
  std::printf("%s %d.%d, %d multiprocessors, %lld bytes of L2, %lld of shared memory\n", device.name.c_str(),
              device.architecture.major, device.architecture.minor, device.multiprocessors,
              static_cast<long long>(device.l2_bytes), static_cast<long long>(device.shared_bytes));
  const auto module = runtime.compile({source("scale")}, architecture())[0];
  const int64_t n = 1000;
  std::vector<float> numbers(n);
  for (int64_t i = 0; i < n; ++i) numbers[i] = static_cast<float>(i);
  float *x = upload(numbers), *y = upload(numbers);
  float factor = 2;
  for (uint32_t shared : {0u, 1024u, static_cast<uint32_t>(device.shared_bytes)}) {
    std::thread thread([&] {  // it has no context
      const Arguments arguments{x, y, n, factor};
      runtime.launch(module->kernel("scale", 0), "scale", 0, {4, 256, shared}, &arguments, nullptr);
    });
    thread.join();
    synchronize();
    const std::vector<float> result = download(y, n);
    for (int64_t i = 0; i < n; ++i) ASSERT_EQ(result[i], static_cast<float>(i) * factor) << shared;
    ++factor;
  }
}

TEST_F(CudaDeviceTest, LaunchesWhileAGraphIsRecordedAndLoadsBesideIt) {
  const auto modules = runtime.compile({source("first"), source("second")}, architecture());
  void* kernel = modules[0]->kernel("first", 0);
  const int64_t n = 64;
  float *x = upload(std::vector<float>(n, 1)), *y = upload(std::vector<float>(n, 0));
  const Arguments arguments{x, y, n, 5};
  const cuda::ContextScope scope(*driver, 0);
  void *stream = nullptr, *graph = nullptr;
  call("cuStreamCreate", &stream, 1u);  // non-blocking
  EXPECT_FALSE(runtime.is_capturing(stream));
  call("cuStreamBeginCapture_v2", stream, 0);  // the strictest mode, which is PyTorch's
  EXPECT_TRUE(runtime.is_capturing(stream));
  EXPECT_FALSE(runtime.is_capturing(nullptr));  // the stream does not wait for the default one, as PyTorch's do not
  runtime.launch(kernel, "first", 0, {1, 64, 0}, &arguments, stream);
  std::thread([&] { EXPECT_NE(modules[1]->kernel("second", 0), nullptr); }).join();
  call("cuStreamEndCapture", stream, &graph);
  ASSERT_NE(graph, nullptr);
  EXPECT_FALSE(runtime.is_capturing(stream));
  void* instance = nullptr;
  call("cuGraphInstantiateWithFlags", &instance, graph, 0ull);
  call("cuGraphLaunch", instance, stream);
  synchronize();
  EXPECT_EQ(download(y, n)[63], 5.0f);
}

TEST_F(CudaDeviceTest, DriverRefusesInItsOwnWords) {
  const auto module = runtime.compile({source("scale")}, architecture())[0];
  EXPECT_THROW(module->kernel("no_such_kernel", 0), Error);
  cuda::CUmodule broken = nullptr;
  const cuda::ContextScope scope(*driver, 0);
  const CUresult result = driver->call().cuModuleLoadData(&broken, "\x7f\x45\x4c\x46 no code");
  EXPECT_EQ(driver->describe("cuModuleLoadData", result).find("cuModuleLoadData: CUDA_ERROR_"), 0u);
}

// The fall-back for GPUs that are newer than NVRTC, through the driver's own compiler.
TEST_F(CudaDeviceTest, PtxLoads) {
  std::string why_not;
  const auto nvrtc =
      cuda::Nvrtc::open(options().nvrtc_library, options().directories, driver->version() / 1000, why_not);
  ASSERT_NE(nvrtc, nullptr) << why_not;
  const std::vector<std::byte> ptx = nvrtc->compile(source("scale"), {"compute_80", true});
  cuda::CUmodule module = nullptr;
  const cuda::ContextScope scope(*driver, 0);
  EXPECT_EQ(driver->call().cuModuleLoadData(&module, ptx.data()), 0);
  EXPECT_EQ(driver->call().cuModuleUnload(module), 0);
}

TEST_F(CudaDeviceTest, HostTime) {
  const auto module = runtime.compile({source("scale")}, architecture())[0];
  void* kernel = module->kernel("scale", 0);
  const Arguments arguments{nullptr, nullptr, 0, 1};
  const cuda::ContextScope scope(*driver, 0);
  const auto microseconds = [&](int count, auto&& function) {
    double best = 1e9;
    for (int repeat = 0; repeat < 20; ++repeat) {
      const auto begin = std::chrono::steady_clock::now();
      for (int i = 0; i < count; ++i) function();
      const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - begin;
      best = std::min(best, time.count() / count);
      synchronize();
    }
    return best;
  };
  const std::string name = "scale";
  void* parameters[] = {const_cast<Arguments*>(&arguments)};
  const double ours = microseconds(100, [&] { runtime.launch(kernel, name, 0, {1, 128, 0}, &arguments, nullptr); });
  const double alone = microseconds(100, [&] {
    driver->call().cuLaunchKernel(static_cast<cuda::CUfunction>(kernel), 1, 1, 1, 128, 1, 1, 0, nullptr, parameters,
                                  nullptr);
  });
  const double asking = microseconds(100, [&] { runtime.is_capturing(nullptr); });
  std::printf("launch %.2f us, of which the driver's %.2f; is_capturing %.3f us\n", ours, alone, asking);
  EXPECT_LT(ours - alone, 2.0);
}

}  // namespace
}  // namespace fusewright
