#include "emulator/fiber.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <new>

#if defined(__x86_64__)
asm(R"(
.text
.globl fwemu_switch
.hidden fwemu_switch
.type fwemu_switch, @function
fwemu_switch:
  endbr64
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size fwemu_switch, .-fwemu_switch
)");
#elif defined(__aarch64__)
asm(R"(
.text
.globl fwemu_switch
.hidden fwemu_switch
.type fwemu_switch, %function
fwemu_switch:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
.size fwemu_switch, .-fwemu_switch
)");
#else
#error "the emulator switches fibers on x86_64 and aarch64 only"
#endif

namespace fwemu {

void* prepare_fiber(char* stack_top, void (*entry)()) {
  auto* words = reinterpret_cast<uint64_t*>(reinterpret_cast<uintptr_t>(stack_top) & ~uintptr_t{63});
#if defined(__x86_64__)
  words -= 8;  // six registers, the address to begin at, and a return address of zero
  std::memset(words, 0, 8 * sizeof *words);
  words[6] = reinterpret_cast<uint64_t>(entry);
#else
  words -= 20;
  std::memset(words, 0, 20 * sizeof *words);
  words[11] = reinterpret_cast<uint64_t>(entry);  // x30
#endif
  return words;
}

Stacks::Stacks(unsigned count) : count_(count) {
  void* memory =
      mmap(nullptr, count * stack_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  memory_ = static_cast<char*>(memory);
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  for (unsigned i = 0; i < count; ++i) mprotect(memory_ + i * stack_bytes, page, PROT_NONE);
}

Stacks::~Stacks() { munmap(memory_, count_ * stack_bytes); }

bool Stacks::overflowed(const void* address) const {
  const auto* p = static_cast<const char*>(address);
  if (p < memory_ || p >= memory_ + count_ * stack_bytes) return false;
  return static_cast<size_t>(p - memory_) % stack_bytes < static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace fwemu
