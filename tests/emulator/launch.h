#pragma once
// One launch of a kernel: its blocks run over a few threads of the system, in an order that the seed decides. The first
// fault ends it.
#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>

#include "emulator/interface.h"

namespace fwemu {

struct Image;  // the compiled text that a kernel is of: module.h

struct LaunchRequest {
  std::string kernel_name;
  const Kernel* kernel = nullptr;
  const Image* image = nullptr;
  const void* arguments = nullptr;  // aligned to 128 bytes
  Index grid{1, 1, 1}, block{1, 1, 1};
  unsigned shared_bytes = 0;
  unsigned cluster = 1;  // blocks along x that form one; divides their number
};

struct Diagnosis {
  std::string text;         // empty: no fault
  bool is_address = false;  // an access to memory that is not there
};

// Runs the kernel to its end.
Diagnosis launch(const LaunchRequest& request);

// The state that the blocks of a launch share.
class Launch {
 public:
  Launch(const LaunchRequest& request, uint64_t seed) : request(request), seed(seed) {}

  // The first report is kept. `place` says which block and thread, `what` the fault.
  void report(const std::string& place, const std::string& what, bool is_address = false);
  bool failed() const { return failed_.load(std::memory_order_relaxed); }
  Diagnosis take() { return diagnosis_; }

  // "line 12 `fw::barrier();`"
  std::string quote(int line) const;

  const LaunchRequest& request;
  const uint64_t seed;

 private:
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  Diagnosis diagnosis_;
};

}  // namespace fwemu
