#pragma once
#include <memory>
#include <vector>

#include "passes/program.h"
#include "runtime/plan/plan.h"

namespace fusewright {

// A graph through all stages: passes, schedules, code, compiled kernels. With gradients wanted there are two plans, and
// everything is compiled at once, so that the first training step does not stop twice.
class Executable {
 public:
  // `wrt`: per input of the graph (scalar inputs too), is its gradient wanted? Empty: none. Throws Error (the graph) or
  // CompileError (the system's compiler).
  static std::shared_ptr<const Executable> compile(const Graph& graph, std::vector<bool> wrt,
                                                   const Options& options = {});

  const Program& program() const { return program_; }
  const Plan& forward() const { return forward_; }
  const Plan& backward() const { return backward_; }
  bool training() const { return program_.training(); }
  bool complete() const { return forward_.complete() && backward_.complete(); }

 private:
  Program program_;
  Plan forward_, backward_;
};

}  // namespace fusewright
