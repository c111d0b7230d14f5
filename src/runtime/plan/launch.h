#pragma once
#include <map>
#include <string>
#include <vector>

#include "codegen/kernel_code.h"
#include "fusewright/host.h"
#include "ir/ir.h"
#include "launch/cpu_rules.h"
#include "runtime/plan/geometry.h"
#include "runtime/plan/launcher.h"

namespace fusewright {

// Reads the values of size symbols off the inputs' sizes, and refuses inputs that contradict them.
class SymbolBinder {
 public:
  SymbolBinder() = default;
  explicit SymbolBinder(const Graph& graph);
  const std::map<std::string, int>& slots() const { return slots_; }
  std::vector<int64_t> bind(const Graph& graph, const std::vector<Tensor>& tensors) const;
  // The same over another kind of integer, unchecked. `size(input, dim)` gives the inputs' sizes; see SizeProgram.
  template <class T, class Sizes, class Apply>
  std::vector<T> solve(Sizes size, Apply apply) const {
    std::vector<T> symbols(slots_.size() + 1, T(0));
    for (const Solve& s : solve_) {
      T rest = size(s.input, s.dim) - s.offset.run_over(symbols, apply);
      symbols[static_cast<size_t>(s.slot)] = apply(SizeCall::floordiv, rest, T(s.coefficient));
    }
    return symbols;
  }

  struct Solve {  // symbol = (size - rest) / coefficient, with the rest over symbols solved before
    std::string symbol;
    int input, dim, slot;
    int64_t coefficient;
    Size rest;
    SizeProgram offset;  // the rest, to be run
  };
  const std::vector<Solve>& solutions() const { return solve_; }

 private:
  struct Check {
    int input, dim;
    SizeProgram size;
  };
  std::map<std::string, int> slots_;
  std::vector<Solve> solve_;
  std::vector<Check> checks_;
};

// Hands the work of a generated C++ kernel to the host's threads.
class CpuLauncher : public Launcher {
 public:
  CpuLauncher(const Graph& graph, const KernelCode& code, const std::map<std::string, int>& slots);
  std::vector<std::string> sources(int device) const override;
  void attach(const std::vector<CompiledSource>& compiled, int device) override;
  void run(Host& host, const std::vector<const Tensor*>& operands, const int64_t* symbols,
           const std::vector<double>& scalars, TuningProgress* progress, bool follows) const override;
  EmittedKernel emitted(const Graph& graph) const override;

 private:
  KernelGeometry geometry_;
  CpuRules rules_;
  std::shared_ptr<CompiledLibrary> library_;
};

}  // namespace fusewright
