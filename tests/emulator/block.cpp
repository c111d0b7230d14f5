#include "emulator/block.h"

#include <algorithm>
#include <bit>
#include <map>

#include "emulator/cluster.h"
#include "emulator/register_marks.h"

namespace fwemu {
namespace {

// A fixed place in each thread's memory: finding it is one instruction, and every threadIdx does.
__attribute__((tls_model("initial-exec"))) thread_local Block* running_block = nullptr;

uint64_t mix(uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

std::string name_index(Index index, Index size) {
  std::string text = std::to_string(index.x);
  if (size.y == 1 && size.z == 1) return text;
  return "(" + text + ", " + std::to_string(index.y) + ", " + std::to_string(index.z) + ")";
}

}  // namespace

Block::Block() = default;
Block::~Block() = default;

Block* Block::running() { return running_block; }

const Runtime Block::runtime = {
    .self = [] { return static_cast<const Thread*>(&running_block->current_->view); },
    .fail = [](int line, const char* text) { running_block->fail(text, line); },
    .barrier = [](int line) { running_block->barrier(line); },
    .warp = [](WarpCall* call) { running_block->warp(call); },
    .copy_async = [](void* shared, const void* global, unsigned bytes, unsigned valid,
                     int line) { running_block->copy_async(shared, global, bytes, valid, line); },
    .copy_async_commit =
        [] {
          Fiber& fiber = *running_block->current_;
          fiber.groups.push_back(fiber.copies.size());
        },
    .copy_async_wait = [](int groups, int) { running_block->copy_async_wait(static_cast<size_t>(groups)); },
    .mbarrier_init = [](unsigned long long* barrier, unsigned arrivals,
                        int line) { running_block->mbarrier_init((uint64_t*)barrier, arrivals, line); },
    .mbarrier_arrive = [](unsigned long long* barrier,
                          int line) { running_block->mbarrier_arrive((uint64_t*)barrier, line); },
    .mbarrier_expect = [](unsigned long long* barrier, unsigned bytes,
                          int line) { running_block->mbarrier_expect((uint64_t*)barrier, bytes, line); },
    .mbarrier_try_wait = [](unsigned long long* barrier, unsigned parity,
                            int line) { return running_block->mbarrier_try_wait((uint64_t*)barrier, parity, line); },
    .access =
        [](const void* p, unsigned bytes, bool write, const void* code) {
          Block& block = *running_block;
          block.note_access(p, bytes, write, code, 0, block.current_->number);
        },
    .copy_bulk =
        [](void* shared, const void* global, unsigned bytes, unsigned long long* barrier, int line) {
          const AsyncCopy copy = {static_cast<char*>(shared), static_cast<const char*>(global), bytes, bytes, line};
          running_block->copy_bulk(copy, nullptr, (uint64_t*)barrier, 0);
        },
    .cluster_arrive = [](int line) { running_block->cluster_arrive(line); },
    .cluster_wait = [](int line) { running_block->cluster_wait(line); },
    .cluster_pointer = [](void* own, unsigned rank,
                          int line) { return running_block->cluster_pointer(own, rank, line); },
    .store_async = [](void* own, const unsigned* words, unsigned long long* barrier, unsigned rank,
                      int line) { running_block->store_async(own, words, (uint64_t*)barrier, rank, line); },
    .mbarrier_fence = [](int) { running_block->mbarrier_fence(); },
    .fence_async = [](int) { running_block->fence_async(); },
    .mbarrier_arrive_remote = [](unsigned long long* barrier, unsigned rank,
                                 int line) { running_block->mbarrier_arrive_remote((uint64_t*)barrier, rank, line); },
    .copy_bulk_multicast =
        [](void* shared, const void* global, unsigned bytes, unsigned long long* barrier, unsigned blocks, int line) {
          if (blocks == 0) running_block->fail("a copy to no block", line);
          const AsyncCopy copy = {static_cast<char*>(shared), static_cast<const char*>(global), bytes, bytes, line};
          running_block->copy_bulk(copy, nullptr, (uint64_t*)barrier, blocks);
        },
    .store_bulk = [](void* global, const void* shared, unsigned bytes,
                     int line) { running_block->store_bulk(global, shared, bytes, line); },
    .store_bulk_commit = [](int) { ++running_block->current_->store_groups; },
    // A group that is read here is written too.
    .store_bulk_wait = [](unsigned groups, bool, int line) { running_block->store_bulk_wait(groups, line); },
    .prefetch_bulk = [](const void* global, unsigned bytes,
                        int line) { running_block->prefetch_bulk(global, bytes, line); },
    .check_tensor_map =
        [](const void* map, int line) {
          if (tensor_map_at(map) == nullptr) running_block->fail("there is no tensor map here", line);
        },
    .copy_tile = [](void* shared, const void* map, const int* at, int rank, unsigned long long* barrier,
                    unsigned blocks,
                    int line) { running_block->copy_tile(shared, map, at, rank, (uint64_t*)barrier, blocks, line); },
    .shared_address = [](const void* p) { return running_block->shared_address(p); },
    .named_barrier = [](WarpCall* call) { running_block->named_barrier(call); },
    .hold = [](const float* accumulators, unsigned count, int line) { running_block->hold(accumulators, count, line); },
};

// ---- a block from its start to its end ----

void Block::begin(Launch& launch, Cluster& cluster, uint64_t index) {
  const LaunchRequest& request = launch.request;
  const Index size = request.block, grid = request.grid;
  const unsigned count = size.x * size.y * size.z;
  launch_ = &launch;
  cluster_ = &cluster;
  index_ = index;
  rank_ = static_cast<unsigned>(index % launch.request.cluster);
  random_ = mix(launch.seed ^ mix(index)) | 1;
  if (stacks_ == nullptr || stacks_->count() < count) stacks_ = std::make_unique<Stacks>(count);
  shared_.prepare(request.shared_bytes);
  watches_races_ = request.kernel->tells_accesses;
  registers_.reset();
  mbarriers_.clear();
  bulk_copies_.clear();
  stores_.clear();

  const Index block = {static_cast<unsigned>(index % grid.x), static_cast<unsigned>(index / grid.x % grid.y),
                       static_cast<unsigned>(index / grid.x / grid.y)};
  fibers_.resize(count);
  for (unsigned i = 0; i < count; ++i) {
    Fiber& fiber = fibers_[i];
    const Index thread = {i % size.x, i / size.x % size.y, i / size.x / size.y};
    fiber.view = {thread, block, size, grid, shared_.data()};
    fiber.stack_pointer = prepare_fiber(stacks_->top(i), fiber_main);
    fiber.number = i;
    fiber.wait = Wait::none;
    fiber.line = 0;
    fiber.copying = false;
    fiber.arrived = false;
    fiber.copies.clear();
    fiber.groups.clear();
    fiber.bulk_stores.clear();
    fiber.store_groups = 0;
    fiber.stores_actor = 0;
  }
  warps_.resize((count + 31) / 32);
  for (NamedBarrier& barrier : named_barriers_) {
    barrier.arrived = 0;
    barrier.waiting.clear();
    barrier.gathering = {};
    barrier.known = nullptr;
  }
  warpgroup_products_.assign((count + 127) / 128, {});
  // As the compiler allots them: all that the launch bounds leave, in eights.
  const Kernel& kernel = *request.kernel;
  const unsigned threads = (kernel.threads + 31) / 32 * 32 * std::max(kernel.blocks, 1u);
  const unsigned registers = threads == 0 ? 0 : std::min(65536 / threads / 8 * 8, 256u);
  free_registers_ = 0;
  ready_warps_ = 0;
  for (unsigned w = 0; w < warps_.size(); ++w) {
    const unsigned lanes = std::min(32u, count - 32 * w);
    warps_[w].live = warps_[w].runnable = lanes == 32 ? ~0u : (1u << lanes) - 1;
    warps_[w].meetings.clear();
    warps_[w].products.clear();
    warps_[w].accumulators.clear();
    warps_[w].asked = warps_[w].committed = warps_[w].fences = warps_[w].actor = 0;
    warps_[w].registers = registers;
    warps_[w].wanted = warps_[w].changes = 0;
    ready_warps_ |= 1u << w;
  }
  live_ = count;
  at_barrier_ = 0;
  current_ = &fibers_[0];
}

void Block::resume() {
  current_ = pick();
  running_block = this;
  fwemu_switch(&main_stack_pointer_, current_->stack_pointer);
  running_block = nullptr;
}

void Block::check_end() {
  const std::string place = "block " + name_index(fibers_[0].view.block, launch_->request.grid);
  if (const ptrdiff_t where = shared_.damage(); where != 0) {
    launch_->report(place, "shared memory was written " + std::to_string(where < 0 ? -where : where) +
                               (where < 0 ? " bytes before its start" : " bytes behind its end"));
  }
  if (launch_->failed()) return;
  check_products_at_end();
  if (!bulk_copies_.empty()) {
    launch_->report(
        place, "it ended while a bulk copy was under way that began at " + launch_->quote(bulk_copies_[0].copy.line));
  }
  if (!stores_.empty()) {
    launch_->report(place,
                    "it ended while a store of another block was under way, from " + launch_->quote(stores_[0].line));
  }
}

void Block::fiber_main() {
  Block& block = *running();
  block.launch_->request.kernel->call(block.launch_->request.arguments);
  block.end_fiber();
}

void Block::end_fiber() {
  Fiber& fiber = *current_;
  check_red_zones();
  check_ended_lane(fiber);
  if (fiber.arrived) fail("ends without waiting at the barrier of its cluster, where it arrived");
  if (!fiber.bulk_stores.empty()) fail("ends while a bulk store of it reads shared memory", fiber.bulk_stores[0].line);
  fiber.wait = Wait::ended;
  warps_[fiber.number / 32].live &= ~(1u << fiber.number % 32);
  --live_;
  if (live_ != 0 && at_barrier_ == live_) release_barrier();
  cluster_->end_thread();
  void* unused;
  Fiber* next = live_ == 0 ? nullptr : pick();
  if (next != nullptr) current_ = next;
  fwemu_switch(&unused, next != nullptr ? next->stack_pointer : main_stack_pointer_);
  __builtin_unreachable();
}

// ---- who runs next ----

uint32_t Block::random() {  // xorshift64*
  random_ ^= random_ >> 12;
  random_ ^= random_ << 25;
  random_ ^= random_ >> 27;
  return static_cast<uint32_t>((random_ * 0x2545f4914f6cdd1du) >> 32);
}

// A member of the set, by a random number.
unsigned Block::choose(uint32_t set, uint32_t drawn) {
  const unsigned start = drawn % 32;
  return (static_cast<unsigned>(std::countr_zero(std::rotr(set, static_cast<int>(start)))) + start) % 32;
}

// A fiber that can run; it no longer counts as one. Mostly of the same warp: its stacks are in the cache. Null if other
// blocks of the cluster have to go on first.
Fiber* Block::pick() {
  while (ready_warps_ == 0) {
    if (bulk_copies_.empty()) {
      if (cluster_->others_can_run(*this)) return nullptr;
      fail("nothing can run any more: " + cluster_->who_waits());
    }
    deliver(random() % bulk_copies_.size());
  }
  const uint32_t drawn = random();
  unsigned w = current_->number / 32;
  if (warps_[w].runnable == 0 || (drawn >> 28) == 0) w = choose(ready_warps_, drawn >> 8);
  const unsigned lane = choose(warps_[w].runnable, drawn);
  warps_[w].runnable &= ~(1u << lane);
  if (warps_[w].runnable == 0) ready_warps_ &= ~(1u << w);
  return &fibers_[32 * w + lane];
}

void Block::park() {
  check_red_zones();
  Fiber* from = current_;
  Fiber* next = pick();
  if (next == from) return;
  if (next != nullptr) current_ = next;
  fwemu_switch(&from->stack_pointer, next != nullptr ? next->stack_pointer : main_stack_pointer_);
}

void Block::make_runnable(unsigned number) {
  fibers_[number].wait = Wait::none;
  warps_[number / 32].runnable |= 1u << number % 32;
  ready_warps_ |= 1u << number / 32;
}

// ---- the barrier of the block ----

void Block::barrier(int line) {
  Fiber& fiber = *current_;
  fiber.wait = Wait::barrier;
  fiber.line = line;
  if (++at_barrier_ == live_) release_barrier();
  park();
}

void Block::release_barrier() {
  int line = 0;
  for (const Fiber& fiber : fibers_) {
    if (fiber.wait != Wait::barrier) continue;
    if (line == 0) line = fiber.line;
    if (fiber.line != line) fail("threads wait at different barriers: " + who_waits());
  }
  at_barrier_ = 0;
  if (watches_races_) {
    Gathering gathering;
    for (const Fiber& fiber : fibers_)
      if (fiber.wait == Wait::barrier) cluster_->races().add(gathering, actor(fiber.number));
    const Known known = Races::finish(gathering);
    for (const Fiber& fiber : fibers_)
      if (fiber.wait == Wait::barrier) cluster_->races().learn(actor(fiber.number), known);
  }
  for (Fiber& fiber : fibers_) {
    if (fiber.wait == Wait::barrier) fiber.wait = Wait::none;
  }
  for (unsigned w = 0; w < warps_.size(); ++w) {
    warps_[w].runnable = warps_[w].live;
    if (warps_[w].live != 0) ready_warps_ |= 1u << w;
  }
}

// ---- faults ----

void Block::check_red_zones() {
  if (!shared_.damaged_nearby()) [[likely]]
    return;
  const ptrdiff_t where = shared_.damage();
  fail("wrote to shared memory " + std::to_string(where < 0 ? -where : where) +
       (where < 0 ? " bytes before its start" : " bytes behind its end") + ", of " + std::to_string(shared_.size()) +
       " bytes, " + (current_->wait == Wait::none ? "behind" : "before") + " this line");
}

std::string Block::name_of(const Fiber& fiber) const {
  return "block " + name_index(fiber.view.block, launch_->request.grid) + ", thread " +
         name_index(fiber.view.thread, launch_->request.block);
}

std::string name_threads(const std::vector<unsigned>& numbers) {
  std::string text = numbers.size() == 1 ? "thread " : "threads ";
  for (size_t i = 0; i < numbers.size();) {
    size_t last = i;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    if (i != 0) text += ", ";
    text += std::to_string(numbers[i]);
    if (last != i) text += "-" + std::to_string(numbers[last]);
    i = last + 1;
  }
  return text;
}

std::string Block::who_waits() const {
  static constexpr const char* what[] = {" can run",
                                         " at the barrier of ",
                                         " for lanes of the warp at ",
                                         " for an mbarrier at ",
                                         " for the cluster at ",
                                         " at a named barrier at ",
                                         " for registers at ",
                                         " ended"};
  struct Key {
    Wait wait;
    int line;
    size_t awaited;
    auto operator<=>(const Key&) const = default;
  };
  std::map<Key, std::vector<unsigned>> groups;
  const auto waits = [](Wait wait) { return wait != Wait::none && wait != Wait::ended; };
  for (const Fiber& fiber : fibers_) {
    const bool names = fiber.wait == Wait::mbarrier || fiber.wait == Wait::named_barrier;
    groups[{fiber.wait, waits(fiber.wait) ? fiber.line : 0, names ? fiber.awaited : 0}].push_back(fiber.number);
  }
  std::string text;
  for (const auto& [key, numbers] : groups) {
    text += (text.empty() ? "" : "; ") + name_threads(numbers);
    if (waits(key.wait)) text += numbers.size() == 1 ? " waits" : " wait";
    text += what[static_cast<int>(key.wait)];
    if (waits(key.wait)) text += launch_->quote(key.line);
    if (key.wait == Wait::mbarrier) text += " (" + name_mbarrier(mbarriers_[key.awaited]) + ")";
    if (key.wait == Wait::named_barrier) {
      const NamedBarrier& barrier = named_barriers_[key.awaited];
      text += " (barrier " + std::to_string(key.awaited) + ": " + std::to_string(barrier.arrived) + " of " +
              std::to_string(barrier.threads) + " threads have come)";
    }
    if (key.wait == Wait::registers) {
      text += " (" + std::to_string(warps_[numbers[0] / 32].wanted) + " a thread, which has " +
              std::to_string(warps_[numbers[0] / 32].registers) + ", and the block has " +
              std::to_string(free_registers_) + " left)";
    }
  }
  return text;
}

// The strings are never destroyed: the fiber's stack is given up as it is.
void Block::fail(const std::string& what, int line, bool is_address) {
  if (line == 0) line = current_->line;
  std::string place = name_of(*current_);
  if (line != 0) place += ", " + launch_->quote(line);
  launch_->report(place, what, is_address);
  void* unused;
  fwemu_switch(&unused, main_stack_pointer_);
  __builtin_unreachable();
}

}  // namespace fwemu
