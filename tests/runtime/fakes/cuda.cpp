// A libcuda for tests: fakes.h. One of its functions is left out where FAKE_INCOMPLETE is defined.
#include "runtime/cuda/cuda_driver.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <utility>

#include "runtime/fakes/fakes.h"

namespace fusewright::cuda {

struct CUctx_st {
  int device;
};
struct CUmod_st {
  int device;
  std::string image;
};
struct CUfunc_st {
  CUmodule module;  // nullptr when that is unloaded
  int device;
  std::string name;
};

struct CUevent_st {
  int device;
  double time = -1;  // microseconds; less than 0: not recorded
};

using testing::FakeCuda;

// The signatures are the table's.
extern "C" {
#define DECLARE(name, parameters) CUresult name parameters;
FUSEWRIGHT_CUDA_FUNCTIONS(DECLARE)
#undef DECLARE
}

namespace {

constexpr CUresult INVALID_VALUE = 1, INVALID_HANDLE = 400, OK = CUDA_SUCCESS;

FakeCuda state;
CUctx_st contexts[8] = {{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}};
std::set<CUfunc_st*> functions;  // never freed: a stale one must be noticed, not crash
thread_local std::vector<CUcontext> stack;
thread_local int capture_mode = 0;
thread_local testing::FakeLaunch launching;  // what cuLaunchKernelEx knows beside the rest

// Records a call; the error that the test wants of it.
CUresult enter(const std::string& call) {
  const std::lock_guard lock(state.mutex);
  if (state.recording) state.calls.push_back(call);
  const auto error = state.errors.find(call.substr(0, call.find(' ')));
  return error != state.errors.end() ? error->second : CUDA_SUCCESS;
}

CUresult misuse(CUresult error) {
  const std::lock_guard lock(state.mutex);
  ++state.misuses;
  return error;
}

CUcontext current() { return stack.empty() ? nullptr : stack.back(); }

}  // namespace

extern "C" {

FakeCuda* fake_cuda() { return &state; }

CUresult cuGetErrorName(CUresult error, const char** name) {
  static const std::map<int, const char*> names = {{2, "CUDA_ERROR_OUT_OF_MEMORY"},
                                                   {100, "CUDA_ERROR_NO_DEVICE"},
                                                   {201, "CUDA_ERROR_INVALID_CONTEXT"},
                                                   {701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"}};
  const auto found = names.find(error);
  *name = found != names.end() ? found->second : nullptr;
  return found != names.end() ? OK : INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult error, const char** text) {
  static const std::map<int, const char*> texts = {{2, "out of memory"},
                                                   {100, "no CUDA-capable device is detected"},
                                                   {701, "too many resources requested for launch"}};
  const auto found = texts.find(error);
  *text = found != texts.end() ? found->second : nullptr;
  return found != texts.end() ? OK : INVALID_VALUE;
}

CUresult cuDriverGetVersion(int* version) {
  *version = state.version;
  return enter("cuDriverGetVersion");
}

CUresult cuInit(unsigned flags) { return flags != 0 ? misuse(INVALID_VALUE) : enter("cuInit"); }

CUresult cuDeviceGetCount(int* count) {
  *count = static_cast<int>(state.devices.size());
  return enter("cuDeviceGetCount");
}

CUresult cuDeviceGet(CUdevice* device, int index) {
  *device = index + 40;  // a handle is no number of ours
  return enter("cuDeviceGet");
}

CUresult cuDeviceGetName(char* name, int size, CUdevice device) {
  std::snprintf(name, static_cast<size_t>(size), "%s", state.devices.at(device - 40).name.c_str());
  return enter("cuDeviceGetName");
}

CUresult cuDeviceGetAttribute(int* value, int attribute, CUdevice handle) {
  const testing::FakeDevice& device = state.devices.at(handle - 40);
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      *value = device.major;
      break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
      *value = device.minor;
      break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
      *value = 132;
      break;
    case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE:
      *value = 50 << 20;
      break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
      *value = device.shared_bytes;
      break;
    default:
      return misuse(INVALID_VALUE);
  }
  return enter("cuDeviceGetAttribute");
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  const CUresult result = enter("cuDevicePrimaryCtxRetain " + std::to_string(device - 40));
  if (result != CUDA_SUCCESS) return result;
  const std::lock_guard lock(state.mutex);
  ++state.contexts[device - 40];
  *context = &contexts[device - 40];
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  const CUresult result = enter("cuDevicePrimaryCtxRelease " + std::to_string(device - 40));
  const std::lock_guard lock(state.mutex);
  --state.contexts[device - 40];
  return result;
}

CUresult cuCtxGetCurrent(CUcontext* context) {
  *context = current();
  return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent_v2(CUcontext context) {
  stack.push_back(context);
  return enter("cuCtxPushCurrent " + std::to_string(context->device));
}

CUresult cuCtxPopCurrent_v2(CUcontext* context) {
  if (stack.empty()) return misuse(CUDA_ERROR_INVALID_CONTEXT);
  *context = current();
  stack.pop_back();
  return enter("cuCtxPopCurrent " + std::to_string((*context)->device));
}

CUresult cuThreadExchangeStreamCaptureMode(int* mode) {
  std::swap(*mode, capture_mode);
  return enter("cuThreadExchangeStreamCaptureMode " + std::to_string(capture_mode));
}

CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  const CUcontext context = current();
  if (context == nullptr || capture_mode != CU_STREAM_CAPTURE_MODE_RELAXED) return misuse(CUDA_ERROR_INVALID_CONTEXT);
  const std::string text = static_cast<const char*>(image);
  const CUresult result = enter("cuModuleLoadData " + text.substr(0, text.find('\n')));
  if (result != CUDA_SUCCESS) return result;
  const std::lock_guard lock(state.mutex);
  *module = new CUmod_st{context->device, text};
  state.modules[*module] = context->device;
  return CUDA_SUCCESS;
}

CUresult cuModuleUnload(CUmodule module) {
  const CUcontext context = current();
  {
    const std::lock_guard lock(state.mutex);
    if (context == nullptr || state.modules.erase(module) == 0 || module->device != context->device) {
      ++state.misuses;
      return INVALID_HANDLE;
    }
    for (CUfunc_st* function : functions)
      if (function->module == module) function->module = nullptr;
    delete module;
  }
  return enter("cuModuleUnload");
}

CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  const CUresult result = enter(std::string("cuModuleGetFunction ") + name);
  if (result != CUDA_SUCCESS) return result;
  const std::lock_guard lock(state.mutex);
  if (module->image.find(std::string(" ") + name + "(") == std::string::npos) return CUDA_ERROR_NOT_FOUND;
  *function = new CUfunc_st{module, module->device, name};
  functions.insert(*function);
  return CUDA_SUCCESS;
}

CUresult cuFuncGetAttribute(int* value, int attribute, CUfunction) {
  if (attribute != CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES) return misuse(INVALID_VALUE);
  *value = state.static_shared_bytes;
  return enter("cuFuncGetAttribute");
}

CUresult cuFuncSetAttribute(CUfunction function, int attribute, int value) {
  const bool fits = value >= 0 && value + state.static_shared_bytes <= state.devices.at(function->device).shared_bytes;
  if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES || !fits) return misuse(INVALID_VALUE);
  const CUresult result = enter("cuFuncSetAttribute");
  const std::lock_guard lock(state.mutex);
  state.shared_of[function] = value;
  return result;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction function, int threads, size_t) {
  const CUcontext context = current();
  if (context == nullptr || context->device != function->device) return misuse(CUDA_ERROR_INVALID_CONTEXT);
  *blocks = 2048 / threads;
  return enter("cuOccupancyMaxActiveBlocksPerMultiprocessor");
}

CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                        unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream stream, void** parameters,
                        void** extra) {
  const CUcontext context = current();
  if (context == nullptr || context->device != function->device) return misuse(CUDA_ERROR_INVALID_CONTEXT);
  if (function->module == nullptr || extra != nullptr) return misuse(INVALID_HANDLE);
  if (grid_x == 0 || grid_y == 0 || grid_z == 0 || block_y != 1 || block_z != 1) return misuse(INVALID_VALUE);
  if (state.launched != nullptr) {
    testing::FakeLaunch launch = std::exchange(launching, {});
    launch.name = function->name;
    launch.source = &function->module->image;
    launch.grid[0] = grid_x, launch.grid[1] = grid_y, launch.grid[2] = grid_z;
    launch.block = block_x;
    launch.shared_bytes = shared_bytes;
    launch.arguments = static_cast<const unsigned char*>(parameters[0]);
    state.launched(launch);
  }
  if (!state.recording) return CUDA_SUCCESS;
  char text[256];
  const std::string rest = grid_y * grid_z == 1 ? "" : " x " + std::to_string(grid_y) + " x " + std::to_string(grid_z);
  std::snprintf(text, sizeof text, "cuLaunchKernel %s device %d grid %u%s block %u shared %u stream %p",
                function->name.c_str(), function->device, grid_x, rest.c_str(), block_x, shared_bytes,
                static_cast<void*>(stream));
  const CUresult result = enter(text);
  const std::lock_guard lock(state.mutex);
  const auto* bytes = static_cast<const unsigned char*>(parameters[0]);
  state.bytes.assign(bytes, bytes + 4);
  return result;
}

CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** parameters, void** extra) {
  std::string asked;
  for (unsigned i = 0; i < config->attribute_count; ++i) {
    const CUlaunchAttribute& attribute = config->attributes[i];
    if (attribute.id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION && attribute.value.whole == 1)
      asked += " overlapping";
    else if (const auto& by = attribute.value.dimensions;
             attribute.id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION && by[0] * by[1] * by[2] > 1)
      asked += " cluster " + std::to_string(by[0]) +
               (by[1] * by[2] == 1 ? "" : " x " + std::to_string(by[1]) + " x " + std::to_string(by[2]));
    else if (attribute.id == CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE &&
             attribute.value.whole == CU_CLUSTER_SCHEDULING_POLICY_LOAD_BALANCING)
      asked += " balanced";
    else
      return misuse(INVALID_VALUE);
  }
  if (asked.empty()) return misuse(INVALID_VALUE);
  launching = {};
  for (unsigned i = 0; i < config->attribute_count; ++i) {
    const CUlaunchAttribute& attribute = config->attributes[i];
    launching.overlaps |= attribute.id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    if (attribute.id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
      std::copy_n(attribute.value.dimensions, 3, launching.cluster);
  }
  const CUresult result = enter("cuLaunchKernelEx" + asked);
  if (result != CUDA_SUCCESS) return result;
  return cuLaunchKernel(function, config->grid_x, config->grid_y, config->grid_z, config->block_x, config->block_y,
                        config->block_z, config->shared_bytes, config->stream, parameters, extra);
}

CUresult cuEventCreate(CUevent* event, unsigned flags) {
  const CUcontext context = current();
  if (context == nullptr || flags != 0) return misuse(INVALID_VALUE);
  const CUresult result = enter("cuEventCreate");
  if (result != CUDA_SUCCESS) return result;
  const std::lock_guard lock(state.mutex);
  *event = new CUevent_st{context->device};
  ++state.events;
  return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent event, CUstream stream) {
  const CUcontext context = current();
  if (context == nullptr || context->device != event->device) return misuse(CUDA_ERROR_INVALID_CONTEXT);
  if (state.capture_status != 0 && stream != nullptr) return misuse(INVALID_VALUE);
  const CUresult result = enter("cuEventRecord");
  const std::lock_guard lock(state.mutex);
  event->time = state.now;
  return result;
}

CUresult cuEventQuery(CUevent event) {
  if (event->time < 0 || capture_mode != CU_STREAM_CAPTURE_MODE_RELAXED) return misuse(INVALID_HANDLE);
  const CUresult result = enter("cuEventQuery");
  const std::lock_guard lock(state.mutex);
  return result == CUDA_SUCCESS && event->time > state.host_now ? CUDA_ERROR_NOT_READY : result;
}

CUresult cuEventSynchronize(CUevent event) {
  if (event->time < 0 || capture_mode != CU_STREAM_CAPTURE_MODE_RELAXED) return misuse(INVALID_HANDLE);
  const CUresult result = enter("cuEventSynchronize");
  const std::lock_guard lock(state.mutex);
  state.host_now = std::max(state.host_now, event->time);
  return result;
}

CUresult cuCtxResetPersistingL2Cache() { return enter("cuCtxResetPersistingL2Cache"); }

CUresult cuEventElapsedTime(float* milliseconds, CUevent begin, CUevent end) {
  if (begin->time < 0 || end->time < 0) return misuse(INVALID_HANDLE);
  *milliseconds = static_cast<float>((end->time - begin->time) / 1000);
  return enter("cuEventElapsedTime");
}

CUresult cuEventDestroy_v2(CUevent event) {
  const CUresult result = enter("cuEventDestroy");
  const std::lock_guard lock(state.mutex);
  delete event;
  --state.events;
  return result;
}

#ifndef FAKE_INCOMPLETE
CUresult cuStreamIsCapturing(CUstream, int* status) {
  *status = state.capture_status;
  return enter("cuStreamIsCapturing");
}
#endif

}  // extern "C"
}  // namespace fusewright::cuda
