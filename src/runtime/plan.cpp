#include "runtime/plan.h"

#include <algorithm>

namespace fusewright {
namespace {

LibraryCall library_call(const Node& node) {
  LibraryCall call;
  switch (node.op) {
    case Op::matmul:
      call.kind = LibraryCall::Kind::matmul;
      return call;
    case Op::conv:
      call.kind = LibraryCall::Kind::conv;
      break;
    case Op::conv_input_grad:
      call.kind = LibraryCall::Kind::conv_input_grad;
      break;
    default:
      call.kind = LibraryCall::Kind::conv_weight_grad;
  }
  call.transposed = node.integer("transposed") != 0;
  call.groups = node.integer("groups");
  call.stride = node.ints("stride");
  call.padding = node.ints("padding");
  call.dilation = node.ints("dilation");
  call.output_padding = node.ints("output_padding");
  return call;
}

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

Plan::Plan(Graph graph, const Fusion& fusion, bool cuda, bool tune)
    : graph_(std::move(graph)), tune_(tune), binder_(graph_), in_place_(fusion.in_place) {
  shapes_.resize(graph_.nodes.size());
  calls_.resize(graph_.nodes.size());
  for (const Node& node : graph_.nodes) orders_.push_back(node.type.order);
  for (const Output& output : graph_.outputs) orders_[static_cast<size_t>(output.value)] = output.order;
  auto needs_shape = [&](Value v) {
    auto& shape = shapes_[static_cast<size_t>(v)];
    if (!shape.empty()) return;
    require(graph_.type(v).rank() <= max_rank, graph_.describe(v), ": more than ", max_rank, " dimensions");
    for (const Size& size : graph_.shape(v)) shape.emplace_back(size, binder_.slots());
  };
  for (const Group& group : fusion.groups) {
    Step step;
    if (group.library) {
      step.library = true;
      step.call = group.call;
      calls_[static_cast<size_t>(group.call)] = library_call(graph_[group.call]);
      needs_shape(group.call);
    } else {
      step.kernel = kernels_.size();
      kernels_.push_back(cuda ? emit_cuda(graph_, group.kernel) : emit_cpp(graph_, group.kernel));
      for (const auto& operand : kernels_.back().operands) {
        if (!operand.store) continue;
        needs_shape(operand.value);
        for (int output : in_place_) step.updates |= graph_.outputs[static_cast<size_t>(output)].value == operand.value;
      }
      const std::vector<fusewright::Step>& work = group.kernel.steps;
      if (std::any_of(work.begin(), work.end(), [](const fusewright::Step& s) { return s.once; }))
        for (const Axis& axis : group.kernel.axes)
          if (!axis.reduced && !axis.tap) rows_.emplace_back(axis.size, binder_.slots());
    }
    steps_.push_back(std::move(step));
  }
  for (size_t v = 0; v < graph_.nodes.size(); ++v)
    if (graph_.nodes[v].kind() == Kind::movement) needs_shape(static_cast<Value>(v));
  for (const KernelCode& code : kernels_) {
    if (cuda)
      cuda_launchers_.emplace_back(graph_, code, binder_.slots(), orders_);
    else
      launchers_.emplace_back(graph_, code, binder_.slots());
  }

  // Memory goes back after its last reader.
  std::vector<int> last(graph_.nodes.size(), -1);
  // A view holds the memory of what it is a view of, and so does every view between them.
  auto mark = [&](Value v, int step) {
    last[static_cast<size_t>(v)] = step;
    while (graph_[v].kind() == Kind::movement) last[static_cast<size_t>(v = graph_[v].operands[0])] = step;
  };
  for (size_t s = 0; s < steps_.size(); ++s) {
    auto use = [&](Value v) { mark(v, static_cast<int>(s)); };
    if (steps_[s].library) {
      use(steps_[s].call);
      for (Value v : graph_[steps_[s].call].operands) use(v);
    } else {
      for (const auto& operand : kernels_[steps_[s].kernel].operands) use(operand.value);
    }
  }
  for (const Output& output : graph_.outputs) mark(output.value, -1);
  for (size_t v = 0; v < last.size(); ++v)
    if (last[v] >= 0) steps_[static_cast<size_t>(last[v])].release.push_back(static_cast<Value>(v));
}

std::vector<std::string> Plan::sources() const {
  std::vector<std::string> result;
  for (const CudaLauncher& launcher : cuda_launchers_)
    for (std::string& source : launcher.sources()) result.push_back(std::move(source));
  for (size_t k = 0; k < launchers_.size(); ++k) result.push_back(cpp_prelude() + kernels_[k].text);
  return result;
}

void Plan::attach(const std::vector<std::shared_ptr<cuda::Module>>& modules, int device) {
  auto next = modules.begin();
  for (CudaLauncher& launcher : cuda_launchers_) {
    auto end = next + static_cast<long>(launcher.sources().size());
    launcher.attach({next, end}, device);
    next = end;
  }
}

void Plan::attach(const std::vector<std::shared_ptr<CompiledLibrary>>& libraries) {
  libraries_ = libraries;
  for (size_t k = 0; k < kernels_.size(); ++k) {
    void* entry = libraries[k]->symbol(kernels_[k].name.c_str());
    require(entry, "kernel ", kernels_[k].name, " is missing from its library");
    launchers_[k].attach(reinterpret_cast<Launcher::Entry>(entry),
                         static_cast<const int64_t*>(libraries[k]->symbol("fw_state_sizes")));
  }
}

// The tensors of one call.
struct Plan::Run {
  const Plan& plan;
  Host& host;
  std::vector<int64_t> symbols;
  std::vector<Tensor> values;

