#include "runtime/executable.h"

#include "runtime/native_compiler.h"

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
  result->forward_ = Plan(program.forward, program.forward_fusion);
  std::vector<std::string> sources = result->forward_.sources();
  size_t forward_kernels = sources.size();
  if (program.training()) {
    result->backward_ = Plan(program.backward, program.backward_fusion);
    for (std::string& source : result->backward_.sources()) sources.push_back(std::move(source));
  }
  auto libraries = NativeCompiler::instance().compile(sources);
  auto split = libraries.begin() + static_cast<long>(forward_kernels);
  result->forward_.attach({libraries.begin(), split});
  if (program.training()) result->backward_.attach({split, libraries.end()});
  return result;
}

}  // namespace fusewright
