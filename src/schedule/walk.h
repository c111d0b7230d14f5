#pragma once
// The schedules that walk over their elements, line by line.
//
//   pointwise  mul(x[n, c, h, w], m[c, 1, 1]) -> leaky_relu: lines over the innermost axis, no reduction
//   row        group_norm: the innermost axis in memory is reduced; one row at a time stays in the cache
//   column     batch_norm of [n, c]: the innermost axis is kept; neighbouring columns are reduced side by side
//
// A window (pooling) may stand in any of them: it fills a line, and the kernel goes on from there.
#include <string>
#include <vector>

#include "launch/kernel_loops.h"
#include "schedule/schedule.h"

namespace fusewright {

// How a kernel walks its axes. Names of axes and steps are indices into the Kernel.
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

  std::string label;  // in the kernel's name: `row`, `window_row`
  const std::string& name() const { return label; }
};

// Where later passes find the elements of a row.
enum class Rows {
  cached,     // in the nearest cache: reading costs little, and values are computed again
  registers,  // with the values that are carried on
  memory,     // far away: both moments are taken in one pass
};

class Walk : public Schedule {
 public:
  bool can_schedule(const Graph&, const Kernel&, Dialect) const override;
  std::unique_ptr<Launcher> launcher(const LauncherInputs&) const override;  // runtime/plan/walk.cpp

  // The loops of a kernel that it can serve.
  LoopNest nest(const Graph&, const Kernel&, Rows) const;

 protected:
  // The same, given all the kernel's loops in memory order.
  virtual LoopNest lower(const Graph&, const Kernel&, const std::vector<int>& order) const = 0;
  virtual std::string label(bool has_window) const;
  // Whether the kernel is walked this way, given its innermost loop in memory (-1: there is none).
  virtual bool walks(const Kernel&, int innermost) const = 0;
};

const Walk& pointwise_schedule();
const Walk& row_schedule();
const Walk& column_schedule();

// The loops of the first of these three that can.
LoopNest choose_walk(const Graph& graph, const Kernel& kernel, Rows rows = Rows::cached);

// Shared by the schedules: loops in memory order of the kernel's largest operand, and the stages of its steps.
std::vector<int> loop_order(const Graph& graph, const Kernel& kernel, bool tiles = false);
void assign_stages(const Graph& graph, const Kernel& kernel, LoopNest& nest);
std::vector<LoopNest::Moments> find_moments(const Graph& graph, const Kernel& kernel);
std::vector<bool> find_carried(const Graph& graph, const Kernel& kernel, const LoopNest& nest);
bool varies(const Step& step, int axis);
Size elements_of_row(const std::vector<Axis>& axes, const LoopNest& nest);  // of a row schedule

}  // namespace fusewright
