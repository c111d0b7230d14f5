// The CUDA dialect. A thread works on vectors of neighbouring elements; a team of threads reduces a row together.
//
// Three ways to run a kernel with reductions, all from the same functions:
//   whole, in registers   a team reads its row once and keeps it: every pass after the first costs no memory
//   whole, walking        rows that are too long for that are read again in every pass
//   split                 few long rows: one launch for each pass, many blocks to a row; each block leaves its partial
//                         sums in memory, and every block of the next launch adds them up for itself
// A pointwise kernel is a single pass over lines, without rows.
#include "codegen/cuda_emitter.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "embedded_kernels.h"

namespace fusewright {

using std::to_string;

const std::string& cuda_prelude() {
  static const std::string text = std::string(embedded_prelude) + "\n" + embedded_math + "\n" + embedded_cuda_device +
                                  "\n" + embedded_cuda_loops + "\n";
  return text;
}

CudaEmitter::CudaEmitter(const Graph& graph, const Kernel& kernel)
    : Emitter(graph, kernel, choose_schedule(graph, kernel, true)) {
  // A team stays where sums on the side have their results, or where operands that all rows share (a norm's weights)
  // are the same, and walks over the other rows: what it holds of them is read or written once.
  auto moves = [&](int a) {
    if (nest().kind != LoopNest::Kind::row) return false;
    bool shared = false;
    for (int s = 0; s < count(); ++s) {
      if (has_sides() && step(s).side && varies(step(s), a)) return false;
      if (has_sides() || !is_element_load(s)) continue;
      bool everywhere = std::all_of(row_axes().begin(), row_axes().end(), [&](int r) { return varies(step(s), r); });
      if (!everywhere && varies(step(s), a)) return false;
      shared |= !everywhere;
    }
    return has_sides() || shared;
  };
  for (int a : row_axes()) (moves(a) ? walked_axes_ : anchor_axes_).push_back(a);
}

KernelCode CudaEmitter::run() {
  write_header();
  write_row_state();
  write_values();
  write_side_state();
  write_element_place();
  for (int p = 0; p < nest().stages; ++p) {
    write_sums(p);
    if (has_rows()) write_row_code(p);
    write_stage(p);
  }
  if (has_rows()) write_row_code(nest().stages);
  line("}  // namespace");
  if (has_rows()) {
    write_whole_entry();
    std::string whole = std::exchange(out_, "");
    for (int p = 0; p <= nest().stages; ++p) write_phase_entry(p);
    if (has_sides()) write_sides_entry();
    code_.cuda.split_text = std::exchange(out_, std::move(whole));
  } else {
    write_pointwise_entry();
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
    for (int m : moments_in(p)) sizes.insert(sizes.end(), 2, size_of(compute_type(dtype(m))));  // their counts
    cuda.sums.push_back(sizes);
  }
  cuda.moving_loads = moving_loads();
  for (int s = 0; s < count(); ++s) {
    cuda.final_phase |= row_level(s) && step(s).stored && stage(s) == nest().stages;
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

// Operands that a thread holds a vector of for each of its items, and reads anew for each row.
int CudaEmitter::moving_loads() const {
  int result = 0;
  for (int s = 0; s < count(); ++s) result += is_element_load(s) && inner_varying(s) && !is_fixed(s);
  return result;
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
  if (a == nest().inner) return "(" + std::string(inner_in_row() ? "row." : at_) + "pos + " + i + ")";
  return (is_row_axis(a) ? "row.c" : at_ + "c") + to_string(a);
}

std::string CudaEmitter::row_offset(int operand) const {
  std::string text = "0";
  for (int a : row_axes())
    if (operand_varies(operand, a)) text += " + row.c" + to_string(a) + " * " + stride(operand, a);
  if (inner_in_row() && operand_varies(operand, nest().inner))
    text += " + fw::along(row.pos, a.strides[" + to_string(operand) + "][" + to_string(nest().inner) + "])";
  return text;
}

std::string CudaEmitter::element_offset(int operand) const {
  std::string text = "row.o" + to_string(operand);
  for (int a : element_axes())
    if (operand_varies(operand, a)) text += " + " + at_ + "c" + to_string(a) + " * " + stride(operand, a);
  if (!inner_in_row() && nest().inner >= 0 && operand_varies(operand, nest().inner))
    text += " + fw::along(" + at_ + "pos, a.strides[" + to_string(operand) + "][" + to_string(nest().inner) + "])";
  return text;
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

std::string CudaEmitter::use(int s) const {
  if (step(s).role == Role::scalar) return number(s);
  if (row_level(s)) return "row.v" + to_string(s) + (row_array(s) ? "[i]" : "");
  if (step(s).role == Role::window) return "w" + to_string(s) + (inner_varying(s) ? "[i]" : "[0]");
  return "v" + to_string(s);
}

std::string CudaEmitter::accumulator_type(int s) const { return register_type(dtype(s)); }

// Accumulates `value` into `total`. A NaN stays.
std::string CudaEmitter::combine(int s, const std::string& total, const std::string& value) const {
  if (node(s).op == Op::sum) return total + " += " + value + ";";
  if (node(s).op == Op::prod) return total + " *= " + value + ";";
  const char* better = node(s).op == Op::amax ? " > " : " < ";
  std::string nan = is_float(dtype(s)) ? " || " + value + " != " + value : "";
  return total + " = " + value + better + total + nan + " ? " + value + " : " + total + ";";
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

void CudaEmitter::write_numbers() {
  for (const auto& [value, number] : number_of_) {
    std::string type = register_type(graph_.dtype(value));
    line("[[maybe_unused]] const ", type, " number", to_string(number), " = a.numbers[", to_string(number), "].as<",
         type, ">();");
  }
}

// Where a row is, and what is the same for all its elements.
void CudaEmitter::write_row_state() {
  open("struct Row");
  for (int s = 0; s < count(); ++s)
    if (row_level(s)) line(reg(s), " v", to_string(s), row_array(s) ? "[V];" : ";");
  for (size_t o = 0; o < code_.operands.size(); ++o) line("index o", to_string(o), ";");
  for (int a : row_axes()) line("index c", to_string(a), ";");
  if (inner_in_row()) line("index pos;  // first of this thread's columns");
  line("bool live;  // there is such a row");
  close(";");
  line();
  write_place_row();
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

// The results of pass p: what a thread has so far, then what its team has.
void CudaEmitter::write_sums(int p) {
  if (!has_rows()) return;
  std::string lanes = is_column() ? "[V]" : "", i = is_column() ? "[i]" : "";
  auto each = [&](auto body) {
    for (int s : reduces_in(p)) {
      if (nest().moments_of(s)) continue;
      if (is_column()) {
        out_ += "#pragma unroll\n";
        open("for (int i = 0; i < V; ++i)");
      }
      body(s, "a" + to_string(s) + i);
      if (is_column()) close();
    }
  };
  std::string name = "Sums" + to_string(p);
  open("struct alignas(16) ", name);
  for (int s : reduces_in(p))
    if (!nest().moments_of(s)) line(accumulator_type(s), " a", to_string(s), lanes, ";");
  for (int m : moments_in(p)) line("fw::Moments<", accumulator_type(m), "> m", to_string(m), ";");
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
  close(";");
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
  open("struct alignas(16) Total");
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
  // Into the buffers: those of one pass, or all (-1). `slot` is the team's place in them, `element` the vector's
  // within the row.
  open("FW_FN void put_side(const Args& a, const Side& side, index slot, index element, bool add, int pass)");
  line("const index at = (slot * static_cast<index>(a.elements) + element) * V;");
  for (int s : sides(true)) {
    int operand = operand_of_[static_cast<size_t>(s)].store;
    std::string name = to_string(s);
    open("if (pass < 0 || pass == ", to_string(stage(s)), ")");
    line(reg(s), "* to = ", pointer(operand), " + at;");
    line(reg(s), " sum[V];");
    line("if (add) fw::load_vector<V, fw::Access::plain>(to, sum);");
    out_ += "#pragma unroll\n";
    line("for (int i = 0; i < V; ++i) sum[i] = add ? sum[i] + side.s", name, "[i] : side.s", name, "[i];");
    line("fw::store_line(to, sum);");
    close();
  }
  close();
  open("FW_FN void put_total(const Args& a, [[maybe_unused]] const Total& total, [[maybe_unused]] index slot)");
  line("(void)a;");
  for (int s : sides(false)) {
    int operand = operand_of_[static_cast<size_t>(s)].store;
    line(pointer(operand), "[slot] = total.s", to_string(s), ";");
  }
  close();
  line();
}

// Values of the whole row that are known before pass p: results of the reductions of pass p - 1 and what follows.
void CudaEmitter::write_row_code(int p) {
  std::string sums = p > 0 ? ", [[maybe_unused]] const Sums" + to_string(p - 1) + "& sums" : "";
  open("FW_FN void row_", to_string(p), "(const Args& a, Row& row, [[maybe_unused]] bool store", sums, ")");
  line("(void)a;");
  write_numbers();
  if (is_column()) {
    out_ += "#pragma unroll\n";
    open("for (int i = 0; i < V; ++i)");
  }
  for (int s = 0; s < count(); ++s) {
    if (!row_level(s) || stage(s) != p) continue;
    line(use(s), " = ", row_value(s), ";");
    if (!step(s).stored) continue;
    int operand = operand_of_[static_cast<size_t>(s)].store;
    line("if (store) ", pointer(operand), "[", row_index(s, operand), "] = fw::convert<", storage_type(dtype(s)), ">(",
         use(s), ");");
  }
  if (is_column()) close();
  close();
  line();
}

std::string CudaEmitter::row_value(int s) const {
  if (step(s).role == Role::compute) return compute(s);
  if (const LoopNest::Moments* m = step(s).role == Role::reduce ? nest().moments_of(s) : nullptr)
    return "sums.m" + to_string(m->second) + (s == m->first ? ".sum(i)" : ".squares[i]");
  if (step(s).role == Role::reduce) return "sums.a" + to_string(s) + (is_column() ? "[i]" : "");
  int operand = operand_of_[static_cast<size_t>(s)].load;
  return "fw::convert<" + reg(s) + ">(fw::load(" + pointer(operand) + " + " + row_index(s, operand) + "))";
}

std::string CudaEmitter::row_index(int s, int operand) const {
  std::string index = "row.o" + to_string(operand);
  return row_array(s) ? index + " + i * " + stride(operand, nest().inner) : index;
}

// ---- entries -----------------------------------------------------------------------------------------------

void CudaEmitter::write_pointwise_entry() {
  // A team takes a stretch of one line; its coordinates are worked out once for all of it.
  open("extern \"C\" __global__ void __launch_bounds__(256) ", code_.name, "(const Args a)");
  line("const fw::Team team = fw::make_team(a.team_bits, 0);");
  line("const fw::Quotient block = fw::divided(fw::block_index(), a.tiles, a.tiles_divider);");
  line("const index anchor = block.quotient * static_cast<index>(team.rows()) + static_cast<index>(team.row);");
  line("if (anchor >= a.anchors) return;");
  line("Row row;");
  line("row.live = true;");
  line("place_row(a, anchor, 0, row);");
  line("const index first = block.remainder * (ITEMS << team.bits) + static_cast<index>(team.thread);");
  line("Values x[ITEMS];");
  auto over_items = [&](const char* what) {
    out_ += "#pragma unroll\n";
    open("for (int item = 0; item < ITEMS; ++item)");
    line("const index e = first + (item << team.bits);");
    line("if (e < a.line) ", what, ";");
    close();
  };
  over_items("load_moving(a, row, place(a, e), x[item])");
  over_items("stage_0(a, row, place(a, e), x[item], Fixed(), true)");
  close();
}

// Every thread of a row's team works out the row's values for itself; one of them stores. While a team works on a row
// in registers, the next one that it walks to is on its way.
void CudaEmitter::write_whole_entry() {
  const bool sides = has_sides(), walks = !walked_axes_.empty();
  // Two blocks of columns on a processor, where one operand is all that they hold: one loads while the other reduces.
  const bool light = is_column() && moving_loads() <= 1;
  std::string side = sides ? ", side[item], total" : "", walking_side = sides ? ", once, total" : "";
  open("extern \"C\" __global__ void __launch_bounds__(512, ", light ? "2" : "1", ") ", code_.name, "(const Args a)");
  line("const fw::Team team = fw::make_team(a.team_bits, a.lane_bits);");
  line("const index k = static_cast<index>(fw::block_index() * team.rows() + team.row);");
  line("Row row;");
  if (is_column()) {
    line("const fw::Quotient tile = fw::divided(k, a.tiles, a.tiles_divider);");
    line("row.pos = (tile.remainder * static_cast<index>(team.lanes()) + static_cast<index>(team.lane)) * V;");
    line("const bool there = tile.quotient < a.anchors && row.pos < a.sizes[", to_string(nest().inner), "];");
    line("if (!there) row.pos = 0;");
    line("const index anchor = there ? tile.quotient : 0;");
  } else {
    line("const fw::Quotient slot = fw::divided(k, a.anchors, a.anchors_divider);");
    line("const index anchor = slot.remainder;");
    line("const bool there = slot.quotient < a.parts;");
    if (walks) line("const index start = slot.quotient * static_cast<index>(a.share);");
  }
  auto place = [&](const std::string& row, const std::string& turn) {
    if (walks) {
      line(row, ".live = there && ", turn, " < a.share && start + ", turn, " < a.walked;");
      line("place_row(a, anchor, ", row, ".live ? start + ", turn, " : 0, ", row, ");");
    } else {
      line(row, ".live = there;");
      line("place_row(a, anchor, 0, ", row, ");");
    }
  };
  auto over_items = [&](const std::vector<std::string>& what) {
    out_ += "#pragma unroll\n";
    open("for (int item = 0; item < ITEMS; ++item)");
    line("const index e = static_cast<index>(team.thread) + (item << team.bits);");
    for (const std::string& text : what) line(text);
    close();
  };
  auto load_items = [&](const std::string& row, const std::string& to) {
    over_items({"if (" + row + ".live && e < a.elements) load_moving(a, " + row + ", place(a, e), " + to + "[item]);",
                "else " + to + "[item].clear();"});
  };
  place("row", "0");
  if (sides) {
    line("Total total;");
    line("total.clear();");
  }
  out_ += "#if FW_ITEMS > 0\n";
  if (sides) {
    line("Side side[ITEMS];");
    over_items({"side[item].clear();"});
  }
  line("Fixed f[ITEMS];");
  line("Values x[ITEMS];");
  over_items({"if (there && e < a.elements) load_fixed(a, row, place(a, e), f[item]);", "else f[item].clear();"});
  load_items("row", "x");
  out_ += "#endif\n";
  if (walks) {
    // As many turns for every team, so that lanes of one warp stay together.
    open("for (index turn = 0; turn < a.share; ++turn)");
    line("Row next;");
    place("next", "turn + 1");
    out_ += "#if FW_ITEMS > 0\n";
    line("Values y[ITEMS];");
    load_items("next", "y");
    out_ += "#endif\n";
  }
  line("const bool first = row.live && team.thread == 0;");
  line("row_0(a, row, first);");
  for (int p = 0; p < nest().stages; ++p) {
    std::string id = to_string(p);
    line("Sums", id, " sums", id, ";");
    line("sums", id, ".clear();");
    out_ += "#if FW_ITEMS > 0\n";
    over_items({"stage_" + id + "(a, row, place(a, e), x[item], f[item], row.live && e < a.elements, sums" + id + side +
                ");"});
    out_ += "#else\n";
    line("const index end", id, " = row.live ? static_cast<index>(a.elements) : 0;");
    open("for (index e = static_cast<index>(team.thread); e < end", id, "; e += static_cast<index>(team.threads()))");
    line("Values x;");
    line("Fixed f;");
    line("load_", id, "(a, row, place(a, e), x, f);");
    if (sides) {
      line("Side once;");
      line("once.clear();");
    }
    line("stage_", id, "(a, row, place(a, e), x, f, true, sums", id, walking_side, ");");
    if (sides && !sides_in(p).empty()) line("put_side(a, once, k, e, ", walks ? "turn > 0" : "false", ", ", id, ");");
    close();
    out_ += "#endif\n";
    if (!reduces_in(p).empty()) line("fw::reduce(team, sums", id, ");");
    line("row_", to_string(p + 1), "(a, row, first, sums", id, ");");
  }
  if (walks) {
    line("row = next;");
    out_ += "#if FW_ITEMS > 0\n#pragma unroll\n";
    line("for (int item = 0; item < ITEMS; ++item) x[item] = y[item];");
    out_ += "#endif\n";
    close();
  }
  if (sides) {
    out_ += "#if FW_ITEMS > 0\n";
    over_items({"if (there && e < a.elements) put_side(a, side[item], k, e, false, -1);"});
    out_ += "#endif\n";
    if (!this->sides(false).empty()) {
      line("fw::reduce(team, total);");
      line("if (there && team.thread == 0) put_total(a, total, k);");
    }
  }
  close();
}

// Row values up to those that pass p needs, from the partial sums of the passes before it.
void CudaEmitter::write_row_values_until(int p) {
  for (int q = 0; q <= p; ++q) {
    std::string id = to_string(q - 1);
    if (q > 0) {
      line("Sums", id, " sums", id, ";");
      line("sums", id, ".clear();");
      if (!reduces_in(q - 1).empty()) {
        open("for (index i = static_cast<index>(team.thread); i < a.splits; i += static_cast<index>(team.threads()))");
        line("sums", id, ".merge(static_cast<const Sums", id, "*>(a.partial[", id,
             "])[(k * static_cast<index>(a.splits) + i) * ",
             "static_cast<index>(team.lanes()) + static_cast<index>(team.lane)]);");
        close();
        line("fw::reduce(team, sums", id, ");");
      }
    }
    line("row_", to_string(q), "(a, row, first && ", q == p ? "true" : "false", q > 0 ? ", sums" + id : "", ");");
  }
}

void CudaEmitter::write_phase_entry(int p) {
  const bool last = p == nest().stages;
  std::string id = to_string(p);
  open("extern \"C\" __global__ void __launch_bounds__(256) ", code_.name, "_phase", id, "(const Args a)");
  line("const fw::Team team = fw::make_team(a.team_bits, a.lane_bits);");
  if (last)
    line("const index k = static_cast<index>(fw::block_index()), split = 0;");
  else {
    line("const fw::Quotient item = fw::divided(fw::block_index(), a.splits, a.splits_divider);");
    line("const index k = item.quotient, split = item.remainder;");
  }
  line("Row row;");
  if (is_column()) {
    line("const fw::Quotient tile = fw::divided(k, a.tiles, a.tiles_divider);");
    line("row.pos = (tile.remainder * static_cast<index>(team.lanes()) + static_cast<index>(team.lane)) * V;");
    line("row.live = row.pos < a.sizes[", to_string(nest().inner), "];");
    line("if (!row.live) row.pos = 0;");
    line("place_row(a, tile.quotient, 0, row);");
  } else {
    line("const fw::Quotient slot = fw::divided(k, a.anchors, a.anchors_divider);");
    line("row.live = true;");
    line("place_row(a, slot.remainder, slot.quotient, row);");
  }
  line("const bool first = row.live && team.thread == 0 && split == 0;");
  write_row_values_until(p);
  if (last) {
    close();
    return;
  }
  if (has_sides()) {
    line("Total total;");
    line("total.clear();");
  }
  line("Sums", id, " sums;");
  line("sums.clear();");
  line("const index begin = split * static_cast<index>(a.piece);");
  line("const index end = row.live ? static_cast<index>(fw::min_of(a.elements, begin + a.piece)) : begin;");
  // Several vectors are asked for before the first is worked on.
  line("const index step = static_cast<index>(team.threads());");
  open("for (index e0 = begin + static_cast<index>(team.thread); e0 < end; e0 += fw::AHEAD * step)");
  line("Values x[fw::AHEAD];");
  line("Fixed f[fw::AHEAD];");
  auto over_ahead = [&](const std::vector<std::string>& what) {
    out_ += "#pragma unroll\n";
    open("for (int n = 0; n < fw::AHEAD; ++n)");
    line("const index e = e0 + n * step;");
    open("if (e < end)");
    for (const std::string& text : what) line(text);
    close();
    close();
  };
  over_ahead({"load_" + id + "(a, row, place(a, e), x[n], f[n]);"});
  if (has_sides())
    over_ahead({"Side side;", "side.clear();",
                "stage_" + id + "(a, row, place(a, e), x[n], f[n], true, sums, side, total);",
                sides_in(p).empty() ? "" : "put_side(a, side, k, e, false, " + id + ");"});
  else
    over_ahead({"stage_" + id + "(a, row, place(a, e), x[n], f[n], true, sums);"});
  close();
  if (!reduces_in(p).empty()) {
    line("fw::reduce(team, sums);");
    line("if (team.thread == 0) static_cast<Sums", id, "*>(a.partial[", id,
         "])[(k * static_cast<index>(a.splits) + split) * ",
         "static_cast<index>(team.lanes()) + static_cast<index>(team.lane)] = sums;");
  }
  if (has_sides() && !sides(false).empty() &&
      std::any_of(sides(false).begin(), sides(false).end(), [&](int s) { return stage(s) == p; })) {
    line("fw::reduce(team, total);");
    // Buffers of totals: [part][split][anchor]
    line("if (team.thread == 0) put_total(a, total, (slot.quotient * static_cast<index>(a.splits) + split) * ",
         "static_cast<index>(a.anchors) + slot.remainder);");
  }
  close();
}

// The parts of sums on the side added up: a team for each element of a result.
void CudaEmitter::write_sides_entry() {
  std::vector<int> all = sides(true), totals = sides(false);
  all.insert(all.end(), totals.begin(), totals.end());
  line("namespace {");
  line("template <class T>");
  open("struct SideSum");
  line("T value;");
  line("FW_FN void merge(const SideSum& other) { value += other.value; }");
  line("FW_FN SideSum exchanged(fw::u32 offset) const { return {fw::shuffle_xor(value, offset)}; }");
  close(";");
  for (int s : all) {
    int operand = operand_of_[static_cast<size_t>(s)].store;
    bool position = is_position_side(s);
    std::vector<int> kept, rest;
    std::vector<int> loops = anchor_axes_;
    if (position) {
      loops.insert(loops.end(), nest().reduced.begin(), nest().reduced.end());
      if (nest().inner >= 0) loops.push_back(nest().inner);
    }
    for (int a : loops) (varies(step(s), a) ? kept : rest).push_back(a);
    open("FW_FN void side_", to_string(s), "(const Args& a, const fw::Team& team, index output)");
    line("index from = 0, to = 0, outputs = 1;");
    line("index left = output;");
    for (size_t k = kept.size(); k-- > 0;) {
      std::string a = to_string(kept[k]);
      open("");
      line("const fw::Quotient q = fw::divided(left, a.sizes[", a, "], a.divider[", a, "]);");
      line("left = q.quotient;");
      line("from += q.remainder * static_cast<index>(",
           position ? "a.side_strides[" + a + "]" : "a.total_strides[" + a + "]", ");");
      line("to += q.remainder * ", stride(operand, kept[k]), ";");
      line("outputs *= static_cast<index>(a.sizes[", a, "]);");
      close();
    }
    line("const bool there = left == 0 && outputs > 0;");
    line("index terms = static_cast<index>(", position ? "a.parts" : "a.total_parts", ");");
    line("const index part = static_cast<index>(", position ? "a.anchors * a.elements * V" : "a.anchors", ");");
    for (int a : rest) line("terms *= static_cast<index>(a.sizes[", to_string(a), "]);");
    line("SideSum<", reg(s), "> sum = {", literal(0, dtype(s)), "};");
    open(
        "for (index term = static_cast<index>(team.thread); there && term < terms; term += "
        "static_cast<index>(team.threads()))");
    line("index t = term, offset = from;");
    for (size_t k = rest.size(); k-- > 0;) {
      std::string a = to_string(rest[k]);
      open("");
      line("const fw::Quotient q = fw::divided(t, a.sizes[", a, "], a.divider[", a, "]);");
      line("t = q.quotient;");
      line("offset += q.remainder * static_cast<index>(",
           position ? "a.side_strides[" + a + "]" : "a.total_strides[" + a + "]", ");");
      close();
    }
    line("sum.value += ", pointer(operand), "[offset + t * part];");
    close();
    line("fw::reduce(team, sum);");
    std::string type = storage_type(dtype(s));
    line("if (there && team.thread == 0) static_cast<", type, "*>(a.results[", to_string(operand),
         "])[to] = fw::convert<", type, ">(sum.value);");
    close();
  }
  line("}  // namespace");
  open("extern \"C\" __global__ void __launch_bounds__(512) ", code_.name, "_sides(const Args a)");
  line("const fw::Team team = fw::make_team(a.team_bits, 0);");
  line("const index blocks = static_cast<index>(a.side_blocks), block = static_cast<index>(fw::block_index());");
  line("const index output = block % blocks * static_cast<index>(team.rows()) + static_cast<index>(team.row);");
  open("switch (block / blocks)");
  for (size_t k = 0; k < all.size(); ++k)
    line("case ", to_string(k), ": side_", to_string(all[k]), "(a, team, output); break;");
  close();
  close();
}

KernelCode emit_cuda(const Graph& graph, const Kernel& kernel) { return CudaEmitter(graph, kernel).run(); }

}  // namespace fusewright
