#pragma once
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "codegen/kernel_code.h"
#include "fusewright/host.h"
#include "runtime/cuda.h"
#include "runtime/cuda_tile.h"
#include "runtime/geometry.h"

namespace fusewright {

// Puts a generated CUDA kernel on the host's stream: chooses the variant and the shape of the launch for the tensors
// of the call, by rules that depend on sizes alone, so that results are the same from run to run.
class CudaLauncher {
 public:
  // `orders`: how each value lies in memory, as far as the graph knows.
  CudaLauncher(const Graph& graph, const KernelCode& code, const std::map<std::string, int>& slots,
               const std::vector<Order>& orders);

  // One source for each variant, and their modules in the same order. They are loaded on the device at once: nothing
  // may be loaded later, while a CUDA graph is being captured.
  std::vector<std::string> sources() const;
  void attach(std::vector<std::shared_ptr<cuda::Module>> modules, int device);

  void run(Host& host, const std::vector<const Tensor*>& operands, const int64_t* symbols,
           const std::vector<double>& scalars) const;

 private:
  struct Variant {
    int vector, items;
    bool wide;
    Tiling tiling = {};
    auto operator<=>(const Variant&) const = default;
  };
  struct Call;
  std::string source(const Variant& variant) const;
  std::vector<std::string> entries(const Variant& variant) const;
  std::shared_ptr<cuda::Module> module(const Variant& variant) const;
  bool is_loaded(const Variant& variant) const;
  bool vectors_fit(const Geometry& g, const std::vector<const Tensor*>& operands, const Tiling& tiling = {}) const;
  bool needs_wide(const Geometry& g) const;
  void merge_loops(Geometry& g) const;
  Variant tiled_variant(const Geometry& g, const std::vector<const Tensor*>& operands, const Tiling& tiling) const;
  void expect_tiles(const Graph& graph, const std::map<std::string, int>& slots, const std::vector<Order>& orders);
  bool plan_tiled(Call& call, const std::vector<const Tensor*>& operands, void* stream) const;
  void plan_pointwise(Call& call) const;
  void split_elements(Call& call, int64_t rows) const;
  void plan_rows(Call& call) const;
  void plan_columns(Call& call) const;
  void add_memory(Host& host, Call& call, std::vector<void*>& pointers) const;
  std::vector<char> pack(const Call& call, const std::vector<void*>& pointers,
                         const std::vector<const Tensor*>& operands, const std::vector<double>& numbers) const;
  void launch(Host& host, const Call& call, const std::string& entry, int64_t blocks,
              const std::vector<char>& args) const;

  KernelCode code_;
  std::vector<DType> number_types_;
  KernelGeometry geometry_;
  std::vector<Variant> variants_;
  int widest_ = 1;  // elements in the largest vector
  struct Loaded {
    std::map<Variant, std::shared_ptr<cuda::Module>> modules;  // with the first call
    std::mutex mutex;
    std::map<Variant, std::shared_ptr<cuda::Module>> later;  // wide offsets and tiles, when a tensor needs them
    cuda::Architecture architecture;
  };
  std::shared_ptr<Loaded> loaded_ = std::make_shared<Loaded>();
};

}  // namespace fusewright
