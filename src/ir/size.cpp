#include "ir/size.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <limits>

#include "ir/error.h"

namespace fusewright {

namespace {
enum Call { floordiv_call, mod_call, min_call, max_call, no_call };  // as SizeCall
constexpr const char* call_names[] = {"floordiv", "mod", "min", "max"};

// Sizes saturate: a product of hints that no memory could hold stays larger than every real size, where one that
// wrapped around would be small or negative.
constexpr int64_t most = std::numeric_limits<int64_t>::max(), least = std::numeric_limits<int64_t>::min();

int64_t add(int64_t a, int64_t b) {
  int64_t result;
  return __builtin_add_overflow(a, b, &result) ? (a < 0 ? least : most) : result;
}

int64_t multiply(int64_t a, int64_t b) {
  int64_t result;
  return __builtin_mul_overflow(a, b, &result) ? ((a < 0) != (b < 0) ? least : most) : result;
}

int64_t floor_divide(int64_t a, int64_t b) {
  require(b != 0, "size expression divides by zero");
  if (b == -1) return multiply(a, b);  // the one quotient that can overflow
  int64_t q = a / b;
  return (a % b != 0 && (a < 0) != (b < 0)) ? q - 1 : q;
}

int64_t apply(int call, int64_t a, int64_t b) {
  switch (call) {
    case floordiv_call:
      return floor_divide(a, b);
    case mod_call:
      return a - floor_divide(a, b) * b;
    case min_call:
      return std::min(a, b);
    default:
      return std::max(a, b);
  }
}
}  // namespace

struct Size::Factor {
  int call = no_call;
  std::string name;  // of the symbol, or the call's text: the sort key either way
  Size a, b;
};

Size::Size(int64_t constant) : Size(constant == 0 ? Terms{} : Terms{{"", {constant, {}}}}) {}

Size::Size(Terms terms) {
  auto expression = std::make_shared<Expression>();
  std::erase_if(terms, [](const auto& entry) { return entry.second.coefficient == 0; });
  std::string& text = expression->text;
  // Symbols before the constant: "h + 2" reads better than "2 + h".
  auto append = [&](const std::string& monomial, int64_t coefficient) {
    bool negative = coefficient < 0 && !text.empty();
    if (!text.empty()) text += negative ? " - " : " + ";
    int64_t shown = negative ? multiply(coefficient, -1) : coefficient;
    if (monomial.empty())
      text += std::to_string(shown);
    else if (shown == 1)
      text += monomial;
    else
      text += std::to_string(shown) + "*" + monomial;
  };
  for (const auto& [monomial, term] : terms)
    if (!monomial.empty()) append(monomial, term.coefficient);
  if (auto it = terms.find(""); it != terms.end()) append("", it->second.coefficient);
  if (text.empty()) text = "0";
  if (terms.empty())
    expression->constant = 0;
  else if (terms.size() == 1 && terms.begin()->first.empty())
    expression->constant = terms.begin()->second.coefficient;
  expression->terms = std::move(terms);
  expression_ = std::move(expression);
}

Size Size::from_factor(std::shared_ptr<const Factor> factor) {
  std::string key = factor->name;
  return Size(Terms{{std::move(key), {1, {std::move(factor)}}}});
}

Size Size::symbol(const std::string& name) {
  auto factor = std::make_shared<Factor>();
  factor->name = name;
  return from_factor(factor);
}

Size Size::call(int kind, const Size& a, const Size& b) {
  if (a.constant() && b.constant()) return apply(kind, *a.constant(), *b.constant());
  auto factor = std::make_shared<Factor>();
  factor->call = kind;
  factor->a = a;
  factor->b = b;
  factor->name = std::string(call_names[kind]) + "(" + a.str() + ", " + b.str() + ")";
  return from_factor(factor);
}

Size Size::floordiv(const Size& a, const Size& b) {
  if (b.is(1)) return a;
  if (auto divisor = b.constant(); divisor && *divisor > 0) {
    // Terms that divide evenly leave the call: floordiv(32*c + 5, 32) = c + floordiv(5, 32).
    Terms whole, rest;
    for (const auto& [monomial, term] : a.terms()) {
      bool even = term.coefficient % *divisor == 0;
      (even ? whole : rest)[monomial] = {even ? term.coefficient / *divisor : term.coefficient, term.factors};
    }
    return Size(std::move(whole)) + call(floordiv_call, Size(std::move(rest)), b);
  }
  if (!b.constant() && a == b) return 1;
  return call(floordiv_call, a, b);
}

std::optional<Size> Size::exact_quotient(const Size& a, const Size& b) {
  if (a == b) return Size(1);
  if (b.terms().size() != 1) return std::nullopt;
  const Term& divisor = b.terms().begin()->second;
  Size result;
  for (const auto& [monomial, term] : a.terms()) {
    if (term.coefficient % divisor.coefficient != 0) return std::nullopt;
    Size part = term.coefficient / divisor.coefficient;
    auto factors = term.factors;
    for (const auto& wanted : divisor.factors) {
      auto found = std::find_if(factors.begin(), factors.end(), [&](auto& f) { return f->name == wanted->name; });
      if (found == factors.end()) return std::nullopt;
      factors.erase(found);
    }
    for (const auto& factor : factors) part = part * from_factor(factor);
    result = result + part;
  }
  return result;
}

Size Size::mod(const Size& a, const Size& b) { return b.is(1) ? Size(0) : a - floordiv(a, b) * b; }
Size Size::min(const Size& a, const Size& b) { return a == b ? a : call(min_call, a, b); }
Size Size::max(const Size& a, const Size& b) { return a == b ? a : call(max_call, a, b); }

Size operator+(const Size& a, const Size& b) {
  Size::Terms terms = a.terms();
  for (const auto& [monomial, term] : b.terms()) {
    auto [it, fresh] = terms.try_emplace(monomial, term);
    if (!fresh) it->second.coefficient = add(it->second.coefficient, term.coefficient);
  }
  return Size(std::move(terms));
}

Size operator-(const Size& a, const Size& b) { return a + b * Size(-1); }

Size operator*(const Size& a, const Size& b) {
  if (a.is(1)) return b;
  if (b.is(1)) return a;
  Size::Terms terms;
  for (const auto& [ka, ta] : a.terms())
    for (const auto& [kb, tb] : b.terms()) {
      Size::Term term{multiply(ta.coefficient, tb.coefficient), ta.factors};
      term.factors.insert(term.factors.end(), tb.factors.begin(), tb.factors.end());
      std::sort(term.factors.begin(), term.factors.end(), [](auto& x, auto& y) { return x->name < y->name; });
      std::string key;
      for (const auto& factor : term.factors) key += (key.empty() ? "" : "*") + factor->name;
      auto [it, fresh] = terms.try_emplace(key, term);
      if (!fresh) it->second.coefficient = add(it->second.coefficient, term.coefficient);
    }
  return Size(std::move(terms));
}

std::optional<std::pair<int64_t, std::string>> Size::scaled_symbol() const {
  if (terms().size() != 1) return std::nullopt;
  const Term& term = terms().begin()->second;
  if (term.factors.size() != 1 || term.factors[0]->call != no_call) return std::nullopt;
  return std::make_pair(term.coefficient, term.factors[0]->name);
}

std::vector<Size::Linear> Size::linear_symbols() const {
  std::vector<Linear> result;
  for (const auto& [monomial, term] : terms()) {
    if (term.factors.size() != 1 || term.factors[0]->call != no_call) continue;
    std::set<std::string> elsewhere;
    for (const auto& [other, other_term] : terms())
      if (other != monomial)
        for (const auto& factor : other_term.factors) from_factor(factor).collect_symbols(elsewhere);
    if (!elsewhere.count(monomial)) result.push_back({monomial, term.coefficient});
  }
  return result;
}

int64_t Size::evaluate(const Lookup& lookup) const {
  int64_t total = 0;
  for (const auto& [monomial, term] : terms()) {
    int64_t value = term.coefficient;
    for (const auto& f : term.factors)
      value = multiply(
          value, f->call == no_call ? lookup(f->name) : apply(f->call, f->a.evaluate(lookup), f->b.evaluate(lookup)));
    total = add(total, value);
  }
  return total;
}

Size Size::substitute(const std::string& symbol, const Size& by) const {
  Size total;
  for (const auto& [monomial, term] : terms()) {
    Size value = term.coefficient;
    for (const auto& f : term.factors) {
      if (f->call == no_call) {
        value = value * (f->name == symbol ? by : from_factor(f));
        continue;
      }
      Size a = f->a.substitute(symbol, by), b = f->b.substitute(symbol, by);
      switch (f->call) {
        case floordiv_call:
          value = value * floordiv(a, b);
          break;
        case mod_call:
          value = value * mod(a, b);
          break;
        case min_call:
          value = value * min(a, b);
          break;
        default:
          value = value * max(a, b);
      }
    }
    total = total + value;
  }
  return total;
}

void Size::collect_symbols(std::set<std::string>& into) const {
  for (const auto& [monomial, term] : terms())
    for (const auto& f : term.factors) {
      if (f->call == no_call)
        into.insert(f->name);
      else
        f->a.collect_symbols(into), f->b.collect_symbols(into);
    }
}

Size product(const Shape& shape) {
  Size result = 1;
  for (const Size& size : shape) result = result * size;
  return result;
}

std::string str(const Shape& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + shape[i].str();
  return text + "]";
}

// expression := term (('+' | '-') term)*    term := factor ('*' factor)*
// factor := integer | symbol | call '(' expression ',' expression ')' | '(' expression ')' | '-' factor
class SizeParser {
 public:
  explicit SizeParser(std::string_view text) : text_(text) {}
  Size whole() {
    Size result = expression();
    require(peek() == '\0', "size '", text_, "': unexpected '", std::string(1, peek()), "'");
    return result;
  }

