// The C++ dialect: loops over lines for the system's compiler to vectorise.
//
// Every kernel has the same skeleton. A *row* is one result of the reduction (or, in a column kernel, a block of
// neighbouring ones); `row_p` is the code between passes, `stage_p` one pass over the elements. A pointwise kernel is
// a single stage without rows. When there are few rows the executor splits stages over threads and calls them one by
// one; otherwise the entry runs whole rows, so that later stages find their data in the cache.
#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "codegen/expressions.h"
#include "codegen/kernel_code.h"
#include "embedded_kernels.h"

namespace fusewright {

const std::string& cpp_prelude() {
  static const std::string text =
      std::string(embedded_prelude) + "\n" + embedded_math + "\n" + embedded_cpu_loops + "\n";
  return text;
}

namespace {

using Role = Step::Role;
using std::to_string;

class CppEmitter {
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

  // ---- text --------------------------------------------------------------------------------------------------

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
    for (int a : axes) list += (list.empty() ? "" : ", ") + to_string(a);
    line("constexpr int ", name, "[] = {", list.empty() ? "0" : list, "};");
  }

  void write_header() {
    line("namespace {");
    line("constexpr int AXES = ", to_string(std::max(axis_count(), 1)),
         ", OPERANDS = ", to_string(std::max<size_t>(code_.operands.size(), 1)),
         ", KEPT = ", to_string(nest().kept.size()), ", REDUCED = ", to_string(nest().reduced.size()), ";");
    write_axes("kept_axes", nest().kept);
    write_axes("reduced_axes", nest().reduced);
    line();
  }

  std::string stride(int operand, int a) const {
    return "a.strides[" + to_string(operand) + " * AXES + " + to_string(a) + "]";
  }
  std::string pointer(int operand) const {
    const KernelCode::Operand& o = code_.operands[static_cast<size_t>(operand)];
    std::string type = std::string(o.store ? "" : "const ") + storage_type(o.dtype) + "*";
    return "static_cast<" + type + ">(a.pointers[" + to_string(operand) + "])";
  }
  std::string lane() const { return is_column() ? "[i]" : ""; }
  bool row_array(int s) const { return is_column() && inner_varying(s); }

  // The text of a step's value where it is used.
  std::string use(int s) const {
    const Step& step = this->step(s);
    if (step.role == Role::scalar) {
      const Node& source = graph_[step.value];
      if (source.op == Op::constant && !source.has("runtime")) return literal(source.number("value"), dtype(s));
      return "number" + to_string(number_of_.at(step.value));
    }
    if (row_level(s)) return (in_stage_ ? "r" : "row.v") + to_string(s) + (row_array(s) ? "[i]" : "");
    if (step.role == Role::window && inner_varying(s)) return "w" + to_string(s) + "[i]";
    return "v" + to_string(s);
  }

  std::string compute(int s) const {
    std::vector<std::string> arguments;
    for (int operand : step(s).operands) arguments.push_back(use(operand));
    return expression(graph_, step(s), arguments);
  }

  // Scalars as locals: a load inside the loop would keep the compiler from vectorising it.
  void write_numbers() {
    for (const auto& [value, number] : number_of_)
      line("[[maybe_unused]] const ", register_type(graph_.dtype(value)), " number", to_string(number),
           " = static_cast<", register_type(graph_.dtype(value)), ">(a.numbers[", to_string(number), "]);");
  }

  // ---- rows --------------------------------------------------------------------------------------------------

  static bool is_extreme(Op op) { return op == Op::amax || op == Op::amin; }
  std::string accumulator_type(int s) const {
    if (is_extreme(node(s).op)) return reg(s);
    return is_float(dtype(s)) ? "double" : "fw::i64";
  }
  std::string identity(int s, DType type) const {
    switch (node(s).op) {
      case Op::sum:
        return literal(0, type);
      case Op::prod:
        return literal(1, type);
      default:
        break;
    }
    bool largest = node(s).op == Op::amax;
    if (type == DType::b8) return literal(largest ? 0 : 1, type);
    if (is_float(type)) return literal(largest ? -INFINITY : INFINITY, type);
    return largest ? "(-9223372036854775807LL - 1)" : "9223372036854775807LL";
  }
  // accumulate `value` into `total`
  std::string combine(int s, const std::string& total, const std::string& value) const {
    switch (node(s).op) {
      case Op::sum:
        return total + " += " + value + ";";
      case Op::prod:
        return total + " *= " + value + ";";
      case Op::amax:
        return total + " = " + value + " > " + total + " ? " + value + " : " + total + ";";
      default:
        return total + " = " + value + " < " + total + " ? " + value + " : " + total + ";";
    }
  }
  bool tracks_nan(int s) const { return is_extreme(node(s).op) && is_float(dtype(s)); }

  std::vector<int> reduces() const {
    std::vector<int> result;
    for (int s = 0; s < count(); ++s)
      if (step(s).role == Role::reduce && !step(s).side) result.push_back(s);
    return result;
  }
  std::vector<int> sides_in(int p) const {
    std::vector<int> result;
    for (int s = 0; s < count(); ++s)
      if (step(s).side && nest().stage[static_cast<size_t>(s)] == p) result.push_back(s);
    return result;
  }
  std::vector<int> reduces_in(int p) const {
    std::vector<int> result;
    for (int s : reduces())
      if (nest().stage[static_cast<size_t>(s)] == p + 1) result.push_back(s);
    return result;
  }
  std::string lanes_suffix(bool array) const { return array ? "[fw::lanes]" : ""; }

