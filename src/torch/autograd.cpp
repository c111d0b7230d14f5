#include "torch/autograd.h"

#include <ATen/ATen.h>
#include <ATen/LegacyBatchedTensorImpl.h>
#include <ATen/SavedTensorHooks.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>

#include "torch/recorded.h"
#include "torch/second_derivatives.h"
#include "torch/tensors.h"

namespace fusewright {

void TapeCall::forget_unless_kept() {
  if (torch::autograd::get_current_graph_task_keep_graph()) return;
  saved.clear();
  inputs.clear();
  used = true;
}

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Views that negate, and zeros that PyTorch hands on as a gradient without giving them memory.
bool lies_otherwise(const at::Tensor& t) { return t.defined() && (t.is_neg() || t._is_zerotensor()); }

bool is_batched(const at::Tensor& t) {
  return t.defined() &&
         t.key_set().has_any(c10::DispatchKeySet({c10::DispatchKey::Batched, c10::DispatchKey::FuncTorchBatched}));
}

// Whether a transform of torch.func wraps the tensor, or it has a forward-mode derivative.
bool is_transformed(const at::Tensor& t) {
  return t.defined() && (t.key_set().has_any(c10::DispatchKeySet(
                             {c10::DispatchKey::FuncTorchBatched, c10::DispatchKey::FuncTorchGradWrapper})) ||
                         t._fw_grad(0).defined());
}

// Elements as memory has them: the dispatcher resolves such tensors only below autograd.
std::vector<at::Tensor> as_in_memory(at::TensorList tensors) {
  std::vector<at::Tensor> result(tensors.begin(), tensors.end());
  for (at::Tensor& t : result)
    if (lies_otherwise(t)) t = t._is_zerotensor() ? t.clone() : t.resolve_neg();
  return result;
}

// Variables that are saved meanwhile pass no hook.
class WithoutHooks {
 public:
  static bool there_are() { return !at::SavedTensorDefaultHooks::get_tls_state().stack.empty(); }
  WithoutHooks() { at::SavedTensorDefaultHooks::set_tls_state({}); }
  ~WithoutHooks() { at::SavedTensorDefaultHooks::set_tls_state(before_); }
  WithoutHooks(const WithoutHooks&) = delete;

 private:
  at::impl::SavedTensorDefaultHooksTLS before_ = at::SavedTensorDefaultHooks::get_tls_state();
};

// One region on the tape: what its backward reads, and nothing else, is kept.
class RegionFunction : public torch::autograd::Function<RegionFunction> {
 public:
  using Call = TapeCall;

  static variable_list forward(AutogradContext* ctx, at::TensorList inputs, const c10::intrusive_ptr<Call>& call) {
    const Program& program = call->executable->program();
    const bool updating = call->updates != nullptr;
    variable_list results;
    if (call->traced) {
      Below below;
      static auto training = find_operator<RunTraining>("fusewright::run_training");
      results = training.call(call->region->handle(), inputs, call->scalars, positions(call->wrt));
    } else {
      results =
          forward_below(*call->region, *call->executable, inputs, call->scalars, std::exchange(call->updates, nullptr));
    }
    call->saved.reserve(program.saved.size());
    for (const Program::Saved& s : program.saved) {
      if (!s.is_input) {
        // Detached (same memory, same version counter): a result will point at this node, which would keep itself
        // alive.
        call->saved.emplace_back(results[static_cast<size_t>(s.index)].detach(), false);
      } else if (int i = tensor_index(program.forward, s.index); i >= 0) {
        const at::Tensor& input = inputs[static_cast<size_t>(i)];
        call->saved.emplace_back(s.sizes_only ? sizes_of_input(input) : input, false);
      }
    }
    if (call->kept && !call->region->keeps(*call->kept, program, inputs, results, call->scalars)) call->kept.reset();
    for (size_t k = 0; call->kept && k < call->kept->size(); ++k) {
      const at::Tensor &input = inputs[(*call->kept)[k]], &copy = call->copies[k];
      // Hooks are for what takes memory.
      std::optional<WithoutHooks> without;
      if (WithoutHooks::there_are() && call->region->is_held((*call->kept)[k], input)) without.emplace();
      call->inputs.emplace_back(copy.defined() ? copy : input, false);
    }
    call->copies.clear();
    ctx->set_materialize_grads(false);
    results.resize(program.user_outputs);
    if (updating) results.resize(results.size() - call->region->updates().size());
    for (int output : program.gradient_of_output)
      call->output_sizes.push_back(results[static_cast<size_t>(output)].sym_sizes().vec());
    variable_list constant;
    for (size_t i = 0; i < results.size(); ++i) {
      const auto& tracked = program.gradient_of_output;
      if (std::find(tracked.begin(), tracked.end(), static_cast<int>(i)) == tracked.end())
        constant.push_back(results[i]);
    }
    if (!constant.empty()) ctx->mark_non_differentiable(constant);
    ctx->saved_data["call"] = c10::IValue::make_capsule(call);
    return results;
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    if (std::any_of(gradients.begin(), gradients.end(), lies_otherwise)) gradients = as_in_memory(gradients);
    auto capsule = ctx->saved_data["call"].toCapsule();
    Call& call = static_cast<Call&>(*capsule);
    const bool differentiable_again = at::GradMode::is_enabled();
    const bool transformed = std::any_of(gradients.begin(), gradients.end(), is_transformed);
    if (call.kept && (differentiable_again || transformed)) return differentiable_gradients(call, gradients);
    TORCH_CHECK_NOT_IMPLEMENTED(!transformed, "fusewright: ", call.region->name(),
                                " keeps too little for a backward under torch.func or in forward mode: call "
                                "fusewright.optimize(model, second_derivatives=True)");
    variable_list saved = take_saved(call);
    if (std::any_of(gradients.begin(), gradients.end(), is_batched))
      return for_each_of_a_batch(call, saved, gradients, differentiable_again);
    variable_list result = gradients_of_inputs(call, std::move(saved), gradients);
    if (differentiable_again) refuse_second_derivatives(*call.region, result, gradients);
    return result;
  }

