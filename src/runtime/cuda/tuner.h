#pragma once
// Which of several ways to run a kernel is the fastest: timed once on the device, then remembered.
#include <atomic>
#include <bit>
#include <chrono>
#include <cstddef>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "fusewright/host.h"
#include "runtime/cache/disk_cache.h"

namespace fusewright {

namespace cuda {
class Runtime;
}

// Hashes of shapes that are the same in every process: a number mixed in, a size as the power of two that it goes up
// to.
inline void mix(uint64_t& hash, uint64_t n) {
  hash = (hash ^ n) * 0x9e3779b97f4a7c15;
  hash ^= hash >> 29;
}
inline void mix_size(uint64_t& hash, int64_t size) {
  mix(hash, static_cast<uint64_t>(std::bit_width(static_cast<uint64_t>(size - 1))));
}

// What one call of a region spends on timing. Says so while it lasts, if it is long enough to be noticed.
class TuningProgress {
 public:
  explicit TuningProgress(std::chrono::duration<double> patience = std::chrono::seconds(1)) : patience_(patience) {}
  ~TuningProgress();
  TuningProgress(const TuningProgress&) = delete;
  TuningProgress& operator=(const TuningProgress&) = delete;

  void begin_choice();
  void sampled(const std::string& kernel);

 private:
  std::chrono::duration<double> seconds() const { return std::chrono::steady_clock::now() - begin_; }

  const std::chrono::duration<double> patience_;
  std::chrono::steady_clock::time_point begin_;
  int choices_ = 0;
  bool said_ = false;
};

// Of those that are as fast as the fastest, as far as timing can tell, the one whose buffers are smaller by more than
// is worth mentioning.
size_t leanest_of_the_fastest(const std::vector<double>& times, size_t fastest, const std::vector<int64_t>& bytes);

// Threads may share it.
class Tuner {
 public:
  Tuner(cuda::Runtime& runtime, DiskCache& cache) : runtime_(runtime), cache_(cache) {}
  static Tuner& instance();

  // FUSEWRIGHT_TUNE=0 leaves all choices to the rules.
  static bool wanted_by_environment();

  // Held while something is timed, so that two do not disturb each other; whoever waited looks first whether the answer
  // is there by now.
  [[nodiscard]] std::unique_lock<std::mutex> turn() { return std::unique_lock(mutex_); }

  // What was chosen before, by this process or another. The key: a SHA-256 of all that decides it. Nothing if that
  // cannot be read or is not as long as it must be.
  template <class Choice>
  std::optional<Choice> recall(const std::string& key) {
    Choice choice;
    return read(key, std::as_writable_bytes(std::span(&choice, 1))) ? std::optional(choice) : std::nullopt;
  }
  template <class Choice>
  void remember(const std::string& key, const Choice& choice) {
    cache_.put(key, std::as_bytes(std::span(&choice, 1)));
  }

  // Times candidates on the host's device and stream, each with nothing of its operands in the L2 cache; launch(i) puts
  // candidate i there and may be called any number of times. Returns the fastest; the first, which is the rule's, if no
  // other is faster by the factor `clearly`; nothing if it cannot be timed. A candidate that throws is out.
  // The host has a head start that is long enough for the device not to wait for it, unless that takes milliseconds: a
  // step of a region takes the host as long as the device or longer, but in a model it is ahead. (What a region's
  // kernels asked the cache to hold may be there.)
  enum class What { kernel, region };
  struct Timing {
    size_t fastest;
    std::vector<double> microseconds;  // medians, infinite where a candidate was given up
  };
  std::optional<Timing> time(Host& host, const std::string& kernel, size_t count,
                             const std::function<void(size_t)>& launch, TuningProgress& progress, double clearly = 1.02,
                             What what = What::kernel);

  uint64_t kernels_timed() const { return timed_; }

 private:
  bool read(const std::string& key, std::span<std::byte> choice);

  cuda::Runtime& runtime_;
  DiskCache& cache_;
  std::mutex mutex_;
  std::atomic<uint64_t> timed_ = 0;
};

}  // namespace fusewright
