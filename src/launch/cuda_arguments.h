#pragma once
// What follows from the tensors of a call for the choice of its launches, and what those are handed.
#include <cstring>

#include "launch/cuda_rules.h"
#include "launch/divider.h"

namespace fusewright {

constexpr int64_t narrow_limit = (int64_t{1} << 31) - (int64_t{1} << 24);  // with room for the last block's excess
constexpr uintptr_t widest_vector = 16;                                    // bytes

inline uint32_t bits(int64_t power) {
  uint32_t n = 0;
  while (int64_t{1} << n < power) ++n;
  return n;
}

// Graphs take launches that overlap since 12.3.
inline bool launches_overlap(int architecture, int driver) { return architecture >= 9 && driver >= 12030; }

// What of the operands decides how a call is launched, beside their sizes: dtype, alignment and strides.
inline void add_places(std::vector<int64_t>& key, const std::vector<const Tensor*>& operands) {
  for (const Tensor* operand : operands) {
    key.push_back(static_cast<int64_t>(operand->dtype));
    key.push_back(static_cast<int64_t>(reinterpret_cast<uintptr_t>(operand->data) % widest_vector));
    key.insert(key.end(), operand->strides.begin(), operand->strides.begin() + operand->rank);
  }
}

inline void CudaRules::bind(Call& c, Geometry g, const std::vector<const Tensor*>& operands) const {
  c.g = std::move(g);
  merge_loops(c.g);
  c.widest = vectors_fit(c.g, operands) ? widest_ : 1;
  c.wide = needs_wide(c.g);
}

inline void CudaRules::merge_loops(Geometry& g) const {
  const Loops& nest = code_.nest;
  std::vector<int> lines = nest.reduced, anchors = code_.cuda.anchor_axes;
  if (nest.inner >= 0) (nest.kind == Loops::Kind::column ? anchors : lines).push_back(nest.inner);
  loops_.merge(g, lines, nest.inner, LoopGeometry::Text::own_axes);
  if (nest.kind == Loops::Kind::pointwise) return;
  loops_.merge(g, anchors, nest.inner, LoopGeometry::Text::own_axes);
  loops_.merge(g, code_.cuda.walked_axes, nest.inner, LoopGeometry::Text::own_axes);
}

inline std::vector<CudaRules::Variant> CudaRules::variants_for_all_rows() const {
  std::vector<Variant> result;
  std::vector<int> items = code_.cuda.items;
  if (code_.nest.kind != Loops::Kind::pointwise) items.push_back(0);
  for (int n : items) {
    const bool columns = holds_columns(n);
    const int widest = columns ? held_columns(widest_) : widest_;
    result.push_back({widest, n, false, {}});
    if (columns && n == items[0]) result.push_back({widest, n, false, {}, 0, true});
    // Single elements are the exception: the variants that the rule takes serve all sizes.
    bool by_rule = n == items[0] || n == 0;
    if (code_.nest.kind == Loops::Kind::row) by_rule = n == 0 || n >= items[items.size() - 3];
    if (widest > 1 && by_rule) result.push_back({1, columns ? in_registers(1).items : n, false, {}});
  }
  return result;
}

// The kernels of a variant: for whole rows, for each pass over split ones, for the parts of sums on the side.
inline std::vector<std::string> CudaRules::entries(const Variant& variant) const {
  std::vector<std::string> result{code_.name};
  if (code_.nest.kind == Loops::Kind::pointwise || variant.items != 0) return result;
  const CudaLoops::Walking& walking = code_.cuda.walking;
  for (int p = 0; p <= walking.stages; ++p) result.push_back(code_.name + "_phase" + std::to_string(p));
  for (int p = 0; p < walking.stages; ++p)
    if (!walking.sums[static_cast<size_t>(p)].empty()) result.push_back(code_.name + "_merge" + std::to_string(p));
  if (code_.cuda.has_sides()) result.push_back(code_.name + "_sides");
  return result;
}

// Whether an operand lies along this axis in whole vectors, whose addresses are multiples of their size.
inline bool CudaRules::vector_fits(const Geometry& g, const Tensor& tensor, const CudaLoops::Vector& of, int along,
                                   int64_t elements) const {
  const auto operand = static_cast<size_t>(of.operand);
  const auto bytes =
      std::min<uintptr_t>(widest_vector, static_cast<uintptr_t>(elements * size_of(code_.operands[operand].dtype)));
  if (reinterpret_cast<uintptr_t>(tensor.data) % bytes != 0) return false;
  for (size_t a = 0; a < g.axes; ++a) {
    const int64_t stride = g.stride(operand, a);
    if (g.sizes[a] == 1) continue;
    if (static_cast<int>(a) == along ? stride != 1 : stride % elements != 0) return false;
  }
  return true;
}

inline bool CudaRules::vectors_fit(const Geometry& g, const std::vector<const Tensor*>& operands,
                                   const Tiling& tiling) const {
  const int inner = code_.nest.inner, widest = tiling.operands != 0 ? std::min(widest_, widest_in_tile) : widest_;
  if (inner < 0 || g.sizes[static_cast<size_t>(inner)] % widest != 0) return false;
  for (const CudaLoops::Vector& v : code_.cuda.vectors) {
    const auto operand = static_cast<size_t>(v.operand);
    if (!tiling.has(operand) && !vector_fits(g, *operands[operand], v, v.axis, widest)) return false;
  }
  return true;
}

inline bool CudaRules::vectors_fit_across(const Geometry& g, const std::vector<const Tensor*>& operands,
                                          const Tiling& tiling) const {
  const int widest = std::min(widest_, widest_in_tile);
  if (g.sizes[static_cast<size_t>(tiling.across)] % widest != 0) return false;
  for (const CudaLoops::Vector& v : code_.cuda.vectors) {
    const auto operand = static_cast<size_t>(v.operand);
    if (tiling.has(operand) && !vector_fits(g, *operands[operand], v, tiling.across, widest)) return false;
  }
  return true;
}

inline bool CudaRules::needs_wide(const Geometry& g) const {
  for (size_t o = 0; o < g.operands; ++o) {
    int64_t reach = 0;
    for (size_t a = 0; a < g.axes; ++a) reach += (g.sizes[a] - 1) * std::abs(g.stride(o, a));
    if (reach >= narrow_limit) return true;
  }
  int64_t points = 1;  // loops without taps
  for (size_t a = 0; a < code_.axes.size(); ++a)
    if (!code_.axes[a].tap) points *= g.sizes[a];
  return points >= narrow_limit;
}

// Of KernelArgs::partial among the words of the arguments.
inline size_t CudaRules::first_partial(const Call& c) const {
  return 2 * std::max<size_t>(c.g.operands, 1) + std::max<size_t>(code_.numbers.size(), 1) + c.g.strides.size() +
         3 * c.g.axes;
}

// Whether the one part of all sums on the side lies as the results do, and may be written there.
inline bool CudaRules::sides_are_results(const Call& c, const std::vector<const Tensor*>& operands) const {
  if (c.split || c.variant.items == 0 || c.side_parts != 1) return false;
  size_t side = 0;
  for (size_t o = 0; o < code_.operands.size(); ++o) {
    if (!code_.operands[o].side) continue;
    if (!code_.cuda.position_side[side++] || operands[o]->dtype != code_.operands[o].dtype) return false;
    if (reinterpret_cast<uintptr_t>(operands[o]->data) % widest_vector != 0) return false;
    for (size_t a = 0; a < c.g.axes; ++a)
      if (c.g.sizes[a] != 1 && c.g.stride(o, a) != c.side_strides[a]) return false;
  }
  return true;
}

// Buffers for partial sums and for sums on the side. Whether these have parts, which another launch adds up.
inline bool CudaRules::add_memory(Call& c, const std::vector<const Tensor*>& operands, Launches& result) const {
  const int64_t width = code_.nest.kind == Loops::Kind::column ? c.variant.vector : 1;
  for (const std::vector<int64_t>& sums : c.sums(code_)) {
    int64_t bytes = 0;
    for (int64_t size : sums) bytes = ceil_div(bytes, size) * size + size * width;
    bytes = std::max<int64_t>(ceil_div(bytes, 16) * 16, 16);
    c.partial.push_back(c.split && !sums.empty());
    if (c.partial.back())
      result.buffers.push_back({c.rows * c.splits * c.lanes * bytes, first_partial(c) + c.partial.size() - 1});
  }
#ifndef FW_WITHOUT_SIDES
  if (code_.cuda.has_sides()) return add_side_memory(c, operands, result);
#endif
  return false;
}

// Those for sums on the side.
inline bool CudaRules::add_side_memory(Call& c, const std::vector<const Tensor*>& operands, Launches& result) const {
  c.side_strides.assign(c.g.axes, 0);
  c.total_strides.assign(c.g.axes, 0);
  int64_t stride = 1;
  auto lay_out = [&](const std::vector<int>& axes, std::vector<int64_t>& strides) {
    for (size_t k = axes.size(); k-- > 0;) {
      strides[static_cast<size_t>(axes[k])] = stride;
      stride *= c.g.sizes[static_cast<size_t>(axes[k])];
    }
  };
  lay_out(code_.cuda.anchor_axes, c.total_strides);
  stride = 1;
  lay_out({code_.nest.inner}, c.side_strides);
  lay_out(code_.nest.reduced, c.side_strides);
  lay_out(code_.cuda.anchor_axes, c.side_strides);
  if (sides_are_results(c, operands)) return false;
  size_t side = 0;
  for (size_t o = 0; o < code_.operands.size(); ++o) {
    if (!code_.operands[o].side) continue;
    const bool position = code_.cuda.position_side[side++];
    const int64_t elements = position ? c.side_parts * c.elements * c.variant.vector : c.total_parts;
    result.buffers.push_back({elements * c.anchors * size_of(code_.operands[o].dtype), o});
  }
  return true;
}

// What a kernel reads stays in the L2 cache for longer than what it writes, which then leaves for memory early and at
// an even rate: where it reads more than that cache holds. Less would stay for other kernels to trip over, longer than
// anything of theirs (docs/kernels.md has the numbers).
inline int64_t CudaRules::cache_policy(const Call& c) const {
  constexpr int64_t evict_normal = 0x16f0000000000000, evict_last = 0x14f0000000000000;  // as createpolicy makes them
  int64_t bytes = 0;
  for (size_t o = 0; o < c.g.operands; ++o) {
    if (code_.operands[o].store) continue;
    int64_t elements = 1;
    for (size_t a = 0; a < c.g.axes; ++a)
      if (c.g.stride(o, a) != 0) elements *= c.g.sizes[a];
    bytes += elements * size_of(code_.operands[o].dtype);
  }
  return bytes > c.l2_bytes ? evict_last : evict_normal;
}

// A number as kernels read it.
inline int64_t CudaRules::word_of(size_t n, double number) const {
  int64_t word = 0;
  const auto single = static_cast<float>(number);
  if (code_.numbers[n] == DType::f32)
    std::memcpy(&word, &single, sizeof single);
  else if (code_.numbers[n] == DType::f64)
    std::memcpy(&word, &number, sizeof number);
  else
    word = code_.numbers[n] == DType::b8 ? number != 0 : static_cast<int64_t>(number);
  return word;
}

// The bytes of fw::KernelArgs (kernels/cuda_loops.h); addresses and numbers are 0.
inline std::vector<char> CudaRules::pack(const Call& c) const {
  std::vector<char> bytes;
  bytes.reserve(1024);
  auto put = [&](const auto& value) {
    const char* from = reinterpret_cast<const char*>(&value);
    bytes.insert(bytes.end(), from, from + sizeof value);
  };
  bytes.resize(8 * (first_partial(c) - c.g.strides.size() - 3 * c.g.axes));
  for (int64_t stride : c.g.strides) put(stride);
  for (const auto* strides : {&c.side_strides, &c.total_strides})
    for (size_t a = 0; a < c.g.axes; ++a) put(strides->empty() ? int64_t{0} : (*strides)[a]);
  for (int64_t size : c.g.sizes) put(size);
  for (size_t p = 0; p < std::max<size_t>(c.partial.size(), 1); ++p) put(static_cast<void*>(nullptr));
  for (size_t p = 0; p < std::max<size_t>(c.partial.size(), 1); ++p) put(c.merged(p) ? int64_t{1} : c.splits);
  for (int64_t value : {c.anchors, c.walked, c.parts, c.share, c.elements, c.rows, c.splits, c.stretch(), c.line,
                        c.tiles, c.side_parts, c.total_parts, c.side_blocks, cache_policy(c)})
    put(value);
  auto divider = [&](int64_t n) { put(make_divider(static_cast<uint32_t>(std::clamp<int64_t>(n, 1, narrow_limit)))); };
  for (int64_t size : c.g.sizes) divider(size);
  for (int64_t n : {c.line, c.tiles, c.anchors, c.rows}) divider(n);
  put(bits(c.team));
  put(bits(c.lanes));
  put(bits(c.anchors_together));
  put(bits(c.partial_lanes));
  put(slot_bytes(c));
  put(bits(c.cluster));
  while (bytes.size() % 8 != 0) bytes.push_back(0);
  return bytes;
}

inline CudaRules::Launches CudaRules::launches(Call& c, const std::vector<const Tensor*>& operands) const {
  Launches result;
  c.partial_lanes = c.lanes;
  const bool sides_in_parts = add_memory(c, operands, result);
  auto start = [&](const Call& call, const std::string& entry, int64_t blocks) {
    if (blocks == 0) return;
    // Those behind the first wait in their own text for what they need of the one before.
    const bool overlap = !result.launches.empty();
    result.launches.push_back({call.variant, entry, blocks, static_cast<uint32_t>(call.threads), shared_bytes(call),
                               overlap, static_cast<uint32_t>(call.cluster), pack(call)});
  };
  if (!c.split) {
    start(c, code_.name, c.blocks);
  } else {
    const CudaLoops::Walking& walking = code_.cuda.walking;
    auto entry = [&](const char* kind, int p) { return code_.name + kind + std::to_string(p); };
    // What adds up the sums of all splits: a team for each lane, so that none of its threads has many.
    Call merge = c;
    merge.lanes = 1;
    merge.threads = merge.team = std::clamp<int64_t>(power_of_two_from(c.splits / 4), 32, 256);
    for (int p = 0; p < walking.stages; ++p) {
      const bool in_step = walking.leaves_sums[static_cast<size_t>(p)];
      start(c, entry("_phase", p),
            in_step ? c.blocks : c.rows * std::max<int64_t>(ceil_div(c.elements, c.stretch()), 1));
      if (c.merged(static_cast<size_t>(p))) start(merge, entry("_merge", p), c.rows * c.lanes);
    }
    if (walking.final_phase) start(merge, entry("_phase", walking.stages), c.rows * c.lanes);
  }
#ifndef FW_WITHOUT_SIDES
  if (sides_in_parts) {
    // The parts of sums on the side: neighbouring results side by side, a team for each.
    int64_t outputs = 1, terms = 1;
    size_t side = 0;
    for (size_t o = 0; o < code_.operands.size(); ++o) {
      if (!code_.operands[o].side) continue;
      const int64_t results = std::max<int64_t>(operands[o]->elements(), 1);
      const bool position = code_.cuda.position_side[side++];
      const int64_t parts = position ? c.side_parts * c.elements * c.variant.vector : c.total_parts;
      outputs = std::max(outputs, results);
      terms = std::max(terms, parts * c.anchors / results);
    }
    const int64_t team = terms <= 16 ? 1 : std::min<int64_t>(power_of_two_from(ceil_div(terms, 8)), 64);
    c.variant.items = 0;
    c.variant.row = 0;
    c.variant.cluster = false;
    c.partial.resize(c.sums(code_).size());  // of the text that walks over its rows, which may have fewer passes
    c.cluster = 1;
    c.lanes = std::min<int64_t>(team > 16 ? 8 : team > 1 ? 32 : 128, power_of_two_from(outputs));
    c.team = std::max(team, 32 / c.lanes);
    c.threads = c.team * c.lanes;
    c.side_blocks = ceil_div(outputs, c.lanes);
    start(c, code_.name + "_sides", c.side_blocks * static_cast<int64_t>(code_.cuda.position_side.size()));
  }
#endif
  return result;
}

inline std::vector<char> CudaRules::filled(const std::vector<char>& arguments,
                                           const std::vector<const Tensor*>& operands,
                                           const std::vector<double>& numbers,
                                           const std::vector<Launches::Buffer>& buffers,
                                           const std::vector<void*>& memory) const {
  std::vector<char> result = arguments;
  auto put = [&](size_t place, const auto& word) {
    static_assert(sizeof word == 8, "arguments are words");
    std::memcpy(result.data() + 8 * place, &word, sizeof word);
  };
  for (size_t o = 0; o < operands.size(); ++o) put(o, operands[o]->data), put(operands.size() + o, operands[o]->data);
  for (size_t n = 0; n < numbers.size(); ++n) put(2 * operands.size() + n, word_of(n, numbers[n]));
  for (size_t b = 0; b < buffers.size(); ++b) put(buffers[b].place, memory[b]);
  return result;
}

}  // namespace fusewright
