// Where the mathematical derivative does not exist the rules are PyTorch's.
#include "ops/derivatives.h"

#include "support/graphs.h"
#include "support/interpreter.h"

namespace fusewright::testing {
namespace {

constexpr double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();

// Gradients of sum(y) towards every input.
std::vector<std::vector<double>> gradients(const std::string& text, const std::vector<Array>& inputs) {
  Graph graph = parse(text);
  std::vector<Array> ones = interpret(graph, inputs);
  for (Array& one : ones) std::fill(one.data.begin(), one.data.end(), 1.0);
  std::vector<std::vector<double>> result;
  for (const Array& g : interpret(graph, std::vector<bool>(inputs.size(), true), inputs, ones).gradients)
    result.push_back(g.data);
  return result;
}

std::vector<double> unary(const std::string& op, const std::vector<double>& x, const std::string& attrs = "") {
  Array array(DType::f64, {static_cast<int64_t>(x.size())}, x);
  return gradients("graph(%x: f64[n]) { %y = " + op + "(%x) " + attrs + " return %y }", {array})[0];
}

std::vector<std::vector<double>> binary(const std::string& op, double a, double b) {
  return gradients("graph(%a: f64[n], %b: f64[n]) { %y = " + op + "(%a, %b) return %y }",
                   {Array(DType::f64, {1}, a), Array(DType::f64, {1}, b)});
}

using Doubles = std::vector<double>;
using Pair = std::vector<Doubles>;

TEST(Kinks, OfActivations) {
  EXPECT_EQ(unary("abs", {0, -1}), (Doubles{0, -1}));
  EXPECT_EQ(unary("relu", {0, -1, 2}), (Doubles{0, 0, 1}));
  EXPECT_EQ(unary("leaky_relu", {0, 1}, "{negative_slope = 0.25}"), (Doubles{0.25, 1}));
  EXPECT_EQ(unary("clamp", {-1, 0, 1, 2}, "{min = -1.0, max = 1.0}"), (Doubles{1, 1, 1, 0}));
  EXPECT_EQ(unary("clamp", {-5, 5}, "{min = 0.0}"), (Doubles{0, 1}));
  EXPECT_EQ(unary("clamp", {0, 3}, "{min = 2.0, max = 1.0}"), (Doubles{0, 0}));
  EXPECT_EQ(unary("hardtanh", {-1, 0, 1}, "{min_val = -1.0, max_val = 1.0}"), (Doubles{0, 1, 0}));
  EXPECT_EQ(unary("hardsigmoid", {-3, 3}), (Doubles{0, 0}));
  EXPECT_EQ(unary("hardswish", {-3, -4, 3, 4}), (Doubles{0, 0, 1, 1}));
  EXPECT_EQ(unary("softplus", {3, 0}, "{beta = 1.0, threshold = 2.0}"), (Doubles{1, 0.5}));
  EXPECT_EQ(unary("sqrt", {0})[0], inf);
}

TEST(Kinks, NaNPassesTheGradientAsInPyTorch) {
  EXPECT_EQ(unary("relu", {nan}), (Doubles{1}));
  EXPECT_EQ(unary("clamp", {nan}, "{min = 0.0, max = 1.0}"), (Doubles{0}));
  EXPECT_EQ(binary("maximum", nan, 1), (Pair{{1}, {1}}));
}

TEST(NormalCdf, ItsDerivativeIsTheDensity) {
  const double density = 1 / std::sqrt(2 * M_PI);
  EXPECT_EQ(unary("normal_cdf", {0, inf, -inf}), (Doubles{density, 0, 0}));
  EXPECT_NEAR(unary("normal_cdf", {-1.5})[0], density * std::exp(-1.125), 1e-15);
  EXPECT_TRUE(std::isnan(unary("normal_cdf", {nan})[0]));
}

TEST(Ties, OfTwoOperandsAreHalved) {
  EXPECT_EQ(binary("maximum", 2, 2), (Pair{{0.5}, {0.5}}));
  EXPECT_EQ(binary("minimum", 2, 2), (Pair{{0.5}, {0.5}}));
  EXPECT_EQ(binary("minimum", 1, 2), (Pair{{1}, {0}}));
}

TEST(Ties, OfReductionsFollowTheirAttribute) {
  EXPECT_EQ(unary("amax", {3, 1, 3}, "{dims = (0), keepdim = 0, tie = 0}"), (Doubles{0.5, 0, 0.5}));
  EXPECT_EQ(unary("amax", {3, 1, 3}, "{dims = (0), keepdim = 0, tie = 1}"), (Doubles{1, 0, 0}));
  EXPECT_EQ(unary("amin", {3, 1, 1}, "{dims = (0), keepdim = 1, tie = 1}"), (Doubles{0, 1, 0}));
  EXPECT_EQ(unary("amax", {1, nan, 2, nan}, "{dims = (0), keepdim = 0, tie = 1}"), (Doubles{0, 1, 0, 0}));
}

TEST(Ties, OfAPoolingWindowGoToTheFirst) {
  const char* pool =
      "graph(%x: f64[1, n]) { %y = max_pool(%x) {kernel = (2), stride = (2), padding = (0), dilation = (1),"
      " ceil_mode = 0} return %y }";
  EXPECT_EQ(gradients(pool, {Array(DType::f64, {1, 4}, {5, 5, -inf, -inf})})[0], (Doubles{1, 0, 1, 0}));
}

TEST(Prod, OfZeros) {
  EXPECT_EQ(unary("prod", {2, 0, 3}, "{dims = (0), keepdim = 0}"), (Doubles{0, 6, 0}));
  EXPECT_EQ(unary("prod", {0, 0, 3}, "{dims = (0), keepdim = 0}"), (Doubles{0, 0, 0}));
}

TEST(Pow, AtZero) {
  EXPECT_EQ(binary("pow", 0, 0), (Pair{{0}, {0}}));
  EXPECT_EQ(binary("pow", 0, 2), (Pair{{0}, {0}}));
  EXPECT_EQ(binary("pow", 3, 2)[0], (Doubles{6}));
}

TEST(Differentiate, StopGradientStops) {
  EXPECT_EQ(gradients("graph(%x: f64[n]) { %s = stop_gradient(%x) %y = mul(%x, %s) return %y }",
                      {Array(DType::f64, {2}, 3.0)})[0],
            (Doubles{3, 3}));
}

TEST(Differentiate, BroadcastOperandsGetTheSum) {
  auto g = gradients(
      "graph(%x: f64[2, 3], %m: f64[3], %k: f64[2, 1], %s: f64[]) { %1 = mul(%x, %m) %2 = mul(%1, %k) "
      "%3 = mul(%2, %s) return %3 }",
      {Array(DType::f64, {2, 3}, {1, 2, 3, 4, 5, 6}), Array(DType::f64, {3}, 1.0), Array(DType::f64, {2, 1}, 1.0),
       Array(DType::f64, {}, 2.0)});
  EXPECT_EQ(g[1], (Doubles{10, 14, 18}));
  EXPECT_EQ(g[2], (Doubles{12, 30}));
  EXPECT_EQ(g[3], (Doubles{21}));
}

TEST(Differentiate, AnInputWithoutAPathHasNone) {
  auto g = gradients("graph(%x: f64[2], %y: f64[3]) { %1 = exp(%x) return %1 }",
                     {Array(DType::f64, {2}, 0.0), Array(DType::f64, {3}, 0.0)});
  EXPECT_EQ(g, (std::vector<Doubles>{{1, 1}}));
}

TEST(Differentiate, AnOutputThatIsAnInput) {
  EXPECT_EQ(gradients("graph(%x: f64[2]) { %1 = square(%x) return %x, %1, %1 }", {Array(DType::f64, {2}, 3.0)})[0],
            (Doubles{13, 13}));
}

}  // namespace
}  // namespace fusewright::testing
