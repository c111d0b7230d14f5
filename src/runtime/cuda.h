#pragma once
// GPUs, through the driver and the run-time compiler that are found when the process first asks for them. Nothing of
// CUDA is needed to build this: one build serves machines with and without a GPU.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace fusewright::cuda {

struct Architecture {
  int major = 0, minor = 0;
  bool operator==(const Architecture&) const = default;
};

struct Device {
  std::string name;
  Architecture architecture;
  int multiprocessors = 0;
  int64_t l2_bytes = 0;
  int64_t shared_bytes = 0;  // per block, opted in
};

// Both libraries could be opened and there is a device. If not, the reason says what was looked for, and where.
bool available();
const std::string& unavailable_because();

// Directories that are searched after the system's own: where PyTorch's packages keep their libraries. Call it before
// anything else asks for a device.
void add_library_directories(const std::vector<std::string>& directories);

int device_count();
const Device& device(int index);

// The kernels of one source, for the architecture they were compiled for. They are loaded on a device when it first
// asks for one.
class Module {
 public:
  virtual ~Module() = default;
  // A CUfunction; throws Error if the module has no such kernel. Never called while a graph is being captured: the
  // executor asks for its kernels beforehand.
  virtual void* kernel(const std::string& name, int device) = 0;
};

// Compiles sources side by side (at most MAX_JOBS at a time), through the disk cache. Throws CompileError with the
// compiler's own output.
std::vector<std::shared_ptr<Module>> compile(const std::vector<std::string>& sources, Architecture architecture);

struct LaunchShape {
  uint32_t blocks = 1;   // along x
  uint32_t threads = 1;  // per block
  uint32_t shared_bytes = 0;
};

// Every kernel of ours takes one parameter, a struct by value, whose bytes are `arguments`. Throws Error that names the
// kernel, the shape and the driver's own words.
void launch(void* kernel, const std::string& name, int device, LaunchShape shape, const void* arguments, void* stream);

// A CUDA graph is being recorded on the stream.
bool is_capturing(void* stream);

}  // namespace fusewright::cuda
