#include "codegen/walk/emitter.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace fusewright {

using std::to_string;

Emitter::Emitter(const Graph& graph, const Kernel& kernel, LoopNest nest, Dialect dialect)
    : graph_(graph), kernel_(kernel), element_(graph, kernel, dialect) {
  code_.nest = std::move(nest);
  code_.axes = kernel.axes;
  code_.schedule = code_.nest.name();
  code_.name = kernel_name(graph, kernel, code_.nest.name());
  code_.origins = kernel_origins(graph, kernel);
  code_.numbers = element_.numbers();
  code_.operators = kernel_operators(graph, kernel);
  operand_of_.assign(kernel.steps.size(), {-1, -1});
  for (size_t s = 0; s < kernel.steps.size(); ++s) {
    const Step& step = kernel.steps[s];
    if (step.role == Role::load) operand_of_[s].load = add_operand(step, false, dialect);
    if (step.stored) operand_of_[s].store = add_operand(step, true, dialect);
  }
}

int Emitter::add_operand(const Step& step, bool store, Dialect dialect) {
  DType type = graph_.dtype(step.value);
  if (step.side) type = dialect == Dialect::cpp ? DType::f64 : compute_type(type);
  code_.operands.push_back({step.value, store, type, step.dims, step.side});
  return static_cast<int>(code_.operands.size()) - 1;
}

bool Emitter::in_window(int s) const {
  for (const auto& list : step(s).dims)
    for (int a : list)
      if (axis(a).tap) return true;
  return false;
}

bool Emitter::has_sides() const {
  return std::any_of(kernel_.steps.begin(), kernel_.steps.end(), [](const Step& step) { return step.side; });
}

std::vector<int> Emitter::reduces() const {
  std::vector<int> result;
  for (int s = 0; s < count(); ++s)
    if (step(s).role == Role::reduce && !step(s).side) result.push_back(s);
  return result;
}

std::vector<int> Emitter::reduces_in(int p) const {
  std::vector<int> result;
  for (int s : reduces())
    if (stage(s) == p + 1) result.push_back(s);
  return result;
}

std::vector<int> Emitter::sides_in(int p) const {
  std::vector<int> result;
  for (int s = 0; s < count(); ++s)
    if (step(s).side && stage(s) == p) result.push_back(s);
  return result;
}

// What the reductions and stores of the pass need, without values of the whole row and those of earlier passes.
std::vector<int> Emitter::needed_in(int p) const {
  std::vector<int> todo;
  for (int s = 0; s < count(); ++s)
    if (stored_in(s, p) && step(s).role != Role::reduce) todo.push_back(s);
  for (int s : reduces_in(p)) {
    const LoopNest::Moments* moments = nest().moments_of(s);
    todo.push_back(moments ? moments->of : step(s).operands[0]);
  }
  for (int s : sides_in(p)) todo.push_back(step(s).operands[0]);
  for (int s = 0; s < count(); ++s)
    if (carried(s) && stage(s) == p) todo.push_back(s);
  return element_.needed(todo, [&](int s) { return row_level(s) || (carried(s) && stage(s) < p); });
}

bool Emitter::stored_in(int s, int p) const { return step(s).stored && !row_level(s) && stage(s) == p; }

std::string Emitter::pointer(int operand) const {
  const KernelCode::Operand& o = code_.operands[static_cast<size_t>(operand)];
  std::string type = std::string(o.store ? "" : "const ") + storage_type(o.dtype) + "*";
  return "static_cast<" + type + ">(a.pointers[" + to_string(operand) + "])";
}

// What a reduction starts from.
std::string Emitter::identity(int s, DType type) const {
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
  return literal(largest ? -INFINITY : INFINITY, type);
}

// Steps in the cone of a window that depend on its taps, and those that only change along the line (a per-channel
// factor where channels lie innermost).
std::vector<int> Emitter::window_steps(int window) const {
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

int Emitter::inner_tap(int window) const {
  for (int a : step(window).taps)
    if (nest().inner >= 0 && axis(a).base == nest().inner) return a;
  return -1;
}

// Which element of the window this is, row-major.
std::string Emitter::tap_number(int s) const {
  std::string text = "0";
  for (int a : step(s).taps) text = "(" + text + ") * " + to_string(axis(a).kernel) + " + k" + to_string(a);
  return "static_cast<int>(" + text + ")";
}

}  // namespace fusewright
