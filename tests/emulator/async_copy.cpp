// Copies that run beside a kernel, and the barriers in shared memory that count them. A copy is made as late as it may
// be: when somebody waits for it. Until then its destination is poisoned, so that reading it too early, and overwriting
// what others still read, both show.
#include <cstring>

#include "emulator/block.h"
#include "emulator/cluster.h"

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

size_t Block::find_remote_mbarrier(uint64_t* own, unsigned rank, int line) {
  check_shared(own, 8, 8, line);
  const auto index = cluster_->block(rank).mbarrier_at(static_cast<uint64_t*>(cluster_pointer(own, rank, line)));
  if (!index) fail("there is no initialised mbarrier in block " + std::to_string(rank) + " of the cluster", line);
  return *index;
}

std::string Block::name_mbarrier(const Mbarrier& barrier) const {
  std::string text = "mbarrier at byte " +
                     std::to_string(reinterpret_cast<const char*>(barrier.address) - shared_.data()) +
                     " of shared memory, phase " + std::to_string(barrier.phase) + ": ";
  if (barrier.pending != 0)
    text += std::to_string(barrier.pending) + " of " + std::to_string(barrier.arrivals) + " arrivals are missing";
  if (barrier.bytes > 0)
    text += (barrier.pending != 0 ? " and " : "") + std::to_string(barrier.bytes) + " announced bytes are missing";
  if (barrier.pending == 0 && barrier.bytes == 0) text += "nothing is missing";
  return text;
}

void Block::mbarrier_init(uint64_t* barrier, unsigned arrivals, int line) {
  check_shared(barrier, 8, 8, line);
  if (arrivals == 0) fail("an mbarrier of no arrivals", line);
  *barrier = mbarrier_mark | mbarriers_.size();
  Mbarrier made = {};
  made.address = barrier;
  made.arrivals = made.pending = arrivals;
  made.init_thread = current_->number;
  made.init_line = line;
  if (watches_races_) {
    made.init_step = cluster_->races().step_of(actor(current_->number));
    made.actor = cluster_->races().new_actor();
  }
  mbarriers_.push_back(std::move(made));
}

void Block::mbarrier_fence() {
  for (Mbarrier& barrier : mbarriers_) barrier.fenced |= barrier.init_thread == current_->number;
}

void Block::fence_async() {
  mbarrier_fence();
  if (watches_races_) cluster_->races().fence(actor(current_->number));
}

void Block::end_phase_if_complete(Mbarrier& barrier) {
  if (barrier.pending != 0 || barrier.bytes != 0) return;
  const auto index = static_cast<size_t>(&barrier - mbarriers_.data());
  for (const BulkCopy& copy : bulk_copies_) {
    if (copy.mbarrier != index || copy.phase != barrier.phase) continue;
    running()->fail("phase " + std::to_string(barrier.phase) + " of the " + name_mbarrier(barrier) +
                    ", and it ends while a copy that it counts is under way, which was begun at " +
                    launch_->quote(copy.copy.line) + ": fewer bytes were announced than are copied");
  }
  barrier.pending = barrier.arrivals;
  ++barrier.phase;
  if (watches_races_) {
    if (barrier.known != nullptr) {  // who waits for this phase has waited for those before
      Gathering& all = barrier.gathering;
      all.all.seen.resize(std::max(all.all.seen.size(), barrier.known->seen.size()));
      all.all.fenced.resize(std::max(all.all.fenced.size(), barrier.known->fenced.size()));
      for (size_t i = 0; i < barrier.known->seen.size(); ++i)
        all.all.seen[i] = std::max(all.all.seen[i], barrier.known->seen[i]);
      for (size_t i = 0; i < barrier.known->fenced.size(); ++i)
        all.all.fenced[i] = std::max(all.all.fenced[i], barrier.known->fenced[i]);
    }
    std::vector<uint32_t>& seen = barrier.gathering.all.seen;
    seen.resize(std::max<size_t>(seen.size(), barrier.actor + 1));
    seen[barrier.actor] = barrier.phase;
    barrier.known = Races::finish(barrier.gathering);
  }
  for (const unsigned number : barrier.waiting) make_runnable(number);
  barrier.waiting.clear();
}

// Bytes arrive, or (negative) are announced.
void Block::count_bytes(Mbarrier& barrier, int64_t arrived, int line) {
  barrier.bytes -= arrived;
  if (barrier.bytes >= 1 << 20) running()->fail("an mbarrier counts less than 2^20 bytes", line);
  if (barrier.bytes < 0 && barrier.pending == 0) {
    running()->fail("the " + name_mbarrier(barrier) + ", and " + std::to_string(-barrier.bytes) +
                        " bytes have arrived that were not announced",
                    line);
  }
}

