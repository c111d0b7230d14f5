#pragma once
#include "ir/builder.h"

namespace fusewright {

// Sugar that lets composites and derivatives read as formulas: `x * sigmoid(x)`. A number takes the element type of the
// expression beside it.
//
// C++ does not say whether the left or the right side of `f(x) * g(x)` is evaluated first: g++ and clang differ. The
// order in which the operations are appended must not be seen, because the passes walk graphs in order and a kernel's
// text, and with it its key in the cache, follows: a cache filled by one build of the library would serve the other
// nothing. So who writes with this sugar (expand_composite, derivative) ends with in_reading_order, which depends on
// the operands alone. Everything after that goes through lists, ordered maps and statements: text and keys are the same
// for every compiler.
struct Expr {
  Builder* b = nullptr;
  Value v = -1;

  Shape shape() const { return b->shape(v); }  // a copy: appending operations moves the nodes
  int rank() const { return b->rank(v); }
  DType dtype() const { return b->dtype(v); }
  Size dim(int64_t d) const { return shape()[static_cast<size_t>(d < 0 ? d + rank() : d)]; }
  Expr constant(double value) const { return {b, b->constant(value, dtype())}; }
  // A number the user chose: an argument of the kernel, not part of its text.
  Expr parameter(double value) const { return {b, b->constant(value, dtype(), true)}; }
  Expr cast(DType to) const { return {b, b->cast(v, to)}; }
  Expr reshape(const Shape& sizes) const { return {b, b->reshape(v, sizes)}; }
  Expr sum(const Ints& dims, bool keepdim) const { return {b, b->reduce(Op::sum, v, dims, keepdim)}; }
  Expr amax(const Ints& dims, bool keepdim) const { return {b, b->reduce(Op::amax, v, dims, keepdim)}; }
};

inline Expr apply(Op op, Expr a) { return {a.b, a.b->op(op, {a.v})}; }
inline Expr apply(Op op, Expr a, Expr c) { return {a.b, a.b->op(op, {a.v, c.v})}; }
inline Expr select(Expr condition, Expr a, Expr c) { return {a.b, a.b->op(Op::select, {condition.v, a.v, c.v})}; }

#define FUSEWRIGHT_BINARY(symbol, op)                                                       \
  inline Expr operator symbol(Expr a, Expr c) { return apply(Op::op, a, c); }               \
  inline Expr operator symbol(Expr a, double c) { return apply(Op::op, a, a.constant(c)); } \
  inline Expr operator symbol(double a, Expr c) { return apply(Op::op, c.constant(a), c); }
FUSEWRIGHT_BINARY(+, add)
FUSEWRIGHT_BINARY(-, sub)
FUSEWRIGHT_BINARY(*, mul)
FUSEWRIGHT_BINARY(/, div)
FUSEWRIGHT_BINARY(<, lt)
FUSEWRIGHT_BINARY(<=, le)
FUSEWRIGHT_BINARY(>, gt)
FUSEWRIGHT_BINARY(>=, ge)
#undef FUSEWRIGHT_BINARY
inline Expr operator-(Expr a) { return apply(Op::neg, a); }

}  // namespace fusewright
