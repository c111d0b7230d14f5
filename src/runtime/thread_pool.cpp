#include "runtime/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <exception>
#include <system_error>

#include "base/log.h"
#include "runtime/posix.h"

namespace fusewright {
namespace {

thread_local bool inside_parallel_for = false;

}  // namespace

struct ThreadPool::Job {
  int64_t n;
  int64_t ranges;
  const RangeFunction& function;
  std::atomic<int64_t> next{0};
  std::atomic<bool> failed{false};
  std::mutex mutex;
  std::condition_variable all_done;
  int64_t done = 0;
  std::exception_ptr error;

  Job(int64_t n_, int64_t ranges_, const RangeFunction& function_) : n(n_), ranges(ranges_), function(function_) {}

  bool exhausted() const { return next.load() >= ranges; }

  // The first n % ranges ranges are one longer.
  int64_t begin_of(int64_t range) const { return range * (n / ranges) + std::min(range, n % ranges); }

  // Takes ranges until none is left. `function` is alive for as long as there is one to take, no longer.
  void help() {
    const bool nested = std::exchange(inside_parallel_for, true);
    for (int64_t range; (range = next.fetch_add(1)) < ranges;) {
      std::exception_ptr caught;
      if (!failed.load()) {
        try {
          function(begin_of(range), begin_of(range + 1));
        } catch (...) {
          caught = std::current_exception();
          failed.store(true);
        }
      }
      const std::lock_guard lock(mutex);
      if (caught && !error) error = caught;
      if (++done == ranges) all_done.notify_all();
    }
    inside_parallel_for = nested;
  }
};

ThreadPool::ThreadPool(int threads) {
  try {
    for (int i = 1; i < threads; ++i) workers_.emplace_back([this] { work(); });
  } catch (const std::system_error&) {
    // The system allows no more threads: those we have will do.
  }
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  job_added_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

ThreadPool& ThreadPool::instance() {
  return ProcessSingleton<ThreadPool>::get(
      [] { return new ThreadPool(positive_from_environment("FUSEWRIGHT_NUM_THREADS", available_processors())); });
}

void ThreadPool::work() {
  while (true) {
    std::shared_ptr<Job> job;
    {
      std::unique_lock lock(mutex_);
      job_added_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
      if (stopping_) return;
      job = jobs_.front();
      if (job->exhausted()) {
        jobs_.pop_front();
        continue;
      }
    }
    job->help();
  }
}

void ThreadPool::parallel_for(int64_t n, int64_t grain, const RangeFunction& function) {
  if (n <= 0) return;
  const int64_t ranges = std::clamp<int64_t>(n / std::max<int64_t>(grain, 1), 1, size());
  if (ranges == 1 || inside_parallel_for) {
    function(0, n);
    return;
  }
  const auto job = std::make_shared<Job>(n, ranges, function);
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(job);
  }
  job_added_.notify_all();
  // The caller takes ranges too, so the call ends even if every worker is busy with other callers' jobs.
  job->help();
  {
    std::unique_lock lock(job->mutex);
    job->all_done.wait(lock, [&] { return job->done == job->ranges; });
  }
  {
    const std::lock_guard lock(mutex_);
    std::erase(jobs_, job);
  }
  if (job->error) std::rethrow_exception(job->error);
}

void parallel_for(int64_t n, int64_t grain, const RangeFunction& function) {
  // One range needs no pool, and so starts no threads.
  if (n <= std::max<int64_t>(grain, 1) || inside_parallel_for) {
    if (n > 0) function(0, n);
    return;
  }
  ThreadPool::instance().parallel_for(n, grain, function);
}

int available_processors() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

int positive_from_environment(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == '\0') return otherwise;
  char* end = nullptr;
  const long value = std::strtol(text, &end, 10);
  if (*end == '\0' && value > 0 && value <= 4096) return static_cast<int>(value);
  log(LogLevel::warning, std::string(name) + " is not an integer from 1 to 4096 and is ignored");
  return otherwise;
}

}  // namespace fusewright
