#pragma once
// The writer of C++ kernels, in three files: cpp_kernel.cpp (skeleton, rows, entry), cpp_stage.cpp (passes over the
// elements) and cpp_window.cpp (pooling).
#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "codegen/expressions.h"
#include "codegen/kernel_code.h"

namespace fusewright {

class CppEmitter {
  using Role = Step::Role;

 public:
  CppEmitter(const Graph& graph, const Kernel& kernel) : graph_(graph), kernel_(kernel) {
    code_.nest = choose_schedule(graph, kernel);
    code_.axes = kernel.axes;
    code_.name = kernel_name(graph, kernel, nest().name());
    code_.origins = kernel_origins(graph, kernel);
    operand_of_.assign(kernel.steps.size(), {-1, -1});
    for (size_t s = 0; s < kernel.steps.size(); ++s) {
      const Step& step = kernel.steps[s];
      if (step.role == Role::load) operand_of_[s].load = add_operand(step, false);
      if (step.stored) operand_of_[s].store = add_operand(step, true);
      if (step.role == Role::scalar) add_number(step);
    }
  }

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
  const LoopNest& nest() const { return code_.nest; }
  bool has_rows() const { return nest().kind != LoopNest::Kind::pointwise; }
  bool is_column() const { return nest().kind == LoopNest::Kind::column; }
  const Step& step(int s) const { return kernel_.steps[static_cast<size_t>(s)]; }
  const Axis& axis(int a) const { return kernel_.axes[static_cast<size_t>(a)]; }
  const Node& node(int s) const { return graph_[step(s).value]; }
  DType dtype(int s) const { return node(s).type.dtype; }
  // The index of a pooling window is an int, as wide as the floats beside it, so that loops over both vectorise.
  bool is_window_index(int s) const {
    if (node(s).op == Op::max_pool_index) return true;
    return std::any_of(kernel_.steps.begin(), kernel_.steps.end(), [&](const Step& user) {
      return graph_[user.value].op == Op::max_pool_grad && user.operands.size() == 2 && user.operands[1] == s;
    });
  }
  std::string reg(int s) const { return is_window_index(s) ? "int" : register_type(dtype(s)); }
  int count() const { return static_cast<int>(kernel_.steps.size()); }
  int axis_count() const { return static_cast<int>(kernel_.axes.size()); }
  bool row_level(int s) const { return nest().row_level[static_cast<size_t>(s)]; }
  bool inner_varying(int s) const { return nest().inner >= 0 && varies(step(s), nest().inner); }
  bool in_window(int s) const {
    for (const auto& list : step(s).dims)
      for (int a : list)
        if (axis(a).tap) return true;
    return false;
  }

  int add_operand(const Step& step, bool store) {
    DType type = step.side ? compute_type(graph_.dtype(step.value)) : graph_.dtype(step.value);
    code_.operands.push_back({step.value, store, type, step.dims, step.side});
    return static_cast<int>(code_.operands.size()) - 1;
  }
  void add_number(const Step& step) {
    const Node& node = graph_[step.value];
    if (node.op == Op::constant && !node.has("runtime")) return;
    if (!number_of_.count(step.value)) {
      number_of_[step.value] = static_cast<int>(code_.numbers.size());
      code_.numbers.push_back(step.value);
    }
  }

  // ---- text ------------------------------------------------------------------------------------------

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
  std::string pointer(int operand) const {
    const KernelCode::Operand& o = code_.operands[static_cast<size_t>(operand)];
    std::string type = std::string(o.store ? "" : "const ") + storage_type(o.dtype) + "*";
    return "static_cast<" + type + ">(a.pointers[" + std::to_string(operand) + "])";
  }
  std::string lane() const { return is_column() ? "[i]" : ""; }
  bool row_array(int s) const { return is_column() && inner_varying(s); }

