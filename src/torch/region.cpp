#include "torch/region.h"

#include <ATen/ATen.h>
#include <ATen/LegacyBatchedTensorImpl.h>
#include <ATen/SavedTensorHooks.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/PythonFallbackKernel.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/forward_grad.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <map>

#include "base/log.h"
#include "runtime/cache/sha256.h"
#include "runtime/compiler/background.h"
#include "runtime/compiler/compile_error.h"
#include "runtime/contraction/product_kernels.h"
#include "runtime/cuda/cuda.h"
#include "runtime/cuda/tuner.h"
#include "torch/host.h"
#include "torch/recorded.h"
#include "torch/tensors.h"

namespace fusewright {

int tensor_index(const Graph& graph, int input) {
  if (graph[graph.inputs[static_cast<size_t>(input)]].op == Op::scalar_input) return -1;
  int index = 0;
  for (int i = 0; i < input; ++i) index += graph[graph.inputs[static_cast<size_t>(i)]].op == Op::input;
  return index;
}

std::vector<bool> pattern(const Graph& graph, at::IntArrayRef wanted) {
  std::vector<bool> wrt(graph.inputs.size());
  for (int64_t i : wanted) wrt.at(static_cast<size_t>(i)) = true;
  return wrt;
}

namespace {

std::atomic<int64_t> calls = 0;

// Plans run below autograd and autocast: the graph already says what is computed in which type.
struct Below {
  at::AutoDispatchBelowADInplaceOrView autograd;
  c10::impl::ExcludeDispatchKeyGuard autocast{c10::autocast_dispatch_keyset};
};

// Where a call's tensors are: plans run there, on PyTorch's current stream of that device.
at::Device device_of(at::TensorList inputs) {
  TORCH_CHECK(!inputs.empty(), "fusewright: a region needs a tensor");
  return inputs[0].device();
}

// The wanted gradients as an operator's argument: positions among the graph's inputs.
std::vector<int64_t> positions(const std::vector<bool>& wrt) {
  std::vector<int64_t> result;
  for (size_t i = 0; i < wrt.size(); ++i)
    if (wrt[i]) result.push_back(static_cast<int64_t>(i));
  return result;
}

// The backward's graph takes only the scalars that it needs.
std::vector<double> saved_scalars(const Program& program, at::ArrayRef<double> scalars) {
  std::vector<double> result;
  for (const Program::Saved& s : program.saved) {
    if (!s.is_input || tensor_index(program.forward, s.index) >= 0) continue;
    size_t scalar = 0;
    for (int i = 0; i < s.index; ++i) scalar += tensor_index(program.forward, i) < 0;
    result.push_back(scalars[scalar]);
  }
  return result;
}

// ---- operators ---------------------------------------------------------------------------------------------------
//
// `run` is what graphs call. `run_training` and `run_backward` are the two halves of a call whose gradients are wanted,
// as tracers see them: fake tensors and AOTAutograd's proxies have no memory to compute with. A call with memory goes
// past these two: it lets go of each saved tensor while its backward runs, which the caller of an operator cannot do.

template <class Signature>
auto find_operator(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}
using Results = std::vector<at::Tensor>;
using Run = Results(int64_t, at::TensorList, at::ArrayRef<double>);
using RunTraining = Results(int64_t, at::TensorList, at::ArrayRef<double>, at::IntArrayRef);
using RunBackward = Results(int64_t, at::TensorList, at::TensorList, at::ArrayRef<double>, at::IntArrayRef);

// Whether somebody watches the dispatcher: then work must be seen there.
bool traced(at::TensorList tensors) {
  return c10::impl::dispatch_mode_enabled() || at::impl::tensorlist_has_dispatch(tensors);
}

Results forward_results(const Region& region, const Executable& executable, TorchHost& host, at::TensorList inputs,
                        at::ArrayRef<double> scalars, Plan::Updates* updates = nullptr) {
  calls.fetch_add(1, std::memory_order_relaxed);
  return recorded([&] { return region.name(); },
                  [&] {
                    auto tensors = wrap_all(inputs, device_of(inputs), Hold::borrow);
                    return unwrap_all(executable.forward().run(host, std::move(tensors), scalars.vec(), updates));
                  });
}

Results forward_below(const Region& region, const Executable& executable, at::TensorList inputs,
                      at::ArrayRef<double> scalars, Plan::Updates* updates = nullptr) {
  at::Device device = device_of(inputs);
  Below below;
  c10::DeviceGuard on_device(device);
  TorchHost host(device);
  return forward_results(region, executable, host, inputs, scalars, updates);
}

// The results of the region, or with wanted gradients those and what else its backward reads.
Results run_forward(int64_t handle, at::TensorList inputs, at::ArrayRef<double> scalars, at::IntArrayRef wanted) {
  std::shared_ptr<Region> region = Region::find(handle);
  std::vector<bool> wrt = wanted.empty() ? std::vector<bool>{} : pattern(region->graph(), wanted);
  return forward_below(*region, *region->executable(wrt, device_of(inputs)), inputs, scalars);
}

Results run_below(int64_t handle, at::TensorList inputs, at::ArrayRef<double> scalars) {
  return run_forward(handle, inputs, scalars, {});
}

Results run_backward(int64_t handle, at::TensorList saved, at::TensorList gradients, at::ArrayRef<double> scalars,
                     at::IntArrayRef wanted) {
  std::shared_ptr<Region> region = Region::find(handle);
  at::Device device = device_of(gradients);
  Below below;
  c10::DeviceGuard on_device(device);
  TorchHost host(device);
  auto executable = region->executable(pattern(region->graph(), wanted), device);
  std::vector<Tensor> inputs = wrap_all(saved, device, Hold::own);
  for (const at::Tensor& g : gradients) inputs.push_back(wrap(g));
  Results results = unwrap_all(executable->backward().run(host, inputs, saved_scalars(executable->program(), scalars)));
  // A gradient may be the incoming one, or two the same; a result of an operator is never an argument nor another
  // result.
  for (size_t i = 0; i < results.size(); ++i) {
    auto shared = [&](const at::Tensor& other) { return results[i].is_alias_of(other); };
    if (std::any_of(gradients.begin(), gradients.end(), shared) ||
        std::any_of(results.begin(), results.begin() + static_cast<long>(i), shared))
      results[i] = results[i].clone();
  }
  return results;
}

// ---- autograd ----------------------------------------------------------------------------------------------------

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Gradients that cannot be differentiated must not look like constants: differentiating them says why it cannot.
class Refuse : public torch::autograd::Function<Refuse> {
 public:
  static variable_list forward(AutogradContext* ctx, at::TensorList gradients, const std::string& region) {
    ctx->saved_data["region"] = region;
    variable_list result;
    for (const at::Tensor& g : gradients) result.push_back(g.view_as(g));
    return result;
  }
  static variable_list backward(AutogradContext* ctx, variable_list) {
    TORCH_CHECK(false, "fusewright: ", ctx->saved_data["region"].toStringRef(),
                " keeps too little for second derivatives, because PyTorch's operators would hold less memory: call "
                "fusewright.optimize(model, second_derivatives=True)");
  }
};

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
  struct Call : torch::CustomClassHolder {
    explicit Call(at::Device where) : device(where) {}
    at::Device device;
    std::shared_ptr<Region> region;
    std::shared_ptr<const Executable> executable;
    std::vector<double> scalars;
    std::vector<bool> wrt;
    bool traced = false;
    Plan::Updates* updates = nullptr;                    // of a call that writes over its inputs
    std::vector<std::vector<c10::SymInt>> output_sizes;  // of results whose gradient may arrive undefined

