#pragma once
// Where a tensor's elements lie in memory.
#include "fusewright/tensor.h"
#include "ir/ir.h"

namespace fusewright {

// Strides of a packed tensor whose dimensions lie in this order.
void set_strides(Tensor& tensor, const Order& order);

// Gives `to` strides with which it is the memory of `from` in other sizes. False: there are none.
bool try_reshape(const Tensor& from, Tensor& to);

bool lies_in(const Tensor& tensor, const Order& order);
bool repeats(const Tensor& tensor);  // an element stands at several places

// The bytes that a tensor's elements lie in, from the first to behind the last.
struct Reach {
  const char *begin, *end;
  bool meets(const Reach& other) const { return begin < other.end && other.begin < end; }
};
Reach reach_of(const Tensor& tensor);

}  // namespace fusewright
