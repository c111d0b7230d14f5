#pragma once
// A driver and an NVRTC that do nothing but check and record: libraries of their own, opened as the real ones are. A
// test reaches their state through the functions fake_cuda and fake_nvrtc that they export.
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace fusewright::testing {

struct FakeDevice {
  std::string name;
  int major, minor;
  int shared_bytes;
};

struct FakeLaunch {
  std::string name;
  const std::string* source;  // of its module
  unsigned grid[3], block, shared_bytes;
  unsigned cluster[3] = {1, 1, 1};
  bool overlaps = false;
  const unsigned char* arguments;
};

struct FakeCuda {
  std::mutex mutex;

  // The test sets these.
  int version = 13000;
  std::vector<FakeDevice> devices = {{"Fake H100", 9, 0, 232448}};
  std::map<std::string, int> errors;  // by function: what it answers
  int static_shared_bytes = 0;        // of every kernel
  int capture_status = 0;
  bool recording = true;
  void (*launched)(const FakeLaunch& launch) = nullptr;  // is told of every launch
  // Microseconds, of the device (for events) and of the host: a test moves them on where work would take time.
  double now = 0, host_now = 0;

  // The test reads these.
  std::vector<std::string> calls;
  std::map<int, int> contexts;       // retained, by device
  std::map<void*, int> modules;      // loaded, with their device
  std::map<void*, int> shared_of;    // opted in, by function
  std::vector<unsigned char> bytes;  // the first of the last launch's argument
  int events = 0;                    // not destroyed
  int misuses = 0;                   // a call without the context that it needs, or with what does not exist

  int count(const std::string& part) {
    const std::lock_guard lock(mutex);
    int found = 0;
    for (const std::string& call : calls) found += call.find(part) != std::string::npos;
    return found;
  }
};

struct FakeNvrtc {
  std::mutex mutex;

  // The test sets these.
  int major = 13, minor = 0;
  std::vector<int> architectures = {75, 80, 86, 89, 90, 100, 120};
  std::map<std::string, int> errors;
  int milliseconds = 0;  // that a compilation takes

  // The test reads these. A source with #error in it fails.
  std::vector<std::string> options;  // of the last compilation
  std::set<void*> programs;          // not destroyed
  int compilations = 0, at_once = 0, most_at_once = 0;
};

}  // namespace fusewright::testing
