#include "runtime/launch.h"

#include <algorithm>
#include <cstddef>

#include "kernels/prelude.h"
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

Launcher::Launcher(const Graph& graph, const KernelCode& code, const std::map<std::string, int>& slots)
    : nest_(code.nest), geometry_(graph, code, slots) {
  std::vector<int> loops = nest_.kept;
  loops.insert(loops.end(), nest_.reduced.begin(), nest_.reduced.end());
  loops.push_back(nest_.inner);
  for (size_t o = 0; o < code.operands.size(); ++o) {
    if (!code.operands[o].side) continue;
    Side side{o, {}, code.operands[o].dtype};
    for (int a : loops)
      for (const auto& list : code.operands[o].dims)
        if (std::find(list.begin(), list.end(), a) != list.end()) side.axes.push_back(a);
    sides_.push_back(std::move(side));
  }
}

void Launcher::attach(Entry entry, const int64_t* state_sizes) {
  entry_ = entry;
  if (state_sizes) row_bytes_ = state_sizes[0], sums_bytes_ = state_sizes[1];
}

// Memory for sums on the side while a kernel runs, and their addition, part by part, into the result.
class Launcher::SideBuffers {
 public:
  // Takes the operands' places in the geometry: the kernel writes to buffers in loop order instead.
  SideBuffers(const std::vector<Side>& sides, Geometry& g) : sides_(sides), sizes(g.operands) {
    for (const Side& side : sides) {
      Layout layout;
      for (int a : side.axes) {
        layout.sizes.push_back(g.sizes[static_cast<size_t>(a)]);
        layout.strides.push_back(g.stride(side.operand, static_cast<size_t>(a)));
      }
      int64_t stride = 1;
      for (size_t a = 0; a < g.axes; ++a) g.stride(side.operand, a) = 0;
      for (size_t i = side.axes.size(); i-- > 0;) {
        g.stride(side.operand, static_cast<size_t>(side.axes[i])) = stride;
        stride *= layout.sizes[i];
      }
      sizes[side.operand] = layout.elements = stride;
      layouts_.push_back(std::move(layout));
    }
  }

  void allocate(int64_t parts, std::vector<void*>& pointers) {
    parts_ = parts;
    for (size_t i = 0; i < sides_.size(); ++i) {
      size_t bytes = static_cast<size_t>(parts * layouts_[i].elements * size_of(sides_[i].dtype));
      memory_.emplace_back(bytes / sizeof(double) + 1, 0.0);
      pointers[sides_[i].operand] = memory_.back().data();
    }
  }

  void finish(Host& host, const std::vector<const Tensor*>& operands) const {
    for (size_t i = 0; i < sides_.size(); ++i) {
      const Tensor& result = *operands[sides_[i].operand];
      host.parallel_for(layouts_[i].elements, 4096, [&](int64_t begin, int64_t end) {
        if (sides_[i].dtype == DType::f64)
          add_parts<double>(i, result, begin, end);
        else
          add_parts<float>(i, result, begin, end);
      });
    }
  }

 private:
  struct Layout {
    std::vector<int64_t> sizes, strides;  // strides of the result
    int64_t elements;
  };

  template <class T>
  void add_parts(size_t i, const Tensor& result, int64_t begin, int64_t end) const {
    const Layout& layout = layouts_[i];
    const T* parts = reinterpret_cast<const T*>(memory_[i].data());
    for (int64_t e = begin; e < end; ++e) {
      double total = 0;
      for (int64_t p = 0; p < parts_; ++p) total += parts[p * layout.elements + e];
      int64_t offset = 0, rest = e;
      for (size_t d = layout.sizes.size(); d-- > 0; rest /= layout.sizes[d])
        offset += rest % layout.sizes[d] * layout.strides[d];
      switch (result.dtype) {
        case DType::f16:
          static_cast<fw::half*>(result.data)[offset] = fw::convert<fw::half>(total);
          break;
        case DType::bf16:
          static_cast<fw::bfloat16*>(result.data)[offset] = fw::convert<fw::bfloat16>(total);
          break;
        case DType::f32:
          static_cast<float*>(result.data)[offset] = static_cast<float>(total);
          break;
        default:
          static_cast<double*>(result.data)[offset] = total;
      }
    }
  }

