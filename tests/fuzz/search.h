#pragma once
// Draws graphs by their seed, compiles them many at a time, judges them, and cuts a failure down to what is wrong.
#include <chrono>
#include <cstdio>

#include "fuzz/batch.h"
#include "fuzz/judge.h"
#include "fuzz/random_graph.h"

namespace fusewright::testing {

// A graph, and the inputs that its kernels are wrong for.
struct Finding {
  unsigned seed = 0;
  Graph graph;
  std::vector<bool> wrt;
  std::vector<Array> inputs;
  Layouts layouts;
  std::string problem;  // empty: nothing was found
};

// No window is larger than what it looks at, and nothing is too large to interpret.
inline bool possible(const Graph& graph, const std::vector<Array>& inputs) {
  SymbolBinder binder(graph);
  std::vector<Tensor> tensors;
  for (const Array& array : inputs) {
    if (array.size() == 0) return false;
    tensors.push_back(to_tensor(array));
  }
  std::vector<int64_t> symbols = binder.bind(graph, tensors);
  for (const Node& node : graph.nodes) {
    int64_t count = 1;
    for (const Size& size : node.type.shape) {
      int64_t length = SizeProgram(size, binder.slots()).run(symbols.data());
      if (length <= 0) return false;
      count *= length;
    }
    if (count > 70000) return false;
  }
  return true;
}

class Search {
 public:
  // Changes the graph that is compiled: a test plants faults here.
  using Change = std::function<void(Graph&)>;

  Search(Options options, Host& host, Change change = nullptr)
      : options_(std::move(options)), host_(host), change_(std::move(change)) {}

  // The failures among `count` graphs from this seed on, each as it was found. `stop` is asked between batches.
  std::vector<Finding> run(unsigned first, unsigned count, const std::function<bool()>& stop = nullptr) {
    std::vector<Finding> found;
    for (unsigned from = first; from < first + count && !(stop && stop()); from += at_once) {
      std::vector<std::pair<unsigned, RandomGraph>> drawn;
      std::vector<std::pair<Graph, std::vector<bool>>> graphs;
      for (unsigned seed = from; seed < std::min(from + at_once, first + count); ++seed) {
        drawn.emplace_back(seed, RandomGraph(seed, options_.cuda));
        graphs.emplace_back(drawn.back().second.graph(), drawn.back().second.wrt());
      }
      std::vector<std::string> problems;
      const auto compiled = compile(graphs, problems);
      for (size_t i = 0; i < drawn.size(); ++i) {
        auto& [seed, random] = drawn[i];
        current() = seed;
        ++graphs_;
        Finding finding{seed, random.graph(), random.wrt(), {}, {}, problems[i]};
        for (bool as_captured : {true, false}) {
          finding.inputs = random.inputs(as_captured);
          finding.layouts = random.layouts();
          if (!finding.problem.empty()) break;  // it was not compiled
          if (!as_captured && !possible(finding.graph, finding.inputs)) continue;
          finding.problem = problem_of(*compiled[i], finding);
          if (!finding.problem.empty()) break;
        }
        if (!finding.problem.empty()) found.push_back(std::move(finding));
      }
    }
    return found;
  }

  // The smallest graph that is still wrong for these inputs: without results, gradients and operations that the fault
  // does not need.
  Finding reduced(Finding found) {
    for (bool smaller = true; smaller;) {
      std::vector<Finding> candidates = simpler(found);
      std::vector<std::pair<Graph, std::vector<bool>>> graphs;
      for (const Finding& candidate : candidates) graphs.emplace_back(candidate.graph, candidate.wrt);
      std::vector<std::string> problems;
      const auto compiled = compile(graphs, problems);
      smaller = false;
      for (size_t i = 0; i < candidates.size() && !smaller; ++i) {
        Finding& candidate = candidates[i];
        candidate.problem = compiled[i] ? problem_of(*compiled[i], candidate) : problems[i];
        if (candidate.problem.empty() || !same_kind(candidate.problem, found.problem)) continue;
        found = std::move(candidate);
        smaller = true;
      }
    }
    return found;
  }

  unsigned graphs() const { return graphs_; }

  // The seed that is being tried, for whoever tells of a crash.
  static volatile unsigned& current() {
    static volatile unsigned seed = 0;
    return seed;
  }

 private:
  static constexpr unsigned at_once = 64;

