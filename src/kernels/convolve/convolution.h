// Convolutions on tensor cores (sm_80), whatever layouts, sizes and values are:
//
//   scales, pack   the weight becomes fragments of halves (pack.h)
//   convolve       the result, or the gradient of an input (result.h; result_hopper.h for sm_90)
//   weight, sum    the gradient of a weight (weight.h)
//
// One text of all, pasted behind cuda_device.h and kernels/device/hopper.h.
#include "arguments.h"

#include "stage.h"

#include "result.h"

#include "pack.h"

#include "weight.h"

#include "result_hopper.h"
