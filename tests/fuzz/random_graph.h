#pragma once
// Random graphs: chains of operations over tensors of few symbolic sizes, with several results.
//
// Combinations that chance would rarely draw are drawn on purpose: pooling in front of reductions, a value that meets
// its own reduction, 16-bit values that are stored and go on, sums of many terms, numbers near the ends of a type's
// range.
#include <numeric>
#include <random>

#include "support/arrays.h"
#include "support/execution.h"

namespace fusewright::testing {

class RandomGraph {
 public:
  enum class Kind { ordinary, long_sums, range };

  RandomGraph(unsigned seed, bool cuda) : random_(seed), b_(graph_), cuda_(cuda) {
    kind_ = pick(8) == 0 ? Kind::long_sums : pick(8) == 0 ? Kind::range : Kind::ordinary;
    choose_dtype();
    static const int64_t ordinary[] = {1, 2, 3, 4, 6, 7, 8, 12, 33}, few[] = {1, 2, 3, 4}, many[] = {60, 127, 256, 301};
    for (const char* name : {"n", "c", "h", "w"}) {
      int64_t length = kind_ != Kind::long_sums   ? one_of(ordinary)
                       : name == std::string("h") ? one_of(few)
                       : name == std::string("w") ? int64_t{1}
                                                  : one_of(many);
      graph_.hints[name] = length;
    }
    for (size_t inputs = 1 + pick(3); inputs-- > 0;) add_input();
    for (size_t operations = kind_ == Kind::long_sums ? 1 + pick(4) : 2 + pick(9); operations-- > 0;) add_operation();
    if (kind_ == Kind::long_sums) add_numbers();
    results_.insert(results_.begin(), values_.back());
    for (size_t others = pick(3); others-- > 0;) results_.push_back(any());
    if (results_.size() > 4) results_.resize(4);
    for (Value v : results_) b_.output(v, {}, true);
    remove_dead(graph_);
    for (size_t i = 0; i < graph_.inputs.size(); ++i) wrt_.push_back(pick(5) != 0);
  }

  const Graph& graph() const { return graph_; }
  const std::vector<bool>& wrt() const { return wrt_; }

  // Sizes as captured, or others that the same kernels must take.
  std::vector<Array> inputs(bool as_captured) {
    std::map<std::string, int64_t> symbols = graph_.hints;
    static const int64_t lengths[] = {1, 1, 2, 3, 5, 40};
    if (!as_captured)
      for (auto& [name, value] : symbols) value = one_of(lengths);
    std::vector<Array> result;
    for (Value v : graph_.inputs) {
      Sizes sizes;
      for (const Size& size : graph_.shape(v))
        sizes.push_back(std::max<int64_t>(0, size.evaluate([&](const std::string& name) { return symbols.at(name); })));
      Array array = random_array(graph_.dtype(v), sizes, random_, -1.5, 1.5);
      for (double& value : array.data) value = rounded(value * scale_, array.dtype);
      result.push_back(std::move(array));
    }
    return result;
  }
  std::vector<Layout> layouts() {
    std::vector<Layout> result;
    for (Value v : graph_.inputs) {
      Layout layout;
      if (pick(3) == 0) {
        layout.order.resize(static_cast<size_t>(graph_.type(v).rank()));
        std::iota(layout.order.begin(), layout.order.end(), 0);
        std::shuffle(layout.order.begin(), layout.order.end(), random_);
      }
      layout.step = pick(4) ? 1 : 2;
      layout.offset = static_cast<int64_t>(pick(3));
      result.push_back(layout);
    }
    return result;
  }

 private:
  static constexpr int64_t most_elements = 6000, most_terms = 60000;

  size_t pick(size_t count) { return random_() % count; }
  template <class T, size_t N>
  T one_of(const T (&choices)[N]) {
    return choices[pick(N)];
  }

