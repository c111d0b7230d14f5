// Compiles every function of src/kernels/prelude.h and math.h as device code:
//   nvcc -arch=sm_90a -std=c++17 --fmad=false -cubin -o /dev/null math_cuda_test.cu
// The same text must pass NVRTC, which has no headers at all.
#include "../../src/kernels/prelude.h"
// prelude.h comes first
#include "../../src/kernels/math.h"

// clang-format off
#define FW_UNARY(X) \
  X(exp) X(expm1) X(log) X(log1p) X(exp2) X(log2) X(erf) X(erfc) X(normal_cdf) X(tanh) X(sigmoid) X(sin) X(cos) \
  X(sqrt) X(rsqrt) X(reciprocal) X(atan) X(floor) X(ceil) X(trunc) X(round) X(abs) X(neg) X(sign) X(square)
#define FW_BINARY(X) \
  X(add) X(sub) X(mul) X(div) X(maximum) X(minimum) X(pow) X(fmod) X(remainder) X(floor_divide)
#define FW_INTEGER(X) X(add) X(sub) X(mul) X(maximum) X(minimum) X(fmod) X(remainder) X(floor_divide)
#define FW_COMPARE(X) X(lt) X(le) X(gt) X(ge) X(eq) X(ne) X(logical_and) X(logical_or)
// clang-format on

// One row of n results per function, in the order of the lists.
template <class T>
__device__ void apply_all(const T* x, const T* y, T* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const T a = x[i], b = y[i];
  T* z = out + i;
#define FW_ROW(f) *z = fw::f(a), z += n;
  FW_UNARY(FW_ROW)
#undef FW_ROW
#define FW_ROW(f) *z = fw::f(a, b), z += n;
  FW_BINARY(FW_ROW)
#undef FW_ROW
#define FW_ROW(f) *z = fw::select(fw::f(a, b), a, b), z += n;
  FW_COMPARE(FW_ROW)
#undef FW_ROW
  *z = fw::select(fw::isnan(a), b, fw::convert<T>(fw::convert<fw::half>(a))), z += n;
  *z = fw::select(fw::logical_not(a), b, fw::convert<T>(fw::convert<fw::bfloat16>(a)));
}

extern "C" __global__ void all_float(const float* x, const float* y, float* out, int n) {
  apply_all(x, y, out, n);
}
extern "C" __global__ void all_double(const double* x, const double* y, double* out, int n) {
  apply_all(x, y, out, n);
}
extern "C" __global__ void all_integer(const fw::i64* x, const fw::i64* y, fw::i64* out) {
  const fw::i64 a = x[threadIdx.x], b = y[threadIdx.x];
#define FW_ROW(f) *out++ = fw::f(a, b);
  FW_INTEGER(FW_ROW)
#undef FW_ROW
  *out++ = fw::neg(a) + fw::abs(a) + fw::sign(a) + fw::square(a) + fw::convert<fw::u8>(fw::convert<float>(a));
  *out++ = fw::select(fw::lt(a, b), a, fw::convert<fw::i64>(fw::convert<bool>(b)));
}