 private:
  char peek() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  void expect(char c) {
    require(peek() == c, "size '", text_, "': expected '", std::string(1, c), "'");
    ++at_;
  }
  Size expression() {
    Size result = term();
    for (char c = peek(); c == '+' || c == '-'; c = peek()) {
      ++at_;
      result = c == '+' ? result + term() : result - term();
    }
    return result;
  }
  Size term() {
    Size result = factor();
    while (peek() == '*') ++at_, result = result * factor();
    return result;
  }
  Size factor() {
    char c = peek();
    if (c == '-') return ++at_, Size(0) - factor();
    if (c == '(') {
      ++at_;
      Size inner = expression();
      expect(')');
      return inner;
    }
    size_t start = at_;
    if (std::isdigit(static_cast<unsigned char>(c))) {
      while (at_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[at_]))) ++at_;
      int64_t value = 0;
      auto result = std::from_chars(text_.data() + start, text_.data() + at_, value);
      require(result.ec == std::errc(), "size '", text_, "': the number is too large");
      return value;
    }
    require(std::isalpha(static_cast<unsigned char>(c)) || c == '_', "size '", text_, "': a number or symbol expected");
    while (at_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[at_])) || text_[at_] == '_')) ++at_;
    std::string name(text_.substr(start, at_ - start));
    if (peek() != '(') return Size::symbol(name);
    ++at_;
    Size a = expression();
    expect(',');
    Size b = expression();
    expect(')');
    if (name == "floordiv") return Size::floordiv(a, b);
    if (name == "mod") return Size::mod(a, b);
    if (name == "min") return Size::min(a, b);
    if (name == "max") return Size::max(a, b);
    fail("size '", text_, "': no function '", name, "'");
  }
  std::string_view text_;
  size_t at_ = 0;
};

