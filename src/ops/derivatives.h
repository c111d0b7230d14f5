#pragma once
#include "ir/builder.h"

namespace fusewright {

// For node `v` with result gradient `dL_dy`: the gradient towards each operand, -1 where there is none. Only operands
// with wanted[i] are computed. Throws for operations that have no derivative rule although one would be needed.
std::vector<Value> derivative(Builder& builder, Value v, Value dL_dy, const std::vector<bool>& wanted);

// Sums a gradient down to the shape that was broadcast to it.
Value sum_to_shape(Builder& builder, Value gradient, const Shape& shape);

}  // namespace fusewright
