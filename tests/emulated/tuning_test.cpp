// When launches are timed, and when the rule chooses.
#include <atomic>
#include <future>
#include <map>
#include <set>
#include <thread>

#include "runtime/compiler/background.h"
#include "runtime/cuda/cuda_launch.h"
#include "support/execute.h"

namespace fusewright::testing {
namespace {

class Tuning : public ::testing::Test {
 protected:
  // Kernels, and with them records of timing, that no other test and no earlier run has.
  Tuning() {
    forget_kernels();
    executable = make(true);
    Background::instance().wait();
  }
  ~Tuning() override { cuda::set_key_salt(""); }

  static void forget_kernels() {
    cuda::set_key_salt(std::to_string(std::chrono::steady_clock::now().time_since_epoch().count()));
  }
  static std::shared_ptr<const Executable> make(bool tune) {
    Options options = backend();
    options.tune = tune;
    return Executable::compile(parse("graph(%x: f32[n, c]) { %1 = exp(%x) %2 = mul(%1, %x) return %2 }"), {}, options);
  }
  // How many kernels a call times.
  static uint64_t timed(const Executable& executable, int64_t rows, int64_t columns, Host& host = backend_host()) {
    const uint64_t before = Tuner::instance().kernels_timed();
    const Array x(DType::f32, {rows, columns}, 0.5);
    const Tensor y = executable.forward().run(host, {to_tensor(x)}, {})[0];
    for (double value : to_array(y).data) EXPECT_NEAR(value, 0.5 * std::exp(0.5), 1e-6);
    return Tuner::instance().kernels_timed() - before;
  }
  std::shared_ptr<const Executable> executable;
};

TEST_F(Tuning, OncePerBucket) {
  EXPECT_EQ(timed(*executable, 3, 100), 1u);
  EXPECT_EQ(timed(*executable, 3, 100), 0u);
  EXPECT_EQ(timed(*executable, 3, 120), 0u) << "up to the same power of two";
  EXPECT_EQ(timed(*executable, 3, 101), 1u) << "no vectors";
  EXPECT_EQ(timed(*executable, 3, 400), 1u);
  EXPECT_EQ(timed(*executable, 3, 0), 0u) << "nothing to launch";
  EXPECT_EQ(timed(*executable, 3, 100), 0u);
}

TEST_F(Tuning, WhenAllVariantsAreThere) {
  forget_kernels();
  std::promise<void> begin;
  const std::shared_future<void> begun = begin.get_future().share();
  for (int i = 0; i < 256; ++i) Background::instance().add([begun] { begun.wait(); });  // more than it has threads
  const auto late = make(true);
  EXPECT_FALSE(late->complete());
  for (int i = 0; i < 2; ++i) EXPECT_EQ(timed(*late, 3, 100), 0u);
  EXPECT_EQ(timed(*late, 3, 101), 0u) << "no vectors: the variant is not there, and is compiled now";
  begin.set_value();
  Background::instance().wait();
  EXPECT_TRUE(late->complete());
  EXPECT_EQ(timed(*late, 3, 100), 1u);
  EXPECT_EQ(timed(*late, 3, 101), 1u);
  EXPECT_EQ(timed(*late, 3, 100), 0u);
}

// Variants that another plan has brought are there while the list of those to ask for is still being gone through.
TEST_F(Tuning, VariantsThatAreThereAtOnce) {
  const Graph graph = parse("graph(%x: f32[n, c]) { %1 = softmax(%x) {dim = 1} %2 = exp(%1) return %2 }");
  std::vector<std::shared_ptr<const Executable>> all;
  for (int i = 0; i < 40; ++i) all.push_back(Executable::compile(graph, {true}, backend()));
  Background::instance().wait();
  for (const auto& each : all) EXPECT_TRUE(each->complete());
}

TEST_F(Tuning, RememberedForOtherPlansOfTheKernel) {
  EXPECT_EQ(timed(*executable, 3, 100), 1u);
  EXPECT_EQ(timed(*make(true), 3, 100), 0u);
}

TEST_F(Tuning, SwitchedOff) {
  EXPECT_EQ(timed(*make(false), 3, 100), 0u);
  EXPECT_EQ(timed(*compile(parse("graph(%x: f32[n, c]) { %1 = exp(%x) %2 = mul(%1, %x) return %2 }")), 3, 100), 0u)
      << "by FUSEWRIGHT_TUNE";
}

// Ways to share columns among blocks differ in what they leave for the second stage to add up.
TEST_F(Tuning, EveryCandidateIsLaunched) {
  struct Recording : ForwardingHost {
    Recording() : ForwardingHost(backend_host()) {}
    void allocate(Tensor& tensor) override {
      sizes.insert(tensor.elements());
      ForwardingHost::allocate(tensor);
    }
    std::set<int64_t> sizes;
  };
  const Graph graph = parse("graph(%x: f32[n, c]) { %1 = batch_norm(%x) {eps = 0.01} %2 = silu(%1) return %2 }");
  std::mt19937 random(31);
  const std::vector<Array> inputs = random_inputs(graph, {{"n", 1024}, {"c", 40}}, random);
  std::map<bool, size_t> sizes;
  for (bool tune : {false, true}) {
    Options options = backend();
    options.tune = tune;
    const auto plan = Executable::compile(graph, {}, options);
    Background::instance().wait();
    Recording host;
    plan->forward().run(host, {to_tensor(inputs[0])}, {});
    sizes[tune] = host.sizes.size();
  }
  EXPECT_GE(sizes[true], sizes[false] + 3) << "one of them to write over the cache with";
}

TEST_F(Tuning, DeterministicHostsGetTheRule) {
  struct Deterministic : ForwardingHost {
    Deterministic() : ForwardingHost(backend_host()) {}
    bool deterministic() const override { return true; }
  } host;
  EXPECT_EQ(timed(*executable, 3, 100, host), 0u);
  EXPECT_EQ(timed(*executable, 3, 100), 1u) << "nothing was remembered";
}

TEST_F(Tuning, NeverWhileAGraphIsRecorded) {
  setenv("FUSEWRIGHT_EMULATOR_CAPTURING", "1", 1);
  EXPECT_EQ(timed(*executable, 3, 100), 0u);
  unsetenv("FUSEWRIGHT_EMULATOR_CAPTURING");
  EXPECT_EQ(timed(*executable, 3, 100), 1u) << "nothing was remembered";
  setenv("FUSEWRIGHT_EMULATOR_CAPTURING", "1", 1);
  EXPECT_EQ(timed(*make(true), 3, 100), 0u) << "what is known is used";
  unsetenv("FUSEWRIGHT_EMULATOR_CAPTURING");
}

TEST_F(Tuning, ThreadsTimeOnce) {
  const uint64_t before = Tuner::instance().kernels_timed();
  std::vector<std::thread> threads;
  for (int i = 0; i < 6; ++i) threads.emplace_back([&] { timed(*executable, 5, 300); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(Tuner::instance().kernels_timed() - before, 1u);
}

}  // namespace
}  // namespace fusewright::testing
