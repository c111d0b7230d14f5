// Groups operations into kernels. A kernel is grown around what must be written to memory: a reduction, a window, an
// output, an operand of a contraction. Each such item joins the kernel that computes what it needs, or one that reads
// the same data, or starts its own. Pointwise operations belong to nobody: every kernel that needs one computes it.
//
// Reasons to stop, by their stable names:
//   library_call               a contraction runs in the host's library; its operands are in memory
//   different_iteration_space  the sizes of one do not map onto the loops of the other
//   different_reduction        both reduce, but over different dimensions
//   large_partial_sums         likewise, and partial sums would move more memory than reading the data again
//   different_memory_order     what moves along rows, and memory that lies along something else
//   reshape_boundary           a reshape splits dimensions in a way that is no product of loops
//   window_overlap             windows overlap, and the chain before them costs more than reading it back
//   window_dimension           a window must run over a loop of its own
//   window_in_window           what a window, slice or padding reads is sliced or padded itself
//   would_form_cycle           the item needs something that needs the kernel
//   kernel_too_large           more operations than one kernel should hold
#include <algorithm>
#include <map>
#include <optional>

#include "ir/builder.h"
#include "passes/program.h"
#include "passes/streams.h"

namespace fusewright {
namespace {

constexpr size_t max_steps = 400;

// Operations that are not worked out anew for each element of rows of so many.
constexpr int dear_for_each = 2;
constexpr int64_t long_rows = 64;

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
  int add_item(Value v) {
    const Node& node = graph()[v];
    if (node.kind() == Kind::reduce) return add_reduce(v, node);
    Dims dims = place(node.type.shape);
    if (node.op == Op::shift) return at_shift(v, node, dims);
    if (node.kind() == Kind::window) return add_window(v, node, dims);
    if (node.kind() == Kind::pointwise) return at(v, dims, true);
    // A view or an input as a result of its own: copied, element by element.
    Watch watch(*this, dims);
    int source = at(v, dims, true);
    return add_step(Step::Role::compute, v, dims, {source});
  }

  // A number beside the kernel's own work. Nothing that it reads may be read here already.
  int add_once(Value v) {
    const size_t before = kernel_.steps.size();
    const int item = at(v, {}, true);
    for (size_t s = 0; s < kernel_.steps.size(); ++s) {
      Step& step = kernel_.steps[s];
      if (step.role != Step::Role::load || !step.dims.empty()) continue;
      if (s < before) throw StopFusing{"different_iteration_space"};
      step.once = true;
    }
    kernel_.steps[static_cast<size_t>(item)].once = true;
    return item;
  }

 private:
  const Graph& graph() const { return world_.graph; }
  Axis& axis(int a) { return kernel_.axes[static_cast<size_t>(a)]; }

  std::vector<int> loops(bool with_reduced) const {
    std::vector<int> result;
    for (size_t a = 0; a < kernel_.axes.size(); ++a)
      if (!kernel_.axes[a].tap && (with_reduced || !kernel_.axes[a].reduced)) result.push_back(static_cast<int>(a));
    return result;
  }

  // Axes for a value of this shape: new ones in an empty kernel; else all loops, else the kept ones.
  Dims place(const Shape& shape) {
    if (kernel_.steps.empty() && kernel_.axes.empty()) {
      Dims dims;
      for (const Size& size : shape) {
        dims.emplace_back();
        if (!size.is(1)) dims.back().push_back(new_axis(size));
      }
      return dims;
    }
    Kernel before = kernel_;
    try {
      return regroup(loops(true), shape);
    } catch (const StopFusing&) {
      kernel_ = before;
    }
    try {
      return regroup(loops(false), shape);
    } catch (const StopFusing&) {
      throw StopFusing{"different_iteration_space"};
    }
  }

  int new_axis(const Size& size) {
    Axis fresh;
    fresh.size = size;
    kernel_.axes.push_back(std::move(fresh));
    return static_cast<int>(kernel_.axes.size()) - 1;
  }

