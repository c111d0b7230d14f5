// What a kernel with reductions has for each row: its place, values, sums, and sums on the side.
#include <algorithm>

#include "codegen/walk/cuda_emitter.h"

namespace fusewright {

using std::to_string;

// Where a row is, and what is the same for all its elements.
void CudaEmitter::write_row_state() {
  open("struct Row");
  for (int s = 0; s < count(); ++s) {
    if (!row_level(s)) continue;
    const bool own = row_array(s) && has_own_column();
    if (own) line(reg(s), " own", to_string(s), ";");
    if (!own || is_told(s)) line(reg(s), " v", to_string(s), row_array(s) ? "[V];" : ";");
  }
  for (int s = 0; s < count(); ++s)
    if (is_divisor(s)) line("fw::Divisor<", reg(s), "> d", to_string(s), row_array(s) ? "[V];" : ";");
  for (size_t o = 0; o < code_.operands.size(); ++o) line("index o", to_string(o), ";");
  for (int a : row_axes()) line("index c", to_string(a), ";");
  if (inner_in_row()) line("index pos;  // first of this thread's columns");
  if (has_own_column()) line("int own;  // which of them is its own");
  line("bool live;  // there is such a row");
  if (kind_ == Text::tiled) line("fw::u32 tile;  // where it stands in every tile");
  close(";");
  line();
  write_place_row();
  if (has_sides() && !walking() && walked_axes_.size() == 1) write_move_row();
}

// The place of a team's next row from that of the one before it: a step along the axis for each operand, where all of
// it would be worked out anew from the row's number. Where there is no such row it stays. For rows that come straight
// into registers; others are too long for it to matter, and need the registers.
void CudaEmitter::write_move_row() {
  const std::string axis = "c" + to_string(walked_axes_[0]);
  open("FW_FN void move_row(const Args& a, const Row& row, Row& next)");
  line("index rows = static_cast<index>(a.parts);");
  line("next.live = row.live && row.", axis, " + rows < static_cast<index>(a.walked);");
  line("if (!next.live) rows = 0;");
  for (int a : row_axes()) {
    const std::string c = "c" + to_string(a);
    line("next.", c, " = row.", c, c == axis ? " + rows;" : ";");
  }
  for (size_t o = 0; o < code_.operands.size(); ++o) {
    if (code_.operands[o].side) continue;
    const int operand = static_cast<int>(o), a = walked_axes_[0];
    const std::string place = "o" + to_string(o);
    line("next.", place, " = row.", place, operand_varies(operand, a) ? " + rows * " + stride(operand, a) : "", ";");
  }
  close();
  line();
}

void CudaEmitter::write_place_row() {
  auto decode = [&](const std::vector<int>& axes, const std::string& linear) {
    if (axes.empty()) return;
    line("index rest", linear, " = ", linear, ";");
    for (size_t k = axes.size(); k-- > 1;) {
      std::string a = to_string(axes[k]);
      line("const fw::Quotient q", a, " = fw::divided(rest", linear, ", a.sizes[", a, "], a.divider[", a, "]);");
      line("row.c", a, " = q", a, ".remainder;");
      line("rest", linear, " = q", a, ".quotient;");
    }
    line("row.c", to_string(axes[0]), " = rest", linear, ";");
  };
  open("FW_FN void place_row(const Args& a, [[maybe_unused]] index anchor, [[maybe_unused]] index walked, Row& row)");
  line("(void)a;");
  decode(anchor_axes_, "anchor");
  decode(walked_axes_, "walked");
  for (size_t o = 0; o < code_.operands.size(); ++o) {
    if (code_.operands[o].side) continue;
    line("row.o", to_string(o), " = ", row_offset(static_cast<int>(o)), ";");
  }
  close();
  line();
}

std::vector<int> CudaEmitter::moments_in(int p) const {
  std::vector<int> result;
  for (const LoopNest::Moments& m : nest().moments)
    if (stage(m.second) == p + 1) result.push_back(m.second);
  return result;
}

bool CudaEmitter::has_totals(int p) const {
  const std::vector<int> totals = sides(false);
  return std::any_of(totals.begin(), totals.end(), [&](int s) { return stage(s) == p; });
}

bool CudaEmitter::leaves_sums(int p) const { return has_totals(p) || !reduces_in(p).empty(); }

// The results of pass p: what a thread has so far, then what its team has.
void CudaEmitter::write_sums(int p) {
  if (!has_rows()) return;
  std::string lanes = is_column() ? "[W]" : "", i = is_column() ? "[i]" : "";
  auto each = [&](auto body) {
    for (int s : reduces_in(p)) {
      if (nest().moments_of(s)) continue;
      if (is_column()) {
        out_ += "#pragma unroll\n";
        open("for (int i = 0; i < W; ++i)");
      }
      body(s, "a" + to_string(s) + i);
      if (is_column()) close();
    }
  };
  // Of columns: so many side by side.
  const std::string all = "Sums" + to_string(p), name = is_column() ? "SumsOf" + to_string(p) : all;
  if (is_column()) line("template <int W>");
  open("struct ", name);
  for (int s : reduces_in(p))
    if (!nest().moments_of(s)) line(accumulator_type(s), " a", to_string(s), lanes, ";");
  for (int m : moments_in(p))
    line("fw::Moments<", accumulator_type(m), is_column() ? ", V> m" : ", 1> m", to_string(m), ";");
  open("FW_FN void clear()");
  each([&](int s, const std::string& a) { line(a, " = ", identity(s, dtype(s)), ";"); });
  for (int m : moments_in(p)) line("m", to_string(m), ".clear();");
  close();
  open("FW_FN void merge([[maybe_unused]] const ", name, "& other)");
  each([&](int s, const std::string& a) { line(combine(s, a, "other." + a)); });
  for (int m : moments_in(p)) line("m", to_string(m), ".merge(other.m", to_string(m), ");");
  close();
  open("FW_FN ", name, " exchanged([[maybe_unused]] fw::u32 offset) const");
  line(name, " other;");
  each([&](int, const std::string& a) { line("other.", a, " = fw::shuffle_xor(", a, ", offset);"); });
  for (int m : moments_in(p)) line("other.m", to_string(m), " = m", to_string(m), ".exchanged(offset);");
  line("return other;");
  close();
  if (has_own_column()) {
    const std::string half = name + "<W / 2>";
    open("FW_FN ", half, " half([[maybe_unused]] bool upper) const");
    line(half, " part;");
    for (int s : reduces_in(p)) {
      const std::string a = "a" + to_string(s);
      out_ += "#pragma unroll\n";
      line("for (int i = 0; i < W / 2; ++i) part.", a, "[i] = upper ? ", a, "[W / 2 + i] : ", a, "[i];");
    }
    line("return part;");
    close();
  }
  close(";");
  if (is_column()) line("using ", all, " = ", name, "<V>;");
  line();
}

// Sums on the side: Side for each position that a thread holds, Total for what is one number for each anchor.
void CudaEmitter::write_side_state() {
  if (!has_sides()) return;
  open("struct Side");
  for (int s : sides(true)) line(reg(s), " s", to_string(s), "[V];");
  open("FW_FN void clear()");
  out_ += "#pragma unroll\n";
  open("for (int i = 0; i < V; ++i)");
  for (int s : sides(true)) line("s", to_string(s), "[i] = ", literal(0, dtype(s)), ";");
  close();
  close();
  close(";");
  open("struct Total");
  for (int s : sides(false)) line(reg(s), " s", to_string(s), ";");
  open("FW_FN void clear()");
  for (int s : sides(false)) line("s", to_string(s), " = ", literal(0, dtype(s)), ";");
  close();
  open("FW_FN void merge([[maybe_unused]] const Total& other)");
  for (int s : sides(false)) line("s", to_string(s), " += other.s", to_string(s), ";");
  close();
  open("FW_FN Total exchanged([[maybe_unused]] fw::u32 offset) const");
  line("Total other;");
  for (int s : sides(false)) line("other.s", to_string(s), " = fw::shuffle_xor(s", to_string(s), ", offset);");
  line("return other;");
  close();
  close(";");
  // Into the buffers, or results: those of one pass, or all (-1), and of these what belongs to one of several stretches
  // of threads. `slot` is the team's place in them, `element` the vector's within the row.
  open("FW_FN void put_side(const Args& a, const Side& side, index slot, index element, bool add, int pass, ",
       "fw::u32 stretch, fw::u32 stretches)");
  line("const index at = (slot * static_cast<index>(a.elements) + element) * V;");
  unsigned which = 0;
  for (int s : sides(true)) {
    int operand = operand_of_[static_cast<size_t>(s)].store;
    std::string name = to_string(s);
    open("if ((pass < 0 || pass == ", to_string(stage(s)), ") && (", to_string(which++),
         "u & (stretches - 1)) == stretch)");
    line(reg(s), "* to = ", pointer(operand), " + at;");
    line(reg(s), " sum[V];");
    line("if (add) fw::load_vector(to, fw::plain, sum);");
    out_ += "#pragma unroll\n";
    line("for (int i = 0; i < V; ++i) sum[i] = add ? sum[i] + side.s", name, "[i] : side.s", name, "[i];");
    line("fw::store_line(to, sum);");
    close();
  }
  close();
  open("FW_FN void put_total(const Args& a, [[maybe_unused]] const Total& total, [[maybe_unused]] index slot, ",
       "[[maybe_unused]] int pass)");
  line("(void)a;");
  for (int s : sides(false)) {
    int operand = operand_of_[static_cast<size_t>(s)].store;
    line("if (pass < 0 || pass == ", to_string(stage(s)), ") ", pointer(operand), "[slot] = total.s", to_string(s),
         ";");
  }
  close();
  line();
}

// Whether the kernel writes over something that it reads.
bool CudaEmitter::overwrites() const {
  return std::any_of(kernel_.steps.begin(), kernel_.steps.end(), [](const Step& step) { return step.overwritten; });
}

// The condition for what one row does for all.
std::string CudaEmitter::only_once(int s) const {
  // What is one for all columns is not everybody's who has one.
  std::string text = own_column_ && !row_array(s) ? " && row.own == 0" : "";
  if (!step(s).once) return text;
  for (int a : row_axes()) text += " && row.c" + to_string(a) + " == 0";
  return inner_in_row() ? text + " && row.pos == 0" : text;
}

// Around what is written for a column: each of the thread's, or its own.
void CudaEmitter::open_columns() {
  if (!is_column()) return;
  own_column_ = has_own_column();
  if (own_column_) return line("[[maybe_unused]] const int i = row.own;");
  out_ += "#pragma unroll\n";
  open("for (int i = 0; i < V; ++i)");
}

void CudaEmitter::close_columns() {
  if (is_column() && !own_column_) close();
  own_column_ = false;
}

void CudaEmitter::write_load_row(const std::string& row, const std::string& writer) {
  line("load_row(a, ", row, overwrites() ? ", " + writer : "", ");");
}

// What is read once for the whole row, on its way while the team works on the row before. What will be overwritten is
// read by the thread that will do it, and by no other: it may have happened already.
void CudaEmitter::write_row_loads() {
  open("FW_FN void load_row(const Args& a, Row& row", overwrites() ? ", bool writer" : "", ")");
  line("(void)a, (void)row;");
  open_columns();
  for (int s = 0; s < count(); ++s) {
    if (!row_level(s) || step(s).role != Role::load) continue;
    int operand = operand_of_[static_cast<size_t>(s)].load;
    if (step(s).overwritten)
      line(use(s), " = writer", only_once(s), " ? fw::convert<", reg(s), ">(", pointer(operand), "[",
           row_index(s, operand), "]) : ", literal(0, dtype(s)), ";");
    else
      line(use(s), " = fw::convert<", reg(s), ">(fw::load(", pointer(operand), " + ", row_index(s, operand),
           ", a.reads));");
  }
  close_columns();
  close();
  line();
}

bool CudaEmitter::is_told(int s) const {
  if (!has_own_column() || !row_level(s) || !row_array(s)) return false;
  for (int user = s + 1; user < count(); ++user) {
    const std::vector<int>& operands = step(user).operands;
    const bool of_elements = !row_level(user) || step(user).role == Role::reduce;
    if (of_elements && std::find(operands.begin(), operands.end(), s) != operands.end()) return true;
  }
  return false;
}

// Values of the whole row that are known before pass p: results of the reductions of pass p - 1 and what follows.
void CudaEmitter::write_row_code(int p) {
  std::string sums;
  if (p > 0)
    sums = ", [[maybe_unused]] const Sums" + (has_own_column() ? "Of" + to_string(p - 1) + "<1>" : to_string(p - 1)) +
           "& sums";
  open("FW_FN void row_", to_string(p), "(const Args& a, Row& row, [[maybe_unused]] bool store",
       has_own_column() ? ", [[maybe_unused]] const fw::Team& team" : "", sums, ")");
  line("(void)a;");
  write_numbers();
  auto write_divisor = [&](int s) {
    if (is_divisor(s)) line("row.d", to_string(s), row_array(s) ? "[i]" : "", " = fw::divisor_of(", use(s), ");");
  };
  open_columns();
  for (int s = 0; s < count(); ++s) {
    if (!row_level(s) || stage(s) != p) continue;
    if (step(s).role != Role::load) line(use(s), " = ", row_value(s), ";");
    if (!is_told(s)) write_divisor(s);
    if (!step(s).stored) continue;
    int operand = operand_of_[static_cast<size_t>(s)].store;
    line("if (store", only_once(s), ") ", pointer(operand), "[", row_index(s, operand), "] = ", stored(s), ";");
  }
  close_columns();
  for (int s = 0; s < count(); ++s) {
    if (!is_told(s) || stage(s) != p) continue;
    line("fw::tell_columns(team, row.own", to_string(s), ", row.v", to_string(s), ");");
    if (!is_divisor(s)) continue;
    out_ += "#pragma unroll\n";
    open("for (int i = 0; i < V; ++i)");
    write_divisor(s);
    close();
  }
  close();
  line();
}

std::string CudaEmitter::row_value(int s) const {
  if (step(s).role == Role::compute) return value(s);
  const std::string i = is_column() ? "i" : "0";
  if (const LoopNest::Moments* m = step(s).role == Role::reduce ? nest().moments_of(s) : nullptr)
    return rounded(s, "sums.m" + to_string(m->second) + (s == m->first ? ".sum(" + i + ")" : ".squares[" + i + "]"));
  return rounded(s, "sums.a" + to_string(s) + (own_column_ ? "[0]" : is_column() ? "[i]" : ""));
}

std::string CudaEmitter::row_index(int s, int operand) const {
  std::string index = "row.o" + to_string(operand);
  return row_array(s) ? index + " + (row.pos + i) * " + stride(operand, nest().inner) : index;
}

}  // namespace fusewright
