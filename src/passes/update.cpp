// Running statistics: which outputs that replace an input are written over it by the kernel that computes them, so that
// no copy follows. An output is, if
//   - whatever else reads the input runs before that kernel;
//   - the kernel reads and writes each element once, in the same place: the value is one of the row's (mean, variance)
//     and has all axes of the rows, or is done once, and what is loaded goes nowhere but there;
//   - nothing else (another output, the backward) wants the value's memory.
// Who calls may still find that the tensors of a call share memory; then, and for all other outputs of this kind, the
// value gets memory of its own and is copied at the end.
#include <algorithm>

#include "passes/program.h"

namespace fusewright {
namespace {

bool reads(const Graph& graph, const Group& group, Value input) {
  const std::vector<Step>& steps = group.kernel.steps;
  return std::any_of(steps.begin(), steps.end(), [&](const Step& step) { return loads(graph, step, input); });
}

// One element for each row, worked out between the passes over it.
bool is_of_the_row(const Kernel& kernel, size_t s) {
  std::vector<int> loops, own;
  for (size_t a = 0; a < kernel.axes.size(); ++a)
    if (!kernel.axes[a].reduced && !kernel.axes[a].tap) loops.push_back(static_cast<int>(a));
  for (const auto& list : kernel.steps[s].dims) own.insert(own.end(), list.begin(), list.end());
  std::sort(own.begin(), own.end());
  if (!kernel.reduces() || own != loops || kernel.steps[s].side) return false;
  // Windows and positions are worked out in the loops over elements, and so is all that needs them.
  std::vector<size_t> todo = {s};
  while (!todo.empty()) {
    const Step& step = kernel.steps[todo.back()];
    todo.pop_back();
    if (step.role == Step::Role::window || step.role == Step::Role::iota) return false;
    if (step.role == Step::Role::compute)
      for (int operand : step.operands) todo.push_back(static_cast<size_t>(operand));
  }
  return true;
}

bool leads_only_to(const Kernel& kernel, size_t from, size_t goal) {
  std::vector<bool> reached(kernel.steps.size());
  reached[from] = true;
  for (size_t s = from + 1; s < kernel.steps.size(); ++s) {
    const Step& step = kernel.steps[s];
    for (int operand : step.operands) reached[s] = reached[s] || reached[static_cast<size_t>(operand)];
    if (reached[s] && s != goal && (step.stored || step.role != Step::Role::compute)) return false;
  }
  return true;
}

bool is_wanted_elsewhere(const Program& program, size_t output) {
  const Graph& graph = program.forward;
  for (size_t other = 0; other < graph.outputs.size(); ++other)
    if (other != output && graph.base(graph.outputs[other].value) == graph.outputs[output].value) return true;
  return std::any_of(program.saved.begin(), program.saved.end(), [&](const Program::Saved& saved) {
    return !saved.is_input && saved.index == static_cast<int>(output);
  });
}

// Marks the loads and returns true, if the output may be written over the input.
bool write_in_place(const Graph& graph, Fusion& fusion, const Output& output) {
  const Value input = graph.inputs[static_cast<size_t>(output.into)];
  Kernel* writer = nullptr;
  size_t goal = 0;
  for (Group& group : fusion.groups) {
    // In the order in which they run: no reader stands behind the writer.
    if (writer && reads(graph, group, input)) return false;
    for (size_t s = 0; s < group.kernel.steps.size(); ++s)
      if (group.kernel.steps[s].stored && group.kernel.steps[s].value == output.value) writer = &group.kernel, goal = s;
  }
  if (!writer || !(writer->steps[goal].once || is_of_the_row(*writer, goal))) return false;
  std::vector<Step*> found;
  for (size_t s = 0; s < writer->steps.size(); ++s) {
    Step& step = writer->steps[s];
    if (!loads(graph, step, input)) continue;
    if (step.value != input || step.dims != writer->steps[goal].dims || !leads_only_to(*writer, s, goal)) return false;
    found.push_back(&step);
  }
  for (Step* load : found) load->overwritten = true;
  return true;
}

}  // namespace

void update(Program& program) {
  const std::vector<Output>& outputs = program.forward.outputs;
  for (size_t i = 0; i < outputs.size(); ++i)
    if (outputs[i].into >= 0 && !is_wanted_elsewhere(program, i) &&
        write_in_place(program.forward, program.forward_fusion, outputs[i]))
      program.forward_fusion.in_place.push_back(static_cast<int>(i));
}

}  // namespace fusewright
