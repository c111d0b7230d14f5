#include "emulator/memory.h"

#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <new>

#include "emulator/block.h"
#include "emulator/module.h"

namespace fwemu {
namespace {

size_t page_size() {
  static const auto size = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return size;
}

size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

// On both sides of all that is handed out; nothing but addresses, so it may catch an index that is far off.
constexpr size_t guard = 1 << 20;

char* map_between_guards(size_t bytes) {
  void* memory = mmap(nullptr, bytes + 2 * guard, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  char* inside = static_cast<char*>(memory) + guard;
  if (mprotect(inside, bytes, PROT_READ | PROT_WRITE) != 0) throw std::bad_alloc();
  return inside;
}

void fill_words(char* from, const char* to) {  // the pattern has its place in the word by address
  for (; from < to; ++from)
    *from = reinterpret_cast<const char*>(&red_zone_word)[reinterpret_cast<uintptr_t>(from) % 4];
}

// The first changed byte of a red zone; `to` if there is none.
const char* first_damage(const char* from, const char* to) {
  for (; from < to; ++from) {
    if (*from != reinterpret_cast<const char*>(&red_zone_word)[reinterpret_cast<uintptr_t>(from) % 4]) break;
  }
  return from;
}

}  // namespace

// ---- shared memory ----

SharedMemory::~SharedMemory() {
  if (mapping_ != nullptr) munmap(mapping_, mapped_);
}

void SharedMemory::prepare(size_t bytes) {
  const size_t needed = round_up(round_up(bytes, 128) + 2 * red_zone, page_size()) + 2 * guard;
  if (needed > mapped_) {
    if (mapping_ != nullptr) munmap(mapping_, mapped_);
    mapping_ = map_between_guards(needed - 2 * guard) - guard;
    mapped_ = needed;
  }
  size_ = bytes;
  data_ = mapping_ + mapped_ - guard - red_zone - round_up(bytes, 128);
  std::memset(data_, poison, bytes);
  fill_red_zones();
}

void SharedMemory::fill_red_zones() {
  fill_words(data_ - red_zone, data_);
  fill_words(data_ + size_, data_ + round_up(size_, 128) + red_zone);
  std::memcpy(&expected_before_, data_ - 8, 8);
  std::memcpy(&expected_behind_, data_ + size_, 8);
}

bool SharedMemory::contains(const void* p, size_t bytes) const {
  const auto* address = static_cast<const char*>(p);
  return address >= data_ && bytes <= size_ && address <= data_ + size_ - bytes;
}

ptrdiff_t SharedMemory::damage(size_t near) const {
  const char* end = data_ + size_;
  const char* behind = first_damage(end, end + near);
  if (behind != end + near) return behind - end + 1;
  for (size_t i = 1; i <= near; ++i) {
    if (first_damage(data_ - i, data_ - i + 1) != data_ - i + 1) return -static_cast<ptrdiff_t>(i);
  }
  return 0;
}

bool SharedMemory::damaged_nearby() const {  // asked at every wait of every thread
  uint64_t different = 0;
  for (int i = 0; i < 4; ++i) {
    uint64_t behind, before;
    std::memcpy(&behind, data_ + size_ + 8 * i, 8);
    std::memcpy(&before, data_ - 8 * (i + 1), 8);
    different |= (behind ^ expected_behind_) | (before ^ expected_before_);
  }
  return different != 0;
}

// ---- device memory ----

namespace {

struct Allocation {
  char* mapping;  // without the guards
  size_t mapped, bytes;
  char* data;
};

std::mutex allocations_mutex;
std::map<const void*, Allocation>& allocations() {
  static auto* table = new std::map<const void*, Allocation>;
  return *table;
}

constexpr size_t watched_before = 256;

std::string hexadecimal(const void* p) {
  char text[32];
  std::snprintf(text, sizeof text, "%p", p);
  return text;
}

}  // namespace

void* allocate_device(size_t bytes, size_t alignment) {
  const size_t mapped = round_up(std::max<size_t>(bytes, 1) + alignment + watched_before, page_size());
  char* mapping = map_between_guards(mapped);
  auto address = reinterpret_cast<uintptr_t>(mapping + mapped - bytes);
  char* data = reinterpret_cast<char*>(address - address % alignment);
  std::memset(data, poison, bytes);
  fill_words(mapping, data);
  fill_words(data + bytes, mapping + mapped);
  const std::scoped_lock lock(allocations_mutex);
  allocations()[data] = {mapping, mapped, bytes, data};
  return data;
}

bool free_device(void* p) {
  const std::scoped_lock lock(allocations_mutex);
  const auto found = allocations().find(p);
  if (found == allocations().end()) return false;
  munmap(found->second.mapping - guard, found->second.mapped + 2 * guard);
  allocations().erase(found);
  return true;
}

std::string locate(const void* address) {
  const std::scoped_lock lock(allocations_mutex);
  const auto* p = static_cast<const char*>(address);
  for (const auto& [data, allocation] : allocations()) {
    const char *start = allocation.data, *end = start + allocation.bytes;
    if (p < allocation.mapping - guard || p >= allocation.mapping + allocation.mapped + guard) continue;
    const std::string what = std::to_string(allocation.bytes) + " bytes at " + hexadecimal(data);
    if (p < start) return std::to_string(start - p) + " bytes before " + what;
    if (p >= end) return "byte " + std::to_string(p - end) + " behind the end of " + what;
    return "byte " + std::to_string(p - start) + " of " + what;
  }
  return "";
}

std::string damaged_allocation() {
  const std::scoped_lock lock(allocations_mutex);
  for (auto& [data, allocation] : allocations()) {
    char *start = allocation.data, *end = start + allocation.bytes;
    char* limit = allocation.mapping + allocation.mapped;
    const char* before = first_damage(start - watched_before, start);
    const char* behind = first_damage(end, limit);
    if (before == start && behind == limit) continue;
    fill_words(start - watched_before, start);
    fill_words(end, limit);
    const std::string what = std::to_string(allocation.bytes) + " bytes at " + hexadecimal(data);
    return behind != limit ? "byte " + std::to_string(behind - end) + " behind the end of " + what
                           : std::to_string(start - before) + " bytes before " + what;
  }
  return "";
}

// ---- faults ----

namespace {

constexpr int fault_signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
struct sigaction handlers_before[std::size(fault_signals)];

[[noreturn]] void fail_current() { Block::running()->fail_for_fault(); }

void handle(int signal, siginfo_t* info, void* raw_context) {
  Block* block = Block::running();
  auto* context = static_cast<ucontext_t*>(raw_context);
  if (block == nullptr) {  // not a kernel's: as it was before us
    for (size_t i = 0; i < std::size(fault_signals); ++i) {
      if (fault_signals[i] == signal) sigaction(signal, &handlers_before[i], nullptr);
    }
    return;  // the instruction faults again
  }
  // The rest happens in the fiber, as if the faulting instruction had been a call.
  const auto stack = reinterpret_cast<uintptr_t>(block->stack_for_fault()) & ~uintptr_t{63};
#if defined(__x86_64__)
  auto& registers = context->uc_mcontext.gregs;
  block->fault = {signal, info->si_addr, reinterpret_cast<void*>(registers[REG_RIP])};
  registers[REG_RIP] = reinterpret_cast<greg_t>(&fail_current);
  registers[REG_RSP] = static_cast<greg_t>(stack - 8);
#else
  block->fault = {signal, info->si_addr, reinterpret_cast<void*>(context->uc_mcontext.pc)};
  context->uc_mcontext.pc = reinterpret_cast<uintptr_t>(&fail_current);
  context->uc_mcontext.sp = stack;
#endif
}

}  // namespace

void install_fault_handler() {
  static std::mutex mutex;
  const std::scoped_lock lock(mutex);
  for (size_t i = 0; i < std::size(fault_signals); ++i) {
    struct sigaction now;
    sigaction(fault_signals[i], nullptr, &now);
    if ((now.sa_flags & SA_SIGINFO) != 0 && now.sa_sigaction == &handle) continue;
    handlers_before[i] = now;
    struct sigaction ours {};
    ours.sa_sigaction = &handle;
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    sigaction(fault_signals[i], &ours, nullptr);
  }
}

FaultStack::FaultStack() : memory_(nullptr) {
  stack_t now;
  if (sigaltstack(nullptr, &now) == 0 && (now.ss_flags & SS_DISABLE) == 0) return;  // Python and others have their own
  constexpr size_t bytes = 64 << 10;
  memory_ = ::operator new(bytes);
  stack_t ours{};
  ours.ss_sp = memory_;
  ours.ss_size = bytes;
  sigaltstack(&ours, nullptr);
}

FaultStack::~FaultStack() {
  if (memory_ == nullptr) return;
  stack_t none{};
  none.ss_flags = SS_DISABLE;
  sigaltstack(&none, nullptr);
  ::operator delete(memory_);
}

void* Block::stack_for_fault() const { return stacks_->top(current_->number); }

void Block::fail_for_fault() {
  const int line = current_->copying ? current_->line : line_of(*launch_->request.image, fault.program_counter);
  if (fault.signal == SIGFPE) fail("an integer was divided by zero", line);
  if (fault.signal == SIGILL) fail("an instruction that this processor does not have", line);
  if (stacks_->overflowed(fault.address)) fail("the stack of a thread is full", line);
  const std::string access = current_->copying ? "an asynchronous copy reaches" : "an access to";
  if (shared_.surrounds(fault.address)) {
    const auto offset = static_cast<const char*>(fault.address) - shared_.data();
    fail(access + " byte " + std::to_string(offset) + " of " + std::to_string(shared_.size()) +
             " bytes of shared memory",
         line, true);
  }
  const std::string where = locate(fault.address);
  fail(access + " address " + hexadecimal(fault.address) + ", which is not there" + (where.empty() ? "" : ": " + where),
       line, true);
}

}  // namespace fwemu
