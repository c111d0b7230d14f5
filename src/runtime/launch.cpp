#include "runtime/launch.h"

#include <algorithm>
#include <cstddef>

#include "runtime/kernel_abi.h"

namespace fusewright {

SymbolBinder::SymbolBinder(const Graph& graph) {
  struct Dim {
    int input, dim;
    Size size;
  };
  std::vector<Dim> open;
  for (size_t i = 0; i < graph.inputs.size(); ++i) {
    const Shape& shape = graph.shape(graph.inputs[i]);
    for (size_t d = 0; d < shape.size(); ++d) open.push_back({static_cast<int>(i), static_cast<int>(d), shape[d]});
  }
  // Plain symbols first, then sizes that become linear in a single unknown.
  for (bool progress = true; progress;) {
    progress = false;
    for (const Dim& dim : open) {
      std::set<std::string> symbols;
      dim.size.collect_symbols(symbols);
      std::string unknown;
      int unknowns = 0;
      for (const std::string& symbol : symbols)
        if (!slots_.count(symbol)) unknown = symbol, ++unknowns;
      if (unknowns != 1) continue;
      for (const Size::Linear& linear : dim.size.linear_symbols()) {
        if (linear.symbol != unknown) continue;
        Size offset = dim.size - Size::symbol(unknown) * Size(linear.coefficient);
        solve_.push_back(
            {dim.input, dim.dim, static_cast<int>(slots_.size()), linear.coefficient, SizeProgram(offset, slots_)});
        int slot = static_cast<int>(slots_.size());
        slots_[unknown] = slot;
        progress = true;
      }
    }
  }
  for (const Dim& dim : open) checks_.push_back({dim.input, dim.dim, SizeProgram(dim.size, slots_)});
}

std::vector<int64_t> SymbolBinder::bind(const Graph& graph, const std::vector<Tensor>& tensors) const {
  std::vector<int64_t> symbols(slots_.size() + 1);
  auto actual = [&](int input, int dim) { return tensors[static_cast<size_t>(input)].sizes[static_cast<size_t>(dim)]; };
  for (const Solve& s : solve_)
    symbols[static_cast<size_t>(s.slot)] = (actual(s.input, s.dim) - s.offset.run(symbols.data())) / s.coefficient;
  for (const Check& c : checks_) {
    int64_t expected = c.size.run(symbols.data());
    if (expected == actual(c.input, c.dim)) continue;
    Value v = graph.inputs[static_cast<size_t>(c.input)];
    fail("input '", graph[v].text("name"), "': dimension ", c.dim, " is ", actual(c.input, c.dim), ", but ",
         graph.shape(v)[static_cast<size_t>(c.dim)].str(), " = ", expected, " is needed");
  }
  return symbols;
}

struct Launcher::Geometry {
  size_t axes, operands;
  std::vector<int64_t> sizes, strides;
  int64_t& stride(size_t operand, size_t axis) { return strides[operand * axes + axis]; }
};

Launcher::Launcher(const Graph& graph, const KernelCode& code, const std::map<std::string, int>& slots)
    : nest_(code.nest) {
  for (const Axis& axis : code.axes) {
    axis_sizes_.emplace_back(axis.size, slots);
    pinned_.push_back(axis.pinned || axis.tap);
  }
  for (const KernelCode::Operand& operand : code.operands) {
    std::vector<OperandAxis> list;
    for (size_t d = 0; d < operand.dims.size(); ++d)
      for (size_t i = 0; i < operand.dims[d].size(); ++i)
        list.push_back({operand.dims[d][i],
                        static_cast<int>(d),
                        {operand.dims[d].begin() + static_cast<long>(i) + 1, operand.dims[d].end()}});
    strides_.push_back(std::move(list));
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

void Launcher::attach(Entry entry, const int64_t* state_sizes) {
  entry_ = entry;
  if (state_sizes) row_bytes_ = state_sizes[0], sums_bytes_ = state_sizes[1];
}

// Neighbouring loops that are one stretch of memory for every operand become one: the inner takes the product, the
// outer size 1. The text of a kernel fixes its loops; this is how [n, c, h, w] still runs as a few long lines.
void Launcher::merge_loops(Geometry& g, const std::vector<int>& loops) const {
  for (size_t i = loops.size(); i-- > 1;) {
    size_t inner = static_cast<size_t>(loops[i]);
    for (size_t k = i; k-- > 0;) {
      size_t outer = static_cast<size_t>(loops[k]);
      if (g.sizes[outer] == 1) continue;
      if (pinned_[inner] || pinned_[outer]) break;
      bool joined = true;
      for (size_t o = 0; o < g.operands && joined; ++o)
        joined = g.sizes[inner] == 1 || g.stride(o, outer) == g.stride(o, inner) * g.sizes[inner];
      if (!joined) break;
      if (g.sizes[inner] == 1)
        for (size_t o = 0; o < g.operands; ++o) g.stride(o, inner) = g.stride(o, outer);
      g.sizes[inner] *= g.sizes[outer];
      g.sizes[outer] = 1;
    }
  }
}

void Launcher::run(Host& host, const std::vector<const Tensor*>& operands, const int64_t* symbols,
                   const std::vector<double>& scalars) const {
  Geometry g;
  g.axes = std::max<size_t>(axis_sizes_.size(), 1);
  g.operands = operands.size();
  g.sizes.assign(g.axes, 1);
  g.strides.assign(g.axes * std::max<size_t>(g.operands, 1), 0);
  for (size_t a = 0; a < axis_sizes_.size(); ++a) g.sizes[a] = axis_sizes_[a].run(symbols);
  std::vector<void*> pointers;
  for (size_t o = 0; o < operands.size(); ++o) {
    pointers.push_back(operands[o]->data);
    for (const OperandAxis& entry : strides_[o]) {
      int64_t stride = operands[o]->strides[static_cast<size_t>(entry.dim)];
      for (int a : entry.inner) stride *= g.sizes[static_cast<size_t>(a)];
      g.stride(o, static_cast<size_t>(entry.axis)) += stride;
    }
  }
  std::vector<double> numbers;
  for (const Number& number : numbers_) {
    if (number.source == Number::Source::size)
      numbers.push_back(static_cast<double>(number.size.run(symbols)));
    else
      numbers.push_back(number.source == Number::Source::constant ? number.value : scalars[number.scalar]);
  }

  std::vector<int> lines = nest_.reduced, kept = nest_.kept;
  if (nest_.inner >= 0) (nest_.kind == LoopNest::Kind::column ? kept : lines).push_back(nest_.inner);
  merge_loops(g, lines);
  merge_loops(g, kept);

  auto size_of_loops = [&](const std::vector<int>& loops) {
    int64_t product = 1;
    for (int a : loops) product *= g.sizes[static_cast<size_t>(a)];
    return product;
  };
  KernelArgs args{pointers.data(), g.sizes.data(), g.strides.data(), numbers.data(), nullptr, nullptr, 1, 1};
  constexpr int64_t grain = 32768;  // elements worth a thread's while
  int64_t elements = size_of_loops(lines);
  if (nest_.kind == LoopNest::Kind::pointwise) {
    host.parallel_for(elements, grain, [&](int64_t begin, int64_t end) { entry_(&args, -1, begin, end); });
    return;
  }
  int64_t rows = size_of_loops(nest_.kept), width = 1;
  if (nest_.kind == LoopNest::Kind::column) {
    // Wide blocks read memory in long lines. With several passes a block should stay in the cache between them.
    constexpr int64_t cached = 1 << 17;  // elements
    int64_t columns = g.sizes[static_cast<size_t>(nest_.inner)];
    args.block = kernel_lanes;
    if (nest_.stages > 1)
      args.block = std::clamp<int64_t>(cached / std::max<int64_t>(elements, 1) / 64 * 64, 64, kernel_lanes);
    rows *= (columns + args.block - 1) / args.block;
    width = std::min(columns, args.block);
  }
  if (rows == 0) return;
  // Few long rows are split, by a rule that does not know the number of threads: results are the same on any.
  constexpr int64_t enough_rows = 32;
  int64_t pieces = std::max<int64_t>(1, elements * width / grain);
  args.splits = rows >= enough_rows / 2 ? 1 : std::min(pieces, (enough_rows + rows - 1) / rows);
  if (args.splits == 1) {
    int64_t rows_per_thread = std::max<int64_t>(1, grain / std::max<int64_t>(1, elements * width));
    host.parallel_for(rows, rows_per_thread, [&](int64_t begin, int64_t end) { entry_(&args, -1, begin, end); });
    return;
  }
  std::vector<std::max_align_t> row_memory(static_cast<size_t>(rows * row_bytes_) / sizeof(std::max_align_t) + 1);
  std::vector<std::max_align_t> sum_memory(
      static_cast<size_t>(rows * args.splits * sums_bytes_) / sizeof(std::max_align_t) + 1);
  args.rows = row_memory.data();
  args.partial = sum_memory.data();
  for (int phase = 0; phase <= 2 * nest_.stages; ++phase) {
    int64_t items = phase % 2 ? rows * args.splits : rows;
    host.parallel_for(items, 1, [&](int64_t begin, int64_t end) { entry_(&args, phase, begin, end); });
  }
}

}  // namespace fusewright
