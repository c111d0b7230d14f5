#pragma once
// NVIDIA's driver, libcuda.so.1, opened when the process first asks for a GPU. Our own declarations of the little we
// use: no header of CUDA is needed to build this.
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/cuda/cuda.h"
#include "runtime/cuda/shared_library.h"

namespace fusewright::cuda {

using CUresult = int;
using CUdevice = int;
using CUcontext = struct CUctx_st*;
using CUmodule = struct CUmod_st*;
using CUfunction = struct CUfunc_st*;
using CUstream = struct CUstream_st*;
using CUevent = struct CUevent_st*;

struct CUlaunchAttribute {
  int id;
  int pad;
  union {
    int whole;
    unsigned dimensions[3];
    char bytes[64];
  } value;
};
struct CUlaunchConfig {
  unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
  CUstream stream;
  CUlaunchAttribute* attributes;
  unsigned attribute_count;
};

// Every function of the driver that we call: symbol and parameters; all return CUresult. Each of them must exist in
// tests/emulator and in tests/runtime/fakes/cuda.cpp too, so the list stays short.
//
// Modules, not libraries (cuLibraryLoadData): those exist since CUDA 12 only, and they load a kernel on a device when
// it is first launched there, where an out-of-memory comes too late to choose another way and a recording of a CUDA
// graph is broken by it. A module for each device is loaded by Module::kernel, ahead of all that (under lazy loading,
// the driver's default, cuModuleGetFunction loads the kernel).
#define FUSEWRIGHT_CUDA_FUNCTIONS(X)                                                                                   \
  X(cuGetErrorName, (CUresult error, const char** name))                                                               \
  X(cuGetErrorString, (CUresult error, const char** text))                                                             \
  X(cuDriverGetVersion, (int* version))                                                                                \
  X(cuInit, (unsigned flags))                                                                                          \
  X(cuDeviceGetCount, (int* count))                                                                                    \
  X(cuDeviceGet, (CUdevice * device, int index))                                                                       \
  X(cuDeviceGetName, (char* name, int size, CUdevice device))                                                          \
  X(cuDeviceGetAttribute, (int* value, int attribute, CUdevice device))                                                \
  X(cuDevicePrimaryCtxRetain, (CUcontext * context, CUdevice device))                                                  \
  X(cuDevicePrimaryCtxRelease_v2, (CUdevice device))                                                                   \
  X(cuCtxGetCurrent, (CUcontext * context))                                                                            \
  X(cuCtxPushCurrent_v2, (CUcontext context))                                                                          \
  X(cuCtxPopCurrent_v2, (CUcontext * context))                                                                         \
  X(cuCtxResetPersistingL2Cache, ())                                                                                   \
  X(cuThreadExchangeStreamCaptureMode, (int* mode))                                                                    \
  X(cuModuleLoadData, (CUmodule * module, const void* image))                                                          \
  X(cuModuleUnload, (CUmodule module))                                                                                 \
  X(cuModuleGetFunction, (CUfunction * function, CUmodule module, const char* name))                                   \
  X(cuFuncGetAttribute, (int* value, int attribute, CUfunction function))                                              \
  X(cuFuncSetAttribute, (CUfunction function, int attribute, int value))                                               \
  X(cuOccupancyMaxActiveBlocksPerMultiprocessor, (int* blocks, CUfunction function, int threads, size_t shared_bytes)) \
  X(cuLaunchKernel,                                                                                                    \
    (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,       \
     unsigned block_z, unsigned shared_bytes, CUstream stream, void** parameters, void** extra))                       \
  X(cuLaunchKernelEx, (const CUlaunchConfig* config, CUfunction function, void** parameters, void** extra))            \
  X(cuStreamIsCapturing, (CUstream stream, int* status))                                                               \
  X(cuEventCreate, (CUevent * event, unsigned flags))                                                                  \
  X(cuEventRecord, (CUevent event, CUstream stream))                                                                   \
  X(cuEventQuery, (CUevent event))                                                                                     \
  X(cuEventSynchronize, (CUevent event))                                                                               \
  X(cuEventElapsedTime, (float* milliseconds, CUevent begin, CUevent end))                                             \
  X(cuEventDestroy_v2, (CUevent event))

// The values of CUDA's enums that we use.
enum : CUresult {
  CUDA_SUCCESS = 0,
  CUDA_ERROR_INVALID_CONTEXT = 201,
  CUDA_ERROR_NOT_FOUND = 500,
  CUDA_ERROR_NOT_READY = 600,
  CUDA_ERROR_STREAM_CAPTURE_IMPLICIT = 906,
};
enum DeviceAttribute : int {
  CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
  CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE = 38,
  CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
  CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
  CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97,
};
enum FunctionAttribute : int {
  CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES = 1,
  CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8,
};
enum LaunchAttribute : int {
  CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION = 4,
  CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE = 5,
  CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION = 6,
};
enum ClusterSchedulingPolicy : int { CU_CLUSTER_SCHEDULING_POLICY_LOAD_BALANCING = 2 };
enum CaptureMode : int { CU_STREAM_CAPTURE_MODE_RELAXED = 2 };
enum CaptureStatus : int { CU_STREAM_CAPTURE_STATUS_NONE = 0 };

// The driver and its devices. Threads may share it.
class Driver {
 public:
  struct Functions {
#define FUSEWRIGHT_MEMBER(name, parameters) CUresult(*name) parameters = nullptr;
    FUSEWRIGHT_CUDA_FUNCTIONS(FUSEWRIGHT_MEMBER)
#undef FUSEWRIGHT_MEMBER
  };

