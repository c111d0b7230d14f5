// What the backward reads is saved or recomputed: region inputs, results of contractions, reductions and pooling are
// saved; every pointwise value is recomputed from them, and so are reductions of a few elements each that the backward
// reads anyway. A result that PyTorch, too, would keep is read where that is less than what it would be recomputed
// from. A residual stream is saved where a contraction or a norm reads it: recomputed, it would read the layers before
// it. What the region itself changes is not there any more when the backward runs: what was worked out from it is
// saved. Splits the joint graph into forward and backward.
#include <algorithm>
#include <map>

#include "ir/builder.h"
#include "passes/program.h"
#include "passes/rebuild.h"
#include "passes/streams.h"

namespace fusewright {
namespace {

class Splitter {
 public:
  explicit Splitter(Program& program) : program_(program), joint_(program.forward), builder_(backward_) {
    backward_.origins = joint_.origins;
    backward_.hints = joint_.hints;
    backward_.dynamic = joint_.dynamic;
    for (size_t i = 0; i < joint_.nodes.size(); ++i) joint_.nodes[i].joint = static_cast<int>(i);
    // Inputs added by differentiate stand after the forward's.
    forward_inputs_ = joint_.inputs.size() - program.gradient_of_output.size();
    needs_gradient_.resize(joint_.nodes.size());
    for (size_t i = forward_inputs_; i < joint_.inputs.size(); ++i) mark(joint_.inputs[i]);
    for (size_t i = 0; i < joint_.nodes.size(); ++i)
      for (Value v : joint_.nodes[i].operands)
        if (needs_gradient_[static_cast<size_t>(v)]) needs_gradient_[i] = true;
    find_forward_values();
    find_changing_values();
    find_masks();
  }

  void run() {
    collect_saved();
    // The saved values first, then the gradients, in the order that Program documents.
    std::vector<Value> forward_outputs;
    for (size_t i = 0; i < program_.user_outputs; ++i) forward_outputs.push_back(joint_.outputs[i].value);
    for (Value v : saved_) {
      auto input = std::find(joint_.inputs.begin(), joint_.inputs.end(), v);
      if (input != joint_.inputs.end()) {
        program_.saved.push_back({true, static_cast<int>(input - joint_.inputs.begin()), sizes_only_.count(v) != 0});
      } else {
        auto known = std::find(forward_outputs.begin(), forward_outputs.end(), v);
        program_.saved.push_back({false, static_cast<int>(known - forward_outputs.begin()), false});
        if (known == forward_outputs.end()) forward_outputs.push_back(v);
      }
      add_input(v);
    }
    for (size_t i = forward_inputs_; i < joint_.inputs.size(); ++i) add_input(joint_.inputs[i]);
    for (size_t i = program_.user_outputs; i < joint_.outputs.size(); ++i) {
      const Output& output = joint_.outputs[i];
      backward_.outputs.push_back({copy(output.value), output.order, false, output.name});
    }
    // What is left is the forward.
    joint_.outputs.resize(program_.user_outputs);
    for (size_t i = program_.user_outputs; i < forward_outputs.size(); ++i)
      joint_.outputs.push_back({forward_outputs[i], {}, false, "saved" + std::to_string(i - program_.user_outputs)});
    joint_.inputs.resize(forward_inputs_);
    remove_dead(joint_);
    program_.backward = std::move(backward_);
  }

 private:
  void mark(Value v) { needs_gradient_[static_cast<size_t>(v)] = true; }

  void find_forward_values() {
    in_forward_.resize(joint_.nodes.size());
    for (size_t i = 0; i < program_.user_outputs; ++i) in_forward_[static_cast<size_t>(joint_.outputs[i].value)] = true;
    for (size_t i = joint_.nodes.size(); i-- > 0;)
      if (in_forward_[i])
        for (Value v : joint_.nodes[i].operands) in_forward_[static_cast<size_t>(v)] = true;
  }

  // Inputs that are replaced (buffers of the user's), and views of them.
  void find_changing_values() {
    changes_.resize(joint_.nodes.size());
    for (int input : joint_.changing) changes_[static_cast<size_t>(joint_.inputs[static_cast<size_t>(input)])] = true;
    for (size_t i = 0; i < joint_.nodes.size(); ++i)
      if (joint_.nodes[i].kind() == Kind::movement && changes_[static_cast<size_t>(joint_.nodes[i].operands[0])])
        changes_[i] = true;
  }

  // Conditions x <= 0 of a relu, y = x <= 0 ? 0 : x: they are y <= 0 as well.
  void find_masks() {
    for (size_t i = 0; i < joint_.nodes.size(); ++i) {
      const Node& node = joint_.nodes[i];
      if (node.op != Op::select) continue;
      const Node &mask = joint_[node.operands[0]], &zero = joint_[node.operands[1]];
      if (mask.op != Op::le || mask.operands[0] != node.operands[2]) continue;
      if (zero.op != Op::maximum || !is_constant(joint_, zero.operands[0], 0)) continue;
      if (is_constant(joint_, mask.operands[1], 0)) result_of_mask_[node.operands[0]] = static_cast<Value>(i);
    }
  }