  // Axis a becomes outer * inner, everywhere.
  void split(int a, const Size& outer, const Size& inner) {
    for (const Axis& other : kernel_.axes)
      if (other.tap && other.base == a) throw StopFusing{"window_dimension"};
    if (axis(a).tap || axis(a).pinned) throw StopFusing{"window_dimension"};
    // Keep the loops in row-major order: the inner half is inserted right after.
    Axis half = axis(a);
    half.size = inner;
    axis(a).size = outer;
    kernel_.axes.insert(kernel_.axes.begin() + a + 1, half);
    auto shift = [&](int& other) {
      if (other > a) ++other;
    };
    for (Axis& other : kernel_.axes) shift(other.base);
    for (Step& step : kernel_.steps) {
      for (int& tap : step.taps) shift(tap);
      for (auto& list : step.dims) {
        for (int& other : list) shift(other);
        for (size_t i = 0; i < list.size(); ++i)
          if (list[i] == a) list.insert(list.begin() + static_cast<long>(i) + 1, a + 1), ++i;
      }
    }
    for (auto* list : watched_) {
      for (int& other : *list) shift(other);
      for (size_t i = 0; i < list->size(); ++i)
        if ((*list)[i] == a) list->insert(list->begin() + static_cast<long>(i) + 1, a + 1), ++i;
    }
  }

  // Distributes axes, in row-major order, over the dimensions of a shape; splits an axis where a dimension ends inside.
  Dims regroup(std::vector<int> axes, const Shape& shape) {
    Dims dims(shape.size());
    Watch watch(*this, axes, dims);
    size_t next = 0;
    for (size_t d = 0; d < shape.size(); ++d) {
      if (shape[d].is(1)) continue;
      // The run of axes whose product is this dimension, else split the axis in which it ends.
      while (true) {
        Size got = 1;
        size_t end = next;
        while (end < axes.size() && !(got == shape[d])) got = got * axis(axes[end++]).size;
        if (got == shape[d]) {
          dims[d].assign(axes.begin() + static_cast<long>(next), axes.begin() + static_cast<long>(end));
          next = end;
          break;
        }
        split_for(axes, next, shape[d]);
      }
    }
    for (; next < axes.size(); ++next)
      if (!axis(axes[next]).size.is(1)) throw StopFusing{"reshape_boundary"};
    return dims;
  }

  // Splits one of axes[first..] so that a run of them multiplies to `size`.
  void split_for(const std::vector<int>& axes, size_t first, const Size& size) {
    Size got = 1;
    for (size_t i = first; i < axes.size(); ++i) {
      const Size& own = axis(axes[i]).size;
      if (auto missing = Size::exact_quotient(size, got)) {
        auto inner = Size::exact_quotient(own, *missing);
        if (inner && !inner->is(1)) return split(axes[i], *missing, *inner);
      }
      got = got * own;
    }
    throw StopFusing{"reshape_boundary"};
  }

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

  int find(Step::Role role, Value v, const Dims& dims) const {
    for (size_t s = 0; s < kernel_.steps.size(); ++s) {
      const Step& step = kernel_.steps[s];
      if (step.role == role && step.value == v && step.dims == dims) return static_cast<int>(s);
    }
    return -1;
  }

  int add_step(Step::Role role, Value v, Dims dims, std::vector<int> operands) {
    if (int known = find(role, v, dims); known >= 0) return known;
    if (kernel_.steps.size() >= max_steps) {
      // The latest value that did fit goes to memory.
      Value last = -1;
      for (const Step& step : kernel_.steps)
        if (step.role == Step::Role::compute && graph()[step.value].kind() == Kind::pointwise) last = step.value;
      throw StopFusing{"kernel_too_large", last};
    }
    kernel_.steps.push_back({role, v, std::move(dims), std::move(operands), {}, false});
    return static_cast<int>(kernel_.steps.size()) - 1;
  }

