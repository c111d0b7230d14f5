// A kind of kernel that only tests know goes through all stages, in both dialects: nothing outside its own files and
// the list of schedules may have to know it.
#include "support/toy/toy_schedule.h"

#include <chrono>

#include "emit/describe.h"
#include "runtime/compiler/background.h"
#include "support/execute.h"

namespace fusewright::testing {
namespace {

const char* const negated = "graph(%x: f32[n]) { %1 = neg(%x) return %1 }";

Options in(Dialect dialect) {
  Options options;
  options.cuda = dialect == Dialect::cuda;
  return options;
}

Host& host_for(Dialect dialect) { return dialect == Dialect::cuda ? backend_host() : plain_host(); }

std::string name_of_schedule(const Plan& plan) { return plan.steps().at(0).launcher->code().schedule; }

class ToySchedule : public ::testing::TestWithParam<Dialect> {
 protected:
  const WithToys with_toys;
};
INSTANTIATE_TEST_SUITE_P(, ToySchedule, ::testing::Values(Dialect::cpp, Dialect::cuda),
                         [](const auto& info) { return info.param == Dialect::cpp ? "cpp" : "cuda"; });

// Forward and backward, for several sizes and strides.
TEST_P(ToySchedule, ComputesWhatTheGraphSays) {
  const Graph graph = parse(negated);
  const auto executable = Executable::compile(graph, {true}, in(GetParam()));
  EXPECT_EQ(name_of_schedule(executable->forward()), "toy");
  EXPECT_EQ(name_of_schedule(executable->backward()), "toy");
  const Layout strided{{}, 3, 0, {}};
  std::mt19937 random(3);
  for (int64_t n : {0, 1, 37, 256, 1000})
    for (const Layout& layout : {Layout{}, strided}) {
      const std::vector<Array> inputs = random_inputs(graph, {{"n", n}}, random);
      EXPECT_EQ(disagreement(*executable, graph, {true}, inputs, {layout}, 1, host_for(GetParam())), "") << n;
    }
  if (GetParam() == Dialect::cpp)
    EXPECT_EQ(toy_counts.cpu, 20);
  else
    EXPECT_EQ(toy_counts.cuda, (std::map<int, int>{{1, 16}}));  // nothing is launched for no elements
}

TEST_P(ToySchedule, LeavesOtherKernelsToTheOthers) {
  const auto executable = Executable::compile(parse("graph(%x: f32[n, m], %y: f32[n]) { %1 = neg(%x) %2 = neg(%y) %3 = "
                                                    "softmax(%1) {dim = 1} return %3, %2 }"),
                                              {}, in(GetParam()));
  std::vector<std::string> names;
  for (const Plan::Step& step : executable->forward().steps()) names.push_back(step.launcher->code().schedule);
  std::sort(names.begin(), names.end());
  EXPECT_EQ(names, (std::vector<std::string>{"row", "toy"}));
}

TEST_P(ToySchedule, IsReported) {
  const auto executable = Executable::compile(parse(negated), {}, in(GetParam()));
  const std::vector<Plan::KernelReport> reports = executable->forward().kernels();
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_EQ(reports[0].code->schedule, "toy");
  EXPECT_NE(reports[0].code->text.find(reports[0].code->name), std::string::npos);
  EXPECT_EQ(reports[0].bytes_read, reports[0].bytes_written);
}

// A table of its own and the headers that run it: nothing of what walks over elements.
TEST_P(ToySchedule, IsDescribedForFiles) {
  Program program;
  program.forward = parse(negated);
  program.options = in(GetParam());
  run_pipeline(program);
  const Plan plan(program.forward, program.forward_fusion, program.options.cuda);
  const DescribedPlan described = describe(plan, program.forward_fusion);
  ASSERT_EQ(described.kernels.size(), 1u);
  const DescribedKernel& kernel = described.kernels[0];
  EXPECT_EQ(kernel.schedule, "toy");
  EXPECT_EQ(kernel.runner, GetParam() == Dialect::cuda ? "ToyCudaKernel" : "ToyCpuKernel");
  ASSERT_EQ(kernel.headers.size(), 2u);
  EXPECT_EQ(kernel.headers[0].name, "toy_rules");
  EXPECT_NE(kernel.headers[1].text.find("class " + kernel.runner), std::string::npos);
  EXPECT_NE(kernel.table.find("k.operands"), std::string::npos);
  EXPECT_EQ(kernel.table.find("nest."), std::string::npos);
  EXPECT_EQ(kernel.table.find("cuda."), std::string::npos);
  ASSERT_EQ(kernel.variants.size(), 1u);
  EXPECT_EQ(kernel.variants[0].entries, std::vector<std::string>{kernel.name});
  EXPECT_EQ(kernel.texts.at(kernel.variants[0].text), plan.kernels()[0].code->text);
  EXPECT_EQ(kernel.sizes, std::vector<std::string>{"n"});
}

// What no kind takes is told by the first that names a reason.
TEST_P(ToySchedule, NamesItsReasons) {
  Program program = program_of(
      "graph(%x: i32[n, c]) { %1 = sum(%x) {dims = (1), keepdim = 1} %2 = mul(%x, %1) %3 = sum(%2) {dims = (0), "
      "keepdim "
      "= 0} return %2, %3 }");
  program.options = in(GetParam());
  run_pipeline(program);
  std::vector<std::string> reasons;
  for (const Stop& stop : program.forward_fusion.stops) reasons.push_back(stop.reason);
  EXPECT_EQ(std::count(reasons.begin(), reasons.end(), "toys_sum_nothing"), 1) << ::testing::PrintToString(reasons);
}

// Its own candidates are timed, once for sizes up to the same power of two; other processes and plans recall the
// choice.
TEST(ToyTuning, TimesTheKindsOwnCandidates) {
  const WithToys with_toys;
  cuda::set_key_salt(std::to_string(std::chrono::steady_clock::now().time_since_epoch().count()));
  Options options = in(Dialect::cuda);
  options.tune = true;
  const auto timed = [&](const Executable& executable, int64_t n) {
    const uint64_t before = Tuner::instance().kernels_timed();
    const Tensor y = executable.forward().run(backend_host(), {to_tensor(Array(DType::f32, {n}, 0.5))}, {})[0];
    for (double value : to_array(y).data) EXPECT_EQ(value, -0.5);
    return Tuner::instance().kernels_timed() - before;
  };
  const auto executable = Executable::compile(parse(negated), {}, options);
  EXPECT_EQ(timed(*executable, 100), 1u);
  EXPECT_GT(toy_counts.cuda[1], 0);
  EXPECT_GT(toy_counts.cuda[4], 0);
  EXPECT_EQ(timed(*executable, 120), 0u);
  EXPECT_EQ(timed(*executable, 300), 1u);
  EXPECT_EQ(timed(*Executable::compile(parse(negated), {}, options), 100), 0u);
  cuda::set_key_salt("");
}

}  // namespace
}  // namespace fusewright::testing