  void choose_dtype() {
    static const DType ordinary[] = {DType::f32,  DType::f32,  DType::f32,  DType::f16, DType::f16,
                                     DType::bf16, DType::bf16, DType::bf16, DType::f64},
                       narrow[] = {DType::f16, DType::f16, DType::bf16, DType::f32};
    dtype_ = kind_ == Kind::long_sums ? DType::f32 : kind_ == Kind::range ? one_of(narrow) : one_of(ordinary);
    if (kind_ != Kind::range) return;
    const bool large = pick(2);
    if (dtype_ == DType::f16)
      scale_ = large ? 300 : 1e-4;
    else if (!cuda_)  // there standard deviations are computed in f32, as PyTorch's
      scale_ = large ? 1e20 : 1e-25;
  }

  Shape random_shape() {
    static const std::vector<std::vector<const char*>> shapes = {{"n", "c", "h", "w"},
                                                                 {"n", "c", "h", "w"},
                                                                 {"n", "c", "h"},
                                                                 {"n", "c"},
                                                                 {"c", "1", "1"},
                                                                 {"c"},
                                                                 {"n", "1"},
                                                                 {"w"},
                                                                 {}};
    Shape shape;
    for (const char* size : shapes[pick(graph_.inputs.empty() ? 4 : shapes.size())]) shape.push_back(Size::parse(size));
    for (Size& size : shape)
      if (graph_.hint(size) == 1) size = 1;
    return shape;
  }
  void add_input() { add(b_.input("x" + std::to_string(graph_.inputs.size()), dtype_, random_shape()), 1.5); }
  Value any() { return values_[values_.size() - 1 - std::min(pick(values_.size()), pick(values_.size()))]; }

  // ---- values that can be used, each with a bound of its elements: chains would leave every range ----

  void add(Value v, double bound) {
    values_.push_back(v);
    bound_[v] = bound;
  }
  double bound(Value v) const {
    auto it = bound_.find(v);
    return it == bound_.end() ? 1.5 : it->second;
  }
  void push(Value v, double limit) {
    const int64_t most = kind_ == Kind::long_sums ? most_terms : most_elements;
    if (b_.rank(v) > 6 || graph_.hint(product(graph_.shape(v))) > most || !is_float(b_.dtype(v))) return;
    if (kind_ != Kind::range && limit > 40) {
      const double factor = std::exp2(-std::ceil(std::log2(limit / 4)));
      v = b_.binary(Op::mul, v, b_.constant(factor, b_.dtype(v)));
      limit *= factor;
    }
    add(v, limit);
  }

  // Begins another operation of the user's: results of the one before may be rounded (judge.h).
  void begin_operation() { b_.set_origin(graph_.add_origin({"operation", ""})); }

  void add_operation() {
    begin_operation();
    Value x = any();
    try {
      if (kind_ == Kind::range) return homogeneous(x);
      switch (pick(kind_ == Kind::long_sums ? 8 : 22)) {
        case 0:
        case 1:
        case 2:
          return unary(x);
        case 3:
        case 4:
          return binary(x, any());
        case 5:
        case 6:
          return composite(x);
        case 7:
          return select(x, any());
        case 8:
          return cast(x);
        case 9:
        case 10:
          return movement(x);
        case 11:
        case 12:
          return window(x);
        case 13:
        case 14:
        case 15:
          return beside_its_reduction(x);
        case 16:
          return contraction(x);
        case 17:
        case 18:
          return extremum_of_pooled(x);
        default:
          return reduce(maybe_pooled(x));
      }
    } catch (const Error&) {  // shapes that do not fit: another one
    }
  }

  Value like(Value x, Value y) { return b_.dtype(x) == b_.dtype(y) ? y : b_.cast(y, b_.dtype(x)); }
  Value number(Value x, double value) { return b_.constant(value, b_.dtype(x)); }

  // ---- pointwise ----