    // Kept here and not by ctx, which holds on to all of it while the backward runs: each saved tensor goes when the
    // plan has read it, as in eager, where every operator lets go of its own.
    std::vector<torch::autograd::SavedVariable> saved;
    bool used = false;

    // For second derivatives: what they read beside `saved`, by position among the tensors of the call; the setting
    // under which the library multiplied.
    Region::Positions kept;
    std::vector<torch::autograd::SavedVariable> inputs;
    std::vector<at::Tensor> copies;  // of `kept`: of what the captured graph replaces
    Tf32 tf32;
  };

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
  // The region once more in PyTorch's operators, from its inputs: what is computed from them has PyTorch's derivatives.
  static variable_list differentiable_gradients(Call& call, const variable_list& gradients) {
    const Program& program = call.executable->program();
    const std::vector<size_t>& positions = call.region->tensor_inputs();
    variable_list inputs = take_inputs(call), wanted, results, of_results;
    std::vector<size_t> places;
    c10::DeviceGuard on_device(call.device);
    {
      at::AutoGradMode enable(true);
      for (size_t i = 0; i < inputs.size(); ++i) {
        at::Tensor& input = inputs[i];
        if (!input.defined()) continue;
        if (!call.wrt[positions[i]]) {
          input = input.detach();
          continue;
        }
        // A tensor of the rerun's own: an input may be computed from another one, or be the same.
        input = input.view_as(input);
        wanted.push_back(input);
        places.push_back(i);
      }
      Tf32::Restored as_in_forward(call.tf32);
      results = call.region->plain()->run(inputs, call.scalars);
    }
    variable_list outputs;
    for (int output : program.gradient_of_output) {
      const at::Tensor &result = results.at(static_cast<size_t>(output)), &g = gradients[static_cast<size_t>(output)];
      if (!g.defined() || !result.defined() || !result.requires_grad()) continue;
      outputs.push_back(result);
      of_results.push_back(g);
    }
    variable_list found(positions.size() + 1);
    if (outputs.empty() || wanted.empty()) return found;
    const variable_list parts = torch::autograd::grad(outputs, wanted, of_results, std::nullopt,
                                                      at::GradMode::is_enabled(), /*allow_unused=*/true);
    for (size_t i = 0; i < parts.size(); ++i) found[places[i]] = parts[i];
    return found;
  }

