#include "schedule/schedule.h"

namespace fusewright {
namespace {

bool can_schedule(const Graph&, const Kernel& kernel, int) {
  for (const Axis& axis : kernel.axes)
    if (axis.reduced) return false;
  for (const Step& step : kernel.steps)
    if (step.role == Step::Role::reduce) return false;
  return true;
}

// All outer loops form the lines; work is handed out by element.
LoopNest lower(const Graph& graph, const Kernel& kernel, const std::vector<int>& order) {
  LoopNest nest;
  nest.kind = LoopNest::Kind::pointwise;
  nest.reduced = order;
  if (!order.empty()) {
    nest.inner = order.back();
    nest.reduced.pop_back();
  }
  assign_stages(graph, kernel, nest);
  return nest;
}

}  // namespace

const Schedule pointwise_schedule = {"pointwise", can_schedule, lower};

}  // namespace fusewright
