#include "schedule/schedule.h"

namespace fusewright {
namespace {

bool can_schedule(const Graph&, const Kernel& kernel, int innermost) {
  for (const Step& step : kernel.steps)
    if (step.side) return true;  // only rows carry sums on the side
  return innermost >= 0 && kernel.axes[static_cast<size_t>(innermost)].reduced;
}

// One result, or one group of the norm, at a time: every pass over it after the first finds it in the cache.
LoopNest lower(const Graph& graph, const Kernel& kernel, const std::vector<int>& order) {
  LoopNest nest;
  nest.kind = LoopNest::Kind::row;
  for (int a : order) (kernel.axes[static_cast<size_t>(a)].reduced ? nest.reduced : nest.kept).push_back(a);
  nest.inner = nest.reduced.back();
  nest.reduced.pop_back();
  assign_stages(graph, kernel, nest);
  return nest;
}

}  // namespace

const Schedule row_schedule = {"row", can_schedule, lower};

Size elements_of_row(const std::vector<Axis>& axes, const LoopNest& nest) {
  Size size = axes[static_cast<size_t>(nest.inner)].size;
  for (int a : nest.reduced) size = size * axes[static_cast<size_t>(a)].size;
  return size;
}

}  // namespace fusewright
