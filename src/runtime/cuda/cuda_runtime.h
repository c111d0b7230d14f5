#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/cache/disk_cache.h"
#include "runtime/compiler/compile_once.h"
#include "runtime/cuda/cuda.h"
#include "runtime/cuda/cuda_driver.h"
#include "runtime/cuda/nvrtc.h"

namespace fusewright::cuda {

// Where a Runtime finds its libraries.
struct RuntimeOptions {
  std::string cuda_library;              // an absolute path, then no other is tried
  std::string nvrtc_library;             // the same
  std::vector<std::string> directories;  // searched for NVRTC after the system's own
  int jobs = 1;                          // sources compiled at one time

  static RuntimeOptions from_environment();
};

// What cuda.h offers, as an object: tests make their own, with libraries of their own. The libraries are opened when
// something first asks for a GPU. Threads may share it.
class Runtime {
 public:
  Runtime(RuntimeOptions options, DiskCache& cache);
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;
  static Runtime& instance();

  bool available() { return found().driver != nullptr; }
  const std::string& unavailable_because() { return found().why_not; }
  void add_library_directories(const std::vector<std::string>& directories);
  void set_key_salt(std::string salt);

  int device_count() { return available() ? found().driver->device_count() : 0; }
  const Device& device(int index) { return driver().device(index); }
  // What kernels may use is what they are compiled for: an older architecture's, where NVRTC does not know the
  // device's.
  int major_of_kernels(int device) {
    driver();
    return found().majors[static_cast<size_t>(device)];
  }
  uint32_t largest_cluster(int device);

  std::vector<std::shared_ptr<Module>> compile(const std::vector<std::string>& sources, Architecture architecture);
  KernelKey key_of(const std::string& source, Architecture architecture);
  CompileStats stats() const { return modules_.stats(); }

  void launch(void* kernel, const std::string& name, int device, LaunchShape shape, const void* arguments,
              void* stream);
  int resident_blocks(void* kernel, int device, LaunchShape shape);
  bool is_capturing(void* stream);
  // From the begin to the end, on the device, of what `work` puts on the stream; waits for it. Not while a graph is
  // being recorded there.
  struct Duration {
    double microseconds;
    double waited_at_most;  // of these, for the host: nothing if all was there when it began
  };
  Duration duration(int device, void* stream, const std::function<void()>& work);
  void let_l2_forget(int device);

 private:
  struct Found {
    std::shared_ptr<Driver> driver;  // both, or neither and the reason
    std::shared_ptr<const Nvrtc> nvrtc;
    std::string why_not;
    std::vector<int> majors;  // for each device: that of the architecture that its kernels are compiled for
  };

  // One load once it is known: launches come through here.
  const Found& found() {
    const Found* known = found_.load(std::memory_order_acquire);
    return known != nullptr ? *known : find();
  }
  const Found& find();
  Driver& driver();  // throws Error if there is none
  std::shared_ptr<Module> obtain(const std::string& source, Architecture architecture, const Target& target,
                                 const std::string& key);

  DiskCache& cache_;
  std::mutex mutex_;
  RuntimeOptions options_;
  std::string salt_;
  std::unique_ptr<const Found> owned_;
  std::atomic<const Found*> found_{nullptr};
  // Modules stay for good: a CUDA graph that was recorded with their kernels may be replayed when the model is gone.
  CompileOnce<std::shared_ptr<Module>> modules_;
};

}  // namespace fusewright::cuda
