// The driver, as far as runtime/cuda/cuda_driver.h asks for it: one device, whose memory is the process's and whose
// kernels run before cuLaunchKernel returns. A fault that the emulator finds is the result of the launch, and its
// diagnosis the text of that error.
//
// FUSEWRIGHT_EMULATOR_SEED            the order in which threads and blocks run (1)
// FUSEWRIGHT_EMULATOR_THREADS         how many blocks run at a time (one a processor, at most 8)
// FUSEWRIGHT_EMULATOR_ARCHITECTURE    90 for compute capability 9.0, the default
// FUSEWRIGHT_EMULATOR_MULTIPROCESSORS (132)
// FUSEWRIGHT_EMULATOR_CAPTURING       1: as if a CUDA graph were being recorded on every stream (0)
#include "runtime/cuda/cuda_driver.h"

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <map>
#include <mutex>

#include "emulator/launch.h"
#include "emulator/memory.h"
#include "emulator/module.h"
#include "emulator/tensor_map.h"

using namespace fusewright::cuda;

struct fusewright::cuda::CUfunc_st {
  std::string name;
  fwemu::Image* image;
  unsigned shared_limit = 48 << 10;
};

struct fusewright::cuda::CUmod_st {
  std::unique_ptr<fwemu::Image> image;
  std::mutex mutex;
  std::map<std::string, CUfunc_st> functions;
};

struct fusewright::cuda::CUevent_st {
  std::chrono::steady_clock::time_point time;
};

namespace {

enum : CUresult {
  invalid_value = 1,
  invalid_device = 101,
  invalid_image = 200,
  illegal_address = 700,
  launch_out_of_resources = 701,
  launch_failed = 719,
};

constexpr int shared_per_block = 227 << 10;

std::atomic<uint64_t> launches = 0, overlapping_launches = 0, cluster_launches = 0;

int number_from_environment(const char* name, int otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != 0 ? std::atoi(value) : otherwise;
}

int architecture() { return number_from_environment("FUSEWRIGHT_EMULATOR_ARCHITECTURE", 90); }

// The driver's texts are the same for all threads; ours are of the thread's last fault.
thread_local std::string diagnosis;

CUresult explain(CUresult result, std::string text) {
  diagnosis = std::move(text);
  return result;
}

thread_local std::vector<CUcontext> contexts;
CUcontext primary_context() {
  static char place;
  return reinterpret_cast<CUcontext>(&place);
}

}  // namespace

#define FWEMU_EXPORT extern "C" __attribute__((visibility("default")))

FWEMU_EXPORT CUresult cuGetErrorName(CUresult error, const char** name) {
  switch (error) {
    case CUDA_SUCCESS:
      *name = "CUDA_SUCCESS";
      return CUDA_SUCCESS;
    case invalid_value:
      *name = "CUDA_ERROR_INVALID_VALUE";
      return CUDA_SUCCESS;
    case invalid_device:
      *name = "CUDA_ERROR_INVALID_DEVICE";
      return CUDA_SUCCESS;
    case invalid_image:
      *name = "CUDA_ERROR_INVALID_IMAGE";
      return CUDA_SUCCESS;
    case CUDA_ERROR_INVALID_CONTEXT:
      *name = "CUDA_ERROR_INVALID_CONTEXT";
      return CUDA_SUCCESS;
    case CUDA_ERROR_NOT_FOUND:
      *name = "CUDA_ERROR_NOT_FOUND";
      return CUDA_SUCCESS;
    case illegal_address:
      *name = "CUDA_ERROR_ILLEGAL_ADDRESS";
      return CUDA_SUCCESS;
    case launch_out_of_resources:
      *name = "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES";
      return CUDA_SUCCESS;
    case launch_failed:
      *name = "CUDA_ERROR_LAUNCH_FAILED";
      return CUDA_SUCCESS;
    default:
      *name = nullptr;
      return invalid_value;
  }
}

