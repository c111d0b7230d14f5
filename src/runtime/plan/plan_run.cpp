// One call of a plan.
#include <algorithm>
#include <functional>

#include "ir/error.h"
#include "runtime/cuda/tuner.h"
#include "runtime/plan/plan_sizes.h"
#include "runtime/plan/strides.h"

namespace fusewright {
namespace {

// The elements in fresh memory of this order.
Tensor copied(Host& host, const Tensor& from, const Order& order) {
  Tensor to = from;
  to.owner.reset();
  set_strides(to, order);
  host.allocate(to);
  host.copy(from, to);
  return to;
}

}  // namespace

// The tensors of one call.
struct Plan::Run {
  const Plan& plan;
  Host& host;
  std::shared_ptr<const Sizes> sizes;
  std::vector<Tensor> values;  // by place
  Tensor block;                // of temporaries, while there are some
  bool follows = false;        // what was put on the stream last is a generated kernel

  Run(const Plan& p, Host& h) : plan(p), host(h), values(p.placed_.size()) {}

  size_t place(Value v) const { return static_cast<size_t>(plan.places_[static_cast<size_t>(v)]); }

  // A value to read: made by an earlier step, or a view of one.
  const Tensor& get(Value v) {
    Tensor& tensor = values[place(v)];
    if (tensor) return tensor;
    const Node& node = plan.graph_[v];
    if (const Node& base = plan.graph_[plan.graph_.base(v)]; base.op == Op::constant) {
      require(base.number("value") == 0, "a constant result other than 0 needs a kernel");
      tensor = sizes->tensors[place(v)];  // not one number repeated: a hook may write to a gradient
      host.allocate(tensor);
      host.clear(tensor);
      follows = false;
      return tensor;
    }
    if (node.kind() != Kind::movement) fail(plan.graph_.describe(v), ": read before it was computed");
    const Tensor from = get(node.operands[0]);
    Tensor view = sizes->tensors[place(v)];
    view.data = from.data;
    view.owner = from.owner;
    if (node.op == Op::permute) {
      for (size_t d = 0; d < node.ints("dims").size(); ++d)
        view.strides[d] = from.strides[static_cast<size_t>(node.ints("dims")[d])];
    } else if (node.op == Op::expand) {
      int extra = view.rank - from.rank;
      for (int d = view.rank; d-- > 0;) {
        bool repeated =
            d < extra || (from.sizes[static_cast<size_t>(d - extra)] == 1 && view.sizes[static_cast<size_t>(d)] != 1);
        view.strides[static_cast<size_t>(d)] = repeated ? 0 : from.strides[static_cast<size_t>(d - extra)];
      }
    } else if (!try_reshape(from, view)) {
      Tensor packed = copied(host, from, {});
      follows = false;
      view.data = packed.data;
      view.owner = packed.owner;
      set_strides(view, {});
    }
    return values[place(v)] = view;
  }

  // Gives outputs the memory of the inputs that they replace, where that is laid out as the kernel writes it and no
  // other input of the call lies there. Whether there is one.
  bool bind_in_place() {
    bool any = false;
    std::vector<Reach> reaches;
    for (Value v : plan.graph_.inputs) reaches.push_back(reach_of(values[place(v)]));
    for (int position : plan.in_place_) {
      const Output& output = plan.graph_.outputs[static_cast<size_t>(position)];
      const auto into = static_cast<size_t>(output.into);
      const Tensor& input = values[place(plan.graph_.inputs[into])];
      bool alone = lies_in(input, output.order);
      for (size_t i = 0; i < reaches.size() && alone; ++i) alone = i == into || !reaches[i].meets(reaches[into]);
      if (!alone) continue;
      values[place(output.value)] = input;
      any = true;
    }
    return any;
  }

