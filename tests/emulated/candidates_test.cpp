// Every way to launch every kind of kernel gives the right results.
#include <filesystem>
#include <fstream>

#include "runtime/compiler/background.h"
#include "runtime/cuda/cuda_launch.h"
#include "support/emulator_counts.h"
#include "support/execute.h"

namespace fusewright::testing {
namespace {

size_t wanted = 0;
std::map<std::string, size_t> seen;  // most candidates of each kernel

size_t choose(const std::string& kernel, size_t count) {
  seen[kernel] = std::max(seen[kernel], count);
  return std::min(wanted, count - 1);
}

// Runs it with the first candidate of each kernel, the second, and so on, until none has more.
template <class Run>
void with_every_candidate(Run run) {
  size_t most = 1;
  for (wanted = 0; wanted < most; ++wanted) {
    run();
    for (const auto& [kernel, count] : seen) most = std::max(most, count);
  }
}

struct Case {
  const char *name, *text;
  std::vector<std::map<std::string, int64_t>> sizes;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

// Values of columns that are told to elements: an extreme, a truth, a number from a whole one, one for all columns.
const char* const column_of_kinds =
    "graph(%x: f32[n, c], %k: f32[1], %h: f32[c]) { %j = cast(%h) {dtype = i64} %m = amax(%x) {dims = (0), tie = 0, "
    "keepdim = 1} %s = sum(%x) {dims = (0), keepdim = 1} %p = gt(%s, %k) %q = mul(%j, %j) %r = cast(%q) {dtype = f32} "
    "%u = add(%r, %k) %1 = sub(%x, %m) %2 = select(%p, %1, %x) %3 = mul(%2, %u) return %3 }";

const Case cases[] = {
    {"pointwise",
     "graph(%x: f32[n, c, h, w], %m: f32[c, 1, 1]) { %1 = mul(%x, %m) %2 = silu(%1) return %2 }",
     {{{"n", 2}, {"c", 3}, {"h", 2}, {"w", 33}}, {{"n", 1}, {"c", 2}, {"h", 40}, {"w", 64}}, {{"w", 1}}}},
    {"row",
     "graph(%x: f16[n, c]) { %1 = softmax(%x) {dim = 1} return %1 }",
     {{{"n", 3}, {"c", 1}},
      {{"n", 5}, {"c", 31}},
      {{"n", 67}, {"c", 96}},
      {{"n", 2}, {"c", 1025}},
      {{"n", 2}, {"c", 1000}},
      {{"n", 2}, {"c", 6000}}}},
    {"row_sides",
     "graph(%x: f32[n, c], %w: f32[c], %b: f32[c]) { %1 = layer_norm(%x, %w, %b) {axes = 1, eps = 0.01, has_weight = "
     "1, "
     "has_bias = 1} %2 = gelu(%1) {approximate = \"none\"} return %2 }",
     {{{"n", 40}, {"c", 3}},
      {{"n", 70}, {"c", 64}},
      {{"n", 19}, {"c", 1030}},
      {{"n", 33}, {"c", 2048}},
      {{"n", 3}, {"c", 9000}}}},
    {"group",
     "graph(%x: f32[n, 3*g, h], %w: f32[3*g], %m: f32[3*g, 1]) { %1 = group_norm(%x, %w) {groups = 3, eps = 0.01, "
     "has_weight = 1} %2 = mul(%1, %m) %3 = silu(%2) return %3 }",
     {{{"n", 20}, {"g", 2}, {"h", 7}}, {{"n", 33}, {"g", 2}, {"h", 64}}, {{"n", 2}, {"g", 3}, {"h", 3001}}}},
    {"row_of_known_length",
     "graph(%x: f32[n, 96], %w: f32[96]) { %1 = layer_norm(%x, %w) {axes = 1, eps = 0.01, has_weight = 1} %2 = "
     "silu(%1) return %2 }",
     {{{"n", 1}}, {{"n", 70}}}},
    {"long_row_of_known_length",
     "graph(%x: f32[n, 4104], %w: f32[4104], %b: f32[4104]) { %1 = layer_norm(%x, %w, %b) {axes = 1, eps = 0.01, "
     "has_weight = 1, has_bias = 1} return %1 }",
     {{{"n", 3}}, {{"n", 19}}}},
    {"row_of_known_odd_length",
     "graph(%x: f16[n, 77]) { %1 = softmax(%x) {dim = 1} return %1 }",
     {{{"n", 3}}, {{"n", 40}}}},
    {"totals_of_doubles",  // more of them than sums
     "graph(%x: f64[n, c, h], %w: f64[c, 1], %b: f64[c, 1], %m: f64[c, 1], %q: f64[c, 1], %r: f64[c, 1], %s: f64[c, "
     "1]) { %1 = layer_norm(%x) {axes = 1, eps = 0.01} %2 = mul(%1, %w) %3 = silu(%2) %4 = add(%3, %b) %5 = "
     "sigmoid(%4) "
     "%6 = mul(%5, %m) %7 = silu(%6) %8 = mul(%7, %q) %9 = silu(%8) %10 = mul(%9, %r) %11 = silu(%10) %12 = mul(%11, "
     "%s) return %12 }",
     {{{"n", 5}, {"c", 3}, {"h", 512}}}},
    {"totals_of_two_passes",
     "graph(%x: f32[n, c, h]) { %1 = mean(%x) {dims = (2), keepdim = 1} %2 = sin(%x) %3 = sum(%2) {dims = (0, 2), "
     "keepdim = 0} %4 = mul(%x, %1) %5 = sin(%4) %6 = sum(%5) {dims = (0, 2), keepdim = 0} return %3, %5, %6 }",
     {{{"n", 2}, {"c", 2}, {"h", 20000}}, {{"n", 7}, {"c", 3}, {"h", 33}}}},
    {"groups_of_four",
     "graph(%x: f32[n, 24], %w: f32[24], %m: f32[24]) { %1 = group_norm(%x, %w) {groups = 6, eps = 0.01, has_weight = "
     "1} %2 = mul(%1, %m) %3 = silu(%2) return %3 }",
     {{{"n", 2}}, {{"n", 150}}}},
    {"groups_side_by_side",
     "graph(%x: f32[n, 512], %w: f32[512], %m: f32[512]) { %1 = group_norm(%x, %w) {groups = 16, eps = 0.01, "
     "has_weight = 1} %2 = mul(%1, %m) %3 = silu(%2) return %3 }",
     {{{"n", 70}}}},
    {"few_long_rows",
     "graph(%x: f32[n, c]) { %1 = mul(%x, %x) %2 = sum(%1) {dims = (1), keepdim = 1} %3 = div(%x, %2) return %3 }",
     {{{"n", 2}, {"c", 20000}}, {{"n", 1}, {"c", 40001}}}},
    {"column_of_halves",
     "graph(%x: bf16[n, c], %w: f32[c]) { %1 = batch_norm(%x, %w) {eps = 0.01, has_weight = 1} %2 = silu(%1) return %2 "
     "}",
     {{{"n", 33}, {"c", 136}}, {{"n", 300}, {"c", 60}}}},
    {"masked_column_of_doubles",  // elements too narrow to be copied to shared memory
     "graph(%x: f64[n, c], %k: b8[n, c]) { %1 = mul(%x, %x) %2 = select(%k, %1, %x) %3 = sum(%2) {dims = (0), keepdim "
     "= 1} %4 = div(%2, %3) return %4 }",
     {{{"n", 33}, {"c", 132}}, {{"n", 300}, {"c", 64}}}},
    {"masked_column",
     "graph(%x: f32[n, c], %k: b8[n, c]) { %1 = mul(%x, %x) %2 = select(%k, %1, %x) %3 = sum(%2) {dims = (0), keepdim "
     "= 1} %4 = div(%2, %3) return %4 }",
     {{{"n", 33}, {"c", 132}}, {{"n", 300}, {"c", 64}}}},
    {"column_of_kinds", column_of_kinds, {{{"n", 33}, {"c", 132}}, {{"n", 300}, {"c", 64}}, {{"n", 40}, {"c", 7}}}},
    {"column_of_images",  // two loops to reduce over
     "graph(%x: f32[n, h, c]) { %1 = mul(%x, %x) %2 = sum(%1) {dims = (0, 1), keepdim = 1} %3 = div(%x, %2) return %3 "
     "}",
     {{{"n", 7}, {"h", 9}, {"c", 132}}, {{"n", 3}, {"h", 5}, {"c", 5}}}},
    {"column",
     "graph(%x: f32[n, c], %w: f32[c], %b: f32[c]) { %1 = batch_norm(%x, %w, %b) {eps = 0.01, has_weight = 1, has_bias "
     "= 1} %2 = silu(%1) return %2 }",
     {{{"n", 5}, {"c", 3}},
      {{"n", 33}, {"c", 129}},
      {{"n", 300}, {"c", 64}},
      {{"n", 3000}, {"c", 4}},
      {{"n", 5000}, {"c", 2}}}},
    {"window",
     "graph(%x: f32[n, c, h, w]) { %1 = leaky_relu(%x) {negative_slope = 0.2} %2 = max_pool(%1) {kernel = (2, 2), "
     "stride = (2, 2), padding = (0, 0), dilation = (1, 1), ceil_mode = 1} return %2 }",
     {{{"n", 1}, {"c", 2}, {"h", 5}, {"w", 33}}, {{"n", 2}, {"c", 2}, {"h", 8}, {"w", 64}}}},
};

struct Chosen {
  Chosen() {
    seen.clear();
    set_candidate_hook(&choose);
  }
  ~Chosen() { set_candidate_hook(nullptr); }
};
class Candidates : public ::testing::TestWithParam<Case>, Chosen {};
class Clusters : public ::testing::Test, Chosen {};
INSTANTIATE_TEST_SUITE_P(, Candidates, ::testing::ValuesIn(cases),
                         [](const auto& info) { return std::string(info.param.name); });

// Rows of the length at capture have texts of their own; others take those for all.
TEST(RowLengths, OtherThanAtCapture) {
  Graph graph = parse(
      "graph(%x: f32[n, c], %w: f32[c]) { %1 = rms_norm(%x, %w) {axes = 1, eps = 0.01, has_weight = 1} %2 = silu(%1) "
      "return %2 }");
  graph.hints["c"] = 40;
  const std::vector<bool> wrt{true, true};
  const auto executable = compile(graph, wrt);
  for (int64_t c : {40, 36, 44, 1, 41, 80, 2000}) {
    std::mt19937 random(7);
    const std::vector<Array> inputs = random_inputs(graph, {{"n", 37}, {"c", c}}, random);
    EXPECT_EQ(disagreement(*executable, graph, wrt, inputs), "") << c;
  }
}

// Columns that several blocks hold together, of whatever number of rows and columns; in any order of threads.
TEST_F(Clusters, HoldColumnsTogether) {
  const std::vector<bool> wrt{true, true, true};
  for (auto [type, n, c] : {std::tuple<std::string, int64_t, int64_t>{"f32", 1024, 40},
                            {"f32", 513, 132},
                            {"f32", 1700, 28},
                            {"f64", 513, 20},
                            {"bf16", 2100, 24}}) {
    const Graph graph = parse("graph(%x: " + type + "[n, c], %w: " + type + "[c], %b: " + type +
                              "[c]) { %1 = batch_norm(%x, %w, %b) {eps = 0.01, has_weight = 1, has_bias = 1} %2 = "
                              "silu(%1) return %2 }");
    const auto executable = compile(graph, wrt);
    const uint64_t before = emulator_count("emulator_cluster_launches");
    std::mt19937 random(11);
    const std::vector<Array> inputs = random_inputs(graph, {{"n", n}, {"c", c}}, random);
    for (wanted = 3; wanted <= 9; ++wanted) {
      setenv("FUSEWRIGHT_EMULATOR_SEED", std::to_string(wanted).c_str(), 1);
      EXPECT_EQ(disagreement(*executable, graph, wrt, inputs), "")
          << type << " " << n << " x " << c << ", candidate " << wanted;
    }
    unsetenv("FUSEWRIGHT_EMULATOR_SEED");
    // At least one for the forward and one for the backward.
    EXPECT_GE(emulator_count("emulator_cluster_launches"), before + 2) << type << " " << n << " x " << c;
  }
}

TEST_F(Clusters, HoldColumnsOfAllKinds) {
  const Graph graph = parse(column_of_kinds);
  const auto executable = compile(graph);
  std::mt19937 random(12);
  const std::vector<Array> inputs = random_inputs(graph, {{"n", 1024}, {"c", 40}}, random);
  const uint64_t before = emulator_count("emulator_cluster_launches");
  for (wanted = 3; wanted <= 9; ++wanted)
    EXPECT_EQ(disagreement(*executable, graph, {}, inputs), "") << "candidate " << wanted;
  EXPECT_GT(emulator_count("emulator_cluster_launches"), before);
}

// Rows that are longer than what a block holds, of the length at capture or another; in any order of threads.
TEST_F(Clusters, HoldLongRowsTogether) {
  Graph graph = parse("graph(%x: f32[n, c]) { %1 = softmax(%x) {dim = 1} return %1 }");
  graph.hints["c"] = 40000;
  const std::vector<bool> wrt{true};
  const auto executable = compile(graph, wrt);
  for (int64_t c : {40000, 16388, 65536}) {
    const uint64_t before = emulator_count("emulator_cluster_launches");
    std::mt19937 random(23);
    const std::vector<Array> inputs = random_inputs(graph, {{"n", 3}, {"c", c}}, random);
    for (wanted = 1; wanted <= 6; ++wanted) {
      setenv("FUSEWRIGHT_EMULATOR_SEED", std::to_string(wanted).c_str(), 1);
      EXPECT_EQ(disagreement(*executable, graph, wrt, inputs), "") << c << ", candidate " << wanted;
    }
    unsetenv("FUSEWRIGHT_EMULATOR_SEED");
    EXPECT_GE(emulator_count("emulator_cluster_launches"), before + 2) << c;  // forward and backward
  }
  // Longer than those of any cluster, and without vectors.
  for (int64_t c : {65540, 40001}) {
    const uint64_t before = emulator_count("emulator_cluster_launches");
    std::mt19937 random(24);
    const std::vector<Array> inputs = random_inputs(graph, {{"n", 2}, {"c", c}}, random);
    for (wanted = 0; wanted <= 1; ++wanted) EXPECT_EQ(disagreement(*executable, graph, wrt, inputs), "") << c;
    EXPECT_EQ(emulator_count("emulator_cluster_launches"), before) << c;
  }
}

// Rows of clusters also compete with what stands for them where there are none, and with single elements.
TEST_F(Clusters, CompeteWithWalkingOverLongRows) {
  if (!std::getenv("FUSEWRIGHT_EMULATOR_MULTIPROCESSORS"))
    GTEST_SKIP() << "emulated/several_turns: three rows are many";
  const Graph graph = parse("graph(%x: f32[n, 20000]) { %1 = softmax(%x) {dim = 1} return %1 }");
  const auto executable = compile(graph);
  std::mt19937 random(27);
  const std::vector<Array> inputs = random_inputs(graph, {{"n", 3}}, random);
  size_t together = 0, without = 0;
  with_every_candidate([&] {
    const uint64_t before = emulator_count("emulator_cluster_launches");
    EXPECT_EQ(disagreement(*executable, graph, {}, inputs), "") << wanted;
    ++(emulator_count("emulator_cluster_launches") == before ? without : together);
  });
  EXPECT_GT(together, 2u);
  EXPECT_EQ(without, 2u);
}

// With one number for each row on the side, which its cluster adds up as well.
TEST_F(Clusters, HoldLongRowsWithTotals) {
  for (const auto& [type, length] :
       {std::pair<std::string, std::string>{"f32", "24576"}, {"bf16", "40960"}, {"f64", "12288"}}) {
    const Graph graph = parse("graph(%x: " + type + "[n, 3, " + length + "], %w: " + type + "[3], %b: " + type +
                              "[3]) { %1 = instance_norm(%x, %w, %b) {eps = 0.01, has_weight = 1, has_bias = 1} %2 = "
                              "silu(%1) return %2 }");
    const std::vector<bool> wrt{true, true, true};
    const auto executable = compile(graph, wrt);
    const uint64_t before = emulator_count("emulator_cluster_launches");
    std::mt19937 random(25);
    const std::vector<Array> inputs = random_inputs(graph, {{"n", 2}}, random);
    for (wanted = 1; wanted <= 6; ++wanted)
      EXPECT_EQ(disagreement(*executable, graph, wrt, inputs), "") << type << ", candidate " << wanted;
    EXPECT_GE(emulator_count("emulator_cluster_launches"), before + 4) << type;
  }
}

// More of them than what any pass over the row adds up.
TEST_F(Clusters, HoldLongRowsWithManyTotals) {
  std::string inputs_text = "%x: f64[n, 2, 8704]", body = "%0 = layer_norm(%x) {axes = 1, eps = 0.01} ";
  for (int i = 0; i < 8; ++i) {
    const std::string weight = "%w" + std::to_string(i), a = std::to_string(2 * i), b = std::to_string(2 * i + 1);
    inputs_text += ", " + weight + ": f64[2, 1]";
    body += "%" + b + " = mul(%" + a + ", " + weight + ") %" + std::to_string(2 * i + 2) + " = silu(%" + b + ") ";
  }
  const Graph graph = parse("graph(" + inputs_text + ") { " + body + "return %16 }");
  const std::vector<bool> wrt(9, true);
  const auto executable = compile(graph, wrt);
  const uint64_t before = emulator_count("emulator_cluster_launches");
  std::mt19937 random(26);
  const std::vector<Array> inputs = random_inputs(graph, {{"n", 2}}, random);
  for (wanted = 1; wanted <= 3; ++wanted) EXPECT_EQ(disagreement(*executable, graph, wrt, inputs), "") << wanted;
  EXPECT_GE(emulator_count("emulator_cluster_launches"), before + 4);  // forward and backward
}

// Nothing is compiled for clusters where there are none.
class BeforeSm90 : public Clusters {};
TEST_F(BeforeSm90, HasNoTextForClusters) {
  const char* architecture = std::getenv("FUSEWRIGHT_EMULATOR_ARCHITECTURE");
  const char* folder = std::getenv("FUSEWRIGHT_EMULATOR_TEXTS");
  if (!architecture || std::string(architecture) != "80" || !folder) GTEST_SKIP() << "emulated/before_sm_90 runs this";
  std::filesystem::remove_all(folder);
  const Graph graph = parse("graph(%x: f32[n, c]) { %1 = batch_norm(%x) {eps = 0.01} %2 = silu(%1) return %2 }");
  const std::vector<bool> wrt{true};
  const auto executable = compile(graph, wrt);
  std::mt19937 random(19);
  const std::vector<Array> inputs = random_inputs(graph, {{"n", 1024}, {"c", 40}}, random);
  with_every_candidate([&] { EXPECT_EQ(disagreement(*executable, graph, wrt, inputs), "") << wanted; });
  EXPECT_EQ(emulator_count("emulator_cluster_launches"), 0u);
  Background::instance().wait();  // for what nobody has run
  int alone = 0, together = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".cu") continue;
    std::ifstream file(entry.path());
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    alone += text.find("#define FW_CLUSTER 0") != std::string::npos;
    together += text.find("#define FW_CLUSTER 1") != std::string::npos;
  }
  EXPECT_GE(alone, 7);  // numbers of items: three of vectors in the forward, two in the backward; one each of elements
  EXPECT_EQ(together, 0);
}

// Sums on the side that the blocks of a cluster add up: into buffers, or into the results themselves. In any order of
// threads.
TEST_F(Clusters, AddUpSumsOnTheSide) {
  const Graph graph = parse(
      "graph(%x: f32[n, 8*g], %w: f32[8*g], %m: f32[8*g]) { %1 = group_norm(%x, %w) {groups = 8, eps = 0.01, "
      "has_weight "
      "= 1} %2 = silu(%1) %3 = mul(%2, %m) return %3 }");
  const std::vector<bool> wrt{true, true, true};
  const auto executable = compile(graph, wrt);
  for (auto [n, g] : {std::pair<int64_t, int64_t>{260, 32}, {300, 5}, {150, 300}, {17, 8}}) {
    const uint64_t before = emulator_count("emulator_cluster_launches");
    std::mt19937 random(13);
    const std::vector<Array> inputs = random_inputs(graph, {{"n", n}, {"g", g}}, random);
    for (wanted = 2; wanted <= 5; ++wanted) {
      setenv("FUSEWRIGHT_EMULATOR_SEED", wanted % 2 == 0 ? "1" : "2", 1);
      EXPECT_EQ(disagreement(*executable, graph, wrt, inputs), "") << n << " x 8 x " << g << ", candidate " << wanted;
    }
    unsetenv("FUSEWRIGHT_EMULATOR_SEED");
    if (n > 100) {
      EXPECT_GE(emulator_count("emulator_cluster_launches"), before + 2) << n << " x 8 x " << g;
    }
  }
}

// Each vector that is sent counts as what it has, whatever room the widest of them takes.
TEST_F(Clusters, AddUpSumsOfTwoWidths) {
  const Graph graph = parse(
      "graph(%x: f32[n, 512]) { %1 = layer_norm(%x) {axes = 1, eps = 0.01} %2 = sum(%1) {dims = (0), keepdim = 0} %3 = "
      "mul(%1, %1) %4 = cast(%3) {dtype = f64} %5 = sum(%4) {dims = (0), keepdim = 0} %6 = cast(%5) {dtype = f32} "
      "return "
      "%1, %2, %6 }");
  const auto executable = compile(graph, {false});
  const uint64_t before = emulator_count("emulator_cluster_launches");
  std::mt19937 random(19);
  const std::vector<Array> inputs = random_inputs(graph, {{"n", 600}}, random);
  for (wanted = 0; wanted <= 6; ++wanted) EXPECT_EQ(disagreement(*executable, graph, {false}, inputs), "") << wanted;
  EXPECT_GE(emulator_count("emulator_cluster_launches"), before + 1);
}

// Short rows of a length that the graph knows have fewer variants; clusters are candidates all the same.
TEST_F(Clusters, AreCandidatesOfShortRows) {
  const Graph graph = parse(
      "graph(%x: f32[n, 128], %w: f32[128]) { %1 = group_norm(%x, %w) {groups = 32, eps = 0.01, has_weight = 1} %2 = "
      "silu(%1) return %2 }");
  const std::vector<bool> wrt{true, true};
  const auto executable = compile(graph, wrt);
  const uint64_t before = emulator_count("emulator_cluster_launches");
  std::mt19937 random(17);
  const std::vector<Array> inputs = random_inputs(graph, {{"n", 1500}}, random);
  for (wanted = 1; wanted <= 3; ++wanted) EXPECT_EQ(disagreement(*executable, graph, wrt, inputs), "") << wanted;
  EXPECT_GE(emulator_count("emulator_cluster_launches"), before + 1);
}

TEST_P(Candidates, AllAreRight) {
  const Graph graph = parse(GetParam().text);
  std::vector<bool> wrt;
  for (Value v : graph.inputs) wrt.push_back(is_float(graph.dtype(v)));
  const auto executable = compile(graph, wrt);
  for (const auto& sizes : GetParam().sizes) {
    std::mt19937 random(3);
    const std::vector<Array> inputs = random_inputs(graph, sizes, random);
    with_every_candidate([&] {
      EXPECT_EQ(disagreement(*executable, graph, wrt, inputs), "")
          << "candidate " << wanted << ", sizes of the first input " << ::testing::PrintToString(inputs[0].sizes);
    });
  }
  for (const auto& [kernel, count] : seen) {
    EXPECT_GE(count, 3u) << kernel;
    EXPECT_LE(count, 11u) << kernel;
  }
}

}  // namespace
}  // namespace fusewright::testing
