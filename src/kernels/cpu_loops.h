// What generated C++ kernels share beside the mathematics: their arguments, walking over axes, lines of memory.
// Included after prelude.h; host only.
#pragma once

namespace fw {

// What the executor hands to a kernel. The same layout stands in launch/kernel_abi.h.
struct Args {
  void* const* pointers;  // one per memory operand
  const i64* sizes;       // one per axis
  const i64* strides;     // [operand][axis], in elements
  const double* numbers;  // scalars of the program: sizes, the user's numbers
  void* rows;             // while a reduction is split: the state of each row,
  void* partial;          // its partial sums,
  i64 splits;             // and how many of them there are
  const i64* side_sizes;  // per operand: elements of a part's buffer for a sum on the side, else 0
  i64 block;              // columns, at most `lanes`, or rows, at most `rows_at_once`, that are reduced together
};

constexpr int chunk = 1024;       // elements of a line that are handled at once: its buffers stay in the L1 cache
constexpr int lanes = 1024;       // room for that many columns
constexpr int rows_at_once = 16;  // and for that many short rows
constexpr int flush_every = 32;   // rows that are added in float before the sum moves to double: as accurate as a tree

// Coordinates of the linear-th point of a space of COUNT axes, last one fastest.
template <int COUNT>
FW_FN void decode(const i64* sizes, const int* axes, i64 linear, i64* coordinate) {
  for (int k = COUNT - 1; k >= 0; --k) {
    const i64 size = sizes[axes[k]];
    coordinate[axes[k]] = size == 1 ? 0 : linear % size;
    linear = size == 1 ? linear : linear / size;
  }
}

template <int COUNT>
FW_FN void advance(const i64* sizes, const int* axes, i64* coordinate) {
  for (int k = COUNT - 1; k >= 0; --k) {
    if (++coordinate[axes[k]] < sizes[axes[k]]) return;
    coordinate[axes[k]] = 0;
  }
}

// Coordinates of the line that element `begin` lies on, and its position there. Most calls begin at 0.
template <int COUNT>
FW_FN i64 start(const i64* sizes, const int* axes, i64 begin, i64 inner, i64* coordinate) {
  if (begin == 0) {
    for (int k = 0; k < COUNT; ++k) coordinate[axes[k]] = 0;
    return 0;
  }
  decode<COUNT>(sizes, axes, begin / inner, coordinate);
  return begin % inner;
}

// offset[operand] = base[operand] + sum over axes of coordinate * stride
template <int COUNT, int OPERANDS, int AXES>
FW_FN void offsets(const i64* strides, const int* axes, const i64* coordinate, const i64* base, i64* offset) {
  for (int o = 0; o < OPERANDS; ++o) {
    i64 sum = base[o];
    for (int k = 0; k < COUNT; ++k) sum += coordinate[axes[k]] * strides[o * AXES + axes[k]];
    offset[o] = sum;
  }
}

template <int COUNT>
FW_FN i64 extent(const i64* sizes, const int* axes) {
  i64 product = 1;
  for (int k = 0; k < COUNT; ++k) product *= sizes[axes[k]];
  return product;
}

// A line as the inner loop wants it: neighbours in memory. Other strides (a transposed or expanded tensor, a gradient
// of any layout) go through a buffer.
template <class T>
FW_FN const T* line_in(const T* from, i64 stride, int n, T* buffer) {
  if (stride == 1) return from;
  for (int i = 0; i < n; ++i) buffer[i] = from[i * stride];
  return buffer;
}
template <class T>
FW_FN void line_out(T* to, i64 stride, int n, const T* buffer) {
  if (stride == 1) return;
  for (int i = 0; i < n; ++i) to[i * stride] = buffer[i];
}

// Every step-th element, converted for computing: what a window reads.
template <class C, class T>
FW_FN void gather_line(C* to, const T* from, i64 step, int n) {
  if (step == 1) {
    for (int i = 0; i < n; ++i) to[i] = convert<C>(from[i]);
  } else if (step == 2) {
    for (int i = 0; i < n; ++i) to[i] = convert<C>(from[2 * i]);
  } else {
    for (int i = 0; i < n; ++i) to[i] = convert<C>(from[i * step]);
  }
}

}  // namespace fw
