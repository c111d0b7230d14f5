#include "runtime/plan/plan.h"

#include <algorithm>
#include <functional>

#include "runtime/cuda/tuner.h"
#include "runtime/plan/memory_plan.h"
#include "schedule/schedule.h"

namespace fusewright {
namespace {

// The same memory with other sizes, where strides allow it.
bool try_reshape(const Tensor& from, Tensor& to) {
  int64_t chunk_stride = 1, numel = from.elements();
  if (numel == 0) {
    set_strides(to, {});
    return true;
  }
  int to_dim = to.rank - 1;
  int64_t chunk = 1, filled = 1;
  chunk_stride = from.rank ? from.strides[static_cast<size_t>(from.rank - 1)] : 1;
  for (int d = from.rank - 1; d >= 0; --d) {
    size_t i = static_cast<size_t>(d);
    chunk *= from.sizes[i];
    bool ends = d == 0 || (from.sizes[i - 1] != 1 && from.strides[i - 1] != chunk * chunk_stride);
    if (!ends) continue;
    while (to_dim >= 0 && (filled < chunk || to.sizes[static_cast<size_t>(to_dim)] == 1)) {
      to.strides[static_cast<size_t>(to_dim)] = filled * chunk_stride;
      filled *= to.sizes[static_cast<size_t>(to_dim)];
      --to_dim;
    }
    if (filled != chunk) return false;
    if (d > 0) {
      chunk = filled = 1;
      chunk_stride = from.strides[i - 1];
    }
  }
  for (; to_dim >= 0; --to_dim) {
    if (to.sizes[static_cast<size_t>(to_dim)] != 1) return false;
    to.strides[static_cast<size_t>(to_dim)] = 1;
  }
  return true;
}

bool lies_in(const Tensor& tensor, const Order& order) {
  Tensor wanted = tensor;
  set_strides(wanted, order);
  if (tensor.elements() == 0) return true;
  for (size_t d = 0; d < static_cast<size_t>(tensor.rank); ++d)
    if (tensor.sizes[d] != 1 && tensor.strides[d] != wanted.strides[d]) return false;
  return true;
}

bool repeats(const Tensor& tensor) {
  for (size_t d = 0; d < static_cast<size_t>(tensor.rank); ++d)
    if (tensor.sizes[d] > 1 && tensor.strides[d] == 0) return true;
  return false;
}

// The elements in fresh memory of this order.
Tensor copied(Host& host, const Tensor& from, const Order& order) {
  Tensor to = from;
  to.owner.reset();
  set_strides(to, order);
  host.allocate(to);
  host.copy(from, to);
  return to;
}

// The bytes that a tensor's elements lie in, from the first to behind the last.
struct Reach {
  const char *begin, *end;
  bool meets(const Reach& other) const { return begin < other.end && other.begin < end; }
};
Reach reach_of(const Tensor& tensor) {
  const char* at = static_cast<const char*>(tensor.data);
  if (tensor.elements() == 0) return {at, at};
  int64_t first = 0, last = 0;
  for (size_t d = 0; d < static_cast<size_t>(tensor.rank); ++d)
    (tensor.strides[d] < 0 ? first : last) += (tensor.sizes[d] - 1) * tensor.strides[d];
  return {at + first * size_of(tensor.dtype), at + (last + 1) * size_of(tensor.dtype)};
}

}  // namespace

Shape rows_to_count_in(const Kernel& kernel) {
  Shape result;
  if (std::any_of(kernel.steps.begin(), kernel.steps.end(), [](const Step& step) { return step.once; }))
    for (const Axis& axis : kernel.axes)
      if (!axis.reduced && !axis.tap) result.push_back(axis.size);
  return result;
}

// What follows from the sizes of a call's inputs.
struct Plan::Sizes {
  std::vector<int64_t> key;  // the sizes, of all tensors
  std::vector<int64_t> symbols;
  std::vector<Tensor> tensors;   // by place: as it is allocated, without memory
  std::vector<int64_t> offsets;  // by place: in the block of temporaries, or -1
  BlockPlan block;
};

// The value is a tensor during a call; and so is what it is a view of.
void Plan::give_place(Value v) {
  int& place = places_[static_cast<size_t>(v)];
  if (place >= 0) return;
  place = static_cast<int>(placed_.size());
  placed_.push_back(v);
  auto& shape = shapes_.emplace_back();
  const Node& node = graph_[v];
  if (node.op == Op::input || node.op == Op::scalar_input || node.op == Op::constant) return;
  require(node.type.rank() <= max_rank, graph_.describe(v), ": more than ", max_rank, " dimensions");
  for (const Size& size : node.type.shape) shape.emplace_back(size, binder_.slots());
  if (node.kind() == Kind::movement) give_place(node.operands[0]);
}

Plan::Plan(Graph graph, const Fusion& fusion, bool cuda, bool tune, bool owns_inputs)
    : graph_(std::move(graph)),
      tune_(tune),
      binder_(graph_),
      borrowed_(graph_.borrowed_outputs()),
      in_place_(fusion.in_place) {
  const Dialect dialect = cuda ? Dialect::cuda : Dialect::cpp;
  places_.assign(graph_.nodes.size(), -1);
  for (const Node& node : graph_.nodes) orders_.push_back(node.type.order);
  for (const Output& output : graph_.outputs) {
    orders_[static_cast<size_t>(output.value)] = output.order;
    give_place(output.value);
  }
  for (Value v : graph_.inputs) {
    give_place(v);
    scalar_count_ += graph_[v].op == Op::scalar_input;
  }
  for (const Group& group : fusion.groups) {
    Step step{group.schedule->launcher({graph_, group.kernel, dialect, binder_.slots(), orders_})};
    for (const KernelCode::Operand& operand : step.launcher->code().operands) {
      give_place(operand.value);
      if (!operand.store) continue;
      for (int output : in_place_) step.updates |= graph_.outputs[static_cast<size_t>(output)].value == operand.value;
    }
    for (const Size& size : rows_to_count_in(group.kernel)) rows_.emplace_back(size, binder_.slots());
    steps_.push_back(std::move(step));
  }

  // Memory goes back after its last reader.
  std::vector<int> last(graph_.nodes.size(), -1);
  // A view holds the memory of what it is a view of, and so does every view between them.
  auto mark = [&](Value v, int step) {
    last[static_cast<size_t>(v)] = step;
    while (graph_[v].kind() == Kind::movement) last[static_cast<size_t>(v = graph_[v].operands[0])] = step;
  };
  for (size_t s = 0; s < steps_.size(); ++s)
    for (const KernelCode::Operand& operand : steps_[s].launcher->code().operands)
      mark(operand.value, static_cast<int>(s));
  for (const Output& output : graph_.outputs) mark(output.value, -1);
  const int end = static_cast<int>(steps_.size()) - 1;
  auto hold = [&](Value v, size_t s, bool temporary) {
    const int until = last[static_cast<size_t>(v)];
    (temporary && until >= 0 ? temporaries_ : others_).push_back({v, static_cast<int>(s), until < 0 ? end : until});
  };
  for (size_t s = 0; s < steps_.size(); ++s) {
    const Launcher& launcher = *steps_[s].launcher;
    for (const KernelCode::Operand& operand : launcher.code().operands)
      if (operand.store) hold(operand.value, s, !launcher.makes_result());
  }
  for (Value v : graph_.inputs)
    if (owns_inputs && last[static_cast<size_t>(v)] >= 0) owned_.push_back({v, 0, last[static_cast<size_t>(v)]});
  for (size_t v = 0; v < last.size(); ++v)
    if (last[v] >= 0) steps_[static_cast<size_t>(last[v])].release.push_back(static_cast<Value>(v));
}

std::vector<std::string> Plan::sources(int device) const {
  std::vector<std::string> result;
  for (const Step& step : steps_)
    for (std::string& source : step.launcher->sources(device)) result.push_back(std::move(source));
  return result;
}

void Plan::attach(const std::vector<CompiledSource>& compiled, int device) {
  auto next = compiled.begin();
  for (const Step& step : steps_) {
    auto end = next + static_cast<long>(step.launcher->sources(device).size());
    step.launcher->attach({next, end}, device);
    next = end;
  }
}

bool Plan::complete() const {
  return std::all_of(steps_.begin(), steps_.end(), [](const Step& step) { return step.launcher->complete(); });
}

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

// `inputs`: one for each of the graph's, scalars too. Throws Error if they contradict each other.
std::shared_ptr<Plan::Sizes> Plan::sizes_of(const std::vector<Tensor>& inputs) const {
  preconditions_.check(inputs);
  auto sizes = std::make_shared<Sizes>();
  sizes->symbols = binder_.bind(graph_, inputs);
  for (const SizeProgram& size : rows_)
    if (size.run(sizes->symbols.data()) == 0) throw SizeError("no row of a kernel is there to count");
  sizes->tensors.resize(placed_.size());
  for (size_t place = 0; place < placed_.size(); ++place) {
    const auto& shape = shapes_[place];
    const Value v = placed_[place];
    Tensor& tensor = sizes->tensors[place];
    tensor.dtype = graph_.dtype(v);
    tensor.rank = static_cast<int>(shape.size());
    for (size_t d = 0; d < shape.size(); ++d) {
      tensor.sizes[d] = shape[d].run(sizes->symbols.data());
      if (tensor.sizes[d] < 0) fail(graph_.describe(v), ": dimension ", d, " of the result would be ", tensor.sizes[d]);
    }
    set_strides(tensor, orders_[static_cast<size_t>(v)]);
  }
  auto bytes = [&](const Held& held) {
    const Tensor& tensor = sizes->tensors[static_cast<size_t>(places_[static_cast<size_t>(held.value)])];
    return tensor.elements() * size_of(tensor.dtype);
  };
  std::vector<Lifetime> lifetimes;
  for (const Held& held : temporaries_) lifetimes.push_back({bytes(held), held.first, held.last});
  std::vector<int64_t> beside(steps_.size());
  for (const Held& held : others_)
    for (int s = held.first; s <= held.last; ++s) beside[static_cast<size_t>(s)] += whole_granules(bytes(held));
  std::vector<int64_t> released(steps_.size());
  for (const Held& held : owned_)
    for (size_t i = 0; i < graph_.inputs.size(); ++i)
      if (graph_.inputs[i] == held.value)
        released[static_cast<size_t>(held.last)] +=
            whole_granules(inputs[i].elements() * size_of(graph_.dtype(held.value)));
  sizes->block = plan_block(lifetimes, beside, released);
  sizes->offsets.assign(placed_.size(), -1);
  for (size_t i = 0; i < temporaries_.size(); ++i)
    sizes->offsets[static_cast<size_t>(places_[static_cast<size_t>(temporaries_[i].value)])] = sizes->block.offsets[i];
  return sizes;
}

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

std::vector<Plan::KernelReport> Plan::kernels() const {
  std::vector<KernelReport> result;
  for (const Step& step : steps_) {
    if (step.launcher->library_call() >= 0) continue;
    const KernelCode& code = step.launcher->code();
    KernelReport report{&code, 0, 0};
    for (const auto& operand : code.operands) {
      int64_t bytes = size_of(operand.dtype);
      for (const Size& size : graph_.shape(operand.value)) bytes *= graph_.hint(size);
      (operand.store ? report.bytes_written : report.bytes_read) += bytes;
    }
    result.push_back(report);
  }
  return result;
}

std::vector<Value> Plan::library_calls() const {
  std::vector<Value> result;
  for (const Step& step : steps_)
    if (const Value call = step.launcher->library_call(); call >= 0) result.push_back(call);
  return result;
}

}  // namespace fusewright
