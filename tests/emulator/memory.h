#pragma once
// Memory that shows what a kernel does to its surroundings: poisoned at first, with red zones or pages around it that
// nobody may touch.
#include <cstddef>
#include <cstdint>
#include <string>

namespace fwemu {

constexpr unsigned char poison = 0xff;           // NaN in every floating type
constexpr uint32_t red_zone_word = 0xfffdfffdu;  // NaN likewise, but none that a computation gives

// The shared memory of one block at a time.
class SharedMemory {
 public:
  SharedMemory() = default;
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  void prepare(size_t bytes);  // poisons it; red zones as new
  char* data() const { return data_; }
  size_t size() const { return size_; }
  bool contains(const void* p, size_t bytes) const;

  // Looks at the `near` bytes on both sides. Returns how far behind the end (or, negative, before the start) the first
  // damage is; 0 if there is none.
  ptrdiff_t damage(size_t near = red_zone) const;
  bool damaged_nearby() const;  // the same for the nearest bytes, fast
  // The same question for an address that faulted.
  bool surrounds(const void* p) const { return p >= mapping_ && p < mapping_ + mapped_; }

  static constexpr size_t red_zone = 512;

 private:
  void fill_red_zones();

  char* mapping_ = nullptr;
  size_t mapped_ = 0;
  char* data_ = nullptr;
  size_t size_ = 0;
  uint64_t expected_before_ = 0, expected_behind_ = 0;  // 8 bytes of the red zones
};

// Device memory whose end touches a page that nobody may touch, and whose start is close behind another; the few bytes
// left for alignment are watched. Poisoned.
void* allocate_device(size_t bytes, size_t alignment);
bool free_device(void* p);
// Describes what is at or near an address: "4 bytes behind the end of 1024 bytes at 0x..."; empty if nothing of ours
// is.
std::string locate(const void* address);
// The first allocation whose watched bytes changed; empty if none did.
std::string damaged_allocation();

// Faults of kernels become diagnoses (Block::fail_for_fault); all others go to whoever handled them before. Called at
// the start of each launch; and by each thread of the system that runs blocks, for a stack to handle them on.
void install_fault_handler();
class FaultStack {
 public:
  FaultStack();
  ~FaultStack();
  FaultStack(const FaultStack&) = delete;
  FaultStack& operator=(const FaultStack&) = delete;

 private:
  void* memory_;
};

}  // namespace fwemu