  void write_row_state() {
    open("struct Row");
    for (int s = 0; s < count(); ++s)
      if (row_level(s)) line(reg(s), " v", to_string(s), lanes_suffix(row_array(s)), ";");
    line("fw::i64 offset[OPERANDS];");
    line("fw::i64 first;  // innermost position of a column block, and how many columns it has");
    line("int n;");
    close(";");
    open("struct Sums");
    for (int s : reduces()) {
      line(accumulator_type(s), " a", to_string(s), lanes_suffix(is_column()), ";");
      if (tracks_nan(s)) line("int n", to_string(s), lanes_suffix(is_column()), ";");
    }
    close(";");
    open("FW_FN void clear(Sums& sums)");
    write_over_lanes("fw::lanes", [&](const std::string& i) {
      for (int s : reduces()) {
        DType type = is_extreme(node(s).op) ? dtype(s) : is_float(dtype(s)) ? DType::f64 : DType::i64;
        line("sums.a", to_string(s), i, " = ", identity(s, type), ";");
        if (tracks_nan(s)) line("sums.n", to_string(s), i, " = 0;");
      }
    });
    close();
    open("FW_FN void merge(Sums& sums, const Sums& part)");
    write_over_lanes("fw::lanes", [&](const std::string& i) {
      for (int s : reduces()) {
        line(combine(s, "sums.a" + to_string(s) + i, "part.a" + to_string(s) + i));
        if (tracks_nan(s)) line("sums.n", to_string(s), i, " |= part.n", to_string(s), i, ";");
      }
    });
    close();
    line();
  }

  template <class Body>
  void write_over_lanes(const char* end, Body body) {
    if (!is_column()) return body("");
    open("for (int i = 0; i < ", end, "; ++i)");
    body("[i]");
    close();
  }

  // Values of the whole row that are known before pass p: results of the reductions of pass p - 1 and what follows.
  void write_row_code(int p) {
    open("FW_FN void row_", to_string(p), "(const fw::Args& a, Row& row, const Sums& sums)");
    line("(void)a, (void)row, (void)sums;");
    write_numbers();
    write_over_lanes("row.n", [&](const std::string&) {
      for (int s = 0; s < count(); ++s) {
        if (!row_level(s) || nest().stage[static_cast<size_t>(s)] != p) continue;
        line(use(s), " = ", row_value(s), ";");
        if (step(s).stored) write_row_store(s);
      }
    });
    close();
  }

  std::string row_value(int s) const {
    if (step(s).role == Role::compute) return compute(s);
    if (step(s).role == Role::reduce) {
      std::string name = to_string(s) + lane();
      std::string value = "static_cast<" + reg(s) + ">(sums.a" + name + ")";
      return tracks_nan(s) ? "sums.n" + name + " ? " + literal(NAN, dtype(s)) + " : " + value : value;
    }
    int operand = operand_of_[static_cast<size_t>(s)].load;
    return "fw::convert<" + reg(s) + ">(" + pointer(operand) + "[" + row_index(s, operand) + "])";
  }
  std::string row_index(int s, int operand) const {
    std::string index = "row.offset[" + to_string(operand) + "]";
    return row_array(s) ? index + " + (row.first + i) * " + stride(operand, nest().inner) : index;
  }
  void write_row_store(int s) {
    int operand = operand_of_[static_cast<size_t>(s)].store;
    line(pointer(operand), "[", row_index(s, operand), "] = fw::convert<", storage_type(dtype(s)), ">(", use(s), ");");
  }

  // ---- stages ------------------------------------------------------------------------------------------------

  // Steps that pass p computes for each element: what its reductions and stores need, without row-level values.
  std::vector<int> needed_in(int p) const {
    std::vector<bool> needed(static_cast<size_t>(count()));
    std::vector<int> todo;
    for (int s = 0; s < count(); ++s)
      if (step(s).stored && !row_level(s) && nest().stage[static_cast<size_t>(s)] == p && step(s).role != Role::reduce)
        todo.push_back(s);
    for (int s : reduces_in(p)) todo.push_back(step(s).operands[0]);
    for (int s : sides_in(p)) todo.push_back(step(s).operands[0]);
    while (!todo.empty()) {
      int s = todo.back();
      todo.pop_back();
      if (row_level(s) || needed[static_cast<size_t>(s)] || step(s).role == Role::scalar) continue;
      needed[static_cast<size_t>(s)] = true;
      todo.insert(todo.end(), step(s).operands.begin(), step(s).operands.end());
    }
    std::vector<int> result;
    for (int s = 0; s < count(); ++s)
      if (needed[static_cast<size_t>(s)]) result.push_back(s);
    return result;
  }
  bool stored_in(int s, int p) const {
    return step(s).stored && !row_level(s) && nest().stage[static_cast<size_t>(s)] == p;
  }