  // Nothing, and the reason, if there is no driver, if it is too old or if it has no device.
  static std::shared_ptr<Driver> open(const std::string& chosen, std::string& why_not);
  ~Driver();
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  const Functions& call() const { return functions_; }
  int version() const { return version_; }  // 12040 is 12.4
  std::string version_text() const;
  int device_count() const { return static_cast<int>(devices_.size()); }
  const Device& device(int index) const;  // throws Error if there is none of this number

  // The device's primary context, which PyTorch uses too. From its first use it is held until the end.
  CUcontext context(int device) {
    const CUcontext known = devices_[static_cast<size_t>(device)].context.load(std::memory_order_acquire);
    return known != nullptr ? known : retain_context(device);
  }

  // "cuInit: CUDA_ERROR_NO_DEVICE (no CUDA-capable device is detected)"
  std::string describe(const char* function, CUresult error) const;
  void check(CUresult result, const char* function) const;  // throws Error

  // Whether this process may still call the driver: a forked child of the one that opened it may not.
  bool usable_here() const;

 private:
  struct PerDevice {
    Device properties;
    CUdevice handle = 0;
    std::atomic<CUcontext> context{nullptr};
  };

  Driver() = default;
  bool start(std::string& why_not);
  CUcontext retain_context(int device);

  Functions functions_;
  int version_ = 0;
  int process_ = 0;
  std::mutex mutex_;
  std::vector<PerDevice> devices_;
};

// Makes a device's primary context the thread's current one until the end of the scope, unless it is already.
class ContextScope {
 public:
  ContextScope(Driver& driver, int device) : driver_(driver) {
    const CUcontext wanted = driver.context(device);
    CUcontext current = nullptr;
    driver.check(driver.call().cuCtxGetCurrent(&current), "cuCtxGetCurrent");
    if (current == wanted) return;
    driver.check(driver.call().cuCtxPushCurrent_v2(wanted), "cuCtxPushCurrent");
    pushed_ = true;
  }
  ~ContextScope() {
    CUcontext ours = nullptr;
    if (pushed_) driver_.call().cuCtxPopCurrent_v2(&ours);
  }
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;

 private:
  Driver& driver_;
  bool pushed_ = false;
};

// While another thread records a CUDA graph, a call that allocates on the device or waits for it breaks the recording
// unless the calling thread declares that its calls have nothing to do with it.
class BesideCaptures {
 public:
  explicit BesideCaptures(const Driver& driver) : driver_(driver) {
    driver_.check(driver_.call().cuThreadExchangeStreamCaptureMode(&mode_), "cuThreadExchangeStreamCaptureMode");
  }
  ~BesideCaptures() { driver_.call().cuThreadExchangeStreamCaptureMode(&mode_); }
  BesideCaptures(const BesideCaptures&) = delete;
  BesideCaptures& operator=(const BesideCaptures&) = delete;

 private:
  const Driver& driver_;
  int mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;  // the thread's own after the exchange
};

// A moment on a stream.
class Event {
 public:
  explicit Event(const Driver& driver) : driver_(driver) {
    driver_.check(driver_.call().cuEventCreate(&event_, 0), "cuEventCreate");
  }
  ~Event() { driver_.call().cuEventDestroy_v2(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void record(CUstream stream) const { driver_.check(driver_.call().cuEventRecord(event_, stream), "cuEventRecord"); }
  bool passed() const {
    const CUresult result = driver_.call().cuEventQuery(event_);
    if (result != CUDA_ERROR_NOT_READY) driver_.check(result, "cuEventQuery");
    return result == CUDA_SUCCESS;
  }
  void wait() const { driver_.check(driver_.call().cuEventSynchronize(event_), "cuEventSynchronize"); }
  double microseconds_since(const Event& begin) const {
    float milliseconds = 0;
    driver_.check(driver_.call().cuEventElapsedTime(&milliseconds, begin.event_, event_), "cuEventElapsedTime");
    return 1000.0 * milliseconds;
  }

 private:
  const Driver& driver_;
  CUevent event_ = nullptr;
};

}  // namespace fusewright::cuda
