// The operators of the dispatcher, and calls that go past it.
#include "torch/operators.h"

#include <ATen/ATen.h>
#include <ATen/core/PythonFallbackKernel.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/autograd/forward_grad.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>

#include "runtime/compiler/compile_error.h"
#include "torch/autograd.h"
#include "torch/host.h"
#include "torch/recorded.h"
#include "torch/tensors.h"

namespace fusewright {
namespace {

std::atomic<int64_t> calls = 0;

}  // namespace

at::Device device_of(at::TensorList inputs) {
  TORCH_CHECK(!inputs.empty(), "fusewright: a region needs a tensor");
  return inputs[0].device();
}

std::vector<int64_t> positions(const std::vector<bool>& wrt) {
  std::vector<int64_t> result;
  for (size_t i = 0; i < wrt.size(); ++i)
    if (wrt[i]) result.push_back(static_cast<int64_t>(i));
  return result;
}

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

bool traced(at::TensorList tensors) {
  return c10::impl::dispatch_mode_enabled() || at::impl::tensorlist_has_dispatch(tensors);
}

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

// `run` is what graphs call. `run_training` and `run_backward` are the two halves of a call whose gradients are wanted,
// as tracers see them: fake tensors and AOTAutograd's proxies have no memory to compute with. A call with memory goes
// past these two: it lets go of each saved tensor while its backward runs, which the caller of an operator cannot do.
namespace {

Results forward_results(const Region& region, const Executable& executable, TorchHost& host, at::TensorList inputs,
                        at::ArrayRef<double> scalars, Plan::Updates* updates = nullptr) {
  calls.fetch_add(1, std::memory_order_relaxed);
  return recorded([&] { return region.name(); },
                  [&] {
                    auto tensors = wrap_all(inputs, device_of(inputs), Hold::borrow);
                    return unwrap_all(executable.forward().run(host, std::move(tensors), scalars.vec(), updates));
                  });
}

}  // namespace

Results forward_below(const Region& region, const Executable& executable, at::TensorList inputs,
                      at::ArrayRef<double> scalars, Plan::Updates* updates) {
  at::Device device = device_of(inputs);
  Below below;
  c10::DeviceGuard on_device(device);
  TorchHost host(device);
  return forward_results(region, executable, host, inputs, scalars, updates);
}

namespace {

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

}  // namespace

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