  // The text of a step's value where it is used.
  std::string use(int s) const {
    const Step& step = this->step(s);
    if (step.role == Role::scalar) {
      const Node& source = graph_[step.value];
      if (source.op == Op::constant && !source.has("runtime")) return literal(source.number("value"), dtype(s));
      return "number" + std::to_string(number_of_.at(step.value));
    }
    if (row_level(s)) return (in_stage_ ? "r" : "row.v") + std::to_string(s) + (row_array(s) ? "[i]" : "");
    if (step.role == Role::window && inner_varying(s)) return "w" + std::to_string(s) + "[i]";
    return "v" + std::to_string(s);
  }

  std::string compute(int s) const {
    std::vector<std::string> arguments;
    for (int operand : step(s).operands) arguments.push_back(use(operand));
    return expression(graph_, step(s), arguments);
  }

  // Scalars as locals: a load inside the loop would keep the compiler from vectorising it.
  void write_numbers() {
    for (const auto& [value, number] : number_of_)
      line("[[maybe_unused]] const ", register_type(graph_.dtype(value)), " number", std::to_string(number),
           " = static_cast<", register_type(graph_.dtype(value)), ">(a.numbers[", std::to_string(number), "]);");
  }

  // ---- rows: cpp_kernel.cpp --------------------------------------------------------------------------------

  static bool is_extreme(Op op) { return op == Op::amax || op == Op::amin; }
  std::string accumulator_type(int s) const;
  std::string identity(int s, DType type) const;
  std::string combine(int s, const std::string& total, const std::string& value) const;
  bool tracks_nan(int s) const { return is_extreme(node(s).op) && is_float(dtype(s)); }
  std::vector<int> reduces() const;
  std::vector<int> sides_in(int p) const;
  std::vector<int> reduces_in(int p) const;
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
  void write_row_store(int s);

  // ---- stages: cpp_stage.cpp -------------------------------------------------------------------------------

  std::vector<int> needed_in(int p) const;
  bool stored_in(int s, int p) const;
  void write_stage(int p);
  void write_row_values(const std::vector<int>& steps, int p);
  void write_line_stage(int p, const std::vector<int>& steps, const std::string& base);
  void write_column_stage(int p, const std::vector<int>& steps, const std::string& base);
  void declare_buffers(int s, int p);
  void write_scalars(int p, const std::vector<int>& steps);
  std::string scalar_value(int s) const;
  std::string position(int s, const std::string& element) const;
  void write_line(int p, const std::vector<int>& steps);
  void write_inner_loop(int p, const std::vector<int>& steps);
  struct Parameter {
    std::string type, name;
  };
  std::vector<Parameter> loop_parameters(int p, const std::vector<int>& steps) const;

  // ---- windows: cpp_window.cpp -----------------------------------------------------------------------------

  const Axis& tap(int s, size_t k) const { return axis(step(s).taps[k]); }
  std::vector<int> window_steps(int window) const;
  int inner_tap(int window) const;
  bool window_line(int s) const;
  void write_window(int s, const std::string& n);
  std::string base_position(const Axis& t) const { return t.base < 0 ? "0" : "c[" + std::to_string(t.base) + "]"; }
  void open_tap(int s, size_t k, bool inner, const std::string& n);
  void write_window_body(int s, const std::string& n, const std::string& best, int index, bool gather);
  void write_tap_load(int window, int s, const std::string& begin, const std::string& end);
  std::string tap_number(int s) const;
  std::string divisor(int s, bool gradient) const;
  void write_average(int s, const std::string& n);

  // ---- entry: cpp_kernel.cpp -------------------------------------------------------------------------------

  void write_entry();
  bool has_sides() const;
  void write_place();

  struct Operands {
    int load, store;
  };
  const Graph& graph_;
  const Kernel& kernel_;
  KernelCode code_;
  std::vector<Operands> operand_of_;
  std::map<Value, int> number_of_;
  std::vector<int> needed_;  // steps of the stage that is being written
  std::string out_, functions_;
  bool in_stage_ = false;  // row values are read from registers there
  int indent_ = 0;
};

}  // namespace fusewright
