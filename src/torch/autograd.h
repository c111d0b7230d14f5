#pragma once
// One region on the tape: a node of autograd whose backward runs the region's second plan.
#include <torch/csrc/autograd/custom_function.h>

#include "torch/host.h"
#include "torch/operators.h"

namespace fusewright {

// The state that a call keeps for its backward, and nothing else.
struct TapeCall : torch::CustomClassHolder {
  explicit TapeCall(at::Device where) : device(where) {}
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

  // Only a backward that keeps the graph may come again.
  void forget_unless_kept();
};

// The gradients that autograd will ask for; empty if none.
std::vector<bool> wanted_gradients(const Region& region, at::TensorList inputs);

// A forward that leaves a node on the tape.
Results run_on_tape(std::shared_ptr<Region> region, std::shared_ptr<const Executable> executable, std::vector<bool> wrt,
                    at::TensorList inputs, at::ArrayRef<double> scalars, Plan::Updates* updates = nullptr);

// fusewright::run, where autograd is.
Results run_autograd(int64_t handle, at::TensorList inputs, at::ArrayRef<double> scalars);

}  // namespace fusewright
