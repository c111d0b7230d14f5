#include "runtime/geometry.h"

#include <algorithm>

namespace fusewright {

void set_strides(Tensor& tensor, const Order& order) {
  int64_t stride = 1;
  for (int i = tensor.rank; i-- > 0;) {
    size_t d = order.empty() ? static_cast<size_t>(i) : static_cast<size_t>(order[static_cast<size_t>(i)]);
    tensor.strides[d] = stride;
    stride *= std::max<int64_t>(tensor.sizes[d], 1);
  }
}

KernelGeometry::KernelGeometry(const Graph& graph, const KernelCode& code, const std::map<std::string, int>& slots)
    : LoopGeometry(loops_of(graph, code)) {
  for (const Axis& axis : code.axes) axis_sizes_.emplace_back(axis.size, slots);
  for (Value v : code.numbers) {
    const Node& node = graph[v];
    Number number;
    if (node.op == Op::constant) {
      number.source = Number::Source::constant;
      number.value = node.number("value");
    } else if (node.op == Op::extent) {
      number.source = Number::Source::size;
      number.size = SizeProgram(node.sizes("size")[0], slots);
    } else {
      number.source = Number::Source::scalar;
      for (Value input : graph.inputs) {
        if (input == v) break;
        number.scalar += graph[input].op == Op::scalar_input;
      }
    }
    numbers_.push_back(std::move(number));
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
    if (number.source == Number::Source::size)
      result.push_back(static_cast<double>(number.size.run(symbols)));
    else
      result.push_back(number.source == Number::Source::constant ? number.value : scalars[number.scalar]);
  }
  return result;
}

}  // namespace fusewright