  // The step that gives v with its dimensions on these axes.
  int at(Value v, Dims dims, bool compute_here = false) {
    const Node& node = graph()[v];
    switch (node.op) {
      case Op::input:
        return add_step(Step::Role::load, v, std::move(dims), {});
      case Op::constant:
      case Op::extent:
      case Op::scalar_input:
        return add_step(Step::Role::scalar, v, {}, {});
      case Op::iota:
        for (int a : dims[0]) axis(a).pinned = true;
        return add_step(Step::Role::iota, v, std::move(dims), {});
      default:
        break;
    }
    if (node.op == Op::shift && (compute_here || world_.home_of(v) < 0 || world_.home_of(v) == self_))
      return at_shift(v, node, std::move(dims));
    // A row's constant that is computed here as well needs no memory.
    if (const int known = find(Step::Role::compute, v, dims); known >= 0 && node.kind() == Kind::pointwise)
      return known;
    if (!compute_here && world_.in_memory(v)) {
      if (world_.home_of(v) != self_) return add_step(Step::Role::load, v, std::move(dims), {});
      if (node.kind() == Kind::reduce || node.kind() == Kind::window) {
        int known = find(node.kind() == Kind::reduce ? Step::Role::reduce : Step::Role::window, v, dims);
        if (known < 0) throw StopFusing{"different_iteration_space"};
        if (kernel_.steps[static_cast<size_t>(known)].side) throw StopFusing{"different_reduction"};
        return known;
      }
    }
    switch (node.kind()) {
      case Kind::pointwise:
        return at_pointwise(v, node, std::move(dims));
      case Kind::movement:
        return at_movement(v, node, std::move(dims));
      default:
        fail(graph().describe(v), ": not in memory although a kernel reads it");
    }
  }

  int at_pointwise(Value v, const Node& node, Dims dims) {
    if (int known = find(Step::Role::compute, v, dims); known >= 0) return known;
    std::vector<int> operands;
    Watch watch(*this, dims);
    for (Value operand : node.operands) {
      const Shape& shape = graph().shape(operand);
      Dims own(shape.size());
      for (size_t d = 0; d < shape.size(); ++d)
        if (!shape[d].is(1)) own[d] = dims[d + dims.size() - shape.size()];
      operands.push_back(at(operand, std::move(own)));
    }
    return add_step(Step::Role::compute, v, dims, std::move(operands));
  }

  int at_movement(Value v, const Node& node, Dims dims) {
    Value operand = node.operands[0];
    const Shape& shape = graph().shape(operand);
    if (node.op == Op::permute) {
      Dims own(dims.size());
      for (size_t d = 0; d < dims.size(); ++d) own[static_cast<size_t>(node.ints("dims")[d])] = dims[d];
      return at(operand, std::move(own));
    }
    if (node.op == Op::expand) {
      Dims own(shape.size());
      for (size_t d = 0; d < shape.size(); ++d)
        if (!shape[d].is(1)) own[d] = dims[d + dims.size() - shape.size()];
      return at(operand, std::move(own));
    }
    std::vector<int> flat;
    for (const auto& list : dims) flat.insert(flat.end(), list.begin(), list.end());
    Dims own;
    try {
      own = regroup(flat, shape);
    } catch (const StopFusing& stop) {
      throw StopFusing{stop.reason, v};
    }
    return at(operand, std::move(own));
  }

  // A read at other positions: a window of one element. Dimensions that are neither moved nor cut keep their axes.
  int at_shift(Value v, const Node& node, Dims dims) {
    if (int known = find(Step::Role::window, v, dims); known >= 0) return known;
    const Shape& inner_shape = graph().shape(node.operands[0]);
    Dims own(dims.size());
    std::vector<int> taps;
    for (size_t d = 0; d < dims.size(); ++d)
      for (int a : dims[d])
        if (axis(a).tap) throw StopFusing{"window_in_window", v};
    Watch watch(*this, dims), inner(*this, own);
    for (size_t d = 0; d < dims.size(); ++d) {
      const int64_t start = node.ints("start")[d];
      if (start == 0 && inner_shape[d] == node.type.shape[d]) {
        own[d] = dims[d];
        continue;
      }
      if (dims[d].size() > 1) throw StopFusing{"window_dimension", v};
      Axis tap;
      tap.size = inner_shape[d];
      tap.tap = true;
      tap.base = dims[d].empty() ? -1 : dims[d][0];
      tap.padding = -start;
      if (tap.base >= 0) axis(tap.base).pinned = true;
      kernel_.axes.push_back(tap);
      taps.push_back(static_cast<int>(kernel_.axes.size()) - 1);
      own[d] = {taps.back()};
    }
    require(!taps.empty(), graph().describe(v), ": a shift that moves nothing is no step of a kernel");
    Watch watched_taps(*this, taps);
    const int operand = at(node.operands[0], own);
    kernel_.steps.push_back({Step::Role::window, v, dims, {operand}, taps, false});
    return static_cast<int>(kernel_.steps.size()) - 1;
  }