  // Checks versions. Undefined where second derivatives do not read them.
  static variable_list take_inputs(Call& call) {
    TORCH_CHECK(!call.used, torch::autograd::ERR_BACKWARD_TWICE);
    const Program& program = call.executable->program();
    variable_list inputs(call.region->tensor_inputs().size());
    const std::vector<bool> read = call.region->plain()->reads();
    size_t next = 0;
    for (const Program::Saved& s : program.saved) {
      const int i = s.is_input ? tensor_index(program.forward, s.index) : -1;
      if (s.is_input && i < 0) continue;  // a scalar
      const auto& saved = call.saved[next++];
      if (i >= 0 && !s.sizes_only && read[static_cast<size_t>(i)]) inputs[static_cast<size_t>(i)] = saved.unpack();
    }
    for (size_t k = 0; k < call.inputs.size(); ++k) inputs[(*call.kept)[k]] = call.inputs[k].unpack();
    forget_unless_kept(call);
    return inputs;
  }

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

  // Checks versions. Only a backward that keeps the graph may come again.
  static variable_list take_saved(Call& call) {
    TORCH_CHECK(!call.used, torch::autograd::ERR_BACKWARD_TWICE);
    variable_list tensors;
    for (const auto& saved : call.saved) tensors.push_back(saved.unpack());
    forget_unless_kept(call);
    return tensors;
  }