FWEMU_EXPORT CUresult cuGetErrorString(CUresult error, const char** text) {
  *text = error == CUDA_SUCCESS ? "no error" : diagnosis.c_str();
  return CUDA_SUCCESS;
}

FWEMU_EXPORT CUresult cuDriverGetVersion(int* version) {
  *version = 13000;
  return CUDA_SUCCESS;
}

FWEMU_EXPORT CUresult cuInit(unsigned) { return CUDA_SUCCESS; }

FWEMU_EXPORT CUresult cuDeviceGetCount(int* count) {
  *count = 1;
  return CUDA_SUCCESS;
}

FWEMU_EXPORT CUresult cuDeviceGet(CUdevice* device, int index) {
  *device = index;
  return index == 0 ? CUDA_SUCCESS : explain(invalid_device, "the emulator has one device");
}

FWEMU_EXPORT CUresult cuDeviceGetName(char* name, int size, CUdevice) {
  std::strncpy(name, "Fusewright emulator", static_cast<size_t>(size));
  return CUDA_SUCCESS;
}

FWEMU_EXPORT CUresult cuDeviceGetAttribute(int* value, int attribute, CUdevice) {
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
      *value = number_from_environment("FUSEWRIGHT_EMULATOR_MULTIPROCESSORS", 132);
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE:
      *value = 1 << 20;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      *value = architecture() / 10;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
      *value = architecture() % 10;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
      *value = shared_per_block;
      return CUDA_SUCCESS;
    default:
      return explain(invalid_value, "the emulator does not know the device's attribute " + std::to_string(attribute));
  }
}

// ---- contexts: there is one, and it has no state ----

FWEMU_EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice) {
  *context = primary_context();
  return CUDA_SUCCESS;
}
FWEMU_EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice) { return CUDA_SUCCESS; }
FWEMU_EXPORT CUresult cuCtxGetCurrent(CUcontext* context) {
  *context = contexts.empty() ? nullptr : contexts.back();
  return CUDA_SUCCESS;
}
FWEMU_EXPORT CUresult cuCtxPushCurrent_v2(CUcontext context) {
  contexts.push_back(context);
  return CUDA_SUCCESS;
}
FWEMU_EXPORT CUresult cuCtxPopCurrent_v2(CUcontext* context) {
  if (contexts.empty()) return explain(CUDA_ERROR_INVALID_CONTEXT, "no context is current");
  *context = contexts.back();
  contexts.pop_back();
  return CUDA_SUCCESS;
}
FWEMU_EXPORT CUresult cuThreadExchangeStreamCaptureMode(int* mode) {
  thread_local int current = 0;
  std::swap(*mode, current);
  return CUDA_SUCCESS;
}
FWEMU_EXPORT CUresult cuStreamIsCapturing(CUstream, int* status) {
  *status = number_from_environment("FUSEWRIGHT_EMULATOR_CAPTURING", CU_STREAM_CAPTURE_STATUS_NONE);
  return CUDA_SUCCESS;
}

// ---- events: kernels have run when a launch returns, so the time is the processor's ----

FWEMU_EXPORT CUresult cuEventCreate(CUevent* event, unsigned) {
  *event = new CUevent_st;
  return CUDA_SUCCESS;
}
FWEMU_EXPORT CUresult cuEventRecord(CUevent event, CUstream) {
  event->time = std::chrono::steady_clock::now();
  return CUDA_SUCCESS;
}
// As if nothing waited for the host: no head start would change that.
FWEMU_EXPORT CUresult cuEventQuery(CUevent) { return CUDA_ERROR_NOT_READY; }
FWEMU_EXPORT CUresult cuEventSynchronize(CUevent) { return CUDA_SUCCESS; }
FWEMU_EXPORT CUresult cuCtxResetPersistingL2Cache() { return CUDA_SUCCESS; }
FWEMU_EXPORT CUresult cuEventElapsedTime(float* milliseconds, CUevent begin, CUevent end) {
  *milliseconds = std::chrono::duration<float, std::milli>(end->time - begin->time).count();
  return CUDA_SUCCESS;
}
FWEMU_EXPORT CUresult cuEventDestroy_v2(CUevent event) {
  delete event;
  return CUDA_SUCCESS;
}

