#include "emulator/launch.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "emulator/cluster.h"
#include "emulator/memory.h"
#include "emulator/module.h"

namespace fwemu {
namespace {

uint64_t number_from_environment(const char* name, uint64_t otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != 0 ? std::strtoull(value, nullptr, 0) : otherwise;
}

// Their blocks have stacks and shared memory, which cost time to make: kept for the next launch.
class ClusterStore {
 public:
  std::unique_ptr<Cluster> take() {
    const std::scoped_lock lock(mutex_);
    if (clusters_.empty()) return std::make_unique<Cluster>();
    std::unique_ptr<Cluster> cluster = std::move(clusters_.back());
    clusters_.pop_back();
    return cluster;
  }
  void give(std::unique_ptr<Cluster> cluster) {
    const std::scoped_lock lock(mutex_);
    clusters_.push_back(std::move(cluster));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Cluster>> clusters_;
};

ClusterStore& cluster_store() {
  static auto* store = new ClusterStore;
  return *store;
}

// Every `stride`-th cluster modulo their number: all of them once, in another order for each seed.
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
  const uint64_t count = uint64_t{request.grid.x} * request.grid.y * request.grid.z / request.cluster;
  Launch state(request, seed);
  const uint64_t stride = stride_for(seed, count);
  std::atomic<uint64_t> next{0};
  const auto work = [&] {
    const FaultStack stack;
    std::unique_ptr<Cluster> cluster = cluster_store().take();
    for (uint64_t i = next++; i < count && !state.failed(); i = next++) {
      cluster->run(state, static_cast<uint64_t>(static_cast<unsigned __int128>(i) * stride % count));
    }
    cluster_store().give(std::move(cluster));
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