 private:
  // Undefined for inputs that want none.
  static variable_list gradients_of_inputs(const Call& call, variable_list saved, const variable_list& gradients) {
    const Program& program = call.executable->program();
    variable_list result(static_cast<size_t>(tensor_count(program.forward)) + 1);
    if (call.traced || traced(saved)) {
      Below below;
      at::NoGradGuard no_grad;
      variable_list given = gradients_of_results(call, gradients);
      static auto operation = find_operator<RunBackward>("fusewright::run_backward");
      variable_list outputs = operation.call(call.region->handle(), saved, given, call.scalars, positions(call.wrt));
      for (size_t i = 0; i < outputs.size(); ++i) result[place_of(program, i)] = outputs[i];
    } else {
      Below below;
      at::NoGradGuard no_grad;
      // The engine runs a node on the stream of its forward, and has made that one wait for the gradients.
      c10::DeviceGuard on_device(call.device);
      TorchHost host(call.device);
      std::vector<Tensor> inputs = wrap_all(saved, call.device, Hold::own);
      saved.clear();
      const Graph& graph = program.backward;
      size_t first = graph.inputs.size() - program.gradient_of_output.size();
      for (size_t i = 0; i < program.gradient_of_output.size(); ++i) {
        const at::Tensor& g = gradients[static_cast<size_t>(program.gradient_of_output[i])];
        inputs.push_back(g.defined() ? wrap(g)
                                     : host.zeros(C10_AS_INTARRAYREF_SLOW(call.output_sizes[i]).vec(),
                                                  graph.dtype(graph.inputs[first + i])));
      }
      std::vector<Tensor> outputs = recorded([&] { return call.region->name() + "_backward"; },
                                             [&] {
                                               const std::vector<double> scalars = saved_scalars(program, call.scalars);
                                               return call.executable->backward().run(host, std::move(inputs), scalars);
                                             });
      variable_list unwrapped = unwrap_all(outputs);
      for (size_t i = 0; i < outputs.size(); ++i) result[place_of(program, i)] = std::move(unwrapped[i]);
    }
    drop_unreached(*call.region, program, gradients, result);
    return result;
  }

  // Where a gradient of the backward goes among the tensors of the call.
  static size_t place_of(const Program& program, size_t gradient) {
    return static_cast<size_t>(tensor_index(program.forward, program.gradient_for_input[gradient]));
  }

  // An input that leads only to results of which nobody asked the gradient, an unused head, has none, and not zeros:
  // save where a hook would be handed it.
  static void drop_unreached(const Region& region, const Program& program, const variable_list& of_results,
                             variable_list& of_inputs) {
    std::vector<bool> given;
    for (int output : program.gradient_of_output) given.push_back(of_results[static_cast<size_t>(output)].defined());
    if (std::find(given.begin(), given.end(), false) == given.end()) return;
    const std::vector<std::vector<bool>> leads = leads_to(region.graph(), program);
    for (size_t i = 0; i < leads.size(); ++i) {
      bool reached = false;
      for (size_t k = 0; k < given.size(); ++k) reached = reached || (given[k] && leads[i][k]);
      const size_t place = place_of(program, i);
      if (!reached && !is_hooked(torch::autograd::get_current_node()->next_edge(place)))
        of_inputs[place] = at::Tensor();
    }
  }

  static bool is_hooked(const torch::autograd::Edge& edge) {
    if (!edge.is_valid()) return false;
    torch::autograd::Node& next = *edge.function;
    return !next.tensor_pre_hooks().empty() || !next.pre_hooks().empty() || next.tensor_post_acc_grad_hooks();
  }