  void unary(Value x) {
    static const Op bounded[] = {Op::tanh, Op::sigmoid, Op::erf, Op::sin, Op::cos, Op::normal_cdf, Op::sign},
                    others[] = {Op::neg, Op::abs, Op::floor, Op::ceil, Op::round, Op::trunc};
    switch (pick(9)) {
      case 0:
        return push(b_.unary(Op::exp, b_.unary(Op::tanh, x)), 3);
      case 1:
        return push(b_.unary(Op::log1p, b_.unary(Op::square, x)), 2 * std::log1p(bound(x)));
      case 2:
        return push(b_.unary(Op::square, x), bound(x) * bound(x));
      case 3:
        return push(b_.unary(Op::sqrt, b_.binary(Op::add, b_.unary(Op::abs, x), number(x, 0.5))), bound(x) + 1);
      case 4:
      case 5:
        return push(b_.unary(one_of(others), x), bound(x) + 1);
      default:
        return push(b_.unary(one_of(bounded), x), 1);
    }
  }
  void binary(Value x, Value y) {
    static const Op ops[] = {Op::add, Op::sub, Op::maximum, Op::minimum};
    y = like(x, y);
    switch (pick(8)) {
      case 0:
        return push(b_.binary(Op::div, x, b_.binary(Op::add, b_.unary(Op::square, y), number(x, 1))), bound(x));
      case 1:
      case 2:
        return push(b_.binary(Op::mul, x, y), bound(x) * bound(y));
      case 3:
        return push(b_.binary(Op::mul, x, number(x, 0.25 * static_cast<double>(1 + pick(8)))), 2 * bound(x));
      case 4:
        return push(b_.binary(one_of(ops), x, number(x, 0.25 * static_cast<double>(pick(5)))), bound(x) + 1);
      default:
        return push(b_.binary(one_of(ops), x, y), bound(x) + bound(y));
    }
  }
  void select(Value x, Value y) {
    static const Op comparisons[] = {Op::lt, Op::le, Op::gt, Op::ge};
    y = like(x, y);
    const Value condition = b_.binary(one_of(comparisons), x, pick(2) ? y : number(x, 0.25));
    push(b_.op(Op::select, {condition, x, pick(2) ? y : b_.binary(Op::mul, x, number(x, 0.125))}), bound(x) + bound(y));
  }
  void cast(Value x) {
    static const DType types[] = {DType::f32, DType::f16, DType::bf16, DType::f32};
    push(b_.cast(x, one_of(types)), bound(x));
  }

  // ---- reductions ----

