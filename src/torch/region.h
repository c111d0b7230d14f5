#pragma once
// A region of a captured model, as PyTorch sees it: one operator of the dispatcher with one autograd node.
#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "ir/ir.h"
#include "runtime/executable.h"

namespace fusewright {

class Region {
 public:
  Region(Graph graph, std::string name, int gpu);
  ~Region();
  Region(const Region&) = delete;

  int64_t handle() const { return handle_; }
  const std::string& name() const { return name_; }
  const Graph& graph() const { return graph_; }
  // Where it was captured: the index of a GPU, or -1 for the CPU.
  int gpu() const;
  // Compiled once for each pattern of wanted gradients, each place and each setting of TF32. Throws CompileError before anything has run.
  std::shared_ptr<const Executable> executable(const std::vector<bool>& wrt, Host& host);
  std::shared_ptr<const Executable> executable(const std::vector<bool>& wrt, int gpu, void* stream = nullptr);

  static std::shared_ptr<Region> find(int64_t handle);  // throws Error for a region that is gone
  static std::shared_ptr<Region> create(Graph graph, std::string name, int gpu = -1);

 private:
  Graph graph_;
  std::string name_;
  int gpu_;
  int64_t handle_ = -1;
  std::mutex mutex_;
  std::map<std::tuple<std::vector<bool>, int, bool>, std::shared_ptr<const Executable>> executables_;
};

// Through the dispatcher: torch.ops.fusewright.run
std::vector<at::Tensor> run_region(int64_t region, const std::vector<at::Tensor>& inputs,
                                   const std::vector<double>& scalars);
int64_t region_calls();

}  // namespace fusewright
