// Which outputs are written over the inputs that they replace.
#include "support/graphs.h"

namespace fusewright::testing {
namespace {

// Positions of the outputs, and how many loads look only where they will write.
std::pair<std::vector<int>, int> in_place(std::string_view text, const std::vector<std::string>& wrt = {}) {
  Program program = program_of(text, wrt);
  verify(program.forward);
  run_pipeline(program);
  int loads = 0;
  for (const Group& group : program.forward_fusion.groups)
    for (const Step& step : group.kernel.steps) loads += step.overwritten;
  return {program.forward_fusion.in_place, loads};
}
using Found = std::pair<std::vector<int>, int>;

TEST(Update, RunningStatisticsOfBatchNorm) {
  for (const char* shape : {"n, c", "n, c, h, w", "n, c, h, w"}) {
    const std::string text = std::string("graph(%x: f32[") + shape +
                             "], %m: f32[c], %v: f32[c], %k: i64[]) { %1 = batch_norm(%x) {eps = 0.1} %2 = "
                             "batch_norm_running_mean(%x, %m) {momentum = 0.1} %3 = batch_norm_running_var(%x, %v) "
                             "{momentum = 0.1} %4: i64[] = constant() {value = 1, runtime = 1} %5 = add(%k, %4) "
                             "return %1, %2! -> %m, %3! -> %v, %5! -> %k }";
    EXPECT_EQ(in_place(text), (Found{{1, 2, 3}, 3}));
    EXPECT_EQ(in_place(text, {"x"}), (Found{{1, 2, 3}, 3}));
  }
}

TEST(Update, TheCounterIsInTheKernelOfTheStatistics) {
  Program program = program_of(
      "graph(%x: f32[n, c], %m: f32[c], %k: i64[]) { %2 = batch_norm_running_mean(%x, %m) {momentum = 0.1} %4: i64[] = "
      "constant() {value = 1, runtime = 1} %5 = add(%k, %4) return %2! -> %m, %5! -> %k }");
  run_pipeline(program);
  EXPECT_EQ(program.forward_fusion.groups.size(), 1u);
}

TEST(Update, ASumThatReplacesABufferUnread) {
  EXPECT_EQ(in_place("graph(%x: f32[n, c], %m: f32[c]) { %1 = sum(%x) {dims = (0), keepdim = 0} return %1! -> %m }"),
            (Found{{0}, 0}));
}

TEST(Update, NotWhatTheElementsRead) {
  EXPECT_EQ(in_place("graph(%x: f32[n, c], %m: f32[c]) { %1 = mul(%x, %m) %2 = sum(%1) {dims = (0), keepdim = 0} %3 = "
                     "add(%2, %m) return %1, %3! -> %m }"),
            (Found{{}, 0}));
}

TEST(Update, NotWhatALaterKernelReads) {
  const std::string head =
      "graph(%x: f32[n, c], %m: f32[c], %y: f32[q, c], %w: f32[c, c]) { %1 = sum(%x) {dims = (0), keepdim = 0} %2 = "
      "add(%1, %m) ";
  EXPECT_EQ(in_place(head + "%3 = mul(%y, %m) return %2! -> %m, %3 }"), (Found{{}, 0}));
  EXPECT_EQ(in_place(head + "%3 = mul(%y, %y) return %2! -> %m, %3 }"), (Found{{0}, 1}));
  // Through a view, and by a library.
  EXPECT_EQ(in_place(head + "%3 = reshape(%m) {sizes = [1, c]} %4 = matmul(%3, %w) return %2! -> %m, %4 }"),
            (Found{{}, 0}));
}

TEST(Update, WhatAnEarlierKernelReads) {
  EXPECT_EQ(in_place("graph(%y: f32[c, c], %m: f32[c], %x: f32[n, c]) { %1 = reshape(%m) {sizes = [1, c]} %2 = "
                     "matmul(%1, %y) %3 = sub(%x, %2) %4 = sum(%3) {dims = (0), keepdim = 0} return %4! -> %m }"),
            (Found{{0}, 0}));
}

TEST(Update, NotElementForElement) {
  // Another element of the buffer is read than is written.
  EXPECT_EQ(in_place("graph(%x: f32[n, c, c], %m: f32[c, c]) { %1 = sum(%x) {dims = (0), keepdim = 0} %2 = permute(%m) "
                     "{dims = (1, 0)} %3 = add(%1, %2) return %3! -> %m }"),
            (Found{{}, 0}));
  // No rows: every element is somebody else's.
  EXPECT_EQ(in_place("graph(%x: f32[n, c], %m: f32[n, c]) { %1 = add(%x, %m) return %1! -> %m }"), (Found{{}, 0}));
}

TEST(Update, NotWhatOthersHold) {
  // The user, a view of the user's, the backward.
  const std::string head = "graph(%x: f32[n, c], %m: f32[c]) { %1 = sum(%x) {dims = (0), keepdim = 0} ";
  EXPECT_EQ(in_place(head + "%2 = add(%1, %m) return %2, %2! -> %m }"), (Found{{}, 0}));
  EXPECT_EQ(in_place(head + "%2 = add(%1, %m) %3 = reshape(%2) {sizes = [c, 1]} return %3, %2! -> %m }"),
            (Found{{}, 0}));
  EXPECT_EQ(in_place(head + "%2 = div(%x, %1) return %2, %1! -> %m }", {"x"}), (Found{{}, 0}));
  EXPECT_EQ(in_place(head + "%2 = div(%x, %1) return %2, %1! -> %m }"), (Found{{1}, 0}));
}

}  // namespace
}  // namespace fusewright::testing
