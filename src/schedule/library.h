#pragma once
#include "schedule/schedule.h"

namespace fusewright {

// A contraction in the host's library. It fuses nothing: operands and result are in memory.
class Library final : public Schedule {
 public:
  const char* name() const override { return "library"; }

  Answer can_join(const Graph&, const Kernel& kernel, const Joining&, Dialect) const override {
    return {false, kernel.contraction() >= 0 ? "library_call" : nullptr};
  }
  bool can_schedule(const Graph&, const Kernel& kernel, Dialect) const override { return kernel.contraction() >= 0; }
  std::unique_ptr<Launcher> launcher(const LauncherInputs&) const override;  // runtime/plan/library.cpp
};

}  // namespace fusewright
