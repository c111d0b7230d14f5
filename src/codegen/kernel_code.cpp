#include "codegen/kernel_code.h"

#include <algorithm>

namespace fusewright {

KernelLoops loops_of(const Graph& graph, const KernelCode& code) {
  KernelLoops loops;
  loops.name = code.name;
  loops.nest = code.nest;
  loops.cuda = code.cuda;
  for (const Axis& axis : code.axes) loops.axes.push_back({axis.pinned, axis.tap});
  for (const KernelCode::Operand& operand : code.operands) {
    const Node& node = graph[operand.value];
    const std::string name = node.op == Op::input ? node.text("name") : std::string(name_of(node.op));
    loops.operands.push_back({name, operand.dtype, operand.store, operand.side, operand.dims});
  }
  for (Value v : code.numbers) loops.numbers.push_back(compute_type(graph.dtype(v)));
  return loops;
}

std::vector<std::string> sources_of(const Graph& graph, const KernelCode& code) {
  std::vector<std::string> result;
  for (int origin : code.origins) {
    const std::string& source = graph.origins[static_cast<size_t>(origin)].source;
    if (!source.empty() && std::find(result.begin(), result.end(), source) == result.end()) result.push_back(source);
  }
  return result;
}

}  // namespace fusewright