// ---- modules ----

FWEMU_EXPORT CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  try {
    auto loaded = std::make_unique<CUmod_st>();
    loaded->image = fwemu::load_image(image);
    *module = loaded.release();
    return CUDA_SUCCESS;
  } catch (const std::exception& error) {
    return explain(invalid_image, error.what());
  }
}

FWEMU_EXPORT CUresult cuModuleUnload(CUmodule module) {
  delete module;
  return CUDA_SUCCESS;
}

FWEMU_EXPORT CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  if (!fwemu::has_kernel(*module->image, name))
    return explain(CUDA_ERROR_NOT_FOUND, std::string("there is no kernel '") + name + "'");
  const std::scoped_lock lock(module->mutex);
  *function = &module->functions.try_emplace(name, CUfunc_st{name, module->image.get()}).first->second;
  return CUDA_SUCCESS;
}

FWEMU_EXPORT CUresult cuFuncGetAttribute(int* value, int attribute, CUfunction function) {
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
      *value = 0;
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      *value = static_cast<int>(function->shared_limit);
      return CUDA_SUCCESS;
    default:
      return explain(invalid_value, "the emulator does not know the kernel's attribute " + std::to_string(attribute));
  }
}

FWEMU_EXPORT CUresult cuFuncSetAttribute(CUfunction function, int attribute, int value) {
  if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES || value < 0 || value > shared_per_block) {
    return explain(invalid_value, "the emulator cannot set the kernel's attribute " + std::to_string(attribute) +
                                      " to " + std::to_string(value));
  }
  function->shared_limit = static_cast<unsigned>(value);
  return CUDA_SUCCESS;
}

// By threads and shared memory alone: the emulator knows nothing of registers.
FWEMU_EXPORT CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction, int threads,
                                                                  size_t shared_bytes) {
  const auto fit = static_cast<int>(shared_per_block / std::max<size_t>(shared_bytes, 1));
  *blocks = std::min(2048 / threads, fit);
  return CUDA_SUCCESS;
}

static CUresult start(CUfunction function, const CUlaunchConfig& config, unsigned cluster, void** parameters,
                      void** extra) {
  const auto& [grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, attributes, count] = config;
  const uint64_t threads = uint64_t{block_x} * block_y * block_z;
  if (threads == 0 || threads > 1024 || block_z > 64 || uint64_t{grid_x} * grid_y * grid_z == 0 ||
      grid_x > 0x7fffffff || grid_y > 0xffff || grid_z > 0xffff) {
    return explain(invalid_value, "kernel " + function->name + ": no such grid or block");
  }
  if (cluster == 0 || cluster > 8 || grid_x % cluster != 0 || (cluster > 1 && architecture() < 90)) {
    return explain(invalid_value, "kernel " + function->name + ": no such cluster");
  }
  if (shared_bytes > function->shared_limit) {
    return explain(invalid_value, "kernel " + function->name + " asks for " + std::to_string(shared_bytes) +
                                      " bytes of shared memory, it may have " + std::to_string(function->shared_limit));
  }
  if (parameters == nullptr || extra != nullptr) {
    return explain(invalid_value, "kernel " + function->name + ": the emulator takes its argument from `parameters`");
  }
  const fwemu::Kernel* kernel = nullptr;
  try {
    kernel = fwemu::find_kernel(*function->image, function->name);
  } catch (const std::exception& error) {
    return explain(invalid_image, error.what());
  }
  // An own copy, as the device has: what the caller changes from now on is not seen.
  const size_t bytes = kernel->argument_bytes;
  const std::unique_ptr<char, void (*)(void*)> arguments(
      static_cast<char*>(std::aligned_alloc(128, (bytes + 127) / 128 * 128)), std::free);
  std::memcpy(arguments.get(), parameters[0], bytes);
  fwemu::LaunchRequest request;
  request.kernel_name = function->name;
  request.kernel = kernel;
  request.image = function->image;
  request.arguments = arguments.get();
  request.grid = {grid_x, grid_y, grid_z};
  request.block = {block_x, block_y, block_z};
  request.shared_bytes = shared_bytes;
  request.cluster = cluster;
  try {
    ++launches;
    fwemu::Diagnosis found = fwemu::launch(request);
    if (found.text.empty()) return CUDA_SUCCESS;
    return explain(found.is_address ? illegal_address : launch_failed, std::move(found.text));
  } catch (const std::exception& error) {
    return explain(launch_out_of_resources, error.what());
  }
}

