#pragma once
// Residual streams: sums of one layer's result and of what earlier layers gave. A kernel that computes such a value
// again reads the results of all layers before it, so that n layers cost n * n reads. `remember` saves these values,
// `fuse` writes them to memory.
#include <algorithm>

#include "passes/upstream.h"

namespace fusewright {

class Streams {
 public:
  explicit Streams(const Graph& graph) : graph_(graph), depth_(graph.nodes.size()), users_(graph.users()) {
    for (size_t i = 0; i < depth_.size(); ++i) {
      for (Value v : graph.nodes[i].operands) depth_[i] = std::max(depth_[i], depth(v));
      depth_[i] += graph.nodes[i].kind() == Kind::contraction;
    }
  }

  // Whether a kernel that computes v reads much that was there before the last contraction on the way to v.
  // `in_memory(value)`: where it reads.
  template <class InMemory>
  bool reads_earlier_layers(Value v, InMemory in_memory) const {
    int64_t bytes = 0;
    walk_upstream(graph_, v, [&](Value next) {
      if (next == v || !in_memory(next)) return true;
      if (depth(next) < depth(v)) bytes += graph_.bytes(next);
      return false;
    });
    return 2 * bytes >= graph_.bytes(v);
  }

  // Whether another kernel needs v after a further contraction.
  bool is_read_by_later_layers(Value v) const {
    return any_user(v, [&](Value user) { return graph_[user].kind() != Kind::contraction && depth(user) > depth(v); });
  }

  // Whether a user, or a user of a view or a cast of v, is of this kind.
  template <class Test>
  bool any_user(Value v, Test test) const {
    for (Value user : users_[static_cast<size_t>(v)]) {
      if (test(user)) return true;
      const bool same = graph_[user].kind() == Kind::movement || graph_[user].op == Op::cast;
      if (same && any_user(user, test)) return true;
    }
    return false;
  }

 private:
  int depth(Value v) const { return depth_[static_cast<size_t>(v)]; }  // contractions one after the other

  const Graph& graph_;
  std::vector<int> depth_;
  std::vector<std::vector<Value>> users_;
};

}  // namespace fusewright
