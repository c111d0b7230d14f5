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
#include "launch/cuda_rules.h"
#include "launch/recent.h"
#include "runtime/cuda/cuda.h"
#include "runtime/cuda/tuner.h"
#include "runtime/plan/geometry.h"
#include "runtime/plan/launcher.h"

namespace fusewright {

// Tests: which of a kernel's `count` candidates runs, whatever was timed; nullptr ends it.
using CandidateHook = size_t (*)(const std::string& kernel, size_t count);
void set_candidate_hook(CandidateHook hook);

// Puts a generated CUDA kernel on the host's stream: chooses the variant and the shape of the launch for the tensors
// of the call. By rules that depend on sizes alone; or by timing the candidates, once for tensors of about these sizes.
// Results may differ in their last bits between choices, never between calls with one choice.
class CudaLauncher : public Launcher, CudaRules {
 public:
  // `orders`: how each value lies in memory, as far as the graph knows.
  CudaLauncher(const Graph& graph, const KernelCode& code, const std::map<std::string, int>& slots,
               const std::vector<Order>& orders);

  // The sources of what tensors of the sizes at capture take, and their modules in the same order. The
  // other variants, which tensors of other sizes take and the tuner tries, are compiled in the background. All are
  // loaded on the device when they are there: nothing should be loaded later, while a CUDA graph is being captured.
  std::vector<std::string> sources(int device) const override;
  void attach(const std::vector<CompiledSource>& compiled, int device) override;
  bool complete() const override;  // all variants are there; nothing is timed before

  // What the rule takes for the sizes at capture, and what serves all others.
  EmittedKernel emitted(const Graph& graph) const override;

  void run(Host& host, const std::vector<const Tensor*>& operands, const int64_t* symbols,
           const std::vector<double>& scalars, TuningProgress* progress, bool follows) const override;

 private:
  struct Prepared;
  // A variant that walks over its rows has several kernels; a call takes a part of them.
  enum class Part { all, whole_rows, split_rows, sides };
  struct First {  // what a first call takes
    Variant variant;
    Part part;
    bool operator==(const First&) const = default;
  };
  std::string defines(const Variant& variant) const;
  const std::string& text(const Variant& variant) const;
  std::string source(const Variant& variant) const;
  std::string source(const First& first) const;
  std::vector<std::string> entries(const First& first) const;
  using CudaRules::entries;
  Part part_of(const std::string& entry) const;
  std::shared_ptr<cuda::Module> module(const Variant& variant, const std::string& entry) const;  // that has the entry
  bool is_loaded(const Variant& variant) const;
  void expect_rows(const Graph& graph, const KernelCode& code);
  void expect_clusters(int64_t elements, bool may_change);
  void expect_tensors(const Graph& graph, const KernelCode& code, const std::map<std::string, int>& slots,
                      const std::vector<Order>& orders);
  void expect_tiles();
  std::vector<First> first_kernels(int device) const;
  std::vector<First> first_kernels(Call call) const;
  Call bind(int device, const std::vector<const Tensor*>& operands, const int64_t* symbols) const;
  // The rule's first.
  std::vector<LaunchChoice> candidates(const Call& call) const;
  // Tensors for which one choice serves: sizes up to the same power of two, vectors of one width, strides of one kind.
  uint64_t bucket(const Call& call, int device) const;
  std::optional<LaunchChoice> known_choice(Call& call, const TuningProgress* progress) const;
  // Nothing: it cannot be timed now.
  std::optional<LaunchChoice> tune(Host& host, const Call& call, const std::vector<const Tensor*>& operands,
                                   const std::vector<double>& numbers, TuningProgress& progress) const;
  int resident_blocks(const Call& call, const char* entry) const override;
  bool tiles_are_ready(const Call& call, const Variant& variant) const override;
  Prepared prepare(Call& call, const std::vector<const Tensor*>& operands) const;
  Prepared prepare(Host& host, const std::vector<const Tensor*>& operands, const int64_t* symbols,
                   const std::vector<double>& numbers, TuningProgress* progress) const;
  void launch(Host& host, const Prepared& prepared, const std::vector<const Tensor*>& operands,
              const std::vector<double>& numbers, bool follows = false) const;

  std::string text_, walking_text_, tiled_text_;
  CudaCode::WalkingParts walking_parts_;
  KernelGeometry geometry_;
  size_t symbols_;                // how many there are
  std::vector<Tensor> expected_;  // the operands at capture, without memory
  std::vector<int64_t> expected_symbols_;
  bool takes_gradient_ = false;  // which may come without vectors: that of a sum is one number, repeated
  struct Loaded {
    std::atomic<int> missing = 0;  // variants on their way
    std::mutex mutex;
    std::map<Variant, std::shared_ptr<cuda::Module>> modules;
    std::map<std::pair<Variant, Part>, std::shared_ptr<cuda::Module>> parts;  // of variants on their way
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
