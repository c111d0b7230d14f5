#include "runtime/geometry.h"

#include <algorithm>

namespace fusewright {

int64_t Geometry::extent(const std::vector<int>& loops) const {
  int64_t product = 1;
  for (int a : loops) product *= sizes[static_cast<size_t>(a)];
  return product;
}

void set_strides(Tensor& tensor, const Order& order) {
  int64_t stride = 1;
  for (int i = tensor.rank; i-- > 0;) {
    size_t d = order.empty() ? static_cast<size_t>(i) : static_cast<size_t>(order[static_cast<size_t>(i)]);
    tensor.strides[d] = stride;
    stride *= std::max<int64_t>(tensor.sizes[d], 1);
  }
}

KernelGeometry::KernelGeometry(const Graph& graph, const KernelCode& code, const std::map<std::string, int>& slots) {
  for (const Axis& axis : code.axes) {
    axis_sizes_.emplace_back(axis.size, slots);
    pinned_.push_back(axis.pinned || axis.tap);
  }
  varies_.assign(code.operands.size() * code.axes.size(), false);
  for (size_t o = 0; o < code.operands.size(); ++o) {
    const Dims& dims = code.operands[o].dims;
    std::vector<OperandAxis> list;
    for (size_t d = 0; d < dims.size(); ++d) {
      for (size_t i = 0; i < dims[d].size(); ++i) {
        list.push_back({dims[d][i], static_cast<int>(d), {dims[d].begin() + static_cast<long>(i) + 1, dims[d].end()}});
        varies_[o * code.axes.size() + static_cast<size_t>(dims[d][i])] = true;
      }
    }
    strides_.push_back(std::move(list));
    side_.push_back(code.operands[o].side);
  }
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

Geometry KernelGeometry::bind(const std::vector<const Tensor*>& operands, const int64_t* symbols) const {
  Geometry g;
  g.axes = std::max<size_t>(axis_sizes_.size(), 1);
  g.operands = operands.size();
  g.sizes.assign(g.axes, 1);
  g.strides.assign(g.axes * std::max<size_t>(g.operands, 1), 0);
  for (size_t a = 0; a < axis_sizes_.size(); ++a) g.sizes[a] = axis_sizes_[a].run(symbols);
  for (size_t o = 0; o < operands.size(); ++o) {
    for (const OperandAxis& entry : strides_[o]) {
      int64_t stride = operands[o]->strides[static_cast<size_t>(entry.dim)];
      for (int a : entry.inner) stride *= g.sizes[static_cast<size_t>(a)];
      g.stride(o, static_cast<size_t>(entry.axis)) += stride;
    }
  }
  return g;
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

void KernelGeometry::merge(Geometry& g, const std::vector<int>& loops, int line, Text text) const {
  // Whether operand o sees `outer` and `inner` as one stretch. A loop of size 1 takes over any stride, except in the
  // line for operands that the text holds as one number there (stride 0).
  auto joins = [&](size_t o, size_t outer, size_t inner) {
    bool one = g.sizes[inner] == 1, in_line = static_cast<int>(inner) == line;
    if (text == Text::own_axes && varies(o, outer) && !varies(o, inner)) return false;
    if (side_[o]) {
      // Its result has an axis or has none; and where the text adds to it along the line, by steps of 1.
      if (varies(o, outer) != varies(o, inner)) return false;
      if (one && text == Text::all_axes && in_line && varies(o, inner)) return g.stride(o, outer) == 1;
    }
    if (one && (!in_line || varies(o, inner))) return true;
    return g.stride(o, outer) == (one ? 0 : g.stride(o, inner) * g.sizes[inner]);
  };
  for (size_t i = loops.size(); i-- > 1;) {
    size_t inner = static_cast<size_t>(loops[i]);
    for (size_t k = i; k-- > 0;) {
      size_t outer = static_cast<size_t>(loops[k]);
      if (g.sizes[outer] == 1) continue;
      if (pinned_[inner] || pinned_[outer]) break;
      bool joined = true;
      for (size_t o = 0; o < g.operands && joined; ++o) joined = joins(o, outer, inner);
      if (!joined) break;
      if (g.sizes[inner] == 1)
        for (size_t o = 0; o < g.operands; ++o) g.stride(o, inner) = g.stride(o, outer);
      g.sizes[inner] *= g.sizes[outer];
      g.sizes[outer] = 1;
    }
  }
}

}  // namespace fusewright
