// Kernels with a reduction on a GPU walk memory in one order. An operand that lies along another loop is read or
// written element by element, which moves a whole sector of memory for each: up to eight times the bytes. So is one
// that lies along a loop of a few elements, the channels of a group in a channels-last image. Pointwise kernels do not
// have that problem (kernels/cuda_tile.h). So, for each kernel with a reduction one order is chosen, and
//   - what it reads in another order is copied into this one before;
//   - what it would write in another order is left to a pointwise kernel, which reads the data once more.
// A copy that forward and backward both need of an input is made by the forward, and kept instead of the input.
//
// Which kernel computes a result is for `fuse` to say, so that it groups anew where something is left out. A copy is
// one more group, and a kernel loads it in place of what it is a copy of.
#include <algorithm>

#include "passes/program.h"

namespace fusewright {
namespace {

constexpr int64_t worth_copying = 1 << 20;  // bytes: of less, the launch of a copy takes longer than it saves
constexpr int64_t fast_piece = 64;          // bytes: shorter pieces of memory waste the difference
constexpr int64_t held_elements = 65536;    // of a row, by a cluster of blocks: longer ones are read in every pass

// A value that kernels read in another order.
struct Copy {
  Value of;
  Order order;
  std::vector<std::pair<size_t, size_t>> loads;  // group, step
};
using Copies = std::vector<Copy>;

template <class Some>  // Copies that may change, or not
auto find(Some& copies, Value of, const Order& order) {
  auto found = std::find_if(copies.begin(), copies.end(), [&](auto& c) { return c.of == of && c.order == order; });
  return found == copies.end() ? nullptr : &*found;
}

// What a kernel reads and writes of full size.
struct Operand {
  const Step* step;
  bool load;
  int64_t bytes;
  std::vector<int> loops;  // outermost in memory first, without those of one element
};

// The order in which a value lies as near as possible along these loops.
Order order_along(const Dims& dims, const std::vector<int>& loops) {
  auto place = [&](int d) {
    const std::vector<int>& axes = dims[static_cast<size_t>(d)];
    auto innermost = std::find_first_of(loops.rbegin(), loops.rend(), axes.begin(), axes.end());
    return loops.rend() - innermost;
  };
  Order order;
  for (size_t d = 0; d < dims.size(); ++d) order.push_back(static_cast<int>(d));
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return place(a) < place(b); });
  return is_row_major(order) ? Order{} : order;
}

class Straightener {
 public:
  // `free`: copies that cost nothing, because they save the same copies elsewhere.
  Straightener(const Graph& graph, const Fusion& fusion, Copies free) : graph_(graph), free_(std::move(free)) {
    for (size_t g = 0; g < fusion.groups.size(); ++g) {
      const Kernel& kernel = fusion.groups[g].kernel;
      if (kernel.reduces() && !kernel.has_windows()) look_at(kernel, g);
    }
  }

  std::set<Value> apart;  // to be written by pointwise kernels
  Copies copies;

 private:
  void look_at(const Kernel& kernel, size_t group) {
    const std::vector<Operand> operands = large_operands(kernel);
    std::vector<std::vector<int>> orders;
    for (const Operand& operand : operands) orders.push_back(operand.loops);
    if (orders.empty()) return;
    orders.push_back(row_major_loops(kernel));
    const std::vector<int>* best = nullptr;
    int64_t least = 0;
    for (const std::vector<int>& loops : orders) {
      const int64_t bytes = moved_bytes(kernel, operands, loops);
      if (best && bytes >= least) continue;
      best = &loops;
      least = bytes;
    }
    // Rows that are too long to be held are read once more for what is written: in short pieces, where a pointwise
    // kernel reads and writes whole lines.
    const bool in_pieces = row_elements(kernel) > held_elements && piece_bytes(kernel, operands, *best) < fast_piece;
    for (const Operand& operand : operands) {
      const bool along = operand.loops.back() == best->back();
      const Value v = operand.step->value;
      if (!operand.load) {
        if (!along || in_pieces) apart.insert(v);
        continue;
      }
      if (along) continue;
      const Order order = order_along(operand.step->dims, *best);
      if (order != graph_.type(v).order) {
        if (!find(copies, v, order)) copies.push_back({v, order, {}});
        find(copies, v, order)->loads.emplace_back(group, operand.step - kernel.steps.data());
      }
    }
  }

