#pragma once
// What the operators of a region share: how a plan is run below the dispatcher, and the operators' signatures.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include "torch/region.h"

namespace fusewright {

using Results = std::vector<at::Tensor>;

// Plans run below autograd and autocast: the graph already says what is computed in which type.
struct Below {
  at::AutoDispatchBelowADInplaceOrView autograd;
  c10::impl::ExcludeDispatchKeyGuard autocast{c10::autocast_dispatch_keyset};
};

// Where a call's tensors are: plans run there, on PyTorch's current stream of that device.
at::Device device_of(at::TensorList inputs);

// The wanted gradients as an operator's argument: positions among the graph's inputs.
std::vector<int64_t> positions(const std::vector<bool>& wrt);

// The backward's graph takes only the scalars that it needs.
std::vector<double> saved_scalars(const Program& program, at::ArrayRef<double> scalars);

template <class Signature>
auto find_operator(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}
using Run = Results(int64_t, at::TensorList, at::ArrayRef<double>);
using RunTraining = Results(int64_t, at::TensorList, at::ArrayRef<double>, at::IntArrayRef);
using RunBackward = Results(int64_t, at::TensorList, at::TensorList, at::ArrayRef<double>, at::IntArrayRef);

// Whether somebody watches the dispatcher: then work must be seen there.
bool traced(at::TensorList tensors);

// Under a transform of torch.func, or with a forward-mode derivative: PyTorch's operators know what to do, and we do
// not.
bool transformed(at::TensorList inputs);

// Runs the forward's plan.
Results forward_below(const Region& region, const Executable& executable, at::TensorList inputs,
                      at::ArrayRef<double> scalars, Plan::Updates* updates = nullptr);

}  // namespace fusewright
