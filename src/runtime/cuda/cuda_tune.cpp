// Which ways to launch a kernel are timed, and what was learned from it.
#include <cstdlib>

#include "base/log.h"
#include "runtime/cache/sha256.h"
#include "runtime/cuda/cuda_call.h"

namespace fusewright {
namespace {

constexpr size_t most_candidates = 11;
// Part of what names a record on disk: count it up when a choice comes to mean something else.
constexpr const char* choice_format = "launch choice 3";

std::string str(const LaunchChoice& c) {
  return "vector " + std::to_string(c.vector) + ", items " + std::to_string(c.items) + ", threads " +
         std::to_string(c.threads) + ", lanes " + std::to_string(c.lanes) + (c.split ? ", split" : "") + ", scale " +
         std::to_string(c.scale) + ", cluster " + std::to_string(c.cluster);
}

// Compiling a tiled variant on demand takes as long as thousands of calls with fewer elements.
constexpr int64_t worth_compiling = 1 << 16;

}  // namespace

void set_candidate_hook(CandidateHook hook) { candidate_hook = hook; }

// It is there, or may be compiled now: not while a graph is captured, nor for tensors so small that the caches serve
// them as they are.
bool CudaLauncher::tiles_are_ready(const Call& c, const Variant& variant) const {
  if (is_loaded(variant)) return true;
  const int64_t line = c.g.sizes[static_cast<size_t>(code_.nest.inner)];
  return c.g.extent(code_.nest.reduced) * line >= worth_compiling && !cuda::is_capturing(c.stream);
}

std::vector<LaunchChoice> CudaLauncher::candidates(const Call& call) const {
  Call c = call;
  const LaunchChoice first = rule(c, c.widest);
  std::vector<LaunchChoice> result{first};
  if (!plan(c, first)) return result;
  std::vector<Shape> shapes{c};
  size_t most = most_candidates - 1;  // the last place is for single elements
  auto add = [&](const LaunchChoice& choice) {
    if (result.size() == most || !plan(c, choice)) return;
    if (std::find(shapes.begin(), shapes.end(), c) != shapes.end()) return;  // another choice for the same launch
    shapes.push_back(c);
    result.push_back(choice);
  };
  auto but = [&](auto change) {
    LaunchChoice other = first;
    change(other);
    add(other);
  };
  const int64_t rows = c.anchors * c.walked, lanes = c.lanes, side_parts = c.side_parts;  // by rule: c changes below
  // Rows that are read once, unless what they leave on the side would go to memory for each.
  const bool need_not_be_held = code_.cuda.walking.stages == 1 && code_.cuda.sides_at_positions() == 0;
  switch (code_.nest.kind) {
    case LoopNest::Kind::pointwise:
      for (int threads : {256, 64}) but([&](LaunchChoice& o) { o.threads = threads; });
      break;
    case LoopNest::Kind::row:
      for (int items : code_.cuda.items)
        if (first.items != 0) but([&](LaunchChoice& o) { o.items = items; });
      // Blocks that add up their sums on the side among themselves need a buffer less each, and none at all where that
      // leaves one part.
      if (side_parts > 1)
        for (int cluster : {8, 4}) but([&](LaunchChoice& o) { o.cluster = cluster; });
      // Rows that a block cannot hold, in more or fewer together.
      if (spreads_teams() && (first.items == 0 || first.cluster > 1))
        for (int cluster : {2, 4, 8})
          for (int scale : {0, 3})
            add({.vector = first.vector, .items = code_.cuda.items.back(), .scale = scale, .cluster = cluster});
      for (int scale : {-1, first.scale > 1 ? -2 : 1}) but([&](LaunchChoice& o) { o.scale += scale; });
      for (int threads : {256, 128, 64}) but([&](LaunchChoice& o) { o.threads = threads; });
      set_vector(c, first.vector);
      if (first.cluster > 1) add(rule_walking(c));
      if (first.split || (first.items != 0 && need_not_be_held)) add({.vector = first.vector, .threads = 512});
      if (!first.split && (rows < c.processors || need_not_be_held)) add({.vector = first.vector, .split = 1});
      break;
    case LoopNest::Kind::column:
      if (first.items != 0) {
        const int usual = in_registers(first.vector).items;
        const auto as_many = [&](int items) { return usual * items / code_.cuda.items[0]; };  // of any width
        for (int items : code_.cuda.items) but([&](LaunchChoice& o) { o.items = as_many(items); });
        for (int items : code_.cuda.items)
          but([&](LaunchChoice& o) { o.items = as_many(items), o.threads = first.threads / 2; });
        but([&](LaunchChoice& o) { o.threads = 128; });
        add({.vector = call.widest, .threads = 128, .lanes = 16, .split = 1});
        // Together blocks have room for more columns side by side: whole lines of memory, where one alone reads parts.
        if (lanes * first.vector < 32) {
          but([&](LaunchChoice& o) { o.cluster = 2; });
          but([&](LaunchChoice& o) { o.cluster = 4, o.threads = first.threads / 2; });
        }
        for (int less : {2, 4}) but([&](LaunchChoice& o) { o.lanes = first.lanes / less; });
      } else {
        for (int lanes : {32, 8}) but([&](LaunchChoice& o) { o.lanes = lanes; });
        for (int scale : {-1, 1}) but([&](LaunchChoice& o) { o.scale = scale; });
        but([&](LaunchChoice& o) { o.threads = 256; });
        for (int cluster : {1, 2, 4}) {
          LaunchChoice held = in_registers(call.widest);
          held.cluster = cluster;
          add(held);
        }
      }
      break;
  }
  most = most_candidates;
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
  const std::string key = Sha256()
                              .update_field(choice_format)
                              .update_field(cuda::key_of(cuda_prelude() + text_ + walking_text_, device.architecture))
                              .update_field(device.name)
                              .update_field(std::to_string(device.multiprocessors))
                              .update_field(std::to_string(bucket(c, 0)))
                              .update_field(std::to_string(variants_.size()))  // those for clusters may be missing
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
      std::vector<std::optional<Prepared>> prepared(all.size());
      auto try_one = [&](size_t i) {
        if (!prepared[i]) {  // once: the host is to be quick about what is timed
          Call candidate = call;
          plan(candidate, all[i]);
          prepared[i] = prepare(candidate, timed);
        }
        launch(host, *prepared[i], timed, numbers);
      };
      if (auto timing = tuner.time(host, code_.name, all.size(), try_one, progress)) {
        std::vector<int64_t> bytes;
        for (const auto& one : prepared) bytes.push_back(one ? one->buffer_bytes() : 0);  // none: it was given up
        const size_t best = leanest_of_the_fastest(timing->microseconds, timing->fastest, bytes);
        choice = all[best];
        tuner.remember(key, *choice);
        std::string text = code_.name + ":";
        for (size_t i = 0; i < all.size(); ++i)
          text += (i == best ? "\n* " : "\n  ") + std::to_string(timing->microseconds[i]) + " us  " + str(all[i]) +
                  ", buffers of " + std::to_string(bytes[i]) + " bytes";
        log(LogLevel::debug, text);
      }
    }
  }
  std::lock_guard<std::mutex> lock(loaded_->mutex);
  return loaded_->choices[place] = *choice;
}

}  // namespace fusewright
