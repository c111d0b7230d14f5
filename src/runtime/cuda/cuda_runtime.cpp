#include "runtime/cuda/cuda_runtime.h"

#include <chrono>
#include <cstdlib>

#include "base/log.h"
#include "ir/error.h"
#include "launch/cuda_arguments.h"
#include "runtime/compiler/compile_error.h"
#include "runtime/cuda/cuda_module.h"
#include "runtime/posix.h"
#include "runtime/thread_pool.h"

#ifndef FUSEWRIGHT_VERSION
#define FUSEWRIGHT_VERSION "0.0.0"
#endif

namespace fusewright::cuda {
namespace {

// What every GPU that we know can take; a kernel with many registers may take fewer threads, then the driver says so.
constexpr uint32_t most_blocks = 0x7fffffff, most_threads = 1024;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

[[noreturn]] void fail_launch(const std::string& name, int device, LaunchShape shape, const std::string& why) {
  fail("kernel '", name, "' cannot be launched on GPU ", device, " (grid ", shape.blocks, ", block ", shape.threads,
       ", ", shape.shared_bytes, " bytes of shared memory): ", why);
}

}  // namespace

RuntimeOptions RuntimeOptions::from_environment() {
  return {variable("FUSEWRIGHT_CUDA_LIBRARY"),
          variable("FUSEWRIGHT_NVRTC_LIBRARY"),
          {},
          positive_from_environment("MAX_JOBS", available_processors())};
}

Runtime::Runtime(RuntimeOptions options, DiskCache& cache)
    : cache_(cache), options_(std::move(options)), modules_(options_.jobs) {}

Runtime::~Runtime() = default;

Runtime& Runtime::instance() {
  return ProcessSingleton<Runtime>::get(
      [] { return new Runtime(RuntimeOptions::from_environment(), DiskCache::instance()); });
}

void Runtime::add_library_directories(const std::vector<std::string>& directories) {
  const std::lock_guard lock(mutex_);
  options_.directories.insert(options_.directories.end(), directories.begin(), directories.end());
}

void Runtime::set_key_salt(std::string salt) {
  const std::lock_guard lock(mutex_);
  salt_ = std::move(salt);
}

const Runtime::Found& Runtime::find() {
  std::string news;
  {
    const std::lock_guard lock(mutex_);
    if (owned_ != nullptr) return *owned_;  // another thread was first
    auto found = std::make_unique<Found>();
    // The driver first: where there is none, the big library of NVRTC is not even opened.
    found->driver = Driver::open(options_.cuda_library, found->why_not);
    if (found->driver != nullptr) {
      const int major = found->driver->version() / 1000;
      found->nvrtc = Nvrtc::open(options_.nvrtc_library, options_.directories, major, found->why_not);
      if (found->nvrtc == nullptr) found->driver = nullptr;
    }
    if (found->driver != nullptr) {
      news = "CUDA driver " + found->driver->version_text() + ", NVRTC " + found->nvrtc->version() + ":";
      for (int i = 0; i < found->driver->device_count(); ++i) {
        const Device& device = found->driver->device(i);
        news += " GPU " + std::to_string(i) + " is " + device.name + " (" + std::to_string(device.architecture.major) +
                "." + std::to_string(device.architecture.minor) + ").";
        try {
          found->majors.push_back(found->nvrtc->target(device.architecture).major);
        } catch (const CompileError&) {
          found->majors.push_back(0);  // whoever compiles for it is told
        }
      }
    }
    owned_ = std::move(found);
    found_.store(owned_.get(), std::memory_order_release);
  }
  if (!news.empty()) log(LogLevel::info, news);  // without the lock: a sink may take one of its own
  return *owned_;
}

Driver& Runtime::driver() {
  const Found& all = found();
  if (all.driver == nullptr) throw Error("no GPU can be used: " + all.why_not);
  return *all.driver;
}

KernelKey Runtime::key_of(const std::string& source, Architecture architecture) {
  driver();
  const Nvrtc& nvrtc = *found().nvrtc;
  const Target target = nvrtc.target(architecture);
  std::string flags;
  for (const std::string& option : Nvrtc::options(target)) flags += option + "\n";
  const std::lock_guard lock(mutex_);
  return {source, flags, nvrtc.identity(), target.name, salt_, FUSEWRIGHT_VERSION};
}

std::vector<std::shared_ptr<Module>> Runtime::compile(const std::vector<std::string>& sources,
                                                      Architecture architecture) {
  if (sources.empty()) return {};
  if (!available()) throw CompileError("no GPU can be used: " + unavailable_because());
  const Target target = found().nvrtc->target(architecture);
  // PTX of an older architecture serves several devices; a module knows the one it is for, so that is in its name.
  const std::string suffix = ":" + std::to_string(architecture.major) + "." + std::to_string(architecture.minor);
  std::vector<std::string> keys, names;
  for (const std::string& source : sources) {
    keys.push_back(key_of(source, architecture).hex());
    names.push_back(keys.back() + suffix);
  }
  return modules_.get(names, [&](size_t i) { return obtain(sources[i], architecture, target, keys[i]); });
}

std::shared_ptr<Module> Runtime::obtain(const std::string& source, Architecture architecture, const Target& target,
                                        const std::string& key) {
  const Found& all = found();
  const auto make = [&](std::vector<std::byte> image) {
    return std::make_shared<LoadedModule>(all.driver, architecture, std::move(image));
  };
  const auto recall = [&]() -> std::shared_ptr<Module> {
    auto bytes = cache_.get(key);
    if (!bytes) return nullptr;
    modules_.count_cache_hit();
    return make(std::move(*bytes));
  };
  if (auto module = recall()) return module;
  // One lock at a time in each thread, so no two processes can wait for each other.
  const CacheLock lock(cache_, key);
  if (auto module = recall()) return module;
  const std::string kept = keep_source(source, key + ".cu");
  std::vector<std::byte> image;
  try {
    image = modules_.in_slot([&] { return all.nvrtc->compile(source, target); });
  } catch (const CompileError& error) {
    throw CompileError(error.what() + where_source_is(kept));
  }
  cache_.put(key, image);
  modules_.count_compiled();
  return make(std::move(image));
}

// Wherever they run. NVRTC knows what the blocks send one another since 12.1: FW_SENDS of kernels/cuda_device.h.
uint32_t Runtime::largest_cluster(int device) {
  return major_of_kernels(device) >= 9 && found().nvrtc->version_number() >= 12010 ? largest_cluster_anywhere : 1;
}

void Runtime::launch(void* kernel, const std::string& name, int device, LaunchShape shape, const void* arguments,
                     void* stream) {
  Driver& driver = this->driver();
  const Device& properties = driver.device(device);
  if (shape.blocks == 0 || shape.blocks > most_blocks) fail_launch(name, device, shape, "so many blocks cannot be");
  if (shape.threads == 0 || shape.threads > most_threads) {
    fail_launch(name, device, shape, "a block has 1 to 1024 threads");
  }
  if (shape.shared_bytes > properties.shared_bytes) {
    fail_launch(name, device, shape, "a block has at most " + std::to_string(properties.shared_bytes) + " bytes");
  }
  const int major = major_of_kernels(device);
  if (shape.cluster == 0 || shape.cluster > largest_cluster(device) || shape.blocks % shape.cluster != 0) {
    fail_launch(name, device, shape, "there are no clusters of " + std::to_string(shape.cluster) + " blocks");
  }
  void* parameters[] = {const_cast<void*>(arguments)};
  const ContextScope scope(driver, device);
  CUlaunchAttribute attributes[3];
  unsigned count = 0;
  if (shape.overlaps && launches_overlap(major, driver.version())) {
    attributes[count++] = {CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, 0, {.whole = 1}};
  }
  if (shape.cluster > 1) {
    attributes[count++] = {CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, 0, {.dimensions = {shape.cluster, 1, 1}}};
    // By itself the device gives some processors more blocks than others, and some none (docs/kernels.md).
    attributes[count++] = {CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE,
                           0,
                           {.whole = CU_CLUSTER_SCHEDULING_POLICY_LOAD_BALANCING}};
  }
  if (count > 0) {
    const CUlaunchConfig config{
        shape.blocks, 1, 1, shape.threads, 1, 1, shape.shared_bytes, static_cast<CUstream>(stream), attributes, count};
    const CUresult result =
        driver.call().cuLaunchKernelEx(&config, static_cast<CUfunction>(kernel), parameters, nullptr);
    if (result != CUDA_SUCCESS) fail_launch(name, device, shape, driver.describe("cuLaunchKernelEx", result));
    return;
  }
  const CUresult result =
      driver.call().cuLaunchKernel(static_cast<CUfunction>(kernel), shape.blocks, 1, 1, shape.threads, 1, 1,
                                   shape.shared_bytes, static_cast<CUstream>(stream), parameters, nullptr);
  if (result != CUDA_SUCCESS) fail_launch(name, device, shape, driver.describe("cuLaunchKernel", result));
}

int Runtime::resident_blocks(void* kernel, int device, LaunchShape shape) {
  Driver& driver = this->driver();
  const ContextScope scope(driver, device);
  int blocks = 0;
  driver.check(driver.call().cuOccupancyMaxActiveBlocksPerMultiprocessor(
                   &blocks, static_cast<CUfunction>(kernel), static_cast<int>(shape.threads), shape.shared_bytes),
               "cuOccupancyMaxActiveBlocksPerMultiprocessor");
  return blocks;
}

Runtime::Duration Runtime::duration(int device, void* stream, const std::function<void()>& work) {
  Driver& driver = this->driver();
  const ContextScope scope(driver, device);
  const BesideCaptures beside(driver);
  const Event begin(driver), end(driver);
  begin.record(static_cast<CUstream>(stream));
  const auto launching = std::chrono::steady_clock::now();
  work();
  end.record(static_cast<CUstream>(stream));
  const std::chrono::duration<double, std::micro> host = std::chrono::steady_clock::now() - launching;
  const bool begun = begin.passed();
  end.wait();
  return {end.microseconds_since(begin), begun ? host.count() : 0};
}

void Runtime::let_l2_forget(int device) {
  Driver& driver = this->driver();
  const ContextScope scope(driver, device);
  const BesideCaptures beside(driver);
  driver.call().cuCtxResetPersistingL2Cache();  // a part of a device may not; nothing is wrong then
}

bool Runtime::is_capturing(void* stream) {
  Driver& driver = this->driver();
  int status = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUresult result = driver.call().cuStreamIsCapturing(static_cast<CUstream>(stream), &status);
  // The default stream itself is never recorded, but while a stream is that waits for it, it may not be used either.
  if (result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) return true;
  // The default stream in a thread that has no context yet.
  if (result == CUDA_ERROR_INVALID_CONTEXT && stream == nullptr) return false;
  driver.check(result, "cuStreamIsCapturing");
  return status != CU_STREAM_CAPTURE_STATUS_NONE;
}

}  // namespace fusewright::cuda
