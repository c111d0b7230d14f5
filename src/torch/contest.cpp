// Regions against PyTorch's own operators: which inputs share a winner, and when both are timed.
#include <ATen/ATen.h>
#include <ATen/SavedTensorHooks.h>
#include <c10/core/DeviceGuard.h>

#include "runtime/cuda/cuda.h"
#include "runtime/cuda/tuner.h"
#include "torch/autograd.h"
#include "torch/host.h"
#include "torch/operators.h"

namespace fusewright {
namespace {

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

Region::Verdict verdict_of(Contest::Winner winner) {
  return winner == Contest::Winner::eager ? Region::Verdict::eager : Region::Verdict::fused;
}

}  // namespace

bool Region::contested() const { return gpu() >= 0 && settings_.tune.value_or(Tuner::wanted_by_environment()); }

Region::Verdict Region::verdict(at::TensorList inputs) {
  const at::Device device = device_of(inputs);
  const int gpu = gpu_of(device);
  if (gpu < 0 || at::globalContext().deterministicAlgorithms() || traced(inputs) || transformed(inputs) ||
      !at::SavedTensorDefaultHooks::get_tls_state().stack.empty())
    return Verdict::fused;
  if (const auto winner = contest_.known(bucket_of(inputs), gpu)) return verdict_of(*winner);
  return cuda::is_capturing(TorchHost(device).stream()) ? Verdict::fused : Verdict::unknown;
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
  return contest_.recorded(bucket.hash(), gpu()) == Contest::Winner::eager;
}

Region::Verdict Region::contest(at::TensorList inputs, const std::function<void(size_t)>& run) {
  const at::Device device = device_of(inputs);
  c10::DeviceGuard on_device(device);
  TorchHost host(device);
  const auto complete = [&] { return executable(wanted_gradients(*this, inputs), device)->complete(); };
  return verdict_of(contest_.decide(host, bucket_of(inputs), complete, run));
}

}  // namespace fusewright