  // Wrong numbers stay apart from graphs that cannot be compiled.
  static bool same_kind(const std::string& a, const std::string& b) {
    auto is_numbers = [](const std::string& text) { return text.find(" against ") != std::string::npos; };
    return is_numbers(a) == is_numbers(b);
  }

  std::vector<std::shared_ptr<const Compiled>> compile(std::vector<std::pair<Graph, std::vector<bool>>> graphs,
                                                       std::vector<std::string>& problems) {
    if (change_)
      for (auto& [graph, wrt] : graphs) change_(graph);
    try {
      return compile_all(graphs, options_, problems);
    } catch (const std::exception&) {  // a text that the compiler refuses: which?
      std::vector<std::shared_ptr<const Compiled>> result;
      problems.assign(graphs.size(), "");
      for (size_t i = 0; i < graphs.size(); ++i) {
        std::vector<std::string> own;
        try {
          result.push_back(compile_all({graphs[i]}, options_, own)[0]);
          problems[i] = own[0];
        } catch (const std::exception& error) {
          result.push_back(nullptr);
          problems[i] = error.what();
        }
      }
      return result;
    }
  }

  std::string problem_of(const Compiled& compiled, const Finding& at) {
    try {
      std::mt19937 random(5);
      std::vector<Array> dL_dy;
      const std::vector<Array> outputs = interpret(at.graph, at.inputs);
      for (size_t i = 0; i < outputs.size(); ++i)
        dL_dy.push_back(random_array(at.graph.dtype(at.graph.outputs[i].value), outputs[i].sizes, random, -1, 1));
      const Execution found = execute(compiled, at.inputs, dL_dy, at.layouts, host_);
      return Judge(at.graph, at.wrt).problem(found, at.inputs, dL_dy);
    } catch (const std::exception& error) {
      return error.what();
    }
  }

  // The finding with one thing less each time, what saves most first.
  static std::vector<Finding> simpler(const Finding& from) {
    std::vector<Finding> result;
    auto add = [&](Graph graph, std::vector<bool> wrt) {
      remove_dead(graph);
      Finding smaller = from;
      smaller.graph = std::move(graph);
      smaller.wrt = std::move(wrt);
      result.push_back(std::move(smaller));
    };
    const Graph& graph = from.graph;
    for (size_t i = 0; i < graph.outputs.size() && graph.outputs.size() > 1; ++i) {
      Graph fewer = graph;
      fewer.outputs.erase(fewer.outputs.begin() + static_cast<long>(i));
      add(std::move(fewer), from.wrt);
    }
    for (size_t i = 0; i < from.wrt.size(); ++i) {
      if (!from.wrt[i]) continue;
      std::vector<bool> fewer = from.wrt;
      fewer[i] = false;
      add(graph, fewer);
    }
    for (size_t i = 0; i < graph.outputs.size(); ++i)  // a result's operands in its place
      for (Value operand : graph[graph.outputs[i].value].operands) {
        if (!is_float(graph.dtype(operand)) || graph[operand].op == Op::constant) continue;
        Graph earlier = graph;
        earlier.outputs[i].value = operand;
        add(std::move(earlier), from.wrt);
      }
    for (size_t v = 0; v < graph.nodes.size(); ++v)  // an operation's operand in its place
      for (Value operand : graph.nodes[v].operands) {
        if (graph.dtype(operand) != graph.nodes[v].type.dtype || !(graph.shape(operand) == graph.nodes[v].type.shape))
          continue;
        Graph without = graph;
        for (Node& node : without.nodes)
          for (Value& user : node.operands)
            if (user == static_cast<Value>(v)) user = operand;
        for (Output& output : without.outputs)
          if (output.value == static_cast<Value>(v)) output.value = operand;
        add(std::move(without), from.wrt);
      }
    return result;
  }

  Options options_;
  Host& host_;
  Change change_;
  unsigned graphs_ = 0;
};

inline std::string report(const Finding& found) {
  std::string text = "seed " + std::to_string(found.seed) + ": " + found.problem + "\ninputs";
  for (const Array& array : found.inputs) text += " " + text_of(array.sizes);
  text += "\ngradients wanted:";
  for (bool wanted : found.wrt) text += wanted ? " yes" : " no";
  return text + "\n" + print(found.graph);
}

inline std::string report_reduced(const Finding& found) { return "reduced: " + report(found); }

}  // namespace fusewright::testing
