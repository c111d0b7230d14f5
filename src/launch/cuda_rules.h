#pragma once
// A CUDA kernel's launches, chosen by rules that depend on the sizes of a call alone. cuda_shape.h has the rules and
// what follows from a choice, cuda_arguments.h what the launches are handed. An emitted file has no parts between
// `#ifndef FW_WITHOUT_...` and `#endif` that its kernels do not need (emit/extension.py).
#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "launch/cuda_tiling.h"
#include "launch/geometry.h"

namespace fusewright {

// What a launch may choose; all else follows from it and from the sizes of the call.
struct LaunchChoice {
  int32_t vector = 1;     // elements that a thread reads at once
  int32_t items = 0;      // vectors that it holds in registers; 0: it walks over them
  int32_t threads = 256;  // in a block; a row in registers that needs more than a warp has as many as it needs
  int32_t lanes = 1;      // neighbouring columns side by side, at most
  int32_t split = 0;      // several blocks may share a row
  int32_t scale = 0;      // 2^scale times as many splits, or parts of the walk, as the rule has
  int32_t cluster = 1;    // blocks that hold rows or columns together, or add up their sums on the side
};

constexpr int largest_cluster_anywhere = 8;  // blocks
constexpr int64_t worth_a_block = 8;         // vectors of a split row for each of its threads

class CudaRules {
 public:
  struct Variant {
    int vector, items;
    bool wide;
    Tiling tiling = {};
    int64_t row = 0;       // vectors in a row that the text is for; 0: any
    bool cluster = false;  // it is for rows or columns that several blocks hold together
    bool operator==(const Variant& o) const { return key() == o.key(); }
    bool operator<(const Variant& o) const { return key() < o.key(); }

   private:
    std::tuple<int, int, bool, const Tiling&, int64_t, bool> key() const {
      return {vector, items, wide, tiling, row, cluster};
    }
  };

  // All that follows from a choice.
  struct Shape {
    Variant variant{1, 1, false, {}, 0};
    int64_t threads = 256, team = 1, lanes = 1;
    int64_t partial_lanes = 1;  // of the launch that leaves partial sums
    int64_t blocks = 1;
    bool split = false;
    int64_t anchors = 1, walked = 1, parts = 1, share = 1, elements = 1, rows = 1, splits = 1;
    int64_t line = 1, tiles = 1;
    int64_t side_parts = 1, total_parts = 1, side_blocks = 1;
    int64_t anchors_together = 1;  // teams of a warp at neighbouring anchors
    int64_t cluster = 1;           // blocks that a team is spread over, or that add up their sums on the side
    auto key() const {
      return std::tie(variant, threads, team, lanes, partial_lanes, blocks, split, anchors, walked, parts, share,
                      elements, rows, splits, line, tiles, side_parts, total_parts, side_blocks, anchors_together,
                      cluster);
    }
    bool operator==(const Shape& o) const { return key() == o.key(); }
  };

  // One call: its tensors, the shape of its launches, and the arguments that follow from them.
  struct Call : Shape {
    Geometry g;
    int device = 0;
    void* stream = nullptr;
    int64_t processors = 1;       // of the device,
    int64_t shared_limit = 0;     // the bytes of shared memory that a block may have there,
    int64_t l2_bytes = 0;         // those of its L2 cache,
    int64_t largest_cluster = 1;  // and the blocks that may form a cluster
    int widest = 1;               // elements in the largest vector that these tensors allow
    bool wide = false;
    bool estimate = false;  // before kernels are there to ask how many blocks fit on the device
    std::vector<int64_t> side_strides, total_strides;
    std::vector<bool> partial;  // per pass: it leaves partial sums
    int64_t tile_bytes = 0;     // of shared memory

    // Each block of the next pass would add up all partial sums of pass p: many of them are added up once, before it.
    bool merged(size_t p) const { return splits > 16 && p + 1 < partial.size() && partial[p]; }

    // Of a split row, for a block of a pass that leaves no sums.
    int64_t stretch() const { return worth_a_block * team; }
    int64_t spread() const { return variant.cluster ? cluster : 1; }  // blocks that a team is spread over
    int64_t teams_in_block() const { return threads * spread() / (team * lanes); }
    const std::vector<std::vector<int64_t>>& sums(const KernelLoops& code) const {
      return variant.items == 0 ? code.cuda.walking.sums : code.cuda.sums;
    }
  };

  // What a call puts on the stream. All but addresses and numbers is in the arguments.
  struct Launches {
    struct Launch {
      Variant variant;
      std::string entry;
      int64_t blocks;
      uint32_t threads, shared_bytes;
      bool overlap;  // may begin before the one before it ends
      uint32_t cluster;
      std::vector<char> arguments;
    };
    std::vector<Launch> launches;
    struct Buffer {  // memory for the time of the call
      int64_t bytes;
      size_t place;  // of its address in the arguments
    };
    std::vector<Buffer> buffers;
    int64_t buffer_bytes() const {
      int64_t sum = 0;
      for (const Buffer& buffer : buffers) sum += buffer.bytes;
      return sum;
    }
  };

