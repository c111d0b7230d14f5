#include "schedule/matrix_product.h"

#include <algorithm>

namespace fusewright {

bool MatrixProduct::can_schedule(const Graph& graph, const Kernel& kernel, Dialect dialect) const {
  const Value v = kernel.contraction();
  if (dialect != Dialect::cuda || v < 0 || graph[v].op != Op::matmul) return false;
  const std::vector<Value>& operands = graph[v].operands;
  const auto is_single = [&](Value x) { return graph.dtype(x) == DType::f32; };
  if (!is_single(v) || !std::all_of(operands.begin(), operands.end(), is_single)) return false;
  const int a = graph.type(operands[0]).rank(), b = graph.type(operands[1]).rank();
  return (a >= 2 && b == 2) || (a == 3 && b == 3);
}

const Schedule& matrix_product_schedule() {
  static const MatrixProduct schedule;
  return schedule;
}

}  // namespace fusewright
