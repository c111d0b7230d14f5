// How a kernel is launched: what the rules say for the sizes of a call, what follows from a choice, and which choices
// are timed.
#include <cstdlib>

#include "runtime/cuda_call.h"
#include "runtime/log.h"
#include "runtime/sha256.h"

namespace fusewright {
namespace {

int64_t scaled(int64_t n, int scale) { return scale < 0 ? std::max<int64_t>(n >> -scale, 1) : n << scale; }

constexpr size_t most_candidates = 8;
// Part of what names a record on disk: count it up when a choice comes to mean something else.
constexpr const char* choice_format = "launch choice 2";

std::string str(const LaunchChoice& c) {
  return "vector " + std::to_string(c.vector) + ", items " + std::to_string(c.items) + ", threads " +
         std::to_string(c.threads) + ", lanes " + std::to_string(c.lanes) + (c.split ? ", split" : "") + ", scale " +
         std::to_string(c.scale);
}

// Compiling a tiled variant on demand takes as long as thousands of calls with fewer elements.
constexpr int64_t worth_compiling = 1 << 16;

}  // namespace

void set_candidate_hook(CandidateHook hook) { candidate_hook = hook; }

// Forgets the shape, and counts again in vectors of this width.
void CudaLauncher::set_vector(Call& c, int vector) const {
  static_cast<Shape&>(c) = {};
  c.variant.vector = vector;
  c.variant.wide = c.wide;
  c.line = code_.nest.inner < 0 ? 1 : c.g.sizes[static_cast<size_t>(code_.nest.inner)] / vector;
  if (code_.nest.kind == LoopNest::Kind::pointwise) {
    c.anchors = c.g.extent(code_.nest.reduced);
    return;
  }
  c.anchors = c.g.extent(code_.cuda.anchor_axes);
  c.walked = c.g.extent(code_.cuda.walked_axes);
  c.elements = c.g.extent(code_.nest.reduced) * (code_.nest.kind == LoopNest::Kind::column ? 1 : c.line);
}

LaunchChoice CudaLauncher::rule(Call& c, int vector) const {
  set_vector(c, vector);
  LaunchChoice choice{.vector = vector, .items = code_.cuda.items[0]};
  if (code_.nest.kind == LoopNest::Kind::row) choice = rule_rows(c);
  if (code_.nest.kind == LoopNest::Kind::column) choice = rule_columns(c);
  return choice;
}

// In registers, if a block can hold a row.
LaunchChoice CudaLauncher::rule_rows(Call& c) const {
  const int usual = code_.cuda.items[code_.cuda.items.size() - 2], most = code_.cuda.items.back();
  LaunchChoice choice{.vector = c.variant.vector, .items = usual, .threads = 128};
  if (c.elements > usual * 256) choice.items = most;
  const bool sides = !code_.cuda.position_side.empty();
  // Rows that a warp holds at one vector to a thread: neighbours read neighbouring memory.
  if ((c.elements < usual || (c.elements <= 32 && !sides)) && c.variant.vector == widest_) choice.items = 1;
  // Many blocks with a few rows each even out what the device does not do at one speed. With sums on the side every
  // team more costs a buffer.
  if (!sides) choice.scale = choice.items == 1 ? 2 : 3;
  if (plan(c, choice)) return choice;
  set_vector(c, c.variant.vector);
  choice.items = 0;
  choice.split = c.anchors * c.walked < 2 * c.processors;
  choice.threads = choice.split ? 256 : 512;
  choice.scale = choice.split ? 2 : 0;
  return choice;
}

// In registers, if a block can hold all rows of neighbouring columns that fill a sector of memory.
LaunchChoice CudaLauncher::rule_columns(Call& c) const {
  LaunchChoice choice{.vector = c.variant.vector, .items = code_.cuda.items[0], .lanes = 32};
  const int64_t team = power_of_two_from(ceil_div(c.elements, choice.items));
  choice.threads = static_cast<int>(std::clamp<int64_t>(team * 4, 256, 512));
  if (plan(c, choice)) {
    const bool sector = c.lanes * c.variant.vector >= 8 || c.tiles == 1;
    if (sector && (c.walked * 2 >= c.processors || c.elements <= 64)) return choice;
  }
  choice.items = 0;
  choice.threads = 128;
  choice.lanes = 16;
  choice.split = 1;
  return choice;
}

bool CudaLauncher::plan(Call& c, const LaunchChoice& choice) const {
  // It may come from a file.
  const auto power = [](int32_t n, int32_t least, int32_t most) {
    return n >= least && n <= most && std::has_single_bit(static_cast<uint32_t>(n));
  };
  if ((choice.vector != 1 && choice.vector != c.widest) || !power(choice.threads, 32, 512) ||
      !power(choice.lanes, 1, 128) || choice.items < 0 || std::abs(choice.scale) > 4)
    return false;
  set_vector(c, choice.vector);
  c.variant.items = choice.items;
  c.threads = choice.threads;
  if (code_.nest.kind == LoopNest::Kind::pointwise)
    plan_pointwise(c, choice);
  else if (code_.nest.kind == LoopNest::Kind::column)
    plan_columns(c, choice);
  else
    plan_rows(c, choice);
  return possible(c);
}

CudaLauncher::Variant CudaLauncher::tiled_variant(const Geometry& g, const std::vector<const Tensor*>& operands,
                                                  const Tiling& tiling) const {
  const int vector = vectors_fit(g, operands, tiling) ? std::min(widest_, widest_in_tile) : 1;
  return {vector, static_cast<int>(tile_shape(code_, g, tiling, vector).items), needs_wide(g), tiling};
}

// If operands need tiles that fit, and their variant is there or may be compiled now: not while a graph is captured,
// nor for tensors so small that the caches serve them as they are.
bool CudaLauncher::plan_tiled(Call& c, const std::vector<const Tensor*>& operands, void* stream) const {
  const Tiling tiling = find_tiling(code_, c.g);
  if (tiling.operands == 0) return false;
  const Variant variant = tiled_variant(c.g, operands, tiling);
  const TileShape shape = tile_shape(code_, c.g, tiling, variant.vector);
  if (shape.shared_bytes > cuda::device(c.device).shared_bytes) return false;
  int64_t& across = c.g.sizes[static_cast<size_t>(tiling.across)];
  const int64_t line = c.g.sizes[static_cast<size_t>(code_.nest.inner)];
  if (!is_loaded(variant)) {
    const bool small = c.g.extent(code_.nest.reduced) * line < worth_compiling;
    if (small || cuda::is_capturing(stream)) return false;
  }
  c.variant = variant;
  c.tile_bytes = shape.shared_bytes;
  c.team = shape.width;
  c.lanes = shape.length;
  c.tiles = shape.tiles_along;
  c.rows = shape.tiles_across;
  c.line = line / variant.vector;
  c.walked = across;
  across = 1;  // rows are placed at its beginning, and move across from there
  c.anchors = c.g.extent(code_.nest.reduced);
  c.blocks = c.anchors * c.rows * c.tiles;
  return true;
}

// A team takes a stretch of a line, several lines to a block where they are short.
void CudaLauncher::plan_pointwise(Call& c, const LaunchChoice& choice) const {
  c.team = std::min<int64_t>(c.threads, power_of_two_from(ceil_div(c.line, choice.items)));
  c.tiles = ceil_div(c.line, choice.items * c.team);
  c.blocks = ceil_div(c.anchors, c.teams_in_block()) * c.tiles;
}

CudaLauncher::Held CudaLauncher::held(const Variant& variant) const {
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
  h.slot = h.depth * variant.items * h.ahead + variant.items * h.fixed;
  if (!code_.cuda.position_side.empty()) h.slot = std::max<int64_t>(h.slot, variant.vector * 8);  // fw::add_stretches
  const bool row = code_.nest.kind == LoopNest::Kind::row;
  h.most_threads = row && variant.items < code_.cuda.items.back() ? 256 : 512;
  return h;
}

// Slots of fw::reduce: one for each warp and lane of a team, as large as the largest Sums.
uint32_t CudaLauncher::slot_bytes(const Call& c) const {
  if (c.team * c.lanes <= 32) return 0;
  const int64_t width = code_.nest.kind == LoopNest::Kind::column ? c.variant.vector : 1;
  int64_t largest = 16;
  for (const std::vector<int64_t>& sums : c.sums(code_))
    largest = std::max(largest, static_cast<int64_t>(sums.size()) * 8 * width);
  largest = ceil_div(largest, 16) * 16;
  const int64_t slots = c.lanes < 32 ? c.team * c.lanes / 32 * c.lanes : c.team * c.lanes;
  return static_cast<uint32_t>(largest * slots);
}

uint32_t CudaLauncher::shared_bytes(const Call& c) const {
  if (c.variant.tiling.operands != 0) return static_cast<uint32_t>(c.tile_bytes);
  return slot_bytes(c) + (c.variant.items == 0 ? 0 : static_cast<uint32_t>(held(c.variant).slot * c.threads));
}

// The rows of each anchor, shared out to as many teams as can work at a time.
void CudaLauncher::share_rows(Call& c, int64_t anchors, int64_t most_parts, int scale) const {
  const int64_t blocks = c.processors * std::max(resident_blocks(c, ""), 1);
  const int64_t wanted = scaled(ceil_div(blocks * c.teams_in_block(), std::max<int64_t>(anchors, 1)), scale);
  c.parts = std::clamp<int64_t>(wanted, 1, std::max<int64_t>(most_parts, 1));
  c.share = ceil_div(std::max<int64_t>(c.walked, 1), c.parts);
  c.parts = ceil_div(c.walked, c.share);
  c.side_parts = ceil_div(c.parts, c.teams_in_block() / c.anchors_together);
  c.blocks = anchors / c.anchors_together * c.side_parts;
}

// Pieces of a long row: as many as the device works on at a time, so that there is no last wave of a few blocks; large
// enough to be worth a block.
void CudaLauncher::split_elements(Call& c, int64_t rows, int scale) const {
  const int64_t most = c.elements / (8 * c.team);
  const int64_t blocks = c.processors * std::max(resident_blocks(c, "_phase0"), 1);
  c.splits = std::clamp<int64_t>(scaled(blocks, scale) / std::max<int64_t>(rows, 1), 1, std::max<int64_t>(most, 1));
  c.piece = ceil_div(std::max<int64_t>(c.elements, 1), c.splits);
  c.splits = ceil_div(std::max<int64_t>(c.elements, 1), c.piece);
  c.rows = rows;
  c.blocks = rows * c.splits;
}

void CudaLauncher::plan_rows(Call& c, const LaunchChoice& choice) const {
  c.split = choice.split;
  if (c.split) {
    c.team = c.threads;
    split_elements(c, c.anchors * c.walked, choice.scale);
    c.parts = c.side_parts = c.walked;
    c.total_parts = c.walked * c.splits;
    return;
  }
  c.team = choice.items ? power_of_two_from(ceil_div(c.elements, choice.items)) : c.threads;
  if (const Variant of_length{choice.vector, choice.items, false, {}, c.elements}; has(of_length))
    c.variant.row = c.elements;
  if (c.team > 32) c.threads = c.team;  // a team of several warps has the block to itself
  if (!possible(c)) return;
  if (c.team < 32 && c.anchors > 0) c.anchors_together = std::min<int64_t>(32 / c.team, c.anchors & -c.anchors);
  c.tiles = c.anchors / c.anchors_together;
  // With sums on the side every block more costs a buffer, so that it should have some rows to add up there.
  const int64_t parts_in_block = c.teams_in_block() / c.anchors_together;
  const bool sides = !code_.cuda.position_side.empty();
  share_rows(c, c.anchors, sides ? ceil_div(c.walked, 16) * parts_in_block : c.walked, choice.scale);
  c.total_parts = c.parts;
}

void CudaLauncher::plan_columns(Call& c, const LaunchChoice& choice) const {
  c.lanes = std::min<int64_t>(power_of_two_from(c.line), choice.lanes);
  if (choice.items != 0) {
    const int64_t team = power_of_two_from(ceil_div(c.elements, choice.items));
    c.lanes = std::clamp<int64_t>(c.threads / team, 1, c.lanes);
  }
  c.team = c.threads / c.lanes;
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
bool CudaLauncher::possible(const Call& c) const {
  const bool pointwise = code_.nest.kind == LoopNest::Kind::pointwise;
  const int64_t span = c.team * c.lanes;
  if (!has({c.variant.vector, c.variant.items, false, {}, c.variant.row})) return false;
  // __launch_bounds__ of the entries
  const int64_t most = pointwise || c.split ? 256 : c.variant.items == 0 ? 512 : held(c.variant).most_threads;
  if (c.threads > most || span > c.threads || c.blocks >= int64_t{1} << 31) return false;
  if (pointwise) return true;
  // Between warps a team reduces through shared memory, alone in its block; split rows have one, too.
  if ((span > 32 || c.split) && span != c.threads) return false;
  if (c.split && c.variant.items != 0) return false;
  if (c.variant.items != 0 && (c.elements == 0 || c.team * c.variant.items < c.elements)) return false;
  return shared_bytes(c) <= cuda::device(c.device).shared_bytes;
}

std::vector<LaunchChoice> CudaLauncher::candidates(const Call& call) const {
  Call c = call;
  const LaunchChoice first = rule(c, c.widest);
  std::vector<LaunchChoice> result{first};
  if (!plan(c, first)) return result;
  std::vector<Shape> shapes{c};
  auto add = [&](const LaunchChoice& choice) {
    if (result.size() == most_candidates || !plan(c, choice)) return;
    if (std::find(shapes.begin(), shapes.end(), c) != shapes.end()) return;  // another choice for the same launch
    shapes.push_back(c);
    result.push_back(choice);
  };
  auto but = [&](auto change) {
    LaunchChoice other = first;
    change(other);
    add(other);
  };
  const int64_t rows = c.anchors * c.walked;
  switch (code_.nest.kind) {
    case LoopNest::Kind::pointwise:
      for (int threads : {128, 64}) but([&](LaunchChoice& o) { o.threads = threads; });
      break;
    case LoopNest::Kind::row:
      for (int items : code_.cuda.items)
        if (first.items != 0) but([&](LaunchChoice& o) { o.items = items; });
      for (int scale : {-1, first.scale > 1 ? -2 : 1}) but([&](LaunchChoice& o) { o.scale += scale; });
      for (int threads : {256, 64}) but([&](LaunchChoice& o) { o.threads = threads; });
      if (first.split)
        add({.vector = first.vector, .threads = 512});
      else if (rows < c.processors)
        add({.vector = first.vector, .split = 1});
      break;
    case LoopNest::Kind::column:
      if (first.items != 0) {
        for (int items : code_.cuda.items) but([&](LaunchChoice& o) { o.items = items; });
        add({.vector = first.vector, .threads = 128, .lanes = 16, .split = 1});
        for (int threads : {512, 256, 128}) but([&](LaunchChoice& o) { o.threads = threads; });
        for (int lanes : {16, 8}) but([&](LaunchChoice& o) { o.lanes = lanes; });
      } else {
        for (int lanes : {32, 8}) but([&](LaunchChoice& o) { o.lanes = lanes; });
        for (int scale : {-1, 1}) but([&](LaunchChoice& o) { o.scale = scale; });
        but([&](LaunchChoice& o) { o.threads = 256; });
        add({.vector = first.vector, .items = code_.cuda.items[0], .threads = 512, .lanes = 32});
      }
      break;
  }
  if (call.widest > 1) add(rule(c, 1));
  return result;
}

uint64_t CudaLauncher::bucket(const Call& c, int device) const {
  auto hash = static_cast<uint64_t>(device);
  mix(hash, static_cast<uint64_t>(c.widest) * 2 + c.wide);
  for (int64_t size : c.g.sizes) mix_size(hash, size);
  for (size_t o = 0; o < c.g.operands; ++o)
    for (size_t a = 0; a < c.g.axes; ++a)
      mix(hash, static_cast<uint64_t>(c.g.sizes[a] == 1 ? 0 : std::clamp<int64_t>(c.g.stride(o, a), 0, 2)));
  return hash;
}

// What is known without timing.
std::optional<LaunchChoice> CudaLauncher::known_choice(Call& c, const TuningProgress* progress) const {
  if (CandidateHook hook = candidate_hook.load(std::memory_order_relaxed)) {
    const std::vector<LaunchChoice> all = candidates(c);
    return all.at(hook(code_.name, all.size()));
  }
  if (progress == nullptr) return rule(c, c.widest);
  const uint64_t place = bucket(c, c.device);
  std::lock_guard<std::mutex> lock(loaded_->mutex);
  auto found = loaded_->choices.find(place);
  return found == loaded_->choices.end() ? std::nullopt : std::optional(found->second);
}

// A candidate may run any number of times, and the last one to run is the one that counts: kernels do not read what
// they write (a plan gives every result memory of its own), and one that updates running statistics is timed with its
// new values going elsewhere.
std::optional<LaunchChoice> CudaLauncher::tune(Host& host, const Call& call, const std::vector<const Tensor*>& operands,
                                               const std::vector<double>& numbers, TuningProgress& progress) const {
  const uint64_t place = bucket(call, call.device);
  const bool possible_now = complete() && !cuda::is_capturing(host.stream());
  if (!possible_now) {
    const std::lock_guard lock(loaded_->mutex);
    if (loaded_->unknown.count(place)) return std::nullopt;
  }
  Tuner& tuner = Tuner::instance();
  const auto turn = tuner.turn();
  Call c = call;
  if (auto known = known_choice(c, &progress)) return known;  // another thread was first
  const cuda::Device& device = cuda::device(c.device);
  const std::string key =
      Sha256()
          .update_field(choice_format)
          .update_field(cuda::key_of(cuda_prelude() + code_.text + code_.cuda.walking.text, device.architecture))
          .update_field(device.name)
          .update_field(std::to_string(device.multiprocessors))
          .update_field(std::to_string(bucket(c, 0)))
          .hex();
  std::optional<LaunchChoice> choice = tuner.recall<LaunchChoice>(key);
  if (!choice || !plan(c, *choice)) {
    if (!possible_now) {
      const std::lock_guard lock(loaded_->mutex);
      loaded_->unknown.insert(place);
      return std::nullopt;
    }
    const std::vector<LaunchChoice> all = candidates(c);
    choice = all[0];
    plan(c, *choice);
    if (all.size() > 1 && c.blocks > 0) {
      std::vector<Tensor> elsewhere(operands.size());
      std::vector<const Tensor*> timed = operands;
      for (size_t o = 0; o < operands.size(); ++o) {
        const bool overwrites =
            code_.operands[o].store && std::any_of(operands.begin(), operands.end(), [&](const Tensor* other) {
              return other != operands[o] && other->data == operands[o]->data;
            });
        if (!overwrites) continue;
        elsewhere[o] = *operands[o];
        host.allocate(elsewhere[o]);
        timed[o] = &elsewhere[o];
      }
      auto try_one = [&](size_t i) {
        Call candidate = call;
        plan(candidate, all[i]);
        launch(host, prepare(candidate, timed), timed, numbers);
      };
      if (auto timing = tuner.time(host, code_.name, all.size(), try_one, progress)) {
        choice = all[timing->fastest];
        tuner.remember(key, *choice);
        std::string text = code_.name + ":";
        for (size_t i = 0; i < all.size(); ++i)
          text += (i == timing->fastest ? "\n* " : "\n  ") + std::to_string(timing->microseconds[i]) + " us  " +
                  str(all[i]);
        log(LogLevel::debug, text);
      }
    }
  }
  std::lock_guard<std::mutex> lock(loaded_->mutex);
  return loaded_->choices[place] = *choice;
}

}  // namespace fusewright
