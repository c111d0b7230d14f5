#include "torch/second_derivatives.h"

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>

namespace fusewright {
namespace {

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

// Checks versions. Undefined where second derivatives do not read them.
variable_list take_inputs(TapeCall& call) {
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
  call.forget_unless_kept();
  return inputs;
}

}  // namespace

variable_list differentiable_gradients(TapeCall& call, const variable_list& gradients) {
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

void refuse_second_derivatives(const Region& region, variable_list& gradients, const variable_list& given) {
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

}  // namespace fusewright