Size Size::parse(std::string_view text) { return SizeParser(text).whole(); }

SizeProgram::SizeProgram(const Size& size, const std::map<std::string, int>& slots) { compile(size, slots); }

void SizeProgram::compile(const Size& size, const std::map<std::string, int>& slots) {
  bool first = true;
  if (size.terms().empty()) code_.push_back({push_constant, 0});
  for (const auto& [monomial, term] : size.terms()) {
    code_.push_back({push_constant, term.coefficient});
    for (const auto& f : term.factors) {
      if (f->call == no_call) {
        auto slot = slots.find(f->name);
        require(slot != slots.end(), "size '", size.str(), "': symbol '", f->name, "' is not bound by any input");
        code_.push_back({push_symbol, slot->second});
      } else {
        compile(f->a, slots);
        compile(f->b, slots);
        code_.push_back({static_cast<int8_t>(code_call + f->call), 0});
      }
      code_.push_back({code_mul, 0});
    }
    if (!first) code_.push_back({code_add, 0});
    first = false;
  }
}

int64_t SizeProgram::run(const int64_t* symbols) const {
  int64_t stack[64];
  int top = 0;
  for (const Instruction& i : code_) {
    require(top < 62, "size expression too deep");
    switch (i.op) {
      case push_constant:
        stack[top++] = i.argument;
        break;
      case push_symbol:
        stack[top++] = symbols[i.argument];
        break;
      case code_add:
        --top, stack[top - 1] = add(stack[top - 1], stack[top]);
        break;
      case code_mul:
        --top, stack[top - 1] = multiply(stack[top - 1], stack[top]);
        break;
      default:
        --top, stack[top - 1] = apply(i.op - code_call, stack[top - 1], stack[top]);
    }
  }
  return stack[0];
}

}  // namespace fusewright
