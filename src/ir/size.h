#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace fusewright {

// A size: an integer expression over constants and symbols with + - * floordiv mod min max, kept in one normal form
// (a polynomial whose indeterminates are symbols and opaque calls), so that equal sizes compare equal and print equal.
//
//   n*64*c, h + 2, floordiv(h - 1, 2) + 1
//
// A divisibility fact is expressed by substitution (c := 32*c1), never by a side condition: floordiv(32*c1, 32) is c1.
class Size {
 public:
  Size(int64_t constant = 0);  // NOLINT: sizes mix with plain integers everywhere
  static Size symbol(const std::string& name);
  static Size floordiv(const Size& a, const Size& b);
  static Size mod(const Size& a, const Size& b);
  static Size min(const Size& a, const Size& b);
  static Size max(const Size& a, const Size& b);
  static Size parse(std::string_view text);
  // a / b where b is a single product and divides every term of a: n*n*h / n is n*h.
  static std::optional<Size> exact_quotient(const Size& a, const Size& b);

  friend Size operator+(const Size& a, const Size& b);
  friend Size operator-(const Size& a, const Size& b);
  friend Size operator*(const Size& a, const Size& b);
  friend bool operator==(const Size& a, const Size& b) {
    return a.expression_ == b.expression_ || a.expression_->text == b.expression_->text;
  }

  std::optional<int64_t> constant() const { return expression_->constant; }
  bool is(int64_t value) const { return expression_->constant == value; }
  // coefficient and name, when the size is coefficient * symbol
  std::optional<std::pair<int64_t, std::string>> scaled_symbol() const;
  // A symbol in which the size is linear (occurs once, in no call) with its coefficient.
  struct Linear {
    std::string symbol;
    int64_t coefficient;
  };
  std::vector<Linear> linear_symbols() const;

  using Lookup = std::function<int64_t(const std::string&)>;
  int64_t evaluate(const Lookup& lookup) const;
  Size substitute(const std::string& symbol, const Size& by) const;
  void collect_symbols(std::set<std::string>& into) const;
  const std::string& str() const { return expression_->text; }

 private:
  friend class SizeParser;
  friend class SizeProgram;
  struct Factor;  // a symbol or a call
  struct Term {
    int64_t coefficient;
    std::vector<std::shared_ptr<const Factor>> factors;
  };
  using Terms = std::map<std::string, Term>;  // monomial's text -> term; the constant stands under ""
  struct Expression {                         // shared by all copies
    Terms terms;
    std::string text;
    std::optional<int64_t> constant;
  };
  explicit Size(Terms terms);
  static Size call(int kind, const Size& a, const Size& b);
  static Size from_factor(std::shared_ptr<const Factor> factor);
  const Terms& terms() const { return expression_->terms; }
  std::shared_ptr<const Expression> expression_;
};

using Shape = std::vector<Size>;
Size product(const Shape& shape);
std::string str(const Shape& shape);

enum class SizeCall { floordiv, mod, min, max };

// A Size compiled to postfix code over numbered symbols: what a Plan evaluates at every call.
class SizeProgram {
 public:
  SizeProgram() = default;
  SizeProgram(const Size& size, const std::map<std::string, int>& slots);
  int64_t run(const int64_t* symbols) const;
  // The same over another kind of integer: PyTorch's symbolic ones. `apply(call, a, b)` computes a SizeCall.
  template <class T, class Apply>
  T run_over(const std::vector<T>& symbols, Apply apply) const {
    std::vector<T> stack;
    for (const Instruction& i : code_) {
      if (i.op == push_constant || i.op == push_symbol) {
        stack.push_back(i.op == push_constant ? T(i.argument) : symbols[static_cast<size_t>(i.argument)]);
        continue;
      }
      T b = std::move(stack.back());
      stack.pop_back();
      T& a = stack.back();
      a = i.op == code_add ? a + b : i.op == code_mul ? a * b : apply(static_cast<SizeCall>(i.op - code_call), a, b);
    }
    return stack[0];
  }

 private:
  enum Code : int8_t { push_constant, push_symbol, code_add, code_mul, code_call };  // code_call + SizeCall
  struct Instruction {
    int8_t op;
    int64_t argument;
  };
  void compile(const Size& size, const std::map<std::string, int>& slots);
  std::vector<Instruction> code_;
};

}  // namespace fusewright
