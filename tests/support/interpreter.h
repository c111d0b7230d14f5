#pragma once
// A Graph evaluated operation by operation, in double, by loops that are easy to believe: what every kernel must agree
// with. It knows nothing of passes, schedules or strides.
#include <functional>
#include <map>
#include <optional>

#include "ir/builder.h"
#include "ops/composites.h"
#include "passes/program.h"
#include "passes/rebuild.h"
#include "runtime/plan/launch.h"
#include "support/arrays.h"

namespace fusewright::testing {

inline double scalar_op(Op op, double a, double b, double c) {
  switch (op) {
    case Op::neg:
      return -a;
    case Op::abs:
      return std::abs(a);
    case Op::sign:
      return a > 0 ? 1 : a < 0 ? -1 : 0;
    case Op::exp:
      return std::exp(a);
    case Op::expm1:
      return std::expm1(a);
    case Op::log:
      return std::log(a);
    case Op::log1p:
      return std::log1p(a);
    case Op::erf:
      return std::erf(a);
    case Op::normal_cdf:
      return std::erfc(-a / std::sqrt(2.0)) / 2;
    case Op::tanh:
      return std::tanh(a);
    case Op::sigmoid:
      return 1 / (1 + std::exp(-a));
    case Op::sin:
      return std::sin(a);
    case Op::cos:
      return std::cos(a);
    case Op::sqrt:
      return std::sqrt(a);
    case Op::rsqrt:
      return 1 / std::sqrt(a);
    case Op::reciprocal:
      return 1 / a;
    case Op::square:
      return a * a;
    case Op::floor:
      return std::floor(a);
    case Op::ceil:
      return std::ceil(a);
    case Op::round:
      return std::nearbyint(a);
    case Op::trunc:
      return std::trunc(a);
    case Op::isnan:
      return std::isnan(a);
    case Op::logical_not:
      return a == 0;
    case Op::stop_gradient:
      return a;
    case Op::add:
      return a + b;
    case Op::sub:
      return a - b;
    case Op::mul:
      return a * b;
    case Op::div:
      return a / b;
    case Op::pow:
      return std::pow(a, b);
    case Op::maximum:
      return std::isnan(a) ? a : std::isnan(b) ? b : std::max(a, b);
    case Op::minimum:
      return std::isnan(a) ? a : std::isnan(b) ? b : std::min(a, b);
    case Op::lt:
      return a < b;
    case Op::le:
      return a <= b;
    case Op::gt:
      return a > b;
    case Op::ge:
      return a >= b;
    case Op::eq:
      return a == b;
    case Op::ne:
      return a != b;
    case Op::logical_and:
      return a != 0 && b != 0;
    case Op::logical_or:
      return a != 0 || b != 0;
    case Op::select:
      return a != 0 ? b : c;
    default:
      fail("interpreter: no scalar formula for ", name_of(op));
  }
}

class Interpreter {
 public:
  // Changes each computed value: with it, casts between floating types do not round by themselves.
  using After = std::function<void(const Interpreter&, Value, Array&)>;

  // Inputs in the graph's order; a scalar input is an array of rank 0.
  Interpreter(const Graph& graph, const std::vector<Array>& inputs, After after = nullptr)
      : graph_(graph), after_(std::move(after)), values_(graph.nodes.size()) {
    SymbolBinder binder(graph);
    std::vector<Tensor> tensors;
    for (const Array& array : inputs) tensors.push_back(to_tensor(array));
    std::vector<int64_t> symbols = binder.bind(graph, tensors);
    for (const auto& [name, slot] : binder.slots()) symbols_[name] = symbols[static_cast<size_t>(slot)];
    for (size_t i = 0; i < inputs.size(); ++i) values_[static_cast<size_t>(graph.inputs[i])] = inputs[i];
    for (size_t i = 0; i < graph.nodes.size(); ++i) {
      if (values_[i]) continue;
      values_[i] = compute(graph.nodes[i]);
      if (after_) after_(*this, static_cast<Value>(i), *values_[i]);
    }
  }

  const Array& operator[](Value v) const { return *values_[static_cast<size_t>(v)]; }
  std::vector<Array> outputs() const {
    std::vector<Array> result;
    for (const Output& output : graph_.outputs) result.push_back((*this)[output.value]);
    return result;
  }

