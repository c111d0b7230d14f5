#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace fusewright {

// A range [begin, end) of the iterations.
using RangeFunction = std::function<void(int64_t, int64_t)>;

// The pool of the core when it runs alone; inside PyTorch the host supplies its own parallel_for.
class ThreadPool {
 public:
  explicit ThreadPool(int threads);  // the caller of parallel_for is one of them
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // FUSEWRIGHT_NUM_THREADS threads, else one per available processor.
  static ThreadPool& instance();

  // Cuts [0, n) into at most size() nearly equal ranges of at least `grain` iterations (fewer only if n is),
  // which depend on n, grain and size() alone. Returns when all are done; rethrows the first exception, after
  // which ranges not yet begun are skipped. A nested call runs in its caller's thread.
  void parallel_for(int64_t n, int64_t grain, const RangeFunction& function);

  int size() const { return static_cast<int>(workers_.size()) + 1; }

 private:
  struct Job;
  void work();

  std::mutex mutex_;
  std::condition_variable job_added_;
  std::deque<std::shared_ptr<Job>> jobs_;
  bool stopping_ = false;
  std::vector<std::thread> workers_;
};

void parallel_for(int64_t n, int64_t grain, const RangeFunction& function);

// The processors this process may use, at least 1; what taskset or a container withholds is not counted.
int available_processors();

// The positive integer in an environment variable, or `otherwise`.
int positive_from_environment(const char* name, int otherwise);

}  // namespace fusewright
