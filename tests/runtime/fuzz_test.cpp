// Random graphs, forward and backward, against the interpreter. FUSEWRIGHT_FUZZ_SEED, FUSEWRIGHT_FUZZ_GRAPHS and
// FUSEWRIGHT_FUZZ_SECONDS widen the search; a failure prints its seed, the graph, and the part of it that is wrong.
// The program `fuzz` (tests/fuzz) searches for as long as wanted.
#include <gtest/gtest.h>

#include "fuzz/search.h"

namespace fusewright::testing {
namespace {

double number_from(const char* name, double otherwise) {
  const char* text = std::getenv(name);
  return text ? std::atof(text) : otherwise;
}

TEST(Fuzz, RandomGraphsAgreeWithTheInterpreter) {
  auto seconds = [start = std::chrono::steady_clock::now()] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  const double limit = number_from("FUSEWRIGHT_FUZZ_SECONDS", 20);
  const auto first = static_cast<unsigned>(number_from("FUSEWRIGHT_FUZZ_SEED", 1));
  const auto graphs = static_cast<unsigned>(number_from("FUSEWRIGHT_FUZZ_GRAPHS", backend().cuda ? 8 : 192));
  Search search(backend(), backend_host());
  const std::vector<Finding> found = search.run(first, graphs, [&] { return seconds() > limit; });
  for (size_t i = 0; i < std::min<size_t>(found.size(), 5); ++i)
    ADD_FAILURE() << report(found[i]) << report_reduced(search.reduced(found[i]));
  EXPECT_EQ(found.size(), 0u);
  RecordProperty("graphs", static_cast<int>(search.graphs()));
  std::printf("%u graphs from seed %u in %.1f s\n", search.graphs(), first, seconds());
}

// Kernels that compute something else than their graph says are what a fault in the generated code comes down to.
TEST(Fuzz, APlantedFaultIsFoundAndReduced) {
  if (backend().cuda) GTEST_SKIP() << "the search is the same as on the CPU";
  for (const auto& [right, wrong] : {std::pair(Op::maximum, Op::minimum), std::pair(Op::sigmoid, Op::tanh)}) {
    Search search(backend(), backend_host(), [right = right, wrong = wrong](Graph& graph) {
      for (Node& node : graph.nodes)
        if (node.op == right) node.op = wrong;
    });
    std::vector<Finding> found;
    for (unsigned seed = 1; seed < 400 && found.empty(); seed += 64) found = search.run(seed, 64);
    ASSERT_FALSE(found.empty()) << name_of(right);
    const Finding small = search.reduced(found[0]);
    EXPECT_TRUE(std::any_of(small.graph.nodes.begin(), small.graph.nodes.end(), [right = right](const Node& node) {
      return node.op == right;
    })) << print(small.graph);
    EXPECT_LE(small.graph.nodes.size(), 6u) << print(small.graph);
  }
}

}  // namespace
}  // namespace fusewright::testing
