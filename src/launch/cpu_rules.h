#pragma once
// A C++ kernel's arguments, and how its work is shared out to threads. Stands behind kernels/prelude.h.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/prelude.h"
#include "launch/geometry.h"
#include "launch/kernel_abi.h"

namespace fusewright {

class CpuRules {
 public:
  explicit CpuRules(const KernelLoops& code) : nest_(code.nest), loops_(code) {
    std::vector<int> loops = nest_.kept;
    loops.insert(loops.end(), nest_.reduced.begin(), nest_.reduced.end());
    loops.push_back(nest_.inner);
    for (size_t o = 0; o < code.operands.size(); ++o) {
      if (!code.operands[o].side) continue;
      Side side{o, {}};
      for (int a : loops)
        for (const auto& list : code.operands[o].dims)
          if (std::find(list.begin(), list.end(), a) != list.end()) side.axes.push_back(a);
      sides_.push_back(std::move(side));
    }
  }

  using Entry = void (*)(const void* args, int phase, int64_t begin, int64_t end);
  void attach(Entry entry, const int64_t* state_sizes) {
    entry_ = entry;
    if (state_sizes) row_bytes_ = state_sizes[0], sums_bytes_ = state_sizes[1];
  }

  // operands in the order of KernelLoops::operands; parallel_for(n, grain, body) calls body(begin, end) over [0, n)
  template <class ParallelFor>
  void run(const std::vector<const Tensor*>& operands, const std::vector<int64_t>& sizes,
           const std::vector<double>& numbers, const ParallelFor& parallel_for) const {
    Geometry g = loops_.bind(operands, sizes);
    std::vector<void*> pointers;
    for (const Tensor* operand : operands) pointers.push_back(operand->data);

    std::vector<int> lines = nest_.reduced, kept = nest_.kept;
    if (nest_.inner >= 0) (nest_.kind == Loops::Kind::column ? kept : lines).push_back(nest_.inner);
    SideBuffers side_buffers(sides_, g);
    loops_.merge(g, lines, nest_.inner, LoopGeometry::Text::all_axes);
    loops_.merge(g, kept, nest_.inner, LoopGeometry::Text::all_axes);

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
    if (nest_.kind == Loops::Kind::pointwise) {
      parallel_for(elements, grain, [&](int64_t begin, int64_t end) { entry_(&args, -1, begin, end); });
      return;
    }
    int64_t rows = g.extent(nest_.kept), width = 1;
    // Rows that are taken together should stay in the nearest cache from pass to pass.
    args.block = std::clamp<int64_t>(4096 / std::max<int64_t>(elements, 1), 1, kernel_rows_at_once);
    if (nest_.kind == Loops::Kind::column) {
      // Wide blocks read memory in long lines. With several passes a block should stay in the cache between them.
      constexpr int64_t cached = 1 << 17;  // elements
      int64_t columns = g.sizes[static_cast<size_t>(nest_.inner)];
      args.block = kernel_lanes;
      if (nest_.stages > 1)
        args.block = std::clamp<int64_t>(cached / std::max<int64_t>(elements, 1) / 64 * 64, 64, kernel_lanes);
      rows *= (columns + args.block - 1) / args.block;
      width = std::min(columns, args.block);
    }
    if (rows == 0) {
      side_buffers.allocate(0, pointers);
      side_buffers.finish(operands, parallel_for);
      return;
    }
    // Few long rows are split, by a rule that does not know the number of threads: results are the same on any.
    constexpr int64_t enough_rows = 32;
    int64_t pieces = std::max<int64_t>(1, elements * width / grain);
    args.splits = rows >= enough_rows / 2 ? 1 : std::min(pieces, (enough_rows + rows - 1) / rows);
    if (args.splits == 1 && !sides_.empty()) {
      // Parts of the rows with a buffer each; again the same number on any machine.
      args.splits = std::clamp<int64_t>(rows * elements / grain, 1, std::min<int64_t>(rows, 16));
      side_buffers.allocate(args.splits, pointers);
      parallel_for(args.splits, 1, [&](int64_t begin, int64_t end) { entry_(&args, -1, begin, end); });
      side_buffers.finish(operands, parallel_for);
      return;
    }
    if (args.splits == 1) {
      int64_t rows_per_thread = std::max<int64_t>(1, grain / std::max<int64_t>(1, elements * width));
      parallel_for(rows, rows_per_thread, [&](int64_t begin, int64_t end) { entry_(&args, -1, begin, end); });
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
      parallel_for(items, 1, [&](int64_t begin, int64_t end) { entry_(&args, phase, begin, end); });
    }
    side_buffers.finish(operands, parallel_for);
  }

 private:
  struct Side {  // a sum on the side: its operand, and the axes of its result in loop order
    size_t operand;
    std::vector<int> axes;
  };

  // Memory for sums on the side while a kernel runs, and their addition, part by part, into the result.
  class SideBuffers {
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
        memory_.emplace_back(static_cast<size_t>(parts * layouts_[i].elements), 0.0);
        pointers[sides_[i].operand] = memory_.back().data();
      }
    }

    template <class ParallelFor>
    void finish(const std::vector<const Tensor*>& operands, const ParallelFor& parallel_for) const {
      for (size_t i = 0; i < sides_.size(); ++i) {
        const Tensor& result = *operands[sides_[i].operand];
        parallel_for(layouts_[i].elements, 4096, [&](int64_t begin, int64_t end) { add_parts(i, result, begin, end); });
      }
    }

   private:
    struct Layout {
      std::vector<int64_t> sizes, strides;  // strides of the result
      int64_t elements;
    };

    void add_parts(size_t i, const Tensor& result, int64_t begin, int64_t end) const {
      const Layout& layout = layouts_[i];
      const double* parts = memory_[i].data();
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

  const Loops nest_;
  LoopGeometry loops_;
  std::vector<Side> sides_;
  Entry entry_ = nullptr;
  int64_t row_bytes_ = 0, sums_bytes_ = 0;
};

}  // namespace fusewright
