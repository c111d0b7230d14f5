#pragma once
// The steps behind a contraction, as an inlined device function over its accumulators. A hand-written main loop calls
// it; nothing here knows how that loop is built, or which lanes of a fragment lie where.
//
//   struct At { fw::i64 c0, c1, ...; };  // the position, on each axis of the kernel, of the first of V neighbours
//   template <int V> struct Held;        // operands that a thread keeps
//   template <int V> FW_FN void hold(const EpilogueArgs& a, const At& at, Held<V>& held);
//   template <int V> FW_FN void epilogue(const EpilogueArgs& a, const At& at, const Held<V>& held, float (&x)[V]);
//
// `epilogue` replaces V accumulators by V results, in the type that registers have. The caller rounds and stores the
// results; the function itself stores the other values that the kernel writes (those that a backward needs). All V
// elements must be inside. A kernel whose thread works on several fragments calls `hold` once for all of them.
#include <string>
#include <vector>

#include "codegen/kernel_code.h"

namespace fusewright {

// What an epilogue is written for.
struct Fragment {
  int accumulator;          // the step whose value the caller has: the contraction
  int result;               // the step whose value it wants
  int along = -1;           // the axis on which the V elements of a call are neighbours; -1: V is 1
  std::vector<int> moving;  // axes on which a thread's calls differ: operands that do not vary along them are held
};

struct Epilogue {
  std::string text;                           // declares all of the above; stands behind kernels/contract/epilogue.h
  std::vector<KernelCode::Operand> operands;  // in the order of EpilogueArgs::pointers
  std::vector<Value> numbers;                 // in the order of EpilogueArgs::numbers
};

// Throws Error if a step between the two is no pointwise operation of the accumulators, operands and positions.
Epilogue write_epilogue(const Graph& graph, const Kernel& kernel, const Fragment& fragment);

}  // namespace fusewright
