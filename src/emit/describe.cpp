#include "emit/describe.h"

#include <algorithm>

namespace fusewright {
namespace {

DescribedKernel describe_kernel(const Plan& plan, const Plan::KernelReport& report, const Kernel& kernel,
                                const Launcher& launcher) {
  const Graph& graph = plan.graph();
  const KernelCode& code = *report.code;
  DescribedKernel result;
  static_cast<EmittedKernel&>(result) = launcher.emitted(graph);
  result.name = code.name;
  result.schedule = code.schedule;
  result.operators = code.operators;
  result.sources = sources_of(graph, code);
  result.formulas = formulas(graph, kernel);
  result.bytes_read = report.bytes_read;
  result.bytes_written = report.bytes_written;
  for (const KernelCode::Operand& operand : code.operands) result.operands.push_back({operand.value, operand.store});
  for (const Axis& axis : code.axes) result.sizes.push_back(axis.size.str());
  for (Value v : code.numbers) result.numbers.push_back(number_of(graph, v));
  return result;
}

}  // namespace

DescribedPlan describe(const Plan& plan, const Fusion& fusion) {
  DescribedPlan result;
  result.plan = &plan;
  for (const SymbolBinder::Solve& s : plan.binder().solutions())
    result.symbols.push_back({s.symbol, s.input, s.dim, s.coefficient, s.rest.str()});
  const std::vector<Plan::KernelReport> reports = plan.kernels();
  for (size_t s = 0; s < plan.steps().size(); ++s) {
    const Plan::Step& step = plan.steps()[s];
    const size_t number = result.kernels.size();
    result.steps.push_back({step.launcher->library_call(), number, step.release});
    if (step.launcher->library_call() >= 0) continue;
    const Kernel& kernel = fusion.groups[s].kernel;
    result.kernels.push_back(describe_kernel(plan, reports[number], kernel, *step.launcher));
    for (const Size& size : rows_to_count_in(kernel)) result.positive.push_back(size.str());
  }
  return result;
}

}  // namespace fusewright
