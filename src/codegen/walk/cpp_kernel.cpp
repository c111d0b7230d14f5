// The C++ dialect: loops over lines for the system's compiler to vectorise.
//
// Every kernel has the same skeleton. A *row* is one result of the reduction (or, in a column kernel, a block of
// neighbouring ones); `row_p` is the code between passes, `stage_p` one pass over the elements. A pointwise kernel is
// a single stage without rows. When there are few rows the executor splits stages over threads and calls them one by
// one; otherwise the entry runs whole rows, so that later stages find their data in the cache: short rows several at a
// time, so that one row's sums are on their way while the next is read.
#include <algorithm>
#include <cmath>
#include <utility>

#include "codegen/walk/cpp_emitter.h"
#include "embedded_kernels.h"

namespace fusewright {

using std::to_string;

const std::string& cpp_prelude() {
  static const std::string text =
      std::string(embedded_prelude) + "\n" + embedded_math + "\n" + embedded_cpu_loops + "\n";
  return text;
}

std::string CppEmitter::accumulator_type(int s) const {
  if (is_extreme(node(s).op)) return reg(s);
  return is_float(dtype(s)) ? "double" : "fw::i64";
}

// accumulate `value` into `total`
std::string CppEmitter::combine(int s, const std::string& total, const std::string& value) const {
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

void CppEmitter::write_row_state() {
  open("struct Row");
  for (int s = 0; s < count(); ++s)
    if (row_level(s)) line(reg(s), " v", to_string(s), lanes_suffix(row_array(s)), ";");
  line("fw::i64 c[AXES];  // coordinates");
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

// Values of the whole row that are known before pass p: results of the reductions of pass p - 1 and what follows.
void CppEmitter::write_row_code(int p) {
  open("FW_FN void row_", to_string(p), "(const fw::Args& a, Row& row, const Sums& sums)");
  line("(void)a, (void)row, (void)sums;");
  write_numbers();
  write_over_lanes("row.n", [&](const std::string&) {
    for (int s = 0; s < count(); ++s) {
      if (!row_level(s) || nest().stage[static_cast<size_t>(s)] != p) continue;
      std::string once = only_once(s);
      if (once.empty() || step(s).role != Role::load)
        line(use(s), " = ", row_value(s), ";");
      else
        line(use(s), " = ", once, " ? ", row_value(s), " : ", literal(0, dtype(s)), ";");
      if (step(s).stored) write_row_store(s);
    }
  });
  close();
}

std::string CppEmitter::row_value(int s) const {
  if (step(s).role == Role::compute) return value(s);
  if (step(s).role == Role::reduce) {
    std::string name = to_string(s) + lane();
    std::string value = "static_cast<" + reg(s) + ">(sums.a" + name + ")";
    return rounded(s, tracks_nan(s) ? "sums.n" + name + " ? " + literal(NAN, dtype(s)) + " : " + value : value);
  }
  int operand = operand_of_[static_cast<size_t>(s)].load;
  return "fw::convert<" + reg(s) + ">(" + pointer(operand) + "[" + row_index(s, operand) + "])";
}

std::string CppEmitter::row_index(int s, int operand) const {
  std::string index = "row.offset[" + to_string(operand) + "]";
  return row_array(s) ? index + " + (row.first + i) * " + stride(operand, nest().inner) : index;
}

// The condition for what one row does for all.
std::string CppEmitter::only_once(int s) const {
  if (!step(s).once) return "";
  std::string text = is_column() ? "row.first + i == 0" : "true";
  for (int a : nest().kept) text += " && row.c[" + to_string(a) + "] == 0";
  return "(" + text + ")";
}

void CppEmitter::write_row_store(int s) {
  int operand = operand_of_[static_cast<size_t>(s)].store;
  std::string once = only_once(s);
  line(once.empty() ? "" : "if " + once + " ", pointer(operand), "[", row_index(s, operand), "] = fw::convert<",
       storage_type(dtype(s)), ">(", use(s), ");");
}

void CppEmitter::write_entry() {
  if (has_rows()) write_place();
  line("}  // namespace");
  line();
  std::string signature = "extern \"C\" __attribute__((visibility(\"default\"))) ";
  if (has_rows()) line(signature, "const fw::i64 fw_state_sizes[] = {sizeof(Row), sizeof(Sums)};");
  open(signature, "void ", code_.name, "(const fw::Args* args, int phase, fw::i64 begin, fw::i64 end)");
  line("const fw::Args& a = *args;");
  if (!has_rows()) {
    line("(void)phase;");
    line("if (begin < end) stage_0(a, begin, end);");
    close();
    return;
  }
  line("fw::i64 elements = fw::extent<REDUCED>(a.sizes, reduced_axes)",
       is_column() ? "" : " * a.sizes[" + to_string(nest().inner) + "]", ";");
  // Whole rows. Sums on the side go to one buffer for each of `splits` parts of the rows.
  open("if (phase < 0)");
  line("constexpr int at_once = ", is_column() ? "1" : "fw::rows_at_once", ";");
  line("Row rows[at_once];");
  line("Sums sums[at_once];");
  if (has_sides()) {
    line("fw::i64 count = fw::extent<KEPT>(a.sizes, kept_axes), share = fw::ceil_div(count, a.splits);");
    open("for (fw::i64 part = begin; part < end; ++part)");
    line("const fw::i64 from = fw::min_of(count, part * share), to = fw::min_of(count, from + share);");
  } else {
    line("const fw::i64 from = begin, to = end;");
  }
  line("const fw::i64* before = nullptr;");
  line("fw::i64 step = ", is_column() ? "1" : "a.block", ";");
  open("for (fw::i64 k = from; k < to; k += step)");
  line("const int n = static_cast<int>(fw::min_of(step, to - k));");
  open("for (int r = 0; r < n; ++r)");
  line("place(a, k + r, before, rows[r]);");
  line("before = rows[r].c;");
  if (has_sides()) line("add_part(a, part, rows[r]);");
  close();
  for (int p = 0; p <= nest().stages; ++p) {
    open("for (int r = 0; r < n; ++r)");
    line("row_", to_string(p), "(a, rows[r], sums[r]);");
    if (p < nest().stages) line("clear(sums[r]);");
    close();
    if (p < nest().stages) line("if (elements > 0) stage_", to_string(p), "(a, 0, elements, rows, sums, n);");
  }
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
  line("if (phase == 0) place(a, k, nullptr, row);");
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
  line("if (from >= to) continue;");
  if (has_sides()) {
    line("Row row = rows[k];");
    line("add_part(a, item, row);");
  } else {
    line("const Row& row = rows[k];");
  }
  open("switch (phase / 2)");
  for (int p = 0; p < nest().stages; ++p)
    line("case ", to_string(p), ": stage_", to_string(p), "(a, from, to, &row, &sums, 1); break;");
  close();
  close();
  close();
}

// Where the k-th row (block of columns) lies; a row's coordinates follow from those of the row `before` it.
void CppEmitter::write_place() {
  open("FW_FN void place(const fw::Args& a, fw::i64 k, const fw::i64* before, Row& row)");
  line("const fw::i64 zero[OPERANDS] = {};");
  line("for (int x = 0; x < AXES; ++x) row.c[x] = before ? before[x] : 0;");
  if (is_column()) {
    std::string columns = "a.sizes[" + to_string(nest().inner) + "]";
    line("const fw::i64 blocks = fw::ceil_div(", columns, ", a.block);");
    line("fw::decode<KEPT>(a.sizes, kept_axes, k / blocks, row.c);");
    line("row.first = k % blocks * a.block;");
    line("row.n = static_cast<int>(fw::min_of(a.block, ", columns, " - row.first));");
  } else {
    line("if (before) fw::advance<KEPT>(a.sizes, kept_axes, row.c);");
    line("else fw::decode<KEPT>(a.sizes, kept_axes, k, row.c);");
    line("row.first = 0;");
    line("row.n = 1;");
  }
  line("fw::offsets<KEPT, OPERANDS, AXES>(a.strides, kept_axes, row.c, zero, row.offset);");
  close();
  if (!has_sides()) return;
  open("FW_FN void add_part(const fw::Args& a, fw::i64 part, Row& row)");
  line("for (int o = 0; o < OPERANDS; ++o) row.offset[o] += part * a.side_sizes[o];");
  close();
}

KernelCode emit_cpp(const Graph& graph, const Kernel& kernel) { return CppEmitter(graph, kernel).run(); }

}  // namespace fusewright
