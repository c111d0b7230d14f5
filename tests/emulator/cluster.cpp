#include "emulator/cluster.h"

#include <cstring>

namespace fwemu {

void Cluster::run(Launch& launch, uint64_t index) {
  size_ = launch.request.cluster;
  while (blocks_.size() < size_) blocks_.push_back(std::make_unique<Block>());
  phase_ = 0;
  live_ = arrived_ = 0;
  gathering_ = {};
  if (launch.request.kernel->tells_accesses) {
    const Index threads = launch.request.block;
    races_.begin(size_, threads.x * threads.y * threads.z, launch.request.shared_bytes);
  }
  for (unsigned rank = 0; rank < size_; ++rank) {
    blocks_[rank]->begin(launch, *this, index * size_ + rank);
    live_ += blocks_[rank]->live();
  }
  while (live_ != 0) {
    std::vector<Block*> ready;
    for (unsigned rank = 0; rank < size_; ++rank)
      if (blocks_[rank]->can_run()) ready.push_back(blocks_[rank].get());
    if (ready.empty()) {
      launch.report("cluster " + std::to_string(index), "nothing can run any more: " + who_waits());
      return;
    }
    ready[ready.size() == 1 ? 0 : blocks_[0]->random() % ready.size()]->resume();
    if (launch.failed()) return;
  }
  for (unsigned rank = 0; rank < size_; ++rank) blocks_[rank]->check_end();
}

bool Cluster::others_can_run(const Block& block) const {
  for (unsigned rank = 0; rank < size_; ++rank)
    if (blocks_[rank].get() != &block && blocks_[rank]->can_run()) return true;
  return false;
}

std::string Cluster::who_waits() const {
  if (size_ == 1) return blocks_[0]->who_waits();
  std::string text;
  for (unsigned rank = 0; rank < size_; ++rank)
    text += (rank == 0 ? "in block " : "; in block ") + std::to_string(rank) + " of the cluster " +
            blocks_[rank]->who_waits();
  return text;
}

void Cluster::arrive() {
  ++arrived_;
  end_phase_if_complete();
}

void Cluster::end_thread() {
  --live_;
  end_phase_if_complete();
}

void Cluster::end_phase_if_complete() {
  if (live_ == 0 || arrived_ != live_) return;
  arrived_ = 0;
  ++phase_;
  if (!gathering_.added.empty()) known_ = Races::finish(gathering_);
  for (unsigned rank = 0; rank < size_; ++rank) blocks_[rank]->release_cluster();
}

// ---- what kernels call ----

void Block::cluster_arrive(int line) {
  Fiber& fiber = *current_;
  if (fiber.arrived) fail("arrives at the barrier of its cluster again, and has not waited there since", line);
  fiber.arrived = true;
  fiber.cluster_phase = cluster_->phase();
  if (watches_races_) cluster_->arrive_with_races(actor(fiber.number));
  cluster_->arrive();
}

void Block::cluster_wait(int line) {
  Fiber& fiber = *current_;
  if (!fiber.arrived) fail("waits at the barrier of its cluster, where it has not arrived", line);
  fiber.arrived = false;
  if (cluster_->phase() == fiber.cluster_phase) {
    fiber.wait = Wait::cluster;
    fiber.line = line;
    park();
  }
  if (watches_races_) cluster_->races().learn(actor(fiber.number), cluster_->known());
}

void Block::release_cluster() {
  for (const Fiber& fiber : fibers_)
    if (fiber.wait == Wait::cluster) make_runnable(fiber.number);
}

void* Block::cluster_pointer(void* own, unsigned rank, int line) {
  check_shared(own, 1, 1, line);
  if (rank >= cluster_->size()) {
    fail("reaches into block " + std::to_string(rank) + " of a cluster of " + std::to_string(cluster_->size()), line);
  }
  const Block& other = cluster_->block(rank);
  if (other.live_ == 0) fail("reaches into the shared memory of a block that has ended", line);
  return other.shared_.data() + (static_cast<char*>(own) - shared_.data());
}

// Arrives as late as the other block can tell: when it waits for it. Until then nothing of it is there.
void Block::store_async(void* own, const unsigned* words, uint64_t* barrier, unsigned rank, int line) {
  check_shared(own, 16, 16, line);
  check_shared(barrier, 8, 8, line);
  auto* to = static_cast<char*>(cluster_pointer(own, rank, line));
  Block& other = cluster_->block(rank);
  const auto index = other.mbarrier_at(static_cast<uint64_t*>(cluster_pointer(barrier, rank, line)));
  if (!index) fail("there is no initialised mbarrier in block " + std::to_string(rank) + " of the cluster", line);
  other.stores_.push_back({to, {words[0], words[1], words[2], words[3]}, *index, line});
  if (watches_races_) {
    const Mbarrier& counts = other.mbarriers_[*index];
    note_asynchronous(other, to, 16, true, current_->number, 1, Races::Actor::copies, counts.actor, counts.phase + 1,
                      line);
  }
  std::memset(to, poison, 16);
  if (!other.mbarriers_[*index].waiting.empty()) other.deliver_store(other.stores_.size() - 1);
}

}  // namespace fwemu
