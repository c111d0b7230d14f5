#pragma once
// Grows one kernel: finds the axes of what joins it, and the steps that compute it.
#include <map>
#include <set>
#include <vector>

#include "ir/ir.h"
#include "schedule/kernel.h"
#include "schedule/schedule.h"

namespace fusewright {

// An item cannot join a kernel: why, by a stable name (fuse.cpp).
struct StopFusing {
  const char* reason;
  Value culprit = -1;  // materialise this one and try again
};

// Values that can be read from memory, and by whom they are written.
struct World {
  const Graph& graph;
  std::map<Value, int> home;  // written by (or computed in) this group
  std::set<Value> views;      // movement results read in place of their materialised operand
  Dialect dialect = Dialect::cpp;

  bool in_memory(Value v) const { return graph[v].op == Op::input || views.count(v) || home.count(v); }
  int home_of(Value v) const {
    auto it = home.find(views.count(v) ? graph.base(v) : v);
    return it == home.end() ? -1 : it->second;
  }
};

class KernelBuilder {
 public:
  KernelBuilder(const World& world, Kernel kernel, int self) : world_(world), kernel_(std::move(kernel)), self_(self) {}
  Kernel take() { return std::move(kernel_); }
  const Kernel& kernel() const { return kernel_; }

  // v is computed here and written to memory, or read by later items of this kernel.
  int add_item(Value v);

  // A number beside the kernel's own work. Nothing that it reads may be read here already.
  int add_once(Value v);

 private:
  const Graph& graph() const { return world_.graph; }
  Axis& axis(int a) { return kernel_.axes[static_cast<size_t>(a)]; }

  std::vector<int> loops(bool with_reduced) const;

  // Axes for a value of this shape: new ones in an empty kernel; else all loops, else the kept ones.
  Dims place(const Shape& shape);
  int new_axis(const Size& size);

  // Axis a becomes outer * inner, everywhere.
  void split(int a, const Size& outer, const Size& inner);

  // Distributes axes, in row-major order, over the dimensions of a shape; splits an axis where a dimension ends inside.
  Dims regroup(std::vector<int> axes, const Shape& shape);

  // Splits one of axes[first..] so that a run of them multiplies to `size`.
  void split_for(const std::vector<int>& axes, size_t first, const Size& size);

  // Lists of axes in local variables that a split must keep up to date.
  struct Watch {
    Watch(KernelBuilder& builder, std::vector<int>& axes, Dims& dims) : builder(builder), count(1 + dims.size()) {
      builder.watched_.push_back(&axes);
      for (auto& list : dims) builder.watched_.push_back(&list);
    }
    Watch(KernelBuilder& builder, Dims& dims) : builder(builder), count(dims.size()) {
      for (auto& list : dims) builder.watched_.push_back(&list);
    }
    Watch(KernelBuilder& builder, std::vector<int>& axes) : builder(builder), count(1) {
      builder.watched_.push_back(&axes);
    }
    ~Watch() { builder.watched_.resize(builder.watched_.size() - count); }
    KernelBuilder& builder;
    size_t count;
  };

  int find(Step::Role role, Value v, const Dims& dims) const;
  int add_step(Step::Role role, Value v, Dims dims, std::vector<int> operands);

  // The step that gives v with its dimensions on these axes.
  int at(Value v, Dims dims, bool compute_here = false);
  int at_pointwise(Value v, const Node& node, Dims dims);
  int at_movement(Value v, const Node& node, Dims dims);

  // A read at other positions: a window of one element. Dimensions that are neither moved nor cut keep their axes.
  int at_shift(Value v, const Node& node, Dims dims);
  int add_reduce(Value v, const Node& node);
  int add_window(Value v, const Node& node, Dims dims);
  bool same_window(Value a, Value b) const;
  static bool overlaps(const Node& node);

  // The dearest operation among those that would be recomputed for each window.
  int cost_of(Value v) const;
  const World& world_;
  Kernel kernel_;
  int self_;
  std::vector<std::vector<int>*> watched_;
};

}  // namespace fusewright
