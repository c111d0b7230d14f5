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

#include "ir/builder.h"
#include "passes/group/kernel_builder.h"
#include "passes/program.h"
#include "passes/streams.h"

namespace fusewright {
namespace {

// Operations that are not worked out anew for each element of rows of so many.
constexpr int dear_for_each = 2;
constexpr int64_t long_rows = 64;

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
