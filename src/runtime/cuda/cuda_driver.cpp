#include "runtime/cuda/cuda_driver.h"

#include <unistd.h>

#include "ir/error.h"

namespace fusewright::cuda {
namespace {

// CUDA 11.8: the oldest that a supported PyTorch is built with. All that the table names exists there.
constexpr int minimum_version = 11080;

std::string text_of_version(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

// Returns the first function that the library lacks, or nullptr.
const char* load_functions(const SharedLibrary& library, Driver::Functions& functions) {
#define FUSEWRIGHT_LOAD(name, parameters)                                             \
  functions.name = reinterpret_cast<decltype(functions.name)>(library.symbol(#name)); \
  if (functions.name == nullptr) return #name;
  FUSEWRIGHT_CUDA_FUNCTIONS(FUSEWRIGHT_LOAD)
#undef FUSEWRIGHT_LOAD
  return nullptr;
}

}  // namespace

std::shared_ptr<Driver> Driver::open(const std::string& chosen, std::string& why_not) {
  const LibraryPlaces places{"no CUDA driver", "FUSEWRIGHT_CUDA_LIBRARY", chosen, {"libcuda.so.1"}, {}};
  std::shared_ptr<Driver> driver(new Driver);
  const auto accept = [&](const SharedLibrary& library, std::string& reason) {
    if (const char* missing = load_functions(library, driver->functions_)) {
      reason = std::string("it has no function ") + missing;
      return false;
    }
    return driver->start(reason);
  };
  return find_library(places, accept, why_not) ? driver : nullptr;
}

bool Driver::start(std::string& why_not) {
  process_ = getpid();
  const auto good = [&](CUresult result, const char* function) {
    if (result != CUDA_SUCCESS) why_not = describe(function, result);
    return result == CUDA_SUCCESS;
  };
  // Asked first: an old driver may fail at anything else.
  if (!good(functions_.cuDriverGetVersion(&version_), "cuDriverGetVersion")) return false;
  if (version_ < minimum_version) {
    why_not =
        "the driver is of CUDA " + version_text() + ", at least " + text_of_version(minimum_version) + " is needed";
    return false;
  }
  int count = 0;
  if (!good(functions_.cuInit(0), "cuInit")) return false;
  if (!good(functions_.cuDeviceGetCount(&count), "cuDeviceGetCount")) return false;
  if (count == 0) {
    why_not = "it has no device";
    return false;
  }
  devices_ = std::vector<PerDevice>(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    PerDevice& device = devices_[static_cast<size_t>(i)];
    Device& properties = device.properties;
    char name[256] = "";
    if (!good(functions_.cuDeviceGet(&device.handle, i), "cuDeviceGet")) return false;
    if (!good(functions_.cuDeviceGetName(name, sizeof name - 1, device.handle), "cuDeviceGetName")) return false;
    properties.name = name;
    const auto read = [&](DeviceAttribute attribute, auto& place) {
      int value = 0;
      const bool ok = good(functions_.cuDeviceGetAttribute(&value, attribute, device.handle), "cuDeviceGetAttribute");
      place = value;
      return ok;
    };
    if (!read(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, properties.architecture.major) ||
        !read(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, properties.architecture.minor) ||
        !read(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, properties.multiprocessors) ||
        !read(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, properties.l2_bytes) ||
        !read(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, properties.shared_bytes)) {
      return false;
    }
  }
  return true;
}

Driver::~Driver() {
  if (!usable_here()) return;
  for (PerDevice& device : devices_) {
    if (device.context.load() != nullptr) functions_.cuDevicePrimaryCtxRelease_v2(device.handle);
  }
}

std::string Driver::version_text() const { return text_of_version(version_); }

bool Driver::usable_here() const { return getpid() == process_; }

const Device& Driver::device(int index) const {
  require(index >= 0 && index < device_count(), "there is no GPU ", index, ", the driver has ", device_count());
  return devices_[static_cast<size_t>(index)].properties;
}

CUcontext Driver::retain_context(int index) {
  device(index);  // it must exist
  PerDevice& device = devices_[static_cast<size_t>(index)];
  const std::lock_guard lock(mutex_);
  CUcontext context = device.context.load();
  if (context != nullptr) return context;  // another thread was first
  check(functions_.cuDevicePrimaryCtxRetain(&context, device.handle), "cuDevicePrimaryCtxRetain");
  device.context.store(context, std::memory_order_release);
  return context;
}

std::string Driver::describe(const char* function, CUresult error) const {
  const char *name = nullptr, *text = nullptr;
  functions_.cuGetErrorName(error, &name);
  functions_.cuGetErrorString(error, &text);
  return std::string(function) + ": " + (name != nullptr ? name : "error " + std::to_string(error)) +
         (text != nullptr ? std::string(" (") + text + ")" : "");
}

void Driver::check(CUresult result, const char* function) const {
  if (result != CUDA_SUCCESS) throw Error(describe(function, result));
}

}  // namespace fusewright::cuda