  void write_stage(int p) {
    needed_ = needed_in(p);
    const std::vector<int>& steps = needed_;
    const char* row = has_rows() ? ", const Row& row, Sums& sums" : "";
    std::string before = std::exchange(out_, "");
    open("static void stage_", to_string(p), "(const fw::Args& a, fw::i64* c, fw::i64 begin, fw::i64 end", row, ")");
    if (has_rows()) line("(void)row, (void)sums;");
    in_stage_ = true;
    write_numbers();
    write_row_values(steps, p);
    line("fw::i64 offset[OPERANDS];");
    if (!has_rows()) line("const fw::i64 base[OPERANDS] = {};");
    std::string base = has_rows() ? "row.offset" : "base";
    for (int s : steps) declare_buffers(s, p);
    if (is_column())
      write_column_stage(p, steps, base);
    else
      write_line_stage(p, steps, base);
    close();
    line();
    in_stage_ = false;
    out_ = before + std::exchange(functions_, "") + out_;
  }

  // What the loop reads of the row, in registers.
  void write_row_values(const std::vector<int>& steps, int p) {
    std::set<int> used;
    for (int s : steps)
      for (int operand : step(s).operands) used.insert(operand);
    for (int s : reduces_in(p)) used.insert(step(s).operands[0]);
    for (int s : sides_in(p)) used.insert(step(s).operands[0]);
    for (int s : used)
      if (row_level(s))
        line("const ", reg(s), row_array(s) ? "*" : "", " r", to_string(s), " = row.v", to_string(s), ";");
  }

  // Pointwise and row: elements [begin, end) of the lines.
  void write_line_stage(int p, const std::vector<int>& steps, const std::string& base) {
    std::string inner = nest().inner >= 0 ? "a.sizes[" + to_string(nest().inner) + "]" : "1";
    line("const fw::i64 inner = ", inner, ";");
    line("fw::i64 at = fw::start<REDUCED>(a.sizes, reduced_axes, begin, inner, c);");
    open("for (fw::i64 left = end - begin; left > 0;)");
    line("const fw::i64 stop = fw::min_of(inner, at + left);");
    line("fw::offsets<REDUCED, OPERANDS, AXES>(a.strides, reduced_axes, c, ", base, ", offset);");
    write_scalars(p, steps);
    open("for (fw::i64 first = at; first < stop; first += fw::chunk)");
    line("const int n = static_cast<int>(fw::min_of(fw::chunk, stop - first));");
    write_line(p, steps);
    close();
    line("left -= stop - at;");
    line("at = 0;");
    line("fw::advance<REDUCED>(a.sizes, reduced_axes, c);");
    close();
  }

  // Column: rows [begin, end) of a block of row.n columns.
  void write_column_stage(int p, const std::vector<int>& steps, const std::string& base) {
    line("const fw::i64 first = row.first;");
    line("const int n = row.n;");
    for (int s : reduces_in(p)) {
      line(reg(s), " f", to_string(s), "[fw::lanes];");
      if (tracks_nan(s)) line("int g", to_string(s), "[fw::lanes];");
    }
    line("fw::start<REDUCED>(a.sizes, reduced_axes, begin, 1, c);");
    open("for (fw::i64 r = begin; r < end;)");
    line("const fw::i64 stop = fw::min_of(end, r + fw::flush_every);");
    if (!reduces_in(p).empty()) {
      open("for (int i = 0; i < n; ++i)");
      for (int s : reduces_in(p)) {
        line("f", to_string(s), "[i] = ", identity(s, dtype(s)), ";");
        if (tracks_nan(s)) line("g", to_string(s), "[i] = 0;");
      }
      close();
    }
    open("for (; r < stop; ++r)");
    line("fw::offsets<REDUCED, OPERANDS, AXES>(a.strides, reduced_axes, c, ", base, ", offset);");
    write_scalars(p, steps);
    write_line(p, steps);
    line("fw::advance<REDUCED>(a.sizes, reduced_axes, c);");
    close();
    if (!reduces_in(p).empty()) {
      open("for (int i = 0; i < n; ++i)");
      for (int s : reduces_in(p)) {
        line(combine(s, "sums.a" + to_string(s) + "[i]", "f" + to_string(s) + "[i]"));
        if (tracks_nan(s)) line("sums.n", to_string(s), "[i] |= g", to_string(s), "[i];");
      }
      close();
    }
    close();
  }

  void declare_buffers(int s, int p) {
    std::string name = to_string(s), size = is_column() ? "fw::lanes" : "fw::chunk";
    if (step(s).role == Role::load && inner_varying(s) && !in_window(s))
      line(storage_type(dtype(s)), " in", name, "[", size, "];");
    if (step(s).role == Role::load && in_window(s) && window_line(s)) line(reg(s), " tap", name, "[", size, "];");
    if (stored_in(s, p) && inner_varying(s)) line(storage_type(dtype(s)), " out", name, "[", size, "];");
    if (step(s).role == Role::window) line(reg(s), " w", name, "[", size, "];");
  }