  const std::vector<Side>& sides_;
  std::vector<Layout> layouts_;
  std::vector<std::vector<double>> memory_;
  int64_t parts_ = 0;

 public:
  std::vector<int64_t> sizes;  // per operand: elements of a part
};

void Launcher::run(Host& host, const std::vector<const Tensor*>& operands, const int64_t* symbols,
                   const std::vector<double>& scalars) const {
  Geometry g = geometry_.bind(operands, symbols);
  const std::vector<double> numbers = geometry_.numbers(symbols, scalars);
  std::vector<void*> pointers;
  for (const Tensor* operand : operands) pointers.push_back(operand->data);

  std::vector<int> lines = nest_.reduced, kept = nest_.kept;
  if (nest_.inner >= 0) (nest_.kind == LoopNest::Kind::column ? kept : lines).push_back(nest_.inner);
  SideBuffers side_buffers(sides_, g);
  geometry_.merge(g, lines, nest_.inner, KernelGeometry::Text::all_axes);
  geometry_.merge(g, kept, nest_.inner, KernelGeometry::Text::all_axes);

  KernelArgs args{pointers.data(),
                  g.sizes.data(),
                  g.strides.data(),
                  numbers.data(),
                  nullptr,
                  nullptr,
                  1,
                  side_buffers.sizes.data(),
                  1};
  constexpr int64_t grain = 32768;  // elements worth a thread's while
  int64_t elements = g.extent(lines);
  if (nest_.kind == LoopNest::Kind::pointwise) {
    host.parallel_for(elements, grain, [&](int64_t begin, int64_t end) { entry_(&args, -1, begin, end); });
    return;
  }
  int64_t rows = g.extent(nest_.kept), width = 1;
  // Rows that are taken together should stay in the nearest cache from pass to pass.
  args.block = std::clamp<int64_t>(4096 / std::max<int64_t>(elements, 1), 1, kernel_rows_at_once);
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
  if (rows == 0 || elements == 0) side_buffers.allocate(0, pointers), side_buffers.finish(host, operands);
  if (rows == 0) return;
  // Few long rows are split, by a rule that does not know the number of threads: results are the same on any.
  constexpr int64_t enough_rows = 32;
  int64_t pieces = std::max<int64_t>(1, elements * width / grain);
  args.splits = rows >= enough_rows / 2 ? 1 : std::min(pieces, (enough_rows + rows - 1) / rows);
  if (args.splits == 1 && !sides_.empty()) {
    // Parts of the rows with a buffer each; again the same number on any machine.
    args.splits = std::clamp<int64_t>(rows * elements / grain, 1, std::min<int64_t>(rows, 16));
    side_buffers.allocate(args.splits, pointers);
    host.parallel_for(args.splits, 1, [&](int64_t begin, int64_t end) { entry_(&args, -1, begin, end); });
    side_buffers.finish(host, operands);
    return;
  }
  if (args.splits == 1) {
    int64_t rows_per_thread = std::max<int64_t>(1, grain / std::max<int64_t>(1, elements * width));
    host.parallel_for(rows, rows_per_thread, [&](int64_t begin, int64_t end) { entry_(&args, -1, begin, end); });
    return;
  }
  std::vector<std::max_align_t> row_memory(static_cast<size_t>(rows * row_bytes_) / sizeof(std::max_align_t) + 1);
  std::vector<std::max_align_t> sum_memory(
      static_cast<size_t>(rows * args.splits * sums_bytes_) / sizeof(std::max_align_t) + 1);
  side_buffers.allocate(rows * args.splits, pointers);
  args.rows = row_memory.data();
  args.partial = sum_memory.data();
  for (int phase = 0; phase <= 2 * nest_.stages; ++phase) {
    int64_t items = phase % 2 ? rows * args.splits : rows;
    host.parallel_for(items, 1, [&](int64_t begin, int64_t end) { entry_(&args, phase, begin, end); });
  }
  side_buffers.finish(host, operands);
}

}  // namespace fusewright