  // The values from which the backward computes a value.
  std::vector<Value> operands_of(Value v) const {
    std::vector<Value> operands = joint_[v].operands;
    const auto masked = result_of_mask_.find(v);
    if (masked != result_of_mask_.end() && is_saved(masked->second)) operands[0] = masked->second;
    return operands;
  }

  bool is_first_from_what_changes(Value v) const {
    if (changes_[static_cast<size_t>(v)] || !in_forward_[static_cast<size_t>(v)]) return false;
    const std::vector<Value>& operands = joint_[v].operands;
    return std::any_of(operands.begin(), operands.end(), [&](Value o) { return changes_[static_cast<size_t>(o)]; });
  }

  bool is_saved(Value v) const {
    const Node& node = joint_[v];
    if (needs_gradient_[static_cast<size_t>(v)]) return false;
    if (is_first_from_what_changes(v)) return true;
    if (results_.count(v) != 0 || streams_.count(v) != 0) return true;
    if (node.op == Op::input || node.op == Op::scalar_input) return true;
    switch (node.kind()) {
      case Kind::contraction:
      case Kind::window:
        return node.op != Op::shift;  // max_pool_index too: kept in the fewest bits that hold it
      case Kind::reduce:
        return in_forward_[static_cast<size_t>(v)];  // else only the backward needs it
      default:
        return false;
    }
  }

  // Operators whose result PyTorch keeps for the backward: whoever changes it in place before that is told so by
  // PyTorch's own operators. With results of others that is allowed.
  bool is_kept_by_pytorch(Value v) const {
    static const std::set<std::string> names = {"softmax", "exp",  "expm1",      "tanh",
                                                "sigmoid", "sqrt", "reciprocal", "rsqrt"};
    for (size_t i = 0; i < program_.user_outputs; ++i) {
      const Output& output = joint_.outputs[i];
      if (output.value != v) continue;
      if (output.origin < 0 || names.count(joint_.origins[static_cast<size_t>(output.origin)].op) == 0) return false;
    }
    return true;
  }

  // A residual stream that PyTorch keeps as well, for a contraction or a reduction of the forward that reads it.
  bool is_stream(const Streams& streams, Value v) const {
    if (joint_[v].kind() != Kind::pointwise || !in_forward_[static_cast<size_t>(v)]) return false;
    auto keeps = [&](Value user) {
      const Kind kind = joint_[user].kind();
      return in_forward_[static_cast<size_t>(user)] && (kind == Kind::contraction || kind == Kind::reduce);
    };
    return streams.any_user(v, keeps) && streams.reads_earlier_layers(v, [&](Value x) { return is_saved(x); });
  }

  void keep_streams(std::vector<bool>& seen) {
    const Streams streams(joint_);
    for (size_t i = 0; i < joint_.nodes.size(); ++i) {
      const Value v = static_cast<Value>(i);
      if (!seen[i] || needs_gradient_[i] || is_saved(v) || !is_stream(streams, v)) continue;
      streams_.insert(v);
      seen = find_saved();
    }
  }

  void collect_saved() {
    std::vector<bool> seen = find_saved();
    keep_streams(seen);
    for (size_t i = 0; i < program_.user_outputs; ++i) {
      const Value v = joint_.outputs[i].value;
      if (!seen[static_cast<size_t>(v)] || joint_[v].kind() != Kind::pointwise || !is_kept_by_pytorch(v)) continue;
      const int64_t recomputed = bytes_saved();
      results_.insert(v);
      seen = find_saved();
      if (bytes_saved() < recomputed) continue;
      results_.erase(v);
      seen = find_saved();
    }
    bind_sizes(seen);
    std::sort(saved_.begin(), saved_.end());
  }

  int64_t bytes_saved() const {
    int64_t bytes = 0;
    for (Value v : saved_) bytes += joint_.bytes(v);
    return bytes;
  }

  // Fills saved_; returns which values the backward computes or reads.
  std::vector<bool> find_saved() {
    saved_.clear();
    recomputed_.clear();
    std::vector<bool> seen(joint_.nodes.size());
    std::vector<Value> todo;
    for (size_t i = program_.user_outputs; i < joint_.outputs.size(); ++i) todo.push_back(joint_.outputs[i].value);
    while (!todo.empty()) {
      Value v = todo.back();
      todo.pop_back();
      if (seen[static_cast<size_t>(v)]) continue;
      seen[static_cast<size_t>(v)] = true;
      if (is_saved(v)) {
        saved_.push_back(v);
      } else {
        const std::vector<Value> operands = operands_of(v);
        todo.insert(todo.end(), operands.begin(), operands.end());
      }
    }
    std::sort(saved_.begin(), saved_.end());
    recompute_short_rows(seen);
    return seen;
  }