  // Steps that do not change along the line.
  void write_scalars(int p, const std::vector<int>& steps) {
    for (int s : steps) {
      if (inner_varying(s) || in_window(s)) continue;
      if (step(s).role == Role::window) {
        open("");
        line("const fw::i64 first = 0;  // a window on a single element");
        line("(void)first;");
        write_window(s, "1");
        close();
        line("const ", reg(s), " v", to_string(s), " = w", to_string(s), "[0];");
      } else {
        line("const ", reg(s), " v", to_string(s), " = ", scalar_value(s), ";");
      }
      if (stored_in(s, p)) {
        int operand = operand_of_[static_cast<size_t>(s)].store;
        line(pointer(operand), "[offset[", to_string(operand), "]] = fw::convert<", storage_type(dtype(s)), ">(v",
             to_string(s), ");");
      }
    }
  }
  std::string scalar_value(int s) const {
    if (step(s).role == Role::compute) return compute(s);
    if (step(s).role == Role::iota) return position(s, "0");
    int operand = operand_of_[static_cast<size_t>(s)].load;
    return "fw::convert<" + reg(s) + ">(" + pointer(operand) + "[offset[" + to_string(operand) + "]])";
  }
  // Linear index of an iota over its axes.
  std::string position(int s, const std::string& element) const {
    std::string text = "fw::i64(0)";
    for (int a : step(s).dims[0]) {
      std::string here = a == nest().inner ? "(first + " + element + ")" : "c[" + to_string(a) + "]";
      text = "(" + text + ") * a.sizes[" + to_string(a) + "] + " + here;
    }
    return text;
  }

  void write_line(int p, const std::vector<int>& steps) {
    for (int s : steps) {
      if (!inner_varying(s) || in_window(s)) continue;
      int load = operand_of_[static_cast<size_t>(s)].load, store = operand_of_[static_cast<size_t>(s)].store;
      if (step(s).role == Role::load) {
        std::string st = stride(load, nest().inner);
        line("const ", storage_type(dtype(s)), "* p", to_string(s), " = fw::line_in(", pointer(load), " + offset[",
             to_string(load), "] + first * ", st, ", ", st, ", n, in", to_string(s), ");");
      }
      if (step(s).role == Role::window) write_window(s, "n");
      if (stored_in(s, p)) {
        std::string st = stride(store, nest().inner);
        line(storage_type(dtype(s)), "* to", to_string(s), " = ", pointer(store), " + offset[", to_string(store),
             "] + first * ", st, ";");
        line(storage_type(dtype(s)), "* q", to_string(s), " = ", st, " == 1 ? to", to_string(s), " : out", to_string(s),
             ";");
      }
    }
    for (int s : sides_in(p)) {
      int operand = operand_of_[static_cast<size_t>(s)].store;
      line(reg(s), "* side", to_string(s), " = ", pointer(operand), " + offset[", to_string(operand), "]",
           inner_varying(s) ? " + first" : "", ";");
    }
    write_inner_loop(p, steps);
    for (int s : steps)
      if (inner_varying(s) && !in_window(s) && stored_in(s, p))
        line("fw::line_out(to", to_string(s), ", ", stride(operand_of_[static_cast<size_t>(s)].store, nest().inner),
             ", n, q", to_string(s), ");");
  }

  // The vectorised loop is a function of its own: with nothing around it, the compiler has no reason to split it into
  // copies for cases it found in the code around, some of which it then fails to vectorise.
  void write_inner_loop(int p, const std::vector<int>& steps) {
    std::vector<int> reductions = reduces_in(p);
    bool any = !reductions.empty() || !sides_in(p).empty();
    for (int s : steps) any |= inner_varying(s) && !in_window(s) && stored_in(s, p);
    if (!any) return;
    std::vector<Parameter> parameters = loop_parameters(p, steps);
    std::string clauses, results;
    if (!is_column()) {
      for (int s : reductions) {
        const char* op = node(s).op == Op::sum    ? "+"
                         : node(s).op == Op::prod ? "*"
                         : node(s).op == Op::amax ? "max"
                                                  : "min";
        clauses += " reduction(" + std::string(op) + ":s" + to_string(s) + ")";
        if (tracks_nan(s)) clauses += " reduction(|:g" + to_string(s) + ")";
      }
    }
    for (int s : sides_in(p))
      if (!inner_varying(s)) clauses += " reduction(+:s" + to_string(s) + ")";
    std::string call, signature;
    for (const Parameter& parameter : parameters) {
      call += ", " + parameter.name;
      signature += ", " + parameter.type + " " + parameter.name;
    }
    if (!is_column() && !reductions.empty()) {
      call += ", sums";
      signature += ", Sums& sums";
    }
    line("loop_", to_string(p), "(n", call, ");");

    // The function itself stands before the stage.
    std::swap(out_, functions_);
    int indent = std::exchange(indent_, 0);
    open("__attribute__((noinline)) static void loop_", to_string(p), "(const int n", signature, ")");
    if (!is_column()) {
      for (int s : reductions) {
        line(reg(s), " s", to_string(s), " = ", identity(s, dtype(s)), ";");
        if (tracks_nan(s)) line("int g", to_string(s), " = 0;");
      }
    }
    for (int s : sides_in(p))
      if (!inner_varying(s)) line(reg(s), " s", to_string(s), " = ", literal(0, dtype(s)), ";");
    out_ += "#pragma omp simd" + clauses + "\n";
    open("for (int i = 0; i < n; ++i)");
    for (int s : steps) {
      if (!inner_varying(s) || in_window(s) || step(s).role == Role::window) continue;
      std::string value;
      if (step(s).role == Role::load)
        value = "fw::convert<" + reg(s) + ">(p" + to_string(s) + "[i])";
      else if (step(s).role == Role::iota)
        value = position(s, "i");
      else
        value = compute(s);
      line("const ", reg(s), " v", to_string(s), " = ", value, ";");
    }
    for (int s : steps)
      if (inner_varying(s) && !in_window(s) && stored_in(s, p))
        line("q", to_string(s), "[i] = fw::convert<", storage_type(dtype(s)), ">(", use(s), ");");
    for (int s : reductions) {
      std::string value = use(step(s).operands[0]);
      std::string total = is_column() ? "f" + to_string(s) + "[i]" : "s" + to_string(s);
      line(combine(s, total, value));
      if (tracks_nan(s)) line("g", to_string(s), lane(), " |= ", value, " != ", value, ";");
    }
    for (int s : sides_in(p))
      line(inner_varying(s) ? "side" + to_string(s) + "[i]" : "s" + to_string(s), " += ", use(step(s).operands[0]),
           ";");
    close();
    for (int s : sides_in(p))
      if (!inner_varying(s)) line("*side", to_string(s), " += s", to_string(s), ";");
    if (!is_column()) {
      for (int s : reductions) {
        line(combine(s, "sums.a" + to_string(s), "s" + to_string(s)));
        if (tracks_nan(s)) line("sums.n", to_string(s), " |= g", to_string(s), ";");
      }
    }
    close();
    line();
    indent_ = indent;
    std::swap(out_, functions_);
  }

