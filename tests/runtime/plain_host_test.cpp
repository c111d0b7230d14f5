// The contractions of a program without PyTorch, against the interpreter's other formulas.
#include "support/execute.h"

namespace fusewright::testing {
namespace {

struct ConvCase {
  const char* name;
  Sizes x, w;
  const char* attrs;
};
void PrintTo(const ConvCase& c, std::ostream* out) { *out << c.name; }

class PlainConvolution : public ::testing::TestWithParam<ConvCase> {};

TEST_P(PlainConvolution, ForwardAndBothGradients) {
  const ConvCase& c = GetParam();
  auto shape = [](const Sizes& sizes) { return text_of(sizes); };
  // The convolution alone: nothing is compiled.
  std::string text =
      "graph(%x: f64" + shape(c.x) + ", %w: f64" + shape(c.w) + ") { %1 = conv(%x, %w) {" + c.attrs + "} return %1 }";
  std::mt19937 random(21);
  std::vector<Array> inputs = random_inputs(parse(text), {}, random);
  expect_agrees(text, inputs);
  std::vector<int> last(c.x.size());
  last[0] = 0;
  for (size_t d = 1; d < last.size(); ++d) last[d] = d + 1 == last.size() ? 1 : static_cast<int>(d) + 1;
  expect_agrees(text, inputs, {{last, 1, 0, {}}, {{}, 2, 1, {}}});
}

INSTANTIATE_TEST_SUITE_P(
    , PlainConvolution,
    ::testing::Values(
        ConvCase{"plain1d",
                 {2, 3, 9},
                 {4, 3, 3},
                 "stride = (1), padding = (0), dilation = (1), groups = 1, transposed = 0, output_padding = (0)"},
        ConvCase{"strided2d",
                 {2, 3, 7, 6},
                 {4, 3, 3, 2},
                 "stride = (2, 1), padding = (1, 1), dilation = (1, 1), groups = 1, transposed = 0, output_padding = "
                 "(0, 0)"},
        ConvCase{"dilated_groups2d",
                 {2, 4, 9, 8},
                 {6, 2, 3, 2},
                 "stride = (1, 2), padding = (2, 0), dilation = (2, 3), groups = 2, transposed = 0, output_padding = "
                 "(0, 0)"},
        ConvCase{"depthwise1d",
                 {2, 4, 9},
                 {8, 1, 3},
                 "stride = (1), padding = (1), dilation = (1), groups = 4, transposed = 0, output_padding = (0)"},
        ConvCase{"plain3d",
                 {1, 2, 4, 5, 4},
                 {3, 2, 2, 3, 2},
                 "stride = (1, 2, 1), padding = (0, 1, 1), dilation = (1, 1, 2), groups = 1, transposed = 0, "
                 "output_padding = (0, 0, 0)"},
        ConvCase{"transposed1d",
                 {2, 3, 5},
                 {3, 4, 3},
                 "stride = (2), padding = (1), dilation = (1), groups = 1, transposed = 1, output_padding = (1)"},
        ConvCase{"transposed_groups2d",
                 {2, 4, 4, 3},
                 {4, 3, 3, 2},
                 "stride = (2, 3), padding = (1, 0), dilation = (2, 1), groups = 2, transposed = 1, output_padding = "
                 "(1, 2)"},
        ConvCase{"transposed3d",
                 {1, 2, 3, 2, 3},
                 {2, 3, 3, 2, 3},
                 "stride = (2, 2, 2), padding = (1, 0, 1), dilation = (1, 1, 1), groups = 1, transposed = 1, "
                 "output_padding = (1, 0, 1)"}),
    [](const auto& c) { return std::string(c.param.name); });

TEST(PlainMatmul, BatchedAndTransposed) {
  expect_agrees("graph(%x: f64[n, k], %w: f64[k, m]) { %1 = matmul(%x, %w) return %1 }", {{"n", 3}, {"k", 5}, {"m", 2}},
                {{{1, 0}, 1, 0, {}}, {{}, 2, 3, {}}});
  expect_agrees("graph(%x: f64[a, b, n, k], %w: f64[a, b, k, m]) { %1 = matmul(%x, %w) return %1 }",
                {{"a", 2}, {"b", 3}, {"n", 3}, {"k", 4}, {"m", 2}});
  expect_agrees("graph(%x: f64[n, k], %w: f64[m, k], %b: f64[m]) { %1 = linear(%x, %w, %b) %2 = silu(%1) return %2 }",
                {{"n", 3}, {"k", 5}, {"m", 4}});
}

TEST(PlainMatmul, SumsInDouble) {
  // 1e8 + 1 - 1e8 is lost in float.
  Array x(DType::f32, {1, 3}, {1e8, 1, -1e8}), w(DType::f32, {3, 1}, 1.0);
  Graph graph = parse("graph(%x: f32[n, k], %w: f32[k, m]) { %1 = matmul(%x, %w) return %1 }");
  EXPECT_EQ(to_array(execute(*Executable::compile(graph, {}), {x, w}, {}).outputs[0]).data[0], 1);
}

TEST(PlainHost, RefusesIntegers) {
  LibraryCall call;
  call.kind = LibraryCall::Kind::matmul;
  call.rank = 2;
  call.sizes = {1, 1};
  Tensor t = to_tensor(Array(DType::i32, {1, 1}));
  EXPECT_ERROR(plain_host().call(call, {t, t}), "contractions need a floating type");
}

TEST(PlainHost, ContractionsInNarrowTypes) {
  for (const char* type : {"f16", "bf16"}) {
    std::string text =
        std::string("graph(%x: ") + type + "[n, k], %w: " + type + "[k, m]) { %1 = matmul(%x, %w) return %1 }";
    std::mt19937 random(22);
    std::vector<Array> inputs = random_inputs(parse(text), {{"n", 3}, {"k", 5}, {"m", 2}}, random);
    expect_agrees(text, inputs);
  }
}

TEST(PlainHost, BiasIsAddedBeforeRounding) {
  // 2048 + 1 is no f16, but 2049 - 1 is; both contractions round once.
  Array two(DType::f16, {1, 2}, {2048, 1}), ones(DType::f16, {2, 1}, 1.0), bias(DType::f16, {1}, {-1});
  auto result = [](const std::string& text, const std::vector<Array>& inputs) {
    return to_array(execute(*Executable::compile(parse(text), {}), inputs, {}).outputs[0]).data[0];
  };
  EXPECT_EQ(result("graph(%x: f16[n, k], %w: f16[k, m], %b: f16[m]) { %1 = matmul(%x, %w, %b) return %1 }",
                   {two, ones, bias}),
            2048);
  Array x(DType::f16, {1, 2, 1}, {2048, 1}), w(DType::f16, {1, 2, 1}, 1.0);
  EXPECT_EQ(result("graph(%x: f16[n, 2, w], %w: f16[1, 2, 1], %b: f16[1]) { %1 = conv(%x, %w, %b) {stride = (1), "
                   "padding = (0), dilation = (1), groups = 1, transposed = 0, output_padding = (0)} return %1 }",
                   {x, w, bias}),
            2048);
}

}  // namespace
}  // namespace fusewright::testing
