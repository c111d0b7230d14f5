#include "schedule/walk.h"

namespace fusewright {
namespace {

class Column final : public Walk {
 public:
  const char* name() const override { return "column"; }

  Answer can_join(const Graph&, const Kernel& kernel, const Joining& joining, Dialect) const override {
    return {kernel.contraction() < 0 && joining.beside == nullptr, nullptr};
  }

 protected:
  // Neighbouring columns side by side: memory is read in lines, and the sums of a block of columns stay in the L1
  // cache.
  LoopNest lower(const Graph& graph, const Kernel& kernel, const std::vector<int>& order) const override {
    LoopNest nest;
    nest.kind = LoopNest::Kind::column;
    for (int a : order) (kernel.axes[static_cast<size_t>(a)].reduced ? nest.reduced : nest.kept).push_back(a);
    nest.inner = nest.kept.back();
    nest.kept.pop_back();
    assign_stages(graph, kernel, nest);
    return nest;
  }

  bool walks(const Kernel& kernel, int innermost) const override {
    return innermost >= 0 && !kernel.axes[static_cast<size_t>(innermost)].reduced;
  }
};

}  // namespace

const Walk& column_schedule() {
  static const Column schedule;
  return schedule;
}

}  // namespace fusewright
