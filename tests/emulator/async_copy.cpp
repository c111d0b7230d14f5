// Copies that run beside a kernel, and the barriers in shared memory that count them. A copy is made as late as it may
// be: when somebody waits for it. Until then its destination is poisoned, so that reading it too early, and overwriting
// what others still read, both show.
#include <cstring>

#include "emulator/block.h"

namespace fwemu {
namespace {

constexpr uint64_t mbarrier_mark = 0x6d626172'00000000;  // in shared memory, with the number of the barrier

}  // namespace

void Block::check_shared(const void* p, unsigned bytes, unsigned alignment, int line) {
  if (!shared_.contains(p, bytes)) {
    const auto offset = static_cast<const char*>(p) - shared_.data();
    fail("bytes " + std::to_string(offset) + " to " + std::to_string(offset + bytes) + " are not in the " +
             std::to_string(shared_.size()) + " bytes of shared memory",
         line);
  }
  if (reinterpret_cast<uintptr_t>(p) % alignment != 0) {
    fail("an address in shared memory is not aligned to " + std::to_string(alignment) + " bytes", line);
  }
}

// ---- cp.async ----

void Block::copy_async(void* shared, const void* global, unsigned bytes, unsigned valid, int line) {
  check_shared(shared, bytes, bytes, line);
  if (reinterpret_cast<uintptr_t>(global) % bytes != 0) {
    fail("the source of an asynchronous copy is not aligned to its " + std::to_string(bytes) + " bytes", line);
  }
  if (valid > bytes) fail("an asynchronous copy reads more bytes than it writes", line);
  current_->copies.push_back({static_cast<char*>(shared), static_cast<const char*>(global), bytes, valid, line});
  if (watches_races_) note_access(shared, bytes, true, nullptr, line, current_->number);
  std::memset(shared, poison, bytes);
}

void Block::copy_now(const AsyncCopy& copy) {
  Fiber& fiber = *current_;
  const int line = fiber.line;
  fiber.line = copy.line;
  fiber.copying = true;
  if (watches_races_) note_access(copy.to, copy.bytes, true, nullptr, copy.line, fiber.number);
  std::memcpy(copy.to, copy.from, copy.valid);
  std::memset(copy.to + copy.valid, 0, copy.bytes - copy.valid);
  fiber.copying = false;
  fiber.line = line;
}

void Block::copy_async_wait(size_t groups) {
  Fiber& fiber = *current_;
  if (fiber.groups.size() <= groups) return;
  const size_t ended_groups = fiber.groups.size() - groups;
  const size_t ended = fiber.groups[ended_groups - 1];
  for (size_t i = 0; i < ended; ++i) copy_now(fiber.copies[i]);
  fiber.copies.erase(fiber.copies.begin(), fiber.copies.begin() + static_cast<ptrdiff_t>(ended));
  fiber.groups.erase(fiber.groups.begin(), fiber.groups.begin() + static_cast<ptrdiff_t>(ended_groups));
  for (size_t& end : fiber.groups) end -= ended;
}

// ---- mbarrier ----

std::optional<size_t> Block::mbarrier_at(const uint64_t* barrier) const {
  const uint64_t index = *barrier ^ mbarrier_mark;
  return index < mbarriers_.size() && mbarriers_[index].address == barrier ? std::optional(index) : std::nullopt;
}

size_t Block::find_mbarrier(uint64_t* barrier, int line) {
  check_shared(barrier, 8, 8, line);
  const std::optional<size_t> index = mbarrier_at(barrier);
  if (!index) fail("there is no initialised mbarrier here, or it was overwritten", line);
  return *index;
}

void Block::mbarrier_init(uint64_t* barrier, unsigned arrivals, int line) {
  check_shared(barrier, 8, 8, line);
  if (arrivals == 0) fail("an mbarrier of no arrivals", line);
  *barrier = mbarrier_mark | mbarriers_.size();
  mbarriers_.push_back({barrier, arrivals, arrivals, 0, 0, {}});
}

void Block::end_phase_if_complete(Mbarrier& barrier) {
  if (barrier.pending != 0 || barrier.bytes != 0) return;
  barrier.pending = barrier.arrivals;
  ++barrier.phase;
  for (const unsigned number : barrier.waiting) make_runnable(number);
  barrier.waiting.clear();
}

void Block::mbarrier_arrive(uint64_t* barrier, int line) {
  Mbarrier& b = mbarriers_[find_mbarrier(barrier, line)];
  if (b.pending == 0) {
    fail("more than the " + std::to_string(b.arrivals) + " arrivals of this mbarrier's phase", line);
  }
  --b.pending;
  end_phase_if_complete(b);
}

void Block::mbarrier_expect(uint64_t* barrier, unsigned bytes, int line) {
  Mbarrier& b = mbarriers_[find_mbarrier(barrier, line)];
  b.bytes += bytes;
  if (b.bytes >= 1 << 20) fail("an mbarrier counts less than 2^20 bytes", line);
}

bool Block::mbarrier_try_wait(uint64_t* barrier, unsigned parity, int line) {
  const size_t index = find_mbarrier(barrier, line);
  if (parity > 1) fail("a parity is 0 or 1", line);
  const auto ended = [&] { return (mbarriers_[index].phase & 1) != parity; };
  for (size_t i = bulk_copies_.size(); i-- > 0 && !ended();) {
    if (bulk_copies_[i].mbarrier == index) deliver(i);
  }
  for (size_t i = stores_.size(); i-- > 0 && !ended();) {
    if (stores_[i].mbarrier == index) deliver_store(i);
  }
  if (ended()) return true;
  current_->wait = Wait::mbarrier;
  current_->line = line;
  mbarriers_[index].waiting.push_back(current_->number);
  park();
  return ended();
}

// ---- cp.async.bulk ----

void Block::copy_bulk(void* shared, const void* global, unsigned bytes, uint64_t* barrier, int line) {
  const size_t index = find_mbarrier(barrier, line);
  check_shared(shared, bytes, 16, line);
  if (reinterpret_cast<uintptr_t>(global) % 16 != 0 || bytes % 16 != 0 || bytes == 0) {
    fail("a bulk copy moves a multiple of 16 bytes from an address aligned to 16", line);
  }
  bulk_copies_.push_back({{static_cast<char*>(shared), static_cast<const char*>(global), bytes, bytes, line}, index});
  std::memset(shared, poison, bytes);
}

void Block::deliver(size_t bulk_copy) {
  const BulkCopy done = bulk_copies_[bulk_copy];
  bulk_copies_.erase(bulk_copies_.begin() + static_cast<ptrdiff_t>(bulk_copy));
  copy_now(done.copy);
  mbarriers_[done.mbarrier].bytes -= done.copy.bytes;
  end_phase_if_complete(mbarriers_[done.mbarrier]);
}

void Block::deliver_store(size_t store) {
  const Store done = stores_[store];
  stores_.erase(stores_.begin() + static_cast<ptrdiff_t>(store));
  std::memcpy(done.to, done.words.data(), sizeof done.words);
  mbarriers_[done.mbarrier].bytes -= sizeof done.words;
  end_phase_if_complete(mbarriers_[done.mbarrier]);
}

}  // namespace fwemu
