#pragma once
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "codegen/kernel_code.h"
#include "fusewright/host.h"
#include "runtime/cuda.h"
#include "runtime/geometry.h"

namespace fusewright {

// Puts a generated CUDA kernel on the host's stream: chooses the variant and the shape of the launch for the tensors
// of the call, by rules that depend on sizes alone, so that results are the same from run to run.
class CudaLauncher {
 public:
  CudaLauncher(const Graph& graph, const KernelCode& code, const std::map<std::string, int>& slots);

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
    auto operator<=>(const Variant&) const = default;
  };
  struct Call;
  std::string source(const Variant& variant) const;
  std::vector<std::string> entries(const Variant& variant) const;
  std::shared_ptr<cuda::Module> module(const Variant& variant) const;
  bool vectors_fit(const Geometry& g, const std::vector<const Tensor*>& operands) const;
  bool needs_wide(const Geometry& g) const;
  void plan_pointwise(Call& call) const;
  void plan_rows(Call& call) const;
  void plan_columns(Call& call) const;
  void split_elements(Call& call, int64_t rows) const;
  void share_rows(Call& call, int64_t anchors, int64_t most_parts) const;
  uint32_t ahead_bytes(const Call& call) const;
  uint32_t slot_bytes(const Call& call) const;
  int resident_blocks(const Call& call) const;
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
    std::mutex mutex;  // for variants with wide offsets, which are compiled when a tensor needs them
    std::map<Variant, std::shared_ptr<cuda::Module>> modules;
    std::map<std::tuple<Variant, int, int64_t, uint32_t>, int> resident;  // blocks, by device, threads, shared memory
    cuda::Architecture architecture;
  };
  std::shared_ptr<Loaded> loaded_ = std::make_shared<Loaded>();
};

}  // namespace fusewright