  struct Parameter {
    std::string type, name;
  };

  // What the loop of pass p reads and writes; the names are the caller's own.
  std::vector<Parameter> loop_parameters(int p, const std::vector<int>& steps) const {
    std::vector<Parameter> parameters;
    std::set<std::string> known;
    auto add = [&](const std::string& type, const std::string& name) {
      if (known.insert(name).second) parameters.push_back({type, name});
    };
    auto read = [&](int s) {  // a value that stays the same along the line, or comes in a buffer
      std::string name = to_string(s);
      if (step(s).role == Role::scalar) {
        if (number_of_.count(step(s).value)) add("const " + reg(s), use(s));
      } else if (row_level(s)) {
        add("const " + reg(s) + (row_array(s) ? "* __restrict" : ""), "r" + name);
      } else if (!inner_varying(s)) {
        add("const " + reg(s), "v" + name);
      } else if (step(s).role == Role::window) {
        add("const " + reg(s) + "* __restrict", "w" + name);
      }
    };
    for (int s : steps) {
      if (in_window(s)) continue;
      bool stored = stored_in(s, p);
      if (!inner_varying(s)) continue;
      if (step(s).role == Role::load)
        add(std::string("const ") + storage_type(dtype(s)) + "* __restrict", "p" + to_string(s));
      if (step(s).role == Role::iota) {
        add("const fw::Args&", "a");
        add("const fw::i64*", "c");
        add("const fw::i64", "first");
      }
      if (step(s).role == Role::compute)
        for (int operand : step(s).operands) read(operand);
      if (stored) {
        read(s);
        add(std::string(storage_type(dtype(s))) + "* __restrict", "q" + to_string(s));
      }
    }
    for (int s : reduces_in(p)) {
      read(step(s).operands[0]);
      if (!is_column()) continue;
      add(reg(s) + "* __restrict", "f" + to_string(s));
      if (tracks_nan(s)) add("int* __restrict", "g" + to_string(s));
    }
    for (int s : sides_in(p)) {
      read(step(s).operands[0]);
      add(reg(s) + "* __restrict", "side" + to_string(s));
    }
    return parameters;
  }

  // ---- windows -----------------------------------------------------------------------------------------------

  const Axis& tap(int s, size_t k) const { return axis(step(s).taps[k]); }

  // Steps in the cone of a window that depend on its position, and those that only change along the line (a per-channel
  // factor where channels lie innermost).
  std::vector<int> window_steps(int window) const {
    std::vector<bool> needed(static_cast<size_t>(count()));
    std::vector<int> todo = step(window).operands, result;
    while (!todo.empty()) {
      int s = todo.back();
      todo.pop_back();
      bool along_line = inner_varying(s) && !row_level(s) && step(s).role != Role::window;
      if (!(in_window(s) || along_line) || needed[static_cast<size_t>(s)]) continue;
      needed[static_cast<size_t>(s)] = true;
      todo.insert(todo.end(), step(s).operands.begin(), step(s).operands.end());
    }
    for (int s = 0; s < count(); ++s)
      if (needed[static_cast<size_t>(s)]) result.push_back(s);
    return result;
  }

