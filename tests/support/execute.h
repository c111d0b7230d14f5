#pragma once
// Graphs as text, compiled and run, forward and backward, against the interpreter.
#include "support/execution.h"
#include "support/graphs.h"

namespace fusewright::testing {

inline void expect_agrees(std::string_view text, const std::vector<Array>& inputs, const Layouts& layouts = {},
                          bool gradients = true) {
  Graph graph = parse(text);
  std::vector<bool> wrt;
  for (Value v : graph.inputs) wrt.push_back(gradients && is_float(graph.dtype(v)));
  EXPECT_EQ(disagreement(*compile(graph, wrt), graph, wrt, inputs, layouts), "") << print(graph);
}

inline void expect_agrees(std::string_view text, const std::map<std::string, int64_t>& symbols,
                          const Layouts& layouts = {}, bool gradients = true) {
  std::mt19937 random(11);
  expect_agrees(text, random_inputs(parse(text), symbols, random), layouts, gradients);
}

}  // namespace fusewright::testing
