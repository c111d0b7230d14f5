#include "ir/builder.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace fusewright {

Value Builder::input(const std::string& name, DType dtype, Shape shape, Order order) {
  Node node{Op::input, {}, {{"name", name}}, {dtype, std::move(shape), std::move(order)}, -1};
  size_t fresh = 0;
  for (const Size& size : node.type.shape) {
    std::set<std::string> symbols;
    size.collect_symbols(symbols);
    for (const std::string& symbol : symbols)
      // Symbols without a known value get large hints, of which no two are ever equal in a graph; never 1.
      if (!graph_.hints.count(symbol)) {
        graph_.hints[symbol] = 1000003 + 4096 * static_cast<int64_t>(16 * graph_.nodes.size() + fresh++);
        graph_.dynamic.insert(symbol);
      }
  }
  if (is_row_major(node.type.order)) node.type.order.clear();
  graph_.nodes.push_back(std::move(node));
  graph_.inputs.push_back(static_cast<Value>(graph_.nodes.size()) - 1);
  return graph_.inputs.back();
}

Value Builder::scalar_input(const std::string& name, DType dtype) {
  graph_.nodes.push_back({Op::scalar_input, {}, {{"name", name}}, {dtype, {}, {}}, -1});
  graph_.inputs.push_back(static_cast<Value>(graph_.nodes.size()) - 1);
  return graph_.inputs.back();
}

Value Builder::constant(double value, DType dtype, bool runtime) {
  Attrs attrs = {{"value", value}};
  if (runtime) attrs["runtime"] = int64_t{1};
  graph_.nodes.push_back({Op::constant, {}, std::move(attrs), {dtype, {}, {}}, origin_});
  return static_cast<Value>(graph_.nodes.size()) - 1;
}

Value Builder::extent(const Size& size, DType dtype) {
  graph_.nodes.push_back({Op::extent, {}, {{"size", Shape{size}}}, {dtype, {}, {}}, origin_});
  return static_cast<Value>(graph_.nodes.size()) - 1;
}

Value Builder::iota(const Size& size) {
  graph_.nodes.push_back({Op::iota, {}, {{"size", Shape{size}}}, {DType::i64, {size}, {}}, origin_});
  return static_cast<Value>(graph_.nodes.size()) - 1;
}

Value Builder::op(Op op, std::vector<Value> operands, Attrs attrs) {
  const OpInfo& row = info(op);
  int count = static_cast<int>(operands.size());
  require(row.kind != Kind::source, row.name, ": sources have functions of their own");
  require(count >= row.min_operands && count <= row.max_operands, row.name, ": ", count, " operands given, ",
          row.min_operands, row.max_operands > row.min_operands ? " or more" : "", " needed");
  for (Value v : operands)
    require(v >= 0 && v < static_cast<Value>(graph_.nodes.size()), row.name, ": operand %", v, " does not exist");
  substituted_.clear();
  Type type = infer_type(*this, op, operands, attrs);
  // Symbols that inference replaced may still stand in what it had read before.
  auto catch_up = [&](Shape& shape) {
    for (const auto& [symbol, by] : substituted_)
      for (Size& size : shape) size = size.substitute(symbol, by);
  };
  catch_up(type.shape);
  for (auto& [name, attr] : attrs)
    if (Shape* sizes = std::get_if<Shape>(&attr)) catch_up(*sizes);
  graph_.nodes.push_back({op, std::move(operands), std::move(attrs), std::move(type), origin_});
  return static_cast<Value>(graph_.nodes.size()) - 1;
}

int Builder::changes(Value input) {
  auto found = std::find(graph_.inputs.begin(), graph_.inputs.end(), input);
  require(found != graph_.inputs.end(), "%", input, " is to be replaced, and is no input");
  const int position = static_cast<int>(found - graph_.inputs.begin());
  graph_.changing.insert(position);
  return position;
}

void Builder::output(Value value, Order order, bool differentiable, std::string name, Value into) {
  if (is_row_major(order)) order.clear();
  int position = -1;
  if (into >= 0) {
    position = changes(into);
    require(rank(into) == rank(value), "an output of rank ", rank(value), " goes into an input of rank ", rank(into));
    for (size_t d = 0; d < shape(value).size(); ++d) {
      const Size own = shape(value)[d], its = shape(into)[d];
      unify(own, its, "an output that replaces an input");
    }
  }
  graph_.outputs.push_back({value, std::move(order), differentiable, std::move(name), position, graph_[value].origin});
}

