// Launches that follow a kernel of the same plan may begin before it ends; those behind a library's call, or first, may
// not.
#include "support/emulator_counts.h"
#include "support/execute.h"

namespace fusewright::testing {
namespace {

// Launches of a forward, and how many of them may overlap.
std::pair<uint64_t, uint64_t> launches_of(const char* text) {
  const Graph graph = parse(text);
  const auto executable = compile(graph);
  std::mt19937 random(5);
  const std::vector<Array> inputs = random_inputs(graph, {{"n", 6}, {"c", 8}}, random);
  const uint64_t before = emulator_count("emulator_launches");
  const uint64_t before_overlapping = emulator_count("emulator_overlapping_launches");
  const Execution found = execute(*executable, inputs, {});
  EXPECT_EQ(disagreement(found.outputs, interpret(graph, inputs), "output"), "");
  return {emulator_count("emulator_launches") - before,
          emulator_count("emulator_overlapping_launches") - before_overlapping};
}

using Counts = std::pair<uint64_t, uint64_t>;

TEST(Overlap, OfKernelsInARow) {
  EXPECT_EQ(launches_of("graph(%x: f32[n, c]) { %1 = exp(%x) return %1 }"), Counts(1, 0));
  EXPECT_EQ(launches_of("graph(%x: f32[n, c]) { %1 = softmax(%x) {dim = 1} %2 = softmax(%1) {dim = 0} return %2 }"),
            Counts(2, 1));
}

TEST(Overlap, NotBehindALibrary) {
  EXPECT_EQ(launches_of("graph(%x: f32[n, c], %w: f32[c, c]) { %1 = softmax(%x) {dim = 1} %2 = matmul(%1, %w) "
                        "%3 = softmax(%2) {dim = 1} %4 = softmax(%3) {dim = 0} return %4 }"),
            Counts(3, 1));
}

}  // namespace
}  // namespace fusewright::testing
