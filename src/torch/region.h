#pragma once
// A region of a captured model, as PyTorch sees it: one operator of the dispatcher with one autograd node.
#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <variant>
#include <vector>

#include "ir/ir.h"
#include "runtime/contest.h"
#include "runtime/plan/executable.h"

namespace fusewright {

// Position of a graph's input among its tensors, or -1 for a scalar.
int tensor_index(const Graph& graph, int input);
// A flag for each of the graph's inputs, from the positions of those whose gradients an operator is asked for.
std::vector<bool> pattern(const Graph& graph, at::IntArrayRef wanted);

// A region in PyTorch's own operators: second derivatives are taken through them. The Python side has it.
class Plain {
 public:
  virtual ~Plain() = default;
  // Of each tensor that a call is given, whether a result with a gradient is computed from it. Empty: nobody knows.
  virtual std::vector<bool> reads() const = 0;
  // Bytes that PyTorch's operators keep for the backward of such a call, beside the tensors named in `held`.
  virtual int64_t bytes_kept(at::TensorList inputs, at::ArrayRef<double> scalars,
                             const std::vector<bool>& held) const = 0;
  // One tensor for each output of the graph; undefined for those without a gradient. Tensors that are not read may be
  // undefined. Updates nothing.
  virtual std::vector<at::Tensor> run(at::TensorList inputs, at::ArrayRef<double> scalars) const = 0;
};

class Region {
 public:
  struct Settings {
    int gpu = -1;                        // where it was captured: the index of a GPU, or -1 for the CPU
    std::optional<bool> tune;            // unset: FUSEWRIGHT_TUNE decides
    std::shared_ptr<const Plain> plain;  // none: it has no second derivatives
    bool second_derivatives = false;     // keep what they read, whatever memory it takes
    std::vector<bool> owned;             // of the tensors of a call: parameters and buffers, which the module holds
  };
  Region(Graph graph, std::string name, Settings settings);
  ~Region();
  Region(const Region&) = delete;

  int64_t handle() const { return handle_; }
  const std::string& name() const { return name_; }
  const Graph& graph() const { return graph_; }
  // Outputs that replace an input, the last of all: positions of both, of the input among the tensors.
  struct Update {
    size_t output, input;
    bool differentiable;
  };
  const std::vector<Update>& updates() const { return updates_; }
  // Of each tensor that a call is given, the position among the graph's inputs.
  const std::vector<size_t>& tensor_inputs() const { return tensor_inputs_; }
  int gpu() const;
  // Compiled once for each pattern of wanted gradients, each place and, with convolutions, each setting of TF32. Throws
  // CompileError before anything has run.
  std::shared_ptr<const Executable> executable(const std::vector<bool>& wrt, at::Device device);
  // Of a GPU by its index. Nothing is about to run: a graph that another thread records is not disturbed.
  std::shared_ptr<const Executable> executable(const std::vector<bool>& wrt, int gpu);

  // Begins to compile in the background, for calls that want these gradients.
  void prepare(const std::vector<bool>& wrt) const;

  // Whether it competes with PyTorch's own operators: on a GPU, where timing is allowed.
  bool contested() const;
  // Whether those are faster for such inputs: timed before, or not yet. Never asked of tracers, of a graph that is
  // being recorded, under deterministic algorithms or under hooks for saved tensors, which must see the same tensors
  // whenever a checkpoint is computed again: then the region runs.
  enum class Verdict { fused, eager, unknown, transformed };
  Verdict verdict(at::TensorList inputs);
  // Times both, unless it has been done or not all kernels are there yet; run(0) is a call of the region, run(1) the
  // same with PyTorch's operators, each with its backward if that is wanted.
  Verdict contest(at::TensorList inputs, const std::function<void(size_t)>& run);
  // The tensors of a call, by position, that second derivatives read and the backward does not. Nothing: nobody knows.
  using Positions = std::shared_ptr<const std::vector<size_t>>;
  Positions read_by_second_derivatives(const Program& program);
  // Whether these are kept: not where the call would then hold more memory than PyTorch's operators do, unless the
  // user wants it so.
  bool keeps(const std::vector<size_t>& tensors, const Program& program, at::TensorList inputs,
             const std::vector<at::Tensor>& results, at::ArrayRef<double> scalars);
  // Whether the call's tensor is in memory however long: the module has it, or the graph of autograd as its leaf.
  bool is_held(size_t tensor, const at::Tensor& input) const;
  const Plain* plain() const { return settings_.plain.get(); }
  // Whether the call's tensor is replaced by the captured graph: what is read of it later must be copied.
  bool changes(size_t tensor) const;

  // What is known on disk of inputs with the sizes at capture.
  bool known_slower(const std::vector<bool>& wrt);

  static std::shared_ptr<Region> find(int64_t handle);     // throws Error for a region that is gone
  static std::shared_ptr<Region> look_up(int64_t handle);  // nothing for one that is gone
  static std::shared_ptr<Region> create(Graph graph, std::string name, Settings settings);

 private:
  Graph graph_;
  std::vector<Update> updates_;
  std::vector<size_t> tensor_inputs_;
  std::string name_;
  Settings settings_;
  Contest contest_;
  bool has_convolution_;
  int64_t handle_ = -1;
  std::shared_ptr<const Executable> executable(const std::vector<bool>& wrt, int gpu,
                                               std::optional<at::Device> runs_on);

  struct Compiled {
    std::vector<bool> wrt;
    int gpu;
    bool tf32;
    std::shared_ptr<const Executable> executable;
  };
  std::mutex mutex_;
  std::map<const Program*, Positions> read_by_second_derivatives_;
  std::map<std::vector<bool>, bool> keeps_;  // by what is wanted, and what is held in any case
  std::vector<Compiled> executables_;        // one to three
};

// A call failed when it had changed a buffer already: it cannot be done again.
class Interrupted : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// torch.ops.fusewright.run, whose results replace inputs (Region::updates) and are not returned. Or `transformed`: the
// caller is to run PyTorch's operators, under a transform of torch.func or with forward-mode derivatives.
using Answer = std::variant<std::vector<at::Tensor>, Region::Verdict>;
Answer run_region(int64_t region, at::TensorList inputs, at::ArrayRef<double> scalars);
// The same, or whether the caller is to run PyTorch's operators instead (eager), or to call contest() (unknown).
Answer run_contested(int64_t region, at::TensorList inputs, at::ArrayRef<double> scalars);
int64_t region_calls();

}  // namespace fusewright
