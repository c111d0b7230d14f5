#include <algorithm>
#include <cctype>
#include <cmath>
#include <limits>

#include "ir/builder.h"

namespace fusewright {
namespace {

// Reads what print.cpp writes. Types of results may be left out; where given they are checked against inference.
class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text), builder_(graph_) {}

  Graph whole() {
    word("graph");
    expect('(');
    while (!accept(')')) {
      std::string name = value_name();
      expect(':');
      bool scalar = text_.substr(skip(), 7) == "scalar ";
      if (scalar) at_ += 6;
      Type type = parse_type();
      define(name, scalar ? builder_.scalar_input(name.substr(1), type.dtype)
                          : builder_.input(name.substr(1), type.dtype, type.shape, type.order));
      accept(',');
    }
    expect('{');
    while (peek() == '%') statement();
    word("return");
    do output();
    while (accept(','));
    expect('}');
    require(peek() == '\0', where(), "text after the graph");
    return std::move(graph_);
  }

 private:
  size_t skip() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
    return at_;
  }
  char peek() { return skip() < text_.size() ? text_[at_] : '\0'; }
  bool accept(char c) { return peek() == c ? (++at_, true) : false; }
  std::string where() const {
    return "line " + std::to_string(1 + std::count(text_.begin(), text_.begin() + static_cast<long>(at_), '\n')) + ": ";
  }
  void expect(char c) { require(accept(c), where(), "expected '", std::string(1, c), "'"); }
  std::string identifier() {
    skip();
    size_t start = at_;
    while (at_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[at_])) || text_[at_] == '_')) ++at_;
    require(at_ > start, where(), "a name expected");
    return std::string(text_.substr(start, at_ - start));
  }
  void word(const char* expected) {
    std::string found = identifier();
    require(found == expected, where(), "expected '", expected, "', found '", found, "'");
  }
  std::string value_name() {
    expect('%');
    return "%" + identifier();
  }
  void define(const std::string& name, Value v) {
    require(values_.try_emplace(name, v).second, where(), name, " is defined twice");
  }
  Value lookup(const std::string& name) {
    auto it = values_.find(name);
    require(it != values_.end(), where(), name, " is not defined");
    return it->second;
  }
  Shape parse_shape() {
    expect('[');
    Shape shape;
    while (!accept(']')) {
      skip();
      size_t start = at_;
      for (int depth = 0; at_ < text_.size() && (depth > 0 || (text_[at_] != ',' && text_[at_] != ']')); ++at_)
        depth += text_[at_] == '(' ? 1 : text_[at_] == ')' ? -1 : 0;
      shape.push_back(Size::parse(text_.substr(start, at_ - start)));
      accept(',');
    }
    return shape;
  }
  Order parse_order() {
    Order order;
    if (at_ < text_.size() && text_[at_] == '@')
      for (++at_; at_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[at_])); ++at_)
        order.push_back(text_[at_] - '0');
    return order;
  }
  Type parse_type() {
    Type type;
    type.dtype = parse_dtype(identifier());
    type.shape = parse_shape();
    type.order = parse_order();
    return type;
  }
  Attr number() {
    skip();
    size_t start = at_;
    while (at_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[at_])) || text_[at_] == '.' ||
                                  text_[at_] == '-' || text_[at_] == '+'))
      ++at_;
    std::string token(text_.substr(start, at_ - start));
    try {
      if (token.find_first_not_of("-0123456789") == std::string::npos) return static_cast<int64_t>(std::stoll(token));
      return std::stod(token);
    } catch (const std::exception&) {
      fail(where(), "a number expected, found '", token, "'");
    }
  }
  Attr attribute() {
    char c = peek();
    if (c == '"') {
      size_t end = text_.find('"', ++at_);
      require(end != std::string_view::npos, where(), "unfinished text");
      std::string value(text_.substr(at_, end - at_));
      at_ = end + 1;
      return value;
    }
    if (c == '[') return parse_shape();
    if (c == '(') {
      Ints values;
      ++at_;
      while (!accept(')')) {
        values.push_back(std::get<int64_t>(number()));
        accept(',');
      }
      return values;
    }
    if (std::isalpha(static_cast<unsigned char>(c)) && text_.substr(at_, 3) != "inf" && text_.substr(at_, 3) != "nan")
      return parse_dtype(identifier());
    return number();
  }
  void statement() {
    std::string name = value_name();
    std::optional<Type> stated;
    if (accept(':')) stated = parse_type();
    expect('=');
    std::string op_name = identifier();
    auto op = find_op(op_name);
    require(op.has_value(), where(), "no operation '", op_name, "'");
    expect('(');
    std::vector<Value> operands;
    while (!accept(')')) {
      operands.push_back(lookup(value_name()));
      accept(',');
    }
    Attrs attrs;
    if (accept('{'))
      while (!accept('}')) {
        std::string key = identifier();
        expect('=');
        attrs[key] = attribute();
        accept(',');
      }
    builder_.set_origin(graph_.add_origin({op_name, ""}));
    Value v = append(*op, std::move(operands), std::move(attrs), stated);
    define(name, v);
    if (!stated) return;
    const Type& type = graph_.type(v);
    require(type.dtype == stated->dtype && type.shape == stated->shape, where(), op_name, ": type is ",
            name_of(type.dtype), str(type.shape), ", the text says ", name_of(stated->dtype), str(stated->shape));
    graph_[v].type.order = stated->order;
  }
  Value append(Op op, std::vector<Value> operands, Attrs attrs, const std::optional<Type>& stated) {
    if (op != Op::constant && op != Op::extent && op != Op::iota) {
      try {
        return builder_.op(op, std::move(operands), std::move(attrs));
      } catch (const Error& error) {
        fail(where(), error.what());
      }
    }
    DType dtype = stated ? stated->dtype : DType::f32;
    Node source{op, {}, std::move(attrs), {dtype, {}, {}}, -1};
    if (op == Op::iota) return builder_.iota(source.sizes("size").at(0));
    if (op == Op::extent) return builder_.extent(source.sizes("size").at(0), dtype);
    return builder_.constant(source.number("value"), dtype, source.has("runtime"));
  }
  void output() {
    std::string name;
    if (peek() != '%') {
      name = identifier();
      expect('=');
    }
    Value v = lookup(value_name());
    Order order = parse_order();
    bool differentiable = true;
    if (at_ < text_.size() && text_[at_] == '!') ++at_, differentiable = false;
    builder_.output(v, order, differentiable, name);
  }

  std::string_view text_;
  size_t at_ = 0;
  Graph graph_;
  Builder builder_;
  std::map<std::string, Value> values_;
};

}  // namespace

Graph parse(std::string_view text) { return Parser(text).whole(); }

}  // namespace fusewright
