#pragma once
#include <vector>

#include "ir/ir.h"

namespace fusewright {

// Visits v and what it is computed from, each value once. `enter(value)` says whether to go on to its operands.
template <class Enter>
void walk_upstream(const Graph& graph, Value v, Enter enter) {
  std::vector<bool> seen(graph.nodes.size());
  std::vector<Value> todo = {v};
  while (!todo.empty()) {
    Value next = todo.back();
    todo.pop_back();
    if (seen[static_cast<size_t>(next)]) continue;
    seen[static_cast<size_t>(next)] = true;
    if (enter(next)) todo.insert(todo.end(), graph[next].operands.begin(), graph[next].operands.end());
  }
}

}  // namespace fusewright
