#pragma once
// Decides whether results are right: compares them with the interpreter in double, beside the effect of roundings.
//
// The language leaves open where a 16-bit value is rounded, not that it is one number everywhere (ir/ir.h). So the
// graph is evaluated several times more, each time with other values rounded and all numbers off by their last digit:
// how far these *variants* are from the exact result says how far a right result may be. A maximum that could fall on
// either of two elements does so in some variant; a value that is no element of its own row does so in none.
//
// The same holds for the sums along each dimension. They find what is too small to be seen in single elements: rows of
// a softmax that do not sum to 1, errors that lean to one side.
#include <algorithm>
#include <array>
#include <sstream>

#include "support/execution.h"

namespace fusewright::testing {

// One variant of the numbers of a graph.
class Variant {
 public:
  Variant(const Graph& graph, unsigned seed) : graph_(graph), random_(0x9e3779b97f4a7c15ull * (seed + 1)) {
    const std::vector<std::vector<Value>> users = graph.users();
    rounds_.resize(graph.nodes.size());
    inside_.resize(graph.nodes.size());
    // So many of eight values are rounded: all, none except those that always are, few, half, most.
    const uint64_t rounded_of_eight = std::array<uint64_t, 5>{8, 0, 1, 4, 7}[seed % 5];
    for (size_t i = 0; i < graph.nodes.size(); ++i) {
      const Node& node = graph.nodes[i];
      if (!is_float(node.type.dtype)) continue;
      // Values inside an operation of the user's may be stored too, but must not leave the type's range for it.
      // Terms of a gradient are results.
      inside_[i] = node.kind() != Kind::contraction && std::all_of(users[i].begin(), users[i].end(), [&](Value user) {
                     return graph[user].origin == node.origin && graph[user].op != Op::add;
                   });
      const bool always = node.op == Op::cast || node.kind() == Kind::contraction;
      rounds_[i] = is_narrow_float(node.type.dtype) && (always || next() % 8 < rounded_of_eight);
    }
    for (const Output& output : graph.outputs) {
      rounds_[static_cast<size_t>(output.value)] = is_narrow_float(graph.dtype(output.value));
      inside_[static_cast<size_t>(output.value)] = false;
    }
    for (size_t i = graph.nodes.size(); i-- > 0;) {
      if (!rounds_[i] || !hands_on(graph.nodes[i])) continue;
      for (Value operand : graph.nodes[i].operands)
        if (graph.dtype(operand) == graph.nodes[i].type.dtype) rounds_[static_cast<size_t>(operand)] = true;
    }
  }

  void operator()(const Interpreter& values, Value v, Array& array) {
    const Node& node = graph_[v];
    const DType dtype = node.type.dtype;
    if (!is_float(dtype) || node.kind() == Kind::source) return;
    if (!hands_on(node)) add_noise(values, node, array);
    if (is_narrow_float(dtype) && rounds_[static_cast<size_t>(v)])
      for (double& value : array.data)
        value = inside_[static_cast<size_t>(v)] ? with_digits(value, dtype) : rounded(value, dtype);
    if (dtype != DType::f64 && !hands_on(node) && !inside_[static_cast<size_t>(v)])
      for (double& value : array.data) value = rounded(value, DType::f32);
  }

 private:
  static bool hands_on(const Node& node) {
    switch (node.op) {
      case Op::amax:
      case Op::amin:
      case Op::maximum:
      case Op::minimum:
      case Op::max_pool:
      case Op::shift:
      case Op::select:
      case Op::neg:
      case Op::abs:
      case Op::stop_gradient:
        return true;
      default:
        return node.kind() == Kind::movement;
    }
  }

  uint64_t next() {
    random_ ^= random_ << 13, random_ ^= random_ >> 7, random_ ^= random_ << 17;
    return random_;
  }
  static double with_digits(double value, DType dtype) {
    if (!std::isfinite(value)) return value;
    int exponent = 0;
    const double digits = std::frexp(value, &exponent);
    const int count = dtype == DType::f16 ? 11 : 8;
    return std::ldexp(std::nearbyint(std::ldexp(digits, count)), exponent - count);
  }
  double noise() { return static_cast<double>(static_cast<int64_t>(next())) * 0x1p-63; }  // from -1 to 1

  // An error of the last digit of a float; of a sum, what its terms leave behind.
  void add_noise(const Interpreter& values, const Node& node, Array& array) {
    const double unit = node.type.dtype == DType::f64 ? 0x1p-48 : 0x1p-23;
    double absolute = node.op == Op::normal_cdf || node.op == Op::erf ? unit : 0;
    if (node.op == Op::sum || node.op == Op::avg_pool || node.op == Op::matmul) {
      double squares = 0;
      for (double value : values[node.operands[0]].data) squares += value * value;
      absolute = unit * std::sqrt(squares / static_cast<double>(std::max<size_t>(array.size(), 1)));
    }
    for (double& value : array.data) {
      if (value == 0 && absolute == 0) continue;
      value += noise() * (absolute + unit * std::abs(value));
    }
  }

  const Graph& graph_;
  uint64_t random_;
  std::vector<bool> rounds_, inside_;
};

class Judge {
 public:
  Judge(const Graph& graph, const std::vector<bool>& wrt) : joint_(graph, wrt) {}