  int add_reduce(Value v, const Node& node) {
    Value operand = node.operands[0];
    const Shape& shape = graph().shape(operand);
    const Ints& reduced_dims = node.ints("dims");
    bool has_reduction = kernel_.reduces();
    bool fresh = kernel_.axes.empty();
    Dims dims;
    if (fresh) {
      dims = place(shape);
    } else {
      try {
        dims = regroup(loops(true), shape);
      } catch (const StopFusing&) {
        throw StopFusing{"different_iteration_space"};
      }
    }
    Watch watch(*this, dims);
    auto is_reduced = [&](size_t d) {
      return std::find(reduced_dims.begin(), reduced_dims.end(), static_cast<int64_t>(d)) != reduced_dims.end();
    };
    bool side = false;
    if (has_reduction) {
      for (size_t d = 0; d < dims.size(); ++d)
        for (int a : dims[d]) side |= axis(a).reduced != is_reduced(d);
      if (side) {
        std::vector<bool> summed;
        for (size_t d = 0; d < dims.size(); ++d) summed.push_back(is_reduced(d));
        if (const char* reason = why_not_join(graph(), kernel_, {v, &dims, &summed}, world_.dialect))
          throw StopFusing{reason};
      }
    } else {
      for (size_t d = 0; d < dims.size(); ++d)
        for (int a : dims[d]) axis(a).reduced = is_reduced(d);
    }
    int inner = at(operand, dims);
    Dims own;
    for (size_t d = 0; d < dims.size(); ++d) {
      if (!is_reduced(d))
        own.push_back(dims[d]);
      else if (node.integer("keepdim"))
        own.emplace_back();
    }
    int step = add_step(Step::Role::reduce, v, std::move(own), {inner});
    kernel_.steps[static_cast<size_t>(step)].side = side;
    return step;
  }

  int add_window(Value v, const Node& node, Dims dims) {
    const Ints &kernel = node.ints("kernel"), &stride = node.ints("stride"), &padding = node.ints("padding");
    bool gather = node.op == Op::max_pool_grad || node.op == Op::avg_pool_grad;
    size_t first = dims.size() - kernel.size();
    const Shape& inner_shape = graph().shape(node.operands[0]);
    if (!gather && overlaps(node) && cost_of(node.operands[0]) >= cost_of_a_function)
      throw StopFusing{"window_overlap", node.operands[0]};
    Watch watch(*this, dims);
    Dims own(dims.begin(), dims.begin() + static_cast<long>(first));
    Step step{Step::Role::window, v, dims, {}, {}, false};
    // Two windows over the same input with the same parameters share their taps, and in the end their loop.
    for (const Step& other : kernel_.steps)
      if (other.role == Step::Role::window && other.dims == dims && same_window(other.value, v)) step.taps = other.taps;
    bool shared = !step.taps.empty();
    for (size_t i = 0; i < kernel.size(); ++i) {
      const std::vector<int>& list = dims[first + i];
      if (list.size() > 1) throw StopFusing{"window_dimension"};
      if (!shared) {
        Axis tap;
        tap.size = inner_shape[first + i];
        tap.tap = true;
        tap.gather = gather;
        tap.base = list.empty() ? -1 : list[0];
        tap.kernel = kernel[i];
        tap.stride = stride[i];
        tap.padding = padding[i];
        tap.dilation = node.has("dilation") ? node.ints("dilation")[i] : 1;
        if (tap.base >= 0) axis(tap.base).pinned = true;
        kernel_.axes.push_back(tap);
        step.taps.push_back(static_cast<int>(kernel_.axes.size()) - 1);
      }
      own.push_back({step.taps[i]});
    }
    Watch taps(*this, own);
    for (Value operand : node.operands) step.operands.push_back(at(operand, own));
    step.dims = dims;
    for (size_t i = 0; i < kernel.size(); ++i) step.taps[i] = own[first + i].at(0);
    kernel_.steps.push_back(std::move(step));
    return static_cast<int>(kernel_.steps.size()) - 1;
  }

