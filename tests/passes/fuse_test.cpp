// The shape of the fusion: how many kernels, what is in each, and why it stopped.
#include <ctime>
#include <fstream>

#include "support/graphs.h"

namespace fusewright::testing {
namespace {

std::vector<std::string> kernels(const Graph& graph, const Fusion& fusion) {
  std::vector<std::string> result;
  for (const Group& group : fusion.groups) {
    std::string text;
    for (const Step& step : group.kernel.steps) {
      if (step.role == Step::Role::load || step.role == Step::Role::scalar) continue;
      if (step.role == Step::Role::contract) {
        text += std::string("[") + name_of(graph[step.value].op) + "]";
        continue;
      }
      text += (text.empty() ? "" : " ") + std::string(name_of(graph[step.value].op)) + (step.stored ? "*" : "");
    }
    result.push_back(text);
  }
  return result;
}

std::set<std::string> stops(const Fusion& fusion) {
  std::set<std::string> names;
  for (const Stop& stop : fusion.stops) names.insert(stop.reason);
  return names;
}

std::vector<std::string> forward_kernels(std::string_view text) {
  Program program = fused(text);
  return kernels(program.forward, program.forward_fusion);
}

using Names = std::vector<std::string>;

TEST(Fuse, AChainIsOneKernel) {
  EXPECT_EQ(
      forward_kernels(
          "graph(%x: f32[n, c, h, w], %m: f32[c, 1, 1]) { %1 = mul(%x, %m) %2 = abs(%1) %3 = exp(%2) return %3 }"),
      (Names{"mul abs exp*"}));
}

TEST(Fuse, AContractionSplitsTheChain) {
  EXPECT_EQ(forward_kernels(
                "graph(%x: f32[n, k], %w: f32[k, m]) { %1 = exp(%x) %2 = matmul(%1, %w) %3 = exp(%2) return %3 }"),
            (Names{"exp*", "[matmul]", "exp*"}));
}

TEST(Fuse, ASoftmaxIsOneKernel) {
  EXPECT_EQ(forward_kernels("graph(%x: f32[n, c]) { %1 = softmax(%x) {dim = 1} %2 = exp(%1) return %2 }"),
            (Names{"amax sub exp sum div exp*"}));
}

TEST(Fuse, AGroupNormWithItsChainIsOneKernel) {
  Names found = forward_kernels(
      "graph(%x: f32[n, 4*g, h], %w: f32[4*g]) { %1 = group_norm(%x, %w) {groups = 4, eps = 0.1, has_weight = 1} %2 = "
      "silu(%1) return %2 }");
  EXPECT_EQ(found.size(), 1u);
}

TEST(Fuse, PoolingTakesTheChainBeforeAndAfter) {
  EXPECT_EQ(forward_kernels("graph(%x: f32[n, c, h, w]) { %1 = neg(%x) %2 = max_pool(%1) {kernel = (2, 2), stride = "
                            "(2, 2), padding = (0, 0), "
                            "dilation = (1, 1), ceil_mode = 0} %3 = exp(%2) return %3 }"),
            (Names{"neg max_pool exp*"}));
}

TEST(Fuse, TwoResultsOfTheSameDataShareAKernel) {
  EXPECT_EQ(forward_kernels("graph(%x: f32[n, c]) { %1 = exp(%x) %2 = sin(%x) return %1, %2 }").size(), 1u);
  EXPECT_EQ(
      forward_kernels("graph(%x: f32[n, c]) { %1 = exp(%x) %2 = sum(%x) {dims = (1), keepdim = 0} return %1, %2 }")
          .size(),
      1u);
}

TEST(Fuse, ABackwardIsAFewKernels) {
  Program program =
      fused("graph(%x: f32[n, c], %m: f32[c]) { %1 = mul(%x, %m) %2 = gelu(%1) {approximate = \"none\"} return %2 }",
            {"x", "m"});
  EXPECT_EQ(program.forward_fusion.groups.size(), 1u);
  EXPECT_EQ(program.backward_fusion.groups.size(), 1u);
}

TEST(Fuse, AReturnedInputIsCopied) {
  EXPECT_EQ(forward_kernels("graph(%x: f32[n]) { return %x }"), (Names{"reshape*"}));
}

TEST(Fuse, AGradientMayBeTheIncomingOne) {
  Program program = fused("graph(%x: f32[n], %y: f32[n]) { %1 = add(%x, %y) return %1 }", {"x", "y"});
  EXPECT_TRUE(program.backward_fusion.groups.empty());
}

TEST(Fuse, ViewsOfAContractionNeedNoKernel) {
  EXPECT_EQ(
      forward_kernels(
          "graph(%x: f32[n, k], %w: f32[k, m]) { %1 = matmul(%x, %w) %2 = reshape(%1) {sizes = [m*n]} return %2 }"),
      (Names{"[matmul]"}));
}

TEST(Fuse, NothingSharedNothingGained) {
  EXPECT_EQ(forward_kernels("graph(%x: f32[n], %y: f32[n]) { %1 = exp(%x) %2 = exp(%y) return %1, %2 }").size(), 2u);
}

// Times layers of a matrix product, and a norm that reads the one before.
double seconds_of_cpu_to_fuse(int layers) {
  std::string inputs = "%x: f32[n, c]", body, x = "%x";
  for (int i = 0; i < layers; ++i) {
    const std::string n = std::to_string(i);
    inputs += ", %w" + n + ": f32[c, c]";
    body += " %y" + n + " = matmul(" + x + ", %w" + n + ") %s" + n + " = sum(%y" + n +
            ") {dims = (1), keepdim = 1} %z" + n + " = mul(%y" + n + ", %s" + n + ")";
    x = "%z" + n;
  }
  const Graph graph = parse("graph(" + inputs + ") {" + body + " return " + x + "}");
  double least = 1e9;
  for (int round = 0; round < 3; ++round) {
    const std::clock_t start = std::clock();
    EXPECT_EQ(group_into_kernels(graph, {}).groups.size(), 2 * static_cast<size_t>(layers));
    least = std::min(least, static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
  }
  return least;
}

TEST(Fuse, ManyLayersTakeTimeInProportion) {
  const double few = seconds_of_cpu_to_fuse(50), many = seconds_of_cpu_to_fuse(400);
  EXPECT_LT(many, 30 * few) << few << " s and " << many << " s";  // 8 times the layers
}

TEST(Fuse, AReshapeThatIsNoProductOfLoopsIsAView) {
  EXPECT_EQ(forward_kernels("graph(%x: f32[n, c]) { %1 = exp(%x) %2 = reshape(%1) {sizes = [c, n]} return %2 }"),
            (Names{"exp*"}));
  EXPECT_EQ(forward_kernels("graph(%x: f32[n, 1, h]) { %1 = expand(%x) {sizes = [n, n, h]} %2 = reshape(%1) {sizes = "
                            "[n*n, h]} %3 = exp(%2) return %3 }"),
            (Names{"exp*"}));
}

// Weight and bias of an instance norm take sums of rows: their gradients come out of the kernel that reads the data.
// The gradients of a group norm are sums of parts of its rows, which read the data again.
TEST(Fuse, GradientsOfAnInstanceNormReadTheDataOnce) {
  const auto readers = [](const std::string& norm) {
    const Program program = fused("graph(%x: f32[n, 8, 256, 256], %a: f32[8], %b: f32[8]) { %1 = " + norm +
                                      ", has_weight = 1, has_bias = 1} %2 = relu(%1) return %2 }",
                                  {"x", "a", "b"}, true);
    return std::count_if(program.backward_fusion.groups.begin(), program.backward_fusion.groups.end(),
                         [&](const Group& group) {
                           return std::any_of(group.kernel.steps.begin(), group.kernel.steps.end(), [&](const Step& s) {
                             const Shape& shape = program.backward.shape(s.value);
                             return s.role == Step::Role::load && shape.size() >= 4 && !(shape.back() == Size(1));
                           });
                         });
  };
  EXPECT_EQ(readers("instance_norm(%x, %a, %b) {eps = 0.01"), 1);
  EXPECT_EQ(readers("group_norm(%x, %a, %b) {groups = 4, eps = 0.01"), 2);
}

// ---- reasons to stop -----------------------------------------------------------------------------------------

struct StopCase {
  const char *reason, *text;
  size_t groups;
  bool cuda = false;
};
void PrintTo(const StopCase& c, std::ostream* out) { *out << c.reason; }

class EveryStop : public ::testing::TestWithParam<StopCase> {};

TEST_P(EveryStop, IsNamed) {
  Program program = fused(GetParam().text, {}, GetParam().cuda);
  EXPECT_TRUE(stops(program.forward_fusion).count(GetParam().reason))
      << ::testing::PrintToString(stops(program.forward_fusion));
  EXPECT_EQ(program.forward_fusion.groups.size(), GetParam().groups)
      << ::testing::PrintToString(kernels(program.forward, program.forward_fusion));
}

std::string long_chain() {
  // Every step is its own operation, so that nothing is shared; two kernels are needed to hold them.
  std::string text = "graph(%x: f32[n]) { %0 = exp(%x) ";
  for (int i = 1; i < 450; ++i) text += "%" + std::to_string(i) + " = sin(%" + std::to_string(i - 1) + ") ";
  return text + "return %449 }";
}
const std::string long_text = long_chain();

const StopCase stop_cases[] = {
    {"different_iteration_space",
     "graph(%x: f32[n, c]) { %1 = sum(%x) {dims = (1), keepdim = 0} %2 = permute(%x) {dims = (1, 0)} %3 = "
     "add(%2, %1) return %3 }",
     2},
    {"different_reduction",
     "graph(%x: f32[n, c]) { %1 = sum(%x) {dims = (1), keepdim = 1} %2 = mul(%x, %1) %3 = amax(%2) {dims = "
     "(0), keepdim = 0, tie = 0} return %3 }",
     2},
    {"large_partial_sums",
     "graph(%x: f32[2048, 8196]) { %1 = sum(%x) {dims = (1), keepdim = 1} %2 = mul(%x, %1) %3 = sum(%2) {dims = (0), "
     "keepdim = 0} return %2, %3 }",
     2, true},
    {"different_memory_order",
     "graph(%x: f32[n, c, w]) { %1 = sum(%x) {dims = (1), keepdim = 1} %2 = mul(%x, %1) %3 = sum(%2) {dims = (0, 2), "
     "keepdim = 0} return %2, %3 }",
     2},
    {"reshape_boundary",
     "graph(%x: f32[n, c], %y: f32[c, n]) { %1 = exp(%x) %2 = reshape(%1) {sizes = [c, n]} %3 = mul(%2, "
     "%y) return %3 }",
     2},
    {"window_overlap",
     "graph(%x: f32[n, c, w]) { %1 = exp(%x) %2 = max_pool(%1) {kernel = (3), stride = (1), padding = (1), "
     "dilation = (1), ceil_mode = 0} return %2 }",
     2},
    {"window_dimension",
     "graph(%x: f32[n, c, h]) { %1 = neg(%x) %2 = reshape(%1) {sizes = [n, c*h]} %3 = max_pool(%2) {kernel "
     "= (3), "
     "stride = (1), padding = (1), dilation = (1), ceil_mode = 0} return %1, %3 }",
     2},
    {"window_in_window",
     "graph(%x: f32[n, 9]) { %1 = shift(%x) {start = (0, 1), sizes = [n, 8]} %2 = exp(%1) %3 = shift(%2) {start = (0, "
     "-1), sizes = [n, 9]} return %3 }",
     2},
    {"would_form_cycle",
     "graph(%x: f32[n, c], %w: f32[c, c]) { %1 = exp(%x) %2 = matmul(%1, %w) %3 = mul(%2, %1) return %1, %3 }", 3},
    {"kernel_too_large", long_text.c_str(), 2},
    {"library_call", "graph(%x: f32[n, k], %w: f32[k, m]) { %1 = matmul(%x, %w) %2 = exp(%1) return %2 }", 2}};

INSTANTIATE_TEST_SUITE_P(, EveryStop, ::testing::ValuesIn(stop_cases),
                         [](const auto& c) { return std::string(c.param.reason); });

// Sums along rows that a block cannot hold, or of which each block has few, are in a kernel of their own on a GPU.
TEST(Fuse, LargePartialSumsAreNotLeftOnAGpu) {
  struct Case {
    const char* type;
    int rows, elements;
    size_t on_a_gpu;
  };
  for (const Case& c : {Case{"f32", 2048, 8192, 1}, Case{"f32", 2048, 8196, 2}, Case{"f32", 2048, 5001, 2},
                        Case{"bf16", 2048, 16384, 1}, Case{"f64", 2048, 4098, 2}, Case{"f32", 1024, 1028, 1},
                        Case{"f32", 1023, 1028, 2}, Case{"f32", 1023, 1024, 1}}) {
    const std::string text = "graph(%x: " + std::string(c.type) + "[" + std::to_string(c.rows) + ", " +
                             std::to_string(c.elements) +
                             "]) { %1 = sum(%x) {dims = (1), keepdim = 1} %2 = mul(%x, %1) %3 = sum(%2) {dims = (0), "
                             "keepdim = 0} return %2, %3 }";
    EXPECT_EQ(fused(text, {}, true).forward_fusion.groups.size(), c.on_a_gpu) << text;
    EXPECT_EQ(fused(text).forward_fusion.groups.size(), 1u) << text;
  }
  // One number for each row is no large sum.
  EXPECT_EQ(fused("graph(%x: f32[8, 64, 65536]) { %1 = sum(%x) {dims = (2), keepdim = 1} %2 = mul(%x, %1) %3 = sum(%2) "
                  "{dims = (0, 2), keepdim = 0} return %2, %3 }",
                  {}, true)
                .forward_fusion.groups.size(),
            1u);
}

// Names that stand between two marks of a file: what is documented is what can happen.
std::set<std::string> names_in(const char* path, const std::string& from, const std::string& to,
                               const std::string& before, char after) {
  std::ifstream file(std::string(FUSEWRIGHT_SOURCE_DIR) + path);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  size_t at = text.find(from), end = text.find(to, at);
  std::set<std::string> names;
  for (at = text.find(before, at); at < end; at = text.find(before, at + 1)) {
    size_t start = at + before.size();
    names.insert(text.substr(start, text.find(after, start) - start));
  }
  return names;
}

TEST(Fuse, EveryDocumentedReasonHasACase) {
  std::set<std::string> cases;
  for (const StopCase& c : stop_cases) cases.insert(c.reason);
  EXPECT_EQ(names_in("/src/passes/fuse.cpp", "Reasons to stop", "#include", "\n//   ", ' '), cases);
  EXPECT_EQ(names_in("/docs/passes.md", "## Where fusion stops", "These are reasons", "\n| `", '`'), cases);
}

}  // namespace
}  // namespace fusewright::testing