  void set_sizes(Tensor& tensor, Value v) const {
    const auto& shape = plan.shapes_[static_cast<size_t>(v)];
    tensor.dtype = plan.graph_.dtype(v);
    tensor.rank = static_cast<int>(shape.size());
    for (size_t d = 0; d < shape.size(); ++d) {
      tensor.sizes[d] = shape[d].run(symbols.data());
      require(tensor.sizes[d] >= 0, plan.graph_.describe(v), ": dimension ", d, " of the result would be ",
              tensor.sizes[d]);
    }
  }

  // A value to read: made by an earlier step, or a view of one.
  const Tensor& get(Value v) {
    Tensor& tensor = values[static_cast<size_t>(v)];
    if (tensor) return tensor;
    const Node& node = plan.graph_[v];
    if (node.op == Op::constant) {
      tensor.dtype = node.type.dtype;
      host.allocate(tensor);
      host.clear(tensor);
      require(node.number("value") == 0, "a constant result other than 0 needs a kernel");
      return tensor;
    }
    require(node.kind() == Kind::movement, plan.graph_.describe(v), ": read before it was computed");
    const Tensor from = get(node.operands[0]);
    Tensor view = from;
    set_sizes(view, v);
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
      view.data = packed.data;
      view.owner = packed.owner;
      set_strides(view, {});
    }
    return values[static_cast<size_t>(v)] = view;
  }

  // Gives outputs the memory of the inputs that they replace, where that is laid out as the kernel writes it and no
  // other input of the call lies there. Whether there is one.
  bool bind_in_place(const std::vector<Tensor>& inputs) {
    bool any = false;
    std::vector<Reach> reaches;
    for (const Tensor& input : inputs) reaches.push_back(reach_of(input));
    for (int position : plan.in_place_) {
      const Output& output = plan.graph_.outputs[static_cast<size_t>(position)];
      const auto into = static_cast<size_t>(output.into);
      bool alone = lies_in(inputs[into], output.order);
      for (size_t i = 0; i < inputs.size() && alone; ++i) alone = i == into || !reaches[i].meets(reaches[into]);
      if (!alone) continue;
      values[static_cast<size_t>(output.value)] = values[static_cast<size_t>(plan.graph_.inputs[into])];
      any = true;
    }
    return any;
  }