  Ints some_dims(Value x) {
    Ints dims;
    for (int d = 0; d < b_.rank(x); ++d)
      if (pick(2)) dims.push_back(d);
    if (dims.empty() && b_.rank(x) > 0) dims.push_back(b_.rank(x) - 1);
    return dims;
  }
  double count(Value x, const Ints& dims) const {
    double result = 1;
    for (int64_t d : dims) result *= static_cast<double>(graph_.hint(graph_.shape(x)[static_cast<size_t>(d)]));
    return result;
  }
  // Any reduction, and the bound of its results.
  std::pair<Value, double> reduced(Value x, const Ints& dims, int64_t keepdim) {
    const Attrs attrs = {{"dims", dims}, {"keepdim", keepdim}};
    auto with = [&](const char* name, int64_t value) {
      Attrs more = attrs;
      more[name] = value;
      return more;
    };
    const double terms = count(x, dims);
    const int64_t choice = static_cast<int64_t>(pick(2));
    switch (pick(kind_ == Kind::range ? 7 : 12)) {
      case 0:
        return {b_.op(Op::mean, {x}, attrs), bound(x)};
      case 1:
        return {b_.op(Op::amax, {x}, with("tie", dims.size() == 1 ? choice : 0)), bound(x)};
      case 2:
        return {b_.op(Op::amin, {x}, with("tie", dims.size() == 1 ? choice : 0)), bound(x)};
      case 3:
      case 4:
        if (terms < 3 || (kind_ != Kind::range && dtype_ == DType::f64)) return {x, bound(x)};
        return {b_.op(Op::stddev, {x}, with("correction", choice)), bound(x)};
      case 5:
      case 6:
        if (kind_ == Kind::range && dtype_ != DType::f16) return {x, bound(x)};  // as eager: the squares are f32
        return {b_.op(Op::vector_norm, {x}, with("order", 1 + choice)), bound(x) * terms};
      case 7:
        return {b_.op(Op::logsumexp, {x}, attrs), bound(x) + 10};
      case 8:
        return {b_.op(Op::var, {x}, with("correction", terms < 2 ? 0 : choice)), bound(x) * bound(x)};
      case 9: {
        if (dims.size() != 1) return {x, bound(x)};
        const Value position = b_.op(choice ? Op::argmax : Op::argmin, {x}, attrs);
        return {b_.cast(position, b_.dtype(x)), terms};
      }
      default:
        return {b_.reduce(Op::sum, x, dims, keepdim != 0), bound(x) * terms};
    }
  }
  void reduce(Value x) {
    auto [y, limit] = reduced(x, some_dims(x), static_cast<int64_t>(pick(2)));
    push(y, limit);
  }
  // A value before and after a reduction.
  void beside_its_reduction(Value x) {
    x = maybe_pooled(x);
    if (pick(2)) {  // not an input: computed where it is needed
      const double limit = 1.5 * bound(x);
      x = b_.binary(Op::mul, x, number(x, 1.5));
      bound_[x] = limit;
    }
    add(x, bound(x));
    if (pick(2)) results_.push_back(x);  // stored, and read on
    begin_operation();
    Ints dims = some_dims(x);
    if (pick(3) == 0) {
      const auto last = static_cast<int64_t>(b_.rank(x)) - 1;
      return push(b_.op(pick(2) ? Op::softmax : Op::log_softmax, {x}, {{"dim", last}}), 20);
    }
    auto [r, limit] = reduced(x, dims, 1);
    begin_operation();
    static const Op comparisons[] = {Op::ge, Op::eq, Op::lt, Op::le};
    if (limit > 40) r = b_.binary(Op::mul, r, number(r, 1.0 / 64));
    switch (pick(6)) {
      case 0:
        return push(b_.binary(Op::sub, x, r), bound(x) + limit);
      case 1:
        return push(b_.binary(Op::div, x, b_.binary(Op::add, b_.unary(Op::abs, r), number(x, 0.5))), 2 * bound(x));
      case 2:
        return push(b_.op(Op::select, {b_.binary(one_of(comparisons), x, r), x, number(x, -1)}), bound(x) + 1);
      case 3: {  // how many there are
        const Value same = b_.cast(b_.binary(pick(2) ? Op::eq : Op::ge, x, r), b_.dtype(x));
        return push(b_.reduce(Op::sum, same, dims, pick(2)), count(x, dims));
      }
      case 4:
        return push(b_.binary(Op::mul, x, r), bound(x) * limit);
      default:
        return push(b_.unary(Op::exp, b_.unary(Op::tanh, b_.binary(Op::sub, x, r))), 3);
    }
  }
  // Its gradient goes to one position of what was pooled.
  void extremum_of_pooled(Value x) {
    x = pooled(x);
    if (pick(2)) x = b_.op(Op::silu, {x});
    if (pick(3) == 0 && b_.rank(x) > 1) {
      Shape shape = b_.shape(x);
      shape[shape.size() - 2] = shape[shape.size() - 2] * shape.back();
      shape.pop_back();
      x = b_.reshape(x, shape);
    }
    const Ints dims = {static_cast<int64_t>(b_.rank(x)) - 1};
    push(b_.op(pick(2) ? Op::amax : Op::amin, {x}, {{"dims", dims}, {"keepdim", int64_t{0}}, {"tie", int64_t{1}}}), 4);
  }
  // Sums to few numbers, of many terms.
  void add_numbers() {
    const size_t end = values_.size();
    for (size_t i = 0; i < 2; ++i) {
      begin_operation();
      const Value x = values_[end - 1 - std::min(pick(end), pick(end))];
      Ints dims;
      for (int d = 0; d < b_.rank(x); ++d)
        if (d == 0 || pick(4)) dims.push_back(d);
      if (dims.empty()) continue;
      const Value y = pick(2) ? b_.reduce(Op::sum, x, dims, false)
                              : b_.op(Op::mean, {x}, {{"dims", dims}, {"keepdim", int64_t{0}}});
      add(y, 1);
    }
  }

