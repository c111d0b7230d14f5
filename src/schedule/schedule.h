#pragma once
#include <string>
#include <vector>

#include "launch/kernel_loops.h"
#include "passes/fusion.h"

namespace fusewright {

// How a kernel walks its axes.
//
//   pointwise  mul(x[n, c, h, w], m[c, 1, 1]) -> leaky_relu: lines over the innermost axis, no reduction
//   row        group_norm: the innermost axis in memory is reduced; one row at a time stays in the cache
//   column     batch_norm of [n, c]: the innermost axis is kept; neighbouring columns are reduced side by side
//
// A window (pooling) may stand in any of them: it fills a line, and the kernel goes on from there.
// Names of axes and steps are indices into the Kernel.
struct LoopNest : Loops {
  std::vector<int> stage;       // per step: the pass in which it can be computed
  std::vector<bool> row_level;  // per step: the same for the whole row (column), computed between passes
  bool has_window = false;

  // A sum and the sum of squared distances from its mean, taken in one pass over the data (Welford): batch_norm.
  struct Moments {
    int first, second, of;
  };
  std::vector<Moments> moments;
  const Moments* moments_of(int step) const;  // that this reduction is part of

  // Per step: the pass that computes it keeps it for later ones, where computing it again would cost a function's time.
  std::vector<bool> carried;

  std::string name() const;
};

// One way to walk a kernel. Stateless; `choose` takes the first in order that can.
struct Schedule {
  const char* name;
  bool (*can_schedule)(const Graph&, const Kernel&, int innermost);
  LoopNest (*lower)(const Graph&, const Kernel&, const std::vector<int>& order);
};

extern const Schedule pointwise_schedule, row_schedule, column_schedule;

// Where later passes find the elements of a row.
enum class Rows {
  cached,     // in the nearest cache: reading costs little, and values are computed again
  registers,  // with the values that are carried on
  memory,     // far away: both moments are taken in one pass
};
LoopNest choose_schedule(const Graph& graph, const Kernel& kernel, Rows rows = Rows::cached);

// Shared by the schedules: loops in memory order of the kernel's largest operand, and the stages of its steps.
std::vector<int> loop_order(const Graph& graph, const Kernel& kernel, bool tiles = false);
void assign_stages(const Graph& graph, const Kernel& kernel, LoopNest& nest);
std::vector<LoopNest::Moments> find_moments(const Graph& graph, const Kernel& kernel);
std::vector<bool> find_carried(const Graph& graph, const Kernel& kernel, const LoopNest& nest);
bool varies(const Step& step, int axis);
Size elements_of_row(const std::vector<Axis>& axes, const LoopNest& nest);  // of a row schedule

}  // namespace fusewright
