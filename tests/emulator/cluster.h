#pragma once
// A cluster: neighbouring blocks that run together and reach into each other's shared memory. A launch that asks for
// none has clusters of one block. One thread of the system runs them: a block until none of its threads can go on, then
// another, drawn at random.
#include <cstdint>
#include <memory>
#include <vector>

#include "emulator/block.h"

namespace fwemu {

class Cluster {
 public:
  // Runs cluster `index` of the launch. On a fault the launch has been told, and the cluster is good for another run.
  void run(Launch& launch, uint64_t index);

  unsigned size() const { return size_; }
  Block& block(unsigned rank) { return *blocks_[rank]; }
  // Returns whether a block other than this one can go on.
  bool others_can_run(const Block& block) const;

  std::string who_waits() const;
  Races& races() { return races_; }

  // The barrier of the cluster: a phase ends when all threads that have not ended have arrived.
  uint64_t phase() const { return phase_; }
  const Known& known() const { return known_; }  // to all who wait, with races
  void arrive();
  void arrive_with_races(uint32_t actor) { races_.add(gathering_, actor); }
  void end_thread();

 private:
  void end_phase_if_complete();

  unsigned size_ = 0;
  std::vector<std::unique_ptr<Block>> blocks_;  // kept for launches with larger clusters
  uint64_t phase_ = 0;
  unsigned live_ = 0, arrived_ = 0;
  Races races_;
  Gathering gathering_;
  Known known_;
};

}  // namespace fwemu
