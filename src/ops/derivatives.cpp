// One rule for each primitive, the formula in its comment. y is the result, g = dL/dy. At kinks and ties the rules are
// PyTorch's (its derivatives at a point where the mathematical one does not exist are part of what users train with).
#include "ops/derivatives.h"

#include <cmath>

#include "ops/expr.h"

namespace fusewright {
namespace {

struct Rule {
  Builder& b;
  Value v;
  Expr g;
  const std::vector<bool>& wanted;
  std::vector<Value> result;

  Node node() const { return b.graph()[v]; }  // a copy: appending operations moves the nodes
  Expr y() const { return {&b, v}; }
  Expr operand(size_t i) const { return {&b, b.graph()[v].operands[i]}; }
  // Operand i receives `gradient`, summed over the dimensions in which it was broadcast.
  template <class Formula>
  void to(size_t i, Formula formula) {
    const Shape shape = operand(i).shape();
    if (wanted[i]) result[i] = sum_to_shape(b, formula().v, shape);
  }
};

Expr exp(Expr x) { return apply(Op::exp, x); }
Expr square(Expr x) { return apply(Op::square, x); }
Expr zero_like(Expr x) { return x.constant(0); }

void unary(Rule& r, Op op) {
  Expr x = r.operand(0), y = r.y(), g = r.g;
  r.to(0, [&]() -> Expr {
    switch (op) {
      case Op::neg:
        return -g;  // -g
      case Op::abs:
        return g * apply(Op::sign, x);  // g sign(x): 0 at 0
      case Op::exp:
        return g * y;  // g y
      case Op::expm1:
        return g * (y + 1.0);  // g (y + 1)
      case Op::log:
        return g / x;  // g / x
      case Op::log1p:
        return g / (x + 1.0);  // g / (1 + x)
      case Op::erf:
        return g * (exp(-square(x)) * (2.0 / std::sqrt(M_PI)));  // g 2/sqrt(pi) e^(-x^2)
      case Op::normal_cdf:
        return g * (exp(square(x) * -0.5) * (1.0 / std::sqrt(2 * M_PI)));  // g 1/sqrt(2 pi) e^(-x^2 / 2)
      case Op::tanh:
        return g * (1.0 - square(y));  // g (1 - y^2)
      case Op::sigmoid:
        return g * ((1.0 - y) * y);  // g (1 - y) y
      case Op::sin:
        return g * apply(Op::cos, x);  // g cos(x)
      case Op::cos:
        return -(g * apply(Op::sin, x));  // -g sin(x)
      case Op::sqrt:
        return g / (y * 2.0);  // g / (2 y)
      case Op::rsqrt:
        // -g y^3 / 2, one factor at a time: y^3 of a spread of 1e14 is no normal float, while its product with g is
        // one.
        return g * y * y * (y * -0.5);
      case Op::reciprocal:
        return -(g * square(y));  // -g y^2
      case Op::square:
        return g * (x * 2.0);  // 2 g x
      case Op::cast:
        return g.cast(x.dtype());  // g
      default:
        fail(name_of(op), ": no derivative rule");
    }
  });
}

void binary(Rule& r, Op op) {
  Expr a = r.operand(0), b = r.operand(1), y = r.y(), g = r.g;
  // The half at a tie and NaN's both are PyTorch's: where(a == b, g / 2, g), then 0 where the other one won.
  auto extremum = [&](Expr lost) { return select(lost, zero_like(g), select(apply(Op::eq, a, b), g * 0.5, g)); };
  switch (op) {
    case Op::add:  // g, g
      r.to(0, [&] { return g; });
      r.to(1, [&] { return g; });
      return;
    case Op::sub:  // g, -g
      r.to(0, [&] { return g; });
      r.to(1, [&] { return -g; });
      return;
    case Op::mul:  // g b, g a
      r.to(0, [&] { return g * b; });
      r.to(1, [&] { return g * a; });
      return;
    case Op::div:  // g / b, -g (a / b) / b
      r.to(0, [&] { return g / b; });
      r.to(1, [&] { return -g * (y / b); });
      return;
    case Op::pow:  // g b a^(b - 1), 0 where b = 0;  g y log(a), 0 where a = 0 and b >= 0
      r.to(0,
           [&] { return select(apply(Op::eq, b, b.constant(0)), zero_like(g), g * (b * apply(Op::pow, a, b - 1.0))); });
      r.to(1, [&] {
        Expr flat = apply(Op::logical_and, apply(Op::eq, a, a.constant(0)), b >= 0.0);
        return select(flat, zero_like(g), g * (y * apply(Op::log, a)));
      });
      return;
    case Op::maximum:
      r.to(0, [&] { return extremum(a < b); });
      r.to(1, [&] { return extremum(a > b); });
      return;
    case Op::minimum:
      r.to(0, [&] { return extremum(a > b); });
      r.to(1, [&] { return extremum(a < b); });
      return;
    default:
      fail(name_of(op), ": no derivative rule");
  }
}

// The reduced gradient back at the operand's rank, ready to broadcast.
Expr with_kept_dims(Rule& r, Expr reduced) {
  Node node = r.node();
  Shape kept = r.operand(0).shape();
  for (int64_t d : node.ints("dims")) kept[static_cast<size_t>(d)] = 1;
  return reduced.shape() == kept ? reduced : reduced.reshape(kept);
}

void reduce(Rule& r) {
  Node node = r.node();
  Expr x = r.operand(0), g = with_kept_dims(r, r.g);
  const Ints& dims = node.ints("dims");
  switch (node.op) {
    case Op::sum:  // g repeated
      r.to(0, [&] { return Expr{&r.b, r.b.expand(g.v, x.shape())}; });
      return;
    case Op::amax:
    case Op::amin: {
      Expr y = with_kept_dims(r, r.y());
      Expr is_best = apply(Op::eq, x, y);
      if (node.integer("tie") == 0) {  // shared: g / how many are the best
        Expr mask = select(is_best, x.constant(1), x.constant(0));
        Expr count = mask.sum(dims, true);
        r.to(0, [&] { return g * mask / count; });
      } else {  // to the first
        Expr best = {&r.b, r.b.op(node.op == Op::amax ? Op::argmax : Op::argmin, {x.v},
                                  {{"dims", dims}, {"keepdim", int64_t{1}}})};
        Shape line(static_cast<size_t>(x.rank()), Size(1));
        line[static_cast<size_t>(dims.at(0))] = x.dim(dims[0]);
        Expr position = Expr{&r.b, r.b.iota(x.dim(dims[0]))}.reshape(line);
        r.to(0, [&] { return select(apply(Op::eq, position, best), g, zero_like(g)); });
      }
      return;
    }
    case Op::prod: {  // g (product of the others): y / x, or the product of the rest at a single zero
      Expr is_zero = apply(Op::eq, x, x.constant(0));
      Expr zeros = select(is_zero, x.constant(1), x.constant(0)).sum(dims, true);
      Expr rest = {&r.b, r.b.reduce(Op::prod, select(is_zero, x.constant(1), x).v, dims, true)};
      r.to(0, [&] {
        Expr at_zero = select(apply(Op::eq, zeros, zeros.constant(1)), rest, zero_like(rest));
        Expr elsewhere = select(apply(Op::eq, zeros, zeros.constant(0)), rest / x, zero_like(rest / x));
        return g * select(is_zero, at_zero, elsewhere);
      });
      return;
    }
    default:
      fail(name_of(node.op), ": no derivative rule");
  }
}

void window(Rule& r) {
  Node node = r.node();
  if (node.op == Op::shift) {  // what was read goes back, and what was not has the gradient 0
    Ints back = node.ints("start");
    for (int64_t& start : back) start = -start;
    r.to(0, [&] { return Expr{&r.b, r.b.op(Op::shift, {r.g.v}, {{"start", back}, {"sizes", r.operand(0).shape()}})}; });
    return;
  }
  Attrs attrs = node.attrs;
  attrs["input_sizes"] = r.operand(0).shape();
  if (node.op == Op::max_pool) {  // each element gathers g from the windows that chose it
    Value index = r.b.op(Op::max_pool_index, {r.operand(0).v}, node.attrs);
    r.to(0, [&] { return Expr{&r.b, r.b.op(Op::max_pool_grad, {r.g.v, index}, attrs)}; });
  } else if (node.op == Op::avg_pool) {  // each element gathers g / divisor from its windows
    r.to(0, [&] { return Expr{&r.b, r.b.op(Op::avg_pool_grad, {r.g.v}, attrs)}; });
  } else {
    fail(name_of(node.op), ": no derivative rule (second derivatives of pooling are not supported)");
  }
}

Value transposed(Builder& b, Value v) {
  Ints dims;
  for (int d = 0; d < b.rank(v); ++d) dims.push_back(d);
  std::swap(dims[dims.size() - 1], dims[dims.size() - 2]);
  return b.permute(v, dims);
}

void contraction(Rule& r) {
  Node node = r.node();
  if (node.op == Op::matmul) {  // g b^T, a^T g; bias: g
    r.to(0, [&] { return Expr{&r.b, r.b.binary(Op::matmul, r.g.v, transposed(r.b, r.operand(1).v))}; });
    r.to(1, [&] { return Expr{&r.b, r.b.binary(Op::matmul, transposed(r.b, r.operand(0).v), r.g.v)}; });
    if (node.operands.size() == 3) r.to(2, [&] { return r.g; });
    return;
  }
  require(node.op == Op::conv, name_of(node.op), ": no derivative rule (second derivatives are not supported)");
  Attrs input = node.attrs, weight = node.attrs;
  input["input_sizes"] = r.operand(0).shape();
  weight["weight_sizes"] = r.operand(1).shape();
  r.to(0, [&] { return Expr{&r.b, r.b.op(Op::conv_input_grad, {r.g.v, r.operand(1).v}, input)}; });
  r.to(1, [&] { return Expr{&r.b, r.b.op(Op::conv_weight_grad, {r.g.v, r.operand(0).v}, weight)}; });
  if (node.operands.size() < 3) return;
  r.to(2, [&] {  // the sum of each channel's g
    Ints dims = {0};
    for (int64_t d = 2; d < r.g.rank(); ++d) dims.push_back(d);
    return r.g.sum(dims, true).reshape(r.operand(2).shape());
  });
}

void movement(Rule& r) {
  Node node = r.node();
  r.to(0, [&]() -> Expr {
    if (node.op == Op::reshape) return r.g.reshape(r.operand(0).shape());
    if (node.op == Op::permute) {
      const Ints& dims = node.ints("dims");
      Ints inverse(dims.size());
      for (size_t i = 0; i < dims.size(); ++i) inverse[static_cast<size_t>(dims[i])] = static_cast<int64_t>(i);
      return {&r.b, r.b.permute(r.g.v, inverse)};
    }
    return r.g;  // expand: `to` sums
  });
}

bool has_zero_derivative(Op op) {
  switch (op) {
    case Op::sign:
    case Op::floor:
    case Op::ceil:
    case Op::round:
    case Op::trunc:
    case Op::stop_gradient:
    case Op::max_pool_index:
      return true;
    default:
      return gives_boolean(op);
  }
}

}  // namespace

Value sum_to_shape(Builder& b, Value gradient, const Shape& shape) {
  const Shape from = b.shape(gradient);
  if (from == shape) return gradient;
  size_t extra = from.size() - shape.size();
  Ints dims;
  for (size_t d = 0; d < from.size(); ++d)
    if (d < extra || (shape[d - extra].is(1) && !from[d].is(1))) dims.push_back(static_cast<int64_t>(d));
  Value total = dims.empty() ? gradient : b.reduce(Op::sum, gradient, dims, true);
  return b.shape(total) == shape ? total : b.reshape(total, shape);
}

std::vector<Value> derivative(Builder& b, Value v, Value dL_dy, const std::vector<bool>& wanted) {
  Op op = b.graph()[v].op;
  size_t first = b.graph().nodes.size();
  Rule rule{b, v, {&b, dL_dy}, wanted, std::vector<Value>(b.graph()[v].operands.size(), -1)};
  if (has_zero_derivative(op)) return rule.result;
  switch (kind_of(op)) {
    case Kind::pointwise:
      if (op == Op::select) {  // the branch that was taken
        Expr condition = rule.operand(0), g = rule.g;
        rule.to(1, [&] { return select(condition, g, zero_like(g)); });
        rule.to(2, [&] { return select(condition, zero_like(g), g); });
      } else if (info(op).min_operands == 1) {
        unary(rule, op);
      } else {
        binary(rule, op);
      }
      break;
    case Kind::reduce:
      reduce(rule);
      break;
    case Kind::window:
      window(rule);
      break;
    case Kind::contraction:
      contraction(rule);
      break;
    case Kind::movement:
      movement(rule);
      break;
    default:
      fail(name_of(op), ": no derivative rule");
  }
  return in_reading_order(b.graph(), first, std::move(rule.result));
}

}  // namespace fusewright
