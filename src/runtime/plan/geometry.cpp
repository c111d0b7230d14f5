#include "runtime/plan/geometry.h"

#include <algorithm>

namespace fusewright {

KernelNumber number_of(const Graph& graph, Value v) {
  const Node& node = graph[v];
  if (node.op == Op::constant) return {KernelNumber::Source::constant, node.number("value"), {}, 0};
  if (node.op == Op::extent) return {KernelNumber::Source::size, 0, node.sizes("size")[0], 0};
  KernelNumber number{KernelNumber::Source::scalar, 0, {}, 0};
  for (Value input : graph.inputs) {
    if (input == v) break;
    number.scalar += graph[input].op == Op::scalar_input;
  }
  return number;
}

KernelGeometry::KernelGeometry(const Graph& graph, const KernelCode& code, const std::map<std::string, int>& slots)
    : LoopGeometry(loops_of(graph, code)) {
  for (const Axis& axis : code.axes) axis_sizes_.emplace_back(axis.size, slots);
  for (Value v : code.numbers) {
    const KernelNumber number = number_of(graph, v);
    const bool is_size = number.source == KernelNumber::Source::size;
    numbers_.push_back({number, is_size ? SizeProgram(number.size, slots) : SizeProgram()});
  }
}

std::vector<int64_t> KernelGeometry::sizes(const int64_t* symbols) const {
  std::vector<int64_t> result;
  for (const SizeProgram& size : axis_sizes_) result.push_back(size.run(symbols));
  return result;
}

std::vector<double> KernelGeometry::numbers(const int64_t* symbols, const std::vector<double>& scalars) const {
  std::vector<double> result;
  result.reserve(numbers_.size());
  for (const Number& number : numbers_) {
    if (number.source == KernelNumber::Source::size)
      result.push_back(static_cast<double>(number.program.run(symbols)));
    else
      result.push_back(number.source == KernelNumber::Source::constant ? number.value : scalars[number.scalar]);
  }
  return result;
}

}  // namespace fusewright
