// Timing and remembering, on the fake driver: its clock moves where a candidate says so.
#include "runtime/cuda/tuner.h"

#include <chrono>
#include <cmath>
#include <thread>

#include "cuda_support.h"
#include "runtime/cache/sha256.h"

namespace fusewright {
namespace {

using namespace testing;

class TunerTest : public CudaTest {
 protected:
  // Memory of the processor; notes when the cache is flushed.
  class FakeHost : public Host {
   public:
    explicit FakeHost(FakeCuda& cuda) : cuda_(cuda) {}
    void parallel_for(int64_t, int64_t, const std::function<void(int64_t, int64_t)>&) override {}
    void allocate(Tensor& tensor) override {
      if (out_of_memory) throw std::runtime_error("out of memory");
      bytes = tensor.elements();
      tensor.owner = std::make_shared<int>(0);
    }
    Tensor call(const LibraryCall&, const std::vector<Tensor>&) override { return {}; }
    int device() const override { return 0; }
    void* stream() override { return reinterpret_cast<void*>(0x20); }
    void clear(Tensor&) override {
      const std::lock_guard lock(cuda_.mutex);
      cuda_.calls.push_back("flush");
      cuda_.now += 30;
    }
    int64_t bytes = 0;
    bool out_of_memory = false;

   private:
    FakeCuda& cuda_;
  };

  // Candidates that take so many microseconds.
  std::optional<Tuner::Timing> time(std::vector<double> microseconds) {
    launches.assign(microseconds.size(), 0);
    return tuner.time(
        host, "kernel", microseconds.size(),
        [&](size_t i) {
          ++launches[i];
          if (microseconds[i] < 0) throw Error("no such launch");
          cuda.now += microseconds[i];
          const std::lock_guard lock(cuda.mutex);
          cuda.calls.push_back("launch " + std::to_string(i));
        },
        progress);
  }