  // The tap that moves along the line, or -1.
  int inner_tap(int window) const {
    for (size_t k = 0; k < step(window).taps.size(); ++k)
      if (nest().inner >= 0 && tap(window, k).base == nest().inner) return static_cast<int>(k);
    return -1;
  }
  // A tap load varies along the line: through the loop itself or through a tap on it.
  bool window_line(int s) const {
    if (inner_varying(s)) return true;
    for (const auto& list : step(s).dims)
      for (int a : list)
        if (axis(a).tap && nest().inner >= 0 && axis(a).base == nest().inner) return true;
    return false;
  }

  // Fills w<s>[0..n) for the line that starts at `first`. Windows over the same taps (a maximum and its index) share
  // one walk: the first of them writes both.
  void write_window(int s, const std::string& n) {
    std::vector<int> group;
    for (int other : needed_)
      if (step(other).role == Role::window && step(other).taps == step(s).taps) group.push_back(other);
    if (group[0] != s) return;
    bool gather = tap(s, 0).gather;
    bool is_max = node(s).op == Op::max_pool || node(s).op == Op::max_pool_index;
    int value = -1, index = -1;
    for (int other : group) (node(other).op == Op::max_pool_index ? index : value) = other;
    std::string best = value >= 0 ? "w" + to_string(value) : "best" + to_string(index);
    std::string type = value >= 0 ? reg(value) : reg(step(index).operands[0]);
    DType best_type = value >= 0 ? dtype(value) : dtype(step(index).operands[0]);
    if (value < 0) line(type, " ", best, "[", is_column() ? "fw::lanes" : "fw::chunk", "];");
    open("for (int i = 0; i < ", n, "; ++i)");
    line(best, "[i] = ", is_max ? literal(-INFINITY, best_type) : literal(0, best_type), ";");
    if (index >= 0) line("w", to_string(index), "[i] = -1;");
    close();
    for (size_t k = 0; k < step(s).taps.size(); ++k) open_tap(s, k, static_cast<int>(k) == inner_tap(s), n);
    write_window_body(s, n, best, index, gather);
    for (size_t k = 0; k < step(s).taps.size(); ++k) close();
    if (node(s).op == Op::avg_pool) write_average(s, n);
  }

  std::string base_position(const Axis& t) const { return t.base < 0 ? "0" : "c[" + to_string(t.base) + "]"; }

  // Loop over one dimension of the window; t<axis> is the position read, [from, to) the elements of the line for which
  // it lies inside.
  void open_tap(int s, size_t k, bool inner, const std::string& n) {
    const Axis& t = tap(s, k);
    std::string id = to_string(step(s).taps[k]), size = "a.sizes[" + id + "]";
    std::string shift = to_string(t.padding) + " - k" + id + " * " + to_string(t.dilation), st = to_string(t.stride);
    open("for (int k", id, " = 0; k", id, " < ", to_string(t.kernel), "; ++k", id, ")");
    if (!inner) {
      if (!t.gather) {
        line("const fw::i64 t", id, " = ", base_position(t), " * ", st, " - (", shift, ");");
        line("if (t", id, " < 0 || t", id, " >= ", size, ") continue;");
      } else {
        line("const fw::i64 u", id, " = ", base_position(t), " + ", shift, ", t", id, " = u", id, " / ", st, ";");
        line("if (u", id, " < 0 || u", id, " % ", st, " != 0 || t", id, " >= ", size, ") continue;");
      }
      return;
    }
    if (!t.gather) {
      // element i reads first * stride - shift + i * stride
      line("const fw::i64 u", id, " = first * ", st, " - (", shift, ");");
      line("const int from = static_cast<int>(fw::max_of(0, fw::ceil_div(-u", id, ", ", st, ")));");
      line("const int to = static_cast<int>(fw::min_of(", n, ", fw::ceil_div(", size, " - u", id, ", ", st, ")));");
      line("const fw::i64 t", id, " = u", id, " + from * ", to_string(t.stride), ";");
    } else {
      // position o is read by element i = o * stride - shift - first
      line("const fw::i64 u", id, " = first + ", shift, ";");
      line("const fw::i64 t", id, " = fw::max_of(0, fw::ceil_div(u", id, ", ", st, "));");
      line("const fw::i64 e", id, " = fw::min_of(", size, ", fw::ceil_div(u", id, " + ", n, ", ", st, "));");
      line("const int from = static_cast<int>(t", id, " * ", st, " - u", id, ");");
      line("const int to = static_cast<int>(e", id, " - t", id, ");  // how many");
    }
  }

