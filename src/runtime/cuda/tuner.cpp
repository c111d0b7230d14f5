#include "runtime/cuda/tuner.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "base/log.h"
#include "runtime/cuda/cuda_runtime.h"

namespace fusewright {
namespace {

constexpr int rounds = 3;          // samples of each candidate, after one that warms up
constexpr double long_us = 5'000;  // one is enough where a round takes as long: what disturbs it is shorter
constexpr double hopeless = 2;     // times slower than the fastest in their first two runs: not sampled again
// Times that memory is written before a candidate, while the host launches it: to begin with, and at most. On an H200
// 30 us each.
struct HeadStart {
  int first, longest;
};
constexpr HeadStart of_kernel{1, 8}, of_region{8, 128};
constexpr double noticeable = 0.1;     // part of a sample that the device may have waited: it is taken again
constexpr double resolution_us = 0.5;  // of events
constexpr double never = std::numeric_limits<double>::infinity();

double median(std::vector<double> samples) {
  if (samples.empty()) return never;
  std::sort(samples.begin(), samples.end());
  return samples[samples.size() / 2];
}

std::string text_of(std::chrono::duration<double> seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", seconds.count());
  return text;
}

}  // namespace

void TuningProgress::begin_choice() {
  if (choices_++ == 0) begin_ = std::chrono::steady_clock::now();
}

void TuningProgress::sampled(const std::string& kernel) {
  if (said_ || seconds() < patience_) return;
  said_ = true;
  log(LogLevel::warning, "timing the ways to run " + kernel +
                             " and others, once for tensors of about these sizes (FUSEWRIGHT_TUNE=0 chooses by rule)");
}

TuningProgress::~TuningProgress() {
  if (said_) log(LogLevel::warning, "timed " + std::to_string(choices_) + " choices in " + text_of(seconds()));
}

Tuner& Tuner::instance() {
  return ProcessSingleton<Tuner>::get([] { return new Tuner(cuda::Runtime::instance(), DiskCache::instance()); });
}

bool Tuner::wanted_by_environment() {
  const char* value = std::getenv("FUSEWRIGHT_TUNE");
  return value == nullptr || std::strcmp(value, "0") != 0;
}

bool Tuner::read(const std::string& key, std::span<std::byte> choice) {
  const auto bytes = cache_.get(key);
  if (!bytes || bytes->size() != choice.size()) return false;
  std::copy(bytes->begin(), bytes->end(), choice.begin());
  return true;
}

std::optional<Tuner::Timing> Tuner::time(Host& host, const std::string& kernel, size_t count,
                                         const std::function<void(size_t)>& launch, TuningProgress& progress,
                                         double clearly, What what) {
  progress.begin_choice();
  std::vector<std::vector<double>> samples(count);
  std::vector<double> warming_up(count, never);
  std::vector<bool> in(count, true);
  try {
    // Writing it leaves nothing else in the cache (once nothing is held there), and keeps the device busy until the
    // host has launched the candidate: as often as that takes.
    Tensor scratch;
    scratch.dtype = DType::u8;
    scratch.rank = 1;
    scratch.sizes[0] = std::max<int64_t>(2 * runtime_.device(host.device()).l2_bytes, 1);
    scratch.strides[0] = 1;
    host.allocate(scratch);
    const bool kernels = what == What::kernel;
    auto [head_start, longest] = kernels ? of_kernel : of_region;
    auto sample = [&](size_t i) {
      // Else writing leaves what kernels asked the cache to hold. Of a region the host takes 50 us and more longer
      // behind that.
      if (kernels) runtime_.let_l2_forget(host.device());
      for (int n = 0; n < head_start; ++n) host.clear(scratch);
      return runtime_.duration(host.device(), host.stream(), [&] { launch(i); });
    };
    // Candidates take turns: what disturbs the device, or its clock, meets all of them.
    for (int round = 0; round <= rounds; ++round) {
      for (size_t i = 0; i < count; ++i) {
        if (!in[i]) continue;
        try {
          cuda::Runtime::Duration time = sample(i);
          // The first run of all compiles and allocates, which no head start would cover.
          while (round > 0 && time.waited_at_most > noticeable * time.microseconds && head_start < longest) {
            head_start *= 2;
            time = sample(i);
          }
          if (round > 0)
            samples[i].push_back(time.microseconds);
          else
            warming_up[i] = time.microseconds;
        } catch (const std::exception& error) {
          if (i == 0) throw;
          log(LogLevel::debug, "candidate " + std::to_string(i) + " of " + kernel + ": " + error.what());
          in[i] = false;
          samples[i].clear();
        }
        progress.sampled(kernel);
      }
      if (round != 1) continue;
      // A pause of the host may have met one of the two runs of each, hardly both.
      std::vector<double> seen(count, never);
      for (size_t i = 0; i < count; ++i)
        if (!samples[i].empty()) seen[i] = std::min(warming_up[i], samples[i][0]);
      const double best = *std::min_element(seen.begin(), seen.end());
      for (size_t i = 0; i < count; ++i) in[i] = in[i] && seen[i] <= hopeless * best;
      in[0] = true;
      const auto left = std::count(in.begin(), in.end(), true);
      if (left > 1 && best * static_cast<double>(left) <= long_us) continue;
      for (size_t i = 0; i < count; ++i)
        if (!samples[i].empty()) samples[i][0] = seen[i];
      break;
    }
  } catch (const std::exception& error) {
    log(LogLevel::debug, kernel + " cannot be timed, the rule chooses: " + error.what());
    return std::nullopt;
  }
  ++timed_;
  Timing timing{0, {}};
  for (const auto& times : samples) timing.microseconds.push_back(median(times));
  const auto best = std::min_element(timing.microseconds.begin(), timing.microseconds.end());
  if (timing.microseconds[0] > clearly * *best + resolution_us)
    timing.fastest = static_cast<size_t>(best - timing.microseconds.begin());
  return timing;
}

size_t leanest_of_the_fastest(const std::vector<double>& times, size_t fastest, const std::vector<int64_t>& bytes) {
  constexpr double as_fast = 1.02;
  constexpr int64_t worth_it = 1 << 20;
  size_t best = fastest;
  for (size_t i = 0; i < times.size(); ++i)
    if (times[i] <= as_fast * times[fastest] && bytes[i] + worth_it <= bytes[best]) best = i;
  return best;
}

}  // namespace fusewright
