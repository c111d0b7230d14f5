// Whole graphs, compiled and run with the plain host, against the interpreter.
#include "runtime/plan/executable.h"

#include <sys/mman.h>

#include <cstring>
#include <thread>

#include "runtime/thread_pool.h"
#include "support/execute.h"

namespace fusewright::testing {
namespace {

constexpr double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();

const char* const chain =
    "graph(%x: f32[n, c, h, w], %m: f32[c, 1, 1]) { %1 = mul(%x, %m) %2 = leaky_relu(%1) {negative_slope = 0.01} "
    "%3 = gelu(%2) {approximate = \"none\"} return %3 }";
const char* const softmax = "graph(%x: f32[n, c]) { %1 = softmax(%x) {dim = 1} return %1 }";
const char* const batch_norm =
    "graph(%x: f32[n, c], %w: f32[c], %b: f32[c]) { %1 = batch_norm(%x, %w, %b) {eps = 0.01, has_weight = 1, has_bias "
    "= 1} "
    "%2 = silu(%1) return %2 }";
const char* const pooling =
    "graph(%x: f32[n, c, h, w]) { %1 = leaky_relu(%x) {negative_slope = 0.2} %2 = max_pool(%1) {kernel = (2, 2), "
    "stride = (2, 2), padding = (0, 0), dilation = (1, 1), ceil_mode = 1} return %2 }";

// ---- sizes ---------------------------------------------------------------------------------------------------

class AwkwardSize : public ::testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(, AwkwardSize, ::testing::Values(1, 2, 31, 32, 33, 127, 129, 1023, 1025));

TEST_P(AwkwardSize, Pointwise) {
  expect_agrees(chain, {{"n", 2}, {"c", 3}, {"h", 2}, {"w", GetParam()}});
  expect_agrees(chain, {{"n", 1}, {"c", GetParam()}, {"h", 1}, {"w", 1}});
}
TEST_P(AwkwardSize, Row) {
  expect_agrees(softmax, {{"n", 3}, {"c", GetParam()}});
  expect_agrees(softmax, {{"n", GetParam()}, {"c", 3}});  // short rows are taken several at a time
}
TEST_P(AwkwardSize, Column) {
  expect_agrees(batch_norm, {{"n", 5}, {"c", GetParam()}});
  expect_agrees(batch_norm, {{"n", GetParam() + 1}, {"c", 3}});
}
TEST_P(AwkwardSize, Window) { expect_agrees(pooling, {{"n", 1}, {"c", 2}, {"h", 5}, {"w", GetParam()}}); }

TEST(ZeroSize, GivesEmptyResultsAndZeroSums) {
  expect_agrees(chain, {{"n", 0}, {"c", 3}, {"h", 2}, {"w", 4}});
  expect_agrees(chain, {{"n", 2}, {"c", 3}, {"h", 2}, {"w", 0}});
  expect_agrees(softmax, {{"n", 0}, {"c", 3}});
  expect_agrees(softmax, {{"n", 3}, {"c", 0}});
  expect_agrees(batch_norm, {{"n", 3}, {"c", 0}});
  expect_agrees(pooling, {{"n", 0}, {"c", 2}, {"h", 5}, {"w", 6}});
  expect_agrees(
      "graph(%x: f64[n, c]) { %1 = sum(%x) {dims = (0), keepdim = 0} %2 = prod(%x) {dims = (0), keepdim = 0} "
      "%3 = mean(%x) {dims = (0), keepdim = 0} return %1, %2, %3 }",
      {{"n", 0}, {"c", 5}});
  expect_agrees("graph(%x: f64[n, k], %w: f64[k, m]) { %1 = matmul(%x, %w) %2 = exp(%1) return %2 }",
                {{"n", 2}, {"k", 0}, {"m", 3}});
}

TEST(Rank, ZeroAndOne) {
  expect_agrees("graph(%x: f32[], %y: f32[]) { %1 = mul(%x, %y) %2 = gelu(%1) {approximate = \"tanh\"} return %2, %1 }",
                std::map<std::string, int64_t>{});
  expect_agrees("graph(%x: f32[n], %y: f32[]) { %1 = mul(%x, %y) %2 = sum(%1) {dims = (0), keepdim = 0} return %2 }",
                {{"n", 40}});
  expect_agrees("graph(%x: f32[]) { %1 = sum(%x) {dims = (0), keepdim = 0} %2 = exp(%1) return %2 }",
                std::map<std::string, int64_t>{});
}

TEST(Rank, Eight) {
  expect_agrees(
      "graph(%x: f64[a, b, c, d, e, f, g, h], %y: f64[d, 1, f, 1, h]) { %1 = mul(%x, %y) "
      "%2 = sum(%1) {dims = (1, 3, 6), keepdim = 1} %3 = div(%1, %2) return %3 }",
      {{"a", 2}, {"b", 2}, {"c", 1}, {"d", 2}, {"e", 3}, {"f", 2}, {"g", 2}, {"h", 3}});
}

// ---- layouts -------------------------------------------------------------------------------------------------

const Layout channels_last{{0, 2, 3, 1}, 1, 0, {}}, reversed{{3, 2, 1, 0}, 1, 0, {}}, strided{{}, 3, 0, {}},
    shifted{{}, 1, 5, {}};

TEST(InputLayouts, AnyStrides) {
  for (const Layout& layout : {channels_last, reversed, strided, shifted}) {
    expect_agrees(chain, {{"n", 2}, {"c", 5}, {"h", 3}, {"w", 4}}, {layout});
    expect_agrees(pooling, {{"n", 2}, {"c", 5}, {"h", 7}, {"w", 6}}, {layout});
  }
  const Layout transposed{{1, 0}, 1, 0, {}};
  expect_agrees(softmax, {{"n", 6}, {"c", 9}}, {transposed});
  for (int64_t c : {9, 16, 40}) expect_agrees(batch_norm, {{"n", 6}, {"c", c}}, {transposed, strided});
}

// x by vectors; what is one value for each column may lie in memory as it likes.
TEST(InputLayouts, OfValuesOfColumns) {
  const Layout dense{{}, 1, 0, {}}, one_for_all{{}, 1, 0, {true}};
  for (int64_t n : {6, 200, 3000}) {
    for (const Layout& layout : {strided, shifted})
      for (int64_t c : {16, 40}) expect_agrees(batch_norm, {{"n", n}, {"c", c}}, {dense, layout, layout});
    std::mt19937 random(4);
    const Array x = random_array(DType::f32, {n, 24}, random);
    expect_agrees(batch_norm, std::vector<Array>{x, Array(DType::f32, {24}, 0.75), Array(DType::f32, {24}, -0.5)},
                  {dense, one_for_all, one_for_all});
  }
}

TEST(InputLayouts, ExpandedByStrideZero) {
  Array x(DType::f32, {4, 3, 2, 5});
  for (size_t i = 0; i < x.size(); ++i) x.data[i] = static_cast<double>(i % 5) - 1;
  Array m(DType::f32, {3, 1, 1}, 0.5);
  expect_agrees(chain, std::vector<Array>{x, m}, {{{}, 1, 0, {true, true, true, false}}, {{}, 1, 0, {true}}});
  expect_agrees(softmax, std::vector<Array>{Array(DType::f32, {4, 6}, 2.0)}, {{{}, 1, 0, {true, true}}});
}

TEST(InputLayouts, TheSameMemoryTwice) {
  Graph graph = parse("graph(%x: f32[n], %y: f32[n]) { %1 = mul(%x, %y) return %1 }");
  auto executable = compile(graph);
  Tensor t = to_tensor(Array(DType::f32, {3}, {1, 2, 3}));
  EXPECT_EQ(to_array(executable->forward().run(backend_host(), {t, t}, {})[0]).data, (std::vector<double>{1, 4, 9}));
}

std::vector<int64_t> strides_of(const Tensor& t) { return {t.strides.begin(), t.strides.begin() + t.rank}; }

TEST(OutputLayouts, FollowTheOrderAskedFor) {
  std::mt19937 random(2);
  Array x = random_array(DType::f32, {2, 3, 4, 5}, random);
  for (auto [text, strides] : std::vector<std::pair<const char*, std::vector<int64_t>>>{
           {"graph(%x: f32[n, c, h, w]) { %1 = exp(%x) return %1 }", {60, 20, 5, 1}},
           {"graph(%x: f32[n, c, h, w]@0231) { %1 = exp(%x) return %1@0231 }", {60, 1, 15, 3}},
           {"graph(%x: f32[n, c, h, w]@0231) { %1 = exp(%x) return %1 }", {60, 20, 5, 1}},
           {"graph(%x: f32[n, c, h, w]) { %1 = sum(%x) {dims = (2), keepdim = 0} return %1@210 }", {1, 2, 6}}}) {
    Execution found = execute(*compile(parse(text)), {x}, {}, {channels_last});
    EXPECT_EQ(strides_of(found.outputs[0]), strides) << text;
    EXPECT_EQ(disagreement(found.outputs, interpret(parse(text), {x}), "output"), "");
  }
}

TEST(OutputLayouts, OfAContraction) {
  Graph graph = parse("graph(%x: f32[n, k], %w: f32[k, m]) { %1 = matmul(%x, %w) return %1@10 }");
  std::mt19937 random(2);
  std::vector<Array> inputs = random_inputs(graph, {{"n", 2}, {"k", 3}, {"m", 4}}, random);
  Execution found = execute(*compile(graph), inputs, {});
  EXPECT_EQ(strides_of(found.outputs[0]), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(disagreement(found.outputs, interpret(graph, inputs), "output"), "");
}

TEST(OutputLayouts, AResultIsNeverTheInputItself) {
  Graph graph = parse("graph(%x: f32[n]) { %1 = exp(%x) return %x, %1 }");
  auto executable = compile(graph);
  Tensor t = to_tensor(Array(DType::f32, {2}, {1, 2}));
  std::vector<Tensor> outputs = executable->forward().run(backend_host(), {t}, {});
  EXPECT_NE(outputs[0].data, t.data);
  EXPECT_EQ(to_array(outputs[0]).data, (std::vector<double>{1, 2}));
  graph = parse("graph(%x: f32[n, c]) { %1 = reshape(%x) {sizes = [c, n]} return %1 }");
  t = to_tensor(Array(DType::f32, {1, 2}, {1, 2}));
  outputs = compile(graph)->forward().run(backend_host(), {t}, {});
  EXPECT_NE(outputs[0].data, t.data);
  EXPECT_EQ(to_array(outputs[0]).data, (std::vector<double>{1, 2}));
}

TEST(OutputLayouts, AReshapeThatIsNoProductOfLoops) {
  expect_agrees("graph(%x: f64[n, c]) { %1 = exp(%x) %2 = reshape(%1) {sizes = [c, n]} return %2 }",
                {{"n", 3}, {"c", 4}}, {{{1, 0}, 1, 0, {}}});
}

// ---- element types -------------------------------------------------------------------------------------------

TEST(ElementTypes, NarrowFloatsAreComputedInFloat) {
  for (const char* type : {"f16", "bf16"}) {
    std::string text =
        std::string("graph(%x: ") + type + "[n, c]) { %1 = softmax(%x) {dim = 1} %2 = silu(%1) return %2 }";
    Graph graph = parse(text);
    std::mt19937 random(8);
    std::vector<Array> inputs = random_inputs(graph, {{"n", 3}, {"c", 70}}, random);
    Execution found = execute(*compile(graph), inputs, {});
    EXPECT_EQ(disagreement(found.outputs, interpret(graph, inputs), "output"), "") << type;
  }
}

TEST(ElementTypes, IntegersAndBooleans) {
  Array x(DType::i32, {2, 3}, {1, -2, 3, 4, 5, -6});
  expect_agrees(
      "graph(%x: i32[n, c]) { %1 = mul(%x, %x) %2 = sum(%1) {dims = (1), keepdim = 0} "
      "%3 = amax(%x) {dims = (1), keepdim = 0, tie = 0} %4 = amin(%x) {dims = (0), keepdim = 0, tie = 0} "
      "return %1, %2, %3, %4 }",
      std::vector<Array>{x}, {}, false);
  for (double value : {0.0, 1.0})
    expect_agrees(
        "graph(%x: b8[n, c]) { %1 = amax(%x) {dims = (1), keepdim = 0, tie = 0} "
        "%2 = amin(%x) {dims = (1), keepdim = 0, tie = 0} %3 = amax(%x) {dims = (0), keepdim = 0, tie = 0} "
        "return %1, %2, %3 }",
        std::vector<Array>{Array(DType::b8, {2, 3}, value)}, {}, false);
}

TEST(ElementTypes, IntegersInsideAWindow) {
  expect_agrees(
      "graph(%x: i32[c, w]) { %1 = neg(%x) %2 = max_pool(%1) {kernel = (2), stride = (2), padding = (0), dilation = "
      "(1), "
      "ceil_mode = 0} %3 = cast(%1) {dtype = f32} %4 = avg_pool(%3) {kernel = (2), stride = (2), padding = (0), "
      "ceil_mode = 0, count_include_pad = 1, divisor = 0} return %2, %4 }",
      std::vector<Array>{Array(DType::i32, {1, 4}, {-5, 7, 3, 4})}, {}, false);
}

TEST(ElementTypes, PositionsAreWhole) {
  std::mt19937 random(9);
  Array x = random_array(DType::f32, {5, 70}, random);
  for (const char* attrs : {"{dims = (1), keepdim = 0}", "{dims = (0), keepdim = 1}"})
    expect_agrees(std::string("graph(%x: f32[n, c]) { %1 = argmax(%x) ") + attrs + " %2 = argmin(%x) " + attrs +
                      " return %1, %2 }",
                  std::vector<Array>{x}, {}, false);
}

TEST(ElementTypes, EveryPointwisePrimitiveInOneKernel) {
  // All of them over one input, in f32 and f64: two kernels in all, each with a line for each row of the table.
  for (const char* type : {"f64", "f32"}) {
    std::string body, outputs;
    int made = 0;
    for (const OpInfo& row : all_ops()) {
      if (row.kind != Kind::pointwise || row.op == Op::cast) continue;
      std::string name = "%y" + std::to_string(made++), prefix = name + " = ";
      bool logical = row.op == Op::logical_and || row.op == Op::logical_or || row.op == Op::logical_not;
      if (row.op == Op::select)
        body += prefix + "select(%k, %x, %z) ";
      else if (row.max_operands == 1)
        body += prefix + row.name + (logical ? "(%k) " : "(%x) ");
      else
        body += prefix + row.name + (logical ? "(%k, %j) " : "(%x, %z) ");
      outputs += (outputs.empty() ? "" : ", ") + name;
    }
    std::string text = std::string("graph(%x: ") + type + "[n], %z: " + type +
                       "[n]) { %k = lt(%x, %z) %j = gt(%z, %x) " + body + "return " + outputs + " }";
    std::mt19937 random(10);
    std::vector<Array> inputs = random_inputs(parse(text), {{"n", 65}}, random, 0.3, 1.9);
    expect_agrees(text, inputs, {}, false);
  }
}

// ---- numbers at the edge -------------------------------------------------------------------------------------

std::vector<double> run(const std::string& text, const std::vector<Array>& inputs) {
  return to_array(execute(*compile(parse(text)), inputs, {}).outputs[0]).data;
}

TEST(Accuracy, SumOfMoreOnesThanAFloatCanCount) {
  const int64_t count = (int64_t{1} << 24) + 1;
  std::vector<float> ones(static_cast<size_t>(count), 1.0f);
  Tensor x;
  x.data = ones.data();
  x.rank = 2;
  x.sizes = {1, count};
  x.strides = {count, 1};
  auto sum = [&](const std::string& dims) {
    auto executable = compile(parse("graph(%x: f32[n, c]) { %1 = sum(%x) {dims = (" + dims +
                                    "), keepdim = 0} %2 = cast(%1) {dtype = f64} return %2 }"),
                              {});
    return to_array(executable->forward().run(backend_host(), {x}, {})[0]).data[0];
  };
  EXPECT_NEAR(sum("1"), static_cast<double>(count), 2);  // the result itself is a float
  x.sizes = {count, 1};
  x.strides = {1, 1};
  EXPECT_NEAR(sum("0"), static_cast<double>(count), 2);
}

TEST(Accuracy, VarianceFarFromZero) {
  std::mt19937 random(12);
  std::normal_distribution<double> noise;
  const int64_t count = 20000;
  // Both rows and columns are longer than registers hold.
  for (const auto& [dims, sizes] : {std::pair<std::string, Sizes>{"1", {2, count}}, {"0", {count, 2}}}) {
    Array x(DType::f32, sizes);
    for (double& value : x.data) value = static_cast<float>(1e6 + noise(random));
    const std::string text =
        "graph(%x: f32[n, c]) { %1 = var(%x) {dims = (" + dims + "), keepdim = 0, correction = 0} return %1 }";
    std::vector<double> found = run(text, {x}), expected = interpret(parse(text), {x})[0].data;
    for (size_t i = 0; i < 2; ++i) EXPECT_NEAR(found[i], expected[i], 0.01 * expected[i]) << dims;
  }
}

TEST(Accuracy, VarianceOfConstants) {
  for (double value : {0.1, 3.3, -1000.1})
    for (const auto& [dim, sizes] : {std::pair<std::string, Sizes>{"1", {2, 100000}}, {"0", {100000, 2}}}) {
      const Array x(DType::f32, sizes, static_cast<float>(value));
      const std::string var = "{dims = (" + dim + "), keepdim = 0, correction = 1} return %1 }";
      for (double found : run("graph(%x: f32[n, c]) { %1 = var(%x) " + var, {x})) {
        EXPECT_GE(found, 0) << value << ", dimension " << dim;  // or its root would be NaN
        EXPECT_LE(found, 1e-10 * value * value) << value << ", dimension " << dim;
      }
      // 1 / sqrt(eps) times the error of the mean
      const std::string norm = dim == "1" ? "layer_norm(%x) {axes = 1, " : "batch_norm(%x) {";
      for (double found : run("graph(%x: f32[n, c]) { %1 = " + norm + "eps = 0.00001} return %1 }", {x}))
        ASSERT_NEAR(found, 0, 316 * 1e-6 * std::abs(value)) << value << ", dimension " << dim;
    }
}

// Beside a variance, and far closer to zero than the elements are.
TEST(Accuracy, MeanCloseToZero) {
  std::mt19937 random(13);
  std::normal_distribution<double> noise;
  const int64_t count = 20000;
  for (const auto& [dim, sizes] : {std::pair<int64_t, Sizes>{1, {4, count}}, {0, {count, 4}}}) {
    Array x(DType::f32, sizes);
    for (double& value : x.data) value = static_cast<float>(noise(random));
    const std::string dims = "{dims = (" + std::to_string(dim) + "), keepdim = ";
    const Graph graph = parse("graph(%x: f32[n, c]) { %1 = mean(%x) " + dims + "1} %2 = var(%x) " + dims +
                              "1, correction = 0} return %1, %2 }");
    const auto outputs = execute(*compile(graph), {x}, {}).outputs;
    const std::vector<double> found = to_array(outputs[0]).data, expected = interpret(graph, {x})[0].data;
    for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(found[i], expected[i], 1e-8) << "dimension " << dim;
  }
}

TEST(NaN, PropagatesThroughMaximaAndMinima) {
  for (double special : {nan, inf, -inf}) {
    Array x(DType::f32, {3, 40}, 1.0), y(DType::f32, {3, 40}, 0.5);
    x.data[3] = special;
    y.data[60] = special;
    expect_agrees(
        "graph(%x: f32[n, c], %y: f32[n, c]) { %1 = maximum(%x, %y) %2 = minimum(%x, %y) "
        "%3 = amax(%x) {dims = (1), keepdim = 0, tie = 0} %4 = amin(%y) {dims = (0), keepdim = 0, tie = 0} "
        "%5 = relu(%x) %6 = clamp(%y) {min = 0.0, max = 1.0} %7 = softmax(%x) {dim = 1} "
        "return %1, %2, %3, %4, %5, %6, %7 }",
        std::vector<Array>{x, y}, {}, false);
  }
}

TEST(SignedZero, IsKept) {
  Array x(DType::f32, {2, 40}, 0.0);
  for (size_t i = 0; i < x.size(); i += 3) x.data[i] = -0.0;
  const Graph graph = parse(
      "graph(%x: f32[n, c]) { %1 = neg(%x) %2 = mul(%x, %x) %3 = mul(%1, %x) %4 = abs(%x) %5 = sqrt(%x) %6 = tanh(%x) "
      "%7 = expm1(%x) %8 = round(%x) %9 = sin(%x) %10 = sub(%x, %1) return %1, %2, %3, %4, %5, %6, %7, %8, %9, %10 "
      "}");
  const std::vector<Array> expected = interpret(graph, {x});
  const Execution found = execute(*compile(graph), {x}, {});
  for (size_t i = 0; i < expected.size(); ++i) {
    const Array array = to_array(found.outputs[i]);
    for (size_t j = 0; j < array.size(); ++j)
      EXPECT_EQ(std::signbit(array.data[j]), std::signbit(expected[i].data[j])) << "output " << i << ", element " << j;
  }
}

TEST(Softmax, OfLargeInfiniteAndSingleElements) {
  std::mt19937 random(18);
  Array rows = random_array(DType::f32, {5, 70}, random);
  for (size_t i = 0; i < 70; ++i) {
    rows.data[70 + i] *= 1e4;
    rows.data[140 + i] = -inf;
    rows.data[210 + i] = i % 2 ? -inf : rows.data[210 + i];
  }
  rows.data[280 + 9] = inf;
  for (const char* dim : {"0", "1"})
    for (const Array& x : {rows, random_array(DType::f32, {5, 1}, random)})
      expect_agrees("graph(%x: f32[n, c]) { %1 = softmax(%x) {dim = " + std::string(dim) +
                        "} %2 = logsumexp(%x) {dims = (" + dim + "), keepdim = 0} return %1, %2 }",
                    std::vector<Array>{x}, {}, false);
}

TEST(NaN, BehindAMaskReachesNeitherSumsNorGradients) {
  std::mt19937 random(15);
  Array x = random_array(DType::f32, {7, 70}, random), mask = random_array(DType::f32, {7, 70}, random, -1, 1);
  for (size_t i = 0; i < x.size(); ++i)
    if (!(mask.data[i] > 0)) x.data[i] = i % 3 == 0 ? nan : i % 3 == 1 ? inf : -inf;
  for (const char* dims : {"0", "1"})
    expect_agrees(
        "graph(%x: f32[n, c], %m: f32[n, c]) { %0: f32[] = constant() {value = 0} %1 = gt(%m, %0) "
        "%2 = select(%1, %x, %0) %3 = sum(%2) {dims = (" +
            std::string(dims) + "), keepdim = 1} %4 = mul(%2, %3) return %4 }",
        std::vector<Array>{x, mask});
}

// Two rows so far apart that no 32-bit number holds the way between them; the memory in between is never touched.
TEST(Offsets, Beyond32Bits) {
  const int64_t apart = (int64_t{1} << 32) + 7, columns = 70;
  const size_t bytes = static_cast<size_t>(apart + columns) * sizeof(float);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) GTEST_SKIP() << "no address space: " << std::strerror(errno);
  std::mt19937 random(16);
  const Array values = random_array(DType::f32, {2, columns}, random);
  Tensor x;
  x.data = memory;
  x.rank = 2;
  x.sizes = {2, columns};
  x.strides = {apart, 1};
  for (int64_t row = 0; row < 2; ++row)
    for (int64_t column = 0; column < columns; ++column)
      static_cast<float*>(memory)[row * apart + column] =
          static_cast<float>(values.data[static_cast<size_t>(row * columns + column)]);
  for (const char* text : {"graph(%x: f32[n, c]) { %1 = exp(%x) %2 = mul(%1, %x) return %2 }",
                           "graph(%x: f32[n, c]) { %1 = softmax(%x) {dim = 1} return %1 }",
                           "graph(%x: f32[n, c]) { %1 = softmax(%x) {dim = 0} return %1 }"}) {
    const Graph graph = parse(text);
    EXPECT_EQ(
        disagreement(compile(graph)->forward().run(backend_host(), {x}, {}), interpret(graph, {values}), "output"), "")
        << text;
  }
  munmap(memory, bytes);
}

std::string pool(const std::string& attrs) {
  return "graph(%x: f32[n, c, h, w]) { %1 = max_pool(%x) {" + attrs + "} return %1 }";
}

class PoolingEdges : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(
    , PoolingEdges,
    ::testing::Values("kernel = (2, 2), stride = (2, 2), padding = (0, 0), dilation = (1, 1), ceil_mode = 0",
                      "kernel = (3, 2), stride = (2, 1), padding = (1, 1), dilation = (1, 1), ceil_mode = 1",
                      "kernel = (3, 3), stride = (1, 2), padding = (1, 0), dilation = (2, 1), ceil_mode = 0",
                      "kernel = (2, 3), stride = (3, 3), padding = (1, 1), dilation = (2, 2), ceil_mode = 1"));

TEST_P(PoolingEdges, SpecialValuesAndTheirGradients) {
  std::mt19937 random(13);
  Array some = random_array(DType::f32, {1, 2, 9, 9}, random), all_nan(DType::f32, {1, 2, 9, 9}, nan),
        all_low(DType::f32, {1, 2, 9, 9}, -inf), equal(DType::f32, {1, 2, 9, 9}, 1.5);
  for (size_t i = 0; i < some.size(); i += 7) some.data[i] = i % 3 == 0 ? nan : i % 3 == 1 ? inf : -inf;
  for (const Array& x : {some, all_nan, all_low, equal}) {
    expect_agrees(pool(GetParam()), std::vector<Array>{x});
    expect_agrees(pool(GetParam()), std::vector<Array>{x}, {channels_last});
  }
}

TEST(Pooling, OneAndThreeDimensions) {
  expect_agrees(
      "graph(%x: f64[n, c, w]) { %1 = max_pool(%x) {kernel = (3), stride = (2), padding = (1), dilation = (1), "
      "ceil_mode = 1} "
      "%2 = avg_pool(%x) {kernel = (3), stride = (2), padding = (1), ceil_mode = 1, count_include_pad = 1, divisor = "
      "0} "
      "return %1, %2 }",
      {{"n", 2}, {"c", 3}, {"w", 10}});
  const char* deep =
      "graph(%x: f64[n, c, d, h, w]) { %1 = max_pool(%x) {kernel = (2, 2, 2), stride = (2, 2, 2), padding = (0, 0, 0), "
      "dilation = (1, 1, 1), ceil_mode = 0} %2 = avg_pool(%x) {kernel = (2, 3, 2), stride = (1, 2, 2), "
      "padding = (1, 1, 0), ceil_mode = 0, count_include_pad = 0, divisor = 0} return %1, %2 }";
  const std::map<std::string, int64_t> sizes = {{"n", 2}, {"c", 3}, {"d", 4}, {"h", 5}, {"w", 6}};
  expect_agrees(deep, sizes);
  expect_agrees(deep, sizes, {{{0, 2, 3, 4, 1}, 1, 0, {}}});
}

TEST(Pooling, ChainBeforeTheWindowInAnyOrder) {
  // Channels last: the per-channel factor runs along the line while the window does not.
  const char* text =
      "graph(%x: f32[n, c, h, w]@0231, %m: f32[c, 1, 1]) { %1 = mul(%x, %m) %2 = leaky_relu(%1) {negative_slope = 0.2} "
      "%3 = max_pool(%2) {kernel = (2, 2), stride = (2, 2), padding = (0, 0), dilation = (1, 1), ceil_mode = 0} return "
      "%3@0231 }";
  expect_agrees(text, {{"n", 2}, {"c", 5}, {"h", 6}, {"w", 4}}, {channels_last});
}

// ---- sums on the side ----------------------------------------------------------------------------------------

// The gradients of a norm's weight (one for each column), of a bias (a single number) and of a factor for each group
// come out of the norm's own backward kernel; short rows, rows that are walked over, and few long ones, which are
// split.
TEST(SideSums, OfEveryShape) {
  const char* layer =
      "graph(%x: f32[n, c], %w: f32[c], %b: f32[1]) { %1 = layer_norm(%x, %w) {axes = 1, eps = 0.001, has_weight = 1} "
      "%2 = add(%1, %b) %3 = silu(%2) return %3 }";
  for (const auto& [n, c] : std::vector<std::pair<int64_t, int64_t>>{{5, 33}, {70, 64}, {2, 40000}, {300, 5}})
    expect_agrees(layer, {{"n", n}, {"c", c}});
  const char* group =
      "graph(%x: f32[n, 3*g, h], %w: f32[3*g], %m: f32[3*g, 1]) { %1 = group_norm(%x, %w) {groups = 3, eps = 0.01, "
      "has_weight = 1} %2 = mul(%1, %m) %3 = tanh(%2) return %3 }";
  for (int64_t h : {1, 7, 64}) expect_agrees(group, {{"n", 9}, {"g", 4}, {"h", h}});
}

// ---- threads -------------------------------------------------------------------------------------------------

class PoolHost : public ForwardingHost {
 public:
  explicit PoolHost(int threads) : pool_(threads) {}
  void parallel_for(int64_t n, int64_t grain, const std::function<void(int64_t, int64_t)>& body) override {
    pool_.parallel_for(n, grain, body);
  }

