// The rules that choose launches, without a device: as if so many blocks found room on each of its processors.
#include "launch/cuda_shape.h"

#include <gtest/gtest.h>

#include <optional>

#include "codegen/kernel_code.h"
#include "launch/cuda_arguments.h"
#include "runtime/plan/geometry.h"
#include "support/graphs.h"

namespace fusewright::testing {
namespace {

class Rules : CudaRules {
 public:
  Rules(const Graph& graph, const KernelCode& code, int resident)
      : CudaRules(loops_of(graph, code)), geometry_(graph, code, {}), resident_(resident) {
    variants_ = variants_for_all_rows();
    for (const KernelCode::Operand& operand : code.operands) {
      Tensor& tensor = tensors_.emplace_back();
      for (const Size& size : graph.shape(operand.value))
        tensor.sizes[static_cast<size_t>(tensor.rank++)] = *size.constant();
      set_strides(tensor, {});
    }
  }
  using CudaRules::cache_policy;
  // As many vectors in a row as are known: the variants of just that.
  void know_rows(int64_t vectors) {
    for (Variant& variant : variants_)
      if (variant.items != 0 && variant.vector == widest_) variant.row = vectors;
  }
  // As for rows that are longer than what a block holds.
  void expect_clusters() { variants_.push_back({widest_, code_.cuda.items.back(), false, {}, 0, true}); }
  int64_t most_threads(const Call& c) const { return held(c.variant).most_threads; }
  Call planned(int64_t largest_cluster = 1) const {
    Call c = bound();
    c.largest_cluster = largest_cluster;
    EXPECT_TRUE(plan(c, rule(c, c.widest)));
    return c;
  }
  Launches launched(Call c) const {
    std::vector<const Tensor*> operands;
    for (const Tensor& tensor : tensors_) operands.push_back(&tensor);
    return launches(c, operands);
  }
  // Bytes of buffers, and the kernels that are launched in clusters. `spoil` changes the tensors before.
  std::pair<int64_t, std::vector<std::string>> run(int cluster, void (*spoil)(Tensor& last)) {
    spoil(tensors_.back());
    std::pair<int64_t, std::vector<std::string>> result;
    const Launches all = launched(in_clusters(cluster).value());
    result.first = all.buffer_bytes();
    for (const auto& launch : all.launches) result.second.push_back(launch.entry);
    return result;
  }
  // By rule but for the cluster, or for columns side by side; none if that cannot be.
  std::optional<Call> in_clusters(int cluster, int64_t largest = 8, bool most_items = false) const {
    return but(
        [&](LaunchChoice& choice) {
          choice.cluster = cluster;
          if (most_items) choice.items = code_.cuda.items.back();
        },
        largest);
  }
  std::optional<Call> with_lanes(int lanes, int threads) const {
    return but([&](LaunchChoice& choice) { choice.lanes = lanes, choice.threads = threads; });
  }