  // ---- windows ----

  Value pooled(Value x) {
    size_t space = 1 + pick(2);
    Attrs attrs;
    Ints kernel, stride, padding, dilation;
    for (size_t i = 0; i < space; ++i) {
      kernel.push_back(1 + static_cast<int64_t>(pick(3)));
      stride.push_back(1 + static_cast<int64_t>(pick(3)));
      padding.push_back(static_cast<int64_t>(pick(static_cast<size_t>(kernel.back() / 2) + 1)));
      dilation.push_back(1 + static_cast<int64_t>(pick(2)));
    }
    attrs = {
        {"kernel", kernel}, {"stride", stride}, {"padding", padding}, {"ceil_mode", static_cast<int64_t>(pick(2))}};
    if (pick(2)) {
      attrs["dilation"] = dilation;
      return b_.op(Op::max_pool, {x}, attrs);
    }
    attrs["count_include_pad"] = static_cast<int64_t>(pick(2));
    attrs["divisor"] = static_cast<int64_t>(pick(3) == 0 ? 5 : 0);
    return b_.op(Op::avg_pool, {x}, attrs);
  }
  void window(Value x) { push(pooled(x), 2 * bound(x)); }
  // The operand of a reduction: the value itself, or pooled, perhaps with a chain or a change of shape behind.
  Value maybe_pooled(Value x) {
    if (pick(2)) return x;
    try {
      const double limit = 2 * bound(x);
      x = pooled(x);
      const auto last = static_cast<size_t>(b_.rank(x) - 1);
      switch (pick(4)) {
        case 0:
          x = b_.op(Op::silu, {x});
          break;
        case 1:
          x = b_.binary(Op::add, b_.binary(Op::mul, x, number(x, 2)), number(x, 1));
          break;
        case 2:
          if (last >= 1) {
            Shape shape = b_.shape(x);
            shape[last - 1] = shape[last - 1] * shape[last];
            shape.pop_back();
            x = b_.reshape(x, shape);
          }
          break;
        default:
          break;
      }
      bound_[x] = 2 * limit + 1;
    } catch (const Error&) {  // too small for a window
    }
    return x;
  }

  // ---- movements, contractions ----

  void movement(Value x) {
    Shape shape = b_.shape(x);
    const size_t rank = shape.size();
    switch (pick(4)) {
      case 0: {
        Ints dims(rank);
        std::iota(dims.begin(), dims.end(), 0);
        std::shuffle(dims.begin(), dims.end(), random_);
        return push(b_.permute(x, dims), bound(x));
      }
      case 1: {  // merge two neighbours
        if (rank < 2) return;
        const size_t at = pick(rank - 1);
        shape[at] = shape[at] * shape[at + 1];
        shape.erase(shape.begin() + static_cast<long>(at) + 1);
        return push(b_.reshape(x, shape), bound(x));
      }
      case 2: {  // split one
        if (rank == 0) return;
        const size_t at = pick(rank);
        const int64_t parts = 2 + static_cast<int64_t>(pick(2));
        if (graph_.hint(shape[at]) % parts != 0) return;
        Shape numbers;
        for (size_t d = 0; d < rank; ++d) {
          if (d == at)
            numbers.push_back(parts), numbers.push_back(graph_.hint(shape[d]) / parts);
          else
            numbers.push_back(graph_.hint(shape[d]));
        }
        return push(b_.reshape(x, numbers), bound(x));
      }
      default: {
        const Shape& known = graph_.shape(graph_.inputs[0]);
        for (Size& size : shape)
          if (size.is(1) && !known.empty()) size = known[pick(known.size())];
        return push(b_.expand(x, shape), bound(x));
      }
    }
  }
  void contraction(Value x) {
    if (b_.rank(x) < 2) return;
    const Size in = b_.shape(x).back();
    const double terms = static_cast<double>(graph_.hint(in));
    const Value w = b_.input("w" + std::to_string(graph_.inputs.size()), b_.dtype(x), {Size(5), in});
    push(b_.op(Op::linear, {x, w}), 1.5 * bound(x) * std::sqrt(terms) * 2);
  }

