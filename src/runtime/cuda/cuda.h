#pragma once
// GPUs, through the driver and the run-time compiler that are found when the process first asks for them. Nothing of
// CUDA is needed to build this: one build serves machines with and without a GPU.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace fusewright {
struct CompileStats;
}

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

// Both libraries could be opened and there is a device. If not, the reason says what was looked for, and where. The
// first question starts the driver, after which a forked child has no GPU: ask only when a tensor is on one.
bool available();
const std::string& unavailable_because();  // empty if it is

// Directories that are searched for NVRTC after the system's own: where PyTorch's packages keep their libraries. Call
// it before anything else asks for a device; later it has no effect.
void add_library_directories(const std::vector<std::string>& directories);

int device_count();               // 0 if unavailable
const Device& device(int index);  // numbered as PyTorch does; throws Error if there is none

// The kernels of one source, for the architecture they were compiled for. They are loaded on a device when it first
// asks for one.
class Module {
 public:
  virtual ~Module() = default;
  // A CUfunction, ready for launch() with all the device's shared memory. Throws Error if the module has no such kernel
  // or the device is of another architecture, CompileError if it cannot be loaded (no memory, say; the next call tries
  // again). Never called while a graph is being captured on the thread: the executor asks for its kernels beforehand.
  // It stays valid as long as the process: a recorded graph may launch it when the model is gone.
  virtual void* kernel(const std::string& name, int device) = 0;
};

// Compiles sources side by side (at most MAX_JOBS at a time), through the disk cache; equal ones once. Throws
// CompileError with the compiler's own output. The caller must not hold a lock that the log sink takes (the GIL).
std::vector<std::shared_ptr<Module>> compile(const std::vector<std::string>& sources, Architecture architecture);

struct LaunchShape {
  uint32_t blocks = 1;   // along x
  uint32_t threads = 1;  // per block
  uint32_t shared_bytes = 0;
  // May begin while the launch before it on the stream ends: its text waits before it depends on that
  // (fw::wait_for_last_launch). Where driver or device cannot, it begins afterwards.
  bool overlaps = false;
  uint32_t cluster = 1;  // neighbouring blocks that reach into each other's shared memory; divides their number
};

// Every kernel of ours takes one parameter, a struct by value, whose bytes are `arguments`. Throws Error that names the
// kernel, the shape and the driver's own words.
void launch(void* kernel, const std::string& name, int device, LaunchShape shape, const void* arguments, void* stream);

// Blocks of this shape that a processor of the device works on at a time: 0 if one does not fit.
int resident_blocks(void* kernel, int device, LaunchShape shape);
uint32_t largest_cluster(int device);  // blocks that may form one

// A CUDA graph is being recorded on the stream (for the default stream: on one that waits for it, and so may not be
// used).
bool is_capturing(void* stream);

// What kernels asked the L2 cache to hold longer than other things is held no longer: else writing over the cache would
// leave it there, and whoever is timed next would find it.
void let_l2_forget(int device);

// What names a source's compiled form in the disk cache: all that decides it.
std::string key_of(const std::string& source, Architecture architecture);

// What else must match for a cached kernel to be reused: the version of torch, say. Set before compiling.
void set_key_salt(const std::string& salt);

// What compile() did so far (compile_once.h). Neither this nor the salt starts the driver.
CompileStats stats();

}  // namespace fusewright::cuda
