// Barriers that some warps of a block meet at, and registers that warpgroups hand to one another.
#include "emulator/block.h"
#include "emulator/cluster.h"

namespace fwemu {

// ---- named barriers ----

void Block::named_barrier(WarpCall* call) {
  const auto id = static_cast<size_t>(call->detail);
  if (id == 0 || id >= named_barriers_.size()) {
    fail("there are named barriers 1 to 15 (0 is barrier()), but no " + std::to_string(id), call->line);
  }
  meet(call);
  if (!call->operand.barrier.waits) return;
  NamedBarrier& barrier = named_barriers_[id];
  while (barrier.phase == call->result.value) {
    current_->wait = Wait::named_barrier;
    current_->line = call->line;
    current_->awaited = id;
    barrier.waiting.push_back(current_->number);
    park();
  }
  if (watches_races_) cluster_->races().learn(actor(current_->number), barrier.known);
}

void Block::arrive_named(Warp& warp, unsigned index, int id, int line) {
  NamedBarrier& barrier = named_barriers_[static_cast<size_t>(id)];
  const std::string name = "named barrier " + std::to_string(id);
  const auto [threads, waits] = warp.calls[0]->operand.barrier;
  for (WarpCall* call : warp.calls) {
    if (call->operand.barrier.threads != threads || call->operand.barrier.waits != waits) {
      fail("lanes of a warp come to " + name + " in different ways", line);
    }
    call->result.value = barrier.phase;
  }
  if (threads == 0 || threads % 32 != 0 || threads > 32 * warps_.size()) {
    fail(name + " is for " + std::to_string(threads) + " threads of a block of " + std::to_string(fibers_.size()) +
             ": whole warps of the block are wanted",
         line);
  }
  if (barrier.arrived == 0) {
    barrier.threads = threads;
    barrier.line = line;
  } else if (barrier.threads != threads) {
    fail(name + " is for " + std::to_string(threads) + " threads here, and for " + std::to_string(barrier.threads) +
             " at " + launch_->quote(barrier.line),
         line);
  }
  if (watches_races_) {
    for (unsigned lane = 0; lane < 32; ++lane) cluster_->races().add(barrier.gathering, actor(32 * index + lane));
  }
  barrier.arrived += 32;
  if (barrier.arrived < barrier.threads) return;
  barrier.arrived = 0;
  ++barrier.phase;
  if (watches_races_) barrier.known = Races::finish(barrier.gathering);
  for (const unsigned number : barrier.waiting) make_runnable(number);
  barrier.waiting.clear();
}

// ---- registers ----

void Block::set_registers(Warp& warp, unsigned index, int count, int line) {
  const unsigned wanted = static_cast<unsigned>(count < 0 ? -count : count);
  if (warp.registers == 0) fail("changes the registers of a kernel without __launch_bounds__", line);
  if ((index / 4 + 1) * 4 > warps_.size()) fail("changes the registers of less than a warpgroup", line);
  if (count < 0 ? wanted > warp.registers : wanted < warp.registers) {
    fail((count < 0 ? "releases registers down to " : "requests registers up to ") + std::to_string(wanted) +
             " a thread, which has " + std::to_string(warp.registers),
         line);
  }
  ++warp.changes;
  if (count < 0) {
    free_registers_ += warp.registers - wanted;
    warp.registers = wanted;
  } else {
    warp.wanted = wanted;
  }
  grant_registers();
}

void Block::grant_registers() {
  for (unsigned w = 0; w < warps_.size(); ++w) {
    Warp& warp = warps_[w];
    if (warp.wanted == 0 || warp.wanted - warp.registers > free_registers_) continue;
    free_registers_ -= warp.wanted - warp.registers;
    warp.registers = warp.wanted;
    warp.wanted = 0;
    for (unsigned lane = 0; lane < 32; ++lane)
      if (fibers_[32 * w + lane].wait == Wait::registers) make_runnable(32 * w + lane);
  }
}

void Block::wait_for_registers(int line) {
  while (warps_[current_->number / 32].wanted != 0) {
    current_->wait = Wait::registers;
    current_->line = line;
    park();
  }
}

}  // namespace fwemu
