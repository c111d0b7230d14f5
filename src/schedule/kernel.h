#pragma once
// A kernel: the operations that share one iteration space, and how each of them moves over it. `fuse` makes it, a
// schedule turns it into code.
//
// Example. group_norm's mean of x[n, 32*g] reshaped to [n, 32, g]:
//   axes   a0 = n (kept), a1 = 32 (kept), a2 = g (reduced)
//   steps  s0 load x   dims [[a0], [a1, a2]]     the channel dimension is the product of two axes
//          s1 sum      dims [[a0], [a1], []]     of s0
// No step needs a division to find its element: an axis is a stride.
#include <string>
#include <vector>

#include "ir/ir.h"

namespace fusewright {

// One loop of a kernel, or a position that a window derives from one.
struct Axis {
  Size size;
  bool reduced = false;
  bool pinned = false;  // its position is used as a number: never merged with a neighbour at run time

  // Taps: inside a window the position is  base * stride - padding + k * dilation  for k < kernel; a gather inverts
  // that: (base + padding - k * dilation) / stride where it divides. `size` is then the extent pointed into.
  bool tap = false;
  bool gather = false;
  int base = -1;  // an axis, or -1: position 0
  int64_t kernel = 1, stride = 1, padding = 0, dilation = 1;
};

// The cost in ops.def of an operation that is worth a read of memory to avoid: that of a function.
constexpr int cost_of_a_function = 8;

using Dims = std::vector<std::vector<int>>;  // per dimension of a value: its axes, outermost first; none: size 1

struct Step {
  enum class Role { load, scalar, iota, compute, reduce, window, contract };
  Role role;
  Value value;
  Dims dims;
  std::vector<int> operands;  // steps
  std::vector<int> taps;      // window: the axes it derives, one for each window dimension
  bool stored = false;
  // A sum over other dimensions than the kernel's own reduction: the gradient of a norm's weight beside the norm's own
  // sums. The data is read anyway; partial sums go to memory and are added up after the kernel, unless there is one.
  // Nothing in the kernel can use the result.
  bool side = false;
  // A single number that has nothing to do with the kernel's data, a counter that is updated beside running statistics:
  // read and written by whoever works on the first row. Set where it is loaded and where it is stored.
  bool once = false;
  // A 16-bit value that lies in memory somewhere and is used here: rounded where it is computed (the pass `round`).
  bool rounded = false;
  // A load of an input that this kernel writes over (the pass `update`): nobody but the writer may look at it.
  bool overwritten = false;
};

struct Kernel {
  std::vector<Axis> axes;
  std::vector<Step> steps;  // operands first

  bool reduces() const;
  bool has_windows() const;
  bool is_pointwise() const;  // each element by itself
  Value contraction() const;  // the matrix product or convolution that it computes; -1: none
  std::vector<Value> loaded() const, stored() const;
};

// The loops along which a loaded or stored value moves, outermost in memory first.
bool loads(const Graph& graph, const Step& step, Value input);  // it, or a view of it
std::vector<int> loops_in_memory(const Graph& graph, const Kernel& kernel, const Step& step);

}  // namespace fusewright
