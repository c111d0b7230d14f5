#pragma once
#include <c10/core/ScalarType.h>

#include "fusewright/dtype.h"

namespace fusewright {

inline at::ScalarType scalar_type(DType t) {
  constexpr at::ScalarType types[] = {at::kHalf, at::kBFloat16, at::kFloat, at::kDouble, at::kChar,
                                      at::kByte, at::kShort,    at::kInt,   at::kLong,   at::kBool};
  return types[static_cast<size_t>(t)];
}

}  // namespace fusewright
