// A float32 matrix product as a step of a plan: kernels of our own, or the host's library.
#include "schedule/matrix_product.h"

#include <atomic>
#include <map>
#include <set>

#include "base/log.h"
#include "runtime/cache/sha256.h"
#include "runtime/compiler/background.h"
#include "runtime/contraction/product_kernels.h"
#include "runtime/cuda/tuner.h"
#include "runtime/plan/geometry.h"
#include "runtime/plan/library.h"
#include "runtime/posix.h"

namespace fusewright {
namespace {

enum class Variant : int32_t { library, own };

// Part of what names a record on disk: count it up when a choice comes to mean something else.
constexpr const char* choice_format = "matrix product 1";

// What the library's products of float32 take, measured on an H200: operations in a microsecond, and a call.
constexpr double library_operations = 51e6, library_microseconds = 6;
// A rule that is not sure takes the library.
constexpr double clearly = 1.15;

// `library` and `own` leave no choice.
enum class Wanted { any, library, own };
Wanted wanted_by_environment() {
  const std::string wanted = wanted_matrix_product();
  return wanted == "library" ? Wanted::library : wanted == "own" ? Wanted::own : Wanted::any;
}

// What was chosen in this process, by device and sizes, and what failed.
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

// Sizes and layouts that one choice stands for.
uint64_t bucket_of(const ProductProblem& problem) {
  uint64_t bucket = 0;
  for (int64_t size : {problem.rows, problem.columns, problem.depth, problem.batches}) mix_size(bucket, size);
  for (const ProductProblem::Operand* o : {&problem.a, &problem.b}) mix(bucket, o->depth_stride == 1);
  return bucket;
}

class MatrixProductLauncher final : public LibraryLauncher {
 public:
  MatrixProductLauncher(const Graph& graph, const Kernel& kernel)
      : LibraryLauncher(graph, kernel, matrix_product_schedule()) {}

  Tensor make_result(Host& host, const std::vector<const Tensor*>& operands, TuningProgress* progress) const override {
    const Wanted wanted = wanted_by_environment();
    if (wanted == Wanted::library || host.device() < 0) return library(host, operands);
    const cuda::Device& device = cuda::device(host.device());
    if (!ProductKernels::serves(device.architecture) || !host.exact_matrix_products()) return library(host, operands);
    const std::optional<ProductProblem> problem = product_of(operands);
    if (!problem) return library(host, operands);
    const ProductPlan plan(*problem, device.multiprocessors);
    if (wanted != Wanted::own && !is_worth_a_try(*problem, plan)) return library(host, operands);
    const uint64_t bucket = bucket_of(*problem);
    uint64_t place = bucket;
    mix(place, static_cast<uint64_t>(host.device()));
    if (Choices::instance().failed(place) || !is_ready(host)) return library(host, operands);
    if (wanted != Wanted::own && choose(host, *problem, plan, operands, progress, bucket, place) == Variant::library)
      return library(host, operands);
    try {
      return own(host, plan, *operands.back());
    } catch (const std::exception& error) {
      // No memory for packed operands, above all: the library's kernels need none.
      if (Choices::instance().add_failed(place))
        log(LogLevel::warning, "the library computes matrix products of " + sizes_of(*problem) +
                                   " from now on, because ours failed: " + first_line(error.what()));
      return library(host, operands);
    }
  }

  bool complete() const override { return waits_on_ < 0 || ProductKernels::instance().settled(waits_on_); }

 private:
  // Whether the kernels are there. While they are compiled the library computes, unless results must not depend on
  // time.
  bool is_ready(Host& host) const {
    ProductKernels& kernels = ProductKernels::instance();
    if (kernels.ready(host.device())) return true;
    const bool captures = cuda::is_capturing(host.stream());
    if (host.deterministic() && !captures) {
      Background::instance().wait();
      return kernels.ready(host.device());
    }
    waits_on_ = host.device();
    if (captures && !complete() && !told_.exchange(true))
      log(LogLevel::warning,
          "the library computes the matrix products of a CUDA graph: our kernels were still being compiled when it was "
          "captured. Call the model a few times before");
    return false;
  }