  std::unique_ptr<cuda::Runtime> runtime = std::make_unique<cuda::Runtime>(options, cache);
  void TearDown() override {
    runtime.reset();
    CudaTest::TearDown();
  }
  Tuner tuner{*runtime, cache};
  FakeHost host{cuda};
  TuningProgress progress;
  std::vector<int> launches;
  const std::string key = sha256_hex("a kernel");
};

TEST_F(TunerTest, TakesTheFastest) {
  const auto timing = time({20, 10, 15});
  ASSERT_TRUE(timing);
  EXPECT_EQ(timing->fastest, 1u);
  EXPECT_NEAR(timing->microseconds[0], 20, 0.1);
  EXPECT_NEAR(timing->microseconds[1], 10, 0.1);
  EXPECT_EQ(launches, (std::vector<int>{4, 4, 4}));
  EXPECT_EQ(tuner.kernels_timed(), 1u);
  EXPECT_EQ(host.bytes, 2 * (50 << 20));
}

// A step of a region takes the host longer than a kernel, and longer yet behind a reset of the cache.
TEST_F(TunerTest, RegionsHaveAHeadStart) {
  std::vector<int> runs(2);
  const auto timing = tuner.time(
      host, "region", 2,
      // The first one takes tuning.
      [&](size_t i) { cuda.now += (i == 0 ? 100 : 90) + (runs[i]++ == 0 ? 10'000 : 0); }, progress, 1.02,
      Tuner::What::region);
  ASSERT_TRUE(timing);
  EXPECT_EQ(timing->fastest, 1u);
  EXPECT_NEAR(timing->microseconds[0], 100, 0.1);
  EXPECT_NEAR(timing->microseconds[1], 90, 0.1);
  EXPECT_EQ(runs, (std::vector<int>{4, 4}));
  EXPECT_EQ(cuda.count("flush"), 2 * 4 * 8);
  EXPECT_EQ(cuda.count("cuCtxResetPersistingL2Cache"), 0) << "the host would wait for it";
}

// The host takes longer than the device, and longer for what is faster. Its head start grows until that does not count,
// or might but hardly; what takes it forever is timed as it is.
TEST_F(TunerTest, TheDeviceDoesNotWaitForTheHost) {
  struct Step {
    double host, device;
  };
  std::vector<int> runs;
  auto time = [&](Tuner::What what, std::vector<Step> steps) {
    runs.assign(steps.size(), 0);
    return tuner.time(
        host, "region", steps.size(),
        [&](size_t i) {
          ++runs[i];
          const std::chrono::duration<double, std::micro> launching(steps[i].host);
          const auto begin = std::chrono::steady_clock::now();
          while (std::chrono::steady_clock::now() - begin < launching) {
          }
          cuda.host_now += steps[i].host;
          cuda.now = std::max(cuda.now, cuda.host_now) + steps[i].device;
        },
        progress, 1.02, what);
  };
  auto region = time(Tuner::What::region, {{400, 80}, {150, 130}});
  ASSERT_TRUE(region);
  EXPECT_EQ(region->fastest, 0u);
  EXPECT_NEAR(region->microseconds[0], 80, 0.1);
  EXPECT_NEAR(region->microseconds[1], 130, 0.1);
  EXPECT_EQ(runs, (std::vector<int>{5, 4}));

  auto kernel = time(Tuner::What::kernel, {{10, 9}, {70, 5}});
  ASSERT_TRUE(kernel);
  EXPECT_EQ(kernel->fastest, 1u);
  EXPECT_NEAR(kernel->microseconds[0], 9, 0.1);
  EXPECT_NEAR(kernel->microseconds[1], 5, 0.1);

  ASSERT_TRUE(time(Tuner::What::region, {{400, 200'000}, {400, 201'000}}));
  EXPECT_EQ(runs, (std::vector<int>{2, 2})) << "whether 0.4 ms are waiting";

  ASSERT_TRUE(time(Tuner::What::region, {{10'000, 80}, {10'000, 130}}));
  EXPECT_EQ(runs, (std::vector<int>{6, 2})) << "8, 16, 32, 64, 128 writes";
}

// Candidates that take milliseconds are sampled once: noise of microseconds does not matter, and a user would notice
// more.
TEST_F(TunerTest, SamplesLongCandidatesOnce) {
  const auto timing = time({4000, 3000});
  ASSERT_TRUE(timing);
  EXPECT_EQ(timing->fastest, 1u);
  EXPECT_EQ(launches, (std::vector<int>{2, 2}));
  // One that is long among short ones does not count.
  ASSERT_TRUE(time({20, 60'000, 22}));
  EXPECT_EQ(launches, (std::vector<int>{4, 2, 4}));
}

// The host pauses once, while one candidate runs: the one that is faster, or the one that is not.
TEST_F(TunerTest, APauseDecidesNothing) {
  for (const std::vector<double>& microseconds : {std::vector<double>{20'000, 300}, {4000, 3000}, {20, 22}})
    for (size_t disturbed : {0, 1})
      for (int at : {0, 1, 2}) {
        std::vector<int> runs(2);
        const auto timing = tuner.time(
            host, "kernel", 2,
            [&](size_t i) { cuda.now += microseconds[i] + (i == disturbed && runs[i]++ == at ? 25'000 : 0); },
            progress);
        ASSERT_TRUE(timing);
        EXPECT_EQ(timing->fastest, microseconds[0] < microseconds[1] ? 0u : 1u)
            << microseconds[0] << " and " << microseconds[1] << ", " << disturbed << " disturbed in run " << at;
      }
}

TEST_F(TunerTest, EndsWhenOneIsLeft) {
  ASSERT_TRUE(time({10, 25, 30}));
  EXPECT_EQ(launches, (std::vector<int>{2, 2, 2}));
}

TEST_F(TunerTest, FlushesBeforeEachSampleAndTimesOnlyTheCandidate) {
  time({20});
  std::vector<std::string> calls;
  for (const std::string& call : cuda.calls)
    for (const char* kind : {"cuCtxReset", "flush", "launch", "cuEvent"})
      if (call.starts_with(kind)) calls.push_back(call);
  // Lines that the cache was asked to hold would outlive the flush.
  const std::vector<std::string> once = {"cuCtxResetPersistingL2Cache",
                                         "flush",
                                         "cuEventCreate",
                                         "cuEventCreate",
                                         "cuEventRecord",
                                         "launch 0",
                                         "cuEventRecord",
                                         "cuEventQuery",
                                         "cuEventSynchronize",
                                         "cuEventElapsedTime",
                                         "cuEventDestroy",
                                         "cuEventDestroy"};
  ASSERT_EQ(calls.size(), 2 * once.size());
  for (size_t i = 0; i < calls.size(); ++i) EXPECT_EQ(calls[i], once[i % once.size()]) << i;
}

TEST_F(TunerTest, TheRuleWinsTies) {
  EXPECT_EQ(time({100, 98})->fastest, 0u);  // 2 %
  EXPECT_EQ(time({100, 90})->fastest, 1u);
  EXPECT_EQ(time({3.3, 3.0})->fastest, 0u);  // less than events can tell
}

TEST(Leanest, OfTheFastest) {
  const int64_t megabyte = 1 << 20;
  EXPECT_EQ(leanest_of_the_fastest({10, 10.1, 10.3}, 0, {4 * megabyte, megabyte, 0}), 1u) << "the third is slower";
  EXPECT_EQ(leanest_of_the_fastest({10.1, 10, 10.15}, 0, {4 * megabyte, 3 * megabyte, 0}), 2u);
  EXPECT_EQ(leanest_of_the_fastest({10, 10}, 0, {megabyte, 1000}), 0u) << "not worth it";
  EXPECT_EQ(leanest_of_the_fastest({10, 9}, 1, {0, 5 * megabyte}), 1u);
}

TEST_F(TunerTest, HopelessCandidatesAreNotSampledAgain) {
  EXPECT_EQ(time({10, 25, 19})->fastest, 0u);
  EXPECT_EQ(launches, (std::vector<int>{4, 2, 4}));
  EXPECT_EQ(time({30, 10})->fastest, 1u);  // the rule's is always sampled
  EXPECT_EQ(launches, (std::vector<int>{4, 4}));
}

TEST_F(TunerTest, ACandidateThatFailsIsOut) {
  const auto timing = time({20, -1, 10});
  EXPECT_EQ(timing->fastest, 2u);
  EXPECT_EQ(launches, (std::vector<int>{4, 1, 4}));
  EXPECT_TRUE(std::isinf(timing->microseconds[1]));
}

TEST_F(TunerTest, WhatCannotBeTimedIsLeftToTheRule) {
  EXPECT_FALSE(time({-1, 10}));
  for (const char* function :
       {"cuEventCreate", "cuEventRecord", "cuEventQuery", "cuEventSynchronize", "cuEventElapsedTime"}) {
    cuda.errors = {{function, 2}};
    EXPECT_FALSE(time({10, 20})) << function;
  }
  cuda.errors.clear();
  host.out_of_memory = true;
  EXPECT_FALSE(time({10, 20}));
  EXPECT_EQ(tuner.kernels_timed(), 0u);
  EXPECT_EQ(log.count(), 0u) << log.text();
}

TEST_F(TunerTest, ADeviceThatCannotResetItsCacheIsTimedAllTheSame) {
  cuda.errors = {{"cuCtxResetPersistingL2Cache", 801}};
  ASSERT_TRUE(time({20, 10}));
  EXPECT_EQ(time({20, 10})->fastest, 1u);
}

struct Choice {
  int a, b;
};

TEST_F(TunerTest, AnotherProcessRemembers) {
  EXPECT_FALSE(tuner.recall<Choice>(key));
  tuner.remember(key, Choice{3, 4});
  DiskCache other_cache{root};
  Tuner other(*runtime, other_cache);
  const auto found = other.recall<Choice>(key);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->a, 3);
  EXPECT_EQ(found->b, 4);
  EXPECT_FALSE(other.recall<int>(key)) << "of another length";
}

TEST_F(TunerTest, ADamagedRecordIsNone) {
  tuner.remember(key, Choice{3, 4});
  const std::string path = root + "/" + key + ".entry";
  std::string bytes = read_text(path);
  bytes.back() ^= 1;
  write_text(path, bytes);
  DiskCache other_cache{root};
  Tuner other(*runtime, other_cache);
  EXPECT_FALSE(other.recall<Choice>(key));
  EXPECT_EQ(log.count("has the wrong checksum"), 1u) << log.text();
  other.remember(key, Choice{5, 6});
  DiskCache third{root};
  EXPECT_EQ(Tuner(*runtime, third).recall<Choice>(key)->a, 5);
}

TEST_F(TunerTest, OneAtATime) {
  std::atomic<int> inside = 0, most = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i)
    threads.emplace_back([&] {
      const auto turn = tuner.turn();
      const int now = ++inside;
      if (now > most) most = now;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      --inside;
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(most, 1);
}

TEST_F(TunerTest, SaysWhenItTakesLong) {
  const auto launch = [](size_t) {};
  {
    TuningProgress patient;
    tuner.time(host, "kernel", 2, launch, patient);
  }
  EXPECT_EQ(log.count(), 0u) << log.text();
  {
    TuningProgress impatient{std::chrono::duration<double>(0)};
    tuner.time(host, "first", 2, launch, impatient);
    tuner.time(host, "second", 2, launch, impatient);
    EXPECT_EQ(log.count(), 1u) << log.text();
    EXPECT_EQ(log.count("timing the ways to run first"), 1u) << log.text();
  }
  EXPECT_EQ(log.count(), 2u);
  EXPECT_EQ(log.count("timed 2 choices in 0.0 s"), 1u) << log.text();
}

TEST_F(TunerTest, TheEnvironmentsSwitch) {
  EXPECT_TRUE((ScopedVariable("FUSEWRIGHT_TUNE", nullptr), Tuner::wanted_by_environment()));
  EXPECT_TRUE((ScopedVariable("FUSEWRIGHT_TUNE", "1"), Tuner::wanted_by_environment()));
  EXPECT_FALSE((ScopedVariable("FUSEWRIGHT_TUNE", "0"), Tuner::wanted_by_environment()));
}

}  // namespace
}  // namespace fusewright
