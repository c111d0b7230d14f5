// Kernels with a reduction on a GPU walk memory in one order. An operand that lies along another loop is read or
// written element by element, which moves a whole sector of memory for each: up to eight times the bytes. So is one
// that lies along a loop of a few elements, the channels of a group in a channels-last image. Pointwise kernels do not
// have that problem (kernels/cuda_tile.h). So, for each kernel with a reduction one order is chosen, and
//   - what it reads in another order is copied into this one before;
//   - what it would write in another order is left to a pointwise kernel, which reads the data once more.
// A copy that forward and backward both need of an input is made by the forward, and kept instead of the input.
#include <algorithm>

#include "passes/program.h"
#include "passes/rebuild.h"
#include "passes/upstream.h"

namespace fusewright {
namespace {

constexpr int64_t worth_copying = 1 << 20;  // bytes: of less, the launch of a copy takes longer than it saves
constexpr int64_t fast_piece = 64;          // bytes: shorter pieces of memory waste the difference

using Copies = std::map<Value, Order>;  // what is read as a copy, in which order

struct Change {
  Copies copies;
  std::map<Value, Copies> readers;  // operations of kernels that read copies
  std::set<Value> apart;            // written by pointwise kernels
  bool empty() const { return copies.empty() && apart.empty(); }
};

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
  Straightener(const Graph& graph, Copies free) : graph_(graph), free_(std::move(free)) {}

  Change look_at(const Fusion& fusion) {
    for (const Group& group : fusion.groups) {
      const std::vector<Axis>& axes = group.kernel.axes;
      const bool window = std::any_of(axes.begin(), axes.end(), [](const Axis& axis) { return axis.tap; });
      if (!group.library && !window && group.kernel.reduces()) look_at(group.kernel);
    }
    return std::move(change_);
  }

 private:
  void look_at(const Kernel& kernel) {
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
    Copies copies;
    for (const Operand& operand : operands) {
      if (operand.loops.back() == best->back()) continue;
      const Value v = operand.step->value;
      if (!operand.load)
        change_.apart.insert(v);
      else if (const Order order = order_along(operand.step->dims, *best); order != graph_.type(v).order)
        copies[v] = change_.copies.try_emplace(v, order).first->second;
    }
    if (copies.empty()) return;
    for (const Step& step : kernel.steps)
      if (step.role == Step::Role::compute || step.role == Step::Role::reduce)
        change_.readers[step.value].insert(copies.begin(), copies.end());
  }

  bool is_one(const Kernel& kernel, int a) const { return graph_.hint(kernel.axes[static_cast<size_t>(a)].size) == 1; }

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
  int64_t moved_bytes(const Kernel& kernel, const std::vector<Operand>& operands, const std::vector<int>& loops) const {
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
        auto is_made = [&](const Copies& copies) {
          auto it = copies.find(operand.step->value);
          return it != copies.end() && it->second == order;
        };
        if (!is_made(free_) && !is_made(change_.copies)) copied += 2 * operand.bytes;
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
  const Copies free_;
  Change change_;
};

// As `rebuild`, in place. The values that are apart get their new names; `replace` gets the old one of each.
template <class Replace>
void rebuild_in_place(Graph& graph, std::set<Value>& apart, Replace replace) {
  const Graph from = std::move(graph);
  std::set<Value> renamed;
  graph = rebuild(from, [&](Builder& b, const Node& node, std::vector<Value>& operands) {
    const Value old = static_cast<Value>(&node - from.nodes.data());
    const Value v = replace(b, from, old, operands);
    if (apart.count(old)) renamed.insert(v);
    return v;
  });
  apart = std::move(renamed);
}

void add_copies(Graph& graph, Change& change) {
  std::map<std::pair<Value, Order>, Value> known;
  rebuild_in_place(graph, change.apart, [&](Builder& b, const Graph& from, Value old, std::vector<Value>& operands) {
    if (auto reads = change.readers.find(old); reads != change.readers.end()) {
      // To what is copied, through movements: whoever else needs those keeps them.
      auto through = [&](auto&& self, Value v, Value now) -> Value {
        if (auto copy = reads->second.find(v); copy != reads->second.end())
          return layout_copy(b.graph(), now, copy->second, known);
        if (from[v].kind() != Kind::movement) return now;
        const Value before = b.graph()[now].operands[0], after = self(self, from[v].operands[0], before);
        return after == before ? now : copy_node(b, from[v], {after});
      };
      for (size_t k = 0; k < operands.size(); ++k) operands[k] = through(through, from[old].operands[k], operands[k]);
    }
    return copy_node(b, from[old], operands);
  });
}

// The copy of an input that lies in this order, if nothing else that has a use reads the input; else -1.
Value only_copy(const Graph& graph, Value input, const Order& order) {
  std::set<Value> readers;
  for (const Output& output : graph.outputs)
    walk_upstream(graph, output.value, [&](Value v) {
      const std::vector<Value>& operands = graph[v].operands;
      if (v == input) readers.insert(-1);  // a result itself
      if (std::find(operands.begin(), operands.end(), input) == operands.end()) return true;
      readers.insert(v);
      return false;
    });
  const Value copy = readers.size() == 1 ? *readers.begin() : -1;
  return copy >= 0 && is_layout_copy(graph, copy) && graph.type(copy).order == order ? copy : -1;
}

class Sharing {
 public:
  explicit Sharing(Program& program) : program_(program) {}