  bool same_window(Value a, Value b) const {
    const Node &x = graph()[a], &y = graph()[b];
    return x.operands == y.operands && x.attrs == y.attrs;
  }

  static bool overlaps(const Node& node) {
    for (size_t i = 0; i < node.ints("kernel").size(); ++i)
      if (node.ints("kernel")[i] > node.ints("stride")[i]) return true;
    return false;
  }

  // The dearest operation among those that would be recomputed for each window.
  int cost_of(Value v) const {
    int cost = 0;
    walk_upstream(graph(), v, [&](Value next) {
      if (world_.in_memory(next) || graph()[next].kind() == Kind::source) return false;
      cost = std::max(cost, info(graph()[next].op).cost);
      return true;
    });
    return cost;
  }

  const World& world_;
  Kernel kernel_;
  int self_;
  std::vector<std::vector<int>*> watched_;
};

class Fuser {
 public:
  // `apart`: values that no kernel with a reduction may write (passes/straighten.cpp).
  Fuser(const Graph& graph, Dialect dialect, std::set<Value> apart)
      : graph_(graph), world_{graph, {}, {}, dialect}, apart_(std::move(apart)) {}

  Fusion run() {
    const Streams streams(graph_);
    std::vector<bool> is_output(graph_.nodes.size());
    std::vector<Value> counters;
    for (const Output& output : graph_.outputs) is_output[static_cast<size_t>(output.value)] = true;
    for (const Output& output : graph_.outputs) {
      if (!is_counter(output)) continue;
      is_output[static_cast<size_t>(output.value)] = false;
      counters.push_back(output.value);
    }
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      Value v = static_cast<Value>(i);
      switch (graph_.nodes[i].kind()) {
        case Kind::contraction:
          add_contraction(v);
          break;
        case Kind::reduce:
        case Kind::window:
          if (graph_.nodes[i].op != Op::shift) {
            place(v);
            break;
          }
          [[fallthrough]];
        default:
          if (is_layout_copy(graph_, v))
            place_alone(v);
          else if (is_output[i])
            add_output(v);
          else if (is_stream(streams, v))
            place(v);
          else if (world_.dialect == Dialect::cuda && is_row_constant(v))
            add_row_constant(v);
      }
    }
    for (Value v : counters) place_counter(v);
    mark_stores();
    return order();
  }

 private:
  // One number made of single numbers that the caller gives, which takes the place of one of them.
  bool is_counter(const Output& output) const {
    if (output.into < 0 || graph_.type(output.value).rank() != 0 || graph_[output.value].kind() != Kind::pointwise)
      return false;
    bool single = true;
    walk_upstream(graph_, output.value, [&](Value v) {
      const Kind kind = graph_[v].kind();
      single &= graph_.type(v).rank() == 0 && (kind == Kind::pointwise || kind == Kind::source);
      return single;
    });
    return single;
  }

  // A launch for one number costs as much as one for a thousand: a kernel that has rows does it on the way.
  void place_counter(Value v) {
    for (int g = 0; g < static_cast<int>(groups_.size()); ++g) {
      if (!groups_[static_cast<size_t>(g)].kernel.reduces()) continue;
      KernelBuilder builder(world_, groups_[static_cast<size_t>(g)].kernel, g);
      try {
        int step = builder.add_once(v);
        commit(g, builder.take(), v, step);
        return;
      } catch (const StopFusing&) {
      }
    }
    place(v);
  }

  // A residual stream that several kernels need is written to memory once.
  bool is_stream(const Streams& streams, Value v) const {
    auto in_memory = [&](Value x) { return world_.in_memory(x) || graph_[x].kind() == Kind::source; };
    return graph_[v].kind() == Kind::pointwise && streams.is_read_by_later_layers(v) &&
           streams.reads_earlier_layers(v, in_memory);
  }

