#pragma once
// A kind of kernel that the library does not know: a negated vector of floats. All of it stands in this folder, as a
// kind of the library has its own files: what may join, text for both dialects, launches, candidates for the tuner, and
// what an emitted file carries. Nothing outside knows its name.
#include <fstream>
#include <sstream>

#include "codegen/expressions.h"
#include "codegen/kernel_code.h"
#include "embedded_kernels.h"
#include "ir/error.h"
#include "runtime/cache/sha256.h"
#include "runtime/compiler/compiled_library.h"
#include "runtime/cuda/cuda.h"
#include "runtime/cuda/tuner.h"
#include "runtime/plan/geometry.h"
#include "runtime/plan/launcher.h"
#include "schedule/schedule.h"
#include "support/toy/toy_rules.h"

namespace fusewright::testing {

inline std::string toy_file(const std::string& name) {
  std::ifstream file(FUSEWRIGHT_SOURCE_DIR "/tests/support/toy/" + name);
  require(file.good(), "no file ", name, " of the toy kind");
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// How a toy kernel may be launched.
struct ToyChoice {
  static constexpr const char* format = "toy choice 1";
  int32_t items;  // elements of a thread
};

struct ToyCounts {
  int cpu = 0;
  std::map<int, int> cuda;  // launches by choice
};
inline ToyCounts toy_counts;

class ToyLauncher final : public Launcher {
 public:
  ToyLauncher(const LauncherInputs& in, const Schedule& schedule)
      : Launcher(code_of(in, schedule)), cuda_(in.dialect == Dialect::cuda), geometry_(in.graph, code(), in.slots) {}

  std::vector<std::string> sources(int) const override {
    if (!cuda_) return {code().text};
    std::vector<std::string> result;
    const std::string prelude = std::string(embedded_prelude) + embedded_math + embedded_cuda_device;
    for (const ToyChoice& choice : candidates()) result.push_back(defines(choice) + prelude + code().text);
    return result;
  }

  void attach(const std::vector<CompiledSource>& compiled, int device) override {
    if (!cuda_) {
      library_ = std::get<std::shared_ptr<CompiledLibrary>>(compiled.at(0));
      entry_ = reinterpret_cast<void (*)(const ToyArguments*)>(library_->symbol(code().name.c_str()));
      require(entry_ != nullptr, "no ", code().name);
      return;
    }
    for (size_t i = 0; i < compiled.size(); ++i) {
      modules_.push_back(std::get<std::shared_ptr<cuda::Module>>(compiled[i]));
      modules_.back()->kernel(code().name, device);
    }
  }

  void run(Host& host, const std::vector<const Tensor*>& operands, const int64_t* symbols, const std::vector<double>&,
           TuningProgress* progress, bool) const override {
    const ToyArguments arguments = toy_arguments(operands, geometry_.sizes(symbols).at(0));
    if (!cuda_) {
      ++toy_counts.cpu;
      return entry_(&arguments);
    }
    if (arguments.n == 0) return;
    const size_t chosen = choose(host, arguments, progress);
    ++toy_counts.cuda[candidates()[chosen].items];
    launch(host, arguments, chosen);
  }

  EmittedKernel emitted(const Graph& graph) const override {
    EmittedKernel kernel;
    kernel.runner = cuda_ ? "ToyCudaKernel" : "ToyCpuKernel";
    kernel.headers = {{"toy_rules", toy_file("toy_rules.h")}};
    if (cuda_)
      kernel.headers.push_back({"toy_cuda_kernel", toy_file("toy_cuda_kernel.h")});
    else
      kernel.headers.push_back({"toy_cpu_kernel", toy_file("toy_cpu_kernel.h")});
    kernel.table = interface_as_cpp(loops_of(graph, code()));
    const ToyChoice by_rule = candidates()[0];
    kernel.variants = {{cuda_ ? std::to_string(by_rule.items) : "",
                        cuda_ ? defines(by_rule) : "",
                        {},
                        kernel.place_of(code().text),
                        "",
                        {code().name}}};
    return kernel;
  }

 private:
  // The rule's first.
  static std::vector<ToyChoice> candidates() { return {{1}, {4}}; }

  static std::string defines(const ToyChoice& choice) {
    return "#define FW_TOY_ITEMS " + std::to_string(choice.items) + "\n";
  }

  static KernelCode code_of(const LauncherInputs& in, const Schedule& schedule) {
    KernelCode code;
    code.schedule = schedule.name();
    code.name = kernel_name(in.graph, in.kernel, schedule.name());
    code.origins = kernel_origins(in.graph, in.kernel);
    code.axes = in.kernel.axes;
    for (const Step& step : in.kernel.steps) {
      if (step.role == Step::Role::load) code.operands.push_back({step.value, false, DType::f32, step.dims});
      if (step.stored) code.operands.push_back({step.value, true, DType::f32, step.dims});
    }
    code.text = toy_file(in.dialect == Dialect::cuda ? "kernel.cu.txt" : "kernel.cpp.txt");
    const std::string stands_for_name = "KERNEL";
    code.text.replace(code.text.find(stands_for_name), stands_for_name.size(), code.name);
    return code;
  }

  void launch(Host& host, const ToyArguments& arguments, size_t candidate) const {
    const int64_t blocks = toy_blocks(arguments.n, candidates()[candidate].items);
    void* const kernel = modules_[candidate]->kernel(code().name, host.device());
    cuda::launch(kernel, code().name, host.device(), {static_cast<uint32_t>(blocks), toy_threads}, &arguments,
                 host.stream());
  }

  size_t choose(Host& host, const ToyArguments& arguments, TuningProgress* progress) const {
    if (progress == nullptr) return 0;
    Tuner& tuner = Tuner::instance();
    const auto turn = tuner.turn();
    uint64_t bucket = 0;
    mix_size(bucket, arguments.n);
    const std::string key = Sha256()
                                .update_field(ToyChoice::format)
                                .update_field(cuda::key_of(code().text, cuda::device(host.device()).architecture))
                                .update_field(std::to_string(bucket))
                                .hex();
    const std::vector<ToyChoice> all = candidates();
    if (const auto known = tuner.recall<ToyChoice>(key)) {
      for (size_t i = 0; i < all.size(); ++i)
        if (all[i].items == known->items) return i;
    }
    const auto try_one = [&](size_t i) {
      ++toy_counts.cuda[all[i].items];
      launch(host, arguments, i);
    };
    const auto timing = tuner.time(host, code().name, all.size(), try_one, *progress);
    if (!timing) return 0;
    tuner.remember(key, all[timing->fastest]);
    return timing->fastest;
  }

  bool cuda_;
  KernelGeometry geometry_;
  std::shared_ptr<CompiledLibrary> library_;
  void (*entry_)(const ToyArguments*) = nullptr;
  std::vector<std::shared_ptr<cuda::Module>> modules_;  // one for each candidate
};

class Toy final : public Schedule {
 public:
  const char* name() const override { return "toy"; }

  // Its reason is the first that `why_not_join` finds: it stands at the head of the list.
  Answer can_join(const Graph&, const Kernel&, const Joining& joining, Dialect) const override {
    return {false, joining.beside == nullptr ? nullptr : "toys_sum_nothing"};
  }

  bool can_schedule(const Graph& graph, const Kernel& kernel, Dialect) const override {
    return kernel.axes.size() == 1 && kernel.steps.size() == 2 && kernel.steps[0].role == Step::Role::load &&
           kernel.steps[1].role == Step::Role::compute && graph[kernel.steps[1].value].op == Op::neg &&
           graph.dtype(kernel.steps[1].value) == DType::f32 && graph.dtype(kernel.steps[0].value) == DType::f32;
  }

  std::unique_ptr<Launcher> launcher(const LauncherInputs& in) const override {
    return std::make_unique<ToyLauncher>(in, *this);
  }
};

// Adds the kind for as long as it lives, ahead of all others.
class WithToys {
 public:
  WithToys() {
    static const Toy toy;
    schedules().insert(schedules().begin(), &toy);
    toy_counts = {};
  }
  ~WithToys() { schedules().erase(schedules().begin()); }
  WithToys(const WithToys&) = delete;
};

}  // namespace fusewright::testing
