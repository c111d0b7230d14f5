#include "runtime/plan/memory_plan.h"

#include <algorithm>
#include <numeric>

namespace fusewright {
namespace {

bool meet(const Lifetime& a, const Lifetime& b) { return a.first <= b.last && b.first <= a.last; }

// Puts the temporaries `order` into a block, in this order.
BlockPlan place_all(const std::vector<Lifetime>& temporaries, const std::vector<size_t>& order) {
  BlockPlan plan;
  plan.offsets.assign(temporaries.size(), -1);
  for (size_t k = 0; k < order.size(); ++k) {
    const Lifetime& own = temporaries[order[k]];
    std::vector<std::pair<int64_t, int64_t>> taken;  // begin and end of what lives at the same time
    for (size_t other = 0; other < k; ++other)
      if (meet(own, temporaries[order[other]])) {
        const int64_t begin = plan.offsets[order[other]];
        taken.emplace_back(begin, begin + whole_granules(temporaries[order[other]].bytes));
      }
    std::sort(taken.begin(), taken.end());
    int64_t at = 0;
    for (const auto& [begin, end] : taken) {
      if (at + whole_granules(own.bytes) <= begin) break;
      at = std::max(at, end);
    }
    plan.offsets[order[k]] = at;
    plan.bytes = std::max(plan.bytes, at + whole_granules(own.bytes));
    plan.last = std::max(plan.last, own.last);
  }
  return plan;
}

// What is held at each step.
std::vector<int64_t> held_at(const std::vector<Lifetime>& temporaries, const std::vector<int64_t>& beside,
                             const BlockPlan& plan) {
  std::vector<int64_t> held = beside;
  auto hold = [&](const Lifetime& l) {
    for (int s = l.first; s <= l.last; ++s) held[static_cast<size_t>(s)] += whole_granules(l.bytes);
  };
  Lifetime block{plan.bytes, plan.last, plan.last};
  for (size_t i = 0; i < temporaries.size(); ++i) {
    if (plan.offsets[i] < 0)
      hold(temporaries[i]);
    else
      block.first = std::min(block.first, temporaries[i].first);
  }
  if (plan.bytes > 0) hold(block);
  return held;
}

// Whether every step with the block holds no more than some step without it, whichever inputs are released: those that
// go back between the two count against a later step, and nothing comes back for an earlier one.
bool fits(const std::vector<int64_t>& with, const std::vector<int64_t>& without, const std::vector<int64_t>& released) {
  int64_t before = 0;
  for (size_t s = 0; s < with.size(); ++s) {
    int64_t allowed = before = std::max(before, without[s]), gone = 0;
    for (size_t later = s + 1; later < with.size(); ++later) {
      gone += released[later - 1];
      allowed = std::max(allowed, without[later] - gone);
    }
    if (with[s] > allowed) return false;
  }
  return true;
}

}  // namespace

BlockPlan plan_block(const std::vector<Lifetime>& temporaries, const std::vector<int64_t>& beside,
                     const std::vector<int64_t>& released) {
  std::vector<size_t> order(temporaries.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return temporaries[a].bytes > temporaries[b].bytes; });
  const BlockPlan none = place_all(temporaries, {});
  const std::vector<int64_t> without = held_at(temporaries, beside, none);
  // A block of one saves nothing.
  for (; order.size() > 1; order.erase(order.begin())) {
    BlockPlan plan = place_all(temporaries, order);
    if (fits(held_at(temporaries, beside, plan), without, released)) return plan;
  }
  return none;
}

}  // namespace fusewright
