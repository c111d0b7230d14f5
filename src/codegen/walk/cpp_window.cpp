// Pooling: a window fills a line of the kernel around it, tap by tap.
#include <algorithm>
#include <cmath>
#include <utility>

#include "codegen/walk/cpp_emitter.h"

namespace fusewright {

using std::to_string;

// A tap load varies along the line: through the loop itself or through a tap on it.
bool CppEmitter::window_line(int s) const {
  if (inner_varying(s)) return true;
  for (const auto& list : step(s).dims)
    for (int a : list)
      if (axis(a).tap && nest().inner >= 0 && axis(a).base == nest().inner) return true;
  return false;
}

// Fills w<s>[0..n) for the line that starts at `first`. Windows over the same taps (a maximum and its index) share
// one walk: the first of them writes both.
void CppEmitter::write_window(int s, const std::string& n) {
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
  for (size_t k = 0; k < step(s).taps.size(); ++k) open_tap(s, k, n);
  write_window_body(s, n, best, index, gather);
  for (size_t k = 0; k < step(s).taps.size(); ++k) close();
  if (node(s).op == Op::avg_pool) write_average(s, n);
  for (int other : group) {
    if (!step(other).rounded) continue;
    const std::string element = "w" + to_string(other) + "[i]";
    open("for (int i = 0; i < ", n, "; ++i)");
    line(element, " = ", rounded(other, element), ";");
    close();
  }
}

// Loop over one dimension of the window; t<axis> is the position read, [from, to) the elements of the line for which
// it lies inside.
void CppEmitter::open_tap(int s, size_t k, const std::string& n) {
  const Axis& t = tap(s, k);
  std::string id = to_string(step(s).taps[k]), size = "a.sizes[" + id + "]";
  std::string shift = to_string(t.padding) + " - k" + id + " * " + to_string(t.dilation), st = to_string(t.stride);
  open("for (int k", id, " = 0; k", id, " < ", to_string(t.kernel), "; ++k", id, ")");
  if (step(s).taps[k] != inner_tap(s)) {
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

// The position that a tap reads, inside the loop over the elements j that it serves.
std::string CppEmitter::tap_position(int a) const {
  const std::string id = to_string(a);
  const bool along_line = nest().inner >= 0 && axis(a).base == nest().inner;
  if (!along_line) return "t" + id;
  return axis(a).gather ? "(t" + id + " + j)" : "(u" + id + " + j * " + to_string(axis(a).stride) + ")";
}

void CppEmitter::write_window_body(int s, const std::string& n, const std::string& best, int index, bool gather) {
  int inner = inner_tap(s);
  std::string begin = "0", end = n;
  if (inner >= 0 && !gather) begin = "from", end = "to";
  if (inner >= 0 && gather) end = "to";
  line("if (", begin, " >= ", end, ") continue;");
  std::vector<int> steps = window_steps(s);
  for (int load : steps)
    if (step(load).role == Role::load && in_window(load)) write_tap_load(s, load, begin, end);
  for (int other : steps)
    if (step(other).role != Role::load && !window_line(other)) line(element_.declaration(other, first_));
  out_ += "#pragma omp simd\n";
  open("for (int j = ", begin, "; j < ", end, "; ++j)");
  line("const int i = ", inner >= 0 && gather ? "from + j * " + to_string(axis(inner).stride) : "j", ";");
  for (int other : steps) {
    if (!window_line(other)) continue;
    if (step(other).role == Role::load && in_window(other))
      line("const ", reg(other), " v", to_string(other), " = tap", to_string(other), "[j];");
    else
      line(declaration(other));
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
    case Op::shift:
      line("w", to_string(s), "[i] = ", operand, ";");
      break;
    case Op::avg_pool:
      line("w", to_string(s), "[i] += ", operand, ";");
      break;
    default:
      line("w", to_string(s), "[i] += ", operand, " / ", average_divisor(s, true), ";");
  }
  close();
}

void CppEmitter::write_tap_load(int window, int s, const std::string& begin, const std::string& end) {
  int operand = operand_of_[static_cast<size_t>(s)].load;
  std::string address = "offset[" + to_string(operand) + "]", step_text = "0";
  for (int a : step(window).taps) {
    if (!varies(step(s), a)) continue;
    address += " + t" + to_string(a) + " * " + stride(operand, a);
    if (a == inner_tap(window))
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
    line("const ", reg(s), " v", to_string(s), " = fw::convert<", reg(s), ">(", pointer(operand), "[", address, "]);");
  }
}

// Gradient: at the window's position (taps), else at the element's own.
std::string CppEmitter::average_divisor(int s, bool gradient) const {
  auto inner = [&](size_t k) { return step(s).taps[k] == inner_tap(s); };
  auto position = [&](size_t k) {
    if (gradient) return "t" + to_string(step(s).taps[k]) + (inner(k) ? " + j" : "");
    return inner(k) ? "first + i" : base_position(tap(s, k));
  };
  auto extent = [&](size_t k) {
    int a = gradient ? tap(s, k).base : step(s).taps[k];
    return a < 0 ? "1" : "a.sizes[" + to_string(a) + "]";
  };
  return divisor(s, position, extent);
}

void CppEmitter::write_average(int s, const std::string& n) {
  open("for (int i = 0; i < ", n, "; ++i)");
  line("w", to_string(s), "[i] /= ", average_divisor(s, false), ";");
  close();
}

}  // namespace fusewright