 private:
  ThreadPool pool_;
};

TEST(Threads, NumberOfThreadsDoesNotChangeABit) {
  if (backend().cuda) GTEST_SKIP() << "the host's threads are the CPU's";
  PoolHost one(1), four(4);
  std::mt19937 random(14);
  const char* few_long_rows =
      "graph(%x: f32[n, c]) { %1 = softmax(%x) {dim = 1} %2 = var(%x) {dims = (1), keepdim = 0, correction = 1} return "
      "%1, %2 }";
  const char* columns =
      "graph(%x: f32[n, c]) { %1 = batch_norm(%x) {eps = 0.001} %2 = sum(%x) {dims = (0, 1), keepdim = 0} return %1, "
      "%2 }";
  for (auto [text, sizes] : std::vector<std::pair<const char*, Sizes>>{{few_long_rows, {3, 200003}},
                                                                       {few_long_rows, {40003, 5}},
                                                                       {columns, {40001, 7}},
                                                                       {columns, {33, 4099}},
                                                                       {few_long_rows, {1, 65536}}}) {
    Array x = random_array(DType::f32, sizes, random);
    Graph graph = parse(text);
    auto executable = compile(graph, {true});
    std::vector<Array> dL_dy;
    for (const Array& y : interpret(graph, {x})) dL_dy.push_back(Array(DType::f32, y.sizes, 1.0));
    Execution a = execute(*executable, {x}, dL_dy, {}, one), b = execute(*executable, {x}, dL_dy, {}, four);
    for (size_t i = 0; i < a.outputs.size(); ++i) EXPECT_TRUE(same_bits(a.outputs[i], b.outputs[i])) << text;
    EXPECT_TRUE(same_bits(a.gradients[0], b.gradients[0])) << text;
    EXPECT_EQ(disagreement(b.outputs, interpret(graph, {x}), "output"), "") << text << text_of(sizes);
  }
}

// ---- running twice -------------------------------------------------------------------------------------------

TEST(Executable, OtherSizesNeedNoOtherKernel) {
  auto executable = compile(parse(chain), {true, true});
  std::mt19937 random(15);
  for (const Sizes& sizes : {Sizes{2, 3, 4, 5}, Sizes{1, 7, 1, 33}, Sizes{5, 1, 2, 1}}) {
    std::vector<Array> inputs = {random_array(DType::f32, sizes, random),
                                 random_array(DType::f32, {sizes[1], 1, 1}, random)};
    std::vector<Array> dL_dy = {random_array(DType::f32, sizes, random)};
    Reference expected = interpret(parse(chain), {true, true}, inputs, dL_dy);
    Execution found = execute(*executable, inputs, dL_dy);
    EXPECT_EQ(disagreement(found.outputs, expected.outputs, "output"), "");
    EXPECT_EQ(disagreement(found.gradients, expected.gradients, "gradient"), "");
  }
}

// Results remembered from one call serve another only if nothing that matters has changed.
struct OneOfManyCalls {
  std::map<std::string, int64_t> sizes;
  Layouts layouts = {};
};
const std::vector<std::pair<const char*, std::vector<OneOfManyCalls>>> many_calls = {
    {chain,
     {{{{"n", 2}, {"c", 4}, {"h", 4}, {"w", 4}}},
      {{{"n", 2}, {"c", 4}, {"h", 4}, {"w", 4}}, {channels_last}},
      {{{"n", 2}, {"c", 4}, {"h", 4}, {"w", 4}}, {shifted}},
      {{{"n", 2}, {"c", 4}, {"h", 4}, {"w", 4}}, {{}, strided}},
      {{{"n", 3}, {"c", 4}, {"h", 4}, {"w", 4}}},
      {{{"n", 2}, {"c", 4}, {"h", 2}, {"w", 8}}}}},
    {softmax,
     {{{{"n", 6}, {"c", 64}}},
      {{{"n", 6}, {"c", 64}}, {shifted}},
      {{{"n", 6}, {"c", 64}}, {{{1, 0}, 1, 0, {}}}},
      {{{"n", 64}, {"c", 6}}},
      {{{"n", 6}, {"c", 0}}},
      {{{"n", 2}, {"c", 5000}}}}},
    {batch_norm,
     {{{{"n", 40}, {"c", 8}}},
      {{{"n", 40}, {"c", 8}}, {shifted}},
      {{{"n", 40}, {"c", 8}}, {strided}},
      {{{"n", 8}, {"c", 40}}},
      {{{"n", 3000}, {"c", 8}}},
      {{{"n", 1}, {"c", 8}}}}},
    {"graph(%x: f32[n, k], %w: f32[k, m]) { %1 = matmul(%x, %w) %2 = relu(%1) return %2 }",
     {{{{"n", 4}, {"k", 8}, {"m", 4}}}, {{{"n", 4}, {"k", 2}, {"m", 4}}}, {{{"n", 4}, {"k", 8}, {"m", 16}}}}},
};

std::string disagreement(const Executable& executable, const Graph& graph, const OneOfManyCalls& call, unsigned seed) {
  std::mt19937 random(seed);
  const std::vector<bool> all(graph.inputs.size(), true);
  return disagreement(executable, graph, all, random_inputs(graph, call.sizes, random), call.layouts);
}

TEST(ManyCalls, InAnyOrder) {
  for (const auto& [text, calls] : many_calls) {
    const Graph graph = parse(text);
    const auto executable = compile(graph, std::vector<bool>(graph.inputs.size(), true));
    for (size_t first = 0; first < calls.size(); ++first)
      for (size_t second = 0; second < calls.size(); ++second)
        for (size_t which : {first, second})
          EXPECT_EQ(disagreement(*executable, graph, calls[which], static_cast<unsigned>(first + 7 * second)), "")
              << text << ", call " << which << " of " << first << " and " << second;
  }
}

TEST(ManyCalls, ByManyThreads) {
  for (const auto& [text, calls] : many_calls) {
    const Graph graph = parse(text);
    const auto executable = compile(graph, std::vector<bool>(graph.inputs.size(), true));
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < 4; ++t)
      threads.emplace_back([&, t] {
        for (unsigned i = 0; i < 3 * calls.size(); ++i)
          EXPECT_EQ(disagreement(*executable, graph, calls[i * (t + 1) % calls.size()], i), "") << text;
      });
    for (std::thread& thread : threads) thread.join();
  }
}

TEST(Executable, ScalarsAreGivenAtEachRun) {
  Graph graph = parse(
      "graph(%x: f32[n], %s: scalar f32[], %t: scalar f32[]) { %1 = mul(%x, %t) %2 = exp(%1) %3 = mul(%2, %s) return "
      "%3 }");
  auto executable = compile(graph, {true, false, false});
  for (double s : {2.0, -0.5}) {
    std::vector<Array> inputs = {Array(DType::f32, {3}, {0.1, 0.2, 0.3}), Array(DType::f32, {}, s),
                                 Array(DType::f32, {}, 3.0)};
    std::vector<Array> dL_dy = {Array(DType::f32, {3}, 1.0)};
    Reference expected = interpret(graph, {true, false, false}, inputs, dL_dy);
    Execution found = execute(*executable, inputs, dL_dy);
    EXPECT_EQ(disagreement(found.outputs, expected.outputs, "output"), "");
    EXPECT_EQ(disagreement(found.gradients, expected.gradients, "gradient"), "");
  }
}

TEST(Executable, GradientsThatNeedOnlySizes) {
  expect_agrees("graph(%x: f64[n, c], %unused: f64[h]) { %1 = mean(%x) {dims = (0, 1), keepdim = 0} return %1 }",
                {{"n", 3}, {"c", 4}, {"h", 2}});
  expect_agrees("graph(%x: f64[n, c], %y: f64[n, c]) { %1 = add(%x, %y) return %1 }", {{"n", 3}, {"c", 4}});
  auto executable =
      compile(parse("graph(%x: f64[n, c]) { %1 = mean(%x) {dims = (0, 1), keepdim = 0} return %1 }"), {true});
  ASSERT_EQ(executable->program().saved.size(), 1u);
  EXPECT_TRUE(executable->program().saved[0].sizes_only);
}

}  // namespace
}  // namespace fusewright::testing
