#include "torch/tensors.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "ir/error.h"

namespace fusewright {
namespace {

DType dtype_of(const at::Tensor& t) {
  switch (t.scalar_type()) {
    case at::kHalf:
      return DType::f16;
    case at::kBFloat16:
      return DType::bf16;
    case at::kFloat:
      return DType::f32;
    case at::kDouble:
      return DType::f64;
    case at::kChar:
      return DType::i8;
    case at::kByte:
      return DType::u8;
    case at::kShort:
      return DType::i16;
    case at::kInt:
      return DType::i32;
    case at::kLong:
      return DType::i64;
    case at::kBool:
      return DType::b8;
    default:
      fail("element type ", c10::toString(t.scalar_type()), " is not supported");
  }
}

Tensor described(const at::Tensor& from) {
  TORCH_CHECK(from.dim() <= max_rank, "fusewright: more than ", max_rank, " dimensions");
  Tensor t;
  t.data = from.data_ptr();
  t.dtype = dtype_of(from);
  t.rank = static_cast<int>(from.dim());
  std::copy_n(from.sizes().data(), t.rank, t.sizes.begin());
  std::copy_n(from.strides().data(), t.rank, t.strides.begin());
  return t;
}

}  // namespace

Tensor wrap(const at::Tensor& from) {
  Tensor t = described(from);
  t.owner = std::make_shared<at::Tensor>(from);
  return t;
}

at::Tensor unwrap(const Tensor& t) {
  const at::Tensor& owner = *static_cast<const at::Tensor*>(t.owner.get());
  if (owner.sizes() == sizes_of(t) && owner.strides() == strides_of(t)) return owner;
  return owner.as_strided(sizes_of(t), strides_of(t));
}

std::vector<Tensor> wrap_all(at::TensorList inputs, at::Device device, Hold hold) {
  std::vector<Tensor> result;
  result.reserve(inputs.size());
  for (const at::Tensor& t : inputs) {
    TORCH_CHECK(t.device() == device, "fusewright: a region on ", device, " was given a tensor on ", t.device());
    if (hold == Hold::own) {
      result.push_back(wrap(t));
    } else {
      result.push_back(described(t));
      result.back().owner = {std::shared_ptr<void>(), const_cast<at::Tensor*>(&t)};
    }
  }
  return result;
}

std::vector<at::Tensor> unwrap_all(const std::vector<Tensor>& outputs) {
  std::vector<at::Tensor> result;
  result.reserve(outputs.size());
  for (const Tensor& t : outputs) {
    auto same = std::find_if(outputs.data(), &t, [&](const Tensor& earlier) {
      return earlier.owner == t.owner && earlier.data == t.data && sizes_of(earlier) == sizes_of(t) &&
             strides_of(earlier) == strides_of(t);
    });
    result.push_back(same == &t ? unwrap(t) : result[static_cast<size_t>(same - outputs.data())]);
  }
  return result;
}

}  // namespace fusewright
