// Composites to primitives.
#include "ops/composites.h"
#include "passes/program.h"
#include "passes/rebuild.h"

namespace fusewright {

void decompose(Program& program) {
  program.forward = rebuild(program.forward, [&](Builder& b, const Node& node, std::vector<Value>& operands) {
    if (node.kind() == Kind::composite) return expand_composite(b, node, operands, program.options.cuda);
    return copy_node(b, node, operands);
  });
  remove_dead(program.forward);
}

}  // namespace fusewright
