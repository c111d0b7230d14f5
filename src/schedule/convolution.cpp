#include "schedule/convolution.h"

#include <algorithm>

namespace fusewright {

bool Convolution::can_schedule(const Graph& graph, const Kernel& kernel, Dialect dialect) const {
  const Value v = kernel.contraction();
  if (dialect != Dialect::cuda || v < 0 || graph[v].op == Op::matmul) return false;
  const DType type = graph.dtype(v);
  const std::vector<Value>& operands = graph[v].operands;
  return (type == DType::f32 || type == DType::f16 || type == DType::bf16) &&
         std::all_of(operands.begin(), operands.end(), [&](Value x) { return graph.dtype(x) == type; });
}

const Schedule& convolution_schedule() {
  static const Convolution schedule;
  return schedule;
}

}  // namespace fusewright