  void make(Value v) {
    Tensor& tensor = values[place(v)];
    if (tensor) return;  // bound already
    tensor = sizes->tensors[place(v)];
    const int64_t offset = sizes->offsets[place(v)];
    if (offset < 0) return host.allocate(tensor);
    if (!block) {
      block.dtype = DType::u8;
      block.rank = 1;
      block.sizes[0] = sizes->block.bytes;
      block.strides[0] = 1;
      host.allocate(block);
    }
    tensor.data = static_cast<char*>(block.data) + offset;
    tensor.owner = block.owner;
  }
};

std::vector<Tensor> Plan::run(Host& host, std::vector<Tensor> inputs, const std::vector<double>& scalars,
                              Updates* updates) const {
  const size_t tensor_count = graph_.inputs.size() - scalar_count_;
  require(inputs.size() == tensor_count, tensor_count, " tensors are needed, not ", inputs.size());
  require(scalars.size() == scalar_count_, scalar_count_, " scalars are needed, not ", scalars.size());
  Run run(*this, host);
  size_t next = 0;
  std::vector<int64_t> key;
  key.reserve(4 * tensor_count);
  for (Value v : graph_.inputs) {
    const Node& node = graph_[v];
    if (node.op == Op::scalar_input) continue;
    Tensor& tensor = inputs[next++];
    if (tensor.dtype != node.type.dtype || tensor.rank != node.type.rank())
      fail("input '", node.text("name"), "': ", name_of(node.type.dtype), str(node.type.shape), " is needed, not ",
           name_of(tensor.dtype), " of rank ", tensor.rank);
    key.insert(key.end(), tensor.sizes.begin(), tensor.sizes.begin() + tensor.rank);
    run.values[run.place(v)] = std::move(tensor);
  }
  run.sizes = recent_.find(key);
  if (run.sizes == nullptr) {
    std::vector<Tensor> shapes;  // scalar inputs hold a place without any
    for (Value v : graph_.inputs) {
      shapes.push_back(run.values[run.place(v)]);
      shapes.back().owner = nullptr;
    }
    auto sizes = sizes_of(shapes);
    sizes->key = std::move(key);
    recent_.add(run.sizes = sizes);
  }
  std::vector<Tensor> replaced(updates ? graph_.outputs.size() : 0);
  for (size_t i = 0; i < replaced.size(); ++i)
    if (int into = graph_.outputs[i].into; into >= 0)
      replaced[i] = run.values[run.place(graph_.inputs[static_cast<size_t>(into)])];
  const bool in_place = updates && !in_place_.empty() && run.bind_in_place();
  TuningProgress progress;
  for (const Step& step : steps_) {
    const Launcher& launcher = *step.launcher;
    const KernelCode& code = launcher.code();
    const int64_t* symbols = run.sizes->symbols.data();
    std::vector<const Tensor*> operands;
    operands.reserve(code.operands.size());
    if (launcher.makes_result()) {
      for (const auto& operand : code.operands)
        operands.push_back(operand.store ? &run.sizes->tensors[run.place(operand.value)] : &run.get(operand.value));
      run.values[run.place(code.operands.back().value)] =
          launcher.make_result(host, operands, tune_ ? &progress : nullptr);
      run.follows = false;
    } else {
      for (const auto& operand : code.operands)
        if (operand.store) run.make(operand.value);
      for (const auto& operand : code.operands) operands.push_back(&run.get(operand.value));
      if (in_place && step.updates) updates->begun = true;
      auto work = [&] { launcher.run(host, operands, symbols, scalars, tune_ ? &progress : nullptr, run.follows); };
      host.named(code.name, std::ref(work));  // by reference: a std::function of it needs no memory
      run.follows = true;
    }
    for (Value v : step.release) run.values[run.place(v)] = {};
    if (&step - steps_.data() == run.sizes->block.last) run.block = {};
  }
  std::vector<Tensor> results;
  results.reserve(graph_.outputs.size());
  for (size_t i = 0; i < graph_.outputs.size(); ++i) {
    const Output& output = graph_.outputs[i];
    results.push_back(run.get(output.value));
    if (updates && replaced[i]) continue;
    // Kernels write in the order that is asked for; a library chooses its own.
    bool order_matters = output.differentiable || !output.order.empty();
    // A gradient of repeated elements (that of a sum) is never added to in place.
    const bool borrowed = borrowed_[i] && !(output.is_gradient() && repeats(results.back()));
    if (borrowed || (order_matters && !lies_in(results.back(), output.order)))
      results.back() = copied(host, results.back(), output.order);
  }
  for (size_t i = 0; i < replaced.size(); ++i) {
    if (!replaced[i]) continue;
    if (results[i].data != replaced[i].data) {
      updates->begun = true;
      host.copy(results[i], replaced[i]);
    }
    results[i] = std::move(replaced[i]);
  }
  return results;
}

}  // namespace fusewright
