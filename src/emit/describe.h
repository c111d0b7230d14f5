#pragma once
// A region as a file must hold it that runs it without this library: the steps of its plans, with the kernels' texts,
// the tables that launch them (launch/kernel_loops.h, as C++) and every size as an expression. python/fusewright/emit
// writes the file.
#include <map>
#include <string>
#include <vector>

#include "passes/program.h"
#include "runtime/plan/plan.h"

namespace fusewright {

struct DescribedKernel : EmittedKernel {
  std::string name, schedule;
  std::vector<std::string> operators, sources;  // the user's
  std::vector<std::string> formulas;            // what it computes, a line for each result
  int64_t bytes_read = 0, bytes_written = 0;    // for the sizes at capture
  struct Operand {
    Value value;
    bool store;
  };
  std::vector<Operand> operands;
  std::vector<std::string> sizes;  // of its axes
  std::vector<KernelNumber> numbers;
};

struct DescribedPlan {
  struct Symbol {  // = (size `dim` of input `input` - offset) / coefficient
    std::string name;
    int input, dim;
    int64_t coefficient;
    std::string offset;
  };
  std::vector<Symbol> symbols;
  struct Step {
    Value call = -1;  // a library call, or else
    size_t kernel = 0;
    std::vector<Value> release;  // not needed after it
  };
  std::vector<Step> steps;
  std::vector<DescribedKernel> kernels;
  std::vector<std::string> positive;  // sizes that must not be 0
  const Plan* plan;                   // for the graph and the memory orders
};

DescribedPlan describe(const Plan& plan, const Fusion& fusion);

// Readable lines for what a kernel stores: `y = mul -> x * sigmoid(x)`, with sums and windows by name.
std::vector<std::string> formulas(const Graph& graph, const Kernel& kernel);

}  // namespace fusewright
