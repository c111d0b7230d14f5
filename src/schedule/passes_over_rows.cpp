// What several passes over a row can share.
#include <algorithm>

#include "schedule/walk.h"

namespace fusewright {

const LoopNest::Moments* LoopNest::moments_of(int step) const {
  for (const Moments& m : moments)
    if (m.first == step || m.second == step) return &m;
  return nullptr;
}

// sum(square(x - sum(x) / n)) beside sum(x), for n the number of elements of a row. Not where the distances are added
// up as well (`var`): that takes a second pass anyway, and is there to correct squares around a rounded mean.
std::vector<LoopNest::Moments> find_moments(const Graph& graph, const Kernel& kernel) {
  auto step = [&](int s) -> const Step& { return kernel.steps[static_cast<size_t>(s)]; };
  auto op = [&](int s) { return graph[step(s).value].op; };
  auto is_sum = [&](int s) { return step(s).role == Step::Role::reduce && !step(s).side && op(s) == Op::sum; };
  auto computes = [&](int s, Op wanted) { return step(s).role == Step::Role::compute && op(s) == wanted; };
  Size elements = 1;
  for (const Axis& axis : kernel.axes)
    if (axis.reduced) elements = elements * axis.size;
  std::vector<LoopNest::Moments> result;
  for (int s = 0; s < static_cast<int>(kernel.steps.size()); ++s) {
    if (!is_sum(s) || !computes(step(s).operands[0], Op::square)) continue;
    int distance = step(step(s).operands[0]).operands[0];
    if (!computes(distance, Op::sub)) continue;
    int of = step(distance).operands[0], mean = step(distance).operands[1];
    if (!computes(mean, Op::div) || !is_sum(step(mean).operands[0])) continue;
    int first = step(mean).operands[0], count = step(mean).operands[1];
    if (step(first).operands[0] != of || op(count) != Op::extent) continue;
    bool added_up = false;
    for (int t = 0; t < static_cast<int>(kernel.steps.size()); ++t)
      added_up |= is_sum(t) && step(t).operands[0] == distance;
    if (added_up) continue;
    if (graph[step(count).value].sizes("size")[0] == elements) result.push_back({first, s, of});
  }
  return result;
}

// A value is carried when a later pass uses it, and a function's worth of what it is made of has to be computed for its
// own pass or an earlier one anyway. What is made of carried values costs only what comes behind them.
std::vector<bool> find_carried(const Graph& graph, const Kernel& kernel, const LoopNest& nest) {
  const auto count = kernel.steps.size();
  std::vector<bool> carried(count);
  if (nest.stages < 2 || nest.inner < 0) return carried;
  auto on_row = [&](size_t s) { return nest.row_level[s] || kernel.steps[s].role == Step::Role::scalar; };
  // The pass that uses its operands.
  auto pass = [&](size_t s) {
    const Step& step = kernel.steps[s];
    return nest.stage[s] - (step.role == Step::Role::reduce && !step.side ? 1 : 0);
  };
  // Per step: the first pass that needs it.
  std::vector<int> first(count, nest.stages);
  for (size_t s = count; s-- > 0;) {
    const Step& step = kernel.steps[s];
    if (step.stored && !nest.row_level[s]) first[s] = std::min(first[s], nest.stage[s]);
    const int user = step.role == Step::Role::reduce ? pass(s) : first[s];
    for (int operand : step.operands)
      first[static_cast<size_t>(operand)] = std::min(first[static_cast<size_t>(operand)], user);
  }
  auto cost_until = [&](size_t value) {
    int cost = 0;
    std::vector<bool> seen(count);
    std::vector<int> todo{static_cast<int>(value)};
    while (!todo.empty()) {
      const auto s = static_cast<size_t>(todo.back());
      todo.pop_back();
      if (seen[s] || on_row(s) || carried[s]) continue;
      seen[s] = true;
      const Step& step = kernel.steps[s];
      const int own = step.role == Step::Role::window ? cost_of_a_function : info(graph[step.value].op).cost;
      if (first[s] <= nest.stage[value]) cost += step.role == Step::Role::load ? 0 : own;
      todo.insert(todo.end(), step.operands.begin(), step.operands.end());
    }
    return cost;
  };
  for (size_t v = 0; v < count; ++v) {
    const Step& step = kernel.steps[v];
    const bool computed = step.role == Step::Role::compute || step.role == Step::Role::window;
    if (!computed || on_row(v) || !varies(step, nest.inner)) continue;
    bool in_window = false;
    for (const auto& list : step.dims)
      for (int a : list) in_window |= kernel.axes[static_cast<size_t>(a)].tap;
    if (in_window) continue;
    bool used_later = false;
    for (size_t s = v + 1; s < count; ++s) {
      const std::vector<int>& operands = kernel.steps[s].operands;
      used_later |= pass(s) > nest.stage[v] && !on_row(s) &&
                    std::find(operands.begin(), operands.end(), static_cast<int>(v)) != operands.end();
    }
    carried[v] = used_later && cost_until(v) >= cost_of_a_function;
  }
  return carried;
}

}  // namespace fusewright
