// Type inference: what each kind of operation gives for given operands, and what it refuses.
#include <algorithm>

#include "ir/builder.h"

namespace fusewright {
namespace {

using Operands = std::vector<Value>;

// Context of one inference; messages name the operation and the shapes.
struct Inference {
  Builder& builder;
  Op op;
  const Operands& operands;
  Attrs& attrs;

  const Graph& graph() const { return builder.graph(); }
  const Shape& shape(int i) const { return graph().shape(operands[static_cast<size_t>(i)]); }
  DType dtype(int i) const { return graph().dtype(operands[static_cast<size_t>(i)]); }
  int rank(int i) const { return static_cast<int>(shape(i).size()); }
  std::string what() const {
    std::string text = std::string(name_of(op)) + "(";
    for (size_t i = 0; i < operands.size(); ++i) {
      const Type& type = graph().type(operands[i]);
      text += (i ? ", " : "") + std::string(name_of(type.dtype)) + "[";
      for (size_t d = 0; d < type.shape.size(); ++d)
        text += (d ? ", " : "") + std::to_string(graph().hint(type.shape[d]));
      text += "]";
    }
    return text + ")";
  }
  template <class... Parts>
  void check(bool condition, const Parts&... parts) const {
    if (!condition) fail(what(), ": ", parts...);
  }
  Node node() const { return {op, {}, attrs, {}, -1}; }  // typed access to the attributes
};

bool needs_float(Op op) {
  switch (op) {
    case Op::exp:
    case Op::expm1:
    case Op::log:
    case Op::log1p:
    case Op::erf:
    case Op::normal_cdf:
    case Op::tanh:
    case Op::sigmoid:
    case Op::sin:
    case Op::cos:
    case Op::sqrt:
    case Op::rsqrt:
    case Op::reciprocal:
    case Op::div:
    case Op::pow:
    case Op::floor:
    case Op::ceil:
    case Op::round:
    case Op::trunc:
      return true;
    default:
      return false;
  }
}

Type infer_pointwise(Inference& in) {
  int first = in.op == Op::select ? 1 : 0, count = static_cast<int>(in.operands.size());
  if (in.op == Op::select) in.check(in.dtype(0) == DType::b8, "the condition must be b8");
  for (int i = first + 1; i < count; ++i)
    in.check(in.dtype(i) == in.dtype(first), "operands differ in type; casts are explicit");
  if (needs_float(in.op)) in.check(is_float(in.dtype(0)), "needs a floating type");
  if (in.op == Op::logical_and || in.op == Op::logical_or || in.op == Op::logical_not)
    in.check(in.dtype(0) == DType::b8, "needs b8");
  int rank = 0;
  for (int i = 0; i < count; ++i) rank = std::max(rank, in.rank(i));
  auto dim_of = [&](int i, int d) -> Size {  // aligned at the last dimension
    int at = d - (rank - in.rank(i));
    return at < 0 ? Size(1) : in.shape(i)[static_cast<size_t>(at)];
  };
  for (int d = 0; d < rank; ++d)  // first make sizes agree: unification may rewrite shapes already read
    for (int i = 1; i < count; ++i)
      for (int k = 0; k < i; ++k) in.builder.broadcast(dim_of(k, d), dim_of(i, d), in.what());
  Shape shape;
  for (int d = 0; d < rank; ++d) {
    Size size = 1;
    for (int i = 0; i < count; ++i)
      if (!dim_of(i, d).is(1)) size = dim_of(i, d);
    shape.push_back(size);
  }
  DType dtype = in.dtype(count - 1);
  if (gives_boolean(in.op)) dtype = DType::b8;
  if (in.op == Op::cast) {
    const DType* target = std::get_if<DType>(&in.attrs["dtype"]);
    in.check(target, "attribute 'dtype' is missing");
    dtype = *target;
  }
  return {dtype, shape, {}};
}

Type infer_reduce(Inference& in) {
  Ints dims = in.node().ints("dims");
  int64_t rank = std::max(in.rank(0), 1);  // a number may be reduced over its "dimension 0", as in PyTorch
  for (int64_t& d : dims) {
    in.check(d >= -rank && d < rank, "dimension ", d, " is out of range");
    if (d < 0) d += rank;
  }
  std::sort(dims.begin(), dims.end());
  in.check(std::adjacent_find(dims.begin(), dims.end()) == dims.end(), "a dimension is named twice");
  if (in.rank(0) == 0) dims.clear();
  in.attrs["dims"] = dims;
  bool index = in.op == Op::argmax || in.op == Op::argmin;
  if (index) in.check(dims.size() == 1, "takes one dimension");
  bool keepdim = in.node().integer("keepdim") != 0;
  Shape shape;
  for (int d = 0; d < in.rank(0); ++d) {
    bool reduced = std::find(dims.begin(), dims.end(), d) != dims.end();
    if (!reduced)
      shape.push_back(in.shape(0)[static_cast<size_t>(d)]);
    else if (keepdim)
      shape.push_back(1);
  }
  return {index ? DType::i64 : in.dtype(0), shape, {}};
}

Size pooled(const Size& size, int64_t kernel, int64_t stride, int64_t padding, int64_t dilation, bool ceil_mode) {
  Size span = size + Size(2 * padding - dilation * (kernel - 1) - 1);
  if (!ceil_mode) return Size::floordiv(span, stride) + Size(1);
  // The last window must start inside the input or its left padding.
  Size count = Size::floordiv(span + Size(stride - 1), stride) + Size(1);
  return Size::min(count, Size::floordiv(size + Size(padding - 1), stride) + Size(1));
}

// Dimensions that are moved or cut have sizes that are known when compiling: `start` is right for these alone.
Type infer_shift(Inference& in) {
  const Ints start = in.node().ints("start");
  Shape target = in.node().sizes("sizes");
  in.check(static_cast<int>(start.size()) == in.rank(0) && target.size() == start.size(),
           "start and sizes need an entry for each dimension");
  for (size_t d = 0; d < start.size(); ++d) {
    const Size own = in.shape(0)[d];
    if (start[d] == 0 && in.graph().hint(own) == in.graph().hint(target[d])) {
      target[d] = own;
    } else {
      in.builder.specialise(own, in.what());
      target[d] = in.builder.specialise(target[d], in.what());
    }
  }
  in.attrs["sizes"] = target;
  return {in.dtype(0), target, {}};
}

Type infer_window(Inference& in) {
  if (in.op == Op::shift) return infer_shift(in);
  Node node = in.node();
  const Ints& kernel = node.ints("kernel");
  size_t space = kernel.size();
  bool average = in.op == Op::avg_pool || in.op == Op::avg_pool_grad;
  in.check(space >= 1 && space <= 3 && in.rank(0) > static_cast<int>(space), "needs 1 to 3 window dimensions");
  in.check(node.ints("stride").size() == space && node.ints("padding").size() == space &&
               (average || node.ints("dilation").size() == space),
           "window attributes differ in length");
  for (size_t i = 0; i < space; ++i) {
    in.check(kernel[i] > 0 && node.ints("stride")[i] > 0, "kernel and stride must be positive");
    in.check(node.ints("padding")[i] >= 0, "padding must not be negative");
    in.check(node.ints("padding")[i] * 2 <= kernel[i], "padding is larger than half the kernel");
    in.check(average || node.ints("dilation")[i] > 0, "dilation must be positive");
  }
  if (in.op == Op::max_pool_grad || in.op == Op::avg_pool_grad) {
    in.check(static_cast<int>(node.sizes("input_sizes").size()) == in.rank(0), "input_sizes have another rank");
    if (in.op == Op::max_pool_grad) {
      in.check(in.rank(1) == in.rank(0), "gradient and index differ in rank");
      for (size_t d = 0; d < in.shape(0).size(); ++d) in.builder.unify(in.shape(0)[d], in.shape(1)[d], in.what());
    }
    return {in.dtype(0), node.sizes("input_sizes"), {}};
  }
  Shape shape = in.shape(0);
  for (size_t i = 0; i < space; ++i) {
    Size& size = shape[shape.size() - space + i];
    size = pooled(size, kernel[i], node.ints("stride")[i], node.ints("padding")[i],
                  average ? 1 : node.ints("dilation")[i], node.integer("ceil_mode") != 0);
    in.check(in.graph().hint(size) > 0, "the output would be empty");
  }
  if (in.op != Op::max_pool_index) return {in.dtype(0), shape, {}};
  int64_t volume = 1;
  for (int64_t k : kernel) volume *= k;
  return {volume <= 256 ? DType::u8 : DType::i32, shape, {}};
}

// The optional third operand of a contraction: one number for each of `channels`.
void check_bias(Inference& in, Size channels) {
  if (in.operands.size() < 3) return;
  in.check(in.rank(2) == 1, "operand 2 must be a vector");
  in.check(in.dtype(2) == in.dtype(0), "operands need one floating type");
  in.builder.unify(in.shape(2)[0], channels, in.what());
}

Type infer_matmul(Inference& in) {
  int rank = in.rank(0);
  in.check(rank >= 2 && in.rank(1) == rank, "both operands need the same rank, 2 or more");
  in.check(in.dtype(0) == in.dtype(1) && is_float(in.dtype(0)), "operands need one floating type");
  auto a = [&](int d) { return in.shape(0)[static_cast<size_t>(d)]; };
  auto b = [&](int d) { return in.shape(1)[static_cast<size_t>(d)]; };
  for (int d = 0; d < rank - 2; ++d) in.builder.unify(a(d), b(d), in.what());
  in.builder.unify(a(rank - 1), b(rank - 2), in.what());
  in.check(in.operands.size() == 2 || rank == 2, "only a product of two matrices takes a bias");
  check_bias(in, b(rank - 1));
  Shape shape = in.shape(0);
  shape.back() = b(rank - 1);
  return {in.dtype(0), shape, {}};
}

Type infer_conv(Inference& in) {
  Node node = in.node();
  int space = in.rank(0) - 2;
  in.check(space >= 1 && space <= 3 && in.rank(1) == in.rank(0),
           "needs 1 to 3 spatial dimensions and a matching weight");
  in.check(in.dtype(0) == in.dtype(1) && is_float(in.dtype(0)), "operands need one floating type");
  int64_t groups = node.integer("groups");
  bool transposed = node.integer("transposed") != 0;
  auto x = [&](int d) { return in.shape(0)[static_cast<size_t>(d)]; };
  auto w = [&](int d) { return in.shape(1)[static_cast<size_t>(d)]; };
  for (const char* name : {"stride", "padding", "dilation", "output_padding"})
    in.check(static_cast<int>(node.ints(name).size()) == space, "attribute '", name, "' has the wrong length");
  in.check(groups >= 1, "groups must be positive");
  auto channels = [&] { return transposed ? w(1) * Size(groups) : w(0); };
  in.builder.unify(x(1), transposed ? w(0) : w(1) * Size(groups), in.what());
  check_bias(in, channels());
  Shape shape = {x(0), channels()};
  for (int d = 0; d < space; ++d) {
    size_t i = static_cast<size_t>(d);
    int64_t kernel = in.builder.specialise(w(d + 2), in.what());
    int64_t stride = node.ints("stride")[i], padding = node.ints("padding")[i], dilation = node.ints("dilation")[i];
    in.check(stride > 0 && dilation > 0 && padding >= 0, "stride and dilation must be positive");
    int64_t reach = dilation * (kernel - 1);
    if (transposed)
      shape.push_back((x(d + 2) - Size(1)) * Size(stride) +
                      Size(reach + 1 + node.ints("output_padding")[i] - 2 * padding));
    else
      shape.push_back(Size::floordiv(x(d + 2) + Size(2 * padding - reach - 1), stride) + Size(1));
    in.check(in.graph().hint(shape.back()) > 0, "kernel is larger than the padded input");
  }
  shape[0] = x(0);
  return {in.dtype(0), shape, {}};
}

// Target sizes of a reshape that are plain numbers are given their meaning in terms of the operand's symbols, so that
// [n, c, h, w] -> [2, 72] becomes [n, c*h*w] and another batch gives the same graph. Sizes are matched from the left by
// their hints: a run of operand sizes against a run of target sizes with the same product.
Shape symbolic_reshape(Inference& in, const Shape& target) {
  auto hint = [&](const Size& size) { return in.graph().hint(size); };
  auto operand = [&](size_t i) { return in.shape(0)[i]; };
  Shape result;
  size_t i = 0, k = 0, rank = in.shape(0).size();
  while (i < rank || k < target.size()) {
    size_t i0 = i, k0 = k;
    int64_t have = 1, want = 1;
    if (i < rank) have = hint(operand(i++));
    if (k < target.size()) want = hint(target[k++]);
    while (have != want) {
      if (have < want && i < rank)
        have *= hint(operand(i++));
      else if (want < have && k < target.size())
        want *= hint(target[k++]);
      else
        in.check(false, "cannot become ", str(target));
    }
    size_t n_in = i - i0, n_out = k - k0;
    if (n_out == 0) {  // trailing ones of the operand disappear
      for (size_t d = i0; d < i; ++d) in.builder.unify(operand(d), 1, in.what());
    } else if (n_out == 1) {
      Size merged = 1;  // whatever the program wrote for it
      for (size_t d = i0; d < i; ++d) merged = merged * operand(d);
      result.push_back(merged);
    } else {
      // A split. All parts but the last that is not 1 are part of the program; that one carries the symbol.
      for (size_t d = i0; n_in > 1 && d < i; ++d) in.builder.specialise(operand(d), in.what());
      size_t carrier = k0;
      for (size_t d = k0; d < k; ++d)
        if (hint(target[d]) != 1 || d == k0) carrier = d;
      Size fixed = 1;
      bool exact = false;
      for (size_t d = k0; d < k; ++d) exact |= !target[d].constant().has_value();
      for (size_t d = k0; d < k; ++d)
        if (d != carrier || exact) fixed = fixed * target[d];
      if (n_in == 0) {
        for (size_t d = k0; d < k; ++d) result.push_back(1);
      } else if (exact || operand(i0).constant()) {  // the program states the sizes as expressions
        if (exact) in.builder.unify(operand(i0), fixed, in.what());
        for (size_t d = k0; d < k; ++d) result.push_back(target[d]);
      } else {
        int64_t parts = *fixed.constant();
        Size carried = Size::floordiv(operand(i0), parts);
        if (!(carried * Size(parts) == operand(i0))) {
          carried = Size::symbol(in.builder.graph().fresh_symbol("r", hint(operand(i0)) / parts));
          in.builder.unify(operand(i0), carried * Size(parts), in.what());
          carried = Size::floordiv(operand(i0), parts);
        }
        for (size_t d = k0; d < k; ++d) result.push_back(d == carrier ? carried : target[d]);
      }
    }
  }
  return result;
}

Type infer_movement(Inference& in) {
  if (in.op == Op::permute) {
    Ints dims = in.node().ints("dims");
    in.check(static_cast<int>(dims.size()) == in.rank(0), "names ", dims.size(), " dimensions");
    Shape shape;
    std::vector<bool> seen(dims.size());
    for (int64_t& d : dims) {
      if (d < 0) d += in.rank(0);
      in.check(d >= 0 && d < in.rank(0) && !seen[static_cast<size_t>(d)], "is not a permutation");
      seen[static_cast<size_t>(d)] = true;
      shape.push_back(in.shape(0)[static_cast<size_t>(d)]);
    }
    in.attrs["dims"] = dims;
    return {in.dtype(0), shape, {}};
  }
  Shape target = in.node().sizes("sizes");
  if (in.op == Op::reshape) {
    if (!(product(target) == product(in.shape(0)))) target = symbolic_reshape(in, target);
  } else {
    int extra = static_cast<int>(target.size()) - in.rank(0);
    in.check(extra >= 0, "cannot lose dimensions");
    for (int d = 0; d < in.rank(0); ++d) {
      Size& size = target[static_cast<size_t>(d + extra)];
      const Size& own = in.shape(0)[static_cast<size_t>(d)];
      if (own.is(1)) continue;  // repeated as often as `size` says, once included
      if (in.graph().hint(own) == in.graph().hint(size))
        size = own;  // not repeated
      else
        in.builder.unify(own, 1, in.what());
    }
  }
  in.attrs["sizes"] = target;
  return {in.dtype(0), target, {}};
}

// Composites have the type of the expression they stand for; only what decompose cannot know better is checked here.
Type infer_composite(Inference& in) {
  Node node = in.node();
  // Optional operands: `has_weight` and `has_bias` say which of them stand there.
  auto flag = [&](const char* name) { return node.has(name) && node.integer(name) != 0 ? size_t{1} : size_t{0}; };
  auto expect_affine = [&](size_t first) {
    in.check(in.operands.size() == first + flag("has_weight") + flag("has_bias"), "has ", in.operands.size(),
             " operands, but has_weight and has_bias say ", first + flag("has_weight") + flag("has_bias"));
  };
  auto expect_vectors = [&](size_t first) {
    for (size_t i = first; i < in.operands.size(); ++i)
      in.check(in.rank(static_cast<int>(i)) == 1, "operand ", i, " must be a vector");
  };
  auto with = [&](const Shape& shape) { return Type{in.dtype(0), shape, {}}; };
  switch (in.op) {
    case Op::mean:
    case Op::var:
    case Op::stddev:
    case Op::vector_norm:
    case Op::logsumexp:
    case Op::argmax:
    case Op::argmin:
      return infer_reduce(in);
    case Op::softmax:
    case Op::log_softmax: {
      int64_t dim = node.integer("dim");
      in.check(dim >= -in.rank(0) && dim < std::max(in.rank(0), 1), "dimension ", dim, " is out of range");
      return with(in.shape(0));
    }
    case Op::pick: {
      int64_t dim = node.integer("dim");
      in.check(dim >= -in.rank(0) && dim < in.rank(0), "dimension ", dim, " is out of range");
      if (dim < 0) dim += in.rank(0);
      in.attrs["dim"] = dim;
      in.check(is_float(in.dtype(0)), "takes a floating type");
      in.check(in.dtype(1) == DType::i64 && in.rank(1) == in.rank(0), "takes an index of i64 and of the same rank");
      Shape shape = in.shape(0);
      shape[static_cast<size_t>(dim)] = 1;
      for (size_t d = 0; d < shape.size(); ++d) in.builder.unify(in.shape(1)[d], shape[d], in.what());
      return with(shape);
    }
    case Op::cat: {
      int64_t dim = node.integer("dim");
      in.check(dim >= -in.rank(0) && dim < in.rank(0), "dimension ", dim, " is out of range");
      if (dim < 0) dim += in.rank(0);
      in.attrs["dim"] = dim;
      int64_t total = 0;
      for (int i = 0; i < static_cast<int>(in.operands.size()); ++i) {
        in.check(in.rank(i) == in.rank(0) && in.dtype(i) == in.dtype(0), "operands differ in rank or type");
        for (size_t d = 0; d < in.shape(0).size(); ++d)
          if (d != static_cast<size_t>(dim)) in.builder.unify(in.shape(i)[d], in.shape(0)[d], in.what());
        total += in.builder.specialise(in.shape(i)[static_cast<size_t>(dim)], in.what());
      }
      Shape shape = in.shape(0);
      shape[static_cast<size_t>(dim)] = total;
      return with(shape);
    }
    case Op::group_norm: {
      int64_t groups = node.integer("groups");
      in.check(in.rank(0) >= 2, "needs at least 2 dimensions");
      expect_affine(1);
      expect_vectors(1);
      int64_t channels = in.graph().hint(in.shape(0)[1]);
      in.check(groups > 0 && channels % groups == 0, channels, " channels do not divide into ", groups, " groups");
      Size part = Size::floordiv(in.shape(0)[1], groups);
      if (!(part * Size(groups) == in.shape(0)[1])) {
        part = Size::symbol(in.builder.graph().fresh_symbol("g", channels / groups));
        in.builder.unify(in.shape(0)[1], part * Size(groups), in.what());
      }
      for (int i = 1; i < static_cast<int>(in.operands.size()); ++i)
        in.builder.unify(in.shape(i)[0], in.shape(0)[1], in.what());
      return with(in.shape(0));
    }
    case Op::layer_norm:
    case Op::rms_norm: {
      int64_t axes = node.integer("axes");
      in.check(axes >= 1 && axes <= in.rank(0), "normalises ", axes, " dimensions");
      expect_affine(1);
      for (int i = 1; i < static_cast<int>(in.operands.size()); ++i)
        in.check(in.rank(i) == axes, "operand ", i, " needs ", axes, " dimensions");
      for (int i = 1; i < static_cast<int>(in.operands.size()); ++i)
        for (int64_t d = 0; d < axes; ++d)
          in.builder.unify(in.shape(i)[static_cast<size_t>(d)], in.shape(0)[static_cast<size_t>(in.rank(0) - axes + d)],
                           in.what());
      return with(in.shape(0));
    }
    case Op::instance_norm:
    case Op::batch_norm:
    case Op::batch_norm_inference: {
      const int least = in.op == Op::instance_norm ? 3 : 2;
      in.check(in.rank(0) >= least, "needs at least ", least, " dimensions");
      expect_affine(in.op == Op::batch_norm_inference ? 3 : 1);
      expect_vectors(1);
      for (int i = 1; i < static_cast<int>(in.operands.size()); ++i)
        in.builder.unify(in.shape(i)[0], in.shape(0)[1], in.what());
      return with(in.shape(0));
    }
    case Op::batch_norm_running_mean:
    case Op::batch_norm_running_var:
      in.check(in.rank(0) >= 2, "needs at least 2 dimensions");
      expect_vectors(1);
      in.builder.unify(in.shape(1)[0], in.shape(0)[1], in.what());
      return {in.dtype(1), in.shape(1), {}};
    case Op::linear: {
      in.check(in.rank(0) >= 1 && in.rank(1) == 2, "needs a weight of rank 2");
      in.check(in.dtype(0) == in.dtype(1), "operands differ in type");
      in.builder.unify(in.shape(0).back(), in.shape(1)[1], in.what());
      check_bias(in, in.shape(1)[0]);
      Shape shape = in.shape(0);
      shape.back() = in.shape(1)[0];
      return with(shape);
    }
    case Op::convolution:
      return infer_conv(in);
    default:  // activations
      in.check(is_float(in.dtype(0)) || in.op == Op::relu || in.op == Op::clamp, "needs a floating type");
      for (int i = 1; i < static_cast<int>(in.operands.size()); ++i)
        in.check(in.rank(i) == 0 && in.dtype(i) == in.dtype(0), "operand ", i, " must be a number of its type");
      if (in.op == Op::hardtanh) in.check(in.operands.size() != 2, "both limits are operands, or none");
      if (in.op == Op::clamp) {
        size_t said = 1 + flag("has_min") + flag("has_max");
        in.check(in.operands.size() == said, "has ", in.operands.size(), " operands, but has_min and has_max say ",
                 said);
      }
      return with(in.shape(0));
  }
}

}  // namespace

Type infer_type(Builder& builder, Op op, const Operands& operands, Attrs& attrs) {
  Inference in{builder, op, operands, attrs};
  switch (kind_of(op)) {
    case Kind::pointwise:
      return infer_pointwise(in);
    case Kind::reduce:
      return infer_reduce(in);
    case Kind::window:
      return infer_window(in);
    case Kind::movement:
      return infer_movement(in);
    case Kind::contraction:
      if (op == Op::matmul) return infer_matmul(in);
      if (op == Op::conv) return infer_conv(in);
      return {in.dtype(0), in.node().sizes(op == Op::conv_input_grad ? "input_sizes" : "weight_sizes"), {}};
    case Kind::composite:
      return infer_composite(in);
    default:
      fail(name_of(op), ": has no inference");
  }
}

}  // namespace fusewright
