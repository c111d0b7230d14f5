#pragma once
// Graphs as text: a test of a pass reads as text before and text after.
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "passes/program.h"
#include "passes/rebuild.h"
#include "support/arrays.h"

namespace fusewright::testing {

// The printed form in which two graphs that mean the same list of operations are equal: inputs first, values numbered.
inline std::string canonical(const Graph& graph) {
  return print(rebuild(
      graph, [](Builder& b, const Node& node, std::vector<Value>& operands) { return copy_node(b, node, operands); }));
}

inline void expect_graph(const Graph& graph, std::string_view text) {
  EXPECT_EQ(canonical(graph), canonical(parse(text)));
}

inline Program program_of(std::string_view text, const std::vector<std::string>& wrt = {}) {
  Program program;
  program.forward = parse(text);
  for (Value v : program.forward.inputs) {
    const std::string& name = program.forward[v].text("name");
    program.wrt.push_back(std::find(wrt.begin(), wrt.end(), name) != wrt.end());
  }
  return program;
}

// Through all passes.
inline Program fused(std::string_view text, const std::vector<std::string>& wrt = {}, bool cuda = false) {
  Program program = program_of(text, wrt);
  program.options.cuda = cuda;
  run_pipeline(program);
  return program;
}

// The message of the Error that `body` must throw.
template <class Body>
std::string error_of(Body body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  ADD_FAILURE() << "no Error was thrown";
  return "";
}

#define EXPECT_ERROR(statement, part)                                                  \
  {                                                                                    \
    std::string message = ::fusewright::testing::error_of([&] { statement; });         \
    EXPECT_NE(message.find(part), std::string::npos) << "the message is: " << message; \
  }

inline std::vector<std::string> op_names(const Graph& graph) {
  std::vector<std::string> names;
  for (const Node& node : graph.nodes)
    if (node.kind() != Kind::source) names.push_back(name_of(node.op));
  return names;
}

inline int count_ops(const Graph& graph, Op op) {
  int count = 0;
  for (const Node& node : graph.nodes) count += node.op == op;
  return count;
}

// Sizes of inputs for given symbols; those left out are 3.
inline std::vector<Array> random_inputs(const Graph& graph, const std::map<std::string, int64_t>& symbols,
                                        std::mt19937& random, double low = -2, double high = 2) {
  std::vector<Array> result;
  for (Value v : graph.inputs) {
    Sizes sizes;
    for (const Size& size : graph.shape(v))
      sizes.push_back(size.evaluate([&](const std::string& name) {
        auto it = symbols.find(name);
        return it == symbols.end() ? 3 : it->second;
      }));
    result.push_back(random_array(graph.dtype(v), sizes, random, low, high));
  }
  return result;
}

}  // namespace fusewright::testing