 private:
  template <class Change>
  std::optional<Call> but(Change change, int64_t largest_cluster = 8) const {
    Call c = bound();
    c.largest_cluster = largest_cluster;
    LaunchChoice choice = rule(c, c.widest);
    change(choice);
    return plan(c, choice) ? std::optional(c) : std::nullopt;
  }
  Call bound() const {
    std::vector<const Tensor*> operands;
    for (const Tensor& tensor : tensors_) operands.push_back(&tensor);
    const int64_t no_symbols = 0;
    Call c;
    c.processors = 132, c.shared_limit = 227 << 10, c.l2_bytes = 50 << 20;
    bind(c, geometry_.bind(operands, &no_symbols), operands);
    return c;
  }
  int resident_blocks(const Call&, const char*) const override { return resident_; }
  bool tiles_are_ready(const Call&, const Variant&) const override { return false; }
  KernelGeometry geometry_;
  int resident_;
  std::vector<Tensor> tensors_;
};

// The one kernel of the gradients that has sums on the side, launched by rule.
struct WithSides {
  WithSides(const char* text, const std::vector<std::string>& wrt) : program(fused(text, wrt, true)) {
    for (const auto& group : program.backward_fusion.groups)
      if (KernelCode found = emit_cuda(program.backward, group.kernel); !found.cuda.position_side.empty())
        code.push_back(std::move(found));
    EXPECT_EQ(code.size(), 1u);
  }
  Rules rules(int resident) const { return Rules(program.backward, code.at(0), resident); }
  auto planned(int resident) const { return rules(resident).planned(); }
  Program program;
  std::vector<KernelCode> code;
};

// A thread holds as many bytes of a column whatever its elements are: of narrower ones more rows.
TEST(CudaShape, ColumnsInRegisters) {
  for (auto [type, most] : {std::pair{"bf16", 4096}, {"f32", 2048}, {"f64", 1024}}) {
    for (const int rows : {most, most + 1}) {
      const Program program = fused("graph(%x: " + std::string(type) + "[" + std::to_string(rows) +
                                        ", 8192]) { %1 = batch_norm(%x) {eps = 0.01} return %1 }",
                                    {}, true);
      const KernelCode code = emit_cuda(program.forward, program.forward_fusion.groups.at(0).kernel);
      EXPECT_EQ(Rules(program.forward, code, 2).planned().variant.items != 0, rows == most) << type << ", " << rows;
    }
  }
}

// A pass that leaves sums has as many blocks as fit at a time; one that leaves none has short stretches for many, and
// they reach to the end.
TEST(CudaShape, PassesWithoutSumsHaveManyBlocks) {
  for (const auto& [rows, columns] : {std::pair{65536, 512}, {65537, 512}, {40001, 36}}) {
    const Program program = fused("graph(%x: f32[" + std::to_string(rows) + ", " + std::to_string(columns) +
                                      "]) { %1 = batch_norm(%x) {eps = 0.01} %2 = silu(%1) return %2 }",
                                  {}, true);
    const KernelCode code = emit_cuda(program.forward, program.forward_fusion.groups.at(0).kernel);
    EXPECT_EQ(code.cuda.walking.leaves_sums, (std::vector<bool>{true, false}));
    const Rules rules(program.forward, code, 2);
    const auto c = rules.planned();
    const auto launches = rules.launched(c).launches;
    ASSERT_GE(launches.size(), 2u);
    EXPECT_LE(launches[0].blocks, 2 * 132);
    const auto& last =
        *std::find_if(launches.begin(), launches.end(), [](const auto& l) { return l.entry.ends_with("_phase1"); });
    EXPECT_GE(last.blocks / c.rows * c.stretch(), rows);
    EXPECT_LT((last.blocks / c.rows - 1) * c.stretch(), rows);
    EXPECT_GE(last.blocks, 2 * launches[0].blocks);
  }
}

// A number for each row costs no memory to speak of: all rows may be worked on at a time.
TEST(CudaShape, TotalsOfLongRowsFillTheDevice) {
  const WithSides kernel(
      "graph(%x: f32[8, 64, 65536], %w: f32[64]) { %1 = group_norm(%x, %w) {groups = 64, eps = 0.01, has_weight = 1} "
      "%2 = silu(%1) return %2 }",
      {"x", "w"});
  EXPECT_EQ(kernel.planned(1).blocks, 132 / 64 * 64);
  EXPECT_EQ(kernel.planned(2).blocks, 264 / 64 * 64);
  EXPECT_EQ(kernel.planned(4).blocks, 8 * 64);
}

// Rows that `fuse` expects a block to hold are held.
TEST(CudaShape, RowsWithSumsOnTheSideAreHeld) {
  for (const char* text :
       {"graph(%x: f32[2048, 8192], %w: f32[8192], %b: f32[8192]) { %1 = layer_norm(%x, %w, %b) {axes = 1, eps = 0.01, "
        "has_weight = 1, has_bias = 1} %2 = gelu(%1) {approximate = \"none\"} return %2 }",
        "graph(%x: bf16[2048, 8192], %w: f32[8192], %b: f32[8192]) { %1 = layer_norm(%x, %w, %b) {axes = 1, eps = "
        "0.01, has_weight = 1, has_bias = 1} %2 = silu(%1) return %2 }",
        "graph(%x: f32[2048, 2047], %w: f32[2047], %b: f32[2047]) { %1 = layer_norm(%x, %w, %b) {axes = 1, eps = 0.01, "
        "has_weight = 1, has_bias = 1} %2 = silu(%1) return %2 }"})
    EXPECT_NE(WithSides(text, {"x", "w", "b"}).planned(1).variant.items, 0) << text;
}

// One block more than fit at a time, and the kernel takes twice as long.
TEST(CudaShape, SumsOnTheSideLeaveNoLastWave) {
  const WithSides kernel(
      "graph(%x: f32[1024, 8192], %w: f32[8192], %b: f32[8192], %m: f32[8192]) { %1 = group_norm(%x, %w, %b) {groups = "
      "256, eps = 0.01, has_weight = 1, has_bias = 1} %2 = silu(%1) %3 = mul(%2, %m) %4 = silu(%3) return %4 }",
      {"x", "w", "b", "m"});
  for (int resident = 1; resident <= 16; ++resident) {
    const auto c = kernel.planned(resident);
    EXPECT_LE(c.blocks, 132 * resident) << resident << " blocks on a processor";
    EXPECT_GE(c.parts * c.share, c.walked);
    EXPECT_GE(c.side_parts * c.teams_in_block() / c.anchors_together, c.parts);
  }
}

// Blocks of a cluster add up theirs: a buffer for each cluster, or none where one has all rows of a place and results
// lie as the sums do.
TEST(CudaShape, ClustersAddUpSumsOnTheSide) {
  const WithSides groups(
      "graph(%x: f32[1024, 8192], %w: f32[8192], %b: f32[8192], %m: f32[8192]) { %1 = group_norm(%x, %w, %b) {groups = "
      "256, eps = 0.01, has_weight = 1, has_bias = 1} %2 = silu(%1) %3 = mul(%2, %m) %4 = silu(%3) return %4 }",
      {"x", "w", "b", "m"});
  for (int resident = 1; resident <= 16; ++resident) {
    const auto c = groups.rules(resident).in_clusters(8).value();
    EXPECT_LE(c.blocks, std::max(132 * resident, 64 * 8)) << resident << " blocks on a processor";
    EXPECT_EQ(c.blocks % 8, 0);
    EXPECT_GE(c.parts * c.share, c.walked);
    EXPECT_GE(c.side_parts * c.cluster * c.teams_in_block() / c.anchors_together, c.parts);
  }
  const auto as_they_are = [](Tensor&) {};
  const auto elsewhere = [](Tensor& last) { last.data = reinterpret_cast<void*>(uintptr_t{4}); };
  const auto with_gaps = [](Tensor& last) { last.strides[static_cast<size_t>(last.rank - 1)] = 2; };
  const auto in_half = [](Tensor& last) { last.dtype = DType::f16; };
  EXPECT_EQ(groups.rules(6).in_clusters(8)->side_parts, 1);
  const auto alone = groups.rules(6).run(1, as_they_are);
  EXPECT_EQ(alone.second.size(), 2u);
  EXPECT_GT(alone.first, 0);
  const auto together = groups.rules(6).run(8, as_they_are);
  EXPECT_EQ(together.second.size(), 1u);
  EXPECT_EQ(together.first, 0);
  for (auto spoil : {+elsewhere, +with_gaps, +in_half}) {
    const auto [bytes, entries] = groups.rules(6).run(8, spoil);
    EXPECT_EQ(entries.size(), 2u);
    EXPECT_EQ(bytes, 3 * 8192 * 4);
  }

  const WithSides rows(
      "graph(%x: f32[8192, 4096], %b: f32[4096]) { %1 = add(%x, %b) %2 = softmax(%1) {dim = 1} return "
      "%2 }",
      {"x", "b"});
  const auto one = rows.rules(2).run(1, as_they_are), eight = rows.rules(2).run(8, as_they_are);
  EXPECT_EQ(eight.second, one.second);
  EXPECT_LE(eight.first * 8, one.first);
  // One block to a processor: an H200 works on 30 clusters of 4 at a time, whatever 132 divided by 4 is.
  EXPECT_EQ(rows.rules(1).in_clusters(4)->blocks, 30 * 4);
  // Two: each fills a pair of processors, and none is left out.
  EXPECT_EQ(rows.rules(2).in_clusters(4)->blocks, rows.rules(2).in_clusters(2)->blocks);
  EXPECT_LT(rows.rules(2).in_clusters(8)->blocks, rows.rules(2).in_clusters(4)->blocks);
}

// More places than blocks that fit: every place has a block, and all teams of it work.
TEST(CudaShape, NoTeamIsIdleWherePlacesAreMany) {
  const WithSides kernel(
      "graph(%x: f32[256, 131072], %w: f32[131072]) { %1 = group_norm(%x, %w) {groups = 4096, eps = 0.01, has_weight = "
      "1} %2 = silu(%1) return %2 }",
      {"x", "w"});
  const auto c = kernel.planned(4);
  EXPECT_GT(c.tiles, 4 * 132);
  EXPECT_GE(c.parts, c.teams_in_block() / c.anchors_together);
}

// Rows that are longer than what a block holds, in as few blocks of 256 threads as can; in more where there are few
// rows.
TEST(CudaShape, ClustersHoldLongRows) {
  struct Rows {
    int64_t rows, length, cluster, threads, share;
  };
  // Many rows get eight times as many clusters as run at a time; with few rows each cluster has some.
  for (auto [rows, length, cluster, threads, share] : {Rows{4096, 16384, 1, 512, 2},
                                                       {4096, 32000, 4, 256, 8},
                                                       {400, 32768, 4, 256, 7},
                                                       {20, 20000, 8, 128, 1},
                                                       {4096, 65536, 8, 256, 17}}) {
    const Program program = fused("graph(%x: f32[" + std::to_string(rows) + ", " + std::to_string(length) +
                                      "]) { %1 = softmax(%x) {dim = 1} return %1 }",
                                  {}, true);
    Rules rules(program.forward, emit_cuda(program.forward, program.forward_fusion.groups.at(0).kernel), 2);
    rules.expect_clusters();
    const auto c = rules.planned(8);
    EXPECT_EQ(c.cluster, cluster) << rows << " x " << length;
    EXPECT_EQ(c.threads, threads) << rows << " x " << length;
    EXPECT_GT(c.variant.items, 0) << rows << " x " << length;
    EXPECT_EQ(c.blocks, c.parts * c.anchors * cluster) << "one team";
    EXPECT_EQ(c.share, share) << rows << " x " << length;
    EXPECT_GE(c.share * c.parts, rows);
    // Where there are none the rows are walked over, by eight times as many blocks as find room; or few are split.
    if (cluster > 1) {
      const auto walking = rules.planned(1);
      EXPECT_EQ(walking.variant.items, 0);
      EXPECT_EQ(walking.split, rows < 2 * 132) << rows << " x " << length;
      EXPECT_EQ(walking.threads, walking.split ? 256 : 512) << rows << " x " << length;
      if (!walking.split) {
        EXPECT_EQ(walking.share, rows > 2 * 132 * 8 ? 2 : 1) << rows << " x " << length;
      }
    }
  }
  for (auto [rows, length] : {std::pair{8, 65536}, {4096, 65540}, {4096, 40001}}) {
    const Program program = fused("graph(%x: f32[" + std::to_string(rows) + ", " + std::to_string(length) +
                                      "]) { %1 = softmax(%x) {dim = 1} return %1 }",
                                  {}, true);
    Rules rules(program.forward, emit_cuda(program.forward, program.forward_fusion.groups.at(0).kernel), 2);
    rules.expect_clusters();
    EXPECT_EQ(rules.planned(8).cluster, 1) << rows << " x " << length;
  }
  // Rows of a warp have no memory for what the blocks of a cluster would tell one another; such a choice may come from
  // a file.
  const Program program = fused("graph(%x: f32[4096, 512]) { %1 = softmax(%x) {dim = 1} return %1 }", {}, true);
  Rules rules(program.forward, emit_cuda(program.forward, program.forward_fusion.groups.at(0).kernel), 2);
  rules.expect_clusters();
  EXPECT_FALSE(rules.in_clusters(2, 8, true));
}

// The parts of its totals are added up by a text that walks, which knows nothing of clusters.
TEST(CudaShape, SumsOnTheSideOfALongRow) {
  const WithSides norm(
      "graph(%x: f32[8, 64, 65536], %w: f32[64], %b: f32[64]) { %1 = instance_norm(%x, %w, %b) {eps = 0.01, has_weight "
      "= 1, has_bias = 1} %2 = relu(%1) return %2 }",
      {"x", "w", "b"});
  Rules rules = norm.rules(2);
  rules.expect_clusters();
  const auto c = rules.planned(8);
  EXPECT_EQ(c.cluster, 8);
  const auto launches = rules.launched(c).launches;
  ASSERT_EQ(launches.size(), 2u);
  EXPECT_TRUE(launches[0].variant.cluster);
  EXPECT_TRUE(launches[1].entry.ends_with("_sides")) << launches[1].entry;
  EXPECT_FALSE(launches[1].variant.cluster);
  EXPECT_EQ(launches[1].cluster, 1u);
}

// A cluster is one team: as many more columns side by side as it has blocks, until they fill a line of memory.
TEST(CudaShape, ClustersHoldMoreColumns) {
  const auto rules = [](const std::string& text, const std::vector<std::string>& wrt) {
    const Program program = fused(text, wrt, true);
    const Graph& graph = wrt.empty() ? program.forward : program.backward;
    const auto& groups = (wrt.empty() ? program.forward_fusion : program.backward_fusion).groups;
    return Rules(graph, emit_cuda(graph, groups.at(0).kernel), 2);
  };
  const std::string norm = "graph(%x: f32[1024, 8192]) { %1 = batch_norm(%x) {eps = 0.01} %2 = silu(%1) return %2 }";
  for (const std::vector<std::string>& wrt : {std::vector<std::string>{}, {"x"}}) {
    const Rules columns = rules(norm, wrt);
    const auto alone = columns.planned();
    EXPECT_LT(alone.lanes * alone.variant.vector * 4, 128);  // bytes of a row
    for (int cluster : {2, 4}) {
      const auto c = columns.in_clusters(cluster);
      ASSERT_TRUE(c);
      EXPECT_EQ(c->lanes * c->variant.vector * 4, 128);
      EXPECT_EQ(c->team * c->lanes, c->threads * cluster);
      EXPECT_EQ(c->blocks % cluster, 0);
      EXPECT_LE(c->blocks, 2 * 132);
      EXPECT_GE(c->parts * c->share, c->tiles);
      EXPECT_EQ(c->blocks, c->parts * cluster);
    }
    EXPECT_FALSE(columns.in_clusters(4, 1)) << "on a device without them";
    EXPECT_FALSE(columns.in_clusters(3)) << "no power of two";
    EXPECT_FALSE(columns.in_clusters(16)) << "more than every device has";
  }
  EXPECT_FALSE(rules("graph(%x: f32[1024, 512]) { %1 = softmax(%x) {dim = 1} return %1 }", {}).in_clusters(2));
  EXPECT_FALSE(rules("graph(%x: f32[1024, 512]) { %1 = exp(%x) return %1 }", {}).in_clusters(2));
}

// Threads of a warp share out the columns of their vectors: there are no more of them side by side than it has threads.
TEST(CudaShape, AWarpHasAThreadForEachColumnInRegisters) {
  for (const std::string type : {"f32", "f16", "f64"})
    for (const std::string rows : {"16", "200", "1024"}) {
      const Program program = fused(
          "graph(%x: " + type + "[" + rows + ", 4096]) { %1 = batch_norm(%x) {eps = 0.01} %2 = silu(%1) return %2 }",
          {}, true);
      const Rules rules(program.forward, emit_cuda(program.forward, program.forward_fusion.groups.at(0).kernel), 2);
      const auto c = rules.planned();
      ASSERT_NE(c.variant.items, 0) << type << " " << rows;
      EXPECT_LE(c.lanes * c.variant.vector, 32) << type << " " << rows;
      EXPECT_EQ(c.team * c.lanes, c.threads);
      EXPECT_GE(c.team, c.variant.vector);
      const int too_many = static_cast<int>(64 / c.variant.vector);
      if (rows == "16") {
        EXPECT_FALSE(rules.with_lanes(too_many, 128)) << type;
      }
    }
}

// More blocks cost nothing where they have no setup: rows that leave no sums are shared out to as many as possible.
TEST(CudaShape, RowsWithoutSumsHaveManyBlocks) {
  for (int elements : {256, 768, 1024, 4096}) {
    const Program program = fused("graph(%x: f32[8192, " + std::to_string(elements) +
                                      "]) { %1 = layer_norm(%x) {axes = 1, eps = 0.01} return %1 }",
                                  {}, true);
    const Rules rules(program.forward, emit_cuda(program.forward, program.forward_fusion.groups.at(0).kernel), 4);
    const auto c = rules.planned();
    EXPECT_LE(c.share, 2) << elements;
    EXPECT_GE(c.blocks, std::min<int64_t>(4096, 8192 / c.teams_in_block())) << elements;
  }
}

// A block's registers are shared out to as many threads as it may have: 256, where these hold the row. Sums on the side
// take as many as the row; twice the threads hold both.
TEST(CudaShape, LongRowsOfKnownLengthFitInRegisters) {
  for (const auto& [vectors, forward, backward] :
       {std::tuple{1024, 256, 256}, {1026, 256, 512}, {2048, 256, 512}, {2052, 512, 512}, {4096, 512, 512}}) {
    const std::string c = std::to_string(vectors * 4);
    const Program program = fused("graph(%x: f32[8192, " + c + "], %w: f32[" + c + "], %b: f32[" + c +
                                      "]) { %1 = layer_norm(%x, %w, %b) {axes = 1, eps = 0.01, has_weight = 1, "
                                      "has_bias = 1} return %1 }",
                                  {"x", "w", "b"}, true);
    auto check = [&](const Graph& graph, const Fusion& fusion, int64_t threads) {
      Rules rules(graph, emit_cuda(graph, fusion.groups.at(0).kernel), 1);
      rules.know_rows(vectors);
      const auto planned = rules.planned();
      EXPECT_EQ(planned.variant.row, vectors);
      EXPECT_EQ(planned.threads, threads) << vectors;
      EXPECT_EQ(rules.most_threads(planned), threads) << vectors;
    };
    check(program.forward, program.forward_fusion, forward);
    check(program.backward, program.backward_fusion, backward);
  }
}

// No barriers where a warp has room for all rows, and whole lines of memory.
TEST(CudaShape, FewRowsOfColumnsAreThoseOfAWarp) {
  for (const auto& [rows, threads] :
       {std::pair{2, 32}, {8, 32}, {21, 32}, {32, 32}, {33, 64}, {256, 256}, {257, 512}}) {
    const Program program = fused(
        "graph(%x: f32[16, " + std::to_string(rows) + ", 65536]) { %1 = softmax(%x) {dim = 1} return %1 }", {}, true);
    const Rules rules(program.forward, emit_cuda(program.forward, program.forward_fusion.groups.at(0).kernel), 2);
    const auto c = rules.planned();
    EXPECT_EQ(c.threads, threads) << rows;
    EXPECT_EQ(c.variant.items, rows <= 16 ? 4 : 8) << rows;
    EXPECT_EQ(c.lanes * c.variant.vector * 4, 128) << rows;
  }
}

// Blocks are no larger than they were for vectors of fewer bytes: their memory is what several operands share.
TEST(CudaShape, ColumnsOfSingleElementsFitBesideOthers) {
  for (const int rows : {257, 1024}) {
    const Program program = fused("graph(%x: f32[" + std::to_string(rows) +
                                      ", 4097]) { %1 = batch_norm(%x) {eps = 0.01} %2 = silu(%1) return %2 }",
                                  {}, true);
    const Rules rules(program.forward, emit_cuda(program.forward, program.forward_fusion.groups.at(0).kernel), 2);
    const auto c = rules.planned();
    EXPECT_NE(c.variant.items, 0);
    EXPECT_EQ(c.threads, 256) << rows;
  }
}

// The L2 cache is asked to hold what is read only where that is more than it can: reads of the kernel, each operand
// once.
TEST(CudaShape, OnlyLargeReadsAreHeldInTheCache) {
  const auto policy = [](const std::string& rows, const std::string& bias) {
    const Program program = fused(
        "graph(%x: f32[" + rows + ", 8192], %b: f32[" + bias + "8192]) { %1 = add(%x, %b) %2 = relu(%1) return %2 }",
        {}, true);
    EXPECT_EQ(program.forward_fusion.groups.size(), 1u);
    const Rules rules(program.forward, emit_cuda(program.forward, program.forward_fusion.groups.at(0).kernel), 2);
    return rules.cache_policy(rules.planned());
  };
  const int64_t usual = policy("1024", "");  // 33.5 MB, and a bias that all rows share
  EXPECT_EQ(usual, policy("1599", ""));      // 52.39 MB of 52.43
  const int64_t held = policy("1600", "");   // a row more, and the bias
  EXPECT_NE(held, usual);
  EXPECT_EQ(held, policy("1024", "1024, "));  // two of 33.5 MB
  EXPECT_EQ(usual, policy("64", ""));
  // As the assembler has them for createpolicy.
  EXPECT_EQ(usual, 0x16f0000000000000);
  EXPECT_EQ(held, 0x14f0000000000000);
}

}  // namespace
}  // namespace fusewright::testing
