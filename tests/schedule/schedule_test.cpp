// Which way a kernel is walked, and in which order.
#include "schedule/walk.h"

#include "support/graphs.h"

namespace fusewright::testing {
namespace {

struct Lowered {
  Program program;
  std::vector<LoopNest> nests;
  const Kernel& kernel(size_t i) const { return program.forward_fusion.groups[i].kernel; }
  // Sizes of loops, outermost first.
  std::vector<std::string> sizes(size_t i, const std::vector<int>& axes) const {
    std::vector<std::string> result;
    for (int a : axes) result.push_back(kernel(i).axes[static_cast<size_t>(a)].size.str());
    return result;
  }
  std::string inner(size_t i) const {
    int a = nests[i].inner;
    return a < 0 ? "" : kernel(i).axes[static_cast<size_t>(a)].size.str();
  }
};

Lowered lowered(std::string_view text) {
  Lowered result{program_of(text), {}};
  run_pipeline(result.program);
  for (const Group& group : result.program.forward_fusion.groups)
    if (group.kernel.contraction() < 0) result.nests.push_back(choose_walk(result.program.forward, group.kernel));
  return result;
}

std::string only_name(std::string_view text) {
  Lowered found = lowered(text);
  EXPECT_EQ(found.nests.size(), 1u);
  return found.nests.empty() ? "" : found.nests[0].name();
}

using Names = std::vector<std::string>;

TEST(Schedule, IsChosenByWhatIsReduced) {
  EXPECT_EQ(only_name("graph(%x: f32[n, c]) { %1 = exp(%x) return %1 }"), "pointwise");
  EXPECT_EQ(only_name("graph(%x: f32[n, c]) { %1 = softmax(%x) {dim = 1} return %1 }"), "row");
  EXPECT_EQ(only_name("graph(%x: f32[n, c]) { %1 = softmax(%x) {dim = 0} return %1 }"), "column");
  EXPECT_EQ(only_name("graph(%x: f32[n, c]) { %1 = sum(%x) {dims = (0, 1), keepdim = 0} return %1 }"), "row");
  EXPECT_EQ(only_name("graph(%x: f32[c, w]) { %1 = max_pool(%x) {kernel = (2), stride = (2), padding = (0), dilation = "
                      "(1), ceil_mode = 0} return %1 }"),
            "window");
  EXPECT_EQ(only_name("graph(%x: f32[]) { %1 = exp(%x) return %1 }"), "pointwise");
}

TEST(Schedule, MemoryOrderDecidesRowOrColumn) {
  const std::string channel_sums = " { %1 = sum(%x) {dims = (0, 2, 3), keepdim = 0} return %1 }";
  EXPECT_EQ(only_name("graph(%x: f32[n, c, h, w])" + channel_sums), "row");
  EXPECT_EQ(only_name("graph(%x: f32[n, c, h, w]@0231)" + channel_sums), "column");
}

TEST(Schedule, LoopsLieAsMemoryDoes) {
  Lowered plain = lowered("graph(%x: f32[n, c, h, w]) { %1 = exp(%x) return %1 }");
  EXPECT_EQ(plain.sizes(0, plain.nests[0].reduced), (Names{"n", "c", "h"}));
  EXPECT_EQ(plain.inner(0), "w");
  Lowered last = lowered("graph(%x: f32[n, c, h, w]@0231, %m: f32[c, 1, 1]) { %1 = mul(%m, %x) return %1@0231 }");
  EXPECT_EQ(last.sizes(0, last.nests[0].reduced), (Names{"n", "h", "w"}));
  EXPECT_EQ(last.inner(0), "c");
  Lowered pooled = lowered(
      "graph(%x: f32[n, c, h, w]@0231) { %1 = max_pool(%x) {kernel = (2, 2), stride = (2, 2), padding = (0, 0), "
      "dilation = (1, 1), ceil_mode = 0} return %1@0231 }");
  EXPECT_EQ(pooled.inner(0), "c");
}

TEST(Schedule, RowsAndColumnsOfANorm) {
  Lowered norm = lowered("graph(%x: f32[n, 4*g, h]) { %1 = group_norm(%x) {groups = 4, eps = 0.1} return %1 }");
  EXPECT_EQ(norm.nests[0].name(), "row");
  EXPECT_EQ(norm.sizes(0, norm.nests[0].kept), (Names{"n", "4"}));
  EXPECT_EQ(norm.sizes(0, norm.nests[0].reduced), (Names{"g"}));
  EXPECT_EQ(norm.inner(0), "h");
  EXPECT_EQ(norm.nests[0].stages, 3);  // mean, variance, result
  Lowered batch = lowered("graph(%x: f32[n, c]) { %1 = batch_norm(%x) {eps = 0.1} return %1 }");
  EXPECT_EQ(batch.nests[0].name(), "column");
  EXPECT_EQ(batch.sizes(0, batch.nests[0].reduced), (Names{"n"}));
  EXPECT_EQ(batch.inner(0), "c");
}

TEST(Schedule, StagesFollowDependencies) {
  Lowered found = lowered(
      "graph(%x: f32[n, c]) { %1 = sum(%x) {dims = (1), keepdim = 1} %2 = amax(%x) {dims = (1), keepdim = 1, tie = 0} "
      "%3 = add(%1, %2) return %3 }");
  EXPECT_EQ(found.nests[0].stages, 1);
  const LoopNest& nest = found.nests[0];
  for (size_t s = 0; s < found.kernel(0).steps.size(); ++s)
    if (found.program.forward[found.kernel(0).steps[s].value].op == Op::add) {
      EXPECT_EQ(nest.stage[s], 1);
      EXPECT_TRUE(nest.row_level[s]);
    }
}

// From far away a row or column is read twice for a norm, not three times.
TEST(Schedule, BothMomentsInOnePassOverMemory) {
  for (const char* text : {"graph(%x: f32[n, c]) { %1 = layer_norm(%x) {axes = 1, eps = 0.01} return %1 }",
                           "graph(%x: f32[n, c]) { %1 = batch_norm(%x) {eps = 0.01} return %1 }"}) {
    const Lowered norm = lowered(text);
    const auto passes = [&](Rows rows) { return choose_walk(norm.program.forward, norm.kernel(0), rows).stages; };
    EXPECT_EQ(passes(Rows::memory), 2) << text;
    EXPECT_EQ(passes(Rows::registers), 3) << text;
  }
}

TEST(LoopOrder, WithTilesMostBytesDecideOnTheLines) {
  auto inner = [](const char* text, bool tiles) {
    Program program = program_of(text);
    run_pipeline(program);
    const Kernel& kernel = program.forward_fusion.groups.at(0).kernel;
    return kernel.axes[static_cast<size_t>(loop_order(program.forward, kernel, tiles).back())].size.str();
  };
  // Two operands of three lie along w, but the first along c.
  const char* mixed =
      "graph(%x: f32[n, c, h, w]@0231, %y: f32[n, c, h, w]) { %1 = mul(%x, %y) %2 = reshape(%1) {sizes = [n, c*h*w]} "
      "return %2 }";
  EXPECT_EQ(inner(mixed, false), "c");
  EXPECT_EQ(inner(mixed, true), "w");
  // With equally many bytes, the innermost axis is the one along which the factor of a channel is one number.
  Program program =
      program_of("graph(%x: f32[n, c, h, w]@0231, %m: f32[c, 1, 1]) { %1: f32[n, c, h, w] = mul(%x, %m) return %1 }");
  fuse(program);
  const Kernel& kernel = program.forward_fusion.groups.at(0).kernel;
  EXPECT_EQ(kernel.axes[static_cast<size_t>(loop_order(program.forward, kernel, true).back())].size.str(), "w");
}

}  // namespace
}  // namespace fusewright::testing
