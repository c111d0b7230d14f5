// Compiling, loading and launching on the fake libraries.
#include <chrono>
#include <thread>

#include "cuda_support.h"

namespace fusewright {
namespace {

using namespace testing;
using cuda::Architecture;
using cuda::LaunchShape;
using cuda::Module;
using cuda::Runtime;

constexpr Architecture hopper{9, 0};

class CudaRuntimeTest : public CudaTest {};

TEST_F(CudaRuntimeTest, CompilesLoadsLaunchesAndCleansUp) {
  {
    Runtime runtime(options, cache);
    const auto modules = runtime.compile({source("a"), source("b"), source("a")}, hopper);
    ASSERT_EQ(modules.size(), 3u);
    EXPECT_EQ(modules[0], modules[2]);
    EXPECT_EQ(nvrtc.compilations, 2);
    EXPECT_EQ(cuda.count("cuModuleLoadData"), 0);
    void* kernel = modules[1]->kernel("b", 0);
    EXPECT_EQ(cuda.count("cuModuleLoadData cubin sm_90a"), 1);
    EXPECT_EQ(modules[1]->kernel("b", 0), kernel);
    EXPECT_HAS(message_of<Error>([&] { modules[1]->kernel("a", 0); }), "the module has no kernel 'a'");
    EXPECT_EQ(cuda.count("cuModuleLoadData"), 1);
    EXPECT_EQ(cuda.shared_of.at(kernel), 232448);

    const uint32_t arguments = 0x04030201;
    runtime.launch(kernel, "b", 0, {7, 256, 1024}, &arguments, reinterpret_cast<void*>(0x10));
    EXPECT_EQ(cuda.count("cuLaunchKernel b device 0 grid 7 block 256 shared 1024 stream 0x10"), 1);
    EXPECT_EQ(cuda.bytes, (std::vector<unsigned char>{1, 2, 3, 4}));
    EXPECT_EQ(cuda.modules.size(), 1u);
    EXPECT_EQ(cuda.contexts.at(0), 1);
  }
  // In this order: what a later call needs goes last.
  const std::vector<std::string> last(cuda.calls.end() - 4, cuda.calls.end());
  EXPECT_EQ(last, (std::vector<std::string>{"cuCtxPushCurrent 0", "cuModuleUnload", "cuCtxPopCurrent 0",
                                            "cuDevicePrimaryCtxRelease 0"}));
  EXPECT_EQ(log.count(), 0u) << log.text();
}

TEST_F(CudaRuntimeTest, TheOptions) {
  Runtime(options, cache).compile({source("k")}, hopper);
  EXPECT_EQ(nvrtc.options, (std::vector<std::string>{"--gpu-architecture=sm_90a", "--std=c++17", "--fmad=true",
                                                     "--ftz=false", "--prec-div=true", "--prec-sqrt=true"}));
}

TEST_F(CudaRuntimeTest, TargetsOfArchitectures) {
  std::string why_not;
  const auto target = [&](Architecture architecture) {
    const auto compiler = cuda::Nvrtc::open(FAKE_NVRTC, {}, 0, why_not);
    return (compiler->target(architecture).ptx ? "ptx " : "cubin ") + compiler->target(architecture).name;
  };
  EXPECT_EQ(target({7, 5}), "cubin sm_75");
  EXPECT_EQ(target({8, 0}), "cubin sm_80");
  EXPECT_EQ(target({8, 9}), "cubin sm_89");
  EXPECT_EQ(target({9, 0}), "cubin sm_90a");
  EXPECT_EQ(target({10, 0}), "cubin sm_100a");
  EXPECT_EQ(target({12, 0}), "cubin sm_120a");
  EXPECT_EQ(target({8, 7}), "ptx compute_86");    // between
  EXPECT_EQ(target({10, 3}), "ptx compute_100");  // 12.0 is known, but is later
  EXPECT_EQ(target({15, 0}), "ptx compute_120");
  EXPECT_HAS(message_of<CompileError>([&] { target({7, 0}); }), "cannot compile for a GPU of compute capability 7.0");
  nvrtc.major = 11;
  nvrtc.architectures = {52, 90, 80};
  EXPECT_EQ(target({9, 0}), "cubin sm_90");
  nvrtc.architectures = {};
  EXPECT_HAS(message_of<CompileError>([&] { target({9, 0}); }), "cannot compile");
}

TEST_F(CudaRuntimeTest, DeviceNewerThanNvrtcGetsPtx) {
  cuda.devices = {{"Fake of the future", 15, 0, 232448}, {"Another", 16, 0, 232448}};
  Runtime runtime(options, cache);
  const auto module = runtime.compile({source("k")}, {15, 0})[0];
  const int arguments = 1;
  runtime.launch(module->kernel("k", 0), "k", 0, {}, &arguments, nullptr);
  EXPECT_EQ(cuda.count("cuModuleLoadData ptx compute_120"), 1);
  // The same PTX is right for the other device, but as a module of its own.
  const auto other = runtime.compile({source("k")}, {16, 0})[0];
  EXPECT_NE(other->kernel("k", 1), nullptr);
  EXPECT_EQ(nvrtc.compilations, 1);
}

TEST_F(CudaRuntimeTest, CompileErrorHasTheLogAndTheKeptSource) {
  const ScopedVariable keep("FUSEWRIGHT_KEEP_SOURCES", directory / "kept");
  Runtime runtime(options, cache);
  const std::string bad = "#error no\n";
  const std::string message = message_of<CompileError>([&] { runtime.compile({source("k"), bad}, hopper); });
  EXPECT_HAS(message, "NVRTC 13.0 failed for sm_90a (NVRTC_ERROR_COMPILATION)\n");
  EXPECT_HAS(message, "kernel.cu(1): catastrophic error: #error directive\n");
  const std::string kept = directory / "kept/" + runtime.key_of(bad, hopper).hex() + ".cu";
  EXPECT_HAS(message, "the source is kept in " + kept);
  EXPECT_EQ(read_text(kept), bad);
  EXPECT_TRUE(nvrtc.programs.empty());
  EXPECT_EQ(runtime.stats().kernels_compiled, 1u);  // the good one
  nvrtc.errors["nvrtcCreateProgram"] = 1;
  EXPECT_HAS(message_of<CompileError>([&] { runtime.compile({source("c")}, hopper); }),
             "nvrtcCreateProgram: NVRTC_ERROR_OUT_OF_MEMORY");
  nvrtc.errors = {{"nvrtcGetCUBINSize", 1}};
  EXPECT_HAS(message_of<CompileError>([&] { runtime.compile({source("c")}, hopper); }), "nvrtcGetCUBINSize");
  nvrtc.errors = {};
  EXPECT_EQ(runtime.compile({source("c")}, hopper).size(), 1u);  // a failure is not for good
}

TEST_F(CudaRuntimeTest, CacheServesOtherProcessesAndDamageIsAMiss) {
  std::string key;
  for (int start = 0; start < 4; ++start) {
    DiskCache same_disk(root);
    Runtime runtime(options, same_disk);
    key = runtime.key_of(source("k"), hopper).hex();
    if (start == 2) fs::resize_file(root + "/" + key + ".entry", 150);
    const auto module = runtime.compile({source("k")}, hopper)[0];
    EXPECT_NE(module->kernel("k", 0), nullptr);
    EXPECT_EQ(runtime.compile({source("k")}, hopper)[0], module);
    const bool compiled = start == 0 || start == 2;
    EXPECT_EQ(runtime.stats().kernels_compiled, compiled ? 1u : 0u) << start;
    EXPECT_EQ(runtime.stats().cache_hits, compiled ? 0u : 1u) << start;
    EXPECT_EQ(runtime.stats().memory_hits, 1u);
  }
  EXPECT_EQ(nvrtc.compilations, 2);
  EXPECT_EQ(log.count(), 1u) << log.text();  // of the damage
}

TEST_F(CudaRuntimeTest, EveryPartOfTheKeyForcesAMiss) {
  const auto key = [&](const std::string& text, Architecture architecture, const char* salt = "torch 2") {
    Runtime runtime(options, cache);
    runtime.set_key_salt(salt);
    return runtime.key_of(text, architecture);
  };
  const KernelKey base = key("text", hopper);
  EXPECT_EQ(base.hex(), key("text", hopper).hex());
  EXPECT_EQ(base.source, "text");
  EXPECT_HAS(base.flags, "--fmad=true");
  EXPECT_HAS(base.compiler, "NVRTC 13.0 ");
  EXPECT_EQ(base.machine, "sm_90a");
  EXPECT_EQ(base.salt, "torch 2");
  EXPECT_FALSE(base.version.empty());
  std::set<std::string> keys = {base.hex(), key("text ", hopper).hex(), key("text", {8, 0}).hex(),
                                key("text", hopper, "torch 3").hex()};
  nvrtc.minor = 1;
  keys.insert(key("text", hopper).hex());
  nvrtc.minor = 0;
  // The same version in another file.
  fs::copy_file(FAKE_NVRTC, directory / "libnvrtc.so");
  make_old(directory / "libnvrtc.so");
  options.nvrtc_library = directory / "libnvrtc.so";
  keys.insert(key("text", hopper).hex());
  EXPECT_EQ(keys.size(), 6u);
}

TEST_F(CudaRuntimeTest, SideBySideAndNoMoreThanAllowed) {
  nvrtc.milliseconds = 20;
  options.jobs = 3;
  Runtime runtime(options, cache);
  std::vector<std::string> sources;
  for (int i = 0; i < 9; ++i) sources.push_back(source("k" + std::to_string(i)));
  // Two callers at once want the same, and together stay within the limit.
  std::vector<std::shared_ptr<Module>> other;
  std::thread caller([&] { other = runtime.compile(sources, hopper); });
  const auto modules = runtime.compile(sources, hopper);
  caller.join();
  EXPECT_EQ(modules, other);
  EXPECT_EQ(nvrtc.compilations, 9);
  EXPECT_EQ(nvrtc.most_at_once, 3);
  EXPECT_EQ(runtime.stats().kernels_compiled, 9u);
  EXPECT_EQ(runtime.stats().memory_hits, 9u);
  const ScopedVariable jobs("MAX_JOBS", "5");
  EXPECT_EQ(cuda::RuntimeOptions::from_environment().jobs, 5);
}

TEST_F(CudaRuntimeTest, TwoDevices) {
  cuda.devices = {{"A", 9, 0, 232448}, {"B", 9, 0, 232448}, {"C", 8, 0, 166912}};
  Runtime runtime(options, cache);
  const auto module = runtime.compile({source("k")}, hopper)[0];
  void *first = module->kernel("k", 0), *second = module->kernel("k", 1);
  EXPECT_NE(first, second);
  EXPECT_EQ(cuda.modules.size(), 2u);
  const int arguments = 1;
  for (int round = 0; round < 2; ++round) {
    runtime.launch(first, "k", 0, {}, &arguments, nullptr);
    runtime.launch(second, "k", 1, {}, &arguments, nullptr);
  }
  EXPECT_EQ(cuda.count("cuLaunchKernel k device 1"), 2);
  EXPECT_EQ(cuda.count("Retain"), 2);
  EXPECT_HAS(message_of<Error>([&] { module->kernel("k", 2); }),
             "kernel 'k' was compiled for compute capability 9.0, GPU 2 (C) has 8.0");
  EXPECT_HAS(message_of<Error>([&] { module->kernel("k", 3); }), "there is no GPU 3");
  EXPECT_HAS(message_of<Error>([&] { runtime.launch(first, "k", 3, {}, &arguments, nullptr); }), "there is no GPU 3");
}

// PyTorch's threads mostly have the right context already; then there is nothing to push. Others keep their own.
TEST_F(CudaRuntimeTest, TheThreadsContextIsUsedOrRestored) {
  cuda.devices = {{"A", 9, 0, 232448}, {"B", 9, 0, 232448}};
  Runtime runtime(options, cache);
  const auto module = runtime.compile({source("k")}, hopper)[0];
  void* kernel = module->kernel("k", 0);
  module->kernel("k", 1);
  std::string why_not;
  const auto driver = cuda::Driver::open(FAKE_CUDA, why_not);
  const auto current = [&] {
    cuda::CUcontext context = nullptr;
    driver->call().cuCtxGetCurrent(&context);
    return context;
  };
  EXPECT_EQ(current(), nullptr);
  const int arguments = 1;
  for (int device : {0, 1}) {
    const cuda::ContextScope scope(*driver, device);
    cuda.calls.clear();
    runtime.launch(kernel, "k", 0, {}, &arguments, nullptr);
    EXPECT_EQ(cuda.calls.size(), device == 0 ? 1u : 3u);
    EXPECT_EQ(current(), driver->context(device));
  }
  EXPECT_EQ(current(), nullptr);
}

TEST_F(CudaRuntimeTest, OutOfMemoryOnLoadIsNotForGood) {
  Runtime runtime(options, cache);
  const auto module = runtime.compile({source("k")}, hopper)[0];
  cuda.errors["cuModuleLoadData"] = 2;
  EXPECT_EQ(message_of<CompileError>([&] { module->kernel("k", 0); }),
            "a compiled kernel cannot be loaded on GPU 0 (Fake H100): cuModuleLoadData: CUDA_ERROR_OUT_OF_MEMORY (out "
            "of memory)");
  cuda.errors = {{"cuDevicePrimaryCtxRetain", 2}};
  Runtime fresh(options, cache);
  const auto other = fresh.compile({source("k")}, hopper)[0];
  EXPECT_HAS(message_of<Error>([&] { other->kernel("k", 0); }), "cuDevicePrimaryCtxRetain: CUDA_ERROR_OUT_OF_MEMORY");
  cuda.errors = {{"cuFuncSetAttribute", 12}};
  EXPECT_EQ(message_of<Error>([&] { module->kernel("k", 0); }), "cuFuncSetAttribute: error 12");
  cuda.errors = {};
  EXPECT_NE(module->kernel("k", 0), nullptr);
  EXPECT_NE(other->kernel("k", 0), nullptr);
}

TEST_F(CudaRuntimeTest, KernelsOwnSharedMemoryIsLeftOut) {
  cuda.static_shared_bytes = 4096;
  Runtime runtime(options, cache);
  void* kernel = runtime.compile({source("k")}, hopper)[0]->kernel("k", 0);
  EXPECT_EQ(cuda.shared_of.at(kernel), 232448 - 4096);
}

TEST_F(CudaRuntimeTest, LaunchesThatCannotBe) {
  Runtime runtime(options, cache);
  void* kernel = runtime.compile({source("k")}, hopper)[0]->kernel("k", 0);
  const int arguments = 1;
  const auto launch = [&](LaunchShape shape) {
    return message_of<Error>([&] { runtime.launch(kernel, "k", 0, shape, &arguments, nullptr); });
  };
  EXPECT_HAS(launch({0, 32, 0}), "(grid 0, block 32, 0 bytes of shared memory)");
  EXPECT_HAS(launch({1u << 31, 32, 0}), "grid 2147483648");
  EXPECT_HAS(launch({1, 0, 0}), "a block has 1 to 1024 threads");
  EXPECT_HAS(launch({1, 1025, 0}), "a block has 1 to 1024 threads");
  EXPECT_HAS(launch({1, 32, 232449}), "a block has at most 232448 bytes");
  EXPECT_EQ(cuda.count("cuLaunchKernel"), 0);
  cuda.errors["cuLaunchKernel"] = 701;
  EXPECT_EQ(launch({5, 1024, 16}),
            "kernel 'k' cannot be launched on GPU 0 (grid 5, block 1024, 16 bytes of shared memory): cuLaunchKernel: "
            "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES (too many resources requested for launch)");
  EXPECT_EQ(cuda.count("cuCtxPush"), cuda.count("cuCtxPop"));
  cuda.errors = {};
  EXPECT_EQ(launch({0x7fffffff, 1024, 232448}), "");
}

TEST_F(CudaRuntimeTest, LaunchesOfClusters) {
  Runtime runtime(options, cache);
  void* kernel = runtime.compile({source("k")}, hopper)[0]->kernel("k", 0);
  const int arguments = 1;
  const auto launch = [&](LaunchShape shape) {
    cuda.calls.clear();
    return message_of<Error>([&] { runtime.launch(kernel, "k", 0, shape, &arguments, nullptr); });
  };
  EXPECT_EQ(launch({.blocks = 12, .threads = 64, .cluster = 4}), "");
  EXPECT_EQ(cuda.count("cuLaunchKernelEx cluster 4 balanced"), 1);
  EXPECT_EQ(launch({.blocks = 12, .threads = 64, .overlaps = true, .cluster = 2}), "");
  EXPECT_EQ(cuda.count("cuLaunchKernelEx overlapping cluster 2 balanced"), 1);
  for (uint32_t cluster : {0u, 5u, 16u})
    EXPECT_HAS(launch({.blocks = 16, .threads = 64, .cluster = cluster}),
               "there are no clusters of " + std::to_string(cluster) + " blocks");
  EXPECT_EQ(cuda.count("cuLaunchKernel"), 0);
  cuda.devices = {{"A100", 8, 0, 166912}};
  Runtime older(options, cache);
  void* other = older.compile({source("k")}, {8, 0})[0]->kernel("k", 0);
  EXPECT_HAS(message_of<Error>(
                 [&] { older.launch(other, "k", 0, {.blocks = 4, .threads = 64, .cluster = 2}, &arguments, nullptr); }),
             "there are no clusters of 2 blocks");
}

TEST_F(CudaRuntimeTest, ClustersNeedANewerNvrtc) {
  nvrtc.major = 12;
  for (auto [minor, largest] : {std::pair{0, 1u}, {1, 8u}}) {
    nvrtc.minor = minor;
    Runtime runtime(options, cache);
    EXPECT_EQ(runtime.largest_cluster(0), largest) << minor;
    EXPECT_EQ(runtime.major_of_kernels(0), 9);
  }
}

// Their text then has neither clusters nor waits for the launch before it.
TEST_F(CudaRuntimeTest, KernelsForAnOlderArchitecture) {
  nvrtc.architectures = {80, 86};
  Runtime runtime(options, cache);
  EXPECT_EQ(runtime.major_of_kernels(0), 8);
  void* kernel = runtime.compile({source("k")}, hopper)[0]->kernel("k", 0);
  const int arguments = 1;
  cuda.calls.clear();
  runtime.launch(kernel, "k", 0, {.blocks = 4, .threads = 64, .overlaps = true}, &arguments, nullptr);
  EXPECT_EQ(cuda.count("cuLaunchKernelEx"), 0);
  EXPECT_HAS(message_of<Error>([&] {
               runtime.launch(kernel, "k", 0, {.blocks = 4, .threads = 64, .cluster = 2}, &arguments, nullptr);
             }),
             "there are no clusters of 2 blocks");
}

TEST_F(CudaRuntimeTest, LaunchesOverlapWhereTheyCan) {
  const int arguments = 1;
  const auto launched = [&](Architecture architecture) {
    Runtime runtime(options, cache);
    void* kernel = runtime.compile({source("k")}, architecture)[0]->kernel("k", 0);
    cuda.calls.clear();
    LaunchShape shape{5, 64, 16};
    runtime.launch(kernel, "k", 0, shape, &arguments, nullptr);
    EXPECT_EQ(cuda.count("cuLaunchKernelEx"), 0);
    shape.overlaps = true;
    runtime.launch(kernel, "k", 0, shape, &arguments, nullptr);
    EXPECT_EQ(cuda.count("cuLaunchKernel k device 0 grid 5 block 64 shared 16"), 2);
    return cuda.count("cuLaunchKernelEx");
  };
  EXPECT_EQ(launched(hopper), 1);
  cuda.version = 12020, nvrtc.major = 12;
  EXPECT_EQ(launched(hopper), 0);
  cuda.version = 13000, nvrtc.major = 13;
  cuda.devices = {{"A100", 8, 0, 166912}};
  EXPECT_EQ(launched({8, 0}), 0);
  cuda.devices = {{"H100", 9, 0, 232448}};
  cuda.errors["cuLaunchKernelEx"] = 701;
  Runtime runtime(options, cache);
  void* kernel = runtime.compile({source("k")}, hopper)[0]->kernel("k", 0);
  EXPECT_HAS(message_of<Error>([&] {
               runtime.launch(kernel, "k", 0, {.blocks = 1, .threads = 32, .overlaps = true}, &arguments, nullptr);
             }),
             "cuLaunchKernelEx: CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES");
}

TEST_F(CudaRuntimeTest, Capturing) {
  Runtime runtime(options, cache);
  EXPECT_FALSE(runtime.is_capturing(nullptr));
  cuda.capture_status = 1;
  EXPECT_TRUE(runtime.is_capturing(reinterpret_cast<void*>(0x10)));
  cuda.errors["cuStreamIsCapturing"] = 906;  // the default stream, while another is recorded
  EXPECT_TRUE(runtime.is_capturing(nullptr));
  cuda.errors["cuStreamIsCapturing"] = 201;  // no context yet
  EXPECT_FALSE(runtime.is_capturing(nullptr));
  EXPECT_HAS(message_of<Error>([&] { runtime.is_capturing(reinterpret_cast<void*>(0x10)); }),
             "cuStreamIsCapturing: CUDA_ERROR_INVALID_CONTEXT");
}

TEST_F(CudaRuntimeTest, ThreadsAtTheFirstCall) {
  cuda.devices = {{"A", 9, 0, 232448}, {"B", 9, 0, 232448}};
  nvrtc.milliseconds = 5;
  Runtime runtime(options, cache);
  std::vector<std::thread> threads;
  for (int i = 0; i < 16; ++i) {
    threads.emplace_back([&, i] {
      const auto module = runtime.compile({source("k"), source("other")}, hopper)[0];
      const int arguments = i;
      runtime.launch(module->kernel("k", i % 2), "k", i % 2, {}, &arguments, nullptr);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(nvrtc.compilations, 2);
  EXPECT_EQ(cuda.count("cuInit"), 1);
  EXPECT_EQ(cuda.count("Retain"), 2);
  EXPECT_EQ(cuda.count("cuModuleLoadData"), 2);
  EXPECT_EQ(cuda.count("cuLaunchKernel"), 16);
}

TEST_F(CudaRuntimeTest, AModuleMayOutliveItsRuntime) {
  std::shared_ptr<Module> module;
  {
    Runtime runtime(options, cache);
    module = runtime.compile({source("k")}, hopper)[0];
  }
  EXPECT_NE(module->kernel("k", 0), nullptr);
}

// The driver of the parent does not exist in a forked child: nothing may be called there, not even to clean up.
TEST_F(CudaRuntimeTest, AForkedChildLeavesTheDriverAlone) {
  auto runtime = std::make_unique<Runtime>(options, cache);
  runtime->compile({source("k")}, hopper)[0]->kernel("k", 0);
  const size_t calls = cuda.calls.size();
  EXPECT_EQ(run_in_child([&] {
              runtime.reset();
              return cuda.calls.size() == calls ? 0 : 1;
            }),
            0);
}

// Bounds the time that we add to the driver's own at each launch. It is about 25 ns; the bound allows for debug builds.
TEST_F(CudaRuntimeTest, LaunchIsCheap) {
  Runtime runtime(options, cache);
  void* kernel = runtime.compile({source("k")}, hopper)[0]->kernel("k", 0);
  std::string why_not;
  const auto driver = cuda::Driver::open(FAKE_CUDA, why_not);
  const cuda::ContextScope scope(*driver, 0);
  cuda.recording = false;
  const std::string name = "k";
  const int arguments = 1;
  double best = 1e9;
  for (int repeat = 0; repeat < 20; ++repeat) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < 1000; ++i) runtime.launch(kernel, name, 0, {4, 128, 0}, &arguments, nullptr);
    best = std::min(best, std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin).count());
  }
  RecordProperty("nanoseconds", std::to_string(best / 1000));
  EXPECT_LT(best / 1000, 1000.0);
}

}  // namespace
}  // namespace fusewright
