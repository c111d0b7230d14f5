#pragma once
#include "ir/builder.h"

namespace fusewright {

// Writes the expression that a composite stands for and returns its result. `operands` are values of the builder's
// graph. `cuda`: for a GPU, whose library has other strengths.
Value expand_composite(Builder& builder, const Node& composite, const std::vector<Value>& operands, bool cuda);

}  // namespace fusewright
