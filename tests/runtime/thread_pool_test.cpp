#include "runtime/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <stdexcept>

#include "test_support.h"

namespace fusewright {
namespace {

using namespace testing;

using Ranges = std::set<std::pair<int64_t, int64_t>>;

Ranges ranges_of(ThreadPool& pool, int64_t n, int64_t grain) {
  Ranges ranges;
  std::mutex mutex;
  pool.parallel_for(n, grain, [&](int64_t begin, int64_t end) {
    const std::lock_guard lock(mutex);
    EXPECT_TRUE(ranges.insert({begin, end}).second);
  });
  return ranges;
}

TEST(ThreadPool, RangesCoverEverythingOnce) {
  for (int threads : {1, 2, 3, 7}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.size(), threads);
    for (int64_t n : {1, 2, 3, 6, 7, 8, 1000, 1001}) {
      for (int64_t grain : {0, 1, 3, 400, 5000}) {
        int64_t next = 0;
        const Ranges ranges = ranges_of(pool, n, grain);
        for (const auto& [begin, end] : ranges) {
          ASSERT_EQ(begin, next);
          ASSERT_TRUE(end - begin >= grain || ranges.size() == 1);
          ASSERT_LT(begin, end);
          next = end;
        }
        ASSERT_EQ(next, n);
        ASSERT_LE(static_cast<int>(ranges.size()), threads);
      }
    }
  }
}

TEST(ThreadPool, RangesAreTheSameEachTime) {
  ThreadPool pool(3);
  EXPECT_EQ(ranges_of(pool, 10, 1), (Ranges{{0, 4}, {4, 7}, {7, 10}}));
  EXPECT_EQ(ranges_of(pool, 10, 5), (Ranges{{0, 5}, {5, 10}}));
  EXPECT_EQ(ranges_of(pool, 10, 6), (Ranges{{0, 10}}));
}

TEST(ThreadPool, NothingToDo) {
  ThreadPool pool(2);
  EXPECT_TRUE(ranges_of(pool, 0, 1).empty());
  EXPECT_TRUE(ranges_of(pool, -5, 1).empty());
}

TEST(ThreadPool, RunsInSeveralThreads) {
  ThreadPool pool(4);
  std::atomic<int> arrived{0};
  // Ends only if four threads are inside together.
  pool.parallel_for(4, 1, [&](int64_t, int64_t) {
    ++arrived;
    while (arrived < 4) std::this_thread::yield();
  });
  EXPECT_EQ(arrived, 4);
}

TEST(ThreadPool, ExceptionsReachTheCaller) {
  ThreadPool pool(4);
  for (int64_t bad = 0; bad < 4; ++bad) {
    EXPECT_THROW(pool.parallel_for(4, 1,
                                   [&](int64_t begin, int64_t) {
                                     if (begin == bad) throw std::out_of_range("bad");
                                   }),
                 std::out_of_range);
  }
  EXPECT_EQ(ranges_of(pool, 4, 1).size(), 4u);  // and the pool still works
}

TEST(ThreadPool, NestedCallsRunInline) {
  ThreadPool pool(4);
  std::atomic<int> inner{0};
  pool.parallel_for(4, 1, [&](int64_t, int64_t) {
    const auto self = std::this_thread::get_id();
    pool.parallel_for(100, 1, [&](int64_t begin, int64_t end) {
      EXPECT_EQ(std::this_thread::get_id(), self);
      EXPECT_EQ(end - begin, 100);
      inner += static_cast<int>(end - begin);
    });
    parallel_for(100, 1, [&](int64_t begin, int64_t end) { inner += static_cast<int>(end - begin); });
  });
  EXPECT_EQ(inner, 800);
  EXPECT_EQ(ranges_of(pool, 4, 1).size(), 4u);  // parallel again afterwards
}

TEST(ThreadPool, ManyCallersAtOnce) {
  ThreadPool pool(3);
  std::atomic<int64_t> sum{0};
  std::vector<std::thread> callers;
  for (int t = 0; t < 6; ++t) {
    callers.emplace_back([&] {
      for (int i = 0; i < 300; ++i) {
        pool.parallel_for(30, 1, [&](int64_t begin, int64_t end) { sum += end - begin; });
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(sum, 6 * 300 * 30);
}

TEST(ThreadPool, WorksInAForkedChild) {
  const ScopedVariable threads("FUSEWRIGHT_NUM_THREADS", "3");
  const auto count = [] {
    std::atomic<int64_t> sum{0};
    parallel_for(300, 1, [&](int64_t begin, int64_t end) { sum += end - begin; });
    return static_cast<int>(sum == 300 ? ThreadPool::instance().size() : 0);
  };
  const int here = count();
  EXPECT_GE(here, 1);
  EXPECT_EQ(run_in_child([&] {
              alarm(10);
              // A pool of its own: all its threads can be inside together.
              std::atomic<int> arrived{0};
              parallel_for(3, 1, [&](int64_t, int64_t) {
                ++arrived;
                while (arrived < 3) std::this_thread::yield();
              });
              return count();
            }),
            3);
}

TEST(ThreadPool, NumberFromTheEnvironment) {
  const LogCapture log;
  {
    const ScopedVariable threads("FUSEWRIGHT_TEST_NUMBER", "5");
    EXPECT_EQ(positive_from_environment("FUSEWRIGHT_TEST_NUMBER", 9), 5);
  }
  for (const char* bad : {"0", "-1", "x", "3x", "99999999999999999999"}) {
    const ScopedVariable threads("FUSEWRIGHT_TEST_NUMBER", bad);
    EXPECT_EQ(positive_from_environment("FUSEWRIGHT_TEST_NUMBER", 9), 9) << bad;
  }
  EXPECT_EQ(log.count("FUSEWRIGHT_TEST_NUMBER"), 5u);
  EXPECT_GE(available_processors(), 1);
}

}  // namespace
}  // namespace fusewright
