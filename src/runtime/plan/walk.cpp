// The schedules that walk over their elements, as steps of a plan.
#include "schedule/walk.h"

#include "runtime/cuda/cuda_launch.h"
#include "runtime/plan/launch.h"

namespace fusewright {

std::unique_ptr<Launcher> Walk::launcher(const LauncherInputs& in) const {
  if (in.dialect == Dialect::cuda)
    return std::make_unique<CudaLauncher>(in.graph, emit_cuda(in.graph, in.kernel), in.slots, in.orders);
  return std::make_unique<CpuLauncher>(in.graph, emit_cpp(in.graph, in.kernel), in.slots);
}

}  // namespace fusewright
