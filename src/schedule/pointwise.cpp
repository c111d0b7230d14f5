#include "schedule/walk.h"

namespace fusewright {
namespace {

class Pointwise final : public Walk {
 public:
  const char* name() const override { return "pointwise"; }

  Answer can_join(const Graph&, const Kernel& kernel, const Joining& joining, Dialect) const override {
    return {!kernel.reduces() && kernel.contraction() < 0 && joining.beside == nullptr, nullptr};
  }

 protected:
  // All outer loops form the lines; work is handed out by element.
  LoopNest lower(const Graph& graph, const Kernel& kernel, const std::vector<int>& order) const override {
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

  std::string label(bool has_window) const override { return has_window ? "window" : name(); }

  bool walks(const Kernel& kernel, int) const override {
    for (const Step& step : kernel.steps)
      if (step.role == Step::Role::reduce) return false;
    return !kernel.reduces();
  }
};

}  // namespace

const Walk& pointwise_schedule() {
  static const Pointwise schedule;
  return schedule;
}

}  // namespace fusewright
