// Finding the driver and NVRTC: what is there, what is missing, what is too old or too new.
#include "cuda_support.h"
#include "runtime/cache/paths.h"

namespace fusewright {
namespace {

using namespace testing;
using cuda::Runtime;
using cuda::RuntimeOptions;

class CudaFindTest : public CudaTest {
 protected:
  // A Runtime with these options is unavailable; the reason.
  std::string reason() {
    Runtime runtime(options, cache);
    EXPECT_FALSE(runtime.available());
    EXPECT_EQ(runtime.device_count(), 0);
    EXPECT_EQ(log.count(), 0u) << log.text();  // telling it is the caller's business
    const std::string why = runtime.unavailable_because();
    EXPECT_HAS(message_of<Error>([&] { runtime.device(0); }), why);
    EXPECT_HAS(message_of<Error>([&] { runtime.is_capturing(nullptr); }), why);
    EXPECT_HAS(message_of<CompileError>([&] { runtime.compile({source("k")}, {9, 0}); }), why);
    EXPECT_TRUE(runtime.compile({}, {9, 0}).empty());
    EXPECT_EQ(why.find('\n'), std::string::npos) << why;
    return why;
  }
};

TEST_F(CudaFindTest, DevicesAndTheirProperties) {
  cuda.devices = {{"Fake A100", 8, 0, 166912}, {"Fake H100", 9, 0, 232448}};
  Runtime runtime(options, cache);
  EXPECT_TRUE(cuda.calls.empty());  // nothing is opened before somebody asks
  runtime.set_key_salt("x");
  EXPECT_EQ(runtime.stats().kernels_compiled, 0u);
  EXPECT_TRUE(cuda.calls.empty());
  ASSERT_TRUE(runtime.available()) << runtime.unavailable_because();
  EXPECT_EQ(runtime.unavailable_because(), "");
  EXPECT_EQ(cuda.calls[0], "cuDriverGetVersion");
  EXPECT_EQ(cuda.calls[1], "cuInit");
  ASSERT_EQ(runtime.device_count(), 2);
  EXPECT_EQ(runtime.device(0).name, "Fake A100");
  EXPECT_EQ(runtime.device(0).architecture, (cuda::Architecture{8, 0}));
  EXPECT_EQ(runtime.device(1).shared_bytes, 232448);
  EXPECT_EQ(runtime.device(1).multiprocessors, 132);
  EXPECT_EQ(runtime.device(1).l2_bytes, 50 << 20);
  EXPECT_HAS(message_of<Error>([&] { runtime.device(2); }), "there is no GPU 2");
  EXPECT_HAS(message_of<Error>([&] { runtime.device(-1); }), "there is no GPU -1");
  EXPECT_EQ(cuda.count("cuInit"), 1);
  EXPECT_EQ(cuda.count("Retain"), 0);  // no context, and so no memory on a device, before a kernel is wanted
}

TEST_F(CudaFindTest, NoDriver) {
  options.cuda_library = directory / "libcuda.so.1";
  const std::string why = reason();
  EXPECT_HAS(why, "no CUDA driver, by FUSEWRIGHT_CUDA_LIBRARY: " + options.cuda_library);
  EXPECT_HAS(why, "No such file");
  options.cuda_library = "libcuda.so.1";
  EXPECT_HAS(reason(), "'libcuda.so.1' is no absolute path");
}

TEST_F(CudaFindTest, DriverLacksAFunction) {
  options.cuda_library = FAKE_CUDA_INCOMPLETE;
  EXPECT_HAS(reason(), "it has no function cuStreamIsCapturing");
}

TEST_F(CudaFindTest, DriverTooOld) {
  cuda.version = 11040;
  EXPECT_HAS(reason(), "the driver is of CUDA 11.4, at least 11.8 is needed");
  EXPECT_EQ(cuda.count("cuInit"), 0);
}

TEST_F(CudaFindTest, NoDevice) {
  cuda.errors["cuInit"] = 100;
  EXPECT_HAS(reason(), "cuInit: CUDA_ERROR_NO_DEVICE (no CUDA-capable device is detected)");
  cuda.errors = {};
  cuda.devices.clear();
  EXPECT_HAS(reason(), "it has no device");
  cuda.devices = FakeCuda().devices;
  for (const char* function :
       {"cuDriverGetVersion", "cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetName", "cuDeviceGetAttribute"}) {
    cuda.errors = {{function, 12345}};
    EXPECT_HAS(reason(), std::string(function) + ": error 12345");
  }
}

TEST_F(CudaFindTest, NoNvrtc) {
  options.nvrtc_library = directory / "libnvrtc.so.13";
  EXPECT_HAS(reason(), "no NVRTC, by FUSEWRIGHT_NVRTC_LIBRARY: " + options.nvrtc_library);
  options.nvrtc_library = FAKE_NVRTC_INCOMPLETE;
  EXPECT_HAS(reason(), "it has no function nvrtcGetCUBIN");
  options.nvrtc_library = FAKE_NVRTC;
  nvrtc.errors["nvrtcVersion"] = 1;
  EXPECT_HAS(reason(), "nvrtcVersion: NVRTC_ERROR_OUT_OF_MEMORY");
}

// A driver cannot load what a later major version has compiled.
TEST_F(CudaFindTest, NvrtcNewerThanTheDriver) {
  cuda.version = 12080;
  EXPECT_HAS(reason(), "NVRTC 13.0 is too new for the driver, which is of CUDA 12");
  nvrtc.major = 12;
  nvrtc.minor = 9;
  Runtime runtime(options, cache);
  EXPECT_TRUE(runtime.available()) << runtime.unavailable_because();
}

TEST_F(CudaFindTest, NamesBestFirstThenDirectories) {
  const std::string first = directory / "first", second = directory / "second";
  make_directories(first);
  make_directories(second);
  symlink(FAKE_NVRTC_INCOMPLETE, (first + "/libfusewright-test.so.2").c_str());
  write_text(second + "/libfusewright-test.so.2", "no library");
  symlink(FAKE_NVRTC, (second + "/libfusewright-test.so.1").c_str());
  const LibraryPlaces places{
      "no such thing", "VARIABLE", "", {"libfusewright-test.so.2", "libfusewright-test.so.1"}, {first, second}};
  std::string why_not;
  const auto complete = [](const SharedLibrary& library, std::string& reason) {
    reason = "incomplete";
    return library.symbol("nvrtcGetCUBIN") != nullptr;
  };
  const SharedLibrary library = find_library(places, complete, why_not);
  ASSERT_TRUE(library);
  EXPECT_EQ(file_of_code(library.symbol("nvrtcVersion")), canonical_path(FAKE_NVRTC));
  EXPECT_FALSE(find_library(places, [](const SharedLibrary&, std::string&) { return false; }, why_not));
  EXPECT_EQ(why_not.find("no such thing: libfusewright-test.so.2: cannot open"), 0u) << why_not;
  EXPECT_HAS(why_not, first + "/libfusewright-test.so.2: ");
  EXPECT_HAS(why_not, second + "/libfusewright-test.so.2: ");
  EXPECT_HAS(why_not, "also looked in " + first + " " + second);
}

TEST_F(CudaFindTest, DirectoriesAfterTheSystemsOwn) {
  std::string ignored;
  for (const char* name : {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2"}) {
    if (SharedLibrary::open(name, ignored)) GTEST_SKIP() << "this system has its own " << name;
  }
  options.nvrtc_library = "";
  EXPECT_HAS(reason(), "no NVRTC: libnvrtc.so.13: cannot open");
  symlink(FAKE_NVRTC, (directory / "libnvrtc.so.12").c_str());
  Runtime runtime(options, cache);
  runtime.add_library_directories({directory / "nowhere", directory.path()});
  EXPECT_TRUE(runtime.available()) << runtime.unavailable_because();
}

// The functions of cuda.h are one Runtime that the environment describes. In a child, whose singletons are its own.
TEST_F(CudaFindTest, TheProcessHasOne) {
  const ScopedVariable a("FUSEWRIGHT_CUDA_LIBRARY", FAKE_CUDA), b("FUSEWRIGHT_NVRTC_LIBRARY", FAKE_NVRTC),
      c("FUSEWRIGHT_CACHE_DIR", root);
  EXPECT_EQ(run_in_child([&] {
              cuda::set_key_salt("salt");
              if (cuda::stats().kernels_compiled != 0 || !cuda.calls.empty()) return 1;
              if (!cuda::available() || cuda::device_count() != 1) return 2;
              const auto modules = cuda::compile({source("k")}, cuda::device(0).architecture);
              const int arguments = 7;
              cuda::launch(modules[0]->kernel("k", 0), "k", 0, {2, 32, 0}, &arguments, nullptr);
              if (cuda::is_capturing(nullptr) || cuda.count("cuLaunchKernel k device 0 grid 2 block 32") != 1) return 3;
              return cuda::stats().kernels_compiled == 1 && cuda.misuses == 0 ? 0 : 4;
            }),
            0);
  const ScopedVariable none("FUSEWRIGHT_CUDA_LIBRARY", directory / "none");
  EXPECT_EQ(run_in_child([] { return !cuda::available() && !cuda::unavailable_because().empty() ? 0 : 1; }), 0);
}

TEST_F(CudaFindTest, ThreadsAtOnceFindItOnce) {
  Runtime runtime(options, cache);
  std::vector<std::thread> threads;
  std::atomic<int> good{0};
  for (int i = 0; i < 16; ++i) threads.emplace_back([&] { good += runtime.available(); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(good, 16);
  EXPECT_EQ(cuda.count("cuInit"), 1);
}

}  // namespace
}  // namespace fusewright