  void write_window_body(int s, const std::string& n, const std::string& best, int index, bool gather) {
    int k = inner_tap(s);
    std::string begin = "0", end = n;
    if (k >= 0 && !gather) begin = "from", end = "to";
    if (k >= 0 && gather) end = "to";
    line("if (", begin, " >= ", end, ") continue;");
    std::vector<int> steps = window_steps(s);
    for (int load : steps)
      if (step(load).role == Role::load && in_window(load)) write_tap_load(s, load, begin, end);
    for (int other : steps)
      if (step(other).role != Role::load && !window_line(other))
        line("const ", reg(other), " v", to_string(other), " = ", compute(other), ";");
    out_ += "#pragma omp simd\n";
    open("for (int j = ", begin, "; j < ", end, "; ++j)");
    line("const int i = ", k >= 0 && gather ? "from + j * " + to_string(tap(s, static_cast<size_t>(k)).stride) : "j",
         ";");
    for (int other : steps) {
      if (!window_line(other)) continue;
      std::string name = to_string(other), text;
      if (step(other).role == Role::iota)
        text = position(other, "i");
      else if (step(other).role != Role::load)
        text = compute(other);
      else
        text = in_window(other) ? "tap" + name + "[j]" : "fw::convert<" + reg(other) + ">(p" + name + "[i])";
      line("const ", reg(other), " v", name, " = ", text, ";");
    }
    std::string operand = use(step(s).operands[0]);
    std::string number = tap_number(s);
    switch (node(s).op) {
      case Op::max_pool:
      case Op::max_pool_index: {
        // PyTorch's comparison: a NaN always wins, and the first of equals does.
        std::string take = operand + " > " + best + "[i] || " + operand + " != " + operand;
        if (index >= 0) take += " || w" + to_string(index) + "[i] < 0";
        line("const bool take = ", take, ";");
        line(best, "[i] = take ? ", operand, " : ", best, "[i];");
        if (index >= 0) line("w", to_string(index), "[i] = take ? ", number, " : w", to_string(index), "[i];");
        break;
      }
      case Op::max_pool_grad:
        line("w", to_string(s), "[i] += ", use(step(s).operands[1]), " == ", number, " ? ", operand, " : ",
             literal(0, dtype(s)), ";");
        break;
      case Op::avg_pool:
        line("w", to_string(s), "[i] += ", operand, ";");
        break;
      default:
        line("w", to_string(s), "[i] += ", operand, " / ", divisor(s, true), ";");
    }
    close();
  }

  void write_tap_load(int window, int s, const std::string& begin, const std::string& end) {
    int operand = operand_of_[static_cast<size_t>(s)].load;
    std::string address = "offset[" + to_string(operand) + "]", step_text = "0";
    int k = inner_tap(window);
    for (size_t d = 0; d < step(window).taps.size(); ++d) {
      int a = step(window).taps[d];
      if (!varies(step(s), a)) continue;
      address += " + t" + to_string(a) + " * " + stride(operand, a);
      if (static_cast<int>(d) == k)
        step_text = stride(operand, a) + (axis(a).gather ? "" : " * " + to_string(axis(a).stride));
    }
    if (inner_varying(s)) {
      address += " + (first + " + begin + ") * " + stride(operand, nest().inner);
      step_text = stride(operand, nest().inner);
    }
    if (window_line(s)) {
      line("fw::gather_line(tap", to_string(s), " + ", begin, ", ", pointer(operand), " + ", address, ", ", step_text,
           ", static_cast<int>(", end, " - ", begin, "));");
    } else {
      line("const ", reg(s), " v", to_string(s), " = fw::convert<", reg(s), ">(", pointer(operand), "[", address,
           "]);");
    }
  }

  // Which element of the window this is, row-major.
  std::string tap_number(int s) const {
    std::string text = "0";
    for (int a : step(s).taps) text = "(" + text + ") * " + to_string(axis(a).kernel) + " + k" + to_string(a);
    return "static_cast<int>(" + text + ")";
  }

  // What an average window divides by. Gradient: at the window's position (taps), else at the element's own.
  std::string divisor(int s, bool gradient) const {
    const Node& pool = node(s);
    std::string type = reg(s);
    if (pool.integer("divisor") != 0) return literal(static_cast<double>(pool.integer("divisor")), dtype(s));
    std::string text = "static_cast<" + type + ">(1";
    for (size_t k = 0; k < step(s).taps.size(); ++k) {
      const Axis& t = tap(s, k);
      int a = step(s).taps[k];
      bool inner = static_cast<int>(k) == inner_tap(s);
      std::string position, size;
      if (gradient) {
        position = "t" + to_string(a) + (inner ? " + j" : "");
        size = t.base < 0 ? "1" : "a.sizes[" + to_string(t.base) + "]";
      } else {
        position = inner ? "first + i" : base_position(t);
        size = "a.sizes[" + to_string(a) + "]";
      }
      text += " * fw::pool_count(" + position + ", " + to_string(t.kernel) + ", " + to_string(t.stride) + ", " +
              to_string(t.padding) + ", " + size + ", " + (pool.integer("count_include_pad") ? "true" : "false") + ")";
    }
    return text + ")";
  }

  void write_average(int s, const std::string& n) {
    open("for (int i = 0; i < ", n, "; ++i)");
    line("w", to_string(s), "[i] /= ", divisor(s, false), ";");
    close();
  }

  // ---- entry -------------------------------------------------------------------------------------------------

