// The gradients as text, and what is kept for them.
#include "support/graphs.h"

namespace fusewright::testing {
namespace {

Program differentiated(std::string_view text, const std::vector<std::string>& wrt) {
  Program program = program_of(text, wrt);
  reach(program);
  decompose(program);
  simplify(program);
  differentiate(program);
  simplify(program);
  verify(program.forward);
  return program;
}

TEST(Differentiate, BuildsOneGraph) {
  Program program =
      differentiated("graph(%x: f32[n, c], %m: f32[c]) { %1 = mul(%x, %m) %2 = exp(%1) return %2 }", {"x", "m"});
  expect_graph(
      program.forward,
      "graph(%x: f32[n, c], %m: f32[c], %dL_dy0: f32[n, c]) { %1 = mul(%x, %m) %2 = exp(%1) %3 = mul(%dL_dy0, %2) "
      "%4 = mul(%3, %m) %5 = mul(%3, %x) %6 = sum(%5) {dims = (0), keepdim = 1} %7 = reshape(%6) {sizes = [c]} "
      "return %2, dL_dx = %4!, dL_dm = %7! }");
  EXPECT_EQ(program.user_outputs, 1u);
  EXPECT_EQ(program.gradient_of_output, std::vector<int>{0});
  EXPECT_EQ(program.gradient_for_input, (std::vector<int>{0, 1}));
}

// Phi(x) + x phi(x), with one Phi for the result and the gradient.
TEST(Differentiate, GeluIsTwoFunctions) {
  Program program = differentiated("graph(%x: f32[n]) { %1 = gelu(%x) {approximate = \"none\"} return %1 }", {"x"});
  expect_graph(program.forward,
               "graph(%x: f32[n], %dL_dy0: f32[n]) { %1 = normal_cdf(%x) %2 = mul(%x, %1) %3 = mul(%dL_dy0, %1) "
               "%4 = mul(%dL_dy0, %x) %5 = square(%x) %6: f32[] = constant() {value = -0.5} %7 = mul(%5, %6) "
               "%8 = exp(%7) %9: f32[] = constant() {value = 0.3989422804014327} %10 = mul(%8, %9) %11 = mul(%4, %10) "
               "%12 = add(%3, %11) return %2, dL_dx = %12! }");
}

TEST(Differentiate, NothingForFrozenInputs) {
  Program program = differentiated("graph(%x: f32[n, c], %m: f32[c]) { %1 = mul(%x, %m) return %1 }", {"x"});
  expect_graph(program.forward,
               "graph(%x: f32[n, c], %m: f32[c], %dL_dy0: f32[n, c]) { %1 = mul(%x, %m) %2 = mul(%dL_dy0, %m) "
               "return %1, dL_dx = %2! }");
}

TEST(Differentiate, InferenceIsLeftAlone) {
  Program program = differentiated("graph(%x: f32[n]) { %1 = exp(%x) return %1 }", {});
  expect_graph(program.forward, "graph(%x: f32[n]) { %1 = exp(%x) return %1 }");
  EXPECT_FALSE(program.training());
}

// As in eager: a comparison leads nowhere; a floor and a sign lead somewhere, though to zero.
TEST(Reach, NoneWhereNoPathLeads) {
  Program program = program_of(
      "graph(%x: f32[n], %m: f32[n], %w: f32[n], %s: f32[n]) { %1 = gt(%x, %m) %2 = floor(%w) %3 = mul(%x, %2) "
      "%4 = select(%1, %3, %x) %5 = sign(%s) %6 = mul(%4, %5) %7 = sum(%m) {dims = (0), keepdim = 0} return %6, %7! }",
      {"x", "m", "w", "s"});
  reach(program);
  EXPECT_EQ(program.wrt, (std::vector<bool>{true, false, true, true}));
  EXPECT_EQ(program.tracked, (std::vector<bool>{true, false}));
  program = program_of("graph(%x: f32[n]) { %1 = stop_gradient(%x) %2 = exp(%1) return %2 }", {"x"});
  reach(program);
  EXPECT_FALSE(program.training());
}

// A gradient that a rule removes is zero, even if no other is wanted.
TEST(Reach, BeforeAnythingIsRewritten) {
  Program alone =
      fused("graph(%x: f32[n, c], %b: f32[c]) { %1 = add(%x, %b) %2 = batch_norm(%1) {eps = 0.1} return %2 }", {"b"});
  EXPECT_EQ(alone.gradient_of_output, std::vector<int>{0});
  EXPECT_EQ(alone.gradient_for_input, std::vector<int>{1});
  Program program = fused(
      "graph(%x: f32[n, c], %b: f32[c]) { %1 = add(%x, %b) %2 = batch_norm(%1) {eps = 0.1} return %2 }", {"x", "b"});
  EXPECT_EQ(program.rewrites.front(), "shift_cancels_in_norm");
  EXPECT_EQ(program.gradient_for_input, (std::vector<int>{0, 1}));
}

TEST(Differentiate, StatisticsTakeNoGradient) {
  Program program =
      differentiated("graph(%x: f32[n]) { %1 = exp(%x) %2 = sum(%x) {dims = (0), keepdim = 0} return %1, %2! }", {"x"});
  EXPECT_EQ(program.gradient_of_output, std::vector<int>{0});
}

std::vector<std::string> saved_names(Program program) {
  run_pipeline(program);
  std::vector<std::string> names;
  for (const Program::Saved& saved : program.saved) {
    const Graph& forward = program.forward;
    size_t index = static_cast<size_t>(saved.index);
    std::string name = saved.is_input ? forward[forward.inputs[index]].text("name")
                                      : std::string(name_of(forward[forward.outputs[index].value].op));
    names.push_back(name + (saved.sizes_only ? " (sizes)" : ""));
  }
  return names;
}

std::vector<std::string> saved_names(std::string_view text, const std::vector<std::string>& wrt) {
  return saved_names(program_of(text, wrt));
}

using Names = std::vector<std::string>;

TEST(Remember, PointwiseValuesAreRecomputed) {
  EXPECT_EQ(
      saved_names(
          "graph(%x: f32[n, c], %m: f32[c]) { %1 = mul(%x, %m) %2 = gelu(%1) {approximate = \"none\"} return %2 }",
          {"x", "m"}),
      (Names{"x", "m"}));
}

TEST(Remember, OnlyWhatTheBackwardReads) {
  EXPECT_EQ(saved_names("graph(%x: f32[n, c], %m: f32[c]) { %1 = mul(%x, %m) return %1 }", {"x"}), (Names{"m"}));
  EXPECT_EQ(saved_names("graph(%x: f32[n], %y: f32[n]) { %1 = add(%x, %y) return %1 }", {"x", "y"}), (Names{}));
}

// By then a buffer that changes is another one. Where the backward needs the buffer itself, autograd refuses.
TEST(Remember, WhatWasWorkedOutFromWhatChanges) {
  const std::string body = "%1 = tanh(%b) %2 = mul(%x, %1) ";
  EXPECT_EQ(saved_names("graph(%x: f32[n, c], %b: f32[c]) { " + body + "return %2 }", {"x"}), (Names{"b"}));
  EXPECT_EQ(saved_names("graph(%x: f32[n, c], %b: changing f32[c]) { " + body + "return %2 }", {"x"}), (Names{"tanh"}));
  EXPECT_EQ(saved_names("graph(%x: f32[n, c], %b: f32[c]) { " + body + "%3 = neg(%b) return %2, %3! -> %b }", {"x"}),
            (Names{"tanh"}));
  EXPECT_EQ(saved_names("graph(%x: f32[n, c], %b: changing f32[1, c]) { %1 = reshape(%b) {sizes = [c]} %2 = tanh(%1) "
                        "%3 = mul(%x, %2) return %3 }",
                        {"x"}),
            (Names{"tanh"}));
  EXPECT_EQ(saved_names("graph(%x: f32[n, c], %b: changing f32[c]) { %1 = mul(%x, %b) return %1 }", {"x"}),
            (Names{"b"}));
}

TEST(Remember, ContractionsAndStatisticsAreSaved) {
  EXPECT_EQ(
      saved_names("graph(%x: f32[n, k], %w: f32[k, m]) { %1 = matmul(%x, %w) %2 = silu(%1) return %2 }", {"x", "w"}),
      (Names{"x", "w", "matmul"}));
  EXPECT_EQ(saved_names("graph(%x: f32[n, c]) { %1 = log_softmax(%x) {dim = 1} return %1 }", {"x"}),
            (Names{"x", "amax", "sum"}));
}

// PyTorch's operators that read their result in the backward keep it; where that is less than what it is computed from,
// so do we. A result that PyTorch does not keep may be changed in place.
TEST(Remember, ResultsThatPyTorchKeeps) {
  const auto saved = [](const char* text, const std::string& last, const std::vector<std::string>& wrt) {
    Program program = program_of(text, wrt);
    program.forward.outputs[0].origin = program.forward.add_origin({last, ""});
    return saved_names(std::move(program));
  };
  const char* softmax = "graph(%x: f32[n, c]) { %1 = softmax(%x) {dim = 1} return %1 }";
  EXPECT_EQ(saved(softmax, "softmax", {"x"}), (Names{"div"}));
  EXPECT_EQ(saved(softmax, "div", {"x"}), (Names{"x", "amax", "sum"}));
  const char* gate = "graph(%x: f32[n, c], %y: f32[n, c]) { %1 = add(%x, %y) %2 = sigmoid(%1) return %2 }";
  EXPECT_EQ(saved(gate, "sigmoid", {"x", "y"}), (Names{"sigmoid"}));
  // The operator counts, not how we compute it: PyTorch's -(-y) is a tensor of its own.
  EXPECT_EQ(
      saved("graph(%x: f32[n, c]) { %1 = softmax(%x) {dim = 1} %2 = neg(%1) %3 = neg(%2) return %3 }", "neg", {"x"}),
      (Names{"x", "amax", "sum"}));
  EXPECT_EQ(
      saved_names("graph(%x: f32[n, c]) { %1 = softmax(%x) {dim = 1} %2 = neg(%1) %3 = neg(%2) return %1, %3 }", {"x"}),
      (Names{"x", "amax", "sum"}));
  // Nothing is won: one tensor is read in either case.
  EXPECT_EQ(saved("graph(%x: f32[n, c]) { %1 = tanh(%x) return %1 }", "tanh", {"x"}), (Names{"x"}));
  // Both operands are read in any case.
  EXPECT_EQ(saved("graph(%x: f32[n, c], %y: f32[n, c]) { %1 = mul(%x, %y) %2 = sigmoid(%1) return %2 }", "sigmoid",
                  {"x", "y"}),
            (Names{"x", "y"}));
}

// Statistics of four elements would take half of the memory that the elements take.
TEST(Remember, StatisticsOfShortRowsAreRecomputed) {
  const auto saved = [](const std::string& groups) {
    return saved_names("graph(%x: f32[n, 128], %w: f32[128]) { %1 = group_norm(%x, %w) {groups = " + groups +
                           ", eps = 0.01, has_weight = 1} %2 = silu(%1) return %2 }",
                       {"x", "w"});
  };
  EXPECT_EQ(saved("32"), (Names{"x", "w"}));
  EXPECT_EQ(saved("4"), (Names{"x", "w", "sum", "sum"}));
  // Only if nothing else is kept for it: x is not.
  EXPECT_EQ(saved_names("graph(%x: f32[n, 4], %y: f32[n, 4]) { %1 = sum(%x) {dims = (1), keepdim = 1} %2 = mul(%1, %y) "
                        "return %2 }",
                        {"y"}),
            (Names{"sum"}));
}

TEST(Remember, PoolingKeepsItsIndexInAByte) {
  Program program = program_of(
      "graph(%x: f32[c, w]) { %1 = max_pool(%x) {kernel = (2), stride = (2), padding = (0), dilation = (1), ceil_mode "
      "= 0} return %1 }",
      {"x"});
  run_pipeline(program);
  ASSERT_FALSE(program.saved.empty());
  bool byte = false;
  for (Value v : program.backward.inputs) byte |= program.backward.dtype(v) == DType::u8;
  EXPECT_TRUE(byte) << print(program.backward);
  for (const Program::Saved& saved : program.saved)
    EXPECT_TRUE(!saved.is_input || saved.sizes_only) << "x itself is not needed";
}

TEST(Remember, SizesThatNothingElseTells) {
  EXPECT_EQ(saved_names("graph(%x: f32[n, c]) { %1 = sum(%x) {dims = (0, 1), keepdim = 0} return %1 }", {"x"}),
            (Names{"x (sizes)"}));
  EXPECT_EQ(
      saved_names(
          "graph(%x: f32[n, c], %m: f32[c]) { %1 = mul(%x, %m) %2 = sum(%1) {dims = (0), keepdim = 0} return %2 }",
          {"x"}),
      (Names{"x (sizes)", "m"}));
}

TEST(Remember, TheForwardIsWhatItWas) {
  const char* text = "graph(%x: f32[n, c], %m: f32[c]) { %1 = mul(%x, %m) %2 = exp(%1) return %2 }";
  Program program = program_of(text, {"x", "m"});
  run_pipeline(program);
  expect_graph(program.forward, text);
}

TEST(Layout, FollowsTheOperandAndResultsLieAsAskedFor) {
  Program program = program_of(
      "graph(%x: f32[n, c, h, w]@0231, %m: f32[c, 1, 1]) { %1 = mul(%m, %x) %2 = sum(%1) {dims = (2), keepdim = 1} "
      "%3 = sum(%1) {dims = (2), keepdim = 0} %4 = max_pool(%1) {kernel = (2, 2), stride = (2, 2), padding = (0, 0), "
      "dilation = (1, 1), ceil_mode = 0} %5 = reshape(%1) {sizes = [n, c, h*w]} %6 = exp(%2) %7 = exp(%3) %8 = exp(%4) "
      "%9 = exp(%5) return %6@0231, %7, %8, %9 }");
  layout(program);
  const Order last = {0, 2, 3, 1}, merged = {0, 2, 1}, plain = {};
  std::vector<Order> orders;
  for (size_t i = 2; i < 11; ++i) orders.push_back(program.forward.nodes[i].type.order);
  EXPECT_EQ(orders, (std::vector<Order>{last, last, plain, last, merged, last, plain, plain, plain}));
}

TEST(Pipeline, DumpPrintsEveryPass) {
  setenv("FUSEWRIGHT_DUMP", "passes", 1);
  ::testing::internal::CaptureStderr();
  Program program = program_of("graph(%x: f32[n]) { %1 = relu(%x) return %1 }", {"x"});
  run_pipeline(program);
  std::string text = ::testing::internal::GetCapturedStderr();
  unsetenv("FUSEWRIGHT_DUMP");
  size_t at = 0;
  for (const char* pass :
       {"reach", "decompose", "simplify", "rewrite", "differentiate", "remember", "layout", "fuse"}) {
    at = text.find(std::string("-- after ") + pass, at);
    ASSERT_NE(at, std::string::npos) << pass;
  }
  EXPECT_NE(text.find("-- backward"), std::string::npos);
}

}  // namespace
}  // namespace fusewright::testing
