// Every rule: where it applies, where it must not, its switch, and that the numbers stay the same.
#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "base/log.h"
#include "support/graphs.h"
#include "support/interpreter.h"

namespace fusewright::testing {
namespace {

struct RuleCase {
  const char *rule, *applies, *does_not;
};
void PrintTo(const RuleCase& c, std::ostream* out) { *out << c.rule; }

const char* const cases_note = "one entry for each rule of src/passes/rewrite.cpp";

const RuleCase cases[] = {
    // The bias does not vary over what the mean runs over. Otherwise it does.
    {"shift_cancels_in_norm",
     "graph(%x: f64[n, c], %b: f64[c]) { %z = add(%x, %b) %s = sum(%z) {dims = (0), keepdim = 1} %k: f64[] = extent() "
     "{size = [n]} "
     "%m = div(%s, %k) %d = sub(%z, %m) return %d }",
     "graph(%x: f64[n, c], %b: f64[n, 1]) { %z = add(%x, %b) %s = sum(%z) {dims = (0), keepdim = 1} %k: f64[] = "
     "extent() {size = [n]} "
     "%m = div(%s, %k) %d = sub(%z, %m) return %d }"},
    // Over the product's columns; over its rows nothing is won.
    {"sum_of_product",
     "graph(%x: f64[n, c], %w: f64[c, h]) { %p = matmul(%x, %w) %s = sum(%p) {dims = (1), keepdim = 0} return %s }",
     "graph(%x: f64[n, c], %w: f64[c, h]) { %p = matmul(%x, %w) %s = sum(%p) {dims = (0), keepdim = 0} return %s }"},
    // The narrower sum is there anyway, over some of the same dimensions.
    {"nested_sum",
     "graph(%x: f64[n, c, h]) { %a = sum(%x) {dims = (0, 2), keepdim = 1} %b = sum(%x) {dims = (0, 1, 2), keepdim = 0} "
     "return %a, %b }",
     "graph(%x: f64[n, c, h]) { %a = sum(%x) {dims = (0, 2), keepdim = 1} %b = sum(%x) {dims = (1, 2), keepdim = 0} "
     "return %a, %b }"},
    // The factor is a result of a reduction and does not vary over the sum.
    {"row_constants_leave_sum",
     "graph(%x: f64[n, c], %g: f64[n, c]) { %m = sum(%x) {dims = (1), keepdim = 1} %1 = mul(%g, %m) %2 = sum(%1) {dims "
     "= (1), keepdim = 1} return %2 }",
     "graph(%x: f64[n, c], %g: f64[n, c]) { %m = sum(%x) {dims = (0), keepdim = 1} %1 = mul(%g, %m) %2 = sum(%1) {dims "
     "= (1), keepdim = 1} return %2 }"},
    // Both sums read %g; where one reads %x and the other %g, one kernel would have to read both.
    {"sums_become_one",
     "graph(%x: f64[n, c], %g: f64[n, c]) { %1 = neg(%g) %2 = sum(%1) {dims = (0, 1), keepdim = 0} %3 = mul(%g, %x) "
     "%4 = sum(%3) {dims = (0, 1), keepdim = 0} %5 = add(%2, %4) return %5 }",
     "graph(%x: f64[n, c], %g: f64[n, c]) { %1 = neg(%g) %2 = sum(%1) {dims = (0, 1), keepdim = 0} %3 = exp(%x) "
     "%4 = sum(%3) {dims = (0, 1), keepdim = 0} %5 = add(%2, %4) return %5 }"},
    // Softmax's gradient; another sum than that of its exponentials could be 0, or make y overflow.
    {"softmax_gradient_reads_result",
     "graph(%x: f64[n, c], %g: f64[n, c]) { %m = amax(%x) {dims = (1), keepdim = 1, tie = 0} %d = sub(%x, %m) %e = "
     "exp(%d) %s = sum(%e) {dims = (1), keepdim = 1} %y = div(%e, %s) %1 = div(%g, %s) %2 = neg(%g) %3 = div(%y, %s) "
     "%4 = mul(%2, %3) %5 = sum(%4) {dims = (1), keepdim = 1} %6 = add(%1, %5) %7 = mul(%6, %e) return %y, %7 }",
     "graph(%x: f64[n, c], %g: f64[n, c]) { %e = exp(%x) %s = sum(%e) {dims = (1), keepdim = 1} %y = div(%e, %s) %1 = "
     "div(%g, %s) %2 = neg(%g) %3 = div(%y, %s) %4 = mul(%2, %3) %5 = sum(%4) {dims = (1), keepdim = 1} %6 = add(%1, "
     "%5) %7 = mul(%6, %e) return %y, %7 }"},
    // The distances are from the mean over what is summed; over other dimensions their sum is not zero.
    {"distances_sum_to_zero",
     "graph(%x: f64[n, c], %y: f64[1, c], %k: f64[1, c]) { %s = sum(%x) {dims = (0), keepdim = 1} %n: f64[] = extent() "
     "{size = [n]} %m = div(%s, %n) %d = sub(%x, %m) %t = sum(%d) {dims = (0), keepdim = 1} %p = mul(%t, %k) "
     "%r = add(%y, %p) return %r }",
     "graph(%x: f64[n, c], %y: f64[n, 1], %k: f64[n, 1]) { %s = sum(%x) {dims = (0), keepdim = 1} %n: f64[] = extent() "
     "{size = [n]} %m = div(%s, %n) %d = sub(%x, %m) %t = sum(%d) {dims = (1), keepdim = 1} %p = mul(%t, %k) "
     "%r = add(%y, %p) return %r }"},
    // Weights, biases and numbers that belong to the norm's columns; the second weight has one for each row.
    {"norm_is_affine",
     "graph(%x: f64[n, c], %w: f64[c], %b: f64[c], %k: f64[1]) { %q = square(%x) %s = sum(%q) {dims = (0), keepdim = "
     "1} "
     "%r = rsqrt(%s) %t = sum(%x) {dims = (0), keepdim = 1} %d = sub(%x, %t) %1 = mul(%d, %r) %2 = mul(%w, %1) %3 = "
     "add(%2, %b) %4 = add(%k, %3) %5: f64[] = constant() {value = 2.5, runtime = 1} %6 = div(%4, %5) return %6 }",
     "graph(%x: f64[n, c], %w: f64[n, 1]) { %q = square(%x) %s = sum(%q) {dims = (0), keepdim = 1} %r = rsqrt(%s) "
     "%d = sub(%x, %s) %1 = mul(%d, %r) %2 = mul(%1, %w) return %2 }"},
    // Both terms have the deviation as a factor; two deviations are not one.
    {"common_factor_leaves_terms",
     "graph(%x: f64[n, c], %g: f64[n, c], %w: f64[n, 1]) { %q = square(%x) %p = sum(%q) {dims = (1), keepdim = 1} %s = "
     "rsqrt(%p) %t = sum(%g) {dims = (1), keepdim = 1} %1 = mul(%s, %w) %2 = mul(%x, %1) %3 = div(%s, %w) %4 = neg(%3) "
     "%5 = mul(%g, %4) %6 = sub(%2, %5) %7 = mul(%t, %s) %8 = sub(%6, %7) return %8 }",
     "graph(%x: f64[n, c], %g: f64[n, c]) { %q = square(%x) %p = sum(%q) {dims = (1), keepdim = 1} %s = rsqrt(%p) "
     "%v = square(%g) %u = sum(%v) {dims = (1), keepdim = 1} %t = rsqrt(%u) %1 = mul(%x, %s) %2 = mul(%g, %t) %3 = "
     "add(%1, %2) return %3 }"},
    // A swish's gradient; a ratio of two factors that may both be large could overflow where the product does not.
    {"term_joins_its_multiple",
     "graph(%x: f64[n, c], %g: f64[n, c]) { %s = sigmoid(%x) %1 = mul(%g, %s) %2 = mul(%g, %x) %k: f64[] = constant() "
     "{value = 1} %3 = sub(%k, %s) %4 = mul(%3, %s) %5 = mul(%2, %4) %6 = add(%1, %5) return %6 }",
     "graph(%x: f64[n, c], %g: f64[n, c], %y: f64[n, c]) { %s = sigmoid(%x) %1 = mul(%g, %s) %2 = mul(%g, %x) %3 = "
     "mul(%y, %s) %4 = mul(%2, %3) %5 = add(%1, %4) return %5 }"},
};

std::vector<std::string> rewrites(const char* text, const Options& options = {}) {
  Program program = program_of(text);
  program.options = options;
  rewrite(program);
  verify(program.forward);
  if (program.rewrites.empty()) expect_graph(program.forward, text);
  return program.rewrites;
}

class EveryRule : public ::testing::TestWithParam<RuleCase> {
 protected:
  const std::vector<std::string> alone{GetParam().rule};
};
INSTANTIATE_TEST_SUITE_P(, EveryRule, ::testing::ValuesIn(cases),
                         [](const auto& c) { return std::string(c.param.rule); });

TEST_P(EveryRule, AppliesUnderItsCondition) {
  EXPECT_EQ(rewrites(GetParam().applies), alone);
  EXPECT_EQ(rewrites(GetParam().does_not), std::vector<std::string>{});
}

TEST_P(EveryRule, HasASwitch) {
  Options options;
  options.disabled_rewrites = {GetParam().rule};
  EXPECT_EQ(rewrites(GetParam().applies, options), std::vector<std::string>{});
  setenv("FUSEWRIGHT_DISABLE", (std::string("other,") + GetParam().rule).c_str(), 1);
  EXPECT_EQ(rewrites(GetParam().applies), std::vector<std::string>{});
  unsetenv("FUSEWRIGHT_DISABLE");
}

TEST_P(EveryRule, KeepsTheNumbers) {
  Program program = program_of(GetParam().applies);
  std::mt19937 random(31);
  std::vector<Array> inputs = random_inputs(program.forward, {{"n", 4}, {"c", 3}, {"h", 5}}, random);
  std::vector<Array> before = interpret(program.forward, inputs);
  rewrite(program);
  simplify(program);
  std::vector<Array> after = interpret(program.forward, inputs);
  for (size_t i = 0; i < before.size(); ++i)
    EXPECT_EQ(difference(after[i], before[i], 1e-12, 1e-12), "") << print(program.forward);
}

// The argument of the swish is one factor, although it is a product of two that may be large.
TEST(Rewrite, GradientOfSwishOfProduct) {
  EXPECT_EQ(rewrites("graph(%a: f64[n, c], %b: f64[n, c], %g: f64[n, c]) { %x = mul(%a, %b) %s = sigmoid(%x) "
                     "%1 = mul(%g, %s) %2 = mul(%g, %x) %k: f64[] = constant() {value = 1} %3 = sub(%k, %s) "
                     "%4 = mul(%3, %s) %5 = mul(%2, %4) %6 = add(%1, %5) return %6 }"),
            std::vector<std::string>{"term_joins_its_multiple"});
  // A product that no factor is computed from is not.
  EXPECT_EQ(
      rewrites("graph(%a: f64[n, c], %b: f64[n, c], %g: f64[n, c], %y: f64[n, c]) { %x = mul(%a, %b) "
               "%s = sigmoid(%y) %1 = mul(%g, %s) %2 = mul(%g, %x) %3 = mul(%2, %s) %4 = add(%1, %3) return %4 }"),
      std::vector<std::string>{});
}

// Where x s(x) is computed for something else, the gradient is made of it: a product less. Where it is only returned it
// would be one for the gradient alone.
TEST(Rewrite, GradientOfSwishTakesTheSwishThatIsThere) {
  const auto products = [](const std::string& use_of_swish, const std::string& gradient = "n, c") {
    Program program = program_of(
        "graph(%x: f64[n, c], %g: f64[" + gradient + "], %m: f64[c]) { %s = sigmoid(%x) %y = mul(%x, %s) " +
        use_of_swish +
        " %1 = mul(%g, %s) %2 = mul(%g, %x) %k: f64[] = constant() {value = 1} %3 = sub(%k, %s) %4 = mul(%3, %s) "
        "%5 = mul(%2, %4) %6 = add(%1, %5) return %6, " +
        (use_of_swish.empty() ? "%y }" : "%z }"));
    std::mt19937 random(32);
    const std::vector<Array> inputs = random_inputs(program.forward, {{"n", 4}, {"c", 3}}, random);
    const std::vector<Array> before = interpret(program.forward, inputs);
    rewrite(program);
    verify(program.forward);
    EXPECT_EQ(program.rewrites, std::vector<std::string>{"term_joins_its_multiple"});
    const std::vector<Array> after = interpret(program.forward, inputs);
    for (size_t i = 0; i < before.size(); ++i) EXPECT_EQ(difference(after[i], before[i], 1e-12, 1e-12), "");
    return std::count_if(program.forward.nodes.begin(), program.forward.nodes.end(),
                         [](const Node& node) { return node.op == Op::mul; });
  };
  EXPECT_EQ(products("%z = mul(%y, %m)"), 4);  // y, z, y (1 - s), g (s + ...)
  EXPECT_EQ(products("%z = mul(%y, %m)", "n, 1"), 4);
  EXPECT_EQ(products("%z = add(%y, %m)"), 3);                   // any use
  EXPECT_EQ(products(""), 4);                                   // y, g s, x (1 - s), g s (1 + ...)
  EXPECT_EQ(products("%w = mul(%x, %g) %z = mul(%w, %m)"), 5);  // w, z, g s, x (1 - s), g s (1 + ...): y is gone
}

// A sum that is wanted by itself would be computed twice.
TEST(Rewrite, SumsThatAreUsedElsewhereStayTwo) {
  const std::string sums =
      "graph(%x: f64[n, c], %g: f64[n, c]) { %1 = sum(%g) {dims = (0), keepdim = 0} %2 = mul(%g, %x) "
      "%3 = sum(%2) {dims = (0), keepdim = 0} %4 = add(%1, %3) ";
  EXPECT_EQ(rewrites((sums + "return %4 }").c_str()), std::vector<std::string>{"sums_become_one"});
  EXPECT_EQ(rewrites((sums + "return %4, %1 }").c_str()), std::vector<std::string>{});
  // Views of sums are sums.
  EXPECT_EQ(rewrites("graph(%x: f64[n, c], %g: f64[n, c]) { %1 = sum(%g) {dims = (0, 1), keepdim = 1} "
                     "%2 = reshape(%1) {sizes = []} %3 = mul(%g, %x) %4 = sum(%3) {dims = (0, 1), keepdim = 1} "
                     "%5 = reshape(%4) {sizes = []} %6 = add(%2, %5) return %6 }"),
            std::vector<std::string>{"sums_become_one"});
  EXPECT_EQ(rewrites((sums + "%5 = exp(%3) return %4, %5 }").c_str()), std::vector<std::string>{});
}

TEST(Rewrite, EveryRuleHasACase) {
  // The names stand in the source's table; a rule that is missing here is not tested.
  std::ifstream file(std::string(FUSEWRIGHT_SOURCE_DIR) + "/src/passes/rewrite.cpp");
  std::string text{std::istreambuf_iterator<char>(file), {}};
  size_t at = text.find("constexpr Rule rules[]"), end = text.find("};", at);
  ASSERT_NE(at, std::string::npos);
  int rules = 0;
  for (at = text.find("{\"", at); at < end; at = text.find("{\"", at + 1)) {
    std::string name = text.substr(at + 2, text.find('"', at + 2) - at - 2);
    bool known = false;
    for (const RuleCase& c : cases) known |= name == c.rule;
    EXPECT_TRUE(known) << name << ": " << cases_note;
    ++rules;
  }
  EXPECT_EQ(rules, static_cast<int>(std::size(cases)));
}

std::vector<std::string> logged;

TEST(Rewrite, AnUnknownNameAmongTheDisabledIsSaidOnce) {
  logged.clear();
  set_log_sink([](LogLevel, const std::string& message) { logged.push_back(message); });
  setenv("FUSEWRIGHT_DISABLE", "no_such_rule, nested_sum,", 1);
  const RuleCase& nested = cases[2];
  EXPECT_TRUE(rewrites(nested.applies).empty()) << "spaces around a name are no part of it";
  EXPECT_TRUE(rewrites(nested.applies).empty());
  setenv("FUSEWRIGHT_DISABLE", "no_such_rule,another", 1);
  EXPECT_EQ(rewrites(nested.applies), std::vector<std::string>{"nested_sum"});
  unsetenv("FUSEWRIGHT_DISABLE");
  set_log_sink(nullptr);
  ASSERT_EQ(logged.size(), 2u) << "one line for each unknown name";
  EXPECT_NE(logged[0].find("FUSEWRIGHT_DISABLE"), std::string::npos) << logged[0];
  EXPECT_NE(logged[0].find("'no_such_rule'"), std::string::npos) << logged[0];
  EXPECT_NE(logged[1].find("'another'"), std::string::npos) << logged[1];
  for (const RuleCase& c : cases)
    for (const std::string& line : logged) EXPECT_NE(line.find(c.rule), std::string::npos) << line;
}

TEST(Rewrite, ABiasBeforeANormIsNeitherReadNorSummed) {
  Program program = program_of(
      "graph(%x: f32[n, c], %b: f32[c]) { %z = add(%x, %b) %y = batch_norm(%z) {eps = 0.1} return %y }", {"x", "b"});
  run_pipeline(program);
  EXPECT_TRUE(program.forward.users()[1].empty()) << print(program.forward);
  EXPECT_EQ(program.rewrites.at(0), "shift_cancels_in_norm");
}

int sums_of(const Graph& graph) {
  return static_cast<int>(
      std::count_if(graph.nodes.begin(), graph.nodes.end(), [](const Node& node) { return node.op == Op::sum; }));
}

// The sums are of the gradient and of its product with the distance; the same two give the gradients of weight and
// bias.
TEST(Rewrite, TheGradientOfANormHasTwoSums) {
  Program batch = program_of(
      "graph(%x: f32[n, c], %w: f32[c], %b: f32[c]) { %y = batch_norm(%x, %w, %b) {eps = 0.1, has_weight = 1, has_bias "
      "= 1} %z = silu(%y) return %z }",
      {"x", "w", "b"});
  run_pipeline(batch);
  EXPECT_EQ(sums_of(batch.backward), 2) << print(batch.backward);
  Program layer = program_of(
      "graph(%x: f32[n, c], %w: f32[c], %b: f32[c]) { %y = layer_norm(%x, %w, %b) {axes = 1, eps = 0.1, has_weight = "
      "1, "
      "has_bias = 1} %z = silu(%y) return %z }",
      {"x", "w", "b"});
  run_pipeline(layer);
  EXPECT_EQ(sums_of(layer.backward), 4) << print(layer.backward);
}

// Operations on every element of the first input.
int elementwise(const Graph& graph) {
  const Shape& full = graph.shape(graph.inputs[0]);
  return static_cast<int>(std::count_if(graph.nodes.begin(), graph.nodes.end(), [&](const Node& node) {
    return node.kind() == Kind::pointwise && node.type.shape == full;
  }));
}

// Scaled, shifted and divided by whatever belongs to a column, it is a distance, a product and a sum.
TEST(Rewrite, ANormIsAMultiplyAdd) {
  const char* text =
      "graph(%x: f32[n, c], %w: f32[c], %b: f32[c], %k: f32[1]) { %1 = batch_norm(%x, %w, %b) {eps = 0.1, has_weight = "
      "1, has_bias = 1} %2 = add(%1, %k) %3: f32[] = constant() {value = 2.5, runtime = 1} %4 = div(%2, %3) return %4 "
      "}";
  Program program = program_of(text, {"x", "w", "b", "k"});
  run_pipeline(program);
  // Beside it the square of the distance, for the variance.
  EXPECT_EQ(elementwise(program.forward), 4) << print(program.forward);
  // The distance and what its sum is taken of; less both means, times the one factor of all terms.
  EXPECT_EQ(elementwise(program.backward), 6) << print(program.backward);
}

// Chains that look like a norm, but would lose digits, overflow, or divide an infinity by zero, stay as they are.
TEST(Rewrite, OnlyANormIsOne) {
  const std::string head =
      "graph(%x: f64[n, c], %k: f64[c]) { %q = square(%x) %p = sum(%q) {dims = (0), keepdim = 1} %r = rsqrt(%p) %s = "
      "sum(%x) {dims = (0), keepdim = 1} %e: f64[] = extent() {size = [n]} %m = div(%s, %e) ";
  for (const char* rest : {
           // Sums that nearly cancel: no distance has been taken.
           "%1 = mul(%x, %r) %2 = add(%1, %k) %3 = add(%2, %k) return %3",
           // Shifted before it is scaled: x r - k r.
           "%d = sub(%x, %m) %1 = add(%d, %k) %2 = mul(%1, %r) return %2",
           // A shift that comes from the same row.
           "%d = sub(%x, %m) %1 = mul(%d, %r) %2 = add(%1, %k) %3 = add(%2, %m) return %3",
           // Products of statistics, and with extraordinary numbers: out of range where the chain's are not.
           "%1 = mul(%x, %m) %2 = mul(%1, %m) %3 = mul(%2, %m) return %3",
           "%1 = mul(%x, %r) %2: f64[] = constant() {value = 1e30, runtime = 1} %3 = mul(%1, %2) return %3",
           // A divisor that may be 0, or is.
           "%d = sub(%x, %m) %1 = mul(%d, %r) %2 = add(%1, %k) %3 = div(%2, %k) return %3",
           "%d = sub(%x, %m) %1 = mul(%d, %r) %2 = add(%1, %k) %3: f64[] = constant() {value = 0.0, runtime = 1} "
           "%4 = div(%2, %3) return %4",
           // The gradient of a weight behind the bias would be a difference of sums.
           "%d = sub(%x, %m) %1 = mul(%d, %r) %2 = add(%1, %k) %3 = mul(%2, %k) return %3",
       })
    EXPECT_EQ(rewrites((head + rest + " }").c_str()), std::vector<std::string>{}) << rest;
}

// Chains that look like softmax's gradient, but sum over other elements than their divisor, stay as they are.
TEST(Rewrite, SoftmaxGradientsSumTheirOwnRows) {
  const std::string rest =
      "%y = div(%e, %s) %1 = div(%g, %s) %2 = neg(%g) %3 = div(%y, %s) %4 = mul(%2, %3) %5 = sum(%4) {dims = (1), "
      "keepdim = 1} %6 = add(%1, %5) %7 = mul(%6, %e) return %7 }";
  const std::string rows =
      "%m = amax(%x) {dims = (1), keepdim = 1, tie = 0} %d = sub(%x, %m) %e = exp(%d) %s = sum(%e) {dims = (1), "
      "keepdim = 1} ";
  const std::string columns =
      "%m = amax(%x) {dims = (1), keepdim = 0, tie = 0} %d = sub(%x, %m) %e = exp(%d) %s = sum(%e) {dims = (1), "
      "keepdim = 0} ";
  const std::vector<std::string> none;
  EXPECT_EQ(rewrites(("graph(%x: f64[4, 6], %g: f64[3, 4, 6]) { " + rows + rest).c_str()), none);
  EXPECT_EQ(rewrites(("graph(%x: f64[6, 6], %g: f64[6, 6]) { " + columns + rest).c_str()), none);
  EXPECT_EQ(rewrites(("graph(%x: f64[6, 6], %g: f64[6, 6]) { " + rows + rest).c_str()).size(), 1u);
}

// Each square would have doubled the factors.
TEST(Rewrite, FactorsThatAreSquaredAgainAndAgain) {
  std::string text;
  text = "graph(%x: f64[n, c]) { %q = square(%x) %p = sum(%q) {dims = (1), keepdim = 1} %k0 = rsqrt(%p) ";
  for (int i = 0; i < 40; ++i) {
    const std::string k = "%k" + std::to_string(i);
    text += "%k" + std::to_string(i + 1) + " = mul(" + k + ", " + k + ") ";
  }
  text += "%1 = mul(%x, %k40) %2 = mul(%q, %k40) %3 = add(%1, %2) return %3 }";
  Program program = program_of(text.c_str());
  rewrite(program);
  EXPECT_LT(program.forward.nodes.size(), 100u);
}

}  // namespace
}  // namespace fusewright::testing
