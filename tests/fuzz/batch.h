#pragma once
// Many graphs compiled at once: for the CPU with all their kernels in few texts, for most of the time goes into
// starting the compiler and reading the prelude.
#include <atomic>
#include <thread>

#include "codegen/kernel_code.h"
#include "runtime/compiler/native_compiler.h"
#include "runtime/cuda/cuda.h"
#include "support/execution.h"

namespace fusewright::testing {

// Does what Executable does, in two steps: before and after compiling.
class Compiled {
 public:
  Compiled(const Graph& graph, std::vector<bool> wrt, const Options& options) : options_(options) {
    wrt.resize(graph.inputs.size());
    program_.forward = graph;
    program_.wrt = std::move(wrt);
    program_.options = options;
    run_pipeline(program_);
    forward_ = Plan(program_.forward, program_.forward_fusion, options.cuda, false);
    forward_.set_preconditions(Preconditions(graph));
    if (training()) backward_ = Plan(program_.backward, program_.backward_fusion, options.cuda, false, true);
  }
  const Program& program() const { return program_; }
  const Plan& forward() const { return forward_; }
  const Plan& backward() const { return backward_; }
  bool training() const { return program_.training(); }

  std::vector<const KernelCode*> kernels() const {
    std::vector<const KernelCode*> result;
    for (const Plan* plan : {&forward_, &backward_})
      for (const Plan::KernelReport& kernel : plan->kernels()) result.push_back(kernel.code);
    return result;
  }
  std::vector<std::string> sources() const {
    std::vector<std::string> result = forward_.sources(options_.device);
    forward_sources_ = result.size();
    for (std::string& source : backward_.sources(options_.device)) result.push_back(std::move(source));
    return result;
  }
  // `compiled`: modules for a GPU, libraries for the CPU.
  template <class Compiled>
  void attach(const std::vector<Compiled>& compiled) {
    const auto split =
        compiled.begin() + static_cast<long>(options_.cuda ? forward_sources_ : forward_.kernels().size());
    forward_.attach({compiled.begin(), split}, options_.device);
    backward_.attach({split, compiled.end()}, options_.device);
  }

 private:
  Program program_;
  Options options_;
  Plan forward_, backward_;
  mutable size_t forward_sources_ = 0;
};

// A text of many kernels; the functions of each end in its suffix.
class ManyKernels {
 public:
  // Returns the suffix.
  std::string add(const KernelCode& kernel) {
    const std::string suffix = "_" + std::to_string(count_++);
    for (const std::string& name : {kernel.name, std::string("fw_state_sizes")})
      text_ += "#define " + name + " " + name + suffix + "\n";
    // Without a name of its own: everything in a kernel but its entries is in an unnamed namespace.
    text_ += "namespace kernel" + suffix + " {\n" + kernel.text + "\n}\n";
    for (const std::string& name : {kernel.name, std::string("fw_state_sizes")}) text_ += "#undef " + name + "\n";
    return suffix;
  }
  size_t size() const { return count_; }
  // Nothing is optimised: that would take most of the time, and is the affair of the compiler.
  std::string source() const { return "#pragma GCC optimize(\"O0\")\n" + cpp_prelude() + text_; }

 private:
  size_t count_ = 0;
  std::string text_;
};

// Compiles all of them; a result is empty where `problems` says why.
inline std::vector<std::shared_ptr<const Compiled>> compile_all(
    const std::vector<std::pair<Graph, std::vector<bool>>>& graphs, const Options& options,
    std::vector<std::string>& problems) {
  std::vector<std::shared_ptr<Compiled>> made(graphs.size());
  problems.assign(graphs.size(), "");
  for (size_t i = 0; i < graphs.size(); ++i) {
    try {
      made[i] = std::make_shared<Compiled>(graphs[i].first, graphs[i].second, options);
    } catch (const std::exception& error) {
      problems[i] = error.what();
    }
  }
  if (options.cuda) {
    std::vector<std::string> sources;
    std::vector<std::pair<size_t, size_t>> ranges(graphs.size());
    for (size_t i = 0; i < graphs.size(); ++i) {
      if (!made[i]) continue;
      ranges[i].first = sources.size();
      for (std::string& source : made[i]->sources()) sources.push_back(std::move(source));
      ranges[i].second = sources.size();
    }
    const auto modules = cuda::compile(sources, cuda::device(options.device).architecture);
    for (size_t i = 0; i < graphs.size(); ++i)
      if (made[i])
        made[i]->attach(std::vector(modules.begin() + static_cast<long>(ranges[i].first),
                                    modules.begin() + static_cast<long>(ranges[i].second)));
  } else {
    constexpr size_t kernels_at_once = 40;
    std::vector<ManyKernels> texts;
    std::vector<std::vector<std::pair<size_t, std::string>>> places(graphs.size());  // text and suffix of each kernel
    for (size_t i = 0; i < graphs.size(); ++i) {
      if (!made[i]) continue;
      for (const KernelCode* kernel : made[i]->kernels()) {
        if (texts.empty() || texts.back().size() == kernels_at_once) texts.emplace_back();
        places[i].emplace_back(texts.size() - 1, texts.back().add(*kernel));
      }
    }
    std::vector<std::string> sources;
    for (const ManyKernels& text : texts) sources.push_back(text.source());
    const auto libraries = NativeCompiler::instance().compile(sources);
    for (size_t i = 0; i < graphs.size(); ++i) {
      if (!made[i]) continue;
      std::vector<std::shared_ptr<CompiledLibrary>> parts;
      for (const auto& [text, suffix] : places[i])
        parts.push_back(std::make_shared<CompiledLibrary>(libraries[text], suffix));
      made[i]->attach(parts);
    }
  }
  return {made.begin(), made.end()};
}

}  // namespace fusewright::testing
