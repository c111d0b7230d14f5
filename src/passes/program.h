#pragma once
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "ir/ir.h"
#include "passes/fusion.h"
#include "schedule/schedule.h"

namespace fusewright {

struct Options {
  std::set<std::string> disabled_rewrites;  // names of rules (passes/rewrite.cpp); FUSEWRIGHT_DISABLE adds to it
  bool cuda = false;                        // kernels for a GPU,
  int device = 0;                           // and for the architecture of this one: cuda::device(index)
  std::optional<bool> tune;                 // launches on it are chosen by timing, else by rule; unset: FUSEWRIGHT_TUNE
  bool tf32_convolution = false;            // the library may round f32 operands of convolutions to TF32
};

inline Dialect dialect_of(const Options& options) { return options.cuda ? Dialect::cuda : Dialect::cpp; }

// What the passes work on: one region, on its way from the captured graph to groups of operations.
struct Program {
  Graph forward;          // between `differentiate` and `remember`: forward and backward in one graph
  Graph backward;         // empty for inference
  std::vector<bool> wrt;  // per input of forward: is its gradient wanted? Empty or all false: inference
  Options options;

  std::vector<bool> tracked;  // outputs that depend on a wanted input, and need a gradient in eager

  size_t user_outputs = 0;  // outputs of forward beyond these are what the backward reads

  // The backward's inputs: first these, then one gradient for each entry of gradient_of_output.
  struct Saved {
    bool is_input;  // of the forward, else an output of it
    int index;
    bool sizes_only = false;  // an input whose elements are never read: any tensor of its sizes will do
  };
  std::vector<Saved> saved;
  std::vector<int> gradient_of_output;  // index of a forward output
  std::vector<int> gradient_for_input;  // per output of backward: index of a forward input
  std::vector<std::string> rewrites;    // rules that were applied, for explain

  Fusion forward_fusion, backward_fusion;

  bool training() const;
};

// What a rewrite rule does, in a line.
std::string meaning_of_rule(const std::string& name);

// Rules that are switched off, by the options or by FUSEWRIGHT_DISABLE.
std::set<std::string> disabled_rules(const Options& options);

// A value once more in another memory order (layout.cpp, straighten.cpp): always in a kernel of its own.
bool is_layout_copy(const Graph& graph, Value v);
Value layout_copy(Graph& graph, Value v, const Order& order);  // a new one

// Which values these inputs influence through differentiable operations (reach.cpp).
std::vector<bool> influenced(const Graph& graph, const std::vector<bool>& wrt);

// For each gradient of a program (gradient_for_input), which results with a gradient (gradient_of_output) the input
// leads to in the graph that the program was made from: where nobody asks for any of these, the input has none.
std::vector<std::vector<bool>> leads_to(const Graph& graph, const Program& program);

// The kernels of a graph (fuse.cpp). Values that are `apart` are written by kernels without a reduction.
Fusion group_into_kernels(const Graph& graph, const Options& options, const std::set<Value>& apart = {});

// Each pass changes the program in place; pipeline.cpp runs them in this order.
void reach(Program& program);
void decompose(Program& program);
void simplify(Program& program);
void rewrite(Program& program);
void differentiate(Program& program);
void remember(Program& program);
void layout(Program& program);
void fuse(Program& program);
void straighten(Program& program);
void run_order(Program& program);
void update(Program& program);
void round(Program& program);
void schedule(Program& program);

// All of them. FUSEWRIGHT_DUMP=passes prints the graph and the time after each; debug builds verify after each.
void run_pipeline(Program& program);

}  // namespace fusewright
