#include "schedule/walk.h"

namespace fusewright {
namespace {

// A block of 512 threads on a GPU holds this many vectors of up to 16 bytes of a row (twice as many, if a kernel needs
// few values for each element), where vectors fill the row; else elements.
constexpr int64_t held_vectors = 512 * 4, vector_bytes = 16;
// Rows that a GPU's blocks share out, at least, so that each adds up several before it leaves partial sums; of so much
// data that it matters.
constexpr int64_t many_rows = 1024, much_data = 1 << 20;

// Only what lies along the rows is read as a whole.
bool lies_along_rows(const Graph& graph, const Kernel& kernel) {
  std::vector<int> largest;
  for (const Step& step : kernel.steps) {
    if (step.role != Step::Role::load) continue;
    std::vector<int> own = loops_in_memory(graph, kernel, step);
    if (own.size() > largest.size()) largest = std::move(own);
  }
  return largest.empty() || kernel.axes[static_cast<size_t>(largest.back())].reduced;
}

// Sums that vary along a row stay in the registers of a block that holds rows, and go to memory once for all rows that
// it works on. For longer rows they go there for each row, for few rows for nearly each. Sizes that may change decide
// nothing.
bool leaves_large_sums(const Graph& graph, const Kernel& kernel, const Joining& joining) {
  bool along_rows = false;
  for (size_t d = 0; d < joining.beside->size(); ++d)
    for (int a : (*joining.beside)[d])
      along_rows |= kernel.axes[static_cast<size_t>(a)].reduced && !(*joining.summed)[d];
  if (!along_rows) return false;
  Size rows = 1, elements = 1;
  for (const Axis& axis : kernel.axes) {
    if (axis.tap) continue;
    Size& size = axis.reduced ? elements : rows;
    size = size * axis.size;
  }
  if (graph.may_change(elements)) return false;
  const int64_t bytes = size_of(graph.dtype(graph[joining.value].operands[0]));
  const int64_t length = graph.hint(elements), vector = vector_bytes / bytes;
  const int64_t held = length % vector == 0 ? held_vectors * vector : held_vectors;
  return length > held ||
         (!graph.may_change(rows) && graph.hint(rows) < many_rows && graph.hint(rows) * length > much_data);
}

class Row final : public Walk {
 public:
  const char* name() const override { return "row"; }

  // Sums beside the rows are a matter of rows alone.
  Answer can_join(const Graph& graph, const Kernel& kernel, const Joining& joining, Dialect dialect) const override {
    if (kernel.contraction() >= 0) return {false, nullptr};
    if (joining.beside == nullptr) return {true, nullptr};
    const Node& node = graph[joining.value];
    if (node.op != Op::sum || !is_float(node.type.dtype)) return {false, "different_reduction"};
    if (!lies_along_rows(graph, kernel)) return {false, "different_memory_order"};
    if (dialect == Dialect::cuda && leaves_large_sums(graph, kernel, joining)) return {false, "large_partial_sums"};
    return {true, nullptr};
  }

 protected:
  // One result, or one group of the norm, at a time: every pass over it after the first finds it in the cache.
  LoopNest lower(const Graph& graph, const Kernel& kernel, const std::vector<int>& order) const override {
    LoopNest nest;
    nest.kind = LoopNest::Kind::row;
    for (int a : order) (kernel.axes[static_cast<size_t>(a)].reduced ? nest.reduced : nest.kept).push_back(a);
    nest.inner = nest.reduced.back();
    nest.reduced.pop_back();
    assign_stages(graph, kernel, nest);
    return nest;
  }

  bool walks(const Kernel& kernel, int innermost) const override {
    for (const Step& step : kernel.steps)
      if (step.side) return true;  // only rows carry sums on the side
    return innermost >= 0 && kernel.axes[static_cast<size_t>(innermost)].reduced;
  }
};

}  // namespace

const Walk& row_schedule() {
  static const Row schedule;
  return schedule;
}

Size elements_of_row(const std::vector<Axis>& axes, const LoopNest& nest) {
  Size size = axes[static_cast<size_t>(nest.inner)].size;
  for (int a : nest.reduced) size = size * axes[static_cast<size_t>(a)].size;
  return size;
}

}  // namespace fusewright
