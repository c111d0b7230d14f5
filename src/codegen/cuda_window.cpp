// Pooling: every element of a vector walks over the taps of its window. Neighbouring windows read one stretch of
// memory, by vectors.
#include <algorithm>
#include <cmath>

#include "codegen/cuda_emitter.h"

namespace fusewright {

using std::to_string;

bool CudaEmitter::always_inside(int s) const {
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
  auto open_lanes = [&] {
    out_ += "#pragma unroll\n";
    open("for (int i = 0; i < ", n, "; ++i)");
  };
  open_lanes();
  line(best, "[i] = ", is_max ? literal(-INFINITY, best_type) : literal(0, best_type), ";");
  if (index >= 0) line("w", to_string(index), "[i] = -1;");
  close();

  open("if (inside)");
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
  open_lanes();
  for (size_t k = 0; k < step(s).taps.size(); ++k)
    if (step(s).taps[k] == inner) open_tap(s, k), ++opened;
  write_window_body(s, best, index);
  close();
  for (int k = 0; k < opened; ++k) close();
  close();
  if (node(s).op == Op::avg_pool) {
    auto position = [&](size_t k) { return tap(s, k).base < 0 ? std::string("0") : coordinate(tap(s, k).base, "i"); };
    auto extent = [&](size_t k) { return "a.sizes[" + to_string(step(s).taps[k]) + "]"; };
    open_lanes();
    line(best, "[i] /= ", divisor(s, position, extent), ";");
    close();
  }
}

// Loop over one dimension of the window; t<axis> is the position read.
void CudaEmitter::open_tap(int s, size_t k) {
  const Axis& t = tap(s, k);
  std::string id = to_string(step(s).taps[k]), size = "static_cast<index>(a.sizes[" + id + "])";
  std::string shift = to_string(t.padding) + " - k" + id + " * " + to_string(t.dilation), st = to_string(t.stride);
  std::string base = t.base < 0 ? "0" : coordinate(t.base, "i");
  if (t.kernel <= 8) out_ += "#pragma unroll\n";
  open("for (int k", id, " = 0; k", id, " < ", to_string(t.kernel), "; ++k", id, ")");
  if (!t.gather) {
    line("[[maybe_unused]] const index t", id, " = ", base, " * ", st, " - (", shift, ");");
    if (!always_inside(s)) line("if (t", id, " < 0 || t", id, " >= ", size, ") continue;");
  } else {
    // Unsigned: where vectors begin at multiples of the stride, most taps of an element drop out at compile time.
    line("const index u", id, " = ", base, " + ", shift, ";");
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
    if (step(load).role != Role::load) continue;
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

// What the windows of a vector read along the line.
void CudaEmitter::write_spans(int s) {
  int inner = inner_tap(s);
  for (int load : window_steps(s)) {
    if (step(load).role != Role::load) continue;
    int operand = operand_of_[static_cast<size_t>(load)].load;
    std::string name = span(s, load), from = pointer(operand) + " + " + lane_offset(operand, "0");
    for (int a : step(s).taps)
      if (a != inner && operand_varies(operand, a)) from += " + t" + to_string(a) + " * " + stride(operand, a);
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

void CudaEmitter::write_window_body(int s, const std::string& best, int index) {
  int inner = inner_tap(s);
  for (int other : window_steps(s)) {
    std::string name = to_string(other), text;
    if (step(other).role == Role::load) {
      int operand = operand_of_[static_cast<size_t>(other)].load;
      std::string offset = lane_offset(operand, "i");
      for (int a : step(s).taps)
        if (operand_varies(operand, a)) offset += " + t" + to_string(a) + " * " + stride(operand, a);
      if (inner_varying(other))
        text = span(s, other) + "[i]";
      else if (is_span(s, other))
        text = span(s, other) + "[i * " + to_string(axis(inner).stride) + " + k" + to_string(inner) + " * " +
               to_string(axis(inner).dilation) + "]";
      else
        text = "fw::load(" + pointer(operand) + " + " + offset + ", a.reads)";
      text = "fw::convert<" + reg(other) + ">(" + text + ")";
    } else {
      text = step(other).role == Role::iota ? iota(other) : compute(other);
    }
    line("const ", reg(other), " v", name, " = ", text, ";");
  }
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
      line(value, " += ", use(step(s).operands[1]), " == ", number, " ? ", operand, " : ", literal(0, dtype(s)), ";");
      break;
    case Op::avg_pool:
      line(value, " += ", operand, ";");
      break;
    default: {
      auto position = [&](size_t k) { return "t" + to_string(step(s).taps[k]); };
      auto extent = [&](size_t k) {
        return tap(s, k).base < 0 ? std::string("1") : "a.sizes[" + to_string(tap(s, k).base) + "]";
      };
      line(value, " += ", operand, " / ", divisor(s, position, extent), ";");
    }
  }
}

}  // namespace fusewright