  bool is_one(const Kernel& kernel, int a) const { return graph_.hint(kernel.axes[static_cast<size_t>(a)].size) == 1; }

  int64_t row_elements(const Kernel& kernel) const {
    int64_t elements = 1;
    for (const Axis& axis : kernel.axes)
      if (axis.reduced) elements *= graph_.hint(axis.size);
    return elements;
  }

  std::vector<int> row_major_loops(const Kernel& kernel) const {
    std::vector<int> loops;
    for (int a = 0; a < static_cast<int>(kernel.axes.size()); ++a)
      if (!is_one(kernel, a)) loops.push_back(a);
    return loops;
  }

  std::vector<Operand> large_operands(const Kernel& kernel) const {
    std::vector<Operand> operands;
    size_t most = 0;
    for (const Step& step : kernel.steps) {
      const bool load = step.role == Step::Role::load;
      if (!load && !step.stored) continue;
      std::vector<int> loops = loops_in_memory(graph_, kernel, step);
      std::erase_if(loops, [&](int a) { return is_one(kernel, a); });
      most = std::max(most, loops.size());
      operands.push_back({&step, load, graph_.bytes(step.value), std::move(loops)});
    }
    std::erase_if(operands,
                  [&](const Operand& o) { return o.loops.size() < most || most == 0 || o.bytes < worth_copying; });
    return operands;
  }

  // What is moved beside the kernel's own reading and writing, if it walks these loops.
  int64_t moved_bytes(const Kernel& kernel, const std::vector<Operand>& operands, const std::vector<int>& loops) {
    int64_t copied = 0, read = 0, along = 0;
    bool apart = false;
    for (const Operand& operand : operands) {
      if (operand.load) read += operand.bytes;
      if (operand.loops.back() == loops.back()) {
        along += operand.bytes;
      } else if (!operand.load) {
        apart = true;
      } else {
        along += operand.bytes;
        const Order order = order_along(operand.step->dims, loops);
        const bool made = find(free_, operand.step->value, order) || find(copies, operand.step->value, order);
        if (!made) copied += 2 * operand.bytes;
      }
    }
    const int64_t piece = piece_bytes(kernel, operands, loops);
    return copied + (apart ? read : 0) + (piece < fast_piece ? along * (fast_piece / piece - 1) : 0);
  }

  // How much memory in one piece a block reads, if it walks these loops: of a row whose elements lie between those of
  // other rows the inner part, else enough. Only rows have sums on the side.
  int64_t piece_bytes(const Kernel& kernel, const std::vector<Operand>& operands, const std::vector<int>& loops) const {
    auto reduced = [&](int a) { return kernel.axes[static_cast<size_t>(a)].reduced; };
    const bool sides =
        std::any_of(kernel.steps.begin(), kernel.steps.end(), [](const Step& step) { return step.side; });
    if (!sides && !walks_rows(kernel, operands, loops)) return fast_piece;
    int64_t piece = size_of(graph_.dtype(operands[0].step->value));
    auto loop = loops.rbegin();
    for (; loop != loops.rend() && reduced(*loop); ++loop)
      piece *= graph_.hint(kernel.axes[static_cast<size_t>(*loop)].size);
    return std::any_of(loop, loops.rend(), reduced) ? piece : fast_piece;
  }

  // Whether the schedule will be one of rows: by the innermost loop, even if that is one of a single element.
  bool walks_rows(const Kernel& kernel, const std::vector<Operand>& operands, const std::vector<int>& loops) const {
    int innermost = loops.back();
    for (const Operand& operand : operands)
      if (operand.loops == loops) innermost = loops_in_memory(graph_, kernel, *operand.step).back();
    return kernel.axes[static_cast<size_t>(innermost)].reduced;
  }

  const Graph& graph_;
  Copies free_;
};

Group group_of_copy(const Graph& graph, Value of, Value copy) {
  Group group;
  Dims dims;
  for (const Size& size : graph.shape(of)) {
    dims.emplace_back();
    if (size.is(1)) continue;
    dims.back().push_back(static_cast<int>(group.kernel.axes.size()));
    group.kernel.axes.emplace_back().size = size;
  }
  group.kernel.steps.push_back({Step::Role::load, of, dims, {}, {}, false});
  group.kernel.steps.push_back({Step::Role::compute, copy, dims, {0}, {}, true});
  return group;
}

