#pragma once
// Writes what a kernel computes for one element. The kernel's steps say what; a Place says where the element is and
// what is there already. Neither knows how elements are walked: a vector of a line, a row in registers and the
// accumulators of a contraction are places. codegen/epilogue.cpp is a short example of a place and its use.
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "codegen/expressions.h"
#include "schedule/schedule.h"

namespace fusewright {

class Place {
 public:
  virtual ~Place() = default;

  // A value that the text around the element has already: one of the whole row, or one that an earlier pass kept.
  // Empty: the element computes it, as v<step>.
  virtual std::string given(int step) const = 0;
  // Reads an operand at this element, in the type that it has in memory.
  virtual std::string load(int step) const = 0;
  // The element's position on an axis.
  virtual std::string coordinate(int axis) const = 0;
  // The quotient that a step computes, where the place keeps the reciprocal of its divisor. Empty: it keeps none.
  virtual std::string quotient(int) const { return ""; }
};

class Element {
 public:
  // The kernel must outlive it.
  Element(const Graph& graph, const Kernel& kernel, Dialect dialect);

  // ---- the kernel's steps ----------------------------------------------------------------------------------

  int count() const { return static_cast<int>(kernel_.steps.size()); }
  const Step& step(int s) const { return kernel_.steps[static_cast<size_t>(s)]; }
  const Node& node(int s) const { return graph_[step(s).value]; }
  DType dtype(int s) const { return node(s).type.dtype; }
  bool is_window_index(int s) const;
  std::string reg(int s) const {
    return is_window_index(s) ? "int" : register_type(dtype(s));
  }  // its type in registers

  // The steps that must be computed for these, themselves included, operands first. It goes no further than scalars
  // and steps that are `available`.
  std::vector<int> needed(std::vector<int> results, const std::function<bool(int)>& available) const;

  // ---- values at a place -----------------------------------------------------------------------------------

  // A step's value where it is used: a name or a literal.
  std::string use(int s, const Place& place) const;
  // The expression that computes it there: of a load, a position or a pointwise operation. It uses its operands.
  std::string value(int s, const Place& place) const;
  // The statement that computes it, and gives it the name by which `use` refers to it.
  std::string declaration(int s, const Place& place) const;
  // Its value as it lies in memory.
  std::string stored(int s, const Place& place) const;

  // `text` in the precision that the step has.
  std::string rounded(int s, const std::string& text) const;

  // ---- scalars ---------------------------------------------------------------------------------------------

  // The text of a scalar step: a literal, or the name of a local that `declared_numbers` declares.
  std::string number(int s) const;
  bool is_run_time_number(int s) const { return number_of_.count(step(s).value) != 0; }
  // Run-time numbers in the order of Args::numbers, and the statements in front of all others that declare them.
  const std::vector<Value>& numbers() const { return numbers_; }
  std::vector<std::string> declared_numbers(const Place& place) const;

 private:
  std::string position(int s, const Place& place) const;
  std::string made_divisor(int s) const;
  std::string divisor_of_number(int s) const;

  const Graph& graph_;
  const Kernel& kernel_;
  const Dialect dialect_;
  std::vector<Value> numbers_;
  std::map<Value, int> number_of_;
};

}  // namespace fusewright