  // Statistics of rows as short as this take a good part of the memory that the rows themselves take.
  static constexpr int64_t short_row = 16;

  bool is_short_row(Value v) const {
    const Node& node = joint_[v];
    for (size_t i = 0; i < program_.user_outputs; ++i)
      if (joint_.outputs[i].value == v) return false;  // kept in any case
    if (node.kind() != Kind::reduce) return false;
    const int64_t results = joint_.hint(product(node.type.shape));
    return results > 0 && joint_.hint(product(joint_.shape(node.operands[0]))) / results <= short_row;
  }

  // Only where nothing else has to be kept for it.
  void recompute_short_rows(std::vector<bool>& seen) {
    for (size_t i = 0; i < saved_.size();) {
      const Value v = saved_[i];
      std::vector<bool> needed(seen.size());
      std::vector<Value> todo{v};
      bool at_hand = is_short_row(v);
      while (at_hand && !todo.empty()) {
        const Value next = todo.back();
        todo.pop_back();
        if (needed[static_cast<size_t>(next)]) continue;
        needed[static_cast<size_t>(next)] = true;
        if (next != v && std::binary_search(saved_.begin(), saved_.end(), next)) continue;
        const std::vector<Value> operands = operands_of(next);
        at_hand = next == v || (!is_saved(next) || recomputed_.count(next) != 0);
        todo.insert(todo.end(), operands.begin(), operands.end());
      }
      if (!at_hand) {
        ++i;
        continue;
      }
      for (size_t n = 0; n < seen.size(); ++n)
        if (needed[n]) seen[n] = true;
      recomputed_.insert(v);
      saved_.erase(saved_.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }

  // The backward reads its sizes off its inputs. One that none of them tells (the gradient of a sum knows nothing of
  // what was summed) comes from an input of the forward, of which only the sizes are kept.
  void bind_sizes(const std::vector<bool>& seen) {
    std::set<std::string> needed, bound;
    auto bind = [&](Value v) {
      for (const Size& size : joint_.shape(v))
        if (auto scaled = size.scaled_symbol()) bound.insert(scaled->second);
    };
    auto need = [&](const Shape& shape) {
      for (const Size& size : shape) size.collect_symbols(needed);
    };
    for (size_t i = 0; i < seen.size(); ++i) {
      if (!seen[i]) continue;
      need(joint_.nodes[i].type.shape);
      for (const auto& [name, attr] : joint_.nodes[i].attrs)
        if (const Shape* sizes = std::get_if<Shape>(&attr)) need(*sizes);
    }
    for (Value v : saved_) bind(v);
    for (size_t i = forward_inputs_; i < joint_.inputs.size(); ++i)
      need(joint_.shape(joint_.inputs[i])), bind(joint_.inputs[i]);
    for (bool plainly : {true, false})  // best an input with a dimension of just this symbol, else all that mention it
      for (size_t i = 0; i < forward_inputs_; ++i) {
        Value v = joint_.inputs[i];
        std::set<std::string> tells;
        for (const Size& size : joint_.shape(v)) {
          if (!plainly)
            size.collect_symbols(tells);
          else if (auto scaled = size.scaled_symbol())
            tells.insert(scaled->second);
        }
        bool useful =
            std::any_of(tells.begin(), tells.end(), [&](auto& s) { return needed.count(s) && !bound.count(s); });
        if (!useful || std::find(saved_.begin(), saved_.end(), v) != saved_.end()) continue;
        saved_.push_back(v);
        sizes_only_.insert(v);
        bind(v);
      }
  }

  void add_input(Value v) {
    const Node& node = joint_[v];
    std::string name =
        node.has("name") ? node.text("name") : "saved_" + std::string(name_of(node.op)) + std::to_string(v);
    renamed_[v] = node.op == Op::scalar_input ? builder_.scalar_input(name, node.type.dtype)
                                              : builder_.input(name, node.type.dtype, node.type.shape, node.type.order);
  }

  Value copy(Value v) {
    if (auto it = renamed_.find(v); it != renamed_.end()) return it->second;
    Node node = joint_[v];
    node.operands = operands_of(v);
    for (Value& operand : node.operands) operand = copy(operand);
    backward_.nodes.push_back(std::move(node));
    return renamed_[v] = static_cast<Value>(backward_.nodes.size()) - 1;
  }

  Program& program_;
  Graph& joint_;
  Graph backward_;
  Builder builder_;
  size_t forward_inputs_;
  std::vector<bool> needs_gradient_, in_forward_, changes_;
  std::vector<Value> saved_;
  std::set<Value> sizes_only_;  // of saved_
  std::set<Value> recomputed_;
  std::map<Value, Value> result_of_mask_;
  std::set<Value> streams_;  // residual streams that the backward reads
  std::set<Value> results_;  // pointwise results of the forward that the backward reads
  std::map<Value, Value> renamed_;
};

}  // namespace

void remember(Program& program) {
  if (program.training()) Splitter(program).run();
}

}  // namespace fusewright
