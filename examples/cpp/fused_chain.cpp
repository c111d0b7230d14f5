// Two chains built, differentiated, compiled and run without Python and without PyTorch, each checked against a plain
// loop: a per-channel factor -> LeakyReLU -> GELU, and LayerNorm -> SiLU.
#include <fusewright/fusewright.h>

#include <cmath>
#include <cstdio>
#include <random>

using namespace fusewright;

namespace {

std::vector<float> random_values(size_t count) {
  static std::mt19937 generator(1);
  std::uniform_real_distribution<float> uniform(-2, 2);
  std::vector<float> values(count);
  for (float& value : values) value = uniform(generator);
  return values;
}

double largest_error(const std::vector<float>& found, const std::vector<double>& expected) {
  double largest = found.size() == expected.size() ? 0 : INFINITY;
  for (size_t i = 0; i < expected.size() && i < found.size(); ++i)
    largest = std::max(largest, std::abs(found[i] - expected[i]));
  return largest;
}

bool report(const char* what, double error, double allowed) {
  std::printf("  %-28s largest error %.2g%s\n", what, error, error <= allowed ? "" : "   WRONG");
  return error <= allowed;
}

bool factor_leaky_relu_gelu() {
  GraphBuilder b;
  auto x = b.input("x", DType::f32, {"n", "c", "h", "w"});
  auto m = b.input("m", DType::f32, {"c", 1, 1});
  auto y = b.op("mul", {x, m});
  y = b.op("leaky_relu", {y}, {{"negative_slope", 0.01}});
  y = b.op("gelu", {y}, {{"approximate", "none"}});
  b.output(y);
  Function f = compile(b, {"x", "m"});
  std::printf("%s\n%s", b.text().c_str(), f.explain().c_str());

  const size_t n = 4, c = 3, space = 5 * 7, count = n * c * space;
  std::vector<float> x_values = random_values(count), m_values = random_values(c), g_values = random_values(count);
  auto result = f.forward({make_tensor(x_values, {4, 3, 5, 7}), make_tensor(m_values, {3, 1, 1})});
  auto gradients = f.backward(result.saved, {make_tensor(g_values, {4, 3, 5, 7})});

  std::vector<double> expected_y(count), expected_dx(count), expected_dm(c);
  for (size_t i = 0; i < count; ++i) {
    size_t channel = i / space % c;
    double slope = x_values[i] * m_values[channel] > 0 ? 1 : 0.01, v = slope * x_values[i] * m_values[channel];
    double phi = 0.5 * std::erfc(-v / std::sqrt(2.0));
    expected_y[i] = v * phi;
    double d = g_values[i] * (phi + v * std::exp(-v * v / 2) / std::sqrt(2 * M_PI)) * slope;
    expected_dx[i] = d * m_values[channel];
    expected_dm[channel] += d * x_values[i];
  }
  bool good = report("output", largest_error(to_vector<float>(result.outputs[0]), expected_y), 1e-5);
  good &= report("gradient of x", largest_error(to_vector<float>(gradients.at("x")), expected_dx), 1e-5);
  return good & report("gradient of m", largest_error(to_vector<float>(gradients.at("m")), expected_dm), 1e-3);
}

bool layer_norm_silu() {
  // The same, from text. Any batch runs through the same kernels.
  Function f = compile(GraphBuilder(R"(
    graph(%x: f32[n, k], %w: f32[k], %b: f32[k]) {
      %1 = layer_norm(%x, %w, %b) {axes = 1, eps = 1e-5, has_weight = 1, has_bias = 1}
      %2 = silu(%1)
      return %2
    })"),
                       {"x", "w", "b"});
  std::printf("\n%s", f.explain().c_str());
  bool good = true;
  for (int64_t n : {3, 10}) {
    const int64_t k = 100;
    size_t rows = static_cast<size_t>(n), columns = static_cast<size_t>(k);
    std::vector<float> x = random_values(rows * columns), w = random_values(columns), bias = random_values(columns);
    auto result = f.forward({make_tensor(x, {n, k}), make_tensor(w, {k}), make_tensor(bias, {k})});
    std::vector<double> expected(x.size()), expected_db(columns);
    for (size_t r = 0; r < rows; ++r) {
      double mean = 0, variance = 0;
      for (size_t i = 0; i < columns; ++i) mean += x[r * columns + i] / static_cast<double>(columns);
      for (size_t i = 0; i < columns; ++i)
        variance += std::pow(x[r * columns + i] - mean, 2) / static_cast<double>(columns);
      for (size_t i = 0; i < columns; ++i) {
        double v = (x[r * columns + i] - mean) / std::sqrt(variance + 1e-5) * w[i] + bias[i],
               s = 1 / (1 + std::exp(-v));
        expected[r * columns + i] = v * s;
        expected_db[i] += s + v * s * (1 - s);
      }
    }
    auto gradients = f.backward(result.saved, {make_tensor(std::vector<float>(x.size(), 1.0f), {n, k})});
    good &= report("output", largest_error(to_vector<float>(result.outputs[0]), expected), 1e-5);
    good &= report("gradient of the bias", largest_error(to_vector<float>(gradients.at("b")), expected_db), 1e-4);
  }
  return good;
}

}  // namespace

int main() {
  try {
    bool good = factor_leaky_relu_gelu();
    good &= layer_norm_silu();
    std::printf("%s\n", good ? "all as expected" : "WRONG RESULTS");
    return good ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
