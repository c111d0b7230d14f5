// Composites against formulas written out here, in double.
#include "support/graphs.h"
#include "support/interpreter.h"

namespace fusewright::testing {
namespace {

constexpr double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();

struct Activation {
  const char *op, *attrs;
  double (*formula)(double);
};

double softplus(double x) { return std::log1p(std::exp(x)); }

const Activation activations[] = {
    {"relu", "", [](double x) { return x > 0 ? x : 0; }},
    {"leaky_relu", "{negative_slope = 0.2}", [](double x) { return x > 0 ? x : 0.2 * x; }},
    {"gelu", "{approximate = \"none\"}", [](double x) { return x * 0.5 * std::erfc(-x / std::sqrt(2)); }},
    {"gelu", "{approximate = \"tanh\"}",
     [](double x) { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * std::pow(x, 3)))); }},
    {"silu", "", [](double x) { return x / (1 + std::exp(-x)); }},
    {"mish", "", [](double x) { return x * std::tanh(softplus(x)); }},
    {"softplus", "{beta = 2.0, threshold = 20.0}", [](double x) { return 2 * x > 20 ? x : softplus(2 * x) / 2; }},
    {"hardswish", "", [](double x) { return x * std::clamp(x + 3, 0.0, 6.0) / 6; }},
    {"hardsigmoid", "", [](double x) { return std::clamp(x + 3, 0.0, 6.0) / 6; }},
    {"hardtanh", "{min_val = -1.0, max_val = 2.0}", [](double x) { return std::clamp(x, -1.0, 2.0); }},
    {"clamp", "{min = -1.0, max = 2.0}", [](double x) { return std::clamp(x, -1.0, 2.0); }},
    {"clamp", "{max = 2.0}", [](double x) { return std::min(x, 2.0); }},
    {"elu", "{alpha = 1.5, scale = 1.1, input_scale = 0.7}",
     [](double x) { return x > 0 ? 1.1 * x : 1.5 * 1.1 * std::expm1(0.7 * x); }},
    {"log_sigmoid", "", [](double x) { return -softplus(-x); }},
    {"softsign", "", [](double x) { return x / (1 + std::abs(x)); }},
};

Array line(const std::vector<double>& values) {
  return Array(DType::f64, {static_cast<int64_t>(values.size())}, values);
}

std::vector<double> evaluate(const std::string& text, const std::vector<Array>& inputs) {
  return interpret(parse(text), inputs)[0].data;
}

TEST(Activations, AreTheirFormulas) {
  const std::vector<double> points = {-30, -5, -3, -1.5, -0.1, -0.0, 0, 0.1, 1.5, 3, 5, 30};
  for (const Activation& a : activations) {
    std::string text = std::string("graph(%x: f64[n]) { %y = ") + a.op + "(%x) " + a.attrs + " return %y }";
    std::vector<double> y = evaluate(text, {line(points)});
    for (size_t i = 0; i < points.size(); ++i)
      EXPECT_NEAR(y[i], a.formula(points[i]), 1e-12 * (1 + std::abs(points[i])))
          << a.op << a.attrs << " at " << points[i];
  }
}

