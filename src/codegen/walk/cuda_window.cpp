// Pooling: every element of a vector walks over the taps of its window. Neighbouring windows read one stretch of
// memory, by vectors.
#include <algorithm>
#include <cmath>

#include "codegen/walk/cuda_emitter.h"

namespace fusewright {

using std::to_string;

bool CudaEmitter::always_inside(int s) const {
  if (node(s).op == Op::shift) return false;
  if (node(s).has("ceil_mode") && node(s).integer("ceil_mode") != 0) return false;
  return std::all_of(step(s).taps.begin(), step(s).taps.end(),
                     [&](int a) { return axis(a).padding == 0 && !axis(a).gather; });
}

// Windows over the same taps (a maximum and its index) share one walk: the first of them writes both.
void CudaEmitter::write_window(int s) {
  std::vector<int> group;
  for (int other : needed_)
    if (step(other).role == Role::window && step(other).taps == step(s).taps) group.push_back(other);
  if (group[0] != s) return;
  bool is_max = node(s).op == Op::max_pool || node(s).op == Op::max_pool_index;
  int value = -1, index = -1;
  for (int other : group) (node(other).op == Op::max_pool_index ? index : value) = other;
  std::string best = value >= 0 ? "w" + to_string(value) : "best" + to_string(index);
  DType best_type = value >= 0 ? dtype(value) : dtype(step(index).operands[0]);
  std::string n = inner_varying(s) ? "V" : "1";
  line(value >= 0 ? reg(value) : reg(step(index).operands[0]), " ", best, "[", n, "];");
  if (index >= 0) line("int w", to_string(index), "[", n, "];");
  open_lanes(s);
  line(best, "[i] = ", is_max ? literal(-INFINITY, best_type) : literal(0, best_type), ";");
  if (index >= 0) line("w", to_string(index), "[i] = -1;");
  close();

  open("if (inside)");
  write_what_all_taps_share(s);
  const bool gathers = gathers_by_windows(s), always = gathers && axis(inner_tap(s)).stride == 1;
  if (gathers) {
    if (!always) open("if constexpr (V % ", to_string(axis(inner_tap(s)).stride), " == 0)");
    write_gathered_windows(s);
    if (!always) close();
  }
  if (!always) {
    if (gathers) open("else");
    write_taps(s, best, index);
    if (gathers) close();
  }
  close();
  if (node(s).op == Op::avg_pool) {
    auto position = [&](size_t k) { return tap(s, k).base < 0 ? std::string("0") : coordinate(tap(s, k).base, "i"); };
    auto extent = [&](size_t k) { return "a.sizes[" + to_string(step(s).taps[k]) + "]"; };
    open_lanes(s);
    line(best, "[i] /= ", divisor(s, position, extent), ";");
    close();
  }
  for (int other : group) {
    if (!step(other).rounded) continue;
    const std::string element = "w" + to_string(other) + "[i]";
    open_lanes(other);
    line(element, " = ", rounded(other, element), ";");
    close();
  }
}

// Values that only change along the line (a factor for each channel, where channels lie innermost) are the same in all
// taps: they are worked out before, and those that a tap uses are kept.
void CudaEmitter::write_what_all_taps_share(int s) {
  const std::vector<int> steps = window_steps(s);
  auto is_shared = [&](int other) { return !in_window(other); };
  if (std::none_of(steps.begin(), steps.end(), is_shared)) return;
  for (int other : steps) {
    if (!is_shared(other)) continue;
    const std::string name = to_string(other);
    if (is_used_in_taps(s, other)) line(reg(other), " shared", name, "[V];");
    if (step(other).role != Role::load) continue;
    const int operand = operand_of_[static_cast<size_t>(other)].load;
    line(storage_type(dtype(other)), " line", name, "[V];");
    line("fw::load_line(", pointer(operand), " + ", lane_offset(operand, "0"), ", a.reads, line", name, ");");
  }
  const Tap from_line(*this, [](int load) { return "line" + to_string(load) + "[i]"; });
  open_lanes(s);
  for (int other : steps) {
    if (!is_shared(other)) continue;
    const std::string name = to_string(other);
    line(element_.declaration(other, from_line));
    if (is_used_in_taps(s, other)) line("shared", name, "[i] = v", name, ";");
  }
  close();
}

bool CudaEmitter::is_used_in_taps(int s, int shared) const {
  auto uses = [&](int other) {
    const std::vector<int>& operands = step(other).operands;
    return std::find(operands.begin(), operands.end(), shared) != operands.end();
  };
  const std::vector<int> steps = window_steps(s);
  return uses(s) || std::any_of(steps.begin(), steps.end(), [&](int other) { return in_window(other) && uses(other); });
}

void CudaEmitter::open_lanes(int s) {
  out_ += "#pragma unroll\n";
  open("for (int i = 0; i < ", inner_varying(s) ? "V" : "1", "; ++i)");
}

// Each element of the vector for itself.
void CudaEmitter::write_taps(int s, const std::string& best, int index) {
  int inner = inner_tap(s), opened = 0;
  if (loads_together(s)) {
    int outer = 0;
    declare_spans(s);
    for (size_t k = 0; k < step(s).taps.size(); ++k)
      if (step(s).taps[k] != inner) open_tap(s, k), ++outer;
    write_spans(s);
    for (int k = 0; k < outer; ++k) close();
  }
  for (size_t k = 0; k < step(s).taps.size(); ++k)
    if (step(s).taps[k] != inner) open_tap(s, k), ++opened;
  if (!loads_together(s)) {
    declare_spans(s);
    write_spans(s);
  }
  open_lanes(s);
  for (size_t k = 0; k < step(s).taps.size(); ++k)
    if (step(s).taps[k] == inner) open_tap(s, k), ++opened;
  write_window_body(s, best, index);
  close();
  for (int k = 0; k < opened; ++k) close();
}

// Whether neighbours take what they gather from the same windows along the line: few, which a thread holds. They are
// as many as begin within a window's reach.
bool CudaEmitter::gathers_by_windows(int s) const {
  if (inner_tap(s) < 0 || !axis(inner_tap(s)).gather) return false;
  const Axis& t = axis(inner_tap(s));
  if ((t.kernel - 1) * t.dilation >= 8) return false;
  const std::vector<int> steps = window_steps(s);
  return std::none_of(steps.begin(), steps.end(), [&](int other) { return inner_varying(other); });
}

// Where vectors begin at multiples of the stride: all windows that reach into the vector are read, and what they give
// is worked out, once; then each element takes what is its own, by numbers that the compiler knows.
void CudaEmitter::write_gathered_windows(int s) {
  const int inner = inner_tap(s);
  const Axis& t = axis(inner);
  const std::string id = to_string(inner), size = "static_cast<index>(a.sizes[" + id + "])", st = to_string(t.stride);
  const int64_t reach = t.padding - (t.kernel - 1) * t.dilation;  // of the vector's first element, to the left
  const int64_t first = reach >= 0 ? (reach + t.stride - 1) / t.stride : -(-reach / t.stride);
  int opened = 0;
  for (size_t k = 0; k < step(s).taps.size(); ++k)
    if (step(s).taps[k] != inner) open_tap(s, k), ++opened;
  line("constexpr int last = (V - 1 + ", to_string(t.padding), ") / ", st, ", windows = last < ", to_string(first),
       " ? 1 : last - (", to_string(first), ") + 1;");
  line("const index first = static_cast<index>(fw::unsigned_of(", coordinate(t.base, "0"), ") / ", st, "u) + (",
       to_string(first), ");");
  for (int load : window_steps(s)) {
    if (step(load).role != Role::load || !varies(step(load), inner)) continue;
    const int operand = operand_of_[static_cast<size_t>(load)].load;
    line(storage_type(dtype(load)), " tap", to_string(load), "[windows];");
    line("fw::load_span<1, false>(", tap_line(s, operand), ", first, a.sizes[", id, "], a.strides[", to_string(operand),
         "][", id, "], a.reads, tap", to_string(load), ");");
  }
  const bool is_max = node(s).op == Op::max_pool_grad;
  line(reg(s), " given[windows];");
  if (is_max) line("int winner[windows];");
  out_ += "#pragma unroll\n";
  open("for (int j = 0; j < windows; ++j)");
  line("const index t", id, " = first + j;");
  write_window_steps(s, "[j]");
  line("given[j] = t", id, " >= 0 && t", id, " < ", size, " ? ", given_by_window(s), " : ", literal(0, dtype(s)), ";");
  if (is_max) line("winner[j] = ", use(step(s).operands[1]), ";");
  close();
  open_lanes(s);
  out_ += "#pragma unroll\n";
  open("for (int k", id, " = 0; k", id, " < ", to_string(t.kernel), "; ++k", id, ")");
  line("const int n = i + ", to_string(t.padding), " - k", id, " * ", to_string(t.dilation), ";");
  line("if (n % ", st, " != 0) continue;");
  line("const int j = n / ", st, " - (", to_string(first), ");");
  const std::string sum = "w" + to_string(s) + "[i] += ";
  if (is_max)
    line(sum, "winner[j] == ", tap_number(s), " ? given[j] : ", literal(0, dtype(s)), ";");
  else
    line(sum, "given[j];");
  close();
  close();
  for (int k = 0; k < opened; ++k) close();
}

// Loop over one dimension of the window; t<axis> is the position read.
void CudaEmitter::open_tap(int s, size_t k) {
  const Axis& t = tap(s, k);
  std::string id = to_string(step(s).taps[k]), size = "static_cast<index>(a.sizes[" + id + "])";
  const std::string st = to_string(t.stride), k_name = "k" + id, t_name = "t" + id;
  std::string base = t.base < 0 ? "0" : coordinate(t.base, "i");
  auto over = [&](const std::string& counter, int64_t turns) {
    if (turns <= 8) out_ += "#pragma unroll\n";
    open("for (int ", counter, " = 0; ", counter, " < ", to_string(turns), "; ++", counter, ")");
  };
  if (!t.gather) {
    over(k_name, t.kernel);
    line("[[maybe_unused]] const index ", t_name, " = ", base, " * ", st, " - (", to_string(t.padding), " - ", k_name,
         " * ", to_string(t.dilation), ");");
    if (!always_inside(s)) line("if (", t_name, " < 0 || ", t_name, " >= ", size, ") continue;");
  } else if (t.dilation == 1) {
    // The windows that reach an element: kernel / stride of them, from the last one that begins before it.
    const std::string j = "j" + id, u = "u" + id;
    over(j, (t.kernel + t.stride - 1) / t.stride);
    line("const index ", u, " = ", base, " + ", to_string(t.padding), ";");
    line("const index ", t_name, " = static_cast<index>(fw::unsigned_of(", u, ") / ", st, "u) - ", j, ";");
    line("[[maybe_unused]] const int ", k_name, " = static_cast<int>(", u, " - ", t_name, " * ", st, ");");
    line("if (", k_name, " >= ", to_string(t.kernel), " || ", t_name, " < 0 || ", t_name, " >= ", size, ") continue;");
  } else {
    // Unsigned: where vectors begin at multiples of the stride, most taps of an element drop out at compile time.
    over(k_name, t.kernel);
    line("const index u", id, " = ", base, " + ", to_string(t.padding), " - ", k_name, " * ", to_string(t.dilation),
         ";");
    line("const index t", id, " = static_cast<index>(fw::unsigned_of(u", id, ") / ", st, "u);");
    line("if (u", id, " < 0 || fw::unsigned_of(u", id, ") % ", st, "u != 0 || t", id, " >= ", size, ") continue;");
  }
}

// Small windows that no edge cuts off ask for all that they read before they work on the first of it.
bool CudaEmitter::loads_together(int s) const {
  int64_t lines = 1;
  for (int a : step(s).taps)
    if (a != inner_tap(s)) lines *= axis(a).kernel;
  return always_inside(s) && lines <= 4;
}

// The lines that a window reads: the taps of a line, where they are all asked for at once.
std::string CudaEmitter::span(int s, int load) const {
  std::string name = "tap" + to_string(load);
  for (int a : step(s).taps)
    if (a != inner_tap(s) && loads_together(s)) name += "[k" + to_string(a) + "]";
  return name;
}

bool CudaEmitter::is_span(int s, int load) const {
  return inner_tap(s) >= 0 && varies(step(load), inner_tap(s)) && !axis(inner_tap(s)).gather;
}

void CudaEmitter::declare_spans(int s) {
  std::string lines;
  for (int a : step(s).taps)
    if (a != inner_tap(s) && loads_together(s)) lines += "[" + to_string(axis(a).kernel) + "]";
  for (int load : window_steps(s)) {
    if (step(load).role != Role::load || !in_window(load)) continue;
    std::string name = "tap" + to_string(load), type = storage_type(dtype(load));
    if (inner_varying(load)) {
      line(type, " ", name, lines, "[V];");
    } else if (is_span(s, load)) {
      const Axis& t = axis(inner_tap(s));
      line("constexpr int span", to_string(load), " = (V - 1) * ", to_string(t.stride), " + ",
           to_string((t.kernel - 1) * t.dilation + 1), ";");
      line(type, " ", name, lines, "[span", to_string(load), "];");
    }
  }
}

// Where the line begins that these taps read.
std::string CudaEmitter::tap_line(int s, int operand) const {
  std::string from = pointer(operand) + " + " + lane_offset(operand, "0");
  for (int a : step(s).taps)
    if (a != inner_tap(s) && operand_varies(operand, a)) from += " + t" + to_string(a) + " * " + stride(operand, a);
  return from;
}

// What the windows of a vector read along the line.
void CudaEmitter::write_spans(int s) {
  int inner = inner_tap(s);
  for (int load : window_steps(s)) {
    if (step(load).role != Role::load || !in_window(load)) continue;
    int operand = operand_of_[static_cast<size_t>(load)].load;
    std::string name = span(s, load), from = tap_line(s, operand);
    if (inner_varying(load)) {
      line("fw::load_line(", from, ", a.reads, ", name, ");");
    } else if (is_span(s, load)) {
      const Axis& t = axis(inner);
      line("fw::load_span<", to_string(t.padding), always_inside(s) ? ", true>(" : ", false>(", from, ", ",
           coordinate(t.base, "0"), " * ", to_string(t.stride), " - ", to_string(t.padding), ", a.sizes[",
           to_string(inner), "], a.strides[", to_string(operand), "][", to_string(inner), "], a.reads, ", name, ");");
    }
  }
}

// What a window works on, in one of its taps. `window`: the windows along the line have been read, and this is which.
void CudaEmitter::write_window_steps(int s, const std::string& window) {
  const Tap tap(*this, [&](int load) { return tap_operand(s, load, window); });
  for (int other : window_steps(s)) {
    const std::string name = to_string(other);
    if (in_window(other))
      line(element_.declaration(other, tap));
    else if (is_used_in_taps(s, other))
      line("const ", reg(other), " v", name, " = shared", name, "[i];");
  }
}

std::string CudaEmitter::tap_operand(int s, int load, const std::string& window) const {
  const int inner = inner_tap(s), operand = operand_of_[static_cast<size_t>(load)].load;
  if (inner_varying(load)) return span(s, load) + "[i]";
  if (is_span(s, load))
    return span(s, load) + "[i * " + to_string(axis(inner).stride) + " + k" + to_string(inner) + " * " +
           to_string(axis(inner).dilation) + "]";
  if (!window.empty() && varies(step(load), inner)) return "tap" + to_string(load) + window;
  std::string offset = lane_offset(operand, "i");
  for (int a : step(s).taps)
    if (operand_varies(operand, a)) offset += " + t" + to_string(a) + " * " + stride(operand, a);
  return "fw::load(" + pointer(operand) + " + " + offset + ", a.reads)";
}

// To each element that the window at t<axis> has as a gradient: to its largest, or to all.
std::string CudaEmitter::given_by_window(int s) {
  const std::string operand = use(step(s).operands[0]);
  if (node(s).op == Op::max_pool_grad) return operand;
  auto position = [&](size_t k) { return "t" + to_string(step(s).taps[k]); };
  auto extent = [&](size_t k) {
    return tap(s, k).base < 0 ? std::string("1") : "a.sizes[" + to_string(tap(s, k).base) + "]";
  };
  return operand + " / " + divisor(s, position, extent);
}

void CudaEmitter::write_window_body(int s, const std::string& best, int index) {
  write_window_steps(s, "");
  std::string operand = use(step(s).operands[0]), number = tap_number(s), value = "w" + to_string(s) + "[i]";
  switch (node(s).op) {
    case Op::max_pool:
    case Op::max_pool_index: {
      // PyTorch's comparison: a NaN always wins, and the first of equals does.
      std::string take = operand + " > " + best + "[i] || " + operand + " != " + operand;
      std::string at = index >= 0 ? "w" + to_string(index) + "[i]" : "";
      if (index >= 0) take += " || " + at + " < 0";
      line("const bool take = ", take, ";");
      line(best, "[i] = take ? ", operand, " : ", best, "[i];");
      if (index >= 0) line(at, " = take ? ", number, " : ", at, ";");
      break;
    }
    case Op::max_pool_grad:
      line(value, " += ", use(step(s).operands[1]), " == ", number, " ? ", given_by_window(s), " : ",
           literal(0, dtype(s)), ";");
      break;
    case Op::shift:
      line(value, " = ", operand, ";");
      break;
    case Op::avg_pool:
      line(value, " += ", operand, ";");
      break;
    default:
      line(value, " += ", given_by_window(s), ";");
  }
}

}  // namespace fusewright