  static void forget_unless_kept(Call& call) {
    if (torch::autograd::get_current_graph_task_keep_graph()) return;
    call.saved.clear();
    call.inputs.clear();
    call.used = true;
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

  // What leads on from here, and to what was given, leads on from the refusal: whoever differentiates with respect to
  // any of it meets it.
  static void refuse_second_derivatives(const Region& region, variable_list& gradients, const variable_list& given) {
    variable_list tracked;
    for (const at::Tensor& g : gradients)
      if (g.defined()) tracked.push_back(g.detach().requires_grad_(true));
    if (tracked.empty()) return;
    tracked = Refuse::apply(at::TensorList(tracked), region.name());
    const auto refusal = tracked.front().grad_fn();
    for (const torch::autograd::Edge& edge : torch::autograd::get_current_node()->next_edges())
      if (edge.is_valid()) refusal->add_next_edge(edge);
    for (const at::Tensor& g : given)
      if (g.defined() && g.requires_grad()) refusal->add_next_edge(torch::autograd::impl::gradient_edge(g));
    size_t next = 0;
    for (at::Tensor& g : gradients)
      if (g.defined()) g = tracked[next++];
  }
};

// The gradients that autograd will ask for; empty if none.
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
                    at::TensorList inputs, at::ArrayRef<double> scalars, Plan::Updates* updates = nullptr) {
  auto call = c10::make_intrusive<RegionFunction::Call>(device_of(inputs));
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

// Whether kernels may write straight into the inputs that the region replaces: if autograd neither follows them into
// the new value nor keeps the old one. Else `copy_` does it.
bool may_update(const Region& region, const Program& program, at::TensorList inputs) {
  for (const Region::Update& u : region.updates()) {
    const at::Tensor& buffer = inputs[u.input];
    if (buffer.is_inference() || (at::GradMode::is_enabled() && buffer.requires_grad())) return false;
    if (u.differentiable && program.training()) return false;
    // Hooks for saved tensors may keep the elements, those before the update; and the new value would be kept as the
    // buffer, with the version before.
    for (const Program::Saved& s : program.saved) {
      const bool old =
          s.is_input && !s.sizes_only && tensor_index(program.forward, s.index) == static_cast<int>(u.input);
      if (old || (!s.is_input && s.index == static_cast<int>(u.output))) return false;
    }
  }
  return true;
}

// Below the dispatcher, which knows `run` as an operator that changes nothing.
Results run_updating(const std::shared_ptr<Region>& region, const std::shared_ptr<const Executable>& executable,
                     const std::vector<bool>& wrt, at::TensorList inputs, at::ArrayRef<double> scalars) {
  Plan::Updates updates;
  // Autograd notices, as it does after copy_. What the backward will read has been saved with the version before.
  auto tell_autograd = [&] {
    for (const Region::Update& u : region->updates()) inputs[u.input].unsafeGetTensorImpl()->bump_version();
  };
  auto interrupted = [&](const std::exception& error) {
    if (!updates.begun) return;
    tell_autograd();
    throw Interrupted(region->name() + ": failed when buffers had been updated: " + error.what());
  };
  Results results;
  try {
    if (!wrt.empty()) {
      results = run_on_tape(region, executable, wrt, inputs, scalars, &updates);
    } else {
      results = forward_below(*region, *executable, inputs, scalars, &updates);
      results.resize(results.size() - region->updates().size());
    }
  } catch (const Error& error) {
    interrupted(error);
    throw;
  } catch (const CompileError& error) {
    interrupted(error);
    throw;
  }
  tell_autograd();
  return results;
}

// Whether the dispatcher would find nobody on the way to run_autograd or run_below: no tracer, transform, mode or
// subclass, and no view that another operator has to resolve first.
bool unwatched(at::TensorList inputs) {
  using c10::DispatchKey;
  static constexpr c10::DispatchKeySet plain(
      {DispatchKey::CPU, DispatchKey::CUDA, DispatchKey::AutogradCPU, DispatchKey::AutogradCUDA,
       DispatchKey::ADInplaceOrView, DispatchKey::AutocastCPU, DispatchKey::AutocastCUDA, DispatchKey::BackendSelect});
  const auto local = c10::impl::tls_local_dispatch_key_set();
  c10::DispatchKeySet keys = local.included_;
  for (const at::Tensor& t : inputs) keys = keys | t.key_set();
  // By bits: a difference of key sets keeps the devices.
  if (((keys - local.excluded_).raw_repr() & ~plain.raw_repr()) != 0) return false;
  const bool below_autograd = !(local.excluded_ & c10::autograd_dispatch_keyset).empty();
  return !(below_autograd && at::GradMode::is_enabled());
}

// Under a transform of torch.func, or with a forward-mode derivative: PyTorch's operators know what to do, and we do
// not.
bool transformed(at::TensorList inputs) {
  using c10::DispatchKey;
  static constexpr c10::DispatchKeySet keys({DispatchKey::Batched, DispatchKey::FuncTorchBatched,
                                             DispatchKey::FuncTorchGradWrapper, DispatchKey::FuncTorchVmapMode,
                                             DispatchKey::FuncTorchDynamicLayerFrontMode});
  if (c10::impl::tls_local_dispatch_key_set().included_.has_any(keys)) return true;
  const bool forward_mode = torch::autograd::ForwardADLevel::try_get_by_idx(0) != nullptr;
  return std::any_of(inputs.begin(), inputs.end(), [&](const at::Tensor& t) {
    return t.key_set().has_any(keys) || (forward_mode && t._fw_grad(0).defined());
  });
}

// Inputs of about these sizes, with these gradients wanted, and what the library may do on a GPU. What else matters is
// in the graph: Dynamo captures another layout anew.
class Bucket {
 public:
  Bucket() {
    mix(hash_, allows_tf32_convolution());
    mix(hash_, allows_tf32_products());
  }
  template <class Sizes>
  void add(const Sizes& sizes, bool wanted) {
    mix(hash_, wanted);
    for (const auto& size : sizes) mix_size(hash_, size);
  }
  uint64_t hash() const { return hash_; }

 private:
  uint64_t hash_ = 0;
};

uint64_t bucket_of(at::TensorList inputs) {
  Bucket bucket;
  for (const at::Tensor& t : inputs) bucket.add(t.sizes(), at::GradMode::is_enabled() && t.requires_grad());
  return bucket.hash();
}

std::mutex regions_mutex;
std::map<int64_t, std::weak_ptr<Region>> regions;

}  // namespace

Region::Region(Graph graph, std::string name, Settings settings)
    : graph_(std::move(graph)),
      name_(std::move(name)),
      settings_(std::move(settings)),
      has_convolution_(std::any_of(graph_.nodes.begin(), graph_.nodes.end(), [](const Node& node) {
        return node.op == Op::convolution || node.op == Op::conv;
      })) {
  for (size_t i = 0; i < graph_.inputs.size(); ++i)
    if (graph_[graph_.inputs[i]].op == Op::input) tensor_inputs_.push_back(i);
  for (size_t i = 0; i < graph_.outputs.size(); ++i) {
    const Output& output = graph_.outputs[i];
    require(output.into >= 0 || updates_.empty(), name_, ": outputs that replace inputs come last");
    if (output.into >= 0)
      updates_.push_back({i, static_cast<size_t>(tensor_index(graph_, output.into)), output.differentiable});
  }
}

Region::~Region() {
  std::lock_guard<std::mutex> lock(regions_mutex);
  regions.erase(handle_);
}

std::shared_ptr<Region> Region::create(Graph graph, std::string name, Settings settings) {
  auto region = std::make_shared<Region>(std::move(graph), std::move(name), std::move(settings));
  static int64_t next = 0;
  std::lock_guard<std::mutex> lock(regions_mutex);
  region->handle_ = next++;
  regions[region->handle_] = region;
  return region;
}

std::shared_ptr<Region> Region::look_up(int64_t handle) {
  std::lock_guard<std::mutex> lock(regions_mutex);
  auto it = regions.find(handle);
  return it == regions.end() ? nullptr : it->second.lock();
}

std::shared_ptr<Region> Region::find(int64_t handle) {
  std::shared_ptr<Region> region = look_up(handle);
  require(region != nullptr, "region ", handle, " does not exist any more");
  return region;
}

int Region::gpu() const { return settings_.gpu < 0 ? gpu_of(at::kCPU) : settings_.gpu; }

std::shared_ptr<const Executable> Region::executable(const std::vector<bool>& wrt, at::Device device) {
  return executable(wrt, gpu_of(device), device);
}

std::shared_ptr<const Executable> Region::executable(const std::vector<bool>& wrt, int gpu) {
  return executable(wrt, gpu, std::nullopt);
}

std::shared_ptr<const Executable> Region::executable(const std::vector<bool>& wrt, int gpu,
                                                     std::optional<at::Device> runs_on) {
  const bool tf32 = gpu >= 0 && has_convolution_ && allows_tf32_convolution();
  std::lock_guard<std::mutex> lock(mutex_);  // a second caller waits for the first one's compilation
  for (const Compiled& known : executables_)
    if (known.gpu == gpu && known.tf32 == tf32 && known.wrt == wrt) return known.executable;
  // Loading a kernel would break the recording, and leave the user with the driver's words for it.
  const bool recording = gpu >= 0 && runs_on && cuda::available() && cuda::is_capturing(TorchHost(*runs_on).stream());
  TORCH_CHECK(!recording, "fusewright: ", name_,
              " is not compiled yet, and cannot be while a CUDA graph is captured: call the model once before "
              "capturing, with the same gradients wanted");
  Options options;
  options.cuda = gpu >= 0;
  options.device = std::max(gpu, 0);
  options.tf32_convolution = tf32;
  options.tune = settings_.tune;
  try {
    return executables_.emplace_back(Compiled{wrt, gpu, tf32, Executable::compile(graph_, wrt, options)}).executable;
  } catch (const CompileError& error) {
    // One line for the user; the compiler's whole output for whoever asks.
    std::string message = error.what();
    log(LogLevel::debug, message);
    // A failed compilation prints the whole command and more; the list of compilers that were tried is short.
    std::string brief = message.size() < 500 ? message : message.substr(0, message.find('\n'));
    std::replace(brief.begin(), brief.end(), '\n', ' ');
    throw CompileError(name_ + ": " + brief);
  }
}

void Region::prepare(const std::vector<bool>& wrt) const {
  Background::instance().add([handle = handle_, wrt] {
    try {
      // The model may have gone before its turn came.
      if (const std::shared_ptr<Region> region = look_up(handle)) region->executable(wrt, region->gpu());
    } catch (const std::exception&) {
      // The call that needs it tries again, and says what is wrong.
    }
  });
}

bool Region::contested() const { return gpu() >= 0 && settings_.tune.value_or(Tuner::wanted_by_environment()); }

// By bucket and device.
Region::Verdict Region::decided(uint64_t place) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = verdicts_.find(place);
  return found == verdicts_.end() ? Verdict::unknown : found->second;
}