// Numbers that change from call to call are operands, of the same formula.
TEST(Activations, TakeTheirNumbersAsOperands) {
  auto both = [](const std::string& op, const std::string& attrs, const std::string& operands,
                 const std::vector<double>& numbers, const std::string& flags = "") {
    const std::vector<double> points = {-30, -1.5, -1, -0.0, 0, 0.1, 2, 30, nan};
    std::vector<Array> inputs = {line(points)};
    for (double number : numbers) inputs.push_back(Array(DType::f64, {}, {number}));
    std::string scalars, names;
    for (char name : operands) scalars += std::string(", %") + name + ": f64[]", names += std::string(", %") + name;
    std::vector<double> fixed =
        evaluate("graph(%x: f64[n]) { %y = " + op + "(%x) " + attrs + " return %y }", {line(points)});
    std::vector<double> given = evaluate(
        "graph(%x: f64[n]" + scalars + ") { %y = " + op + "(%x" + names + ") " + flags + " return %y }", inputs);
    for (size_t i = 0; i < points.size(); ++i)
      EXPECT_TRUE(fixed[i] == given[i] || (std::isnan(fixed[i]) && std::isnan(given[i]))) << op << " at " << points[i];
  };
  both("leaky_relu", "{negative_slope = 0.2}", "s", {0.2});
  both("hardtanh", "{min_val = -1.0, max_val = 2.0}", "ab", {-1, 2});
  both("clamp", "{min = -1.0, max = 2.0}", "ab", {-1, 2}, "{has_min = 1, has_max = 1}");
  both("clamp", "{min = 2.0, max = -1.0}", "ab", {2, -1}, "{has_min = 1, has_max = 1}");
  both("clamp", "{max = 2.0}", "b", {2}, "{has_max = 1}");
  EXPECT_ERROR(parse("graph(%x: f64[n], %s: f64[n]) { %y = leaky_relu(%x, %s) return %y }"),
               "operand 1 must be a number");
  EXPECT_ERROR(parse("graph(%x: f64[n], %s: f32[]) { %y = leaky_relu(%x, %s) return %y }"),
               "operand 1 must be a number");
  EXPECT_ERROR(parse("graph(%x: f64[n], %s: f64[]) { %y = clamp(%x, %s) return %y }"), "has_min and has_max say");
  EXPECT_ERROR(parse("graph(%x: f64[n], %s: f64[]) { %y = hardtanh(%x, %s) return %y }"), "both limits");
}

TEST(Activations, ALimitThatIsNoNumberMakesNone) {
  for (const char* text : {"graph(%x: f64[n], %s: f64[]) { %y = clamp(%x, %s) {has_min = 1} return %y }",
                           "graph(%x: f64[n], %s: f64[]) { %y = clamp(%x, %s) {has_max = 1} return %y }"})
    for (double y : evaluate(text, {line({-1, 0, 1}), Array(DType::f64, {}, {nan})}))
      EXPECT_TRUE(std::isnan(y)) << text;
}

TEST(Activations, KeepNaN) {
  for (const Activation& a : activations) {
    std::string text = std::string("graph(%x: f64[n]) { %y = ") + a.op + "(%x) " + a.attrs + " return %y }";
    EXPECT_TRUE(std::isnan(evaluate(text, {line({nan})})[0])) << a.op;
  }
}

double mean_of(const std::vector<double>& v) {
  return std::accumulate(v.begin(), v.end(), 0.0) / static_cast<double>(v.size());
}
double var_of(const std::vector<double>& v, double correction = 0) {
  double total = 0;
  for (double x : v) total += (x - mean_of(v)) * (x - mean_of(v));
  return total / (static_cast<double>(v.size()) - correction);
}

TEST(Reductions, MeanVarLogsumexp) {
  const std::vector<double> v = {1, 4, -2, 0.5};
  EXPECT_DOUBLE_EQ(evaluate("graph(%x: f64[n]) { %y = mean(%x) {dims = (-1), keepdim = 0} return %y }", {line(v)})[0],
                   mean_of(v));
  EXPECT_DOUBLE_EQ(
      evaluate("graph(%x: f64[n]) { %y = var(%x) {dims = (0), keepdim = 0, correction = 1} return %y }", {line(v)})[0],
      var_of(v, 1));
  double total = 0;
  for (double x : v) total += std::exp(x);
  EXPECT_NEAR(evaluate("graph(%x: f64[n]) { %y = logsumexp(%x) {dims = (0), keepdim = 0} return %y }", {line(v)})[0],
              std::log(total), 1e-13);
}

TEST(Reductions, VarianceOfOneElementIsNaN) {
  EXPECT_TRUE(std::isnan(evaluate(
      "graph(%x: f64[n]) { %y = var(%x) {dims = (0), keepdim = 0, correction = 1} return %y }", {line({3})})[0]));
}

