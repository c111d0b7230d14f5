// What both the library's launcher and an emitted file know of launching the toy kind (toy_schedule.h).
#pragma once
#include <vector>

#include "fusewright/tensor.h"

namespace fusewright {

struct ToyArguments {
  const void* x;
  void* y;
  int64_t n, x_stride, y_stride;
};

inline ToyArguments toy_arguments(const std::vector<const Tensor*>& operands, int64_t n) {
  return {operands[0]->data, operands[1]->data, n, operands[0]->strides[0], operands[1]->strides[0]};
}

constexpr int64_t toy_threads = 64;

inline int64_t toy_blocks(int64_t n, int items) { return (n + toy_threads * items - 1) / (toy_threads * items); }

}  // namespace fusewright