  void write_entry() {
    if (has_rows()) write_place();
    line("}  // namespace");
    line();
    std::string signature = "extern \"C\" __attribute__((visibility(\"default\"))) ";
    if (has_rows()) line(signature, "const fw::i64 fw_state_sizes[] = {sizeof(Row), sizeof(Sums)};");
    open(signature, "void ", code_.name, "(const fw::Args* args, int phase, fw::i64 begin, fw::i64 end)");
    line("const fw::Args& a = *args;");
    line("fw::i64 c[AXES] = {};");
    if (!has_rows()) {
      line("(void)phase;");
      line("if (begin < end) stage_0(a, c, begin, end);");
      close();
      return;
    }
    std::string last = to_string(nest().stages);
    line("fw::i64 elements = fw::extent<REDUCED>(a.sizes, reduced_axes)",
         is_column() ? "" : " * a.sizes[" + to_string(nest().inner) + "]", ";");
    // Whole rows. Sums on the side go to one buffer for each of `splits` parts of the rows.
    open("if (phase < 0)");
    line("Row row;");
    line("Sums sums;");
    if (has_sides()) {
      line("fw::i64 rows = fw::extent<KEPT>(a.sizes, kept_axes), share = fw::ceil_div(rows, a.splits);");
      open("for (fw::i64 part = begin; part < end; ++part)");
      line("const fw::i64 from = fw::min_of(rows, part * share), to = fw::min_of(rows, from + share);");
      open("for (fw::i64 k = from; k < to; ++k)");
      line("place(a, k, k == from, c, row);");
      line("add_part(a, part, row);");
    } else {
      open("for (fw::i64 k = begin; k < end; ++k)");
      line("place(a, k, k == begin, c, row);");
    }
    for (int p = 0; p < nest().stages; ++p) {
      line("row_", to_string(p), "(a, row, sums);");
      line("clear(sums);");
      line("if (elements > 0) stage_", to_string(p), "(a, c, 0, elements, row, sums);");
    }
    line("row_", last, "(a, row, sums);");
    close();
    if (has_sides()) close();
    line("return;");
    close();
    // Split: rows and partial sums live in memory of the executor's; phase 2p is row_p, phase 2p + 1 is stage_p.
    line("Sums* partial = static_cast<Sums*>(a.partial);");
    line("Row* rows = static_cast<Row*>(a.rows);");
    open("if (phase % 2 == 0)");
    open("for (fw::i64 k = begin; k < end; ++k)");
    line("Row& row = rows[k];");
    line("Sums sums;");
    line("clear(sums);");
    line("if (phase == 0) place(a, k, true, c, row);");
    line("else for (fw::i64 s = 0; s < a.splits; ++s) merge(sums, partial[k * a.splits + s]);");
    open("switch (phase / 2)");
    for (int p = 0; p <= nest().stages; ++p)
      line("case ", to_string(p), ": row_", to_string(p), "(a, row, sums); break;");
    close();
    close();
    line("return;");
    close();
    open("for (fw::i64 item = begin; item < end; ++item)");
    line("const fw::i64 k = item / a.splits, s = item % a.splits;");
    line("const fw::i64 share = fw::ceil_div(elements, a.splits);");
    line("const fw::i64 from = fw::min_of(elements, s * share), to = fw::min_of(elements, from + share);");
    line("Sums& sums = partial[item];");
    line("clear(sums);");
    line("place_axes(a, k, true, c);");
    line("if (from >= to) continue;");
    if (has_sides()) {
      line("Row row = rows[k];");
      line("add_part(a, item, row);");
    } else {
      line("const Row& row = rows[k];");
    }
    open("switch (phase / 2)");
    for (int p = 0; p < nest().stages; ++p)
      line("case ", to_string(p), ": stage_", to_string(p), "(a, c, from, to, row, sums); break;");
    close();
    close();
    close();
  }

  bool has_sides() const {
    return std::any_of(kernel_.steps.begin(), kernel_.steps.end(), [](const Step& step) { return step.side; });
  }

  // Where the k-th row (block of columns) lies.
  void write_place() {
    open("FW_FN fw::i64 place_axes(const fw::Args& a, fw::i64 k, bool decode, fw::i64* c)");
    if (is_column()) {
      line("const fw::i64 blocks = fw::ceil_div(a.sizes[", to_string(nest().inner), "], a.block);");
      line("fw::decode<KEPT>(a.sizes, kept_axes, k / blocks, c);");
      line("(void)decode;");
      line("return k % blocks * a.block;");
    } else {
      line("if (decode) fw::decode<KEPT>(a.sizes, kept_axes, k, c);");
      line("else fw::advance<KEPT>(a.sizes, kept_axes, c);");
      line("return 0;");
    }
    close();
    open("FW_FN void place(const fw::Args& a, fw::i64 k, bool decode, fw::i64* c, Row& row)");
    line("const fw::i64 zero[OPERANDS] = {};");
    line("row.first = place_axes(a, k, decode, c);");
    if (is_column())
      line("row.n = static_cast<int>(fw::min_of(a.block, a.sizes[", to_string(nest().inner), "] - row.first));");
    else
      line("row.n = 1;");
    line("fw::offsets<KEPT, OPERANDS, AXES>(a.strides, kept_axes, c, zero, row.offset);");
    close();
    if (!has_sides()) return;
    open("FW_FN void add_part(const fw::Args& a, fw::i64 part, Row& row)");
    line("for (int o = 0; o < OPERANDS; ++o) row.offset[o] += part * a.side_sizes[o];");
    close();
  }

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

}  // namespace

KernelCode emit_cpp(const Graph& graph, const Kernel& kernel) { return CppEmitter(graph, kernel).run(); }

}  // namespace fusewright
