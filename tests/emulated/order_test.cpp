// Threads and blocks of a GPU run in no order that anybody knows: the emulator draws one from its seed.
#include "support/execute.h"

namespace fusewright::testing {
namespace {

struct Walk {
  const char* text;
  std::map<std::string, int64_t> sizes;
};

const Walk walks[] = {
    {"graph(%x: f32[n, c], %w: f32[c]) { %1 = layer_norm(%x, %w) {axes = 1, eps = 0.001, has_weight = 1} %2 = gelu(%1) "
     "{approximate = \"none\"} return %2 }",
     {{"n", 37}, {"c", 129}}},
    {"graph(%x: f32[n, c]) { %1 = softmax(%x) {dim = 1} return %1 }", {{"n", 2}, {"c", 30001}}},  // split rows
    {"graph(%x: f32[n, c], %w: f32[c]) { %1 = batch_norm(%x, %w) {eps = 0.001, has_weight = 1} return %1 }",
     {{"n", 700}, {"c", 33}}},
    {"graph(%x: f32[n, c, h, w]) { %1 = max_pool(%x) {kernel = (3, 3), stride = (2, 2), padding = (1, 1), dilation = "
     "(1, 1), ceil_mode = 0} %2 = sum(%1) {dims = (0, 2, 3), keepdim = 0} return %2 }",
     {{"n", 3}, {"c", 5}, {"h", 17}, {"w", 19}}},
};

TEST(OrderOfThreads, DoesNotChangeABit) {
  for (const Walk& walk : walks) {
    const Graph graph = parse(walk.text);
    const std::vector<bool> wrt(graph.inputs.size(), true);
    const auto executable = compile(graph, wrt);
    std::mt19937 random(17);
    const std::vector<Array> inputs = random_inputs(graph, walk.sizes, random);
    const Array dL_dy = random_array(DType::f32, interpret(graph, inputs)[0].sizes, random);
    std::optional<Execution> first;
    for (const char* seed : {"1", "2", "3", "4", "5"}) {
      setenv("FUSEWRIGHT_EMULATOR_SEED", seed, 1);
      Execution found = execute(*executable, inputs, {dL_dy});
      unsetenv("FUSEWRIGHT_EMULATOR_SEED");
      if (!first) first = std::move(found);
      for (size_t i = 0; i < found.outputs.size(); ++i)
        EXPECT_TRUE(same_bits(found.outputs[i], first->outputs[i])) << "seed " << seed << ": " << walk.text;
      for (size_t i = 0; i < found.gradients.size(); ++i)
        EXPECT_TRUE(same_bits(found.gradients[i], first->gradients[i])) << "seed " << seed << ": " << walk.text;
    }
  }
}

}  // namespace
}  // namespace fusewright::testing
