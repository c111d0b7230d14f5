#include "runtime/contraction/contest.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>
#include <mutex>
#include <set>

#include "base/log.h"
#include "runtime/cache/sha256.h"
#include "runtime/compiler/background.h"
#include "runtime/cuda/cuda.h"
#include "runtime/cuda/tuner.h"
#include "runtime/plan/geometry.h"
#include "runtime/posix.h"

namespace fusewright {
namespace {

// Part of what names a record on disk: count it up when a choice comes to mean something else.
constexpr const char* choice_format = "contraction 3";
// A rule that is not sure takes the library. Where our model is far behind the library's, timing would be of no use:
// the library's time is hard to tell (bench/results/gpu_convolutions.md).
constexpr double clearly = 1.15, hopeless = 4;
// Times the library's own error that ours may have: what the judge allows (docs/numerics.md).
constexpr double allowed_error = 2;

// What was chosen in this process, by device and sizes, and what failed.
template <class Variant>
class Choices {
 public:
  static Choices& instance() {
    return ProcessSingleton<Choices>::get([] { return new Choices; });
  }
  std::optional<Variant> find(uint64_t place) const {
    const std::lock_guard lock(mutex_);
    const auto found = known_.find(place);
    return found == known_.end() ? std::nullopt : std::optional(found->second);
  }
  void add(uint64_t place, Variant variant) {
    const std::lock_guard lock(mutex_);
    known_[place] = variant;
  }
  bool failed(uint64_t place) const {
    const std::lock_guard lock(mutex_);
    return failed_.count(place) != 0;
  }
  bool add_failed(uint64_t place) {  // whether it is new
    const std::lock_guard lock(mutex_);
    return failed_.insert(place).second;
  }