void Block::arrive(Block& where, size_t mbarrier, int line) {
  Mbarrier& b = where.mbarriers_[mbarrier];
  if (watches_races_) {
    Races& races = cluster_->races();
    const uint32_t self = actor(current_->number), init = where.actor(b.init_thread);
    if (!races.knows(self, init, b.init_step)) {
      fail("arrives at an mbarrier with no barrier between it and the initialisation at " + launch_->quote(b.init_line),
           line);
    }
    races.add(b.gathering, self);
  }
  if (b.pending == 0) {
    fail("more than the " + std::to_string(b.arrivals) + " arrivals of this mbarrier's phase", line);
  }
  --b.pending;
  current_->line = line;
  if (b.pending == 0) where.count_bytes(b, 0, line);
  where.end_phase_if_complete(b);
}

void Block::mbarrier_arrive(uint64_t* barrier, int line) { arrive(*this, find_mbarrier(barrier, line), line); }

void Block::mbarrier_arrive_remote(uint64_t* barrier, unsigned rank, int line) {
  // Checks the rank, and that the block is there.
  cluster_pointer(barrier, rank, line);
  arrive(cluster_->block(rank), find_remote_mbarrier(barrier, rank, line), line);
}

void Block::mbarrier_expect(uint64_t* barrier, unsigned bytes, int line) {
  count_bytes(mbarriers_[find_mbarrier(barrier, line)], -int64_t{bytes}, line);
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
  if (!ended()) {
    current_->wait = Wait::mbarrier;
    current_->line = line;
    current_->awaited = index;
    mbarriers_[index].waiting.push_back(current_->number);
    park();
    if (!ended()) return false;
  }
  if (watches_races_ && mbarriers_[index].known != nullptr)
    cluster_->races().learn(actor(current_->number), mbarriers_[index].known);
  return true;
}

// ---- cp.async.bulk ----

const char* Block::window() const {
  // As on the device, the first bytes are the system's.
  constexpr uintptr_t unit = fw::pattern_bytes(fw::swizzle_128);
  return reinterpret_cast<const char*>(reinterpret_cast<uintptr_t>(shared_.data()) / unit * unit - unit);
}

unsigned Block::shared_address(const void* p) const {
  return static_cast<unsigned>(static_cast<const char*>(p) - window());
}

void Block::copy_bulk(const AsyncCopy& copy, const Tile* tile, uint64_t* barrier, unsigned blocks) {
  const int line = copy.line;
  find_mbarrier(barrier, line);
  check_shared(copy.to, copy.bytes, tile != nullptr ? 128 : 16, line);
  if (tile == nullptr &&
      (reinterpret_cast<uintptr_t>(copy.from) % 16 != 0 || copy.bytes % 16 != 0 || copy.bytes == 0)) {
    fail("a bulk copy moves a multiple of 16 bytes from an address aligned to 16", line);
  }
  if (blocks >> cluster_->size() != 0) {
    fail("copies to blocks that a cluster of " + std::to_string(cluster_->size()) + " does not have", line);
  }
  if (blocks == 0) blocks = 1u << rank_;
  for (unsigned rank = 0; rank < cluster_->size(); ++rank) {
    if ((blocks >> rank & 1) == 0) continue;
    Block& to = cluster_->block(rank);
    const size_t index = find_remote_mbarrier(barrier, rank, line);
    Mbarrier& counts = to.mbarriers_[index];
    if (!counts.fenced) {
      fail("there is no mbarrier_fence() behind the initialisation of this copy's mbarrier at " +
               launch_->quote(counts.init_line),
           line);
    }
    BulkCopy begun = {copy, tile != nullptr ? std::optional(*tile) : std::nullopt, index, counts.phase};
    begun.copy.to = to.shared_.data() + (copy.to - shared_.data());
    if (watches_races_) {
      note_asynchronous(to, begun.copy.to, copy.bytes, true, current_->number, 1, Races::Actor::copies, counts.actor,
                        counts.phase + 1, line);
    }
    std::memset(begun.copy.to, poison, copy.bytes);
    to.bulk_copies_.push_back(begun);
    // A block that waits would not be asked again.
    if (&to != this && !counts.waiting.empty()) to.deliver(to.bulk_copies_.size() - 1);
  }
}

