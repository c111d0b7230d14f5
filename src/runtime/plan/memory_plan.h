#pragma once
#include <cstdint>
#include <vector>

namespace fusewright {

// Memory that a plan needs from one step to another, both included, and nobody sees outside of it.
struct Lifetime {
  int64_t bytes;
  int first, last;
};

// Where temporaries lie in one block: a single allocation, in which memory is used again once it is free.
struct BlockPlan {
  std::vector<int64_t> offsets;  // per temporary; -1: it has memory of its own
  int64_t bytes = 0;             // 0: there is no block
  int last = -1;                 // the step after which it can go
};

// Offsets and allocations are multiples of this, as in PyTorch's allocator.
constexpr int64_t memory_granule = 512;
constexpr int64_t whole_granules(int64_t bytes) {
  return (bytes + memory_granule - 1) / memory_granule * memory_granule;
}

// The largest first, each at the lowest place that is free while it lives.
//
// A block is there from its first temporary to its last, so it may hold memory when nobody needs it: beside results
// that are made later, or beside inputs that have not been released yet. The most that a call holds must not grow by
// it. Where it would, the largest temporary keeps memory of its own, which comes late and goes back early, until it
// does not. By step: `beside`, the bytes of all else that the plan holds; `released`, those of inputs that go back
// after it, if nobody else holds them.
BlockPlan plan_block(const std::vector<Lifetime>& temporaries, const std::vector<int64_t>& beside,
                     const std::vector<int64_t>& released);

}  // namespace fusewright