TEST(Reductions, PositionsTakeTheFirstAndNaN) {
  auto position = [](const char* op, const std::vector<double>& v) {
    return evaluate(std::string("graph(%x: f64[n]) { %y = ") + op + "(%x) {dims = (0), keepdim = 0} return %y }",
                    {line(v)})[0];
  };
  EXPECT_EQ(position("argmax", {1, 3, 3}), 1);
  EXPECT_EQ(position("argmin", {2, 1, 1}), 1);
  EXPECT_EQ(position("argmax", {1, nan, 3, nan}), 1);
  EXPECT_EQ(position("argmax", {-inf, -inf}), 0);
}

TEST(Softmax, OfLargeInfiniteAndSingleElements) {
  const char* softmax = "graph(%x: f64[n, k]) { %y = softmax(%x) {dim = -1} return %y }";
  const char* logsumexp = "graph(%x: f64[n, k]) { %y = logsumexp(%x) {dims = (1), keepdim = 0} return %y }";
  auto rows = [](const std::vector<double>& v) { return Array(DType::f64, {1, static_cast<int64_t>(v.size())}, v); };
  EXPECT_EQ(evaluate(softmax, {rows({1e4, 1e4})}), (std::vector<double>{0.5, 0.5}));
  EXPECT_EQ(evaluate(softmax, {rows({-1e4, 1e4})}), (std::vector<double>{0, 1}));
  EXPECT_EQ(evaluate(softmax, {rows({7})}), (std::vector<double>{1}));
  EXPECT_TRUE(std::isnan(evaluate(softmax, {rows({-inf, -inf})})[0]));
  EXPECT_EQ(evaluate(logsumexp, {rows({-inf, -inf})}), (std::vector<double>{-inf}));
  EXPECT_EQ(evaluate(logsumexp, {rows({inf, 0})}), (std::vector<double>{inf}));
  EXPECT_NEAR(evaluate(logsumexp, {rows({1e4, 1e4})})[0], 1e4 + std::log(2), 1e-9);
}

TEST(Norms, AreTheirFormulas) {
  std::mt19937 random(3);
  Array x = random_array(DType::f64, {2, 4, 3}, random), w = random_array(DType::f64, {4}, random),
        b = random_array(DType::f64, {4}, random);
  const std::string inputs = "graph(%x: f64[n, 2*g, h], %w: f64[2*g], %b: f64[2*g]) { %y = ";
  const std::string rest = "eps = 0.01, has_weight = 1, has_bias = 1} return %y }";
  Array group = interpret(parse(inputs + "group_norm(%x, %w, %b) {groups = 2, " + rest), {x, w, b})[0];
  Array batch = interpret(parse(inputs + "batch_norm(%x, %w, %b) {" + rest), {x, w, b})[0];
  Array instance = interpret(parse(inputs + "instance_norm(%x, %w, %b) {" + rest), {x, w, b})[0];
  for_each_index(x.sizes, [&](const Sizes& i) {
    std::vector<double> in_group, in_channel, in_instance;
    for_each_index(x.sizes, [&](const Sizes& k) {
      if (k[0] == i[0] && k[1] / 2 == i[1] / 2) in_group.push_back(x(k));
      if (k[1] == i[1]) in_channel.push_back(x(k));
      if (k[0] == i[0] && k[1] == i[1]) in_instance.push_back(x(k));
    });
    auto formula = [&](const std::vector<double>& v) {
      return (x(i) - mean_of(v)) / std::sqrt(var_of(v) + 0.01) * w({i[1]}) + b({i[1]});
    };
    EXPECT_NEAR(group(i), formula(in_group), 1e-12);
    EXPECT_NEAR(batch(i), formula(in_channel), 1e-12);
    EXPECT_NEAR(instance(i), formula(in_instance), 1e-12);
  });
}

TEST(Norms, LayerAndRms) {
  const std::vector<double> v = {1, 4, -2, 0.5};
  Array x(DType::f64, {1, 4}, v), w(DType::f64, {4}, {1, 2, 3, 4});
  auto layer = evaluate(
      "graph(%x: f64[n, k], %w: f64[k]) { %y = layer_norm(%x, %w) {axes = 1, eps = 0.01, has_weight = 1, "
      "has_bias = 0} return %y }",
      {x, w});
  auto rms =
      evaluate("graph(%x: f64[n, k]) { %y = rms_norm(%x) {axes = 1, eps = 0.01, has_weight = 0} return %y }", {x});
  double power = 0;
  for (double value : v) power += value * value / 4;
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(layer[i], (v[i] - mean_of(v)) / std::sqrt(var_of(v) + 0.01) * w.data[i], 1e-12);
    EXPECT_NEAR(rms[i], v[i] / std::sqrt(power + 0.01), 1e-12);
  }
}

