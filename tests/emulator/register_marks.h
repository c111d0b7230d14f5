#pragma once
// Marks the state of the registers that a kernel's variables stand for: a mark for every 4 bytes of the stacks.
#include <sys/mman.h>

#include <cstdint>
#include <new>

#include "emulator/fiber.h"

namespace fwemu {

class RegisterMarks {
 public:
  static constexpr uint32_t accumulator = ~0u, operand = ~0u - 1;  // of a product that is under way

  explicit RegisterMarks(const Stacks& stacks) : stacks_(stacks), bytes_(stacks.bytes()) {
    void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    marks_ = static_cast<uint32_t*>(memory);
  }
  ~RegisterMarks() { munmap(marks_, bytes_); }
  RegisterMarks(const RegisterMarks&) = delete;
  RegisterMarks& operator=(const RegisterMarks&) = delete;

  // Null if the bytes are not of a stack.
  uint32_t* find(const void* p) const {
    size_t offset;
    return stacks_.find(p, offset) ? marks_ + offset / 4 : nullptr;
  }

 private:
  const Stacks& stacks_;
  size_t bytes_;
  uint32_t* marks_;
};

}  // namespace fwemu
