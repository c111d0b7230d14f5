#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdlib>

#include "ir/builder.h"

namespace fusewright {
namespace {

// Reads what print.cpp writes. Types of results may be left out; where given they are checked against inference.
class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text), builder_(graph_) {}

  Graph whole() {
    try {
      return graph();
    } catch (const Error& error) {  // of a type or a size, which know no lines
      if (std::string_view(error.what()).starts_with("line ")) throw;
      fail(where(), error.what());
    }
  }

 private:
  Graph graph() {
    word("graph");
    expect('(');
    while (!accept(')')) {
      size_t start = skip();
      std::string name = value_name();
      expect(':');
      const bool changing = accept_word("changing "), scalar = accept_word("scalar ");
      Type type = parse_type();
      const Value input = scalar ? builder_.scalar_input(name.substr(1), type.dtype)
                                 : builder_.input(name.substr(1), type.dtype, type.shape, type.order);
      if (changing) builder_.changes(input);
      define(name, input, start);
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

  size_t skip() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
    return at_;
  }
  char peek() { return skip() < text_.size() ? text_[at_] : '\0'; }
  bool accept_word(std::string_view word) {
    const bool found = text_.substr(skip()).starts_with(word);
    if (found) at_ += word.size();
    return found;
  }
  bool accept(char c) { return peek() == c ? (++at_, true) : false; }
  std::string where() const { return where(at_); }
  std::string where(size_t at) const {
    return "line " + std::to_string(1 + std::count(text_.begin(), text_.begin() + static_cast<long>(at), '\n')) + ": ";
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
  void define(const std::string& name, Value v, size_t at) {
    require(values_.try_emplace(name, v).second, where(at), name, " is defined twice");
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
    require(is_order(type.order, type.rank()), where(), "memory order does not name each of ", type.rank(),
            " dimensions once");
    return type;
  }
  Attr number() {
    skip();
    size_t start = at_;
    while (at_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[at_])) || text_[at_] == '.' ||
                                  text_[at_] == '-' || text_[at_] == '+'))
      ++at_;
    std::string token(text_.substr(start, at_ - start));
    char* end = nullptr;
    errno = 0;
    bool whole = token.find_first_not_of("-0123456789") == std::string::npos;
    Attr value = whole ? Attr(static_cast<int64_t>(std::strtoll(token.c_str(), &end, 10)))
                       : Attr(std::strtod(token.c_str(), &end));
    require(!token.empty() && *end == '\0' && !(whole && errno == ERANGE), where(), "a number expected, found '", token,
            "'");
    return value;
  }
  int64_t integer() {
    Attr value = number();
    require(std::holds_alternative<int64_t>(value), where(), "an integer expected");
    return std::get<int64_t>(value);
  }
  std::string quoted() {
    size_t start = at_++;
    std::string value;
    for (; at_ < text_.size() && text_[at_] != '"'; ++at_) {
      char c = text_[at_];
      if (c == '\\' && at_ + 1 < text_.size()) c = text_[++at_] == 'n' ? '\n' : text_[at_];
      value += c;
    }
    require(at_ < text_.size(), where(start), "unfinished text");
    ++at_;
    return value;
  }
  Attr attribute() {
    char c = peek();
    if (c == '"') return quoted();
    if (c == '[') return parse_shape();
    if (c == '(') {
      Ints values;
      ++at_;
      while (!accept(')')) {
        values.push_back(integer());
        accept(',');
      }
      return values;
    }
    if (std::isalpha(static_cast<unsigned char>(c)) && text_.substr(at_, 3) != "inf" && text_.substr(at_, 3) != "nan")
      return parse_dtype(identifier());
    return number();
  }
  void statement() {
    size_t start = skip();
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
    Value v = -1;
    try {
      v = append(*op, std::move(operands), std::move(attrs), stated);
    } catch (const Error& error) {
      fail(where(start), error.what());
    }
    define(name, v, start);
    if (!stated) return;
    const Type& type = graph_.type(v);
    require(type.dtype == stated->dtype && type.shape == stated->shape, where(start), op_name, ": type is ",
            name_of(type.dtype), str(type.shape), ", the text says ", name_of(stated->dtype), str(stated->shape));
    graph_[v].type.order = stated->order;
  }
  Value append(Op op, std::vector<Value> operands, Attrs attrs, const std::optional<Type>& stated) {
    if (op != Op::constant && op != Op::extent && op != Op::iota)
      return builder_.op(op, std::move(operands), std::move(attrs));
    DType dtype = stated ? stated->dtype : DType::f32;
    Node source{op, {}, std::move(attrs), {dtype, {}, {}}, -1};
    if (op != Op::constant) {
      require(source.sizes("size").size() == 1, name_of(op), ": attribute 'size' must hold one size");
      const Size& size = source.sizes("size")[0];
      return op == Op::iota ? builder_.iota(size) : builder_.extent(size, dtype);
    }
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
    require(is_order(order, graph_.type(v).rank()), where(), "memory order does not name each of ",
            graph_.type(v).rank(), " dimensions once");
    bool differentiable = true;
    if (at_ < text_.size() && text_[at_] == '!') ++at_, differentiable = false;
    Value into = -1;
    if (accept('-')) {
      expect('>');
      into = lookup(value_name());
    }
    builder_.output(v, order, differentiable, name, into);
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