FWEMU_EXPORT CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                     unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                                     CUstream stream, void** parameters, void** extra) {
  return start(function, {grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, nullptr, 0}, 1,
               parameters, extra);
}

// Here every launch has ended before the next begins.
FWEMU_EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** parameters,
                                       void** extra) {
  unsigned cluster = 1;
  for (unsigned i = 0; i < config->attribute_count; ++i) {
    const CUlaunchAttribute& attribute = config->attributes[i];
    if (attribute.id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION) {
      ++overlapping_launches;
    } else if (attribute.id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) {
      cluster = attribute.value.dimensions[0];
      if (cluster > 1) ++cluster_launches;
      if (attribute.value.dimensions[1] != 1 || attribute.value.dimensions[2] != 1) cluster = 0;
    } else if (attribute.id != CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE) {
      return explain(invalid_value, "kernel " + function->name + ": no such attribute");
    }
  }
  return start(function, *config, cluster, parameters, extra);
}

// ---- tensor maps ----

FWEMU_EXPORT CUresult cuTensorMapEncodeTiled(void* map, uint32_t type, uint32_t rank, void* address,
                                             const uint64_t* dimensions, const uint64_t* strides, const uint32_t* box,
                                             const uint32_t* element_strides, uint32_t interleave, uint32_t swizzle,
                                             uint32_t l2_promotion, uint32_t fill) {
  std::string problem = fwemu::encode_tensor_map(
      map, {type, rank, address, dimensions, strides, box, element_strides, interleave, swizzle, l2_promotion, fill});
  return problem.empty() ? CUDA_SUCCESS : explain(invalid_value, "cuTensorMapEncodeTiled: " + problem);
}

// ---- beside the driver's: memory for tests, that ends at a page nobody may touch ----

FWEMU_EXPORT void* emulator_allocate(size_t bytes) { return fwemu::allocate_device(bytes, 16); }
FWEMU_EXPORT void* emulator_allocate_aligned(size_t bytes, size_t alignment) {
  return fwemu::allocate_device(bytes, alignment);
}
FWEMU_EXPORT void emulator_free(void* p) { fwemu::free_device(p); }
// How many kernels have been started.
FWEMU_EXPORT uint64_t emulator_launches() { return launches; }
FWEMU_EXPORT uint64_t emulator_overlapping_launches() { return overlapping_launches; }
FWEMU_EXPORT uint64_t emulator_cluster_launches() { return cluster_launches; }

// A function of the table that is not here does not link.
extern "C" {
#define FWEMU_DECLARE(name, parameters) CUresult name parameters;
FUSEWRIGHT_CUDA_FUNCTIONS(FWEMU_DECLARE)
}
__attribute__((used)) static void* const all_functions[] = {
#define FWEMU_ADDRESS(name, parameters) reinterpret_cast<void*>(&name),
    FUSEWRIGHT_CUDA_FUNCTIONS(FWEMU_ADDRESS)};
