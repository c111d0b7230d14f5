// When gradients of weights are taken, by what a backward holds at a time.
#include <map>

#include "runtime/plan/plan.h"
#include "support/graphs.h"

namespace fusewright::testing {
namespace {

// Layers of 64 features over 4096 rows: matmul and what follows it. The result of a layer takes 64 times the memory of
// its weight.
std::string chain(int layers, const std::string& function = "exp", const std::string& rows = "4096") {
  std::string inputs = "%x: f32[" + rows + ", 64]", body, x = "%x";
  for (int i = 0; i < layers; ++i) {
    const std::string n = std::to_string(i);
    inputs += ", %w" + n + ": f32[64, 64]";
    body += " %y" + n + " = matmul(" + x + ", %w" + n + ") %z" + n + " = " + function + "(%y" + n + ")";
    x = "%z" + n;
  }
  return "graph(" + inputs + ") {" + body + " return " + x + "}";
}
constexpr int64_t activation = 4096 * 64 * 4, weight = 64 * 64 * 4;

std::vector<std::string> weights(int layers) {
  std::vector<std::string> names;
  for (int i = 0; i < layers; ++i) names.push_back("w" + std::to_string(i));
  return names;
}

// The most that a backward holds, results and what the forward saved included.
int64_t peak_of_backward(const Program& program) {
  const Plan plan(program.backward, program.backward_fusion, false, false, true);
  const Graph& graph = plan.graph();
  std::set<Value> held;
  for (size_t i = 0; i < graph.inputs.size(); ++i)
    if (i >= program.saved.size() || !program.saved[i].is_input) held.insert(graph.inputs[i]);
  auto bytes = [&] {
    int64_t sum = 0;
    for (Value v : held) sum += graph.bytes(v);
    return sum;
  };
  int64_t peak = bytes();
  for (const Plan::Step& step : plan.steps()) {
    for (const auto& operand : step.launcher->code().operands)
      if (operand.store) held.insert(operand.value);
    peak = std::max(peak, bytes());
    for (Value v : step.release) held.erase(v);
  }
  return peak;
}

TEST(RunOrder, GradientsOfWeightsFreeWhatTheyRead) {
  for (int layers : {3, 8}) {
    Program program = fused(chain(layers), weights(layers));
    // Saved: a tensor for each layer, and the gradient that comes in. Eager holds two more at a time: the gradient of a
    // layer's result, and of its input.
    EXPECT_LE(peak_of_backward(program), (layers + 3) * activation + layers * weight) << layers;
  }
}

TEST(RunOrder, ALargeGradientThatFreesLittleWaits) {
  // 8 rows: a weight's gradient takes eight times the memory of what it reads.
  Program program = fused(chain(3, "exp", "8"), weights(3));
  const std::vector<Group>& groups = program.backward_fusion.groups;
  ASSERT_EQ(groups.back().schedule, &library_schedule());
  EXPECT_LE(peak_of_backward(program), 3 * weight + 8 * activation / 512);
}

TEST(RunOrder, WhatIsRecomputedForAGradientIsFreedWithIt) {
  // Gradients of weights read the results of silu, which nobody saves. They are recomputed where they are read, in the
  // kernels that read the same data for the gradient of silu: one tensor more than above.
  for (int layers : {3, 8}) {
    Program program = fused(chain(layers, "silu"), weights(layers));
    EXPECT_LE(peak_of_backward(program), (layers + 4) * activation + layers * weight) << layers;
  }
}

}  // namespace
}  // namespace fusewright::testing
