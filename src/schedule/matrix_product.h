#pragma once
#include "schedule/schedule.h"

namespace fusewright {

// A float32 matrix product on a GPU: three products of halves on tensor cores where that is faster than the host's
// library, which stays the other variant. Which one runs is chosen for the sizes of a call. Fuses nothing yet.
class MatrixProduct final : public Schedule {
 public:
  const char* name() const override { return "matrix_product"; }

  Answer can_join(const Graph& graph, const Kernel& kernel, const Joining&, Dialect dialect) const override {
    return {false, can_schedule(graph, kernel, dialect) ? "library_call" : nullptr};
  }
  bool can_schedule(const Graph& graph, const Kernel& kernel, Dialect dialect) const override;
  std::unique_ptr<Launcher> launcher(const LauncherInputs&) const override;  // runtime/contraction/matrix_product.cpp
};

const Schedule& matrix_product_schedule();

}  // namespace fusewright
