#pragma once
// What the compilers, the system's for CPUs and NVRTC for GPUs, have in common: what names a result, how they are
// counted, and that the same source is compiled once, whoever asks.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <mutex>
#include <semaphore>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

namespace fusewright {

struct CompileStats {
  uint64_t kernels_compiled = 0;
  uint64_t cache_hits = 0;   // loaded from disk
  uint64_t memory_hits = 0;  // loaded before, or by another thread at the same time
};

// All that decides a compiled kernel. `machine`: the processor and its instructions, or the exact GPU architecture.
struct KernelKey {
  std::string source, flags, compiler, machine, salt, version;

  std::string hex() const;
};

// Keeps a source for the user if FUSEWRIGHT_KEEP_SOURCES names a directory; returns where, or nothing.
std::string keep_source(const std::string& source, const std::string& file_name);

// Where that source is, for the end of a message about a failed compilation.
std::string where_source_is(const std::string& kept);

// Results by key, made by at most `jobs` threads at a time over all callers. They are kept as long as this lives.
template <class Result>
class CompileOnce {
 public:
  explicit CompileOnce(int jobs) : jobs_(jobs), slots_(jobs) {}

  // One result for each key, in order. make(i) is called, in parallel, for those that nobody has made or begun.
  std::vector<Result> get(const std::vector<std::string>& keys, const std::function<Result(size_t)>& make) {
    struct Task {
      size_t index;
      std::promise<Result> promise;
    };
    std::vector<std::shared_future<Result>> futures;
    std::vector<Task> tasks;  // what nobody has begun
    for (size_t i = 0; i < keys.size(); ++i) {
      const std::lock_guard lock(mutex_);
      auto [place, is_new] = results_.try_emplace(keys[i]);
      if (is_new) {
        tasks.push_back({i, {}});
        place->second = tasks.back().promise.get_future().share();
      } else {
        ++stats_.memory_hits;
      }
      futures.push_back(place->second);
    }

    std::atomic<size_t> next{0};
    const auto work = [&] {
      for (size_t i; (i = next++) < tasks.size();) {
        Task& task = tasks[i];
        try {
          task.promise.set_value(make(task.index));
        } catch (...) {
          {
            const std::lock_guard lock(mutex_);
            results_.erase(keys[task.index]);  // the next caller tries again: the disk may have space by then
          }
          task.promise.set_exception(std::current_exception());
        }
      }
    };
    std::vector<std::thread> helpers;
    try {
      const size_t wanted = std::min(tasks.size(), static_cast<size_t>(jobs_));
      while (helpers.size() + 1 < wanted) helpers.emplace_back(work);
    } catch (const std::system_error&) {
      // The system allows no more threads: those we have will do.
    }
    work();
    for (std::thread& helper : helpers) helper.join();

    std::vector<Result> results;
    for (const std::shared_future<Result>& future : futures) results.push_back(future.get());
    return results;
  }

  // Runs a compiler in one of the slots.
  template <class Function>
  auto in_slot(Function function) {
    struct Slot {
      explicit Slot(std::counting_semaphore<>& slots) : slots(slots) { slots.acquire(); }
      ~Slot() { slots.release(); }
      std::counting_semaphore<>& slots;
    } slot(slots_);
    return function();
  }

  void count_compiled() { add(&CompileStats::kernels_compiled); }
  void count_cache_hit() { add(&CompileStats::cache_hits); }
  CompileStats stats() const {
    const std::lock_guard lock(mutex_);
    return stats_;
  }

 private:
  void add(uint64_t CompileStats::*counter) {
    const std::lock_guard lock(mutex_);
    ++(stats_.*counter);
  }

  const int jobs_;
  std::counting_semaphore<> slots_;
  mutable std::mutex mutex_;
  std::map<std::string, std::shared_future<Result>> results_;  // made, or on the way
  CompileStats stats_;
};

}  // namespace fusewright
