// Activations, norms and layers as expressions over primitives. Their derivatives, kernels and documentation follow.
//
// Where PyTorch's derivative at a kink differs from what the plain formula gives, the expression is chosen so that the
// primitives' own rules give PyTorch's: `select` passes the gradient to the branch it took, nothing to its condition.
#include "ops/composites.h"

#include <cmath>
#include <numeric>

#include "ops/expr.h"

namespace fusewright {
namespace {

struct Context {
  Builder& b;
  const Node& node;
  std::vector<Expr> args;
  bool cuda;
  Expr x() const { return args[0]; }
  double number(const char* name) const { return node.number(name); }
  bool flag(const char* name) const { return node.has(name) && node.integer(name) != 0; }
  // A number that the user chose: an operand where it changes from call to call, else an attribute.
  Expr setting(const char* name, size_t position) const {
    return args.size() > position ? args[position] : x().parameter(number(name));
  }
  // Optional operands follow the first in the order of the table.
  Expr optional(int position) const { return args[static_cast<size_t>(position)]; }
};

// Statistics and transcendental chains of 16-bit values are formed in f32, and rounded once at the end.
Expr widen(Expr x) { return is_narrow_float(x.dtype()) ? x.cast(DType::f32) : x; }

Expr sigmoid(Expr x) { return apply(Op::sigmoid, x); }
Expr exp(Expr x) { return apply(Op::exp, x); }
Expr tanh(Expr x) { return apply(Op::tanh, x); }
Expr square(Expr x) { return apply(Op::square, x); }
Expr held(Expr x) { return apply(Op::stop_gradient, x); }
Expr both(Expr a, Expr b) { return apply(Op::logical_and, a, b); }

// ---- activations ---------------------------------------------------------------------------------------------

// !(x <= 0) keeps NaN; max(0, x), in this order, keeps -0.
Expr relu(const Context& c) {
  Expr x = c.x();
  return select(x <= 0.0, apply(Op::maximum, x.constant(0), held(x)), x);
}

Expr leaky_relu(const Context& c) { return select(c.x() > 0.0, c.x(), c.x() * c.setting("negative_slope", 1)); }

Expr gelu(const Context& c) {
  Expr x = c.x();
  if (c.node.text("approximate") == "tanh") {
    // 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
    Expr inner = (x + square(x) * x * 0.044715) * std::sqrt(2.0 / M_PI);
    return x * 0.5 * (tanh(inner) + 1.0);
  }
  return x * apply(Op::normal_cdf, x);
}

Expr silu(const Context& c) { return c.x() * sigmoid(c.x()); }

// log(1 + e^x) = max(x, 0) + log1p(e^-|x|); the derivative wanted is sigmoid(x), which the two parts add up to
// everywhere but at 0, where a plain |x| has slope 0 and max one half: also right.
Expr softplus_of(Expr x) { return apply(Op::maximum, x, x.constant(0)) + apply(Op::log1p, exp(-apply(Op::abs, x))); }

Expr mish(const Context& c) { return c.x() * tanh(softplus_of(c.x())); }

Expr softplus(const Context& c) {
  Expr beta = c.x().parameter(c.number("beta")), scaled = c.x() * beta;
  return select(scaled > c.x().parameter(c.number("threshold")), c.x(), softplus_of(scaled) / beta);
}

// min(x, 0) - log1p(e^-|x|)
Expr log_sigmoid(const Context& c) {
  Expr x = c.x();
  return apply(Op::minimum, x, x.constant(0)) - apply(Op::log1p, exp(-apply(Op::abs, x)));
}

// A branch that is not taken must have a finite derivative (0 * inf is NaN): it computes with a harmless number.
// PyTorch's derivatives: hardswish 0 at and below -3, 1 from 3 on; hardsigmoid 0 at both limits and at NaN.
Expr hardswish(const Context& c) {
  Expr x = c.x(), inside = both(x > -3.0, x < 3.0), safe = select(inside, x, x.constant(0));
  Expr middle = safe * (safe + 3.0) / 6.0;
  return select(inside, middle, select(x <= -3.0, held(x) * 0.0, x));
}

Expr hardsigmoid(const Context& c) {
  Expr x = c.x(), inside = both(x > -3.0, x < 3.0);
  Expr outside = select(x <= -3.0, x.constant(0), select(x >= 3.0, x.constant(1), held(x)));
  return select(inside, (x + 3.0) / 6.0, outside);
}

Expr hardtanh(const Context& c) {
  Expr x = c.x(), low = c.setting("min_val", 1), high = c.setting("max_val", 2);
  return select(x <= low, low, select(x >= high, high, x));
}

// The gradient passes where low <= x <= high. NaN stays NaN, and a limit that is NaN gives NaN, without one.
Expr clamp(const Context& c) {
  Expr x = c.x(), result = x;
  std::vector<Expr> inside;
  // min(max(x, low), high): with low > high PyTorch gives high, so high is applied last.
  if (c.node.has("min") || c.flag("has_min")) {
    Expr low = c.setting("min", 1);
    result = apply(Op::maximum, result, low);
    inside.push_back(x >= low);
  }
  if (c.node.has("max") || c.flag("has_max")) {
    Expr high = c.setting("max", c.flag("has_min") ? 2 : 1);
    result = apply(Op::minimum, result, high);
    inside.push_back(x <= high);
  }
  if (inside.empty()) return x;
  return select(inside.size() == 2 ? both(inside[0], inside[1]) : inside[0], x, held(result));
}

Expr elu(const Context& c) {
  Expr x = c.x(), scale = x.parameter(c.number("scale")), negative = x <= 0.0;
  Expr safe = select(negative, x, x.constant(0));
  Expr below = apply(Op::expm1, safe * x.parameter(c.number("input_scale"))) * x.parameter(c.number("alpha")) * scale;
  return select(negative, below, x * scale);
}

Expr softsign(const Context& c) { return c.x() / (apply(Op::abs, c.x()) + 1.0); }

// ---- reductions ----------------------------------------------------------------------------------------------

Ints reduced_dims(const Context& c) { return c.node.ints("dims"); }

Size count_of(Expr x, const Ints& dims) {
  Size count = 1;
  for (int64_t d : dims) count = count * x.dim(d);
  return count;
}

Expr mean_of(Expr x, const Ints& dims, bool keepdim) {
  return x.sum(dims, keepdim) / Expr{x.b, x.b->extent(count_of(x, dims), x.dtype())};
}

Expr mean(const Context& c) { return mean_of(widen(c.x()), reduced_dims(c), c.flag("keepdim")).cast(c.x().dtype()); }

// Sum of squared distances from the mean, over max(0, n - correction).
Expr variance_of(Expr x, const Ints& dims, bool keepdim, double correction) {
  Expr distance = x - mean_of(x, dims, true);
  Expr count = {x.b, x.b->extent(count_of(x, dims), x.dtype())};
  Expr divisor = correction == 0 ? count : apply(Op::maximum, count - correction, count.constant(0));
  return square(distance).sum(dims, keepdim) / divisor;
}

// The rounded mean of numbers far from 0 is off by much of their spread: what is left of the mean of the distances
// says by how much. Mathematically that is 0, also in the derivative.
Expr corrected_variance(const Context& c, Expr x) {
  Ints dims = reduced_dims(c);
  Expr count = {x.b, x.b->extent(count_of(x, dims), x.dtype())};
  Expr left = held(mean_of(x - mean_of(x, dims, true), dims, c.flag("keepdim")));
  Expr biased = variance_of(x, dims, c.flag("keepdim"), 0) - square(left);
  double correction = c.number("correction");
  Expr divisor = correction == 0 ? count : apply(Op::maximum, count - correction, count.constant(0));
  return correction == 0 ? biased : biased * count / divisor;
}

Expr var(const Context& c) { return corrected_variance(c, widen(c.x())).cast(c.x().dtype()); }

// The derivative is 0 where the result is 0, as PyTorch's standard deviation and norm have it.
Expr root(Expr x) {
  Expr zero = apply(Op::eq, x, x.constant(0));
  return select(zero, x.constant(0), apply(Op::sqrt, select(zero, x.constant(1), x)));
}

// The variance may leave the range of a type that holds its root. f16 has room in f32. On processors PyTorch forms it
// in f64; on GPUs in f32.
Expr stddev(const Context& c) {
  const bool in_f64 = !c.cuda && c.x().dtype() != DType::f16;
  Expr x = in_f64 ? c.x().cast(DType::f64) : widen(c.x());
  return root(corrected_variance(c, x)).cast(c.x().dtype());
}

Expr vector_norm(const Context& c) {
  Expr x = widen(c.x());
  const bool euclidean = c.node.integer("order") == 2;
  require(euclidean || c.node.integer("order") == 1, "vector_norm: the order is 1 or 2");
  Expr total = (euclidean ? square(x) : apply(Op::abs, x)).sum(reduced_dims(c), c.flag("keepdim"));
  return (euclidean ? root(total) : total).cast(c.x().dtype());
}

// Each element is read from the operand that has it: its position says which.
Expr cat(const Context& c) {
  const auto dim = static_cast<size_t>(c.node.integer("dim"));
  Shape whole = c.x().shape(), line(whole.size(), Size(1));
  for (size_t i = 1; i < c.args.size(); ++i) whole[dim] = whole[dim] + c.args[i].shape()[dim];
  line[dim] = whole[dim];
  const Expr position = Expr{&c.b, c.b.iota(whole[dim])}.reshape(line);
  Expr result;
  int64_t before = 0;
  for (const Expr& part : c.args) {
    Ints start(whole.size());
    start[dim] = -before;
    const Expr moved = {&c.b, c.b.op(Op::shift, {part.v}, {{"start", start}, {"sizes", whole}})};
    result = before == 0 ? moved : select(apply(Op::lt, position, position.constant(double(before))), result, moved);
    before += c.b.specialise(part.shape()[dim], "cat");
  }
  return result;
}

// The first position whose element is the extreme one; NaN counts as extreme.
Expr position_of(const Context& c, Op extreme) {
  Expr x = c.x();
  Ints dims = reduced_dims(c);
  Expr best = {x.b, x.b->reduce(extreme, x.v, dims, true)};
  Expr chosen = apply(Op::eq, x, best);
  if (is_float(x.dtype())) chosen = apply(Op::logical_or, chosen, apply(Op::isnan, x));
  Shape line(static_cast<size_t>(x.rank()), Size(1));
  line[static_cast<size_t>(dims[0])] = x.dim(dims[0]);
  Expr index = Expr{x.b, x.b->iota(x.dim(dims[0]))}.reshape(line);
  Expr beyond = {x.b, x.b->constant(9.0e15, DType::i64)};
  return {x.b, x.b->reduce(Op::amin, select(chosen, index, beyond).v, dims, c.flag("keepdim"))};
}

Expr argmax(const Context& c) { return position_of(c, Op::amax); }
Expr argmin(const Context& c) { return position_of(c, Op::amin); }

// One pass over the row, without an indirect read. A row whose index names nothing is NaN, and so is its gradient.
Expr pick(const Context& c) {
  const Expr x = c.x(), index = c.args[1];
  const auto dim = static_cast<size_t>(c.node.integer("dim"));
  Shape line(x.shape().size(), Size(1));
  line[dim] = x.shape()[dim];
  const Expr position = Expr{&c.b, c.b.iota(line[dim])}.reshape(line);
  const Expr size = {&c.b, c.b.extent(line[dim], DType::i64)};
  const Expr exists = apply(Op::logical_and, index >= 0, index < size);
  const Expr taken = apply(Op::logical_or, apply(Op::eq, position, index), apply(Op::logical_not, exists));
  const Expr found = select(taken, x, x.constant(0)).sum({static_cast<int64_t>(dim)}, true);
  return found * select(exists, x.constant(1), x.constant(NAN));
}

// The maximum only shifts: it takes no part in the derivative. An infinite one must not shift (inf - inf).
Expr shift_of(Expr x, const Ints& dims) {
  Expr top = apply(Op::stop_gradient, x.amax(dims, true));
  Expr infinite = apply(Op::eq, apply(Op::abs, top), top.constant(INFINITY));
  return select(infinite, top.constant(0), top);
}

Expr logsumexp(const Context& c) {
  Expr x = widen(c.x());
  Ints dims = reduced_dims(c);
  Expr top = shift_of(x, dims);
  Expr total = exp(x - top).sum(dims, c.flag("keepdim"));
  Expr flat = c.flag("keepdim") ? top : top.reshape(total.shape());
  return (apply(Op::log, total) + flat).cast(c.x().dtype());
}

Ints single_dim(const Context& c) {
  int64_t dim = c.node.integer("dim");
  return {dim < 0 ? dim + c.x().rank() : dim};
}

Expr softmax(const Context& c) {
  Expr x = widen(c.x());
  Ints dims = single_dim(c);
  // Unlike logsumexp's, an infinite maximum gives NaN here, as PyTorch has it.
  Expr e = exp(x - apply(Op::stop_gradient, x.amax(dims, true)));
  return (e / e.sum(dims, true)).cast(c.x().dtype());
}

Expr log_softmax(const Context& c) {
  Expr x = widen(c.x());
  Ints dims = single_dim(c);
  Expr shifted = x - apply(Op::stop_gradient, x.amax(dims, true));
  return (shifted - apply(Op::log, exp(shifted).sum(dims, true))).cast(c.x().dtype());
}

// ---- norms ---------------------------------------------------------------------------------------------------

// A per-channel vector against [n, c, space..].
Expr per_channel(Expr vector, Expr like) {
  Shape sizes = {vector.dim(0)};
  for (int d = 2; d < like.rank(); ++d) sizes.push_back(1);
  return sizes.size() == 1 ? vector : vector.reshape(sizes);
}

Expr affine(const Context& c, Expr x, int first, bool channels) {
  int position = first;
  if (c.flag("has_weight")) {
    Expr w = c.optional(position++).cast(x.dtype());
    x = x * (channels ? per_channel(w, x) : w);
  }
  if (c.flag("has_bias")) {
    Expr bias = c.optional(position++).cast(x.dtype());
    x = x + (channels ? per_channel(bias, x) : bias);
  }
  return x;
}

Expr normalised(Expr x, const Ints& dims, double eps) {
  Expr centre = mean_of(x, dims, true);
  Expr spread = variance_of(x, dims, true, 0);
  return (x - centre) * apply(Op::rsqrt, spread + spread.parameter(eps));
}

Ints all_but_channel(Expr x) {
  Ints dims = {0};
  for (int64_t d = 2; d < x.rank(); ++d) dims.push_back(d);
  return dims;
}

Expr group_norm(const Context& c) {
  Expr x = widen(c.x());
  int64_t groups = c.node.integer("groups");
  Shape whole = x.shape(), split = {whole[0], groups, Size::floordiv(whole[1], groups)};
  Ints dims = {2};
  for (int d = 2; d < x.rank(); ++d) split.push_back(whole[static_cast<size_t>(d)]), dims.push_back(d + 1);
  Expr y = normalised(x.reshape(split), dims, c.number("eps")).reshape(whole);
  return affine(c, y, 1, true).cast(c.x().dtype());
}

Ints last_dims(Expr x, int64_t axes) {
  Ints dims(static_cast<size_t>(axes));
  std::iota(dims.begin(), dims.end(), x.rank() - axes);
  return dims;
}

Expr layer_norm(const Context& c) {
  Expr x = widen(c.x());
  Expr y = normalised(x, last_dims(x, c.node.integer("axes")), c.number("eps"));
  return affine(c, y, 1, false).cast(c.x().dtype());
}

Expr instance_norm(const Context& c) {
  Expr x = widen(c.x());
  Expr y = normalised(x, last_dims(x, x.rank() - 2), c.number("eps"));
  return affine(c, y, 1, true).cast(c.x().dtype());
}

Expr rms_norm(const Context& c) {
  Expr x = widen(c.x());
  Expr power = mean_of(square(x), last_dims(x, c.node.integer("axes")), true);
  Expr y = x * apply(Op::rsqrt, power + power.parameter(c.number("eps")));
  return affine(c, y, 1, false).cast(c.x().dtype());
}

Expr batch_norm(const Context& c) {
  Expr x = widen(c.x());
  return affine(c, normalised(x, all_but_channel(x), c.number("eps")), 1, true).cast(c.x().dtype());
}

Expr batch_norm_inference(const Context& c) {
  Expr x = widen(c.x());
  Expr centre = c.args[1].cast(x.dtype()), spread = c.args[2].cast(x.dtype());
  Expr scale = apply(Op::rsqrt, spread + spread.parameter(c.number("eps")));
  Expr y = (x - per_channel(centre, x)) * per_channel(scale, x);
  return affine(c, y, 3, true).cast(c.x().dtype());
}

// running' = (1 - momentum) running + momentum * statistic; no gradient flows through it.
Expr running(const Context& c, Expr statistic) {
  Expr old = c.args[1];
  double momentum = c.number("momentum");
  Expr next = statistic.cast(old.dtype()) * old.parameter(momentum) + old * old.parameter(1 - momentum);
  return apply(Op::stop_gradient, next);
}

Expr batch_norm_running_mean(const Context& c) {
  Expr x = widen(c.x());
  // keepdim and a reshape give the very nodes that batch_norm made: one reduction serves both.
  return running(c, mean_of(x, all_but_channel(x), true).reshape({x.dim(1)}));
}

Expr batch_norm_running_var(const Context& c) {
  Expr x = widen(c.x());
  Ints dims = all_but_channel(x);
  Expr biased = variance_of(x, dims, true, 0).reshape({x.dim(1)});
  Expr count = {x.b, x.b->extent(count_of(x, dims), x.dtype())};
  return running(c, biased * (count / (count - 1.0)));
}

// ---- layers --------------------------------------------------------------------------------------------------

// A bias is added by the kernel that follows, at no cost. In 16 bits that would round twice: there it goes into the
// library's call. (cuDNN's convolutions round before they add it, in a pass of their own: nothing would be gained.)
bool takes_bias(const Context& c, bool library_rounds_once = true) {
  return c.args.size() == 3 && is_narrow_float(c.x().dtype()) && library_rounds_once;
}

Expr linear(const Context& c) {
  Builder& b = c.b;
  Expr x = c.x();
  Shape out = x.shape();
  out.back() = c.args[1].dim(0);
  Shape lead = x.shape();
  lead.pop_back();
  Expr rows = x.rank() == 2 ? x : x.reshape({product(lead), x.dim(-1)});
  std::vector<Value> operands = {rows.v, b.permute(c.args[1].v, {1, 0})};
  if (takes_bias(c)) operands.push_back(c.args[2].v);
  Expr y = {&b, b.op(Op::matmul, operands)};
  if (x.rank() != 2) y = y.reshape(out);
  return c.args.size() == operands.size() ? y : y + c.args[2];
}

Expr convolution(const Context& c) {
  std::vector<Value> operands = {c.args[0].v, c.args[1].v};
  if (takes_bias(c, !c.cuda)) operands.push_back(c.args[2].v);
  Expr y = {&c.b, c.b.op(Op::conv, operands, c.node.attrs)};
  return c.args.size() == operands.size() ? y : y + per_channel(c.args[2], y);
}

Expr expand(const Context& c) {
  switch (c.node.op) {
#define PRIMITIVE(name, kind, operands, cost, meaning)
#define COMPOSITE(name, min_operands, max_operands, meaning) \
  case Op::name:                                             \
    return name(c);
#include "ops/ops.def"
    default:
      fail(name_of(c.node.op), " is no composite");
  }
}

}  // namespace

Value expand_composite(Builder& builder, const Node& composite, const std::vector<Value>& operands, bool cuda) {
  Context c{builder, composite, {}, cuda};
  for (Value v : operands) c.args.push_back({&builder, v});
  size_t first = builder.graph().nodes.size();
  Value result = expand(c).v;
  return in_reading_order(builder.graph(), first, {result})[0];
}

}  // namespace fusewright
