// The CUDA dialect. A thread works on vectors of neighbouring elements; a team of threads reduces a row together.
//
// Three ways to run a kernel with reductions, all from the same functions:
//   whole, in registers   a team, of a block or a cluster, reads its row once and keeps it: passes after the first cost
//                         no memory
//   whole, walking        rows that are too long for that are read again in every pass
//   split                 few long rows: one launch for each pass, many blocks to a row; each block leaves its partial
//                         sums in memory, and every block of the next launch adds them up for itself
// A pointwise kernel is a single pass over lines, without rows.
#include "codegen/cuda_emitter.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "embedded_kernels.h"

namespace fusewright {

using std::to_string;

const std::string& cuda_prelude() {
  static const std::string text = std::string(embedded_prelude) + "\n" + embedded_math + "\n" + embedded_cuda_device +
                                  "\n" + embedded_cuda_loops + "\n";
  return text;
}

const std::string& cuda_tile_prelude() {
  static const std::string text = cuda_prelude() + embedded_cuda_tile + "\n";
  return text;
}

CudaEmitter::CudaEmitter(const Graph& graph, const Kernel& kernel, Text text)
    : Emitter(graph, kernel, choose_walk(graph, kernel, text == Text::walking ? Rows::memory : Rows::registers),
              Dialect::cuda),
      kind_(text) {
  if (nest().kind != LoopNest::Kind::row) {
    anchor_axes_ = row_axes();
    return;
  }
  // A team stays where sums on the side have their results, or where operands that all rows share (a norm's weights)
  // are the same, and walks over the other rows: what it holds of them is read or written once.
  auto moves = [&](int a) {
    for (int s = 0; s < count(); ++s) {
      if (has_sides() && step(s).side && varies(step(s), a)) return false;
      if (has_sides() || !is_element_load(s)) continue;
      bool everywhere = std::all_of(row_axes().begin(), row_axes().end(), [&](int r) { return varies(step(s), r); });
      if (!everywhere && varies(step(s), a)) return false;
    }
    return true;
  };
  for (int a : row_axes()) (moves(a) ? walked_axes_ : anchor_axes_).push_back(a);
}

KernelCode CudaEmitter::run() {
  write_header();
  if (kind_ == Text::tiled) write_tile_memory();
  write_row_state();
  write_values();
  write_side_state();
  write_element_place();
  if (has_rows()) write_row_loads();
  for (int p = 0; p < nest().stages; ++p) {
    write_sums(p);
    if (has_rows()) write_row_code(p);
    write_stage(p);
  }
  if (has_rows()) write_row_code(nest().stages);
  line("}  // namespace");
  if (kind_ == Text::tiled) {
    write_tiled_entry();
  } else if (!has_rows()) {
    write_pointwise_entry();
  } else if (!walking()) {
    write_held_entry();
  } else {
    const std::string before_entries = out_;
    // What `write` appends, as a text by itself.
    auto part = [&](auto write) {
      const size_t begin = out_.size();
      write();
      return before_entries + out_.substr(begin);
    };
    auto& parts = code_.cuda.walking_parts;
    parts.whole_rows = part([&] { write_walking_entry(); });
    parts.split_rows = part([&] {
      for (int p = 0; p <= nest().stages; ++p) write_phase_entry(p);
      for (int p = 0; p < nest().stages; ++p) write_merge_entry(p);
    });
    if (has_sides()) parts.sides = part([&] { write_sides_entry(); });
  }
  describe();
  code_.text = std::move(out_);
  return std::move(code_);
}

// What the launcher must know beside the text.
void CudaEmitter::describe() {
  CudaCode& cuda = code_.cuda;
  cuda.anchor_axes = anchor_axes_;
  cuda.walked_axes = walked_axes_;
  for (int p = 0; p < nest().stages; ++p) {
    std::vector<int64_t> sizes;
    for (int s : reduces_in(p)) sizes.push_back(size_of(compute_type(dtype(s))));
    // Beside the two: first elements, distances of the mean, counts.
    for (int m : moments_in(p)) sizes.insert(sizes.end(), 3, size_of(compute_type(dtype(m))));
    cuda.sums.push_back(sizes);
  }
  if (walking()) describe_walking();
  cuda.items = items();
  for (int s = 0; s < count(); ++s) {
    if (is_ahead(s)) cuda.ahead.push_back(operand_of_[static_cast<size_t>(s)].load);
    if (is_fixed(s) && inner_varying(s)) cuda.fixed.push_back(operand_of_[static_cast<size_t>(s)].load);
    if (step(s).side) cuda.position_side.push_back(is_position_side(s));
    auto [load, store] = operand_of_[static_cast<size_t>(s)];
    bool wide = inner_varying(s) && !row_level(s) && !step(s).side;
    if (load >= 0 && wide) cuda.vectors.push_back({load, nest().inner});
    if (store >= 0 && wide) cuda.vectors.push_back({store, nest().inner});
    if (step(s).role != Role::window || inner_tap(s) < 0 || axis(inner_tap(s)).gather) continue;
    for (int other : window_steps(s))
      if (step(other).role == Role::load && varies(step(other), inner_tap(s)))
        cuda.vectors.push_back({operand_of_[static_cast<size_t>(other)].load, inner_tap(s)});
  }
}

void CudaEmitter::describe_walking() {
  CudaLoops::Walking& walking = code_.cuda.walking;
  walking.stages = nest().stages;
  walking.sums = code_.cuda.sums;
  for (int p = 0; p < nest().stages; ++p) walking.leaves_sums.push_back(leaves_sums(p));
  for (int s = 0; s < count(); ++s) walking.final_phase |= row_level(s) && step(s).stored && stage(s) == nest().stages;
}

// Of a pointwise kernel and of columns the rule takes the first, of rows the last but one where that can hold them.
std::vector<int> CudaEmitter::items() const {
  // The taps of a window are many loads already, and its lines are short.
  if (!has_rows()) return {nest().has_window ? 1 : 2};
  if (is_column()) {
    int64_t widest = 0;
    for (int s = 0; s < count(); ++s)
      if (inner_varying(s) && (is_element_load(s) || step(s).stored)) widest = std::max(widest, size_of(dtype(s)));
    const int half = widest > 2 ? 4 : 8;  // vectors of up to four: two bytes each take half the room of four
    return held_bytes() > 4 ? std::vector<int>{2 * half, half} : std::vector<int>{2 * half, 4 * half, half};
  }
  return held_bytes() > 16 ? std::vector<int>{1, 2, 4} : std::vector<int>{1, 2, 4, 8};
}

bool CudaEmitter::is_ahead(int s) const {
  return has_rows() && !walking() && is_element_load(s) && inner_varying(s) && !is_fixed(s);
}

int64_t CudaEmitter::held_bytes() const {
  int64_t always = 0, most = 0;
  for (int s = 0; s < count(); ++s) {
    if (step(s).side && is_position_side(s)) always += size_of(compute_type(dtype(s)));
  }
  // Between passes p and p + 1: what has been carried there, and the operands that are still needed.
  for (int p = -1; p + 1 < nest().stages; ++p) {
    int64_t bytes = 0;
    std::vector<bool> needed(static_cast<size_t>(count()));
    for (int q = p + 1; q < nest().stages; ++q)
      for (int s : needed_in(q)) {
        needed[static_cast<size_t>(s)] = true;
        for (int operand : step(s).operands) needed[static_cast<size_t>(operand)] = true;
      }
    for (int s = 0; s < count(); ++s) {
      if (!needed[static_cast<size_t>(s)]) continue;
      if (carried(s) && stage(s) <= p) bytes += size_of(compute_type(dtype(s)));
      if (is_ahead(s)) bytes += size_of(dtype(s));
    }
    most = std::max(most, bytes);
  }
  return always + most;
}

// Values of the columns, those of the next row that are read ahead, and sums.
int64_t CudaEmitter::row_bytes() const {
  int64_t bytes = 0;
  for (int s = 0; s < count() && is_column(); ++s) {
    const int64_t size = size_of(compute_type(dtype(s)));
    if (row_array(s) && row_level(s)) bytes += step(s).role == Role::load ? 2 * size : size;
    if (step(s).role == Role::reduce) bytes += size;
  }
  return bytes;
}

int64_t CudaEmitter::loaded_bytes(int p) const {
  int64_t bytes = 0;
  for (int s : needed_in(p))
    if (is_element_load(s)) bytes += size_of(dtype(s));
  return bytes;
}

bool CudaEmitter::is_row_axis(int a) const {
  if (a == nest().inner) return inner_in_row();
  return std::find(row_axes().begin(), row_axes().end(), a) != row_axes().end();
}

std::string CudaEmitter::stride(int operand, int a) const {
  return "static_cast<index>(a.strides[" + to_string(operand) + "][" + to_string(a) + "])";
}

bool CudaEmitter::operand_varies(int operand, int a) const {
  for (const auto& list : code_.operands[static_cast<size_t>(operand)].dims)
    if (std::find(list.begin(), list.end(), a) != list.end()) return true;
  return false;
}

// Position on an axis, for element i of the vector.
std::string CudaEmitter::coordinate(int a, const std::string& i) const {
  if (axis(a).tap) return "t" + to_string(a);
  if (a == nest().inner) return "(" + std::string(inner_in_row() ? "row." : at_) + "pos + " + i + ")";
  return (is_row_axis(a) ? "row.c" : at_ + "c") + to_string(a);
}

std::string CudaEmitter::row_offset(int operand) const {
  std::string text = "0";
  for (int a : row_axes())
    if (operand_varies(operand, a)) text += " + row.c" + to_string(a) + " * " + stride(operand, a);
  if (!inner_in_row() || !operand_varies(operand, nest().inner)) return text;
  // What is one value for each column is not read by vectors, and may lie in memory as it likes: row_index adds where.
  if (is_value_of_row(operand)) return text;
  return text + " + fw::along(row.pos, a.strides[" + to_string(operand) + "][" + to_string(nest().inner) + "])";
}

bool CudaEmitter::is_value_of_row(int operand) const {
  for (int s = 0; s < count(); ++s) {
    const Operands& of = operand_of_[static_cast<size_t>(s)];
    if (of.load == operand || of.store == operand) return row_level(s);
  }
  return false;
}

std::string CudaEmitter::element_offset(int operand) const {
  std::string text = "row.o" + to_string(operand);
  for (int a : element_axes()) {
    if (!operand_varies(operand, a)) continue;
    if (by_items())
      text += " + at.first * " + stride(operand, a) + " + at.item * (" + stride(operand, a) + " << at.bits)";
    else
      text += " + " + at_ + "c" + to_string(a) + " * " + stride(operand, a);
  }
  if (!inner_in_row() && nest().inner >= 0 && operand_varies(operand, nest().inner))
    text += " + fw::along(" + at_ + "pos, a.strides[" + to_string(operand) + "][" + to_string(nest().inner) + "])";
  return text;
}

// The offset is added up before the pointer: one addition of 64 bits instead of one for each of its parts.
std::string CudaEmitter::element_address(int operand) const {
  return pointer(operand) + " + (" + element_offset(operand) + ")";
}

// Of element i: an operand of a window may have any stride along the line.
std::string CudaEmitter::lane_offset(int operand, const std::string& i) const {
  std::string text = "row.o" + to_string(operand);
  for (int a : element_axes())
    if (operand_varies(operand, a)) text += " + " + at_ + "c" + to_string(a) + " * " + stride(operand, a);
  if (nest().inner < 0 || !operand_varies(operand, nest().inner)) return text;
  if (inner_in_row()) return text + " + " + i + " * " + stride(operand, nest().inner);
  return text + " + (" + at_ + "pos + " + i + ") * " + stride(operand, nest().inner);
}

std::string CudaEmitter::given(int s) const {
  if (row_level(s) && row_array(s) && own_column_) return "row.own" + to_string(s);
  if (row_level(s)) return "row.v" + to_string(s) + (row_array(s) ? "[i]" : "");
  if (carried(s) && stage(s) < pass_) return "kept.v" + to_string(s) + "[i]";
  if (step(s).role == Role::window) return "w" + to_string(s) + (inner_varying(s) ? "[i]" : "[0]");
  return "";
}

bool CudaEmitter::is_divisor(int s) const {
  if (!row_level(s)) return false;
  for (int user = s + 1; user < count(); ++user)
    if (!row_level(user) && step(user).role == Role::compute && node(user).op == Op::div && step(user).operands[1] == s)
      return true;
  return false;
}

// Whether it is the number of elements in a row.
bool CudaEmitter::counts_row(int s) const {
  if (nest().kind != LoopNest::Kind::row || node(s).op != Op::extent) return false;
  return node(s).sizes("size")[0] == elements_of_row(kernel_.axes, nest());
}

// Quotients of one divisor share its reciprocal: that of a row is kept with it.
std::string CudaEmitter::quotient(int s) const {
  const int by = step(s).operands[1];
  if (counts_row(by)) return "fw::over_row(" + use(step(s).operands[0]) + ", " + use(by) + ")";
  if (step(by).role == Role::scalar || row_level(s) || !is_divisor(by)) return "";
  return "fw::div(" + use(step(s).operands[0]) + ", row.d" + to_string(by) + (row_array(by) ? "[i])" : ")");
}

std::string CudaEmitter::accumulator_type(int s) const { return register_type(dtype(s)); }

// Accumulates what s reduces. A product is added in one instruction: the compiler would not do that across a condition.
std::string CudaEmitter::accumulate(int s, const std::string& total) const {
  const int value = step(s).operands[0];
  const bool here = step(value).role == Role::compute && !step(value).rounded && !row_level(value) &&
                    !(carried(value) && stage(value) < pass_);
  const bool real = is_float(dtype(s)) && compute_type(dtype(value)) == compute_type(dtype(s));
  if (node(s).op != Op::sum || node(value).op != Op::mul || !here || !real) return combine(s, total, use(value));
  return total + " = fw::mad(" + use(step(value).operands[0]) + ", " + use(step(value).operands[1]) + ", " + total +
         ");";
}

// Accumulates `value` into `total`. A NaN stays.
std::string CudaEmitter::combine(int s, const std::string& total, const std::string& value) const {
  if (node(s).op == Op::sum) return total + " += " + value + ";";
  if (node(s).op == Op::prod) return total + " *= " + value + ";";
  return total + " = fw::" + (node(s).op == Op::amax ? "maximum(" : "minimum(") + total + ", " + value + ");";
}

bool CudaEmitter::is_position_side(int s) const {
  if (inner_varying(s)) return true;
  for (int a : nest().reduced)
    if (varies(step(s), a)) return true;
  return false;
}

std::vector<int> CudaEmitter::sides(bool position) const {
  std::vector<int> result;
  for (int s = 0; s < count(); ++s)
    if (step(s).side && is_position_side(s) == position) result.push_back(s);
  return result;
}

void CudaEmitter::write_header() {
  line("namespace {");
  line("using fw::index;");
  line("using fw::V;");
  line("using fw::ITEMS;");
  auto at_least_one = [](size_t n) { return to_string(std::max<size_t>(n, 1)); };
  line("struct Args : fw::KernelArgs<", at_least_one(kernel_.axes.size()), ", ", at_least_one(code_.operands.size()),
       ", ", at_least_one(code_.numbers.size()), ", ", at_least_one(static_cast<size_t>(nest().stages)), "> {};");
  line();
}

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

// Rows in registers are read once whatever the number of passes, and two of them give the more accurate variance for
// less arithmetic; a kernel that walks over its rows takes both moments in one.
KernelCode emit_cuda(const Graph& graph, const Kernel& kernel) {
  using Text = CudaEmitter::Text;
  CudaEmitter emitter(graph, kernel, Text::ordinary);
  const bool can_tile = emitter.can_tile();
  KernelCode code = emitter.run();
  code.cuda.can_tile = can_tile;
  if (can_tile) code.cuda.tiled_text = CudaEmitter(graph, kernel, Text::tiled).run().text;
  if (code.nest.kind == LoopNest::Kind::pointwise) return code;
  KernelCode walking = CudaEmitter(graph, kernel, Text::walking).run();
  code.cuda.walking = walking.cuda.walking;
  code.cuda.walking_text = walking.text;
  code.cuda.walking_parts = walking.cuda.walking_parts;
  return code;
}

}  // namespace fusewright