  // ---- composites ----

  void composite(Value x) {
    const Shape shape = b_.shape(x);
    Attrs attrs = {{"eps", 0.1}, {"has_weight", static_cast<int64_t>(pick(2))}};
    auto norm = [&](Op op, const Size& size) {
      std::vector<Value> operands = {x};
      if (std::get<int64_t>(attrs["has_weight"]))
        operands.push_back(b_.input("w" + std::to_string(graph_.inputs.size()), b_.dtype(x), {size}));
      push(b_.op(op, operands, attrs), 10);
    };
    auto activation = [&](Op op, Attrs settings = {}) { push(b_.op(op, {x}, std::move(settings)), bound(x) + 1); };
    switch (pick(18)) {
      case 0:
        return push(b_.op(Op::softmax, {x}, {{"dim", static_cast<int64_t>(pick(std::max<size_t>(shape.size(), 1)))}}),
                    1);
      case 1:
      case 2:
        if (shape.empty()) return;
        attrs["axes"] = int64_t{1};
        return norm(pick(2) ? Op::layer_norm : Op::rms_norm, shape.back());
      case 3:
        if (shape.size() < 2) return;
        return norm(Op::batch_norm, shape[1]);
      case 4:
        if (shape.size() < 2 || graph_.hint(shape[1]) % 2 != 0) return;
        attrs["groups"] = int64_t{2};
        return norm(Op::group_norm, shape[1]);
      case 5:
        return activation(Op::gelu, {{"approximate", std::string(pick(2) ? "none" : "tanh")}});
      case 6:
        return activation(Op::silu);
      case 7:
        return activation(Op::relu);
      case 8:
        return activation(Op::mish);
      case 9:
        return activation(Op::softplus, {{"beta", 1.5}, {"threshold", 2.0}});
      case 10:
        return activation(Op::hardswish);
      case 11:
        return activation(Op::hardsigmoid);
      case 12:
        return activation(Op::hardtanh, {{"min_val", -1.0}, {"max_val", 0.5}});
      case 13:
        return activation(Op::clamp, {{"min", -1.0}, {"max", 0.5}});
      case 14:
        return activation(Op::elu, {{"alpha", 1.25}, {"scale", 1.125}, {"input_scale", 0.875}});
      case 15:
        return activation(Op::log_sigmoid);
      case 16:
        return activation(Op::softsign);
      default:
        return activation(Op::leaky_relu, {{"negative_slope", 0.125 * static_cast<double>(1 + pick(3))}});
    }
  }

  // ---- numbers near the ends of the range: what is multiplied with such a number is none of them ----

  void homogeneous(Value x) {
    static const Op ops[] = {Op::neg, Op::abs}, pairs[] = {Op::add, Op::sub, Op::maximum, Op::minimum};
    switch (pick(8)) {
      case 0:
        return push(b_.unary(one_of(ops), x), bound(x));
      case 1:
        return push(b_.binary(one_of(pairs), x, any()), bound(x));
      case 2:
        return movement(x);
      case 3:
        return push(pooled(x), bound(x));
      case 4: {
        Ints dims = some_dims(x);
        auto [r, limit] = reduced(x, dims, 1);
        begin_operation();
        return push(b_.op(Op::select, {b_.binary(Op::ge, x, r), x, r}), limit);
      }
      default:
        return reduce(x);
    }
  }

  std::mt19937 random_;
  Graph graph_;
  Builder b_;
  bool cuda_;
  Kind kind_;
  DType dtype_ = DType::f32;
  double scale_ = 1;
  std::vector<bool> wrt_;
  std::vector<Value> values_, results_;
  std::map<Value, double> bound_;
};

}  // namespace fusewright::testing