TEST(Norms, RunningStatistics) {
  Array x(DType::f64, {4, 1}, {1, 4, -2, 0.5}), old(DType::f64, {1}, 10.0);
  const std::string inputs = "graph(%x: f64[n, c], %r: f64[c]) { %y = batch_norm_running_";
  EXPECT_NEAR(evaluate(inputs + "mean(%x, %r) {momentum = 0.1} return %y }", {x, old})[0], 9 + 0.1 * mean_of(x.data),
              1e-12);
  EXPECT_NEAR(evaluate(inputs + "var(%x, %r) {momentum = 0.1} return %y }", {x, old})[0], 9 + 0.1 * var_of(x.data, 1),
              1e-12);
}

TEST(Linear, OfAnyRank) {
  std::mt19937 random(4);
  Array w = random_array(DType::f64, {2, 3}, random), b = random_array(DType::f64, {2}, random);
  for (const char* lead : {"", "n, ", "n, m, ", "n, m, p, "}) {
    Graph graph = parse(std::string("graph(%x: f64[") + lead +
                        "3], %w: f64[2, 3], %b: f64[2]) { %y = linear(%x, %w, %b) return %y }");
    Array x = random_inputs(graph, {{"n", 2}, {"m", 4}, {"p", 2}}, random)[0];
    Array y = interpret(graph, {x, w, b})[0];
    for (size_t row = 0; row < x.size() / 3; ++row)
      for (size_t o = 0; o < 2; ++o) {
        double expected = b.data[o];
        for (size_t k = 0; k < 3; ++k) expected += x.data[row * 3 + k] * w.data[o * 3 + k];
        EXPECT_NEAR(y.data[row * 2 + o], expected, 1e-12) << lead;
      }
  }
}

// Rounded once in 16 bits, fused into what follows otherwise.
TEST(Layers, ABiasGoesIntoTheLibrarysCallInNarrowTypes) {
  auto decomposed_to = [](const std::string& type, const std::string& before, const std::string& after) {
    auto typed = [&](std::string text) {
      for (size_t at; (at = text.find("T[")) != std::string::npos;) text.replace(at, 1, type);
      return print(parse(text));
    };
    EXPECT_EQ(print(decomposed(parse(typed(before)))), typed(after));
  };
  std::string attrs =
      "{stride = (1), padding = (0), dilation = (1), groups = 1, transposed = 0, output_padding = (0)} ";
  std::string linear = "graph(%x: T[n, c], %w: T[h, c], %b: T[h]) { ";
  std::string convolution = "graph(%x: T[n, 4, s], %w: T[6, 4, 3], %b: T[6]) { ";
  for (const char* type : {"f16", "bf16"}) {
    decomposed_to(type, linear + "%1 = linear(%x, %w, %b) return %1 }",
                  linear + "%1 = permute(%w) {dims = (1, 0)} %2 = matmul(%x, %1, %b) return %2 }");
    decomposed_to(type, convolution + "%1 = convolution(%x, %w, %b) " + attrs + "return %1 }",
                  convolution + "%1 = conv(%x, %w, %b) " + attrs + "return %1 }");
  }
  for (const char* type : {"f32", "f64"}) {
    decomposed_to(type, linear + "%1 = linear(%x, %w, %b) return %1 }",
                  linear + "%1 = permute(%w) {dims = (1, 0)} %2 = matmul(%x, %1) %3 = add(%2, %b) return %3 }");
    decomposed_to(
        type, convolution + "%1 = convolution(%x, %w, %b) " + attrs + "return %1 }",
        convolution + "%1 = conv(%x, %w) " + attrs + "%2 = reshape(%b) {sizes = [6, 1]} %3 = add(%1, %2) return %3 }");
  }
}

}  // namespace
}  // namespace fusewright::testing
