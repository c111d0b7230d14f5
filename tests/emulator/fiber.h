#pragma once
// A fiber is a stack and the place where it stopped. Switching costs a few nanoseconds: only the registers that a
// called function must keep are saved, and no system call is made, unlike in ucontext.
#include <cstddef>

namespace fwemu {

// Stops here, leaving the stack pointer in `from`, and goes on where `to` was left.
extern "C" void fwemu_switch(void** from, void* to);

// The stack pointer of a fiber that will begin with `entry`, which must not return.
void* prepare_fiber(char* stack_top, void (*entry)());

// Stacks for the threads of one block, each with a page below it that nobody may touch. They are kept for the next
// block, so a top moves a little from stack to stack: at one distance they would share the same few lines of the cache.
class Stacks {
 public:
  static constexpr size_t stack_bytes = 128 << 10;

  explicit Stacks(unsigned count);
  ~Stacks();
  Stacks(const Stacks&) = delete;
  Stacks& operator=(const Stacks&) = delete;

  unsigned count() const { return count_; }
  size_t bytes() const { return count_ * stack_bytes; }
  // Where the address lies in the stacks, if it does.
  bool find(const void* address, size_t& offset) const {
    offset = static_cast<size_t>(static_cast<const char*>(address) - memory_);
    return offset < bytes();
  }
  char* top(unsigned index) const { return memory_ + (index + 1) * stack_bytes - index % 32 * 192; }
  // Returns whether the address is in a page below one of the stacks.
  bool overflowed(const void* address) const;

 private:
  char* memory_;
  unsigned count_;
};

}  // namespace fwemu
