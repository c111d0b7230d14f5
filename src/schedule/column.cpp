#include "schedule/schedule.h"

namespace fusewright {
namespace {

bool can_schedule(const Graph&, const Kernel& kernel, int innermost) {
  return innermost >= 0 && !kernel.axes[static_cast<size_t>(innermost)].reduced;
}

// Neighbouring columns side by side: memory is read in lines, and the sums of a block of columns stay in the L1 cache.
LoopNest lower(const Graph& graph, const Kernel& kernel, const std::vector<int>& order) {
  LoopNest nest;
  nest.kind = LoopNest::Kind::column;
  for (int a : order) (kernel.axes[static_cast<size_t>(a)].reduced ? nest.reduced : nest.kept).push_back(a);
  nest.inner = nest.kept.back();
  nest.kept.pop_back();
  assign_stages(graph, kernel, nest);
  return nest;
}

}  // namespace

const Schedule column_schedule = {"column", can_schedule, lower};

}  // namespace fusewright
