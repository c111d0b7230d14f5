#pragma once
// How a kernel is launched: what the rules say for the sizes of a call, and what follows from a choice.
#include <cstdlib>

#include "launch/cuda_rules.h"

namespace fusewright {

inline int64_t scaled(int64_t n, int scale) { return scale < 0 ? std::max<int64_t>(n >> -scale, 1) : n << scale; }

// Forgets the shape, and counts again in vectors of this width.
inline void CudaRules::set_vector(Call& c, int vector) const {
  static_cast<Shape&>(c) = {};
  c.variant.vector = vector;
  c.variant.wide = c.wide;
  c.line = code_.nest.inner < 0 ? 1 : c.g.sizes[static_cast<size_t>(code_.nest.inner)] / vector;
  if (code_.nest.kind == Loops::Kind::pointwise) {
    c.anchors = c.g.extent(code_.nest.reduced);
    return;
  }
  c.anchors = c.g.extent(code_.cuda.anchor_axes);
  c.walked = c.g.extent(code_.cuda.walked_axes);
  c.elements = c.g.extent(code_.nest.reduced) * (code_.nest.kind == Loops::Kind::column ? 1 : c.line);
}

inline LaunchChoice CudaRules::rule(Call& c, int vector) const {
  set_vector(c, vector);
  LaunchChoice choice;
  choice.vector = vector;
  choice.items = code_.cuda.items[0];
  choice.threads = 128;
#ifndef FW_WITHOUT_ROWS
  if (code_.nest.kind == Loops::Kind::row) choice = rule_rows(c);
#endif
#ifndef FW_WITHOUT_COLUMNS
  if (code_.nest.kind == Loops::Kind::column) choice = rule_columns(c);
#endif
  return choice;
}

// In registers, if a block can hold a row.
inline LaunchChoice CudaRules::rule_rows(Call& c) const {
  const int usual = code_.cuda.items[code_.cuda.items.size() - 2], most = code_.cuda.items.back();
  LaunchChoice choice;
  choice.vector = c.variant.vector;
  choice.items = usual;
  choice.threads = 128;
  const bool sides = code_.cuda.has_sides();
  // Sums on the side take as many registers as the row: twice the threads have them.
  const Variant of_length{c.variant.vector, usual, false, {}, c.elements};
  const int64_t threads = sides && has(of_length) ? held(of_length).most_threads : 256;
  if (c.elements > usual * threads) choice.items = most;
  // Rows that a warp holds at one vector to a thread: neighbours read neighbouring memory.
  if (c.elements <= 32 && c.variant.vector == widest_) choice.items = 1;
  // The sums of more teams are added up in the block, before they cost memory.
  if (sides && choice.items == 1) choice.threads = 256;
  // Many blocks with a few rows each even out what the device does not do at one speed. With sums on the side every
  // team more costs a buffer.
  if (!sides) choice.scale = choice.items == 1 ? 2 : 3;
  if (plan(c, choice)) return choice;
#ifndef FW_WITHOUT_CLUSTERS
  if (const auto together = rule_clusters(c)) return *together;
#endif
  set_vector(c, c.variant.vector);
  return rule_walking(c);
}

// Several blocks to a row where there are few.
inline LaunchChoice CudaRules::rule_walking(const Call& c) const {
  LaunchChoice choice;
  choice.vector = c.variant.vector;
  choice.split = c.anchors * c.walked < 2 * c.processors;
  choice.threads = choice.split ? 256 : 512;
  choice.scale = choice.split || code_.cuda.has_sides() ? 0 : 3;
  return choice;
}

// Longer rows are held by the blocks of a cluster together, as few of them as can; by more where processors would be
// idle. Of very few rows more blocks can work on one than a cluster has.
inline std::optional<LaunchChoice> CudaRules::rule_clusters(Call& c) const {
  LaunchChoice choice;
  choice.vector = c.variant.vector;
  choice.items = code_.cuda.items.back();
  choice.threads = 128;
  const int64_t rows = c.anchors * c.walked;
  std::optional<LaunchChoice> best;
  for (choice.cluster = 2; choice.cluster <= largest_cluster_anywhere; choice.cluster *= 2) {
    if (best && rows * best->cluster >= c.processors) break;
    // Many rows even out what the device does not do at one speed; of few, a cluster asks for the next one ahead.
    choice.scale = !code_.cuda.has_sides() && rows * choice.cluster > 64 * c.processors ? 3 : 0;
    if (rows * choice.cluster * 2 >= c.processors && plan(c, choice)) best = choice;
    set_vector(c, choice.vector);
  }
  return best;
}

inline LaunchChoice CudaRules::in_registers(int vector) const {
  LaunchChoice choice;
  choice.vector = held_columns(vector);
  choice.items = code_.cuda.items[0];
  if (choice.vector == 1) choice.items = std::min(choice.items * held_columns(widest_), 32);
  choice.threads = 512;
  choice.lanes = 32 / choice.vector;
  return choice;
}

// In registers, if a block can hold all rows of neighbouring columns that fill a sector of memory.
inline LaunchChoice CudaRules::rule_columns(Call& c) const {
  const int vector = c.variant.vector;
  LaunchChoice choice;
#ifndef FW_WITHOUT_HELD
  choice = in_registers(vector);
  // Few rows are those of a warp alone, which waits for no other; it holds no more than it needs, and many fit.
  for (int items : code_.cuda.items)
    if (has({choice.vector, items, false, {}}) && 32 / choice.lanes * items >= c.elements)
      choice.items = std::min(choice.items, items);
  const int64_t team = power_of_two_from(ceil_div(c.elements, choice.items));
  const int64_t threads = std::min(team * choice.lanes, std::max<int64_t>(team * 8, 256));
  choice.threads = static_cast<int>(std::clamp<int64_t>(threads, 32, 512));
  if (choice.threads == 32) choice.scale = 2;
  if (plan(c, choice)) {
    const bool sector = c.lanes * c.variant.vector >= 8 || c.tiles == 1;
    if (sector && (c.walked * 2 >= c.processors || c.elements <= 64)) return choice;
  }
#endif
  choice.vector = vector;
  choice.items = 0;
  choice.threads = 128;
  choice.lanes = 16;
  choice.split = 1;
  choice.scale = 0;
  return choice;
}

inline bool CudaRules::plan(Call& c, const LaunchChoice& choice) const {
  // It may come from a file.
  const auto power = [](int32_t n, int32_t least, int32_t most) {
    return n >= least && n <= most && (n & (n - 1)) == 0;
  };
  const int widest = holds_columns(choice.items) ? held_columns(c.widest) : c.widest;
  if ((choice.vector != 1 && choice.vector != widest) || !power(choice.threads, 32, 512) ||
      !power(choice.lanes, 1, 128) || !power(choice.cluster, 1, largest_cluster_anywhere) || choice.items < 0 ||
      std::abs(choice.scale) > 4 || (choice.split != 0 && choice.items != 0))
    return false;
  set_vector(c, choice.vector);
  c.variant.items = choice.items;
  c.variant.cluster = choice.cluster > 1 && spreads_teams();
  c.threads = choice.threads;
  c.cluster = choice.cluster;
  if (code_.nest.kind == Loops::Kind::pointwise) plan_pointwise(c, choice);
#ifndef FW_WITHOUT_COLUMNS
  if (code_.nest.kind == Loops::Kind::column) plan_columns(c, choice);
#endif
#ifndef FW_WITHOUT_ROWS
  if (code_.nest.kind == Loops::Kind::row) plan_rows(c, choice);
#endif
  return possible(c);
}

inline CudaRules::Variant CudaRules::tiled_variant(const Geometry& g, const std::vector<const Tensor*>& operands,
                                                   const Tiling& tiling) const {
  const int widest = std::min(widest_, widest_in_tile);
  const int vector = vectors_fit(g, operands, tiling) ? widest : 1;
  Tiling with_vector = tiling;
  with_vector.vector = vectors_fit_across(g, operands, tiling) ? widest : 1;
  return {vector, static_cast<int>(tile_shape(code_, g, with_vector, vector).items), needs_wide(g), with_vector};
}

// If operands need tiles that fit, and their variant is at hand.
inline bool CudaRules::plan_tiled(Call& c, const std::vector<const Tensor*>& operands) const {
  const Tiling tiling = find_tiling(code_, c.g);
  if (tiling.operands == 0) return false;
  const Variant variant = tiled_variant(c.g, operands, tiling);
  const TileShape shape = tile_shape(code_, c.g, variant.tiling, variant.vector);
  if (shape.shared_bytes > c.shared_limit) return false;
  int64_t& across = c.g.sizes[static_cast<size_t>(tiling.across)];
  const int64_t line = c.g.sizes[static_cast<size_t>(code_.nest.inner)];
  if (!tiles_are_ready(c, variant)) return false;
  c.variant = variant;
  c.tile_bytes = shape.shared_bytes;
  c.parts = shape.width;
  c.share = c.lanes = shape.length;
  c.tiles = shape.tiles_along;
  c.rows = shape.tiles_across;
  c.line = line / variant.vector;
  c.walked = across;
  across = 1;  // rows are placed at its beginning, and move across from there
  c.anchors = c.g.extent(code_.nest.reduced);
  c.blocks = c.anchors * c.rows * c.tiles;
  return true;
}

inline void CudaRules::plan_pointwise(Call& c, const LaunchChoice& choice) const {
  c.blocks = ceil_div(c.anchors * c.line, choice.items * c.threads);
}

inline CudaRules::Held CudaRules::held(const Variant& variant) const {
  Held h;
  int64_t widest = 4;
  auto bytes = [&](const std::vector<int>& operands) {
    int64_t sum = 0;
    for (int operand : operands) {
      const int64_t vector = variant.vector * size_of(code_.operands[static_cast<size_t>(operand)].dtype);
      if (vector != 4 && vector != 8 && vector != 16) continue;  // no asynchronous copy can move it
      sum += vector;
      widest = std::max(widest, vector);
    }
    return sum;
  };
  h.ahead = bytes(code_.cuda.ahead);
  h.fixed = bytes(code_.cuda.fixed);
  h.ahead = ceil_div(h.ahead, widest) * widest;
  h.fixed = ceil_div(h.fixed, widest) * widest;
  h.depth = variant.items < 4 ? 4 / variant.items : 1;
  const bool sides = code_.cuda.has_sides();
  // A thread's one vector of the next row finds room in its registers, beside sums on the side that keep blocks few and
  // teams busy. Rows of a single vector are worked on faster than they would arrive.
  if (sides && variant.items == 1 && variant.row > 1) h.depth = h.ahead = h.fixed = 0;
  h.slot = h.depth * variant.items * h.ahead + variant.items * h.fixed;
  h.slot = std::max(h.slot, code_.cuda.sides_at_positions() * variant.vector * 8);  // fw::stretch_slot
  // Blocks of those that hold little are small: more of them fit on a processor. Of rows whose length is known, only
  // those that need large blocks have them: the compiler shares out registers to as many threads as there may be.
  const std::vector<int>& items = code_.cuda.items;
  const bool last = variant.items == items.back();  // of rows the most, of columns the least
  bool large = code_.nest.kind == Loops::Kind::row ? last : !last;
  if (variant.row != 0) large = variant.items >= items[items.size() - 2] && variant.row > 256 * variant.items;
  // Those of a cluster wait for one another: two or three on a processor keep it busy (of 512 threads there is room for
  // one: log_softmax over 32000 took 306 us instead of 279), unless a row needs more.
  if (variant.cluster && code_.nest.kind == Loops::Kind::row)
    large = variant.row > largest_cluster_anywhere * 256 * variant.items;
  h.most_threads = large ? 512 : 256;
  return h;
}

// Slots of fw::reduce: one for each warp and lane of a team in its block, and two for each block of its cluster and
// lane, as large as the largest Sums, or as Total. And fw::Mailbox, where blocks add up their sums on the side. Of
// columns in registers each is reduced by a team of its own (fw::team_of_columns), which has a lane for each.
inline uint32_t CudaRules::slot_bytes(const Call& c) const {
  const auto in_pieces = [](int64_t bytes) { return ceil_div(bytes, 16) * 16; };
  int64_t mail = 0;
  if (c.cluster > c.spread()) {
    int64_t widest = 0;
    for (const auto& operand : code_.operands)
      if (operand.side) widest = std::max(widest, size_of(operand.dtype));
    const int64_t places = c.team * c.anchors_together, vectors = c.variant.items * code_.cuda.sides_at_positions();
    mail = vectors * places * in_pieces(c.variant.vector * widest) + 16;
  }
  if (c.team * c.lanes <= 32) return static_cast<uint32_t>(mail);
  const bool own = holds_columns(c.variant.items);
  const int64_t width = code_.nest.kind == Loops::Kind::column && !own ? c.variant.vector : 1;
  const int64_t lanes = own ? c.lanes * c.variant.vector : c.lanes;
  int64_t largest = std::max<int64_t>(16, 8 * code_.cuda.sides_at_anchors());
  for (const std::vector<int64_t>& sums : c.sums(code_))
    largest = std::max(largest, static_cast<int64_t>(sums.size()) * 8 * width);
  largest = in_pieces(largest);
  const int64_t in_block = c.team * c.lanes / c.spread();
  const int64_t slots = lanes < 32 ? in_block / 32 * lanes : in_block;
  const int64_t exchange = c.spread() > 1 ? 2 * c.cluster * lanes * largest + 16 : 0;  // fw::begin_cluster
  return static_cast<uint32_t>(largest * slots + exchange + mail);
}

inline uint32_t CudaRules::shared_bytes(const Call& c) const {
  if (c.variant.tiling.operands != 0) return static_cast<uint32_t>(c.tile_bytes);
  uint32_t bytes = slot_bytes(c);
#ifndef FW_WITHOUT_HELD
  if (c.variant.items != 0) bytes += static_cast<uint32_t>(held(c.variant).slot * c.threads);
#endif
  return bytes;
}

// Blocks that the device works on at a time. A cluster lies in one group of its processors, whose number is even, but
// need not be a multiple of 4: an H200 has room for 30 clusters of 4 blocks that fill a processor each, not for 33.
// Where clusters fill pairs of processors, nothing is left over.
inline int64_t CudaRules::blocks_at_a_time(const Call& c) const {
  const int64_t resident = std::max(resident_blocks(c, ""), 1), places = c.processors * resident;
  return 2 * resident % c.cluster != 0 ? places * 15 / 16 : places;
}

// The rows of each anchor, shared out to as many teams as can work at a time: in whole blocks, none of which is left
// over for a last wave.
inline void CudaRules::share_rows(Call& c, int64_t anchors, int64_t most_parts, int scale) const {
  const int64_t blocks = scaled(blocks_at_a_time(c), scale) / c.cluster;
  // Of a block, or of a cluster.
  const int64_t parts_together = c.teams_in_block() / c.anchors_together * (c.cluster / c.spread());
  const int64_t places = std::max<int64_t>(anchors / c.anchors_together, 1);
  const int64_t wanted = std::max<int64_t>(blocks / places, 1) * parts_together;
  c.parts = std::clamp<int64_t>(wanted, 1, std::max<int64_t>(most_parts, 1));
  c.share = ceil_div(std::max<int64_t>(c.walked, 1), c.parts);
  c.parts = ceil_div(c.walked, c.share);
  c.side_parts = ceil_div(c.parts, parts_together);
  c.blocks = anchors / c.anchors_together * c.side_parts * c.cluster;
}

// The blocks that share a long row: as many as the device works on at a time, so that there is no last wave of a few;
// each has enough to do to be worth it. A pass that leaves no sums has as many blocks as are worth it.
inline void CudaRules::split_elements(Call& c, int64_t rows, int scale) const {
  const int64_t most = c.elements / c.stretch();
  const int64_t blocks = c.processors * std::max(resident_blocks(c, "_phase0"), 1);
  c.splits = std::clamp<int64_t>(scaled(blocks, scale) / std::max<int64_t>(rows, 1), 1, std::max<int64_t>(most, 1));
  c.rows = rows;
  c.blocks = rows * c.splits;
}

inline void CudaRules::plan_rows(Call& c, const LaunchChoice& choice) const {
  c.split = choice.split;
  if (c.split) {
    c.team = c.threads;
    split_elements(c, c.anchors * c.walked, choice.scale);
    c.parts = c.side_parts = c.walked;
    c.total_parts = c.walked * c.splits;
    return;
  }
  c.team = choice.items ? power_of_two_from(ceil_div(c.elements, choice.items)) : c.threads;
  if (const Variant of_length{choice.vector, choice.items, false, {}, c.elements, c.variant.cluster}; has(of_length))
    c.variant.row = c.elements;
  if (c.team > 32) c.threads = c.team / c.spread();  // a team of several warps has the block to itself, or the cluster
  if (c.team < 32 && c.anchors > 0) c.anchors_together = std::min<int64_t>(32 / c.team, c.anchors & -c.anchors);
  if (!possible(c)) return;
  c.tiles = c.anchors / c.anchors_together;
  // With sums on the side every block more costs a buffer, so that it should have some rows to add up there.
  const int64_t parts_in_block = c.teams_in_block() / c.anchors_together;
  const bool places = code_.cuda.sides_at_positions() > 0;
  share_rows(c, c.anchors, places ? ceil_div(c.walked, 16) * parts_in_block : c.walked, choice.scale);
  c.total_parts = c.parts;
}

inline void CudaRules::plan_columns(Call& c, const LaunchChoice& choice) const {
  c.lanes = std::min<int64_t>(power_of_two_from(c.line), choice.lanes);
  if (choice.items != 0) {
    const int64_t team = power_of_two_from(ceil_div(c.elements, choice.items));
    c.lanes = std::clamp<int64_t>(c.threads * c.cluster / team, 1, c.lanes);
  }
  c.team = c.threads * c.cluster / c.lanes;
  c.tiles = ceil_div(c.line, c.lanes);
  c.walked = c.parts = c.blocks = c.anchors * c.tiles;
  if (choice.split) {
    split_elements(c, c.walked, choice.scale);
    c.split = c.splits > 1;
  } else if (possible(c)) {
    share_rows(c, 1, c.walked, choice.scale);
  }
}

// What the kernels' texts take for granted: all refusals of a choice stand here.
inline bool CudaRules::possible(const Call& c) const {
  const bool pointwise = code_.nest.kind == Loops::Kind::pointwise;
  const int64_t span = c.team * c.lanes;
  if (!has({c.variant.vector, c.variant.items, false, {}, c.variant.row, c.variant.cluster})) return false;
  // __launch_bounds__ of the entries
  int64_t most = pointwise || c.split ? 256 : 512;
#ifndef FW_WITHOUT_HELD
  if (!pointwise && !c.split && c.variant.items != 0) most = held(c.variant).most_threads;
#endif
  if (c.threads < 32 || c.threads > most || span > c.threads * c.spread() || c.blocks >= int64_t{1} << 31) return false;
  // A cluster is one team, of rows or columns in registers, and each of its blocks has threads of every lane; or it has
  // sums on the side, and each of its blocks owns some of their places.
  const bool has_places = code_.cuda.sides_at_positions() > 0;
  if (c.cluster > 1 && (c.variant.items == 0 || c.cluster > c.largest_cluster || (!c.variant.cluster && !has_places) ||
                        c.team * c.anchors_together < c.cluster))
    return false;
  if (pointwise) return true;
  // Between warps a team reduces through shared memory, alone in its block; split rows have one, too.
  if ((span > 32 || c.split || c.spread() > 1) && span != c.threads * c.spread()) return false;
  if (c.split && c.variant.items != 0) return false;
  // A warp has a thread for each of its columns.
  if (holds_columns(c.variant.items) && c.lanes * c.variant.vector > 32) return false;
  if (c.variant.items != 0 && (c.elements == 0 || c.team * c.variant.items < c.elements)) return false;
  return shared_bytes(c) <= c.shared_limit;
}

}  // namespace fusewright
