// Outputs that replace inputs: in place where that is possible, else by a copy; and never while kernels are timed.
#include "runtime/compiler/background.h"
#include "runtime/cuda/cuda_launch.h"
#include "support/emulator_counts.h"
#include "support/execute.h"

namespace fusewright::testing {
namespace {

std::string text_of(const std::string& shape) {
  return "graph(%x: f32[" + shape +
         "], %m: f32[c], %v: f32[c], %k: i64[]) { %1 = batch_norm(%x) {eps = 0.1} %2 = batch_norm_running_mean(%x, %m) "
         "{momentum = 0.1} %3 = batch_norm_running_var(%x, %v) {momentum = 0.1} %4: i64[] = constant() {value = 1, "
         "runtime = 1} %5 = add(%k, %4) return %1, %2! -> %m, %3! -> %v, %5! -> %k }";
}

// One call: the inputs as tensors, what they were, and what the outputs should be.
struct Call {
  Graph graph;
  std::vector<Array> arrays, expected;
  std::vector<Tensor> inputs;

  Call(const std::string& text, const std::map<std::string, int64_t>& sizes, const Layouts& layouts = {})
      : graph(parse(text)) {
    std::mt19937 random(5);
    arrays = random_inputs(graph, sizes, random);
    expected = interpret(graph, arrays);
    for (size_t i = 0; i < arrays.size(); ++i)
      inputs.push_back(to_tensor(arrays[i], i < layouts.size() ? layouts[i] : Layout{}));
  }

