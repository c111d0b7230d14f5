// What one thread does with one vector of elements: load, compute, accumulate, store.
#include <algorithm>
#include <cmath>

#include "codegen/walk/cuda_emitter.h"

namespace fusewright {

using std::to_string;

bool CudaEmitter::is_element_load(int s) const { return step(s).role == Role::load && !row_level(s) && !in_window(s); }

bool CudaEmitter::is_fixed(int s) const {
  return is_element_load(s) && !walked_axes_.empty() &&
         std::none_of(walked_axes_.begin(), walked_axes_.end(), [&](int a) { return varies(step(s), a); });
}

// Operands as they lie in memory, so that a register holds two 16-bit elements.
void CudaEmitter::write_values() {
  for (bool fixed : {false, true}) {
    open("struct ", fixed ? "Fixed" : "Values");
    for (int s = 0; s < count(); ++s)
      if (is_element_load(s) && is_fixed(s) == fixed)
        line(storage_type(dtype(s)), " in", to_string(s), inner_varying(s) ? "[V];" : ";");
    close(";");
  }
  open("struct Kept");
  for (int s = 0; s < count(); ++s)
    if (carried(s)) line(reg(s), " v", to_string(s), "[V];");
  close(";");
  line();
}

// The operands of a row on their way through shared memory: every thread asks for its own vectors, and takes them from
// there when the row's turn has come. What is the same for all rows of a team stays there, and is taken by every pass
// that needs it. `slot` is the item's place in what the warp has there: FW_AHEAD or FW_FIXED bytes for each lane.
void CudaEmitter::write_ahead() {
  // The widest first: each is aligned to its own width.
  auto by_width = [&](bool fixed) {
    std::vector<int> result;
    for (int s = 0; s < count(); ++s)
      if (is_element_load(s) && is_fixed(s) == fixed) result.push_back(s);
    std::stable_sort(result.begin(), result.end(), [&](int a, int b) { return size_of(dtype(a)) > size_of(dtype(b)); });
    return result;
  };
  auto write = [&](bool fixed, const std::string& name, const std::vector<int>* needed) {
    std::string to = needed ? (fixed ? "f.in" : "x.in") : "";
    std::string parameter = needed ? (fixed ? ", Fixed& f" : ", Values& x") : "";
    open("FW_FN void ", name, "(const Args& a, const Row& row, const Place& at, char* slot", parameter, ")");
    line("(void)a, (void)row, (void)at, (void)slot", needed ? (fixed ? ", (void)f;" : ", (void)x;") : ";");
    std::string before;
    for (int s : by_width(fixed)) {
      int operand = operand_of_[static_cast<size_t>(s)].load;
      std::string from = element_address(operand), in = to + to_string(s);
      const bool wanted = !needed || std::find(needed->begin(), needed->end(), s) != needed->end();
      if (wanted && needed && !inner_varying(s)) line(in, " = fw::load(", from, ", a.reads);");
      if (!inner_varying(s)) continue;
      if (wanted)
        line("fw::",
             needed  ? "take_line"
             : fixed ? "ask_fixed_line"
                     : "ask_line",
             "(slot, 0", before, ", ", from, ", a.reads", needed ? ", " + in : "", ");");
      before += " + fw::ahead_bytes<" + std::string(storage_type(dtype(s))) + ">()";
    }
    line("static_assert(0", before, " <= ", fixed ? "FW_FIXED" : "FW_AHEAD", ", \"the launcher counts otherwise\");");
    close();
  };
  for (bool fixed : {false, true}) write(fixed, fixed ? "ask_fixed" : "ask", nullptr);
  std::vector<int> all;
  for (int s = 0; s < count(); ++s) all.push_back(s);
  write(false, "take", &all);
  for (int p = 0; p < nest().stages; ++p) {
    const std::vector<int> needed = needed_in(p);
    write(true, "take_fixed_" + to_string(p), &needed);
  }
}

// Where the vector stands within its row.
void CudaEmitter::write_element_place() {
  open("struct Place");
  for (int a : element_axes()) line("index c", to_string(a), ";");
  if (!inner_in_row()) line("index pos;");
  if (by_items()) line("index first, item;"), line("fw::u32 bits;");
  close(";");
  open("FW_FN Place place(const Args& a, ", by_items() ? "index first, index item, fw::u32 bits)" : "index e)");
  line("Place at;");
  if (by_items()) {
    line("at.first = first, at.item = item, at.bits = bits;");
    line("const index e = first + (item << bits);");
  }
  line("(void)a, (void)e;");
  std::vector<int> axes = element_axes();
  if (!inner_in_row()) {
    if (axes.empty()) {
      line("at.pos = e * V;");
    } else {
      line("const fw::Quotient line = fw::divided(e, a.line, a.line_divider);");
      line("at.pos = line.remainder * V;");
      line("index rest = line.quotient;");
    }
  } else if (!axes.empty()) {
    line("index rest = e;");
  }
  for (size_t k = axes.size(); k-- > 1;) {
    std::string a = to_string(axes[k]);
    line("const fw::Quotient q", a, " = fw::divided(rest, a.sizes[", a, "], a.divider[", a, "]);");
    line("at.c", a, " = q", a, ".remainder;");
    line("rest = q", a, ".quotient;");
  }
  if (!axes.empty()) line("at.c", to_string(axes[0]), " = rest;");
  line("return at;");
  close();
  line();
  std::vector<int> all;
  for (int s = 0; s < count(); ++s) all.push_back(s);
  if (!has_rows()) {
    write_load("load_moving", all, "x");
  } else if (!walking()) {
    by_way_of_arrival([&] { write_ahead(); },
                      [&] {
                        write_load("load_moving", all, "x");
                        write_load("load_fixed", all, "f");
                      });
  } else {
    for (pass_ = 0; pass_ < nest().stages; ++pass_) write_load("load_" + to_string(pass_), needed_in(pass_), "xf");
  }
}

// How an element is read: as the entry says for what a later pass over the row reads again, and for what none does.
std::string CudaEmitter::manner_of_reading(int s) const {
  if (!walking() || nest().stages == 1 || is_fixed(s)) return "a.reads";
  for (int p = pass_ + 1; p < nest().stages; ++p)
    for (int needed : needed_in(p))
      if (needed == s) return "again";
  return "last";
}

void CudaEmitter::write_load(const std::string& name, const std::vector<int>& steps, const std::string& what) {
  std::string parameters, unused;
  bool moving = what.find('x') != std::string::npos, fixed = what.find('f') != std::string::npos;
  if (moving) parameters += ", [[maybe_unused]] Values& x";
  if (fixed) parameters += ", [[maybe_unused]] Fixed& f";
  if (walking()) line("template <class Again, class Last>");
  open("FW_FN void ", name, "(const Args& a, const Row& row, const Place& at",
       walking() ? ", [[maybe_unused]] Again again, [[maybe_unused]] Last last" : "", parameters, ")");
  line("(void)a, (void)row, (void)at;");
  for (int s : steps) {
    if (!is_element_load(s) || !(is_fixed(s) ? fixed : moving)) continue;
    int operand = operand_of_[static_cast<size_t>(s)].load;
    std::string from = element_address(operand);
    std::string to = (is_fixed(s) ? "f.in" : "x.in") + to_string(s);
    const std::string how = manner_of_reading(s);
    if (inner_varying(s))
      line(kind_ == Text::tiled ? only_if(false, operand) : "", "fw::load_line(", from, ", ", how, ", ", to, ");");
    else
      line(to, " = fw::load(", from, ", ", how, ");");
  }
  close();
}

std::string CudaEmitter::loaded(int s) const {
  return std::string(is_fixed(s) ? "f" : "x") + ".in" + to_string(s) + (inner_varying(s) ? "[i]" : "");
}

// `inside`: the vector belongs to the row. Everything is computed in any case and only writing depends on it, so that
// values of one pass are still there in the next.
void CudaEmitter::write_stage(int p) {
  needed_ = needed_in(p);
  pass_ = p;
  std::string sums = has_rows() ? ", [[maybe_unused]] Sums" + to_string(p) + "& sums" : "";
  if (has_sides()) sums += ", [[maybe_unused]] Side& side, [[maybe_unused]] Total& total";
  open("FW_FN void stage_", to_string(p), "(const Args& a, const Row& row, const Place& at, const Values& x, ",
       "const Fixed& f, Kept& kept, bool inside", sums, ")");
  line("(void)a, (void)row, (void)at, (void)x, (void)f, (void)kept, (void)inside;");
  write_numbers();

  // What is the same for the whole vector, at its first element.
  line("[[maybe_unused]] constexpr int i = 0;");
  std::string first = inner_in_row() ? "row.pos == 0" : "at.pos == 0";
  for (int s : needed_) {
    if (inner_varying(s) || in_window(s)) continue;
    if (step(s).role == Role::window)
      write_window(s);
    else
      line(declaration(s));
    if (!stored_in(s, p)) continue;
    int operand = operand_of_[static_cast<size_t>(s)].store;
    line("if (inside && ", first, ") ", pointer(operand), "[", element_offset(operand), "] = ", stored(s), ";");
  }
  auto is_line = [&](int s) { return inner_varying(s) && !in_window(s); };
  for (int s : needed_)
    if (is_line(s) && stored_in(s, p)) line(storage_type(dtype(s)), " out", to_string(s), "[V];");
  // A vector is added up by itself first: short sums are the more accurate ones.
  std::vector<int> added_up = reduces_in(p);
  std::erase_if(added_up, [&](int s) { return nest().moments_of(s) != nullptr; });
  if (!is_column())
    for (int s : added_up) line(accumulator_type(s), " part", to_string(s), " = ", identity(s, dtype(s)), ";");
  for (int s : sides_in(p))
    if (!is_position_side(s)) line(reg(s), " part", to_string(s), " = ", literal(0, dtype(s)), ";");

  // Windows fill whole lines, which the loop over the vector reads.
  for (int s : needed_)
    if (is_line(s) && step(s).role == Role::window) write_window(s);
  for (int m : moments_in(p)) line("if (inside) sums.m", to_string(m), ".count_vector();");
  out_ += "#pragma unroll\n";
  open("for (int i = 0; i < V; ++i)");
  for (int s : needed_)
    if (is_line(s) && step(s).role != Role::window) line(declaration(s));
  for (int s : needed_)
    if (is_line(s) && stored_in(s, p)) line("out", to_string(s), "[i] = ", stored(s), ";");
  for (int s : needed_)
    if (carried(s)) line("kept.v", to_string(s), "[i] = ", use(s), ";");
  for (int s : added_up) {
    if (is_column())
      line("if (inside) ", accumulate(s, "sums.a" + to_string(s) + "[i]"));
    else
      line(accumulate(s, "part" + to_string(s)));
  }
  for (int m : moments_in(p)) line("if (inside) sums.m", to_string(m), ".add(i, ", use(nest().moments_of(m)->of), ");");
  for (int s : sides_in(p)) {
    if (is_position_side(s))
      line("if (inside) ", accumulate(s, "side.s" + to_string(s) + "[i]"));
    else
      line(accumulate(s, "part" + to_string(s)));
  }
  close();

  // A thread's only vector has nothing to be added to.
  for (int s : added_up) {
    if (is_column()) break;
    const std::string sum = "sums.a" + to_string(s), part = "part" + to_string(s);
    line("if (ITEMS == 1 && inside) ", sum, " = ", part, ";");
    line("if (ITEMS != 1 && inside) ", combine(s, sum, part));
  }
  for (int s : sides_in(p))
    if (!is_position_side(s)) line("if (inside) total.s", to_string(s), " += part", to_string(s), ";");
  for (int s : needed_) {
    if (!is_line(s) || !stored_in(s, p)) continue;
    int operand = operand_of_[static_cast<size_t>(s)].store;
    std::string to = element_address(operand);
    if (kind_ == Text::tiled)
      to = "fw::tiled<" + to_string(operand) + "> ? " + tile_of(operand) + " + row.tile : " + to;
    line("if (inside) fw::store_line(", to, ", out", to_string(s), ");");
  }
  close();
  line();
}

}  // namespace fusewright
