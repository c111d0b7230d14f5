#pragma once
// What the writers of C++ and of CUDA kernels share: questions about the kernel's steps, the text of their values, and
// the lines of the file that is being written.
#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "codegen/expressions.h"
#include "codegen/kernel_code.h"

namespace fusewright {

class Emitter {
 protected:
  using Role = Step::Role;

  // `wide_sides`: floating-point sums on the side are added up in f64.
  Emitter(const Graph& graph, const Kernel& kernel, LoopNest nest, bool wide_sides);
  ~Emitter() = default;

  // ---- the kernel ------------------------------------------------------------------------------------------

  const LoopNest& nest() const { return code_.nest; }
  bool has_rows() const { return nest().kind != LoopNest::Kind::pointwise; }
  bool is_column() const { return nest().kind == LoopNest::Kind::column; }
  const Step& step(int s) const { return kernel_.steps[static_cast<size_t>(s)]; }
  const Axis& axis(int a) const { return kernel_.axes[static_cast<size_t>(a)]; }
  const Node& node(int s) const { return graph_[step(s).value]; }
  DType dtype(int s) const { return node(s).type.dtype; }
  bool is_window_index(int s) const;
  std::string reg(int s) const { return is_window_index(s) ? "int" : register_type(dtype(s)); }
  int count() const { return static_cast<int>(kernel_.steps.size()); }
  int axis_count() const { return static_cast<int>(kernel_.axes.size()); }
  int stage(int s) const { return nest().stage[static_cast<size_t>(s)]; }
  bool row_level(int s) const { return nest().row_level[static_cast<size_t>(s)]; }
  bool inner_varying(int s) const { return nest().inner >= 0 && varies(step(s), nest().inner); }
  bool carried(int s) const { return nest().carried[static_cast<size_t>(s)]; }
  bool row_array(int s) const { return is_column() && inner_varying(s); }
  bool in_window(int s) const;
  bool has_sides() const;

  std::vector<int> reduces() const;          // of the kernel's own reduction
  std::vector<int> reduces_in(int p) const;  // whose operand pass p computes
  std::vector<int> sides_in(int p) const;    // sums on the side that pass p adds to
  std::vector<int> needed_in(int p) const;   // steps that pass p computes for each element
  bool stored_in(int s, int p) const;        // pass p writes it to memory

  // ---- text ------------------------------------------------------------------------------------------------

  template <class... Parts>
  void line(const Parts&... parts) {
    out_.append(static_cast<size_t>(indent_) * 2, ' ');
    (out_.append(parts), ...);
    out_ += '\n';
  }
  template <class... Parts>
  void open(const Parts&... parts) {
    line(parts..., " {");
    ++indent_;
  }
  void close(const char* after = "") {
    --indent_;
    line("}", after);
  }

  // The text of a step's value where it is used.
  virtual std::string use(int s) const = 0;
  // The text of a scalar step: a literal, or the name of a local that holds the run-time number.
  std::string number(int s) const;
  std::string compute(int s) const;
  // The value of step s, given as text, in the precision that the step has.
  std::string rounded(int s, const std::string& value) const;
  std::string pointer(int operand) const;  // typed

  // ---- reductions ------------------------------------------------------------------------------------------

  static bool is_extreme(Op op) { return op == Op::amax || op == Op::amin; }
  std::string identity(int s, DType type) const;

  // ---- windows ---------------------------------------------------------------------------------------------

  const Axis& tap(int s, size_t k) const { return axis(step(s).taps[k]); }
  std::vector<int> window_steps(int window) const;
  int inner_tap(int window) const;  // the axis of the tap that moves along the line, or -1
  std::string tap_number(int s) const;
  // What an average divides by, given where the window stands and the extent it is cut off at, for each dimension.
  template <class Position, class Extent>
  std::string divisor(int s, Position position, Extent extent) const {
    const Node& pool = node(s);
    if (pool.integer("divisor") != 0) return literal(static_cast<double>(pool.integer("divisor")), dtype(s));
    std::string text = "static_cast<" + reg(s) + ">(1";
    for (size_t k = 0; k < step(s).taps.size(); ++k) {
      const Axis& t = tap(s, k);
      text += " * fw::pool_count(" + position(k) + ", " + std::to_string(t.kernel) + ", " + std::to_string(t.stride) +
              ", " + std::to_string(t.padding) + ", " + extent(k) + ", " +
              (pool.integer("count_include_pad") ? "true" : "false") + ")";
    }
    return text + ")";
  }

  struct Operands {
    int load, store;
  };
  const Graph& graph_;
  const Kernel& kernel_;
  KernelCode code_;
  std::vector<Operands> operand_of_;
  std::map<Value, int> number_of_;
  std::string out_;
  int indent_ = 0;

 private:
  int add_operand(const Step& step, bool store, bool wide_sides);
  void add_number(const Step& step);
};

}  // namespace fusewright
