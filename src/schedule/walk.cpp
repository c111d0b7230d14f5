#include "schedule/walk.h"

#include <algorithm>

namespace fusewright {

bool varies(const Step& step, int axis) {
  for (const auto& list : step.dims)
    if (std::find(list.begin(), list.end(), axis) != list.end()) return true;
  return false;
}

namespace {

// Bytes of the operands with as many loops that lie along `innermost`, then smaller operands that do not move there.
std::pair<int64_t, int64_t> worth_of(const Graph& graph, const Kernel& kernel, size_t loops, int innermost) {
  std::pair<int64_t, int64_t> worth{0, 0};
  for (const Step& step : kernel.steps) {
    const int times = (step.role == Step::Role::load) + step.stored;
    if (times == 0) continue;
    const std::vector<int> own = loops_in_memory(graph, kernel, step);
    if (own.size() == loops && own.back() == innermost) worth.first += times * size_of(graph.dtype(step.value));
    if (own.size() < loops) worth.second += !varies(step, innermost);
  }
  return worth;
}

}  // namespace

std::vector<int> loop_order(const Graph& graph, const Kernel& kernel, bool tiles) {
  // The operand with the most loops says how memory lies; a load before a store, because its layout is given.
  tiles = tiles && kernel.is_pointwise();
  std::vector<int> order, rest;
  std::pair<int64_t, int64_t> best;
  for (const Step& step : kernel.steps) {
    if (step.role != Step::Role::load && !step.stored) continue;
    std::vector<int> own = loops_in_memory(graph, kernel, step);
    if (own.empty() || own.size() < order.size()) continue;
    const auto worth = tiles ? worth_of(graph, kernel, own.size(), own.back()) : best;
    if (own.size() == order.size() && worth <= best) continue;
    order = std::move(own);
    best = worth;
  }
  for (size_t a = 0; a < kernel.axes.size(); ++a)
    if (!kernel.axes[a].tap && std::find(order.begin(), order.end(), static_cast<int>(a)) == order.end())
      rest.push_back(static_cast<int>(a));
  rest.insert(rest.end(), order.begin(), order.end());
  return rest;
}

void assign_stages(const Graph&, const Kernel& kernel, LoopNest& nest) {
  nest.stage.assign(kernel.steps.size(), 0);
  nest.row_level.assign(kernel.steps.size(), false);
  for (size_t s = 0; s < kernel.steps.size(); ++s) {
    const Step& step = kernel.steps[s];
    int stage = 0;
    for (int operand : step.operands) stage = std::max(stage, nest.stage[static_cast<size_t>(operand)]);
    bool reduce = step.role == Step::Role::reduce;
    if (const auto* moments = nest.moments_of(static_cast<int>(s)))
      stage = nest.stage[static_cast<size_t>(moments->of)];
    nest.stage[s] = stage + (reduce && !step.side ? 1 : 0);
    if (step.role == Step::Role::window) nest.has_window = true;
    if (kernel.reduces() && step.role != Step::Role::scalar) {
      bool on_row = true;
      for (const auto& list : step.dims)
        for (int a : list)
          on_row &= !kernel.axes[static_cast<size_t>(a)].reduced && !kernel.axes[static_cast<size_t>(a)].tap;
      // What feeds a row-level value is row-level too; a window or a position is always worked out in the loop.
      nest.row_level[s] = on_row && !step.side && step.role != Step::Role::window && step.role != Step::Role::iota;
      if (step.role == Step::Role::compute)
        for (int operand : step.operands)
          nest.row_level[s] =
              nest.row_level[s] && (nest.row_level[static_cast<size_t>(operand)] ||
                                    kernel.steps[static_cast<size_t>(operand)].role == Step::Role::scalar);
    }
    bool in_loop = reduce || (step.stored && !nest.row_level[s]);
    if (in_loop) nest.stages = std::max(nest.stages, stage + 1);
  }
}

namespace {

// A GPU reads and writes operands of pointwise kernels that lie along another axis than the lines as well as the rest.
std::vector<int> order_for(const Graph& graph, const Kernel& kernel, Dialect dialect) {
  return loop_order(graph, kernel, dialect == Dialect::cuda);
}

int innermost(const std::vector<int>& order) { return order.empty() ? -1 : order.back(); }

}  // namespace

bool Walk::can_schedule(const Graph& graph, const Kernel& kernel, Dialect dialect) const {
  return kernel.contraction() < 0 && walks(kernel, innermost(order_for(graph, kernel, dialect)));
}

std::string Walk::label(bool has_window) const { return (has_window ? "window_" : "") + std::string(name()); }

LoopNest Walk::nest(const Graph& graph, const Kernel& kernel, Rows rows) const {
  const Dialect dialect = rows == Rows::cached ? Dialect::cpp : Dialect::cuda;
  LoopNest nest = lower(graph, kernel, order_for(graph, kernel, dialect));
  if (rows == Rows::memory && kernel.reduces()) {
    nest.moments = find_moments(graph, kernel);
    nest.stages = 1;
    assign_stages(graph, kernel, nest);
  }
  nest.label = label(nest.has_window);
  nest.carried.assign(kernel.steps.size(), false);
  if (rows == Rows::registers) nest.carried = find_carried(graph, kernel, nest);
  return nest;
}

LoopNest choose_walk(const Graph& graph, const Kernel& kernel, Rows rows) {
  const Dialect dialect = rows == Rows::cached ? Dialect::cpp : Dialect::cuda;
  for (const Walk* walk : {&pointwise_schedule(), &row_schedule(), &column_schedule()})
    if (walk->can_schedule(graph, kernel, dialect)) return walk->nest(graph, kernel, rows);
  fail("no schedule for a kernel with ", kernel.axes.size(), " axes");
}

}  // namespace fusewright