 private:
  int64_t evaluate(const Size& size) const {
    return size.evaluate([&](const std::string& name) { return symbols_.at(name); });
  }
  Sizes evaluate(const Shape& shape) const {
    Sizes sizes;
    for (const Size& size : shape) sizes.push_back(evaluate(size));
    return sizes;
  }
  const Array& operand(const Node& node, size_t i) const { return (*this)[node.operands[i]]; }

  Array compute(const Node& node) const {
    DType dtype = node.type.dtype;
    switch (node.op) {
      case Op::constant:
        return Array(dtype, {}, rounded(node.number("value"), dtype));
      case Op::extent:
        return Array(dtype, {}, static_cast<double>(evaluate(node.sizes("size")[0])));
      case Op::iota: {
        Array result(dtype, {evaluate(node.sizes("size")[0])});
        std::iota(result.data.begin(), result.data.end(), 0.0);
        return result;
      }
      case Op::matmul:
        return matmul(node);
      case Op::conv:
        return conv(node, 0);
      case Op::conv_input_grad:
        return conv(node, 1);
      case Op::conv_weight_grad:
        return conv(node, 2);
      default:
        break;
    }
    switch (node.kind()) {
      case Kind::pointwise:
        return pointwise(node);
      case Kind::reduce:
        return reduce(node);
      case Kind::window:
        return window(node);
      case Kind::movement:
        return movement(node);
      default:
        fail("interpreter: ", name_of(node.op));
    }
  }

  Array pointwise(const Node& node) const {
    Sizes sizes;
    for (size_t i = 0; i < node.operands.size(); ++i) {
      const Sizes& own = operand(node, i).sizes;
      if (own.size() > sizes.size()) sizes.insert(sizes.begin(), own.size() - sizes.size(), 1);
      for (size_t d = 0; d < own.size(); ++d) {
        int64_t& size = sizes[sizes.size() - own.size() + d];
        if (size == 1) size = own[d];
      }
    }
    Array result(node.type.dtype, sizes);
    std::vector<Sizes> strides;
    const double* from[3] = {};
    for (size_t i = 0; i < node.operands.size(); ++i) {
      strides.push_back(broadcast_strides(operand(node, i).sizes, sizes.size()));
      from[i] = operand(node, i).data.data();
    }
    const bool exact = node.op == Op::cast && after_ && is_float(node.type.dtype) && is_float(operand(node, 0).dtype);
    size_t next = 0;
    walk(sizes, strides, [&](const Sizes& at) {
      double arguments[3] = {};
      for (size_t i = 0; i < strides.size(); ++i) arguments[i] = from[i][at[i]];
      result.data[next++] = exact                 ? arguments[0]
                            : node.op == Op::cast ? rounded(arguments[0], node.type.dtype)
                                                  : scalar_op(node.op, arguments[0], arguments[1], arguments[2]);
    });
    return result;
  }

  Array reduce(const Node& node) const {
    const Array& x = operand(node, 0);
    const Ints& dims = node.ints("dims");
    double start = node.op == Op::sum ? 0 : node.op == Op::prod ? 1 : node.op == Op::amax ? -INFINITY : INFINITY;
    Sizes kept = x.sizes;
    for (int64_t d : dims) kept[static_cast<size_t>(d)] = 1;
    Array result(node.type.dtype, kept, start);
    size_t next = 0;
    walk(x.sizes, {broadcast_strides(kept, x.sizes.size())}, [&](const Sizes& at) {
      double &total = result.data[static_cast<size_t>(at[0])], value = x.data[next++];
      if (node.op == Op::sum)
        total += value;
      else if (node.op == Op::prod)
        total *= value;
      else
        total = scalar_op(node.op == Op::amax ? Op::maximum : Op::minimum, total, value, 0);
    });
    if (!node.integer("keepdim")) {
      Sizes sizes;
      for (size_t d = 0; d < kept.size(); ++d)
        if (std::find(dims.begin(), dims.end(), static_cast<int64_t>(d)) == dims.end()) sizes.push_back(kept[d]);
      result.sizes = sizes;
    }
    return result;
  }

  static int64_t pooled(int64_t size, int64_t k, int64_t s, int64_t p, int64_t d, bool ceil_mode) {
    int64_t count = 0;
    // Windows start at -p, -p + s, ...; the last must fit (or, with ceil_mode, begin inside the input or left padding).
    for (int64_t start = -p; ceil_mode ? start < size : start + d * (k - 1) < size + p; start += s) {
      ++count;
      if (ceil_mode && start + d * (k - 1) >= size + p - 1) break;  // this one reaches the end
    }
    return count;
  }

