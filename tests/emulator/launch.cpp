#include "emulator/launch.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "emulator/block.h"
#include "emulator/memory.h"
#include "emulator/module.h"

namespace fwemu {
namespace {

uint64_t number_from_environment(const char* name, uint64_t otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != 0 ? std::strtoull(value, nullptr, 0) : otherwise;
}

// Blocks have stacks and shared memory, which cost time to make: kept for the next launch.
class BlockStore {
 public:
  std::unique_ptr<Block> take() {
    const std::scoped_lock lock(mutex_);
    if (blocks_.empty()) return std::make_unique<Block>();
    std::unique_ptr<Block> block = std::move(blocks_.back());
    blocks_.pop_back();
    return block;
  }
  void give(std::unique_ptr<Block> block) {
    const std::scoped_lock lock(mutex_);
    blocks_.push_back(std::move(block));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Block>> blocks_;
};

BlockStore& block_store() {
  static auto* store = new BlockStore;
  return *store;
}

// Every `stride`-th block modulo their number: all of them once, in another order for each seed.
uint64_t stride_for(uint64_t seed, uint64_t count) {
  uint64_t stride = seed % count | 1;
  while (std::gcd(stride, count) != 1) stride += 2;
  return stride;
}

}  // namespace

void Launch::report(const std::string& place, const std::string& what, bool is_address) {
  const std::scoped_lock lock(mutex_);
  if (failed_.load()) return;
  diagnosis_ = {"kernel " + request.kernel_name + ", " + place + ": " + what, is_address};
  failed_.store(true);
}

std::string Launch::quote(int line) const { return fwemu::quote(*request.image, line); }

Diagnosis launch(const LaunchRequest& request) {
  install_fault_handler();
  const uint64_t seed = number_from_environment("FUSEWRIGHT_EMULATOR_SEED", 1);
  const uint64_t count = uint64_t{request.grid.x} * request.grid.y * request.grid.z;
  Launch state(request, seed);
  const uint64_t stride = stride_for(seed, count);
  std::atomic<uint64_t> next{0};
  const auto work = [&] {
    const FaultStack stack;
    std::unique_ptr<Block> block = block_store().take();
    for (uint64_t i = next++; i < count && !state.failed(); i = next++) {
      block->run(state, static_cast<uint64_t>(static_cast<unsigned __int128>(i) * stride % count));
    }
    block_store().give(std::move(block));
  };
  const uint64_t processors = std::max(1u, std::thread::hardware_concurrency());
  const uint64_t workers =
      std::min({number_from_environment("FUSEWRIGHT_EMULATOR_THREADS", std::min<uint64_t>(processors, 8)), count});
  std::vector<std::thread> threads;
  for (uint64_t i = 1; i < workers; ++i) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  if (!state.failed()) {
    if (const std::string damage = damaged_allocation(); !damage.empty()) state.report("some block", "wrote " + damage);
  }
  return state.take();
}

}  // namespace fwemu
