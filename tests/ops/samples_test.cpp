// A loop over ops.def: every row prints and parses, decomposes, verifies, and has the derivative that finite
// differences find.
#include "support/samples.h"

#include "support/graphs.h"
#include "support/interpreter.h"

namespace fusewright {
void PrintTo(const OpInfo& op, std::ostream* out) { *out << op.name; }
}  // namespace fusewright

namespace fusewright::testing {
namespace {

class EveryOp : public ::testing::TestWithParam<OpInfo> {
 protected:
  const Sample& sample() {
    const Sample* found = find_sample(GetParam().name);
    require(found != nullptr, "ops.def has a row '", GetParam().name, "' without a sample in tests/support/samples.h");
    return *found;
  }
};

INSTANTIATE_TEST_SUITE_P(, EveryOp, ::testing::ValuesIn(all_ops()), [](const auto& op) { return op.param.name; });

TEST_P(EveryOp, PrintsWhatItParses) {
  Graph graph = parse(sample().text);
  EXPECT_GT(count_ops(graph, GetParam().op), 0);
  EXPECT_EQ(print(parse(print(graph))), print(graph));
  EXPECT_NO_THROW(verify(graph));
}

TEST_P(EveryOp, Decomposes) {
  Graph graph = decomposed(parse(sample().text));
  EXPECT_NO_THROW(verify(graph)) << print(graph);
  for (const Node& node : graph.nodes) EXPECT_NE(node.kind(), Kind::composite) << name_of(node.op);
  for (size_t i = 0; i < graph.outputs.size(); ++i)
    EXPECT_EQ(graph.shape(graph.outputs[i].value), parse(sample().text).shape(parse(sample().text).outputs[i].value));
}

TEST_P(EveryOp, HasItsDerivative) {
  Graph graph = parse(sample().text);
  std::mt19937 random(7);
  std::vector<Array> inputs = random_inputs(graph, sample_sizes, random, sample().low, sample().high);
  std::vector<Array> dL_dy;
  for (const Array& output : interpret(graph, inputs))
    dL_dy.push_back(random_array(DType::f64, output.sizes, random, 0.5, 1.5));
  const Graph primitive = decomposed(graph);
  auto loss = [&] {
    double total = 0;
    std::vector<Array> outputs = Interpreter(primitive, inputs).outputs();
    for (size_t i = 0; i < outputs.size(); ++i)
      for (size_t k = 0; k < outputs[i].size(); ++k) total += outputs[i].data[k] * dL_dy[i].data[k];
    return total;
  };
  std::vector<bool> wrt(inputs.size(), true);
  if (sample().gradient == Sample::Gradient::refused) {
    EXPECT_ERROR(interpret(graph, wrt, inputs, dL_dy), std::string(GetParam().name) + ": no derivative rule");
    return;
  }
  Reference reference = interpret(graph, wrt, inputs, dL_dy);
  // None where no path leads: then nothing moves the result.
  const bool none = reference.gradients.empty();
  ASSERT_TRUE(none || reference.gradients.size() == inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i)
    for (size_t k = 0; k < inputs[i].size(); ++k) {
      double &x = inputs[i].data[k], here = x, step = 1e-5;
      x = here + step;
      double above = loss();
      x = here - step;
      double below = loss();
      x = here;
      double slope = sample().gradient == Sample::Gradient::stopped ? 0 : (above - below) / (2 * step);
      const double found = none ? 0 : reference.gradients[i].data[k];
      EXPECT_NEAR(found, slope, 2e-6 * (1 + std::abs(slope))) << "input " << i << " at " << k;
    }
}

// Returns the values in the order in which the results need them: operands before users, left before right.
std::vector<Value> reading_order(const Graph& graph) {
  std::vector<Value> order;
  std::vector<bool> seen(graph.nodes.size());
  auto visit = [&](auto&& self, Value v) -> void {
    if (seen[static_cast<size_t>(v)] || graph[v].op == Op::input || graph[v].op == Op::scalar_input) return;
    seen[static_cast<size_t>(v)] = true;
    for (Value operand : graph[v].operands) self(self, operand);
    order.push_back(v);
  };
  for (const Output& output : graph.outputs) visit(visit, output.value);
  return order;
}

// The order in which operations stand is part of a kernel's text. C++ does not say which argument of f(a(), b()) comes
// first, so it must not follow from the order in which the formulas of src/ops happened to be evaluated.
TEST_P(EveryOp, StandsInAnOrderThatNoCompilerChooses) {
  Graph graph = parse(sample().text);
  auto computes = [](const Graph& g) {
    return std::count_if(g.nodes.begin(), g.nodes.end(), [](const Node& node) { return node.kind() != Kind::source; });
  };
  if (computes(graph) != 1) GTEST_SKIP() << "several operations: their order is the user's";
  Program program;
  program.forward = decomposed(graph);
  // A single primitive's gradients are what its rule built, one after the other.
  if (computes(program.forward) == 1 && sample().gradient != Sample::Gradient::refused) {
    for (Value v : program.forward.inputs) program.wrt.push_back(program.forward[v].op == Op::input);
    reach(program);
    differentiate(program);
  }
  std::vector<Value> found;
  for (size_t i = 0; i < program.forward.nodes.size(); ++i)
    if (program.forward.nodes[i].op != Op::input && program.forward.nodes[i].op != Op::scalar_input)
      found.push_back(static_cast<Value>(i));
  EXPECT_EQ(found, reading_order(program.forward)) << print(program.forward);
}

TEST(Samples, OnlyNameRowsThatExist) {
  for (const Sample& sample : samples()) EXPECT_TRUE(find_op(sample.op)) << sample.op;
}

}  // namespace
}  // namespace fusewright::testing
