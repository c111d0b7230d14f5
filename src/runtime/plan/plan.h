#pragma once
#include <memory>
#include <string>
#include <vector>

#include "codegen/kernel_code.h"
#include "fusewright/host.h"
#include "ir/ir.h"
#include "launch/recent.h"
#include "passes/fusion.h"
#include "runtime/plan/launch.h"
#include "runtime/plan/launcher.h"
#include "runtime/plan/preconditions.h"

namespace fusewright {

// Sizes of a kernel's rows, where the first of them counts something: there must be one to do it.
Shape rows_to_count_in(const Kernel& kernel);

// A fused graph ready to run: kernels and library calls in order, memory allocated when needed (temporaries as one
// block) and released after its last use. Symbols get their values from the inputs of each call, and every other size
// is checked against them.
class Plan {
 public:
  Plan() = default;
  // `owns_inputs`: nobody else may hold them (what a forward saved), so that they are released on the way.
  Plan(Graph graph, const Fusion& fusion, bool cuda = false, bool tune = false, bool owns_inputs = false);

  // The kernels' whole texts, and their compiled form in the same order: libraries for the CPU; for a GPU modules of
  // what a first call runs there. More of those follow in the background, until it is complete.
  std::vector<std::string> sources(int device = -1) const;
  void attach(const std::vector<CompiledSource>& compiled, int device = -1);

  bool complete() const;

  // Throws Error before anything is computed when an input does not fit. Scalar inputs stand in `scalars`, in order.
  // An input that nobody else holds is released after its last use, too.
  //
  // With `updates`, outputs that replace an input (Output::into) are there when the call is done, and the result at
  // their place is that very input; without, they are results like all others and no input changes.
  struct Updates {
    bool begun = false;  // an input has changed, even if an exception came after it
  };
  std::vector<Tensor> run(Host& host, std::vector<Tensor> inputs, const std::vector<double>& scalars,
                          Updates* updates = nullptr) const;

  const Graph& graph() const { return graph_; }
  void set_preconditions(Preconditions preconditions) { preconditions_ = std::move(preconditions); }

  // For explain: what a kernel moves, for the sizes at capture.
  struct KernelReport {
    const KernelCode* code;
    int64_t bytes_read, bytes_written;
  };
  std::vector<KernelReport> kernels() const;
  std::vector<Value> library_calls() const;

  struct Step {
    std::unique_ptr<Launcher> launcher;
    std::vector<Value> release = {};  // not needed after this step
    bool updates = false;             // writes over an input, where the tensors of the call allow it
  };

  // For emit: what a call does.
  const std::vector<Step>& steps() const { return steps_; }
  const SymbolBinder& binder() const { return binder_; }
  const std::vector<int>& in_place() const { return in_place_; }
  const Order& order(Value v) const { return orders_[static_cast<size_t>(v)]; }

 private:
  struct Held {  // memory that kernels or the library fill, and the steps at which it is held
    Value value;
    int first, last;
  };
  struct Sizes;
  struct Run;
  void give_place(Value v);
  void add_step(const Group& group, Dialect dialect);
  void plan_lifetimes(bool owns_inputs);
  std::shared_ptr<Sizes> sizes_of(const std::vector<Tensor>& inputs) const;

  Graph graph_;
  bool tune_ = false;
  std::vector<Step> steps_;
  SymbolBinder binder_;
  Preconditions preconditions_;
  size_t scalar_count_ = 0;
  // Values that are tensors during a call: where each stands among them (-1: nowhere), and by place its value.
  std::vector<int> places_;
  std::vector<Value> placed_;
  std::vector<std::vector<SizeProgram>> shapes_;  // by place: of all but inputs and constants
  std::vector<Order> orders_;                     // per value: memory order in which it is allocated
  Recent<Sizes> recent_;
  std::vector<Held> temporaries_;  // made by kernels, for later steps
  std::vector<Held> others_;       // results, and what the library makes
  std::vector<Held> owned_;        // inputs that may be released
  std::vector<bool> borrowed_;     // outputs that are copied: see Graph
  std::vector<int> in_place_;      // outputs that their kernel may write over an input
  std::vector<SizeProgram> rows_;  // of kernels that count: there must be one to do it
};

}  // namespace fusewright