  // Copies of the forward's inputs that the backward would make.
  Copies wanted(const Copies& of_backward) const {
    Copies result;
    for (size_t i = 0; i < program_.saved.size(); ++i)
      if (auto copy = of_backward.find(program_.backward.inputs[i]); copy != of_backward.end() && is_input(i))
        result[forward_input(i)] = copy->second;
    return result;
  }

  // Both graphs have their copies.
  void keep_copies(std::set<Value>& apart_in_backward) {
    for (size_t i = 0; i < program_.saved.size(); ++i) {
      if (!is_input(i)) continue;
      Graph &forward = program_.forward, &backward = program_.backward;
      for (Value copy = 0; copy < static_cast<Value>(forward.nodes.size()); ++copy) {
        if (!is_layout_copy(forward, copy) || forward[copy].operands[0] != forward_input(i)) continue;
        const Order order = forward.type(copy).order;
        const Value again = only_copy(backward, backward.inputs[i], order);
        if (again < 0) continue;
        program_.saved[i] = {false, static_cast<int>(forward.outputs.size()), false};
        const size_t number = forward.outputs.size() - program_.user_outputs;
        forward.outputs.push_back({copy, order, false, "saved" + std::to_string(number)});
        rebuild_in_place(backward, apart_in_backward,
                         [&](Builder& b, const Graph& from, Value old, std::vector<Value>& operands) {
                           return old == again ? operands[0] : copy_node(b, from[old], operands);
                         });
        backward[backward.inputs[i]].type.order = order;
        break;
      }
    }
  }

 private:
  bool is_input(size_t i) const { return program_.saved[i].is_input && !program_.saved[i].sizes_only; }
  Value forward_input(size_t i) const { return program_.forward.inputs[static_cast<size_t>(program_.saved[i].index)]; }

  Program& program_;
};

}  // namespace

void straighten(Program& program) {
  if (!program.options.cuda || disabled_rules(program.options).count("one_memory_order")) return;
  Sharing sharing(program);
  Change backward = Straightener(program.backward, {}).look_at(program.backward_fusion);
  Change forward = Straightener(program.forward, sharing.wanted(backward.copies)).look_at(program.forward_fusion);
  if (forward.empty() && backward.empty()) return;
  add_copies(program.forward, forward);
  add_copies(program.backward, backward);
  sharing.keep_copies(backward.apart);
  program.forward_fusion = group_into_kernels(program.forward, program.options, forward.apart);
  if (program.training())
    program.backward_fusion = group_into_kernels(program.backward, program.options, backward.apart);
  program.rewrites.push_back("one_memory_order");
}

}  // namespace fusewright