  // Divisions and roots; rounded to 16 bits their results would be other numbers.
  bool is_dear(Value v) const {
    const Node& node = graph_[v];
    return node.kind() == Kind::pointwise && info(node.op).cost >= dear_for_each && is_float(node.type.dtype) &&
           size_of(node.type.dtype) >= 4;
  }

  // What takes divisions or roots of a reduction's results: a kernel that moves whole vectors of elements would compute
  // it for each of them.
  bool is_row_constant(Value v) const {
    if (!is_dear(v)) return false;
    const int64_t own = graph_.hint(product(graph_.shape(v)));
    bool found = false;
    walk_upstream(graph_, v, [&](Value next) {
      const Node& above = graph_[next];
      if (above.kind() == Kind::reduce)
        found |= graph_.hint(product(graph_.shape(above.operands[0]))) >= long_rows * own;
      return above.kind() == Kind::pointwise && graph_.hint(product(above.type.shape)) <= own;
    });
    return found;
  }

  // It stays with the reduction, and is written there if another kernel reads it.
  void add_row_constant(Value v) {
    const auto before = static_cast<std::ptrdiff_t>(stops_.size());
    join(v);
    stops_.erase(stops_.begin() + before, stops_.end());
  }

  // A region's result. A plain view of what is in memory anyway needs no kernel, nor does a repeated constant (the
  // gradient of an input that has no influence).
  void add_output(Value v) {
    if (graph_[v].op == Op::input) return;  // a gradient that is the incoming one
    Value base = v;
    while (graph_[base].op == Op::reshape) base = graph_[base].operands[0];
    bool written = graph_[base].op != Op::input && world_.home.count(base) != 0;
    if ((base != v && written) || is_zero(graph_.base(v)))
      world_.views.insert(v);
    else
      place(v);
  }

  bool is_zero(Value v) const {
    const Node& node = graph_[v];
    return node.op == Op::constant && !node.has("runtime") && node.number("value") == 0;
  }

  // A contraction starts a kernel. Its operands are in memory.
  void add_contraction(Value v) {
    Kernel kernel;
    Step contraction{Step::Role::contract, v, Dims(graph_.shape(v).size()), {}, {}, true};
    for (Value operand : graph_[v].operands) {
      Value base = graph_.base(operand);
      materialise(base);
      if (base != operand) world_.views.insert(operand);
      contraction.operands.push_back(static_cast<int>(kernel.steps.size()));
      kernel.steps.push_back({Step::Role::load, operand, Dims(graph_.shape(operand).size()), {}, {}, false});
    }
    note("library_call", v, "runs in the host's library");
    kernel.steps.push_back(std::move(contraction));
    commit(static_cast<int>(groups_.size()), std::move(kernel), v, static_cast<int>(graph_[v].operands.size()));
  }

  void materialise(Value v) {
    if (!world_.in_memory(v)) place(v);
  }

  // Finds v a kernel, or starts one.
  void place(Value v, bool may_join = true) {
    if (world_.home.count(v)) return;
    for (int attempt = 0;; ++attempt) {
      require(attempt < 64, graph_.describe(v), ": could not be given a kernel");
      try {
        if (!may_join || !join(v)) start(v);
        return;
      } catch (const StopFusing& stop) {
        if (stop.culprit < 0) fail(graph_.describe(v), ": ", stop.reason);
        note(stop.reason, stop.culprit, "materialised");
        if (graph_[stop.culprit].op == Op::reshape) {
          materialise(graph_.base(stop.culprit));
          world_.views.insert(stop.culprit);
          if (stop.culprit == v) return;
        } else {
          materialise(stop.culprit);
        }
      }
    }
  }

  // A copy into another memory order. Whoever needs both orders in a reduction reads the copy.
  void place_alone(Value v) {
    place(v, false);
    alone_.insert(world_.home[v]);
  }

  void start(Value v) {
    KernelBuilder builder(world_, {}, static_cast<int>(groups_.size()));
    int step = builder.add_item(v);
    commit(static_cast<int>(groups_.size()), builder.take(), v, step);
    if (apart_.count(v)) tiled_.insert(world_.home[v]);
  }

