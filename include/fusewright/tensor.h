#pragma once
#include <array>
#include <cstdint>
#include <memory>

#include "fusewright/dtype.h"

namespace fusewright {

constexpr int max_rank = 8;

// Memory with sizes and strides (in elements). `owner` keeps it alive; whoever made the tensor knows what it is.
struct Tensor {
  void* data = nullptr;
  DType dtype = DType::f32;
  int rank = 0;
  std::array<int64_t, max_rank> sizes{};
  std::array<int64_t, max_rank> strides{};
  std::shared_ptr<void> owner;

  int64_t elements() const {
    int64_t count = 1;
    for (int d = 0; d < rank; ++d) count *= sizes[static_cast<size_t>(d)];
    return count;
  }
  explicit operator bool() const { return owner != nullptr || data != nullptr; }
};

}  // namespace fusewright
