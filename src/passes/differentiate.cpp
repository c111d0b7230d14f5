// Reverse mode over the graph: one rule for each primitive (ops/derivatives.cpp), building graph. Forward and backward
// stay one graph until `remember`, so that simplify and rewrite see both.
#include "ops/composites.h"
#include "ops/derivatives.h"
#include "passes/program.h"
#include "passes/rebuild.h"

namespace fusewright {

bool Program::training() const {
  for (bool wanted : wrt)
    if (wanted) return true;
  return false;
}

void differentiate(Program& program) {
  program.user_outputs = program.forward.outputs.size();
  if (!program.training()) return;
  require(program.tracked.size() == program.user_outputs, "reach comes before differentiate");
  Graph& graph = program.forward;
  Builder builder(graph);
  size_t forward_nodes = graph.nodes.size();

  const std::vector<bool> active = influenced(graph, program.wrt);
  std::vector<Value> gradient(forward_nodes, -1);
  auto accumulate = [&](Value v, Value part) {
    Value& total = gradient[static_cast<size_t>(v)];
    total = total < 0 ? part : builder.binary(Op::add, total, part);
  };
  for (size_t i = 0; i < program.user_outputs; ++i) {
    Output output = graph.outputs[i];
    if (!program.tracked[i]) continue;
    const Type type = graph.type(output.value);
    Value g = builder.input("dL_dy" + std::to_string(i), type.dtype, type.shape, output.order);
    program.gradient_of_output.push_back(static_cast<int>(i));
    accumulate(output.value, g);
  }
  for (size_t i = forward_nodes; i-- > 0;) {
    if (gradient[i] < 0 || !active[i] || graph.nodes[i].kind() == Kind::source) continue;
    std::vector<Value> operands = graph.nodes[i].operands;
    std::vector<bool> wanted;
    for (Value v : operands) wanted.push_back(active[static_cast<size_t>(v)]);
    builder.set_origin(graph.nodes[i].origin);
    std::vector<Value> parts = derivative(builder, static_cast<Value>(i), gradient[i], wanted);
    for (size_t k = 0; k < parts.size(); ++k)
      if (parts[k] >= 0) accumulate(operands[k], parts[k]);
  }
  for (size_t i = 0; i < program.wrt.size(); ++i) {
    if (!program.wrt[i]) continue;
    Value input = graph.inputs[i];
    const Type type = graph.type(input);
    Value g = gradient[static_cast<size_t>(input)];
    // A derivative that is zero everywhere, or a path that a rewrite took away.
    if (g < 0) g = builder.expand(builder.constant(0, type.dtype), type.shape);
    builder.output(g, type.order, false, "dL_d" + graph[input].text("name"));
    program.gradient_for_input.push_back(static_cast<int>(i));
  }
  decompose(program);  // rules may speak in composites (argmax)
}

}  // namespace fusewright