  // Latest kernel first: it is the one that computes what v needs, or reads what v reads.
  bool join(Value v) {
    const Neighbours near = neighbours_of(v);
    for (auto next = near.share.rbegin(); next != near.share.rend(); ++next) {
      const int g = *next;
      const Kernel& kernel = groups_[static_cast<size_t>(g)].kernel;
      if (alone_.count(g) || why_not_join(graph_, kernel, {v}, world_.dialect)) continue;
      const bool depends = near.compute.count(g) != 0;
      if ((apart_.count(v) != 0) != (tiled_.count(g) != 0)) {
        if (depends) note("different_memory_order", v, "not in the kernel that computes its operand");
        continue;
      }
      KernelBuilder builder(world_, kernel, g);
      try {
        int step = builder.add_item(v);
        if (!shares_data(g, builder.kernel(), step)) continue;
        require_no_cycle(g, builder.kernel());
        commit(g, builder.take(), v, step);
        return true;
      } catch (const StopFusing& stop) {
        if (depends) note(stop.reason, v, "not in the kernel that computes its operand");
      }
    }
    return false;
  }

  // Kernels that hold something of what v is computed from, and those of them that compute what v reads from memory.
  // No other kernel shares data with v: to try it would copy it for nothing, and large models have hundreds.
  struct Neighbours {
    std::set<int> share, compute;
  };
  Neighbours neighbours_of(Value v) const {
    Neighbours result;
    walk_upstream(graph_, v, [&](Value next) {
      const auto holders = holders_.find(next);
      if (holders != holders_.end()) result.share.insert(holders->second.begin(), holders->second.end());
      const int home = next == v ? -1 : world_.home_of(next);
      if (home >= 0) {
        result.compute.insert(home);
        result.share.insert(home);
      }
      return next == v || !world_.in_memory(next);
    });
    return result;
  }

  // Joining must save a read: the item uses a value that the kernel computed or loaded before. Where it does not, no
  // fusion was stopped: an item that needs something of the kernel always shares that.
  bool shares_data(int g, const Kernel& kernel, int step) const {
    size_t before = groups_[static_cast<size_t>(g)].kernel.steps.size();
    std::vector<bool> seen(kernel.steps.size());
    std::vector<int> todo = {step};
    while (!todo.empty()) {
      int s = todo.back();
      todo.pop_back();
      if (seen[static_cast<size_t>(s)]) continue;
      seen[static_cast<size_t>(s)] = true;
      const Step& current = kernel.steps[static_cast<size_t>(s)];
      if (static_cast<size_t>(s) < before && current.role != Step::Role::scalar) return true;
      todo.insert(todo.end(), current.operands.begin(), current.operands.end());
    }
    return false;
  }

  std::set<int> reads(const Kernel& kernel) const {
    std::set<int> result;
    for (const Step& step : kernel.steps)
      if (step.role == Step::Role::load)
        if (int home = world_.home_of(step.value); home >= 0) result.insert(home);
    return result;
  }

  const std::set<int>& reads(int g) const { return reads_[static_cast<size_t>(g)]; }

  void require_no_cycle(int g, const Kernel& kernel) const {
    std::vector<bool> seen(groups_.size());
    std::vector<int> todo;
    for (int other : reads(kernel)) todo.push_back(other);
    while (!todo.empty()) {
      int other = todo.back();
      todo.pop_back();
      if (other == g) throw StopFusing{"would_form_cycle"};
      if (seen[static_cast<size_t>(other)]) continue;
      seen[static_cast<size_t>(other)] = true;
      for (int next : reads(other)) todo.push_back(next);
    }
  }

  void commit(int g, Kernel kernel, Value v, int step) {
    if (g == static_cast<int>(groups_.size())) groups_.emplace_back();
    reads_.resize(groups_.size());
    reads_[static_cast<size_t>(g)] = reads(kernel);
    // Steps are added behind those that were there.
    const size_t before = groups_[static_cast<size_t>(g)].kernel.steps.size();
    for (size_t s = before; s < kernel.steps.size(); ++s)
      if (kernel.steps[s].role != Step::Role::scalar) holders_[kernel.steps[s].value].insert(g);
    if (world_.dialect == Dialect::cuda) keep_row_constants(g, kernel, before);
    groups_[static_cast<size_t>(g)].kernel = std::move(kernel);
    world_.home[v] = g;
    made_by_[v] = step;
  }

