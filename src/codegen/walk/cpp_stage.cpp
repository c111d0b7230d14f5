// One pass over the elements of a row, of a block of columns, or of a pointwise kernel.
#include <algorithm>
#include <cmath>
#include <utility>

#include "codegen/walk/cpp_emitter.h"

namespace fusewright {

using std::to_string;

void CppEmitter::write_stage(int p) {
  needed_ = needed_in(p);
  const std::vector<int>& steps = needed_;
  const char* rows = has_rows() ? ", const Row* rows, Sums* all_sums, int count" : "";
  std::string before = std::exchange(out_, "");
  open("static void stage_", to_string(p), "(const fw::Args& a, fw::i64 begin, fw::i64 end", rows, ")");
  in_stage_ = true;
  write_numbers();
  for (int s : steps) declare_buffers(s, p);
  if (has_rows()) {
    open("for (int k = 0; k < count; ++k)");
    line("[[maybe_unused]] const Row& row = rows[k];");
    line("[[maybe_unused]] Sums& sums = all_sums[k];");
    line("const fw::i64* const base = row.offset;");
    write_row_values(steps, p);
  } else {
    line("const fw::i64 base[OPERANDS] = {};");
  }
  line("fw::i64 c[AXES];");
  line("for (int x = 0; x < AXES; ++x) c[x] = ", has_rows() ? "row.c[x]" : "0", ";");
  line("fw::i64 offset[OPERANDS];");
  if (is_column())
    write_column_stage(p, steps);
  else
    write_line_stage(p, steps);
  if (has_rows()) close();
  close();
  line();
  in_stage_ = false;
  out_ = before + std::exchange(functions_, "") + out_;
}

// What the loop reads of the row, in registers.
void CppEmitter::write_row_values(const std::vector<int>& steps, int p) {
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
void CppEmitter::write_line_stage(int p, const std::vector<int>& steps) {
  std::string inner = nest().inner >= 0 ? "a.sizes[" + to_string(nest().inner) + "]" : "1";
  line("const fw::i64 inner = ", inner, ";");
  line("fw::i64 at = fw::start<REDUCED>(a.sizes, reduced_axes, begin, inner, c);");
  open("for (fw::i64 left = end - begin; left > 0;)");
  line("const fw::i64 stop = fw::min_of(inner, at + left);");
  line("fw::offsets<REDUCED, OPERANDS, AXES>(a.strides, reduced_axes, c, base, offset);");
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
void CppEmitter::write_column_stage(int p, const std::vector<int>& steps) {
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
  line("fw::offsets<REDUCED, OPERANDS, AXES>(a.strides, reduced_axes, c, base, offset);");
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

void CppEmitter::declare_buffers(int s, int p) {
  std::string name = to_string(s), size = is_column() ? "fw::lanes" : "fw::chunk";
  if (step(s).role == Role::load && inner_varying(s) && !in_window(s))
    line(storage_type(dtype(s)), " in", name, "[", size, "];");
  if (step(s).role == Role::load && in_window(s) && window_line(s)) line(reg(s), " tap", name, "[", size, "];");
  if (stored_in(s, p) && inner_varying(s)) line(storage_type(dtype(s)), " out", name, "[", size, "];");
  if (step(s).role == Role::window) line(reg(s), " w", name, "[", size, "];");
}

// Steps that do not change along the line.
void CppEmitter::write_scalars(int p, const std::vector<int>& steps) {
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
      line(element_.declaration(s, first_));
    }
    if (stored_in(s, p)) {
      int operand = operand_of_[static_cast<size_t>(s)].store;
      line(pointer(operand), "[offset[", to_string(operand), "]] = fw::convert<", storage_type(dtype(s)), ">(v",
           to_string(s), ");");
    }
  }
}

std::string CppEmitter::given(int s) const {
  if (row_level(s)) return (in_stage_ ? "r" : "row.v") + to_string(s) + (row_array(s) ? "[i]" : "");
  if (step(s).role == Role::window && inner_varying(s)) return "w" + to_string(s) + "[i]";
  return "";
}

std::string CppEmitter::load(int s, const std::string& element) const {
  if (inner_varying(s)) return "p" + to_string(s) + "[" + element + "]";
  const std::string operand = to_string(operand_of_[static_cast<size_t>(s)].load);
  return pointer(operand_of_[static_cast<size_t>(s)].load) + "[offset[" + operand + "]]";
}

std::string CppEmitter::coordinate(int a, const std::string& element) const {
  if (axis(a).tap) return tap_position(a);
  return a == nest().inner ? "(first + " + element + ")" : "c[" + to_string(a) + "]";
}

void CppEmitter::write_line(int p, const std::vector<int>& steps) {
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
    line("double* side", to_string(s), " = ", pointer(operand), " + offset[", to_string(operand), "]",
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
void CppEmitter::write_inner_loop(int p, const std::vector<int>& steps) {
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
    line(declaration(s));
  }
  for (int s : steps)
    if (inner_varying(s) && !in_window(s) && stored_in(s, p)) line("q", to_string(s), "[i] = ", stored(s), ";");
  for (int s : reductions) {
    std::string value = use(step(s).operands[0]);
    std::string total = is_column() ? "f" + to_string(s) + "[i]" : "s" + to_string(s);
    line(combine(s, total, value));
    if (tracks_nan(s)) line("g", to_string(s), lane(), " |= ", value, " != ", value, ";");
  }
  for (int s : sides_in(p))
    line(inner_varying(s) ? "side" + to_string(s) + "[i]" : "s" + to_string(s), " += ", use(step(s).operands[0]), ";");
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

// What the loop of pass p reads and writes; the names are the caller's own.
std::vector<CppEmitter::Parameter> CppEmitter::loop_parameters(int p, const std::vector<int>& steps) const {
  std::vector<Parameter> parameters;
  std::set<std::string> known;
  auto add = [&](const std::string& type, const std::string& name) {
    if (known.insert(name).second) parameters.push_back({type, name});
  };
  auto read = [&](int s) {  // a value that stays the same along the line, or comes in a buffer
    std::string name = to_string(s);
    if (step(s).role == Role::scalar) {
      if (element_.is_run_time_number(s)) add("const " + reg(s), use(s));
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
    add("double* __restrict", "side" + to_string(s));
  }
  return parameters;
}

}  // namespace fusewright
