// The scalar mathematics that generated kernels call: one function per operator, named as the operator.
//
// Needs prelude.h in front; includes its own parts, which cmake/embed.cmake pastes in. Polynomials come from
// fit/minimax.py. Bounds, held by tests/kernels/math_test.cpp on the processor: 2 ulp for every input (normal_cdf: of
// results from 1/2 on), special values as in C and PyTorch, no flushing of denormals. On CUDA sin, cos, pow, fmod and
// roundings are the device's own. Float functions have a form of their own on CUDA where the device's approximations
// (MUFU) or FMNMX.NAN save instructions: a kernel that moves 8 bytes an element at the speed of memory has 27 issue
// slots for it. The bound next to each is the largest error found with every approximation as wrong as its manual
// allows, at random or always the same way (tests/kernels/math_device_test.cpp). Straight-line code without tables or
// calls, so that loops vectorise; sin, cos and fmod of double are the exceptions: they branch to a rare slow path.
// Flags: -ffp-contract=off -fno-math-errno -fno-trapping-math, never fast-math; NVRTC may fuse products into sums.
#ifndef FW_KERNELS_MATH_H  // not `#pragma once`, which warns in pasted text
#define FW_KERNELS_MATH_H

#include "math_arithmetic.h"
#include "math_exponential.h"
#include "math_logarithm.h"

#endif  // FW_KERNELS_MATH_H
