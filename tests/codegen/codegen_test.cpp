// The text of kernels: what is in it, and above all what is not.
#include "codegen/expressions.h"
#include "codegen/kernel_code.h"
#include "runtime/compiler/native_compiler.h"
#include "support/execute.h"

namespace fusewright::testing {
namespace {

std::vector<KernelCode> kernels_of(const Graph& graph, const std::vector<bool>& wrt = {}) {
  Program program;
  program.forward = graph;
  program.wrt = wrt;
  program.wrt.resize(graph.inputs.size());
  run_pipeline(program);
  std::vector<KernelCode> result;
  auto add = [&](const Graph& from, const Fusion& fusion) {
    for (const Group& group : fusion.groups)
      if (group.kernel.contraction() < 0) result.push_back(emit_cpp(from, group.kernel));
  };
  add(program.forward, program.forward_fusion);
  add(program.backward, program.backward_fusion);
  return result;
}
std::vector<KernelCode> kernels_of(std::string_view text) { return kernels_of(parse(text)); }

std::string text_of_all(const std::vector<KernelCode>& kernels) {
  std::string text;
  for (const KernelCode& kernel : kernels) text += kernel.text;
  return text;
}

TEST(KernelNames, SayScheduleAndOperators) {
  EXPECT_EQ(kernels_of("graph(%x: f32[n]) { %1 = leaky_relu(%x) {negative_slope = 0.1} %2 = gelu(%1) {approximate = "
                       "\"none\"} return %2 }")[0]
                .name,
            "fw_pointwise_leaky_relu_gelu");
  EXPECT_EQ(kernels_of("graph(%x: f32[n, c]) { %1 = softmax(%x) {dim = 1} return %1 }")[0].name, "fw_row_softmax");
  EXPECT_EQ(kernels_of("graph(%x: f32[n, c]) { %1 = softmax(%x) {dim = 0} return %1 }")[0].name, "fw_column_softmax");
}

using Names = std::vector<std::string>;

Names names_of(std::string_view text, const std::vector<bool>& wrt = {}) {
  Names names;
  for (const KernelCode& kernel : kernels_of(parse(text), wrt)) names.push_back(kernel.name);
  return names;
}

TEST(KernelNames, TellDerivativesApart) {
  const std::string text =
      "graph(%x: f32[n, c], %w: f32[4*d, c], %b: f32[4*d]) { %1 = linear(%x, %w, %b) "
      "%2 = group_norm(%1) {groups = 4, eps = 0.1} %3 = silu(%2) return %3 }";
  // The library computes the product: what is left of `linear` is its bias, and the sum that is the bias's gradient.
  const std::string forward = "fw_row_linear_bias_group_norm_silu";
  EXPECT_EQ(names_of(text), Names({forward}));
  EXPECT_EQ(names_of(text, {true, true, true}), Names({forward, "fw_row_backward_linear_bias_group_norm_silu"}));
  // Nobody wants the bias's gradient: the bias is only added once more.
  EXPECT_EQ(names_of(text, {true, true, false}), Names({forward, "fw_row_backward_group_norm_silu"}));
}

TEST(KernelNames, SayWhatIsLeftOfAProduct) {
  const std::string chain = "%1 = linear(%x, %w) %2 = tanh(%1) %3 = linear(%2, %w) %4 = tanh(%3) return %4 }";
  // The two gradients of one weight are added: that is no bias.
  EXPECT_EQ(names_of("graph(%x: f32[n, c], %w: f32[c, c]) { " + chain, {false, true}),
            Names({"fw_pointwise_tanh", "fw_pointwise_tanh", "fw_pointwise_backward_tanh", "fw_pointwise_backward_tanh",
                   "fw_pointwise_backward_linear"}));
}

TEST(KernelNames, TellASumOverABatchFromABias) {
  Graph graph = parse(
      "graph(%x: f32[b, n, c], %w: f32[1, c, d]) { %1 = expand(%w) {sizes = [b, c, d]} "
      "%2 = matmul(%x, %1) %3 = tanh(%2) return %3 }");
  auto matmul = std::find_if(graph.nodes.begin(), graph.nodes.end(), [](const Node& n) { return n.op == Op::matmul; });
  for (Node& node : graph.nodes)
    if (node.op == Op::expand) node.origin = matmul->origin;  // as in a captured product with a batch on one side
  Names names;
  for (const KernelCode& kernel : kernels_of(graph, {false, true})) names.push_back(kernel.name);
  EXPECT_EQ(names, Names({"fw_pointwise_tanh", "fw_pointwise_backward_tanh", "fw_column_backward_matmul"}));
}

TEST(KernelNames, StayShort) {
  std::string text = "graph(%x: f32[n]) { %0 = exp(%x) ";
  for (int i = 1; i < 40; ++i) text += "%" + std::to_string(i) + " = sigmoid(%" + std::to_string(i - 1) + ") ";
  std::string name = kernels_of(text + "return %39 }")[0].name;
  EXPECT_LE(name.size(), 100u);
  EXPECT_TRUE(name.ends_with("_etc"));
}

TEST(KernelText, DoesNotKnowTheUsersNumbers) {
  auto with = [](const char* slope) {
    return text_of_all(kernels_of(std::string("graph(%x: f32[n]) { %1 = leaky_relu(%x) {negative_slope = ") + slope +
                                  "} return %1 }"));
  };
  EXPECT_EQ(with("0.123"), with("0.456"));
}

TEST(KernelText, DoesNotKnowSizes) {
  // The same program, captured with another batch and image size.
  auto captured = [](const Sizes& sizes) {
    Graph graph;
    Builder b(graph);
    Shape shape;
    for (size_t d = 0; d < sizes.size(); ++d) {
      graph.hints["s" + std::to_string(d)] = sizes[d];
      shape.push_back(Size::symbol("s" + std::to_string(d)));
    }
    Value x = b.input("x", DType::f32, shape);
    Value y = b.op(Op::group_norm, {x}, {{"groups", int64_t{4}}, {"eps", 0.1}});
    y = b.op(Op::max_pool, {y},
             {{"kernel", Ints{2, 2}},
              {"stride", Ints{2, 2}},
              {"padding", Ints{0, 0}},
              {"dilation", Ints{1, 1}},
              {"ceil_mode", int64_t{0}}});
    b.output(b.op(Op::mean, {y}, {{"dims", Ints{2, 3}}, {"keepdim", int64_t{0}}}));
    return text_of_all(kernels_of(graph, {true}));
  };
  EXPECT_EQ(captured({2, 8, 6, 6}), captured({64, 32, 224, 112}));
}

TEST(KernelText, DoesNotKnowTheUsersNames) {
  // TRUST case 38: quotes, newlines, semicolons, comment ends; as names of inputs, outputs and origins.
  const std::string evil = "x\"; system(\"true\"); // */ \n#include <evil>\n int main() {} %1 \\ 'q";
  Graph graph = parse("graph(%x: f32[n, c], %m: f32[c]) { %1 = mul(%x, %m) %2 = softmax(%1) {dim = 1} return %2 }");
  const std::string plain = text_of_all(kernels_of(graph, {true, true}));
  for (Value v : graph.inputs) graph[v].attrs["name"] = evil + std::to_string(v);
  for (Origin& origin : graph.origins) origin.source = evil;
  graph.outputs[0].name = evil;
  EXPECT_EQ(text_of_all(kernels_of(graph, {true, true})), plain);
  // The user's name of an operator becomes part of the kernel's name, which keeps only characters of identifiers.
  for (Origin& origin : graph.origins) origin.op = evil;
  for (const KernelCode& kernel : kernels_of(graph, {true, true})) {
    EXPECT_EQ(kernel.name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_"), std::string::npos) << kernel.name;
    EXPECT_EQ(kernel.text.find("evil>"), std::string::npos);
    EXPECT_EQ(kernel.text.find("system("), std::string::npos);
  }
  EXPECT_NO_THROW(Executable::compile(graph, {true, true}));
}

TEST(KernelText, Compiles) {
  std::vector<std::string> sources;
  for (const KernelCode& kernel : kernels_of(parse("graph(%x: f32[n, c], %w: f32[c]) { %1 = layer_norm(%x, %w) {axes = "
                                                   "1, eps = 0.1, has_weight = 1} return %1 }"),
                                             {true, true}))
    sources.push_back(cpp_prelude() + kernel.text);
  EXPECT_EQ(NativeCompiler::instance().compile(sources).size(), sources.size());
}

TEST(KernelText, IsTheSameEveryTime) {
  const Graph graph = parse(
      "graph(%x: f32[n, c, h], %w: f32[c]) { %1 = batch_norm(%x, %w) {eps = 0.1, has_weight = 1} %2 = silu(%1) return "
      "%2 }");
  EXPECT_EQ(text_of_all(kernels_of(graph, {true, true})), text_of_all(kernels_of(graph, {true, true})));
}

TEST(KernelText, SymbolNamesDoNotMatter) {
  EXPECT_EQ(text_of_all(kernels_of("graph(%x: f32[n, c]) { %1 = softmax(%x) {dim = 1} return %1 }")),
            text_of_all(kernels_of("graph(%y: f32[rows, columns]) { %1 = softmax(%y) {dim = 1} return %1 }")));
}

int count_of(const std::string& what, const std::string& text) {
  int count = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++count;
  return count;
}

std::string body_of(const std::string& text, const std::string& name) {
  const size_t begin = text.find("FW_FN void " + name + "(");
  return text.substr(begin, text.find("\n}", begin) - begin);
}

// Every kernel of the walking variant stands in one of its parts.
TEST(KernelText, PartsOfAWalkingKernelMakeItUp) {
  const Program program = fused("graph(%x: f32[n, c]) { %1 = softmax(%x) {dim = 1} return %1 }", {}, true);
  const CudaCode code = emit_cuda(program.forward, program.forward_fusion.groups[0].kernel).cuda;
  auto kernels_in = [](const std::string& text) { return count_of("__global__", text); };
  EXPECT_EQ(kernels_in(code.walking_parts.whole_rows), 1);
  EXPECT_GT(kernels_in(code.walking_parts.split_rows), 1);
  EXPECT_EQ(code.walking_parts.sides, "");  // it has no sums on the side
  EXPECT_EQ(kernels_in(code.walking_text), 1 + kernels_in(code.walking_parts.split_rows));
}

// A pass over a row keeps in the caches what the next one reads again; that begins where the one before it ended.
TEST(KernelText, PassesOverARowFindItInTheCaches) {
  const Program program = fused("graph(%x: f32[n, c]) { %1 = log_softmax(%x) {dim = 1} return %1 }", {"x"}, true);
  const CudaCode code = emit_cuda(program.backward, program.backward_fusion.groups.at(0).kernel).cuda;
  ASSERT_EQ(code.walking.stages, 2);
  const std::string first = body_of(code.walking_text, "load_0"), second = body_of(code.walking_text, "load_1");
  EXPECT_EQ(count_of("fw::load_line(", first), 1) << first;
  EXPECT_EQ(count_of(", again, x.in", first), 1) << first;
  EXPECT_EQ(count_of("fw::load_line(", second), 2) << second;
  EXPECT_EQ(count_of(", last, x.in", second), 2) << second;
  const std::string& whole = code.walking_parts.whole_rows;
  EXPECT_EQ(count_of("const index e = static_cast<index>(a.elements) - 1 - (e1 + beyond);", whole), 3) << whole;
  EXPECT_EQ(count_of("const index e = e0 + beyond;", whole), 3) << whole;
  // The L1 cache has nothing left for another launch.
  EXPECT_EQ(count_of("fw::ReadAgain again", whole), 1) << whole;
  EXPECT_EQ(count_of("fw::ReadAgain", code.walking_parts.split_rows), 0) << code.walking_parts.split_rows;
  // Operands that rows share are read in every turn.
  const Program weighted = fused(
      "graph(%x: f32[n, c], %w: f32[c]) { %1 = rms_norm(%x, %w) {axes = 1, eps = 0.1, has_weight = 1} return %1 }", {},
      true);
  const std::string last =
      body_of(emit_cuda(weighted.forward, weighted.forward_fusion.groups.at(0).kernel).cuda.walking_text, "load_1");
  EXPECT_EQ(count_of(", a.reads, f.in", last), 1) << last;
  EXPECT_EQ(count_of(", last, x.in", last), 1) << last;
}

// Waits for columns stay between what is computed of them; where the first pass only adds up there is nothing to keep
// apart.
TEST(KernelText, ColumnsAreComputedBetweenWaits) {
  const Program program =
      fused("graph(%x: f32[n, c]) { %1 = batch_norm(%x) {eps = 0.1} %2 = silu(%1) return %2 }", {"x"}, true);
  const std::string forward = emit_cuda(program.forward, program.forward_fusion.groups.at(0).kernel).text;
  const std::string backward = emit_cuda(program.backward, program.backward_fusion.groups.at(0).kernel).text;
  EXPECT_NE(forward.find("fw::copy_async_wait<"), std::string::npos);
  EXPECT_EQ(forward.find("fw::compute_above("), std::string::npos);
  const size_t above = backward.find("fw::compute_above(a.lane_bits, sums0.");
  ASSERT_NE(above, std::string::npos);
  EXPECT_LT(above, backward.find("fw::copy_async_wait<", above));
}

// The values of columns in registers are worked out once for each column by a warp, and told; those that elements are
// not computed from are not. A kernel that walks over its columns has each thread work out all of its own.
TEST(KernelText, ValuesOfColumnsAreWorkedOutOnceAndTold) {
  const Program program = fused(
      "graph(%x: f32[n, c], %w: f32[c]) { %1 = batch_norm(%x, %w) {eps = 0.1, has_weight = 1} %2 = silu(%1) return %2 "
      "}",
      {"x", "w"}, true);
  const KernelCode code = emit_cuda(program.backward, program.backward_fusion.groups.at(0).kernel);
  for (const char* name : {"load_row", "row_0", "row_1"}) {
    const std::string held = body_of(code.text, name), walking = body_of(code.cuda.walking_text, name);
    EXPECT_EQ(count_of("i < V", held), 0) << held;
    EXPECT_EQ(count_of("i < V", walking), 1) << walking;
    EXPECT_EQ(count_of("tell_columns", walking), 0) << walking;
  }
  // The second pass tells the values it subtracts; sums, and the gradient of the weight, stay with their owners.
  const std::string values = body_of(code.text, "row_1");
  EXPECT_EQ(count_of("fw::tell_columns(team, row.own", values), 2) << values;
  EXPECT_GT(count_of("row.own", values), 4) << values;
}

// In a kernel with sums on the side, one instruction adds a product to a sum, because the compiler would not move the
// addition across the condition. The loads of the next row precede the branch that keeps them above the work on this
// row.
TEST(KernelText, SumsOnTheSideTakeProductsAndTheNextRowIsAskedForFirst) {
  const Program program = fused(
      "graph(%x: f32[n, 64], %w: f32[64]) { %1 = group_norm(%x, %w) {groups = 4, eps = 0.1, has_weight = 1} return %1 "
      "}",
      {"x", "w"}, true);
  std::string text;
  for (const auto& group : program.backward_fusion.groups)
    if (KernelCode code = emit_cuda(program.backward, group.kernel); !code.cuda.position_side.empty())
      text += code.text;
  const size_t sum = text.find("if (inside) side.s");
  ASSERT_NE(sum, std::string::npos);
  EXPECT_NE(text.substr(sum, text.find('\n', sum) - sum).find("= fw::mad("), std::string::npos)
      << text.substr(sum, 100);
  const size_t loop = text.find("for (index turn"), pin = text.find("fw::stay_above(", loop);
  ASSERT_NE(pin, std::string::npos);
  EXPECT_LT(text.find("load_moving(a, next", loop), pin);
  EXPECT_GT(text.find("stage_0(a, row", loop), pin);
}

// The windows that reach into a vector are held by its thread: few taps, close together.
TEST(KernelText, GradientsOfPoolingHoldFewWindows) {
  for (const auto& [kernel, dilation, held] :
       {std::tuple{3, 1, true}, {8, 1, true}, {9, 1, false}, {3, 3, true}, {3, 4, false}, {3, 64, false}}) {
    const Program program = fused("graph(%x: f32[n, h]) { %1 = max_pool(%x) {kernel = (" + std::to_string(kernel) +
                                      "), stride = (1), padding = (1), dilation = (" + std::to_string(dilation) +
                                      "), ceil_mode = 0} return %1 }",
                                  {"x"}, true);
    std::string texts;
    for (const Group& group : program.backward_fusion.groups) texts += emit_cuda(program.backward, group.kernel).text;
    EXPECT_EQ(texts.find(" given[windows];") != std::string::npos, held) << kernel << " taps, dilation " << dilation;
  }
}

// Launches overlap: a kernel that read or wrote before the ones in front of it have ended would be wrong, rarely. Only
// a later pass over split rows loads ahead, what the first one has loaded too.
TEST(KernelText, EveryCudaKernelWaitsFirst) {
  const char* const graphs[] = {
      "graph(%x: f32[n, c, h], %m: f32[c, 1]) { %1 = mul(%x, %m) %2 = silu(%1) return %2 }",
      "graph(%x: f32[n, c, h]@021, %y: f32[n, c, h]) { %1 = mul(%x, %y) return %1 }",
      "graph(%x: f32[n, c], %w: f32[c]) { %1 = layer_norm(%x, %w) {axes = 1, eps = 0.1, has_weight = 1} return %1 }",
      "graph(%x: f32[n, c], %w: f32[c]) { %1 = batch_norm(%x, %w) {eps = 0.1, has_weight = 1} return %1 }",
      "graph(%x: f32[n, h]) { %1 = max_pool(%x) {kernel = (2), stride = (2), padding = (0), dilation = (1), ceil_mode "
      "= 0} return %1 }"};
  std::map<std::string, int> kinds;
  for (const char* graph : graphs) {
    const Program program = fused(graph, {"x", "y", "m", "w"}, true);
    std::string texts;
    for (const auto& [graph_of, fusion] :
         {std::pair(&program.forward, &program.forward_fusion), std::pair(&program.backward, &program.backward_fusion)})
      for (const auto& group : fusion->groups) {
        const KernelCode code = emit_cuda(*graph_of, group.kernel);
        texts += code.text + code.cuda.walking_text + code.cuda.tiled_text;
      }
    for (size_t at = texts.find("extern \"C\" __global__"); at != std::string::npos;
         at = texts.find("extern \"C\" __global__", at + 1)) {
      const std::string signature = texts.substr(at, texts.find("{\n", at) - at);
      const std::string body = texts.substr(texts.find("{\n", at) + 2, texts.find("\n}\n", at) - at);
      auto named = [&](const char* part) { return signature.find(part) != std::string::npos; };
      if (named("_sides(")) {
        ++kinds["sides"];
        EXPECT_EQ(body.find("fw::let_next_launch_begin();"), body.find("fw::")) << signature;
      } else if (named("_phase0(")) {
        ++kinds["first pass"];  // whose launch never overlaps
      } else if (named("_phase")) {
        ++kinds["later pass"];
        EXPECT_LT(body.find("_last_launch();"), body.find("load_row(")) << signature;
      } else {
        ++kinds["other"];
        const size_t waits = body.find("_last_launch();");
        EXPECT_NE(waits, std::string::npos) << signature;
        for (const char* what :
             {"load_", "ask", "take", "stage_", "row_0(", "put_", "fw::shared_memory", "fw::reduce("})
          EXPECT_LT(waits, body.find(what)) << signature << " " << what;
      }
    }
    // Sums on the side: each function waits before it reads the parts.
    for (size_t at = texts.find("FW_FN void side_"); at != std::string::npos;
         at = texts.find("FW_FN void side_", at + 1)) {
      ++kinds["sum on the side"];
      EXPECT_LT(texts.find("fw::wait_for_last_launch();", at), texts.find("sum.value +=", at));
    }
  }
  for (const char* kind : {"sides", "first pass", "later pass", "other", "sum on the side"})
    EXPECT_GT(kinds[kind], 0) << kind;
}

TEST(Literal, ReadsBackExactly) {
  EXPECT_EQ(literal(1, DType::f32), "1.0f");
  EXPECT_EQ(literal(-0.0, DType::f64), "-0.0");
  EXPECT_EQ(literal(0.1f, DType::f32), "0.100000001f");
  EXPECT_EQ(literal(1e-40, DType::f64), "9.9999999999999993e-41");
  EXPECT_EQ(literal(1e20, DType::f16), "1e+20f");
  EXPECT_EQ(literal(INFINITY, DType::f32), "fw::infinity<float>()");
  EXPECT_EQ(literal(-INFINITY, DType::f64), "-fw::infinity<double>()");
  EXPECT_EQ(literal(NAN, DType::bf16), "fw::nan<float>()");
  EXPECT_EQ(literal(3, DType::i32), "fw::i64(3)");
  EXPECT_EQ(literal(-INFINITY, DType::i32), "(-9223372036854775807LL - 1)");
  EXPECT_EQ(literal(3, DType::b8), "true");
}

}  // namespace
}  // namespace fusewright::testing