Region::Verdict Region::verdict(at::TensorList inputs) {
  const at::Device device = device_of(inputs);
  const int gpu = gpu_of(device);
  if (gpu < 0 || at::globalContext().deterministicAlgorithms() || traced(inputs) || transformed(inputs) ||
      !at::SavedTensorDefaultHooks::get_tls_state().stack.empty())
    return Verdict::fused;
  uint64_t place = bucket_of(inputs);
  mix(place, static_cast<uint64_t>(gpu));
  const Verdict known = decided(place);
  if (known != Verdict::unknown) return known;
  return cuda::is_capturing(TorchHost(device).stream()) ? Verdict::fused : Verdict::unknown;
}

bool Region::changes(size_t tensor) const {
  const int input = static_cast<int>(tensor_inputs_[tensor]);
  return graph_.changing.count(input) != 0 ||
         std::any_of(updates_.begin(), updates_.end(), [&](const Update& u) { return u.input == tensor; });
}

bool Region::is_held(size_t tensor, const at::Tensor& input) const {
  if (changes(tensor)) return false;
  const at::TensorBase& base = input.is_view() ? input._base() : input;
  return settings_.owned[tensor] || (base.is_leaf() && base.requires_grad());
}

Region::Positions Region::read_by_second_derivatives(const Program& program) {
  if (!settings_.plain) return nullptr;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (auto known = read_by_second_derivatives_.find(&program); known != read_by_second_derivatives_.end())
      return known->second;
  }
  std::vector<bool> read = settings_.plain->reads();  // not under the lock: Python has one of its own
  Positions found;
  if (read.size() == tensor_inputs_.size() && read.size() == settings_.owned.size()) {
    for (const Program::Saved& s : program.saved)
      if (const int i = s.is_input && !s.sizes_only ? tensor_index(program.forward, s.index) : -1; i >= 0)
        read[static_cast<size_t>(i)] = false;
    std::vector<size_t> positions;
    for (size_t i = 0; i < read.size(); ++i)
      if (read[i]) positions.push_back(i);
    found = std::make_shared<const std::vector<size_t>>(std::move(positions));
  }
  std::lock_guard<std::mutex> lock(mutex_);
  return read_by_second_derivatives_[&program] = found;
}