  Tensor library(Host& host, const std::vector<const Tensor*>& operands) const {
    return LibraryLauncher::make_result(host, operands, nullptr);
  }

  static std::string sizes_of(const ProductProblem& p) {
    return (p.batches > 1 ? std::to_string(p.batches) + " x " : "") + std::to_string(p.rows) + " x " +
           std::to_string(p.columns) + " x " + std::to_string(p.depth);
  }

  static double library_time(const ProductProblem& p) {
    return p.operations() / library_operations + library_microseconds;
  }
  // So far from the library's time that timing it would be of no use.
  static bool is_worth_a_try(const ProductProblem& p, const ProductPlan& plan) {
    return plan.microseconds() < 1.5 * library_time(p);
  }

  Tensor own(Host& host, const ProductPlan& plan, const Tensor& sizes) const {
    Tensor result = sizes;
    result.owner.reset();
    set_strides(result, {});
    host.allocate(result);
    Tensor workspace;
    workspace.dtype = DType::u8;
    workspace.rank = 1;
    workspace.sizes[0] = plan.workspace_bytes() + 1024;
    workspace.strides[0] = 1;
    host.allocate(workspace);
    const auto address = reinterpret_cast<uintptr_t>(workspace.data);
    char* const aligned = static_cast<char*>(workspace.data) + (1024 - address % 1024) % 1024;
    const auto work = [&] {
      ProductKernels::instance().run(plan, aligned, static_cast<float*>(result.data), host.device(), host.stream());
    };
    static const std::string name = "fw_matmul";
    host.named(name, work);
    return result;
  }

  Variant choose(Host& host, const ProductProblem& problem, const ProductPlan& plan,
                 const std::vector<const Tensor*>& operands, TuningProgress* progress, uint64_t bucket,
                 uint64_t place) const {
    const Variant by_rule = plan.microseconds() * clearly < library_time(problem) ? Variant::own : Variant::library;
    if (progress == nullptr || host.deterministic()) return by_rule;
    Choices& choices = Choices::instance();
    if (const auto known = choices.find(place)) return *known;
    if (cuda::is_capturing(host.stream())) return by_rule;

    Tuner& tuner = Tuner::instance();
    const auto turn = tuner.turn();
    if (const auto known = choices.find(place)) return *known;  // another thread was first
    const cuda::Device& device = cuda::device(host.device());
    const std::string key = Sha256()
                                .update_field(choice_format)
                                .update_field(cuda::key_of(ProductKernels::source(), device.architecture))
                                .update_field(device.name)
                                .update_field(std::to_string(device.multiprocessors))
                                .update_field(std::to_string(bucket))
                                .hex();
    Variant choice = by_rule;
    if (const auto recorded = tuner.recall<Variant>(key);
        recorded && (*recorded == Variant::own || *recorded == Variant::library)) {
      choice = *recorded;
    } else {
      const auto try_one = [&](size_t i) {
        if ((i == 0) == (by_rule == Variant::own))
          own(host, plan, *operands.back());
        else
          library(host, operands);
      };
      const auto timing = tuner.time(host, "fw_matmul", 2, try_one, *progress);
      if (!timing) return by_rule;
      if (timing->fastest == 1) choice = by_rule == Variant::own ? Variant::library : Variant::own;
      tuner.remember(key, choice);
      log(LogLevel::debug, "matrix product of " + sizes_of(problem) + ": " + std::to_string(timing->microseconds[0]) +
                               (by_rule == Variant::own ? " us by our kernels, " : " us by the library, ") +
                               std::to_string(timing->microseconds[1]) + " us by the other");
    }
    choices.add(place, choice);
    return choice;
  }

  mutable std::atomic<int> waits_on_ = -1;  // the device for which kernels were not there yet
  mutable std::atomic<bool> told_ = false;  // that a CUDA graph keeps the library
};

}  // namespace

std::unique_ptr<Launcher> MatrixProduct::launcher(const LauncherInputs& inputs) const {
  return std::make_unique<MatrixProductLauncher>(inputs.graph, inputs.kernel);
}

}  // namespace fusewright
