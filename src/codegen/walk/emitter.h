#pragma once
// What the writers of C++ and of CUDA kernels that walk share: questions about the walk, and the places of its elements
// (codegen/element.h computes their values).
#include <string>
#include <vector>

#include "codegen/element.h"
#include "codegen/kernel_code.h"
#include "codegen/lines.h"

namespace fusewright {

class Emitter : protected Lines {
 protected:
  using Role = Step::Role;

  // Floating-point sums on the side are added up in f64 on the CPU.
  Emitter(const Graph& graph, const Kernel& kernel, LoopNest nest, Dialect dialect);
  ~Emitter() = default;

  // ---- the kernel ------------------------------------------------------------------------------------------

  const LoopNest& nest() const { return code_.nest; }
  bool has_rows() const { return nest().kind != LoopNest::Kind::pointwise; }
  bool is_column() const { return nest().kind == LoopNest::Kind::column; }
  const Step& step(int s) const { return element_.step(s); }
  const Axis& axis(int a) const { return kernel_.axes[static_cast<size_t>(a)]; }
  const Node& node(int s) const { return element_.node(s); }
  DType dtype(int s) const { return element_.dtype(s); }
  std::string reg(int s) const { return element_.reg(s); }
  int count() const { return element_.count(); }
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

  // The place of the element that is being written: element i of a vector or line.
  virtual const Place& here() const = 0;
  std::string use(int s) const { return element_.use(s, here()); }
  std::string value(int s) const { return element_.value(s, here()); }
  std::string declaration(int s) const { return element_.declaration(s, here()); }
  std::string stored(int s) const { return element_.stored(s, here()); }
  std::string rounded(int s, const std::string& text) const { return element_.rounded(s, text); }
  void write_numbers() {
    for (const std::string& declaration : element_.declared_numbers(here())) line(declaration);
  }
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
  const Element element_;
  KernelCode code_;
  std::vector<Operands> operand_of_;

 private:
  int add_operand(const Step& step, bool store, Dialect dialect);
};

}  // namespace fusewright