bool Region::keeps(const std::vector<size_t>& tensors, const Program& program, at::TensorList inputs,
                   const std::vector<at::Tensor>& results, at::ArrayRef<double> scalars) {
  auto held = [&](size_t i) { return is_held(i, inputs[i]); };
  if (settings_.second_derivatives || std::all_of(tensors.begin(), tensors.end(), held)) return true;
  if (traced(inputs)) return true;  // a tracer sees what is read in the end, and keeps nothing else
  std::vector<bool> all_held, key;
  for (size_t i = 0; i < inputs.size(); ++i) {
    all_held.push_back(held(i));
    key.push_back(inputs[i].requires_grad());
  }
  key.insert(key.end(), all_held.begin(), all_held.end());
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (auto known = keeps_.find(key); known != keeps_.end()) return known->second;
  }
  std::map<const void*, int64_t> bytes;  // by memory
  auto add = [&](const at::Tensor& t) {
    bytes[t.storage().unsafeGetStorageImpl()] = static_cast<int64_t>(t.storage().nbytes());
  };
  for (const Program::Saved& s : program.saved) {
    const int i = s.is_input ? tensor_index(program.forward, s.index) : -1;
    if (!s.is_input) add(results[static_cast<size_t>(s.index)]);
    if (i >= 0 && !s.sizes_only && !all_held[static_cast<size_t>(i)]) add(inputs[static_cast<size_t>(i)]);
  }
  for (size_t i : tensors)
    if (!all_held[i]) add(inputs[i]);
  int64_t ours = 0;
  for (const auto& [memory, size] : bytes) ours += size;
  const bool keeps = ours <= settings_.plain->bytes_kept(inputs, scalars, all_held);
  std::lock_guard<std::mutex> lock(mutex_);
  return keeps_[key] = keeps;
}

