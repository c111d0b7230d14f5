#include "runtime/plan/executable.h"

#include "runtime/compiler/native_compiler.h"

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
  if (options.cuda) {
    auto modules = cuda::compile(sources, cuda::device(options.device).architecture);
    result->forward_.attach({modules.begin(), modules.begin() + forward_kernels}, options.device);
    result->backward_.attach({modules.begin() + forward_kernels, modules.end()}, options.device);
  } else {
    auto libraries = NativeCompiler::instance().compile(sources);
    result->forward_.attach({libraries.begin(), libraries.begin() + forward_kernels});
    result->backward_.attach({libraries.begin() + forward_kernels, libraries.end()});
  }
  return result;
}

}  // namespace fusewright
