// The arguments of an epilogue: what the steps behind a contraction read and write beside its accumulators
// (codegen/epilogue.h writes them). Kernels, launcher and tests include this header alike.
//
// Needs prelude.h in front; includes nothing.
#ifndef FW_KERNELS_CONTRACT_EPILOGUE_H
#define FW_KERNELS_CONTRACT_EPILOGUE_H

namespace fw {

// A run-time number, in the type that the epilogue computes with.
union EpilogueNumber {
  double f64;
  float f32;
  i64 whole;
  bool truth;
  template <class T>
  FW_FN T as() const {
    if constexpr (same<T, float>::value) {
      return f32;
    } else if constexpr (same<T, double>::value) {
      return f64;
    } else if constexpr (same<T, bool>::value) {
      return truth;
    } else {
      return whole;
    }
  }
};

template <int AXES, int OPERANDS, int NUMBERS>
struct EpilogueArgs {
  void* pointers[OPERANDS];
  i64 strides[OPERANDS][AXES];  // of each operand along each axis of the kernel; 0 along those it has not
  i64 sizes[AXES];
  EpilogueNumber numbers[NUMBERS];
};

}  // namespace fw

#endif  // FW_KERNELS_CONTRACT_EPILOGUE_H