std::string Region::contest_key(uint64_t bucket, int gpu) const {
  const cuda::Device& device = cuda::device(gpu);
  return Sha256()
      .update_field("region against eager 5")
      .update_field(cuda::key_of(ProductKernels::source(), device.architecture))
      .update_field(wanted_matrix_product())
      .update_field(cuda::key_of(print(graph_), device.architecture))
      .update_field(device.name)
      .update_field(std::to_string(device.multiprocessors))
      .update_field(std::to_string(bucket))
      .hex();
}

bool Region::known_slower(const std::vector<bool>& wrt) {
  if (!contested()) return false;
  Bucket bucket;
  for (size_t i = 0; i < graph_.inputs.size(); ++i) {
    if (tensor_index(graph_, static_cast<int>(i)) < 0) continue;
    std::vector<int64_t> sizes;
    for (const Size& size : graph_.shape(graph_.inputs[i])) sizes.push_back(graph_.hint(size));
    bucket.add(sizes, !wrt.empty() && wrt[i]);
  }
  return Tuner::instance().recall<Verdict>(contest_key(bucket.hash(), gpu())) == Verdict::eager;
}

Region::Verdict Region::contest(at::TensorList inputs, const std::function<void(size_t)>& run) {
  const at::Device device = device_of(inputs);
  c10::DeviceGuard on_device(device);
  TorchHost host(device);
  const uint64_t bucket = bucket_of(inputs);
  uint64_t place = bucket;
  mix(place, static_cast<uint64_t>(host.device()));
  std::lock_guard<std::mutex> one_at_a_time(contest_mutex_);
  Verdict verdict = decided(place);
  if (verdict != Verdict::unknown) return verdict;
  Tuner& tuner = Tuner::instance();
  const std::string key = contest_key(bucket, host.device());
  if (auto known = tuner.recall<Verdict>(key); known && (*known == Verdict::fused || *known == Verdict::eager)) {
    verdict = *known;
  } else if (!executable(wanted_gradients(*this, inputs), device)->complete()) {
    return Verdict::fused;  // decided by a later call: not all variants are compiled, and the best may be missing
  } else {
    TuningProgress progress;
    auto timing = tuner.time(host, name_, 2, run, progress, 1.05, Tuner::What::region);
    verdict = timing && timing->fastest == 1 ? Verdict::eager : Verdict::fused;
    if (timing) {
      tuner.remember(key, verdict);
      log(LogLevel::debug, name_ + ": fused " + std::to_string(timing->microseconds[0]) + " us, eager " +
                               std::to_string(timing->microseconds[1]) + " us");
    }
  }
  std::lock_guard<std::mutex> lock(mutex_);
  return verdicts_[place] = verdict;
}

