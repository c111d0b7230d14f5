#include "runtime/plan/strides.h"

#include <algorithm>

namespace fusewright {

void set_strides(Tensor& tensor, const Order& order) {
  int64_t stride = 1;
  for (int i = tensor.rank; i-- > 0;) {
    size_t d = order.empty() ? static_cast<size_t>(i) : static_cast<size_t>(order[static_cast<size_t>(i)]);
    tensor.strides[d] = stride;
    stride *= std::max<int64_t>(tensor.sizes[d], 1);
  }
}

bool try_reshape(const Tensor& from, Tensor& to) {
  int64_t chunk_stride = 1, numel = from.elements();
  if (numel == 0) {
    set_strides(to, {});
    return true;
  }
  int to_dim = to.rank - 1;
  int64_t chunk = 1, filled = 1;
  chunk_stride = from.rank ? from.strides[static_cast<size_t>(from.rank - 1)] : 1;
  for (int d = from.rank - 1; d >= 0; --d) {
    size_t i = static_cast<size_t>(d);
    chunk *= from.sizes[i];
    bool ends = d == 0 || (from.sizes[i - 1] != 1 && from.strides[i - 1] != chunk * chunk_stride);
    if (!ends) continue;
    while (to_dim >= 0 && (filled < chunk || to.sizes[static_cast<size_t>(to_dim)] == 1)) {
      to.strides[static_cast<size_t>(to_dim)] = filled * chunk_stride;
      filled *= to.sizes[static_cast<size_t>(to_dim)];
      --to_dim;
    }
    if (filled != chunk) return false;
    if (d > 0) {
      chunk = filled = 1;
      chunk_stride = from.strides[i - 1];
    }
  }
  for (; to_dim >= 0; --to_dim) {
    if (to.sizes[static_cast<size_t>(to_dim)] != 1) return false;
    to.strides[static_cast<size_t>(to_dim)] = 1;
  }
  return true;
}

bool lies_in(const Tensor& tensor, const Order& order) {
  Tensor wanted = tensor;
  set_strides(wanted, order);
  if (tensor.elements() == 0) return true;
  for (size_t d = 0; d < static_cast<size_t>(tensor.rank); ++d)
    if (tensor.sizes[d] != 1 && tensor.strides[d] != wanted.strides[d]) return false;
  return true;
}

bool repeats(const Tensor& tensor) {
  for (size_t d = 0; d < static_cast<size_t>(tensor.rank); ++d)
    if (tensor.sizes[d] > 1 && tensor.strides[d] == 0) return true;
  return false;
}

Reach reach_of(const Tensor& tensor) {
  const char* at = static_cast<const char*>(tensor.data);
  if (tensor.elements() == 0) return {at, at};
  int64_t first = 0, last = 0;
  for (size_t d = 0; d < static_cast<size_t>(tensor.rank); ++d)
    (tensor.strides[d] < 0 ? first : last) += (tensor.sizes[d] - 1) * tensor.strides[d];
  return {at + first * size_of(tensor.dtype), at + (last + 1) * size_of(tensor.dtype)};
}

}  // namespace fusewright