void Block::copy_tile(void* shared, const void* map, const int* at, int rank, uint64_t* barrier, unsigned blocks,
                      int line) {
  const EncodedTensorMap* encoded = tensor_map_at(map);
  if (encoded == nullptr) fail("there is no tensor map here", line);
  if (rank != encoded->rank) {
    fail("a copy of " + std::to_string(rank) + " coordinates through a tensor map of " + std::to_string(encoded->rank) +
             " dimensions",
         line);
  }
  Tile tile = {*encoded, {}};
  std::copy(at, at + rank, tile.at);
  copy_bulk({static_cast<char*>(shared), nullptr, tile.bytes(), tile.bytes(), line}, &tile, barrier, blocks);
}

void Block::deliver(size_t bulk_copy) {
  const BulkCopy done = bulk_copies_[bulk_copy];
  bulk_copies_.erase(bulk_copies_.begin() + static_cast<ptrdiff_t>(bulk_copy));
  Fiber& fiber = *running()->current_;  // of this block, or of one that copies to it
  const int line = fiber.line;
  fiber.line = done.copy.line;
  fiber.copying = true;
  if (done.tile)
    done.tile->copy(done.copy.to, shared_address(done.copy.to));
  else
    std::memcpy(done.copy.to, done.copy.from, done.copy.bytes);
  fiber.copying = false;
  fiber.line = line;
  count_bytes(mbarriers_[done.mbarrier], done.copy.bytes, done.copy.line);
  end_phase_if_complete(mbarriers_[done.mbarrier]);
}

void Block::deliver_store(size_t store) {
  const Store done = stores_[store];
  stores_.erase(stores_.begin() + static_cast<ptrdiff_t>(store));
  std::memcpy(done.to, done.words.data(), sizeof done.words);
  count_bytes(mbarriers_[done.mbarrier], sizeof done.words, done.line);
  end_phase_if_complete(mbarriers_[done.mbarrier]);
}

// ---- cp.async.bulk from shared to global memory ----

void Block::store_bulk(void* global, const void* shared, unsigned bytes, int line) {
  check_shared(shared, bytes, 16, line);
  if (reinterpret_cast<uintptr_t>(global) % 16 != 0 || bytes % 16 != 0 || bytes == 0) {
    fail("a bulk store moves a multiple of 16 bytes to an address aligned to 16", line);
  }
  Fiber& fiber = *current_;
  const unsigned group = fiber.store_groups + 1;
  if (watches_races_) {
    if (fiber.stores_actor == 0) fiber.stores_actor = cluster_->races().new_actor();
    note_asynchronous(*this, shared, bytes, false, fiber.number, 1, Races::Actor::stores, fiber.stores_actor, group,
                      line);
  }
  fiber.bulk_stores.push_back({static_cast<char*>(global), static_cast<const char*>(shared), bytes, group, line});
}

// As late as they may, stores read what they store.
void Block::store_bulk_wait(unsigned groups, int line) {
  Fiber& fiber = *current_;
  const unsigned ended = fiber.store_groups > groups ? fiber.store_groups - groups : 0;
  size_t done = 0;
  for (; done < fiber.bulk_stores.size() && fiber.bulk_stores[done].group <= ended; ++done) {
    const BulkStore& store = fiber.bulk_stores[done];
    fiber.line = store.line;
    fiber.copying = true;
    std::memcpy(store.to, store.from, store.bytes);
    fiber.copying = false;
  }
  fiber.line = line;
  fiber.bulk_stores.erase(fiber.bulk_stores.begin(), fiber.bulk_stores.begin() + static_cast<ptrdiff_t>(done));
  if (watches_races_ && fiber.stores_actor != 0)
    cluster_->races().learn(actor(fiber.number), fiber.stores_actor, ended);
}

void Block::prefetch_bulk(const void* global, unsigned bytes, int line) {
  if (reinterpret_cast<uintptr_t>(global) % 16 != 0 || bytes % 16 != 0 || bytes == 0) {
    fail("a bulk prefetch is of a multiple of 16 bytes at an address aligned to 16", line);
  }
  Fiber& fiber = *current_;
  const int before = fiber.line;
  fiber.line = line;
  fiber.copying = true;
  const auto* bytes_of = static_cast<const volatile char*>(global);
  (void)bytes_of[0], (void)bytes_of[bytes - 1];
  fiber.copying = false;
  fiber.line = before;
}

}  // namespace fwemu