  Tensor& make(Value v) {
    Tensor& tensor = values[static_cast<size_t>(v)];
    if (tensor) return tensor;  // bound already
    set_sizes(tensor, v);
    set_strides(tensor, plan.orders_[static_cast<size_t>(v)]);
    host.allocate(tensor);
    return tensor;
  }
};

std::vector<Tensor> Plan::run(Host& host, std::vector<Tensor> inputs, const std::vector<double>& scalars,
                              Updates* updates) const {
  Run run{*this, host, {}, std::vector<Tensor>(graph_.nodes.size())};
  size_t tensor_at = 0, scalar_count = 0;
  for (Value v : graph_.inputs) scalar_count += graph_[v].op == Op::scalar_input;
  require(inputs.size() == graph_.inputs.size() - scalar_count, graph_.inputs.size() - scalar_count,
          " tensors are needed, not ", inputs.size());
  require(scalars.size() == scalar_count, scalar_count, " scalars are needed, not ", scalars.size());
  std::vector<Tensor> sizes;  // of all inputs; scalar inputs hold a place without any
  std::vector<const void*> memory;
  for (Value v : graph_.inputs) {
    if (graph_[v].op == Op::scalar_input) {
      sizes.emplace_back();
      continue;
    }
    Tensor& tensor = inputs[tensor_at++];
    require(tensor.dtype == graph_.dtype(v) && tensor.rank == graph_.type(v).rank(), "input '", graph_[v].text("name"),
            "': ", name_of(graph_.dtype(v)), str(graph_.shape(v)), " is needed, not ", name_of(tensor.dtype),
            " of rank ", tensor.rank);
    memory.push_back(tensor.data);
    sizes.push_back(tensor);
    sizes.back().owner = nullptr;
    run.values[static_cast<size_t>(v)] = std::move(tensor);
  }
  preconditions_.check(sizes);
  run.symbols = binder_.bind(graph_, sizes);
  for (const SizeProgram& size : rows_)
    if (size.run(run.symbols.data()) == 0) throw SizeError("no row of a kernel is there to count");
  std::vector<Tensor> replaced(updates ? graph_.outputs.size() : 0);
  for (size_t i = 0; i < replaced.size(); ++i)
    if (int into = graph_.outputs[i].into; into >= 0)
      replaced[i] = run.values[static_cast<size_t>(graph_.inputs[static_cast<size_t>(into)])];
  const bool in_place = updates && run.bind_in_place(sizes);
  TuningProgress progress;
  for (const Step& step : steps_) {
    if (step.library) {
      std::vector<Tensor> operands;
      for (Value v : graph_[step.call].operands) operands.push_back(run.get(v));
      LibraryCall call = calls_[static_cast<size_t>(step.call)];
      Tensor result;
      run.set_sizes(result, step.call);
      call.rank = result.rank;
      call.sizes = result.sizes;
      run.values[static_cast<size_t>(step.call)] = host.call(call, operands);
    } else {
      const KernelCode& code = kernels_[step.kernel];
      for (const auto& operand : code.operands)
        if (operand.store) run.make(operand.value);
      std::vector<const Tensor*> operands;
      for (const auto& operand : code.operands) operands.push_back(&run.get(operand.value));
      if (in_place && step.updates) updates->begun = true;
      host.named(code.name, [&] {
        if (cuda_launchers_.empty())
          launchers_[step.kernel].run(host, operands, run.symbols.data(), scalars);
        else
          cuda_launchers_[step.kernel].run(host, operands, run.symbols.data(), scalars, tune_ ? &progress : nullptr);
      });
    }
    for (Value v : step.release) run.values[static_cast<size_t>(v)] = {};
  }
  std::vector<Tensor> results;
  for (size_t i = 0; i < graph_.outputs.size(); ++i) {
    const Output& output = graph_.outputs[i];
    results.push_back(run.get(output.value));
    if (updates && replaced[i]) continue;
    // Kernels write in the order that is asked for; a library chooses its own.
    bool order_matters = output.differentiable || !output.order.empty();
    // Nor does a result (a gradient may) lie in the memory of an input.
    bool borrowed = false;
    if (output.name.rfind("dL_d", 0) != 0)
      borrowed = std::find(memory.begin(), memory.end(), results.back().data) != memory.end();
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
  for (const KernelCode& code : kernels_) {
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
    if (step.library) result.push_back(step.call);
  return result;
}

}  // namespace fusewright
