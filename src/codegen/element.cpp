#include "codegen/element.h"

#include <algorithm>
#include <set>

namespace fusewright {

using std::to_string;
using Role = Step::Role;

Element::Element(const Graph& graph, const Kernel& kernel, Dialect dialect)
    : graph_(graph), kernel_(kernel), dialect_(dialect) {
  for (int s = 0; s < count(); ++s) {
    if (step(s).role != Role::scalar || (node(s).op == Op::constant && !node(s).has("runtime"))) continue;
    if (!number_of_.emplace(step(s).value, static_cast<int>(numbers_.size())).second) continue;
    numbers_.push_back(step(s).value);
  }
}

// The index of a pooling window is an int, as wide as the floats beside it, so that loops over both vectorise.
bool Element::is_window_index(int s) const {
  if (node(s).op == Op::max_pool_index) return true;
  return std::any_of(kernel_.steps.begin(), kernel_.steps.end(), [&](const Step& user) {
    return graph_[user.value].op == Op::max_pool_grad && user.operands.size() == 2 && user.operands[1] == s;
  });
}

std::vector<int> Element::needed(std::vector<int> todo, const std::function<bool(int)>& available) const {
  std::vector<bool> needed(static_cast<size_t>(count()));
  while (!todo.empty()) {
    const int s = todo.back();
    todo.pop_back();
    if (needed[static_cast<size_t>(s)] || step(s).role == Role::scalar || available(s)) continue;
    needed[static_cast<size_t>(s)] = true;
    todo.insert(todo.end(), step(s).operands.begin(), step(s).operands.end());
  }
  std::vector<int> result;
  for (int s = 0; s < count(); ++s)
    if (needed[static_cast<size_t>(s)]) result.push_back(s);
  return result;
}

std::string Element::use(int s, const Place& place) const {
  if (step(s).role == Role::scalar) return number(s);
  const std::string given = place.given(s);
  return given.empty() ? "v" + to_string(s) : given;
}

std::string Element::value(int s, const Place& place) const {
  if (step(s).role == Role::iota) return position(s, place);
  if (step(s).role == Role::load) return "fw::convert<" + reg(s) + ">(" + place.load(s) + ")";
  if (node(s).op == Op::div) {
    const std::string quotient = place.quotient(s);
    if (!quotient.empty()) return rounded(s, quotient);
    const int by = step(s).operands[1];
    if (dialect_ == Dialect::cuda && step(by).role == Role::scalar)
      return rounded(s, "fw::div(" + use(step(s).operands[0], place) + ", " + divisor_of_number(by) + ")");
  }
  std::vector<std::string> arguments;
  for (int operand : step(s).operands) arguments.push_back(use(operand, place));
  return rounded(s, expression(graph_, step(s), arguments));
}

std::string Element::declaration(int s, const Place& place) const {
  return "const " + reg(s) + " v" + to_string(s) + " = " + value(s, place) + ";";
}

std::string Element::stored(int s, const Place& place) const {
  return std::string("fw::convert<") + storage_type(dtype(s)) + ">(" + use(s, place) + ")";
}

std::string Element::rounded(int s, const std::string& text) const {
  return step(s).rounded ? as_stored(dtype(s), text) : text;
}

std::string Element::number(int s) const {
  const Node& source = node(s);
  if (source.op == Op::constant && !source.has("runtime")) return literal(source.number("value"), dtype(s));
  return "number" + to_string(number_of_.at(step(s).value));
}

// Locals: a load inside a loop would keep the compiler from vectorising it. In CUDA, quotients of one divisor share its
// reciprocal.
std::vector<std::string> Element::declared_numbers(const Place& place) const {
  std::vector<std::string> result;
  const bool cuda = dialect_ == Dialect::cuda;
  for (const auto& [value, number] : number_of_) {
    const std::string type = register_type(graph_.dtype(value)), argument = "a.numbers[" + to_string(number) + "]";
    result.push_back("[[maybe_unused]] const " + type + " number" + to_string(number) + " = " +
                     (cuda ? argument + ".as<" + type + ">()" : "static_cast<" + type + ">(" + argument + ")") + ";");
  }
  std::set<std::string> divisors;
  for (int s = 0; cuda && s < count(); ++s) {
    const int by = node(s).op == Op::div && step(s).role == Role::compute ? step(s).operands[1] : -1;
    if (by < 0 || !is_run_time_number(by) || !place.quotient(s).empty()) continue;
    const std::string name = divisor_of_number(by);
    if (!divisors.insert(name).second) continue;
    result.push_back("[[maybe_unused]] const auto " + name + " = " + made_divisor(by) + ";");
  }
  return result;
}

std::string Element::made_divisor(int s) const {
  return std::string(node(s).op == Op::extent ? "fw::count_of(" : "fw::divisor_of(") + number(s) + ")";
}

// A name that `declared_numbers` gives to what is computed once; the compiler computes that of a literal.
std::string Element::divisor_of_number(int s) const {
  return is_run_time_number(s) ? "divisor" + to_string(number_of_.at(step(s).value)) : made_divisor(s);
}

// The position along a dimension, which may be the product of several axes.
std::string Element::position(int s, const Place& place) const {
  std::string text = "fw::i64(0)";
  for (int a : step(s).dims[0]) text = "(" + text + ") * a.sizes[" + to_string(a) + "] + " + place.coordinate(a);
  return text;
}

}  // namespace fusewright