void Builder::substitute(const std::string& symbol, const Size& by) {
  auto apply = [&](Shape& shape) {
    for (Size& size : shape) size = size.substitute(symbol, by);
  };
  for (Node& node : graph_.nodes) {
    apply(node.type.shape);
    for (auto& [name, attr] : node.attrs)
      if (Shape* sizes = std::get_if<Shape>(&attr)) apply(*sizes);
  }
  graph_.hints.erase(symbol);
  substituted_.emplace_back(symbol, by);
  // A dynamic symbol that is replaced hands its freedom on.
  if (graph_.dynamic.erase(symbol)) by.collect_symbols(graph_.dynamic);
}

void Builder::unify(const Size& a, const Size& b, const std::string& what) {
  if (a == b) return;
  require(graph_.hint(a) == graph_.hint(b), what, ": size ", a.str(), " is not ", b.str(), " (", graph_.hint(a),
          " against ", graph_.hint(b), ")");
  // c*s = d*t with both coefficients above 1: a fresh symbol carries the common part.
  auto sa = a.scaled_symbol(), sb = b.scaled_symbol();
  if (sa && sb && sa->first > 1 && sb->first > 1) {
    int64_t common = std::gcd(sa->first, sb->first);
    int64_t fa = sb->first / common, fb = sa->first / common;
    Size fresh = Size::symbol(graph_.fresh_symbol("u", graph_.hint(a) / (sa->first * fa)));
    std::string first = sa->second, second = sb->second;
    substitute(first, fresh * Size(fa));
    substitute(second, fresh * Size(fb));
    return;
  }
  // Otherwise solve a - b = 0 for a symbol that divides the rest.
  Size difference = a - b;
  for (const Size::Linear& linear : difference.linear_symbols()) {
    if (std::abs(linear.coefficient) != 1) continue;
    Size symbol = Size::symbol(linear.symbol);
    substitute(linear.symbol, linear.coefficient == 1 ? symbol - difference : symbol + difference);
    return;
  }
  // c*s = constant
  for (const Size::Linear& linear : difference.linear_symbols()) {
    Size rest = difference - Size::symbol(linear.symbol) * Size(linear.coefficient);
    if (auto constant = rest.constant(); constant && *constant % linear.coefficient == 0)
      return substitute(linear.symbol, Size(-*constant / linear.coefficient));
  }
  // Give up on other sizes: every symbol involved becomes the number it is here.
  std::set<std::string> symbols;
  difference.collect_symbols(symbols);
  require(!graph_.may_change(difference), what, ": cannot tell whether ", a.str(), " equals ", b.str());
  for (const std::string& symbol : symbols) substitute(symbol, graph_.hints.at(symbol));
}

int64_t Builder::specialise(const Size& size, const std::string& what) {
  if (auto constant = size.constant()) return *constant;
  require(!graph_.may_change(size), what, ": size ", size.str(), " must be known when compiling");
  int64_t value = graph_.hint(size);
  unify(size, value, what);
  return value;
}

Size Builder::broadcast(const Size& a, const Size& b, const std::string& what) {
  if (a == b || b.is(1)) return a;
  if (a.is(1)) return b;
  int64_t ha = graph_.hint(a), hb = graph_.hint(b);
  if (ha != hb && (ha == 1 || hb == 1)) {
    // It broadcasts here, so "size 1" is part of the program's meaning, not of this batch.
    Size one = ha == 1 ? a : b, other = ha == 1 ? b : a;
    unify(one, 1, what);
    return other;
  }
  Size result = a;
  unify(a, b, what);
  return result;  // the caller reads shapes again after unification
}

Value Builder::cast(Value a, DType dtype) {
  return this->dtype(a) == dtype ? a : op(Op::cast, {a}, {{"dtype", dtype}});
}
Value Builder::reshape(Value a, const Shape& sizes) { return op(Op::reshape, {a}, {{"sizes", sizes}}); }
Value Builder::permute(Value a, const Ints& dims) { return op(Op::permute, {a}, {{"dims", dims}}); }
Value Builder::expand(Value a, const Shape& sizes) { return op(Op::expand, {a}, {{"sizes", sizes}}); }

Value Builder::reduce(Op reduction, Value a, const Ints& dims, bool keepdim) {
  Attrs attrs = {{"dims", dims}, {"keepdim", int64_t{keepdim}}};
  if (reduction == Op::amax || reduction == Op::amin) attrs["tie"] = int64_t{0};
  return op(reduction, {a}, std::move(attrs));
}

}  // namespace fusewright
