#pragma once
#include "schedule/schedule.h"

namespace fusewright {

// A convolution on a GPU, or a gradient of one: kernels of our own where they are faster than the host's library, which
// stays the other variant. Which one runs is chosen for the sizes of a call. Fuses nothing yet.
class Convolution final : public Schedule {
 public:
  const char* name() const override { return "convolution"; }

  Answer can_join(const Graph& graph, const Kernel& kernel, const Joining&, Dialect dialect) const override {
    return {false, can_schedule(graph, kernel, dialect) ? "library_call" : nullptr};
  }
  bool can_schedule(const Graph& graph, const Kernel& kernel, Dialect dialect) const override;
  std::unique_ptr<Launcher> launcher(const LauncherInputs&) const override;  // runtime/contraction/convolution.cpp
};

const Schedule& convolution_schedule();

}  // namespace fusewright
