// Chooses the schedule of every kernel, when their memory orders are final.
#include "schedule/schedule.h"

#include "passes/program.h"

namespace fusewright {
namespace {

void choose(const Graph& graph, Fusion& fusion, Dialect dialect) {
  for (Group& group : fusion.groups) group.schedule = &schedule_for(graph, group.kernel, dialect);
}

}  // namespace

void schedule(Program& program) {
  const Dialect dialect = dialect_of(program.options);
  choose(program.forward, program.forward_fusion, dialect);
  choose(program.backward, program.backward_fusion, dialect);
}

}  // namespace fusewright
