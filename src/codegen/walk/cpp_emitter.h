#pragma once
// The writer of C++ kernels, in three files: cpp_kernel.cpp (skeleton, rows, entry), cpp_stage.cpp (passes over the
// elements) and cpp_window.cpp (pooling).
#include <set>
#include <string>
#include <vector>

#include "codegen/walk/emitter.h"

namespace fusewright {

class CppEmitter : Emitter {
 public:
  CppEmitter(const Graph& graph, const Kernel& kernel)
      : Emitter(graph, kernel, choose_walk(graph, kernel), Dialect::cpp) {}

  KernelCode run() {
    write_header();
    if (has_rows()) write_row_state();
    for (int p = 0; p < nest().stages; ++p) {
      if (has_rows()) write_row_code(p);
      write_stage(p);
    }
    if (has_rows()) write_row_code(nest().stages);
    write_entry();
    code_.text = std::move(out_);
    return std::move(code_);
  }

 private:
  void write_axes(const char* name, const std::vector<int>& axes) {
    std::string list;
    for (int a : axes) list += (list.empty() ? "" : ", ") + std::to_string(a);
    line("constexpr int ", name, "[] = {", list.empty() ? "0" : list, "};");
  }

  void write_header() {
    line("namespace {");
    line("constexpr int AXES = ", std::to_string(std::max(axis_count(), 1)),
         ", OPERANDS = ", std::to_string(std::max<size_t>(code_.operands.size(), 1)),
         ", KEPT = ", std::to_string(nest().kept.size()), ", REDUCED = ", std::to_string(nest().reduced.size()), ";");
    write_axes("kept_axes", nest().kept);
    write_axes("reduced_axes", nest().reduced);
    line();
  }

  std::string stride(int operand, int a) const {
    return "a.strides[" + std::to_string(operand) + " * AXES + " + std::to_string(a) + "]";
  }
  std::string lane() const { return is_column() ? "[i]" : ""; }

  // An element of a line: `first_` of them for what is the same for the whole line, or each in a loop over i.
  struct At : Place {
    At(const CppEmitter& emitter, const char* element) : emitter(emitter), element(element) {}
    std::string given(int s) const override { return emitter.given(s); }
    std::string load(int s) const override { return emitter.load(s, element); }
    std::string coordinate(int a) const override { return emitter.coordinate(a, element); }
    const CppEmitter& emitter;
    const std::string element;
  };
  const Place& here() const override { return each_; }
  std::string given(int s) const;
  std::string load(int s, const std::string& element) const;
  std::string coordinate(int a, const std::string& element) const;

  // ---- rows: cpp_kernel.cpp --------------------------------------------------------------------------------

  std::string accumulator_type(int s) const;
  std::string combine(int s, const std::string& total, const std::string& value) const;
  bool tracks_nan(int s) const { return is_extreme(node(s).op) && is_float(dtype(s)); }
  std::string lanes_suffix(bool array) const { return array ? "[fw::lanes]" : ""; }
  void write_row_state();
  template <class Body>
  void write_over_lanes(const char* end, Body body) {
    if (!is_column()) return body("");
    open("for (int i = 0; i < ", end, "; ++i)");
    body("[i]");
    close();
  }
  void write_row_code(int p);
  std::string row_value(int s) const;
  std::string row_index(int s, int operand) const;
  std::string only_once(int s) const;
  void write_row_store(int s);

  // ---- stages: cpp_stage.cpp -------------------------------------------------------------------------------

  void write_stage(int p);
  void write_row_values(const std::vector<int>& steps, int p);
  void write_line_stage(int p, const std::vector<int>& steps);
  void write_column_stage(int p, const std::vector<int>& steps);
  void declare_buffers(int s, int p);
  void write_scalars(int p, const std::vector<int>& steps);
  void write_line(int p, const std::vector<int>& steps);
  void write_inner_loop(int p, const std::vector<int>& steps);
  struct Parameter {
    std::string type, name;
  };
  std::vector<Parameter> loop_parameters(int p, const std::vector<int>& steps) const;

  // ---- windows: cpp_window.cpp -----------------------------------------------------------------------------

  bool window_line(int s) const;
  void write_window(int s, const std::string& n);
  std::string base_position(const Axis& t) const { return t.base < 0 ? "0" : "c[" + std::to_string(t.base) + "]"; }
  void open_tap(int s, size_t k, const std::string& n);
  std::string tap_position(int a) const;
  void write_window_body(int s, const std::string& n, const std::string& best, int index, bool gather);
  void write_tap_load(int window, int s, const std::string& begin, const std::string& end);
  std::string average_divisor(int s, bool gradient) const;
  void write_average(int s, const std::string& n);

  // ---- entry: cpp_kernel.cpp -------------------------------------------------------------------------------

  void write_entry();
  void write_place();

  const At first_{*this, "0"}, each_{*this, "i"};
  std::vector<int> needed_;  // steps of the stage that is being written
  std::string functions_;
  bool in_stage_ = false;  // row values are read from registers there
};

}  // namespace fusewright
