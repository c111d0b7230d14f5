// The functions of cuda.h, on the one Runtime of the process.
#include "runtime/cuda/cuda.h"

#include "runtime/cuda/cuda_runtime.h"

namespace fusewright::cuda {

bool available() { return Runtime::instance().available(); }

const std::string& unavailable_because() { return Runtime::instance().unavailable_because(); }

void add_library_directories(const std::vector<std::string>& directories) {
  Runtime::instance().add_library_directories(directories);
}

void set_key_salt(const std::string& salt) { Runtime::instance().set_key_salt(salt); }

CompileStats stats() { return Runtime::instance().stats(); }

int device_count() { return Runtime::instance().device_count(); }

const Device& device(int index) { return Runtime::instance().device(index); }

std::vector<std::shared_ptr<Module>> compile(const std::vector<std::string>& sources, Architecture architecture) {
  return Runtime::instance().compile(sources, architecture);
}

void launch(void* kernel, const std::string& name, int device, LaunchShape shape, const void* arguments, void* stream) {
  Runtime::instance().launch(kernel, name, device, shape, arguments, stream);
}

int resident_blocks(void* kernel, int device, LaunchShape shape) {
  return Runtime::instance().resident_blocks(kernel, device, shape);
}

uint32_t largest_cluster(int device) { return Runtime::instance().largest_cluster(device); }

void let_l2_forget(int device) { Runtime::instance().let_l2_forget(device); }

std::string key_of(const std::string& source, Architecture architecture) {
  return Runtime::instance().key_of(source, architecture).hex();
}

bool is_capturing(void* stream) { return Runtime::instance().is_capturing(stream); }

}  // namespace fusewright::cuda