// Each in front of the first group that reads it. Returns the values.
std::vector<Value> add_copies(Graph& graph, Fusion& fusion, const Copies& copies) {
  std::vector<Value> values;
  std::vector<std::pair<size_t, Group>> added;
  for (const Copy& copy : copies) {
    values.push_back(layout_copy(graph, copy.of, copy.order));
    size_t first = fusion.groups.size();
    for (const auto& [group, step] : copy.loads) {
      fusion.groups[group].kernel.steps[step].value = values.back();
      first = std::min(first, group);
    }
    added.emplace_back(first, group_of_copy(graph, copy.of, values.back()));
  }
  std::stable_sort(added.begin(), added.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  for (auto& [first, group] : added)
    fusion.groups.insert(fusion.groups.begin() + static_cast<std::ptrdiff_t>(first), std::move(group));
  return values;
}

// How often a graph's input is read by what wants it as it lies, or returned. Pointwise kernels take any order.
size_t uses_of(const Graph& graph, const Fusion& fusion, Value input) {
  size_t uses = 0;
  for (const Output& output : graph.outputs) uses += graph.base(output.value) == input;
  for (const Group& group : fusion.groups) {
    const bool pointwise = group.kernel.is_pointwise();
    for (const Step& step : group.kernel.steps)
      uses += loads(graph, step, input) && !(pointwise && step.value == input);
  }
  return uses;
}

// Copies of inputs of the forward that the backward would make as well, and needs the inputs for nothing else.
Copies to_be_kept(const Program& program, const Copies& of_backward) {
  Copies result;
  for (size_t i = 0; i < program.saved.size(); ++i) {
    const Program::Saved& saved = program.saved[i];
    if (!saved.is_input || saved.sizes_only) continue;
    for (const Copy& copy : of_backward)
      if (copy.of == program.backward.inputs[i] &&
          copy.loads.size() == uses_of(program.backward, program.backward_fusion, copy.of))
        result.push_back({program.forward.inputs[static_cast<size_t>(saved.index)], copy.order, {}});
  }
  return result;
}

// What the forward has copied for itself, the backward reads as it is.
void keep_copies(Program& program, const Copies& wanted, const Copies& made, const std::vector<Value>& values,
                 Copies& of_backward) {
  Graph &forward = program.forward, &backward = program.backward;
  for (size_t i = 0; i < program.saved.size(); ++i) {
    Program::Saved& saved = program.saved[i];
    if (!saved.is_input || saved.sizes_only) continue;
    const Value input = forward.inputs[static_cast<size_t>(saved.index)], again = backward.inputs[i];
    for (size_t c = 0; c < made.size() && saved.is_input; ++c) {
      const Order& order = made[c].order;
      if (made[c].of != input || !find(wanted, input, order)) continue;
      std::erase_if(of_backward, [&](const Copy& copy) { return copy.of == again; });
      backward[again].type.order = order;
      const size_t number = forward.outputs.size() - program.user_outputs;
      saved = {false, static_cast<int>(forward.outputs.size()), false};
      forward.outputs.push_back({values[c], order, false, "saved" + std::to_string(number)});
    }
  }
}

}  // namespace

void straighten(Program& program) {
  if (!program.options.cuda || disabled_rules(program.options).count("one_memory_order")) return;
  bool used = false;
  auto looked_at = [&](const Graph& graph, Fusion& fusion, const Copies& free) {
    const Straightener first(graph, fusion, free);
    if (first.apart.empty()) return first;
    fusion = group_into_kernels(graph, program.options, first.apart);
    used = true;
    return Straightener(graph, fusion, free);
  };
  Copies of_backward = looked_at(program.backward, program.backward_fusion, {}).copies;
  const Copies wanted = to_be_kept(program, of_backward);
  const Copies of_forward = looked_at(program.forward, program.forward_fusion, wanted).copies;
  used |= !of_forward.empty() || !of_backward.empty();
  const std::vector<Value> values = add_copies(program.forward, program.forward_fusion, of_forward);
  keep_copies(program, wanted, of_forward, values, of_backward);
  add_copies(program.backward, program.backward_fusion, of_backward);
  if (used) program.rewrites.push_back("one_memory_order");
}

}  // namespace fusewright