  Array shift(const Node& node) const {
    const Array& x = operand(node, 0);
    Array result(node.type.dtype, evaluate(node.sizes("sizes")));
    size_t next = 0;
    for_each_index(result.sizes, [&](const Sizes& o) {
      Sizes at = o;
      bool inside = true;
      for (size_t d = 0; d < at.size(); ++d) {
        at[d] += node.ints("start")[d];
        inside &= at[d] >= 0 && at[d] < x.sizes[d];
      }
      result.data[next++] = inside ? x(at) : 0;
    });
    return result;
  }

  Array window(const Node& node) const {
    if (node.op == Op::shift) return shift(node);
    const Ints &kernel = node.ints("kernel"), &stride = node.ints("stride"), &padding = node.ints("padding");
    Ints dilation = node.has("dilation") ? node.ints("dilation") : Ints(kernel.size(), 1);
    size_t space = kernel.size();
    bool gradient = node.op == Op::max_pool_grad || node.op == Op::avg_pool_grad;
    const Array& first = operand(node, 0);
    Sizes in = gradient ? evaluate(node.sizes("input_sizes")) : first.sizes, out = first.sizes;
    size_t lead = in.size() - space;
    for (size_t i = 0; i < space && !gradient; ++i)
      out[lead + i] = pooled(in[lead + i], kernel[i], stride[i], padding[i], dilation[i], node.integer("ceil_mode"));
    Array result(node.type.dtype, gradient ? in : out);
    size_t next = 0;
    for_each_index(out, [&](const Sizes& o) {
      double best = -INFINITY, total = 0, chosen = -1, number = 0, divisor = 1;
      for (size_t i = 0; i < space; ++i) {
        int64_t begin = o[lead + i] * stride[i] - padding[i],
                end = std::min(begin + kernel[i], in[lead + i] + padding[i]);
        bool include = node.has("count_include_pad") && node.integer("count_include_pad");
        if (!include) begin = std::max<int64_t>(begin, 0), end = std::min(end, in[lead + i]);
        divisor *= static_cast<double>(end - begin);
      }
      if (node.has("divisor") && node.integer("divisor")) divisor = static_cast<double>(node.integer("divisor"));
      for_each_index(kernel, [&](const Sizes& k) {
        Sizes at = o;
        bool inside = true;
        for (size_t i = 0; i < space; ++i) {
          at[lead + i] = o[lead + i] * stride[i] - padding[i] + k[i] * dilation[i];
          inside &= at[lead + i] >= 0 && at[lead + i] < in[lead + i];
        }
        if (inside && node.op == Op::max_pool_grad && operand(node, 1)(o) == number) result(at) += first(o);
        if (inside && node.op == Op::avg_pool_grad) result(at) += first(o) / divisor;
        if (inside && !gradient) {
          double value = first(at);
          total += value;
          if (chosen < 0 || value > best || std::isnan(value)) best = value, chosen = number;
        }
        ++number;
      });
      if (node.op == Op::max_pool) result.data[next] = best;
      if (node.op == Op::max_pool_index) result.data[next] = chosen;
      if (node.op == Op::avg_pool) result.data[next] = total / divisor;
      ++next;
    });
    return result;
  }

  Array movement(const Node& node) const {
    const Array& x = operand(node, 0);
    Array result(node.type.dtype, evaluate(node.type.shape));
    if (node.op == Op::reshape) {
      result.data = x.data;
      require(static_cast<int64_t>(x.size()) == count_of(result.sizes), "interpreter: reshape changes the size");
      return result;
    }
    Sizes strides = broadcast_strides(x.sizes, result.sizes.size());
    if (node.op == Op::permute) {
      const Sizes own = strides;
      for (size_t d = 0; d < own.size(); ++d) strides[d] = own[static_cast<size_t>(node.ints("dims")[d])];
    }
    size_t next = 0;
    walk(result.sizes, {strides}, [&](const Sizes& at) { result.data[next++] = x.data[static_cast<size_t>(at[0])]; });
    return result;
  }

