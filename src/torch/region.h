#pragma once
// A region of a captured model, as PyTorch sees it: one operator of the dispatcher with one autograd node.
#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

#include "ir/ir.h"
#include "runtime/executable.h"

namespace fusewright {

// Position of a graph's input among its tensors, or -1 for a scalar.
int tensor_index(const Graph& graph, int input);
// A flag for each of the graph's inputs, from the positions of those whose gradients an operator is asked for.
std::vector<bool> pattern(const Graph& graph, at::IntArrayRef wanted);

class Region {
 public:
  Region(Graph graph, std::string name, int gpu, std::optional<bool> tune);
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
  // Where it was captured: the index of a GPU, or -1 for the CPU.
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
  enum class Verdict { fused, eager, unknown };
  Verdict verdict(at::TensorList inputs);
  // Times both, unless it has been done or not all kernels are there yet; run(0) is a call of the region, run(1) the
  // same with PyTorch's operators, each with its backward if that is wanted.
  Verdict contest(at::TensorList inputs, const std::function<void(size_t)>& run);
  // What is known on disk of inputs with the sizes at capture.
  bool known_slower(const std::vector<bool>& wrt);

  static std::shared_ptr<Region> find(int64_t handle);     // throws Error for a region that is gone
  static std::shared_ptr<Region> look_up(int64_t handle);  // nothing for one that is gone
  static std::shared_ptr<Region> create(Graph graph, std::string name, int gpu = -1,
                                        std::optional<bool> tune = std::nullopt);

 private:
  Graph graph_;
  std::vector<Update> updates_;
  std::vector<size_t> tensor_inputs_;
  std::string name_;
  int gpu_;
  std::optional<bool> tune_;  // unset: FUSEWRIGHT_TUNE decides
  bool has_convolution_;
  int64_t handle_ = -1;
  std::string contest_key(uint64_t bucket, int gpu) const;
  Verdict decided(uint64_t place);
  std::shared_ptr<const Executable> executable(const std::vector<bool>& wrt, int gpu,
                                               std::optional<at::Device> runs_on);

  struct Compiled {
    std::vector<bool> wrt;
    int gpu;
    bool tf32;
    std::shared_ptr<const Executable> executable;
  };
  std::mutex mutex_, contest_mutex_;
  std::unordered_map<uint64_t, Verdict> verdicts_;
  std::vector<Compiled> executables_;  // one to three
};

// A call failed when it had changed a buffer already: it cannot be done again.
class Interrupted : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// torch.ops.fusewright.run, whose results replace inputs (Region::updates) and are not returned.
std::vector<at::Tensor> run_region(int64_t region, at::TensorList inputs, at::ArrayRef<double> scalars);
// The same, or whether the caller is to run PyTorch's operators instead (eager), or to call contest() (unknown).
std::variant<std::vector<at::Tensor>, Region::Verdict> run_contested(int64_t region, at::TensorList inputs,
                                                                     at::ArrayRef<double> scalars);
int64_t region_calls();

}  // namespace fusewright
