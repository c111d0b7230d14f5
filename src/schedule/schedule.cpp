#include "schedule/schedule.h"

#include "ir/error.h"
#include "schedule/convolution.h"
#include "schedule/library.h"
#include "schedule/matrix_product.h"
#include "schedule/walk.h"

namespace fusewright {

const Schedule& library_schedule() {
  static const Library schedule;
  return schedule;
}

std::vector<const Schedule*>& schedules() {
  static std::vector<const Schedule*> all = {&matrix_product_schedule(), &convolution_schedule(), &library_schedule(),
                                             &pointwise_schedule(),      &row_schedule(),         &column_schedule()};
  return all;
}

const char* why_not_join(const Graph& graph, const Kernel& kernel, const Joining& joining, Dialect dialect) {
  const char* reason = nullptr;
  for (const Schedule* schedule : schedules()) {
    const Schedule::Answer answer = schedule->can_join(graph, kernel, joining, dialect);
    if (answer.yes) return nullptr;
    if (reason == nullptr) reason = answer.reason;
  }
  return reason == nullptr ? "different_iteration_space" : reason;
}

const Schedule& schedule_for(const Graph& graph, const Kernel& kernel, Dialect dialect) {
  for (const Schedule* schedule : schedules())
    if (schedule->can_schedule(graph, kernel, dialect)) return *schedule;
  fail("no schedule for a kernel with ", kernel.axes.size(), " axes");
}

}  // namespace fusewright