  Array matmul(const Node& node) const {
    const Array &a = operand(node, 0), &b = operand(node, 1);
    Sizes sizes = a.sizes;
    sizes.back() = b.sizes.back();
    Array result(node.type.dtype, sizes);
    for_each_index(sizes, [&](const Sizes& index) {
      if (node.operands.size() == 3) result(index) = operand(node, 2)({index.back()});
      for (int64_t k = 0; k < a.sizes.back(); ++k) {
        Sizes ia = index, ib = index;
        ia[ia.size() - 1] = ib[ib.size() - 2] = k;
        result(index) += a(ia) * b(ib);
      }
    });
    return result;
  }

  // Output o of a convolution reads input i through weight w where they meet: i = o * stride - padding + k * dilation,
  // or for a transposed one o = i * stride - padding + k * dilation. wanted: 0 output, 1 input gradient, 2 weight
  // gradient.
  Array conv(const Node& node, int wanted) const {
    bool transposed = node.integer("transposed");
    int64_t groups = node.integer("groups");
    const Array& a = operand(node, 0);
    const Array& b = operand(node, 1);
    Array result(node.type.dtype, evaluate(node.type.shape));
    const Sizes& x = wanted == 0 ? a.sizes : wanted == 1 ? result.sizes : b.sizes;
    const Sizes& w = wanted == 0 ? b.sizes : wanted == 1 ? b.sizes : result.sizes;
    const Sizes& y = wanted == 0 ? result.sizes : a.sizes;
    int64_t in_part = x[1] / groups, out_part = y[1] / groups;
    Sizes taps(w.begin() + 2, w.end());
    taps.insert(taps.begin(), in_part);
    for_each_index(y, [&](const Sizes& o) {
      if (node.operands.size() == 3) result(o) = operand(node, 2)({o[1]});
      int64_t group = o[1] / out_part;
      for_each_index(taps, [&](const Sizes& k) {
        Sizes i = {o[0], group * in_part + k[0]};
        Sizes at = transposed ? Sizes{i[1], o[1] % out_part} : Sizes{o[1], k[0]};
        for (size_t d = 0; d + 2 < x.size(); ++d) {
          int64_t stride = node.ints("stride")[d],
                  shift = node.ints("padding")[d] - k[d + 1] * node.ints("dilation")[d];
          int64_t position = transposed ? o[d + 2] + shift : o[d + 2] * stride - shift;
          if (transposed && position % stride != 0) return;
          if (transposed) position /= stride;
          if (position < 0 || position >= x[d + 2]) return;
          i.push_back(position);
          at.push_back(k[d + 1]);
        }
        if (wanted == 0)
          result(o) += a(i) * b(at);
        else if (wanted == 1)
          result(i) += a(o) * b(at);
        else
          result(at) += a(o) * b(i);
      });
    });
    return result;
  }

  const Graph& graph_;
  After after_;
  std::map<std::string, int64_t> symbols_;
  std::vector<std::optional<Array>> values_;
};

inline Graph decomposed(const Graph& graph) {
  Program program;
  program.forward = graph;
  decompose(program);
  return program.forward;
}

inline std::vector<Array> interpret(const Graph& graph, const std::vector<Array>& inputs) {
  Graph primitive = decomposed(graph);
  return Interpreter(primitive, inputs).outputs();
}

struct Reference {
  std::vector<Array> outputs, gradients;  // gradients of the inputs with wrt[i], in order
};

// Forward and backward by the unsimplified rules, as one graph: what it gives for inputs and dL_dy.
struct Joint {
  Program program;

  Joint(const Graph& graph, const std::vector<bool>& wrt) {
    program.forward = graph;
    program.wrt = wrt;
    reach(program);
    decompose(program);
    differentiate(program);
  }
  // dL_dy for each output, those that are not differentiable ignored.
  Reference run(std::vector<Array> inputs, const std::vector<Array>& dL_dy, Interpreter::After after = nullptr) const {
    for (int output : program.gradient_of_output) inputs.push_back(dL_dy[static_cast<size_t>(output)]);
    std::vector<Array> all = Interpreter(program.forward, inputs, std::move(after)).outputs();
    auto split = all.begin() + static_cast<long>(program.user_outputs);
    return {{all.begin(), split}, {split, all.end()}};
  }
};

inline Reference interpret(const Graph& graph, const std::vector<bool>& wrt, std::vector<Array> inputs,
                           const std::vector<Array>& dL_dy) {
  return Joint(graph, wrt).run(std::move(inputs), dL_dy);
}

}  // namespace fusewright::testing
