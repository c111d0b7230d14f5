#include "emulator/races.h"

#include <algorithm>

#include "emulator/block.h"
#include "emulator/cluster.h"
#include "emulator/module.h"

namespace fwemu {
namespace {

uint32_t at(const std::vector<uint32_t>& steps, uint32_t actor) { return actor < steps.size() ? steps[actor] : 0; }

void raise(std::vector<uint32_t>& to, const std::vector<uint32_t>& from) {
  if (to.size() < from.size()) to.resize(from.size());
  for (size_t i = 0; i < from.size(); ++i) to[i] = std::max(to[i], from[i]);
}

void raise(std::vector<uint32_t>& to, uint32_t actor, uint32_t step) {
  if (to.size() <= actor) to.resize(actor + 1);
  to[actor] = std::max(to[actor], step);
}

bool covers(const std::vector<uint32_t>& all, const std::vector<uint32_t>& part) {
  for (size_t i = 0; i < part.size(); ++i)
    if (part[i] > at(all, static_cast<uint32_t>(i))) return false;
  return true;
}

bool covers(const Knowledge& all, const Knowledge& part) {
  return covers(all.seen, part.seen) && covers(all.fenced, part.fenced);
}

}  // namespace

void Races::begin(unsigned blocks, unsigned threads, size_t shared_bytes) {
  threads_ = threads;
  actors_ = blocks * threads;
  states_.assign(actors_, {nothing_, 1, 0});
  places_.resize(std::max<size_t>(places_.size(), blocks));
  for (auto& places : places_) {
    for (auto& accesses : places) accesses.clear();
    places.resize(std::max(places.size(), (shared_bytes + 15) / 16));
  }
  joins_.clear();
  learned_ = {};
  fence_ = {};
}

// ---- what threads know ----

bool Races::knows(uint32_t thread, uint32_t actor, uint32_t step) const {
  return actor == thread || at(states_[thread].base->seen, actor) >= step;
}

void Races::add(Gathering& gathering, uint32_t thread) {
  State& state = states_[thread];
  if (std::find(gathering.added.begin(), gathering.added.end(), state.base.get()) == gathering.added.end()) {
    raise(gathering.all.seen, state.base->seen);
    raise(gathering.all.fenced, state.base->fenced);
    gathering.added.push_back(state.base.get());
    gathering.kept.push_back(state.base);
  }
  raise(gathering.all.seen, thread, state.step);
  raise(gathering.all.fenced, thread, state.fenced);
  ++state.step;  // what it does from now on is not handed over
}

Known Races::finish(Gathering& gathering) {
  Known known = std::make_shared<Knowledge>(std::move(gathering.all));
  gathering = {};
  return known;
}

Known Races::joined(const Known& a, const Known& b) {
  if (a == b || b == nothing_) return a;
  if (a == nothing_) return b;
  for (const Joined& join : joins_)
    if (join.a == a && join.b == b) return join.result;
  Known result;
  if (covers(*b, *a)) {
    result = b;
  } else if (covers(*a, *b)) {
    result = a;
  } else {
    auto sum = std::make_shared<Knowledge>(*a);
    raise(sum->seen, b->seen);
    raise(sum->fenced, b->fenced);
    result = sum;
  }
  constexpr size_t remembered = 16;
  if (joins_.size() < remembered) joins_.emplace_back();
  joins_[next_join_++ % joins_.size()] = {a, b, result};
  return result;
}

void Races::learn(uint32_t thread, const Known& known) {
  State& state = states_[thread];
  state.base = joined(state.base, known);
}

void Races::learn(uint32_t thread, uint32_t actor, uint32_t step) {
  State& state = states_[thread];
  if (at(state.base->seen, actor) >= step) return;
  if (learned_.base != state.base || learned_.actor != actor || learned_.step != step) {
    auto more = std::make_shared<Knowledge>(*state.base);
    raise(more->seen, actor, step);
    learned_ = {state.base, more, actor, step};
  }
  state.base = learned_.result;
}

void Races::fence(uint32_t thread) {
  State& state = states_[thread];
  state.fenced = state.step++;
  if (fence_.first != state.base) {
    Known fenced = state.base;
    if (!covers(state.base->fenced, state.base->seen)) {
      auto all = std::make_shared<Knowledge>(*state.base);
      raise(all->fenced, all->seen);
      fenced = all;
    }
    fence_ = {state.base, fenced};
  }
  state.base = fence_.second;
}

// ---- accesses ----

Races::Order Races::order(const Access& earlier, uint32_t thread, bool asynchronous) const {
  const State& state = states_[thread];
  const bool own = earlier.actor == thread;
  if (!own && at(state.base->seen, earlier.actor) < earlier.step) return Order::unknown;
  // A copy may overwrite what threads have read: only what they have written needs a fence.
  if (!asynchronous || earlier.asynchronous || !earlier.write) return Order::known;
  return (own ? state.fenced : at(state.base->fenced, earlier.actor)) >= earlier.step ? Order::known : Order::unfenced;
}

Races::Conflict Races::note(unsigned block, size_t offset, size_t bytes, Access now, const uint32_t* callers,
                            unsigned count) {
  for (size_t place = offset / 16; place * 16 < offset + bytes; ++place) {
    const size_t first = std::max(offset, place * 16) - place * 16;
    const size_t end = std::min(offset + bytes, place * 16 + 16) - place * 16;
    now.bytes = static_cast<uint16_t>((1u << end) - (1u << first));
    std::vector<Access>& accesses = places_[block][place];
    size_t kept = 0;
    for (Access& earlier : accesses) {
      if ((earlier.bytes & now.bytes) != 0) {
        Order best = Order::unknown;
        for (unsigned i = 0; i < count && best != Order::known; ++i) {
          const Order found = order(earlier, callers[i], now.asynchronous);
          if (found != Order::unknown) best = found;
        }
        const bool conflicts = now.write || earlier.write;
        if (conflicts && best != Order::known) {
          const unsigned common = earlier.bytes & now.bytes;
          return {true, best == Order::unfenced, earlier, place * 16 + static_cast<size_t>(__builtin_ctz(common))};
        }
        // A thread that knows of this access will know of that one.
        if (now.write || (!earlier.write && best == Order::known)) earlier.bytes &= static_cast<uint16_t>(~now.bytes);
      }
      if (earlier.bytes != 0) accesses[kept++] = earlier;
    }
    accesses.resize(kept);
    accesses.push_back(now);
  }
  return {};
}

Races::Conflict Races::note(unsigned block, size_t offset, size_t bytes, bool write, uint32_t thread, const void* code,
                            int line) {
  const Access now = {thread, states_[thread].step, 0, write, false, Actor::thread, line, code};
  return note(block, offset, bytes, now, &thread, 1);
}

Races::Conflict Races::note(unsigned block, size_t offset, size_t bytes, bool write, const uint32_t* callers,
                            unsigned caller_count, Actor kind, uint32_t actor, uint32_t step, int line) {
  const Access now = {actor, step, 0, write, true, kind, line, nullptr};
  return note(block, offset, bytes, now, callers, caller_count);
}

// ---- what a block tells ----

uint32_t Block::actor(unsigned thread) const { return cluster_->races().thread(rank_, thread); }

Block* Block::owner_of(const void* p, size_t bytes) {
  if (shared_.contains(p, bytes)) return this;
  for (unsigned rank = 0; rank < cluster_->size(); ++rank)
    if (cluster_->block(rank).shared_.contains(p, bytes)) return &cluster_->block(rank);
  return nullptr;
}

void Block::report_race(const Races::Conflict& conflict, const std::string& doing, const Block& where, int line,
                        const void* code) {
  const Image& image = *launch_->request.image;
  const auto line_at = [&](const void* c, int l) {
    return c != nullptr ? line_of(image, static_cast<const char*>(c) - 1) : l;
  };
  const Races::Access& earlier = conflict.earlier;
  const std::string there = launch_->quote(line_at(earlier.code, earlier.line));
  const std::string byte = " byte " + std::to_string(conflict.offset) + " of " +
                           (&where == this ? "" : "block " + std::to_string(where.rank_) + "'s ") + "shared memory";
  std::string what = doing + byte;
  if (earlier.kind == Races::Actor::copies) {
    what += ", which the copy that was begun at " + there + " writes: there is no wait for its mbarrier between";
  } else if (earlier.kind == Races::Actor::products) {
    what +=
        ", which the product at " + there + " reads: no wgmma_wait of each of its warps, told by a barrier, is between";
  } else if (earlier.kind == Races::Actor::stores) {
    what += ", which the bulk store at " + there + " reads: there is no store_bulk_wait between";
  } else {
    const Races& races = cluster_->races();
    std::string thread = "thread " + std::to_string(races.number_of(earlier.actor));
    if (races.block_of(earlier.actor) != rank_) {
      thread += " of block " + std::to_string(races.block_of(earlier.actor)) + " of the cluster";
    }
    what += conflict.unfenced ? " that " + thread + " wrote, with no fence_async() between it and " + there
                              : " with no barrier between it and " + thread + " at " + there;
  }
  fail(what, line_at(code, line));
}

// An access by the running thread, or (a load of matrices) by another one of its warp.
void Block::note_access(const void* p, unsigned bytes, bool write, const void* code, int line, unsigned thread) {
  Block* where = owner_of(p, bytes);
  if (where == nullptr) {
    if (registers_ != nullptr) note_register(p, bytes, write, code);
    return;
  }
  const auto offset = static_cast<size_t>(static_cast<const char*>(p) - where->shared_.data());
  const Races::Conflict found = cluster_->races().note(where->rank_, offset, bytes, write, actor(thread), code, line);
  if (found.found) report_race(found, write ? "writes" : "reads", *where, line, code);
}

// An access beside the threads, on behalf of `count` threads from `first` on.
void Block::note_asynchronous(Block& where, const void* p, size_t bytes, bool write, unsigned first, unsigned count,
                              Races::Actor kind, uint32_t actor_number, uint32_t step, int line) {
  uint32_t callers[32];
  for (unsigned i = 0; i < count; ++i) callers[i] = actor(first + i);
  const auto offset = static_cast<size_t>(static_cast<const char*>(p) - where.shared_.data());
  const Races::Conflict found =
      cluster_->races().note(where.rank_, offset, bytes, write, callers, count, kind, actor_number, step, line);
  if (!found.found) return;
  static constexpr const char* names[] = {"", "a copy writes", "a product reads", "a bulk store reads"};
  report_race(found, names[static_cast<int>(kind)], where, line, nullptr);
}

}  // namespace fwemu
