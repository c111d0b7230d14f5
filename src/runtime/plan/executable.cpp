#include "runtime/plan/executable.h"

#include "runtime/compiler/native_compiler.h"
#include "runtime/cuda/cuda.h"
#include "runtime/cuda/tuner.h"

namespace fusewright {

std::shared_ptr<const Executable> Executable::compile(const Graph& graph, std::vector<bool> wrt,
                                                      const Options& options) {
  auto result = std::make_shared<Executable>();
  Program& program = result->program_;
  program.forward = graph;
  wrt.resize(graph.inputs.size());
  program.wrt = std::move(wrt);
  program.options = options;
  run_pipeline(program);
  const bool tune = options.tune.value_or(Tuner::wanted_by_environment());
  result->forward_ = Plan(program.forward, program.forward_fusion, options.cuda, tune);
  result->forward_.set_preconditions(Preconditions(graph));
  std::vector<std::string> sources = result->forward_.sources(options.device);
  auto forward_kernels = static_cast<long>(sources.size());
  if (program.training()) {
    result->backward_ = Plan(program.backward, program.backward_fusion, options.cuda, tune, true);
    for (std::string& source : result->backward_.sources(options.device)) sources.push_back(std::move(source));
  }
  std::vector<CompiledSource> compiled;
  if (options.cuda) {
    for (auto& module : cuda::compile(sources, cuda::device(options.device).architecture))
      compiled.emplace_back(std::move(module));
  } else {
    for (auto& library : NativeCompiler::instance().compile(sources)) compiled.emplace_back(std::move(library));
  }
  const auto forward_end = compiled.begin() + forward_kernels;
  result->forward_.attach({compiled.begin(), forward_end}, options.device);
  result->backward_.attach({forward_end, compiled.end()}, options.device);
  return result;
}

}  // namespace fusewright