 protected:
  explicit CudaRules(KernelLoops code) : code_(std::move(code)), loops_(code_) {
    // 16 bytes of the widest operand; no vectors at all where nothing lies along the line.
    int64_t bytes = 0;
    for (const CudaLoops::Vector& v : code_.cuda.vectors)
      bytes = std::max<int64_t>(bytes, size_of(code_.operands[static_cast<size_t>(v.operand)].dtype));
    if (bytes > 0) widest_ = static_cast<int>(std::min<int64_t>(8, 16 / bytes));
  }
  ~CudaRules() = default;

  // Blocks of this entry that a processor of the device has room for.
  virtual int resident_blocks(const Call& call, const char* entry) const = 0;
  virtual bool tiles_are_ready(const Call& call, const Variant& variant) const = 0;

  // Clusters are teams; where rows have sums on the side of each position, they add those up instead.
  bool spreads_teams() const {
    return code_.nest.kind == Loops::Kind::column ||
           (code_.nest.kind == Loops::Kind::row && code_.cuda.sides_at_positions() == 0);
  }
  // Columns in registers: threads of a warp share out those of their vectors (fw::team_of_columns).
  bool holds_columns(int items) const { return code_.nest.kind == Loops::Kind::column && items != 0; }
  bool has(const Variant& variant) const {
    return std::find(variants_.begin(), variants_.end(), variant) != variants_.end();
  }
  // Those that serve rows of any length.
  std::vector<Variant> variants_for_all_rows() const;
  std::vector<std::string> entries(const Variant& variant) const;
  void merge_loops(Geometry& g) const;
  void bind(Call& call, Geometry g, const std::vector<const Tensor*>& operands) const;
  // Of operands that go through tiles, what they are in memory does not matter to vectors along the line.
  bool vectors_fit(const Geometry& g, const std::vector<const Tensor*>& operands, const Tiling& tiling = {}) const;
  bool vectors_fit_across(const Geometry& g, const std::vector<const Tensor*>& operands, const Tiling& tiling) const;
  bool vector_fits(const Geometry& g, const Tensor& tensor, const CudaLoops::Vector& of, int along,
                   int64_t elements) const;
  bool needs_wide(const Geometry& g) const;

  void set_vector(Call& call, int vector) const;
  // By rule, for vectors of a width.
  LaunchChoice rule(Call& call, int vector) const;
  LaunchChoice rule_rows(Call& call) const;
  std::optional<LaunchChoice> rule_clusters(Call& call) const;
  LaunchChoice rule_walking(const Call& call) const;
  LaunchChoice rule_columns(Call& call) const;
  // Elements in the vectors of columns in registers: the values of a thread's columns take registers, too.
  int held_columns(int vector) const { return std::min(vector, 4); }
  // Columns by vectors of that width; of single elements a thread holds as many as of vectors.
  LaunchChoice in_registers(int vector) const;
  // The shape that follows from a choice. False: kernels of this choice cannot run these sizes.
  bool plan(Call& call, const LaunchChoice& choice) const;
  bool plan_tiled(Call& call, const std::vector<const Tensor*>& operands) const;
  void plan_pointwise(Call& call, const LaunchChoice& choice) const;
  void plan_rows(Call& call, const LaunchChoice& choice) const;
  void plan_columns(Call& call, const LaunchChoice& choice) const;
  int64_t blocks_at_a_time(const Call& call) const;
  void share_rows(Call& call, int64_t anchors, int64_t most_parts, int scale) const;
  void split_elements(Call& call, int64_t rows, int scale) const;
  bool possible(const Call& call) const;
  Variant tiled_variant(const Geometry& g, const std::vector<const Tensor*>& operands, const Tiling& tiling) const;
  // Of a variant with rows in registers: see kernels/cuda_loops.h.
  struct Held {
    int64_t depth, ahead, fixed, slot, most_threads;
  };
  Held held(const Variant& variant) const;
  int64_t most_in_team(const Variant& variant) const {  // threads, of a row
    return held(variant).most_threads * (variant.cluster ? largest_cluster_anywhere : 1);
  }
  uint32_t slot_bytes(const Call& call) const;
  uint32_t shared_bytes(const Call& call) const;

  size_t first_partial(const Call& call) const;
  bool add_memory(Call& call, const std::vector<const Tensor*>& operands, Launches& launches) const;
  bool add_side_memory(Call& call, const std::vector<const Tensor*>& operands, Launches& launches) const;
  bool sides_are_results(const Call& call, const std::vector<const Tensor*>& operands) const;
  std::vector<char> pack(const Call& call) const;
  Launches launches(Call& call, const std::vector<const Tensor*>& operands) const;
  int64_t cache_policy(const Call& c) const;
  int64_t word_of(size_t number, double value) const;
  // The arguments of a launch with what is different in every call. `memory`: the addresses of Launches::buffers.
  std::vector<char> filled(const std::vector<char>& arguments, const std::vector<const Tensor*>& operands,
                           const std::vector<double>& numbers, const std::vector<Launches::Buffer>& buffers,
                           const std::vector<void*>& memory) const;

  KernelLoops code_;
  LoopGeometry loops_;
  std::vector<Variant> variants_;
  int widest_ = 1;  // elements in the largest vector
};

}  // namespace fusewright