  void expect_updated(const std::vector<Tensor>& results) const {
    EXPECT_EQ(disagreement(results, expected, "output"), "") << print(graph);
    for (size_t i = 0; i < graph.outputs.size(); ++i) {
      if (graph.outputs[i].into < 0) continue;
      const Tensor& input = inputs[static_cast<size_t>(graph.outputs[i].into)];
      EXPECT_EQ(results[i].data, input.data);
      EXPECT_EQ(disagreement({input}, {expected[i]}, "buffer"), "") << print(graph);
    }
  }
  void expect_unchanged() const { EXPECT_EQ(disagreement(inputs, arrays, "input"), ""); }
};

// Records what a plan asks of the host beside kernels.
class Watching : public ForwardingHost {
 public:
  Watching() : ForwardingHost(backend_host()) {}
  Tensor call(const LibraryCall& call, const std::vector<Tensor>& operands) override {
    if (fails) fail("the library failed");
    return ForwardingHost::call(call, operands);
  }
  void named(const std::string&, const std::function<void()>& work) override { ++kernels, work(); }
  void copy(const Tensor& from, Tensor& to) override { ++copies, ForwardingHost::copy(from, to); }
  int kernels = 0, copies = 0;
  bool fails = false;
};

const std::map<std::string, int64_t> sizes_of_calls[] = {
    {{"n", 5}, {"c", 1}, {"h", 1}, {"w", 1}},     {{"n", 33}, {"c", 129}, {"h", 3}, {"w", 2}},
    {{"n", 300}, {"c", 64}, {"h", 1}, {"w", 7}},  {{"n", 3}, {"c", 2000}, {"h", 1}, {"w", 1}},
    {{"n", 9000}, {"c", 3}, {"h", 1}, {"w", 5}},  {{"n", 2}, {"c", 3}, {"h", 64}, {"w", 64}},
    {{"n", 1}, {"c", 2}, {"h", 300}, {"w", 300}},
};

TEST(Updates, InPlaceWithoutCopies) {
  for (const char* shape : {"n, c", "n, c, h, w"}) {
    const auto executable = compile(parse(text_of(shape)));
    for (const auto& sizes : sizes_of_calls) {
      Call call(text_of(shape), sizes);
      Watching host;
      Plan::Updates updates;
      call.expect_updated(executable->forward().run(host, call.inputs, {}, &updates));
      EXPECT_EQ(host.kernels, 1);
      EXPECT_EQ(host.copies, 0);
      EXPECT_TRUE(updates.begun);
    }
  }
}

TEST(Updates, AskedForOrNot) {
  Call call(text_of("n, c"), {{"n", 40}, {"c", 6}});
  const auto executable = compile(call.graph);
  EXPECT_EQ(disagreement(executable->forward().run(backend_host(), call.inputs, {}), call.expected, "output"), "");
  call.expect_unchanged();
}

TEST(Updates, WithGradients) {
  Call call(text_of("n, c, h, w"), {{"n", 4}, {"c", 6}, {"h", 5}});
  const auto executable = compile(call.graph, {true, false, false, false});
  Watching host;
  Plan::Updates updates;
  std::vector<Tensor> results = executable->forward().run(host, call.inputs, {}, &updates);
  results.resize(call.graph.outputs.size());
  call.expect_updated(results);
  EXPECT_EQ(host.copies, 0);
}

TEST(Updates, EveryCandidate) {
  if (!backend().cuda) GTEST_SKIP() << "launches have candidates on a GPU";
  static size_t wanted, most;
  set_candidate_hook([](const std::string&, size_t count) {
    most = std::max(most, count);
    return std::min(wanted, count - 1);
  });
  const uint64_t before = emulator_count("emulator_cluster_launches");
  for (const char* shape : {"n, c", "n, c, h, w"}) {
    const auto executable = compile(parse(text_of(shape)));
    for (const auto& sizes : sizes_of_calls) {
      most = 1;
      for (wanted = 0; wanted < most; ++wanted) {
        Call call(text_of(shape), sizes);
        Plan::Updates updates;
        call.expect_updated(executable->forward().run(backend_host(), call.inputs, {}, &updates));
      }
    }
  }
  set_candidate_hook(nullptr);
  EXPECT_GT(emulator_count("emulator_cluster_launches"), before);
}

TEST(Updates, ByCopyWhereTensorsShareMemoryOrLieOtherwise) {
  const auto executable = compile(parse(text_of("n, c")));
  {
    Call call(text_of("n, c"), {{"n", 40}, {"c", 6}});
    call.inputs[2] = call.inputs[1];  // both statistics in one place: the last one stays
    call.arrays[2] = call.arrays[1];
    call.expected = interpret(call.graph, call.arrays);
    Watching host;
    Plan::Updates updates;
    executable->forward().run(host, call.inputs, {}, &updates);
    EXPECT_EQ(host.copies, 2);
    EXPECT_EQ(disagreement({call.inputs[1]}, {call.expected[2]}, "buffer"), "");
  }
  {
    Call call(text_of("n, c"), {{"n", 40}, {"c", 6}});
    call.inputs[1].data = call.inputs[0].data;  // a part of the data: read before it is replaced
    call.arrays[1].data.assign(call.arrays[0].data.begin(), call.arrays[0].data.begin() + 6);
    call.expected = interpret(call.graph, call.arrays);
    Watching host;
    Plan::Updates updates;
    EXPECT_EQ(disagreement(executable->forward().run(host, call.inputs, {}, &updates), call.expected, "output"), "");
    EXPECT_EQ(host.copies, 1);
  }
  {
    Call call(text_of("n, c"), {{"n", 40}, {"c", 6}}, {{}, {{}, 2, 0, {}}});
    Watching host;
    Plan::Updates updates;
    call.expect_updated(executable->forward().run(host, call.inputs, {}, &updates));
    EXPECT_EQ(host.copies, 1);
  }
}

TEST(Updates, TellsWhatAFailureLeaves) {
  const std::string text =
      "graph(%x: f32[n, c], %m: f32[c], %w: f32[c, c]) { %1 = sum(%x) {dims = (0), keepdim = 1} %2 = reshape(%1) "
      "{sizes = [c]} %3 = add(%2, %m) %4 = mul(%x, %1) %5 = matmul(%4, %w) return %5, %3! -> %m }";
  const auto executable = compile(parse(text));
  Call call(text, {{"n", 4}, {"c", 5}});
  Watching host;
  host.fails = true;
  Plan::Updates updates;
  EXPECT_ERROR(executable->forward().run(host, call.inputs, {}, &updates), "the library failed");
  EXPECT_TRUE(updates.begun);
  EXPECT_ERROR(executable->forward().run(host, {call.inputs[0], call.inputs[1]}, {}, &(updates = {})), "are needed");
  EXPECT_FALSE(updates.begun);
}

TEST(Updates, ARowMustBeThereToCount) {
  const auto executable = compile(parse(text_of("n, c")));
  Call empty(text_of("n, c"), {{"n", 0}, {"c", 3}});
  Plan::Updates updates;
  empty.expect_updated(executable->forward().run(backend_host(), empty.inputs, {}, &updates));
  Call none(text_of("n, c"), {{"n", 3}, {"c", 0}});
  EXPECT_THROW(executable->forward().run(backend_host(), none.inputs, {}, &updates), SizeError);
}

TEST(Updates, TimingMovesNothing) {
  if (!backend().cuda) GTEST_SKIP() << "launches are timed on a GPU";
  cuda::set_key_salt(std::to_string(std::chrono::steady_clock::now().time_since_epoch().count()));
  Options options = backend();
  options.tune = true;
  Call call(text_of("n, c"), {{"n", 40}, {"c", 6}});
  const auto executable = Executable::compile(call.graph, {}, options);
  Background::instance().wait();  // all variants are there
  const uint64_t before = Tuner::instance().kernels_timed();
  Plan::Updates updates;
  call.expect_updated(executable->forward().run(backend_host(), call.inputs, {}, &updates));
  EXPECT_EQ(Tuner::instance().kernels_timed(), before + 1);
  cuda::set_key_salt("");
}

}  // namespace
}  // namespace fusewright::testing