  // Gradients of `is_grads_batched` and `jacobian(vectorize=True)`: one after the other.
  static variable_list for_each_of_a_batch(const Call& call, const variable_list& saved, const variable_list& gradients,
                                           bool differentiable_again) {
    auto layer = [&](const at::Tensor& g) -> const at::BatchDim& {
      const at::BatchedTensorImpl* batched = at::maybeGetBatchedImpl(g);
      TORCH_CHECK_NOT_IMPLEMENTED(batched && batched->bdims().size() == 1, "fusewright: ", call.region->name(),
                                  " takes batches of gradients from is_grads_batched and jacobian(vectorize=True) "
                                  "alone; take others of the plain model (fusewright.restore)");
      return batched->bdims()[0];
    };
    const at::Tensor& one = *std::find_if(gradients.begin(), gradients.end(), is_batched);
    const int64_t level = layer(one).level(), size = at::maybeGetBatchedImpl(one)->value().size(layer(one).dim());
    variable_list result;
    {
      Below below;
      at::NoGradGuard no_grad;
      std::vector<variable_list> parts;  // by input
      for (int64_t i = 0; i < size; ++i) {
        variable_list given = gradients;
        for (at::Tensor& g : given)
          if (is_batched(g)) g = at::maybeGetBatchedImpl(g)->value().select(layer(g).dim(), i);
        variable_list of_inputs = gradients_of_inputs(call, saved, given);
        parts.resize(of_inputs.size());
        for (size_t k = 0; k < of_inputs.size(); ++k)
          if (of_inputs[k].defined()) parts[k].push_back(std::move(of_inputs[k]));
      }
      for (const variable_list& part : parts) result.push_back(part.empty() ? at::Tensor() : at::stack(part));
    }
    if (differentiable_again) refuse_second_derivatives(*call.region, result, {});
    for (at::Tensor& g : result)
      if (g.defined()) g = at::makeBatched(g, {at::BatchDim(level, 0)});
    return result;
  }

  // Checks versions.
  static variable_list take_saved(Call& call) {
    TORCH_CHECK(!call.used, torch::autograd::ERR_BACKWARD_TWICE);
    variable_list tensors;
    for (const auto& saved : call.saved) tensors.push_back(saved.unpack());
    call.forget_unless_kept();
    return tensors;
  }

  // One element with the input's sizes: neither its memory nor its version is held.
  static at::Tensor sizes_of_input(const at::Tensor& input) {
    Below below;
    return input.new_empty({}).expand_symint(input.sym_sizes());
  }

  // For those results that have one; an undefined one is zero.
  static variable_list gradients_of_results(const Call& call, const variable_list& gradients) {
    const Program& program = call.executable->program();
    variable_list given;
    for (size_t i = 0; i < program.gradient_of_output.size(); ++i) {
      size_t output = static_cast<size_t>(program.gradient_of_output[i]);
      auto type = scalar_type(program.forward.dtype(program.forward.outputs[output].value));
      at::TensorOptions options = at::TensorOptions(call.device).dtype(type);
      const at::Tensor& g = gradients[output];
      given.push_back(g.defined() ? g : at::zeros_symint(call.output_sizes[i], options));
    }
    return given;
  }

  static int tensor_count(const Graph& graph) {
    int count = 0;
    for (Value v : graph.inputs) count += graph[v].op == Op::input;
    return count;
  }
};

}  // namespace

std::vector<bool> wanted_gradients(const Region& region, at::TensorList inputs) {
  std::vector<bool> wrt;
  if (!at::GradMode::is_enabled()) return wrt;
  const std::vector<size_t>& positions = region.tensor_inputs();
  TORCH_CHECK(positions.size() <= inputs.size(), "fusewright: ", region.name(), " was given too few tensors");
  for (size_t i = 0; i < positions.size(); ++i) {
    if (!inputs[i].requires_grad()) continue;
    wrt.resize(region.graph().inputs.size());
    wrt[positions[i]] = true;
  }
  return wrt;
}

Results run_on_tape(std::shared_ptr<Region> region, std::shared_ptr<const Executable> executable, std::vector<bool> wrt,
                    at::TensorList inputs, at::ArrayRef<double> scalars, Plan::Updates* updates) {
  auto call = c10::make_intrusive<TapeCall>(device_of(inputs));
  call->executable = std::move(executable);
  call->region = std::move(region);
  call->wrt = std::move(wrt);
  call->traced = traced(inputs);
  call->updates = updates;
  call->scalars.assign(scalars.begin(), scalars.end());
  call->kept = call->region->read_by_second_derivatives(call->executable->program());
  if (call->kept) {
    call->tf32 = Tf32::of(call->device);
    for (size_t i : *call->kept)
      call->copies.push_back(call->region->changes(i) ? inputs[i].detach().clone() : at::Tensor());
  }
  return RegionFunction::apply(inputs, call);
}

Results run_autograd(int64_t handle, at::TensorList inputs, at::ArrayRef<double> scalars) {
  if (std::any_of(inputs.begin(), inputs.end(), lies_otherwise))
    return run_autograd(handle, as_in_memory(inputs), scalars);
  std::shared_ptr<Region> region = Region::find(handle);
  std::vector<bool> wrt = wanted_gradients(*region, inputs);
  if (!wrt.empty()) {
    auto executable = region->executable(wrt, device_of(inputs));
    return run_on_tape(std::move(region), std::move(executable), std::move(wrt), inputs, scalars);
  }
  static auto operation = find_operator<Run>("fusewright::run");
  Below below;
  return operation.call(handle, inputs, scalars);
}

}  // namespace fusewright