  // Empty when all results agree.
  std::string problem(const Execution& found, const std::vector<Array>& inputs, const std::vector<Array>& dL_dy) const {
    const Reference exact = joint_.run(inputs, dL_dy, [](const Interpreter&, Value, Array&) {});
    std::vector<Reference> variants;
    std::string text;
    for (unsigned most : {few, many, very_many}) {  // a rare coincidence may show in the many only
      for (auto seed = static_cast<unsigned>(variants.size()); seed < most; ++seed) {
        Variant variant(joint_.program.forward, seed);
        variants.push_back(joint_.run(inputs, dL_dy, std::ref(variant)));
      }
      text = compare(found.outputs, exact, variants, &Reference::outputs, "output");
      if (text.empty()) text = compare(found.gradients, exact, variants, &Reference::gradients, "gradient");
      if (text.empty()) return "";
    }
    return text;
  }

 private:
  static constexpr unsigned few = 5, many = 60, very_many = 300;
  static constexpr double times = 8;  // what variants are off by

  using Results = std::vector<Array> Reference::*;

  static std::string compare(const std::vector<Tensor>& found, const Reference& exact,
                             const std::vector<Reference>& variants, Results results, const char* what) {
    if (found.size() != (exact.*results).size()) return std::string("number of ") + what;
    for (size_t i = 0; i < found.size(); ++i) {
      std::vector<const Array*> others;
      for (const Reference& variant : variants) others.push_back(&(variant.*results)[i]);
      const std::string text = compare(to_array(found[i]), (exact.*results)[i], others);
      if (!text.empty()) return std::string(what) + " " + std::to_string(i) + ", " + text;
    }
    return "";
  }

  static std::string compare(const Array& found, const Array& exact, const std::vector<const Array*>& variants) {
    if (found.sizes != exact.sizes) return "sizes " + text_of(found.sizes) + " against " + text_of(exact.sizes);
    if (found.dtype != exact.dtype) return "element types differ";
    std::string text = compare_elements(found, exact, variants, 1);
    for (size_t d = 0; d < exact.sizes.size() && text.empty(); ++d) {
      if (exact.sizes[d] < 2 || !is_float(exact.dtype)) continue;
      std::vector<Array> sums;
      std::vector<const Array*> pointers;
      for (const Array* variant : variants) sums.push_back(sum_over(*variant, d));
      for (const Array& array : sums) pointers.push_back(&array);
      text = compare_elements(sum_over(found, d), sum_over(exact, d), pointers,
                              std::sqrt(static_cast<double>(exact.sizes[d])));
      if (!text.empty()) text = "summed over dimension " + std::to_string(d) + ", " + text;
    }
    return text;
  }

  static Array sum_over(const Array& array, size_t d) {
    Sizes sizes = array.sizes;
    sizes[d] = 1;
    Array result(array.dtype, sizes);
    size_t next = 0;
    walk(array.sizes, {broadcast_strides(sizes, sizes.size())},
         [&](const Sizes& at) { result.data[static_cast<size_t>(at[0])] += array.data[next++]; });
    return result;
  }

  // One step of the type at 1, and the least number that it has.
  static std::pair<double, double> steps(DType dtype) {
    switch (dtype) {
      case DType::f16:
        return {0x1p-11, 0x1p-24};
      case DType::bf16:
        return {0x1p-8, 0x1p-133};
      case DType::f32:
        return {0x1p-23, 0x1p-149};
      case DType::f64:
        return {0x1p-46, 0};
      default:
        return {0, 0};
    }
  }

  static std::string compare_elements(const Array& found, const Array& exact, const std::vector<const Array*>& variants,
                                      double terms) {
    const auto [step, least] = steps(found.dtype);
    std::vector<double> spread(exact.size()), usual(exact.size());
    double largest = 0;
    for (size_t e = 0; e < exact.size(); ++e) {
      for (const Array* variant : variants) {
        double off = std::abs(variant->data[e] - exact.data[e]);
        off = variant->data[e] == exact.data[e] ? 0 : std::isnan(off) ? INFINITY : off;
        spread[e] = std::max(spread[e], off);
        usual[e] += off * off / static_cast<double>(variants.size());
      }
      usual[e] = std::sqrt(usual[e]);
      if (std::isfinite(exact.data[e])) largest = std::max(largest, std::abs(exact.data[e]));
    }
    std::vector<double> sorted = usual;
    const auto middle = sorted.begin() + static_cast<long>(sorted.size() / 2);
    if (!sorted.empty()) std::nth_element(sorted.begin(), middle, sorted.end());
    const double median = sorted.empty() || !std::isfinite(*middle) ? 0 : *middle;
    for (size_t e = 0; e < exact.size(); ++e) {
      const double x = found.data[e], y = exact.data[e];
      if (x == y || spread[e] == INFINITY || (std::isnan(x) && std::isnan(y))) continue;
      const double limit = std::max(1.5 * spread[e], times * usual[e]) + times / 2 * median + 2 * step * std::abs(y) +
                           0x1p-3 * terms * 0x1p-23 * largest + 2 * terms * least;
      if (!(std::abs(x - y) <= limit)) {
        std::ostringstream text;
        text << "element " << e << " of " << text_of(found.sizes) << ": " << x << " against " << y
             << ", where roundings explain " << limit << " (" << variants.size() << " variants, off by up to "
             << spread[e] << ")";
        return text.str();
      }
    }
    return "";
  }

  Joint joint_;
};

}  // namespace fusewright::testing
