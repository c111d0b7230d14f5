#include "runtime/contest.h"

#include "base/log.h"
#include "runtime/cache/sha256.h"
#include "runtime/contraction/contest.h"
#include "runtime/contraction/convolution_kernels.h"
#include "runtime/contraction/product_kernels.h"
#include "runtime/cuda/cuda.h"
#include "runtime/cuda/tuner.h"

namespace fusewright {
namespace {

uint64_t place_of(uint64_t bucket, int gpu) {
  mix(bucket, static_cast<uint64_t>(gpu));
  return bucket;
}

}  // namespace

std::string Contest::key(uint64_t bucket, int gpu) const {
  const cuda::Device& device = cuda::device(gpu);
  return Sha256()
      .update_field("region against eager 5")
      .update_field(cuda::key_of(ProductKernels::source(), device.architecture))
      .update_field(
          cuda::key_of(ConvolutionKernels::source(DType::f32, ConvolutionKernels::result, 0), device.architecture))
      .update_field(std::to_string(static_cast<int>(wanted_variant(product_variable))))
      .update_field(std::to_string(static_cast<int>(wanted_variant(convolution_variable))))
      .update_field(cuda::key_of(print(graph_), device.architecture))
      .update_field(device.name)
      .update_field(std::to_string(device.multiprocessors))
      .update_field(std::to_string(bucket))
      .hex();
}

std::optional<Contest::Winner> Contest::known(uint64_t bucket, int gpu) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = winners_.find(place_of(bucket, gpu));
  return found == winners_.end() ? std::nullopt : std::optional(found->second);
}

std::optional<Contest::Winner> Contest::recorded(uint64_t bucket, int gpu) const {
  const auto winner = Tuner::instance().recall<Winner>(key(bucket, gpu));
  return winner && (*winner == Winner::region || *winner == Winner::eager) ? winner : std::nullopt;
}

Contest::Winner Contest::decide(Host& host, uint64_t bucket, const std::function<bool()>& complete,
                                const std::function<void(size_t)>& run) {
  const std::lock_guard<std::mutex> turn(one_at_a_time_);
  const int gpu = host.device();
  if (const auto winner = known(bucket, gpu)) return *winner;
  Winner winner = Winner::region;
  if (const auto found = recorded(bucket, gpu)) {
    winner = *found;
  } else if (!complete()) {
    return Winner::region;  // a later call decides
  } else {
    TuningProgress progress;
    Tuner& tuner = Tuner::instance();
    const auto timing = tuner.time(host, name_, 2, run, progress, 1.05, Tuner::What::region);
    if (timing) {
      if (timing->fastest == 1) winner = Winner::eager;
      tuner.remember(key(bucket, gpu), winner);
      log(LogLevel::debug, name_ + ": fused " + std::to_string(timing->microseconds[0]) + " us, eager " +
                               std::to_string(timing->microseconds[1]) + " us");
    }
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  return winners_[place_of(bucket, gpu)] = winner;
}

}  // namespace fusewright