  static bool is_one_for_each_row(const Kernel& kernel, const Step& step) {
    std::set<int> rows, own;
    for (size_t a = 0; a < kernel.axes.size(); ++a)
      if (!kernel.axes[a].reduced && !kernel.axes[a].tap) rows.insert(static_cast<int>(a));
    for (const std::vector<int>& list : step.dims) own.insert(list.begin(), list.end());
    return own == rows;
  }

  // Others may read what a reduction's kernel works out for its rows, among the steps from `first` on.
  void keep_row_constants(int g, const Kernel& kernel, size_t first) {
    int64_t elements = 1;
    for (const Axis& axis : kernel.axes)
      if (axis.reduced) elements *= graph_.hint(axis.size);
    if (!kernel.reduces() || elements < long_rows) return;
    for (size_t s = first; s < kernel.steps.size(); ++s) {
      const Step& step = kernel.steps[s];
      if (step.role != Step::Role::compute || !is_dear(step.value)) continue;
      // One for each row: a number that all rows share would not be written where there are none.
      if (!is_one_for_each_row(kernel, step) || !world_.home.try_emplace(step.value, g).second) continue;
      made_by_[step.value] = static_cast<int>(s);
    }
  }

  void note(const char* reason, Value v, const char* detail) { stops_.push_back({reason, v, detail}); }

  // Written to memory: region results, and what another group reads.
  void mark_stores() {
    std::set<Value> wanted;  // constants may be among them: no kernel makes those
    for (const Output& output : graph_.outputs) {
      Value v = output.value;
      wanted.insert(world_.views.count(v) ? graph_.base(v) : v);
    }
    for (size_t g = 0; g < groups_.size(); ++g) {
      for (const Step& step : groups_[g].kernel.steps)
        if (step.role == Step::Role::load)
          wanted.insert(world_.views.count(step.value) ? graph_.base(step.value) : step.value);
    }
    for (const auto& [v, step] : made_by_)
      if (wanted.count(v))
        groups_[static_cast<size_t>(world_.home.at(v))].kernel.steps[static_cast<size_t>(step)].stored = true;
  }

  Fusion order() {
    Fusion fusion;
    fusion.stops = std::move(stops_);
    std::vector<int> state(groups_.size());
    auto visit = [&](auto&& self, int g) -> void {
      if (state[static_cast<size_t>(g)]) return;
      state[static_cast<size_t>(g)] = 1;
      for (int other : reads(g)) self(self, other);
      fusion.groups.push_back(groups_[static_cast<size_t>(g)]);
    };
    for (size_t g = 0; g < groups_.size(); ++g) visit(visit, static_cast<int>(g));
    return fusion;
  }

  const Graph& graph_;
  World world_;
  std::vector<Group> groups_;
  std::vector<std::set<int>> reads_;        // by group: those whose results it reads
  std::map<Value, int> made_by_;            // step of its home's kernel
  std::map<Value, std::set<int>> holders_;  // kernels with a step of this value, numbers aside
  const std::set<Value> apart_;
  std::set<int> alone_;  // groups that nothing else joins
  std::set<int> tiled_;  // groups of values that are apart, which only others of these join
  std::vector<Stop> stops_;
};

}  // namespace

// A result of the forward never is the tensor that was handed in. (A gradient may be the incoming one.)
static void copy_returned_inputs(Graph& graph) {
  Builder builder(graph);
  for (Output& output : graph.outputs) {
    if (graph[output.value].op != Op::input) continue;
    const Type type = graph.type(output.value);
    output.value = builder.reshape(output.value, type.shape);
    graph[output.value].type.order = type.order;
  }
}

Fusion group_into_kernels(const Graph& graph, const Options& options, const std::set<Value>& apart) {
  return Fuser(graph, dialect_of(options), apart).run();
}

void fuse(Program& program) {
  copy_returned_inputs(program.forward);
  program.forward_fusion = group_into_kernels(program.forward, program.options);
  if (!program.backward.outputs.empty())
    program.backward_fusion = group_into_kernels(program.backward, program.options);
}

}  // namespace fusewright
