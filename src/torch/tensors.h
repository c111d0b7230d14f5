#pragma once
// PyTorch's tensors as the core's, and back.
#include <ATen/core/Tensor.h>

#include <vector>

#include "emit/file/scalar_type.h"
#include "fusewright/tensor.h"

namespace fusewright {

inline at::IntArrayRef sizes_of(const Tensor& t) { return {t.sizes.data(), static_cast<size_t>(t.rank)}; }
inline at::IntArrayRef strides_of(const Tensor& t) { return {t.strides.data(), static_cast<size_t>(t.rank)}; }

// The tensor keeps PyTorch's alive: it can be unwrapped again. Throws Error for an element type that the core lacks.
Tensor wrap(const at::Tensor& from);
at::Tensor unwrap(const Tensor& t);

// All of them must be where the region runs. Borrowed ones are for a call whose caller holds them until it returns.
enum class Hold { own, borrow };
std::vector<Tensor> wrap_all(at::TensorList inputs, at::Device device, Hold hold);
// What stands there twice becomes one tensor.
std::vector<at::Tensor> unwrap_all(const std::vector<Tensor>& outputs);

}  // namespace fusewright