 private:
  mutable std::mutex mutex_;
  std::map<uint64_t, Variant> known_;
  std::set<uint64_t> failed_;
};

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

}  // namespace

WantedVariant wanted_variant(const char* variable) {
  const char* text = std::getenv(variable);
  const std::string wanted = text == nullptr ? "" : text;
  return wanted == "library" ? WantedVariant::library : wanted == "own" ? WantedVariant::own : WantedVariant::any;
}

Tensor ContestLauncher::make_result(Host& host, const std::vector<const Tensor*>& operands,
                                    TuningProgress* progress) const {
  const auto library = [&] { return LibraryLauncher::make_result(host, operands, nullptr); };
  const WantedVariant want = wanted();
  if (want == WantedVariant::library || host.device() < 0) return library();
  Tensor result = *operands.back();
  result.owner.reset();
  set_strides(result, result_order());
  const std::shared_ptr<const OwnContraction> ours = own(host, operands, result);
  if (ours == nullptr) return library();
  const bool must = want == WantedVariant::own;
  if (!must && ours->own_microseconds() > hopeless * ours->library_microseconds()) return library();
  uint64_t place = ours->bucket();
  mix(place, static_cast<uint64_t>(host.device()));
  if (Choices<Variant>::instance().failed(place) || !is_ready(host, ours)) return library();
  if (!must && choose(host, *ours, operands, result, progress, place) == Variant::library) return library();
  try {
    return run(host, *ours, result);
  } catch (const std::exception& error) {
    // No memory for the workspace, above all: the library's kernels may need none.
    if (Choices<Variant>::instance().add_failed(place))
      log(LogLevel::warning,
          "the library computes " + ours->what() + " from now on, because ours failed: " + first_line(error.what()));
    return library();
  }
}

bool ContestLauncher::complete() const {
  const std::lock_guard lock(mutex_);
  return waits_for_ == nullptr || waits_for_->settled(waits_on_);
}

// While the kernels are compiled the library computes, unless results must not depend on time.
bool ContestLauncher::is_ready(Host& host, const std::shared_ptr<const OwnContraction>& own) const {
  if (own->ready(host.device())) return true;
  const bool captures = cuda::is_capturing(host.stream());
  if (host.deterministic() && !captures) {
    Background::instance().wait();
    return own->ready(host.device());
  }
  {
    const std::lock_guard lock(mutex_);
    waits_for_ = own;
    waits_on_ = host.device();
  }
  if (captures && !complete() && !told_.exchange(true))
    log(LogLevel::warning, "the library computes " + own->what() +
                               " in a CUDA graph: our kernels were still being compiled when it was captured. Call the "
                               "model a few times before");
  return false;
}

Tensor ContestLauncher::run(Host& host, const OwnContraction& own, const Tensor& sizes) const {
  constexpr uintptr_t alignment = 1024;
  Tensor result = sizes;
  host.allocate(result);
  Tensor workspace;
  workspace.dtype = DType::u8;
  workspace.rank = 1;
  workspace.sizes[0] = own.workspace_bytes() + static_cast<int64_t>(alignment);
  workspace.strides[0] = 1;
  host.allocate(workspace);
  const auto address = reinterpret_cast<uintptr_t>(workspace.data);
  char* const aligned = static_cast<char*>(workspace.data) + (alignment - address % alignment) % alignment;
  host.named(own.kernel(), [&] { own.launch(host, aligned, result.data); });
  return result;
}

// The library may compute in full float32 where it is allowed not to: then ours must not be less accurate. Nothing: the
// numbers of this call do not tell.
std::optional<bool> ContestLauncher::is_accurate(Host& host, const OwnContraction& own,
                                                 const std::vector<const Tensor*>& operands,
                                                 const Tensor& result) const {
  if (!own.approximates()) return true;
  double ours = 0, theirs = 0;
  try {
    const Tensor exact = library_result(host, operands, true);
    theirs = host.distance(library_result(host, operands, false), exact);
    ours = host.distance(run(host, own, result), exact);
  } catch (const std::exception& error) {  // no memory for so many results, above all
    log(LogLevel::debug, own.what() + " cannot be compared: " + first_line(error.what()));
    return std::nullopt;
  }
  if (!std::isfinite(ours) || !std::isfinite(theirs)) return std::nullopt;
  log(LogLevel::debug, own.what() + ": error " + std::to_string(ours) + ", the library's " + std::to_string(theirs));
  return ours <= std::max(allowed_error * theirs, double{std::numeric_limits<float>::epsilon()});
}

ContestLauncher::Variant ContestLauncher::choose(Host& host, const OwnContraction& own,
                                                 const std::vector<const Tensor*>& operands, const Tensor& result,
                                                 TuningProgress* progress, uint64_t place) const {
  // A rule cannot know how accurate the library is.
  const bool faster = own.own_microseconds() * clearly < own.library_microseconds();
  const Variant by_rule = faster && !own.approximates() ? Variant::own : Variant::library;
  if (progress == nullptr || host.deterministic()) return by_rule;
  auto& choices = Choices<Variant>::instance();
  if (const auto known = choices.find(place)) return *known;
  if (cuda::is_capturing(host.stream())) return by_rule;

  Tuner& tuner = Tuner::instance();
  const auto turn = tuner.turn();
  if (const auto known = choices.find(place)) return *known;  // another thread was first
  const cuda::Device& device = cuda::device(host.device());
  const std::string key = Sha256()
                              .update_field(choice_format)
                              .update_field(own.version())
                              .update_field(device.name)
                              .update_field(std::to_string(device.multiprocessors))
                              .update_field(std::to_string(own.bucket()))
                              .hex();
  Variant choice = by_rule;
  if (const auto recorded = tuner.recall<Variant>(key);
      recorded && (*recorded == Variant::own || *recorded == Variant::library)) {
    choice = *recorded;
  } else if (const std::optional<bool> accurate = is_accurate(host, own, operands, result); accurate != true) {
    if (!accurate) return Variant::library;
    choice = Variant::library;
    tuner.remember(key, choice);
  } else {
    const auto try_one = [&](size_t i) {
      if ((i == 0) == (by_rule == Variant::own))
        run(host, own, result);
      else
        LibraryLauncher::make_result(host, operands, nullptr);
    };
    const auto timing = tuner.time(host, own.kernel(), 2, try_one, *progress);
    if (!timing) return by_rule;
    if (timing->fastest == 1) choice = by_rule == Variant::own ? Variant::library : Variant::own;
    tuner.remember(key, choice);
    log(LogLevel::debug, own.what() + ": " + std::to_string(timing->microseconds[0]) +
                             (by_rule == Variant::own ? " us by our kernels, " : " us by the library, ") +
                             std::to_string(timing->microseconds[1]) + " us by the other");
  }
  choices.add(place, choice);
  return choice;
}

}  // namespace fusewright
