#pragma once
#include <map>
#include <string>
#include <vector>

#include "codegen/kernel_code.h"
#include "fusewright/host.h"
#include "ir/ir.h"
#include "launch/cpu_rules.h"
#include "runtime/plan/geometry.h"

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

// Turns tensors into a kernel's arguments and hands its work to the host's threads.
class Launcher {
 public:
  Launcher(const Graph& graph, const KernelCode& code, const std::map<std::string, int>& slots)
      : geometry_(graph, code, slots), rules_(loops_of(graph, code)) {}
  void attach(CpuRules::Entry entry, const int64_t* state_sizes) { rules_.attach(entry, state_sizes); }
  // operands in the order of code.operands; scalar_inputs by position in the graph's scalar inputs
  void run(Host& host, const std::vector<const Tensor*>& operands, const int64_t* symbols,
           const std::vector<double>& scalars) const {
    rules_.run(operands, geometry_.sizes(symbols), geometry_.numbers(symbols, scalars),
               [&](int64_t n, int64_t grain, const auto& body) { host.parallel_for(n, grain, body); });
  }

 private:
  KernelGeometry geometry_;
  CpuRules rules_;
};

}  // namespace fusewright
