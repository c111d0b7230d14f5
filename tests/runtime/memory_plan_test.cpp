// Where temporaries lie in one block.
#include "runtime/plan/memory_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace fusewright {
namespace {

int64_t most_at_once(const std::vector<Lifetime>& all, const std::vector<int64_t>& beside) {
  int64_t most = 0;
  for (size_t s = 0; s < beside.size(); ++s) {
    int64_t held = beside[s];
    for (const Lifetime& l : all)
      if (l.first <= static_cast<int>(s) && static_cast<int>(s) <= l.last) held += whole_granules(l.bytes);
    most = std::max(most, held);
  }
  return most;
}

TEST(MemoryPlan, MemoryIsUsedAgain) {
  const BlockPlan plan = plan_block({{1000, 0, 1}, {1000, 1, 2}, {1000, 2, 3}, {1, 3, 4}}, std::vector<int64_t>(5),
                                    std::vector<int64_t>(5));
  EXPECT_EQ(plan.offsets, (std::vector<int64_t>{0, 1024, 0, 1024}));
  EXPECT_EQ(plan.bytes, 2048);
  EXPECT_EQ(plan.last, 4);
}

TEST(MemoryPlan, ALargeOneIsNotHeldBesideALaterResult) {
  const BlockPlan plan = plan_block({{1 << 20, 0, 1}, {100, 1, 3}, {100, 2, 3}}, {0, 0, 0, 1 << 20}, {0, 0, 0, 0});
  EXPECT_EQ(plan.offsets, (std::vector<int64_t>{-1, 0, 512}));
  EXPECT_EQ(plan.bytes, 1024);
}

TEST(MemoryPlan, NorBesideInputsThatGoBackBeforeIt) {
  const std::vector<Lifetime> all = {{100, 0, 1}, {1 << 20, 1, 1}, {100, 0, 1}};
  EXPECT_GE(plan_block(all, {0, 0}, {0, 0}).offsets[1], 0);
  EXPECT_EQ(plan_block(all, {0, 0}, {1 << 20, 0}).offsets, (std::vector<int64_t>{0, -1, 512}));
}

TEST(MemoryPlan, NoBlockForOneOrNone) {
  EXPECT_EQ(plan_block({}, {0, 0}, {0, 0}).bytes, 0);
  EXPECT_EQ(plan_block({{100, 0, 1}}, {0, 0}, {0, 0}).offsets, (std::vector<int64_t>{-1}));
}

TEST(MemoryPlan, RandomPlans) {
  std::mt19937 random(7);
  auto number = [&](int from, int to) { return std::uniform_int_distribution<int>(from, to)(random); };
  int blocks = 0;
  for (int round = 0; round < 3000; ++round) {
    const int steps = number(1, 12);
    std::vector<Lifetime> all(static_cast<size_t>(number(0, 14)));
    for (Lifetime& l : all) {
      l.first = number(0, steps - 1);
      l.last = number(l.first, steps - 1);
      l.bytes = number(0, 3) ? number(0, 5000) : number(0, 1 << 20);
    }
    std::vector<int64_t> beside(static_cast<size_t>(steps));
    for (int64_t& bytes : beside) bytes = 512 * number(0, 2000);
    std::vector<int64_t> released(static_cast<size_t>(steps));
    for (int64_t& bytes : released) bytes = number(0, 2) ? 0 : 512 * number(0, 2000);
    const BlockPlan plan = plan_block(all, beside, released);
    ASSERT_EQ(plan.offsets.size(), all.size());
    blocks += plan.bytes > 0;
    std::vector<Lifetime> held;  // as they are allocated
    Lifetime block{plan.bytes, steps, -1};
    for (size_t i = 0; i < all.size(); ++i) {
      if (plan.offsets[i] < 0) {
        held.push_back(all[i]);
        continue;
      }
      block.first = std::min(block.first, all[i].first);
      block.last = std::max(block.last, all[i].last);
      EXPECT_EQ(plan.offsets[i] % memory_granule, 0);
      EXPECT_LE(plan.offsets[i] + all[i].bytes, plan.bytes);
      for (size_t j = 0; j < i; ++j) {
        const bool together = all[i].first <= all[j].last && all[j].first <= all[i].last;
        if (plan.offsets[j] < 0 || !together) continue;
        const bool apart =
            plan.offsets[i] + all[i].bytes <= plan.offsets[j] || plan.offsets[j] + all[j].bytes <= plan.offsets[i];
        EXPECT_TRUE(apart || all[i].bytes == 0 || all[j].bytes == 0) << "round " << round << ": " << i << " and " << j;
      }
    }
    if (plan.bytes > 0) {
      held.push_back(block);
      EXPECT_EQ(plan.last, block.last);
    }
    // Whichever of the inputs are released: those of a step are one input here.
    for (int inputs = 0; inputs < 20; ++inputs) {
      std::vector<int64_t> all_beside = beside;
      for (int step = 0; step < steps; ++step) {
        if (inputs > 0 && number(0, 1)) continue;
        for (int s = 0; s <= step; ++s) all_beside[static_cast<size_t>(s)] += released[static_cast<size_t>(step)];
      }
      EXPECT_LE(most_at_once(held, all_beside), most_at_once(all, all_beside)) << "round " << round;
    }
  }
  EXPECT_GT(blocks, 1000);
}

}  // namespace
}  // namespace fusewright
