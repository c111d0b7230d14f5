#pragma once
// Gradients that can be differentiated again: the region runs once more in PyTorch's own operators.
#include "torch/autograd.h"

namespace fusewright {

// The region once more in PyTorch's operators, from its inputs: what is computed from them has PyTorch's derivatives.
torch::autograd::variable_list differentiable_gradients(TapeCall& call,
                                                        const torch::autograd::variable_list& gradients);

// What leads on from here, and to what was given, leads on from the refusal: whoever differentiates with respect to
// any of it meets it.
void refuse_second_derivatives(const Region& region, torch::autograd::variable_list& gradients,
                               const torch::autograd::variable_list& given);

}  // namespace fusewright