Answer run_contested(int64_t handle, at::TensorList inputs, at::ArrayRef<double> scalars) {
  const Region::Verdict verdict = Region::find(handle)->verdict(inputs);
  if (verdict != Region::Verdict::fused) return verdict;
  return run_region(handle, inputs, scalars);
}

Answer run_region(int64_t handle, at::TensorList inputs, at::ArrayRef<double> scalars) {
  static auto op = find_operator<Run>("fusewright::run");
  std::shared_ptr<Region> region = Region::find(handle);
  if (transformed(inputs)) return Region::Verdict::transformed;
  const std::vector<Region::Update>& updates = region->updates();
  // Where it is watched, elements may not be what is in memory, if there is any: all goes through the dispatcher.
  if (unwatched(inputs)) {
    std::vector<bool> wrt = wanted_gradients(*region, inputs);
    auto executable = region->executable(wrt, device_of(inputs));
    if (updates.empty()) {
      if (wrt.empty()) return forward_below(*region, *executable, inputs, scalars);
      return run_on_tape(std::move(region), std::move(executable), std::move(wrt), inputs, scalars);
    }
    if (may_update(*region, executable->program(), inputs))
      return run_updating(region, executable, wrt, inputs, scalars);
  }
  Results results = op.call(handle, inputs, scalars);
  if (updates.empty()) return results;
  for (const Region::Update& u : updates) inputs[u.input].copy_(results[u.output]);
  results.resize(updates.front().output);
  return results;
}

int64_t region_calls() { return calls; }

TORCH_LIBRARY(fusewright, m) {
  m.def("run(int region, Tensor[] inputs, float[] scalars) -> Tensor[]");
  m.def("run_training(int region, Tensor[] inputs, float[] scalars, int[] wanted) -> Tensor[]");
  m.def("run_backward(int region, Tensor[] saved, Tensor[] gradients, float[] scalars, int[] wanted) -> Tensor[]");
}
TORCH_LIBRARY_IMPL(fusewright, AutogradCPU, m) { m.impl("run", run_autograd); }
TORCH_LIBRARY_IMPL(fusewright, AutogradCUDA, m) { m.impl("run", run_autograd); }

static void implement(torch::Library& m) {
  m.impl("run", run_below);
  m.impl("run_training", run_forward);
  m.impl("run_backward", run_backward);
}
TORCH_LIBRARY_IMPL(fusewright, CPU, m) { implement(m); }
TORCH_LIBRARY_IMPL(fusewright, CUDA, m) { implement(m); }

}  // namespace fusewright
