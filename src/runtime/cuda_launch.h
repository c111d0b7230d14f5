#pragma once
#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "codegen/kernel_code.h"
#include "fusewright/host.h"
#include "runtime/cuda.h"
#include "runtime/cuda_tile.h"
#include "runtime/geometry.h"
#include "runtime/recent.h"
#include "runtime/tuner.h"

namespace fusewright {

// What a launch may choose; all else follows from it and from the sizes of the call.
struct LaunchChoice {
  int32_t vector = 1;     // elements that a thread reads at once
  int32_t items = 0;      // vectors that it holds in registers; 0: it walks over them
  int32_t threads = 256;  // in a block; a row in registers that needs more than a warp has as many as it needs
  int32_t lanes = 1;      // neighbouring columns side by side, at most
  int32_t split = 0;      // several blocks may share a row
  int32_t scale = 0;      // 2^scale times as many splits, or parts of the walk, as the rule has
  bool operator==(const LaunchChoice&) const = default;
};

// Tests: which of a kernel's `count` candidates runs, whatever was timed; nullptr ends it.
using CandidateHook = size_t (*)(const std::string& kernel, size_t count);
void set_candidate_hook(CandidateHook hook);

// Puts a generated CUDA kernel on the host's stream: chooses the variant and the shape of the launch for the tensors
// of the call. By rules that depend on sizes alone; or by timing the candidates, once for tensors of about these sizes.
// Results may differ in their last bits between choices, never between calls with one choice.
class CudaLauncher {
 public:
  // `orders`: how each value lies in memory, as far as the graph knows.
  CudaLauncher(const Graph& graph, const KernelCode& code, const std::map<std::string, int>& slots,
               const std::vector<Order>& orders);

  // One source for each variant that tensors of the sizes at capture take, and their modules in the same order. The
  // other variants, which tensors of other sizes take and the tuner tries, are compiled in the background. All are
  // loaded on the device when they are there: nothing should be loaded later, while a CUDA graph is being captured.
  std::vector<std::string> sources(int device) const;
  void attach(std::vector<std::shared_ptr<cuda::Module>> modules, int device);
  void leave_out_lengths(int device);  // before sources() and attach()
  bool complete() const;               // all variants are there; nothing is timed before

  // Without a `progress` nothing is timed: the rules choose.
  void run(Host& host, const std::vector<const Tensor*>& operands, const int64_t* symbols,
           const std::vector<double>& scalars, TuningProgress* progress = nullptr) const;

 private:
  struct Variant {
    int vector, items;
    bool wide;
    Tiling tiling = {};
    int64_t row = 0;  // vectors in a row that the text is for; 0: any
    auto operator<=>(const Variant&) const = default;
  };
  struct Shape;
  struct Call;
  struct Prepared;
  std::string source(const Variant& variant) const;
  std::vector<std::string> entries(const Variant& variant) const;
  std::shared_ptr<cuda::Module> module(const Variant& variant) const;
  bool is_loaded(const Variant& variant) const;
  bool vectors_fit(const Geometry& g, const std::vector<const Tensor*>& operands, const Tiling& tiling = {}) const;
  bool needs_wide(const Geometry& g) const;
  void merge_loops(Geometry& g) const;
  Variant tiled_variant(const Geometry& g, const std::vector<const Tensor*>& operands, const Tiling& tiling) const;
  bool has(const Variant& variant) const {
    return std::find(variants_.begin(), variants_.end(), variant) != variants_.end();
  }
  void expect_rows(const Graph& graph);
  void expect_tensors(const Graph& graph, const std::map<std::string, int>& slots, const std::vector<Order>& orders);
  void expect_tiles();
  std::vector<Variant> first_variants(int device) const;
  bool plan_tiled(Call& call, const std::vector<const Tensor*>& operands, void* stream) const;
  Call bind(int device, const std::vector<const Tensor*>& operands, const int64_t* symbols) const;
  void set_vector(Call& call, int vector) const;
  // By rule, for vectors of a width.
  LaunchChoice rule(Call& call, int vector) const;
  LaunchChoice rule_rows(Call& call) const;
  LaunchChoice rule_columns(Call& call) const;
  // The shape that follows from a choice. False: kernels of this choice cannot run these sizes.
  bool plan(Call& call, const LaunchChoice& choice) const;
  void plan_pointwise(Call& call, const LaunchChoice& choice) const;
  void share_rows(Call& call, int64_t anchors, int64_t most_parts, int scale) const;
  void split_elements(Call& call, int64_t rows, int scale) const;
  void plan_rows(Call& call, const LaunchChoice& choice) const;
  void plan_columns(Call& call, const LaunchChoice& choice) const;
  bool possible(const Call& call) const;
  // The rule's first.
  std::vector<LaunchChoice> candidates(const Call& call) const;
  // Tensors for which one choice serves: sizes up to the same power of two, vectors of one width, strides of one kind.
  uint64_t bucket(const Call& call, int device) const;
  std::optional<LaunchChoice> known_choice(Call& call, const TuningProgress* progress) const;
  // Nothing: it cannot be timed now.
  std::optional<LaunchChoice> tune(Host& host, const Call& call, const std::vector<const Tensor*>& operands,
                                   const std::vector<double>& numbers, TuningProgress& progress) const;
  uint32_t slot_bytes(const Call& call) const;
  // Of a variant with rows in registers: see kernels/cuda_loops.h.
  struct Held {
    int64_t depth, ahead, fixed, slot, most_threads;
  };
  Held held(const Variant& variant) const;
  uint32_t shared_bytes(const Call& call) const;
  int resident_blocks(const Call& call, const char* entry) const;
  size_t first_partial(const Call& call) const;
  void add_memory(Call& call, Prepared& prepared) const;
  int64_t word_of(size_t number, double value) const;
  std::vector<char> pack(const Call& call) const;
  Prepared prepare(Call& call, const std::vector<const Tensor*>& operands) const;
  Prepared prepare(Host& host, const std::vector<const Tensor*>& operands, const int64_t* symbols,
                   const std::vector<double>& numbers, TuningProgress* progress) const;
  void launch(Host& host, const Prepared& prepared, const std::vector<const Tensor*>& operands,
              const std::vector<double>& numbers) const;

  KernelCode code_;
  std::vector<DType> number_types_;
  KernelGeometry geometry_;
  std::vector<Variant> variants_;
  int widest_ = 1;                // elements in the largest vector
  size_t symbols_;                // how many there are
  std::vector<Tensor> expected_;  // the operands at capture, without memory
  std::vector<int64_t> expected_symbols_;
  bool takes_gradient_ = false;  // which may come without vectors: that of a sum is one number, repeated
  struct Loaded {
    std::atomic<int> missing = 0;  // variants on their way
    std::mutex mutex;
    std::map<Variant, std::shared_ptr<cuda::Module>> modules;
    // Blocks, by device, threads, shared memory, and whether rows are split.
    std::map<std::tuple<Variant, int, int64_t, uint32_t, bool>, int> resident;
    std::unordered_map<uint64_t, LaunchChoice> choices;  // by bucket and device
    std::unordered_set<uint64_t> unknown;                // buckets that are not on disk
    cuda::Architecture architecture;
  };
  std::shared_ptr<Loaded> loaded_ = std::make_shared<Loaded>();
  Recent<Prepared> recent_;
};

}  // namespace fusewright
