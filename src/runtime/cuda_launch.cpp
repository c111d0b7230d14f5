#include "runtime/cuda_launch.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "ir/error.h"
#include "runtime/divider.h"

namespace fusewright {
namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t power_of_two_from(int64_t n) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(n, 1))));
}
uint32_t bits(int64_t power) { return static_cast<uint32_t>(std::countr_zero(static_cast<uint64_t>(power))); }

constexpr int64_t narrow_limit = (int64_t{1} << 31) - (int64_t{1} << 24);  // with room for the last block's excess

// Variants of each kind of kernel: vectors that a thread holds in registers; 0 walks.
constexpr int pointwise_items = 4, column_items = 8;
constexpr int row_items[] = {1, 4, 8};

// Compiling a tiled variant on demand takes as long as thousands of calls with fewer elements.
constexpr int64_t worth_compiling = 1 << 16;

}  // namespace

// One call: the variant, the shape of its launches, and the arguments that follow from them.
struct CudaLauncher::Call {
  Geometry g;
  Variant variant{1, 1, false, {}};
  int device = 0;
  int64_t processors = 1;
  int64_t threads = 256, team = 1, lanes = 1;
  int64_t blocks = 1;
  bool split = false;
  int64_t anchors = 1, walked = 1, parts = 1, share = 1, elements = 1, splits = 1, piece = 1;
  int64_t line = 1, tiles = 1;
  int64_t total_parts = 1, side_blocks = 1;
  std::vector<int64_t> side_strides, total_strides;
  std::vector<void*> partial;
  std::vector<Tensor> memory;
  int64_t tile_bytes = 0;  // of shared memory

  // Each block of the next pass would add up all partial sums of pass p: many of them are added up once, before it.
  bool merged(size_t p) const { return splits > 16 && p + 1 < partial.size() && partial[p] != nullptr; }

  int64_t teams_in_block() const { return threads / (team * lanes); }
  const std::vector<std::vector<int64_t>>& sums(const KernelCode& code) const {
    return variant.items == 0 ? code.cuda.walking.sums : code.cuda.sums;
  }
};

CudaLauncher::CudaLauncher(const Graph& graph, const KernelCode& code, const std::map<std::string, int>& slots,
                           const std::vector<Order>& orders)
    : code_(code), geometry_(graph, code, slots) {
  for (Value v : code.numbers) number_types_.push_back(compute_type(graph.dtype(v)));
  // 16 bytes of the widest operand; no vectors at all where nothing lies along the line.
  int64_t bytes = 0;
  for (const CudaCode::Vector& v : code.cuda.vectors)
    bytes = std::max<int64_t>(bytes, size_of(code.operands[static_cast<size_t>(v.operand)].dtype));
  if (bytes > 0) widest_ = static_cast<int>(std::min<int64_t>(8, 16 / bytes));
  std::vector<int> items{pointwise_items};
  if (code.nest.kind == LoopNest::Kind::row) items = {0, row_items[0], row_items[1], row_items[2]};
  if (code.nest.kind == LoopNest::Kind::column) items = {0, column_items};
  for (int n : items) {
    variants_.push_back({widest_, n, false, {}});
    if (widest_ > 1) variants_.push_back({1, n, false, {}});
  }
  expect_tiles(graph, slots, orders);
}

// Where the graph itself says that operands lie differently, the tiled variant for its sizes is compiled with the rest.
void CudaLauncher::expect_tiles(const Graph& graph, const std::map<std::string, int>& slots,
                                const std::vector<Order>& orders) {
  if (code_.cuda.tiled_text.empty()) return;
  std::vector<int64_t> symbols(slots.size(), 1);
  for (const auto& [name, slot] : slots) symbols[static_cast<size_t>(slot)] = graph.hints.at(name);
  std::vector<Tensor> tensors(code_.operands.size());
  std::vector<const Tensor*> operands;
  for (size_t o = 0; o < tensors.size(); ++o) {
    const Value v = code_.operands[o].value;
    for (const Size& size : graph.shape(v)) tensors[o].sizes[static_cast<size_t>(tensors[o].rank++)] = graph.hint(size);
    set_strides(tensors[o], orders[static_cast<size_t>(v)]);
    operands.push_back(&tensors[o]);
  }
  Geometry g = geometry_.bind(operands, symbols.data());
  merge_loops(g);
  if (const Tiling tiling = find_tiling(code_, g); tiling.operands != 0) {
    const Variant variant = tiled_variant(g, operands, tiling);
    if (!variant.wide) variants_.push_back(variant);
  }
}

std::string CudaLauncher::source(const Variant& variant) const {
  return "#define FW_VECTOR " + std::to_string(variant.vector) + "\n#define FW_ITEMS " + std::to_string(variant.items) +
         "\n#define FW_WIDE " + (variant.wide ? "1" : "0") + "\n" +
         (variant.tiling.operands != 0
              ? "#define FW_TILED " + std::to_string(variant.tiling.operands) + "ull\n#define FW_ACROSS " +
                    std::to_string(variant.tiling.across) + "\n" + cuda_tile_prelude() + code_.cuda.tiled_text
              : cuda_prelude() + (variant.items == 0 ? code_.cuda.walking.text : code_.text));
}

std::vector<std::string> CudaLauncher::sources() const {
  std::vector<std::string> result;
  for (const Variant& variant : variants_) result.push_back(source(variant));
  return result;
}

// The kernels of a variant: for whole rows, for each pass over split ones, for the parts of sums on the side.
std::vector<std::string> CudaLauncher::entries(const Variant& variant) const {
  std::vector<std::string> result{code_.name};
  if (code_.nest.kind == LoopNest::Kind::pointwise || variant.items != 0) return result;
  const CudaCode::Walking& walking = code_.cuda.walking;
  for (int p = 0; p <= walking.stages; ++p) result.push_back(code_.name + "_phase" + std::to_string(p));
  for (int p = 0; p < walking.stages; ++p)
    if (!walking.sums[static_cast<size_t>(p)].empty()) result.push_back(code_.name + "_merge" + std::to_string(p));
  if (!code_.cuda.position_side.empty()) result.push_back(code_.name + "_sides");
  return result;
}

void CudaLauncher::attach(std::vector<std::shared_ptr<cuda::Module>> modules, int device) {
  for (size_t i = 0; i < variants_.size(); ++i) {
    for (const std::string& entry : entries(variants_[i])) modules[i]->kernel(entry, device);
    loaded_->modules[variants_[i]] = std::move(modules[i]);
  }
  loaded_->architecture = cuda::device(device).architecture;
}

std::shared_ptr<cuda::Module> CudaLauncher::module(const Variant& variant) const {
  if (auto known = loaded_->modules.find(variant); known != loaded_->modules.end()) return known->second;
  std::lock_guard<std::mutex> lock(loaded_->mutex);
  auto& slot = loaded_->later[variant];
  if (!slot) slot = cuda::compile({source(variant)}, loaded_->architecture)[0];
  return slot;
}

bool CudaLauncher::is_loaded(const Variant& variant) const {
  if (loaded_->modules.count(variant)) return true;
  std::lock_guard<std::mutex> lock(loaded_->mutex);
  return loaded_->later.count(variant) != 0;
}

bool CudaLauncher::vectors_fit(const Geometry& g, const std::vector<const Tensor*>& operands,
                               const Tiling& tiling) const {
  const int inner = code_.nest.inner, widest = tiling.operands != 0 ? std::min(widest_, widest_in_tile) : widest_;
  if (inner < 0 || g.sizes[static_cast<size_t>(inner)] % widest != 0) return false;
  if (tiling.operands != 0 && g.sizes[static_cast<size_t>(tiling.across)] % widest != 0) return false;
  for (const CudaCode::Vector& v : code_.cuda.vectors) {
    const auto operand = static_cast<size_t>(v.operand);
    const auto bytes = static_cast<uintptr_t>(std::min<int64_t>(16, widest * size_of(code_.operands[operand].dtype)));
    if (reinterpret_cast<uintptr_t>(operands[operand]->data) % bytes != 0) return false;
    const int lies_along = tiling.has(operand) ? tiling.across : v.axis;
    for (size_t a = 0; a < g.axes; ++a) {
      const int64_t stride = g.stride(operand, a);
      if (g.sizes[a] == 1) continue;
      if (static_cast<int>(a) == lies_along ? stride != 1 : stride % widest != 0) return false;
    }
  }
  return true;
}

bool CudaLauncher::needs_wide(const Geometry& g) const {
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
  c.splits = shape.tiles_across;
  c.line = line / variant.vector;
  c.walked = across;
  across = 1;  // rows are placed at its beginning, and move across from there
  c.anchors = c.g.extent(code_.nest.reduced);
  c.blocks = c.anchors * c.splits * c.tiles;
  return true;
}

// A team takes a stretch of a line, several lines to a block where they are short.
void CudaLauncher::plan_pointwise(Call& c) const {
  const int64_t items = c.variant.items = pointwise_items;
  c.anchors = c.g.extent(code_.nest.reduced);
  c.team = std::min<int64_t>(c.threads, power_of_two_from(ceil_div(c.line, items)));
  c.tiles = ceil_div(c.line, items * c.team);
  c.blocks = ceil_div(c.anchors, c.teams_in_block()) * c.tiles;
}

// Pieces of a long row: small enough that the last wave of blocks costs little, large enough to be worth a block.
void CudaLauncher::split_elements(Call& c, int64_t rows) const {
  const int64_t most = c.elements / (8 * c.team);
  c.splits =
      std::clamp<int64_t>(ceil_div(16 * c.processors, std::max<int64_t>(rows, 1)), 1, std::max<int64_t>(most, 1));
  c.piece = ceil_div(std::max<int64_t>(c.elements, 1), c.splits);
  c.splits = ceil_div(std::max<int64_t>(c.elements, 1), c.piece);
}

void CudaLauncher::plan_rows(Call& c) const {
  c.anchors = c.g.extent(code_.cuda.anchor_axes);
  c.walked = c.g.extent(code_.cuda.walked_axes);
  c.elements = c.g.extent(code_.nest.reduced) * c.line;
  c.variant.items = 0;
  if (c.elements == 0)
    c.variant.items = 0;
  else if (c.elements < row_items[1])
    c.variant.items = row_items[0];
  else if (c.elements <= row_items[1] * 256)
    c.variant.items = row_items[1];
  else if (c.elements <= row_items[2] * 512)
    c.variant.items = row_items[2];
  const int64_t rows = c.anchors * c.walked;
  c.split = c.variant.items == 0 && rows < 2 * c.processors;
  if (c.split) {
    c.threads = c.team = 256;
    split_elements(c, rows);
    c.blocks = rows * c.splits;
    c.parts = c.walked;
    c.total_parts = c.walked * c.splits;
    return;
  }
  c.team = c.variant.items ? power_of_two_from(ceil_div(c.elements, c.variant.items)) : 512;
  c.threads = c.team > 32 ? c.team : 128;  // a team of several warps has the block to itself
  if (!code_.cuda.walked_axes.empty()) {
    // Enough teams to fill the machine once. With sums on the side every team more costs a buffer, so that it should
    // have some rows to add up there.
    const bool sides = !code_.cuda.position_side.empty();
    const int64_t wanted = ceil_div(c.processors * 1024, c.team * std::max<int64_t>(c.anchors, 1));
    c.parts = std::clamp<int64_t>(wanted, 1, std::max<int64_t>(sides ? ceil_div(c.walked, 16) : c.walked, 1));
    c.share = ceil_div(std::max<int64_t>(c.walked, 1), c.parts);
    c.parts = ceil_div(c.walked, c.share);
  }
  c.total_parts = c.parts;
  c.blocks = ceil_div(c.anchors * c.parts, c.teams_in_block());
}

void CudaLauncher::plan_columns(Call& c) const {
  c.anchors = c.g.extent(code_.cuda.anchor_axes);
  c.elements = c.g.extent(code_.nest.reduced);
  // In registers, if a block can hold all rows of a few neighbouring columns.
  const int64_t columns = power_of_two_from(c.line);
  c.team = power_of_two_from(ceil_div(c.elements, column_items));
  if (c.team <= 128 && c.elements > 0) {
    c.variant.items = column_items;
    c.threads = std::clamp<int64_t>(c.team * (code_.cuda.moving_loads > 1 ? 2 : 4), 256, 512);
    c.lanes = std::min({columns, c.threads / c.team, int64_t{32}});
    c.team = c.threads / c.lanes;
    c.tiles = ceil_div(c.line, c.lanes);
    c.blocks = c.anchors * c.tiles;
    if (c.blocks * 2 >= c.processors || c.elements <= 64) return;
  }
  c.variant.items = 0;
  c.threads = 256;
  c.lanes = std::min<int64_t>(columns, 32);
  c.team = c.threads / c.lanes;
  c.tiles = ceil_div(c.line, c.lanes);
  const int64_t blocks = c.anchors * c.tiles;
  split_elements(c, blocks);
  c.split = c.splits > 1;
  c.blocks = blocks * c.splits;
}

// Buffers for partial sums and for sums on the side.
void CudaLauncher::add_memory(Host& host, Call& c, std::vector<void*>& pointers) const {
  auto allocate = [&](int64_t bytes) {
    Tensor t;
    t.dtype = DType::u8;
    t.rank = 1;
    t.sizes[0] = std::max<int64_t>(bytes, 1);
    t.strides[0] = 1;
    host.allocate(t);
    c.memory.push_back(t);
    return t.data;
  };
  const int64_t width = code_.nest.kind == LoopNest::Kind::column ? c.variant.vector : 1;
  for (const std::vector<int64_t>& sums : c.sums(code_)) {
    int64_t bytes = 0;
    for (int64_t size : sums) bytes = ceil_div(bytes, size) * size + size * width;
    bytes = std::max<int64_t>(ceil_div(bytes, 16) * 16, 16);
    const int64_t rows = c.anchors * c.walked * (code_.nest.kind == LoopNest::Kind::column ? c.tiles : 1);
    c.partial.push_back(c.split && !sums.empty() ? allocate(rows * c.splits * c.lanes * bytes) : nullptr);
  }
  if (code_.cuda.position_side.empty()) return;
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
  size_t side = 0;
  for (size_t o = 0; o < code_.operands.size(); ++o) {
    if (!code_.operands[o].side) continue;
    const bool position = code_.cuda.position_side[side++];
    const int64_t elements = position ? c.parts * c.elements * c.variant.vector : c.total_parts;
    pointers[o] = allocate(elements * c.anchors * size_of(code_.operands[o].dtype));
  }
}

// The bytes of fw::KernelArgs (kernels/cuda_loops.h).
std::vector<char> CudaLauncher::pack(const Call& c, const std::vector<void*>& pointers,
                                     const std::vector<const Tensor*>& operands,
                                     const std::vector<double>& numbers) const {
  std::vector<char> bytes;
  bytes.reserve(1024);
  auto put = [&](const auto& value) {
    const char* from = reinterpret_cast<const char*>(&value);
    bytes.insert(bytes.end(), from, from + sizeof value);
  };
  const size_t count = std::max<size_t>(pointers.size(), 1);
  for (size_t o = 0; o < count; ++o) put(o < pointers.size() ? pointers[o] : nullptr);
  for (size_t o = 0; o < count; ++o) put(o < pointers.size() ? operands[o]->data : nullptr);
  for (size_t n = 0; n < std::max<size_t>(numbers.size(), 1); ++n) {
    int64_t word = 0;
    if (n < numbers.size()) {
      const DType type = number_types_[n];
      const auto single = static_cast<float>(numbers[n]);
      if (type == DType::f32)
        std::memcpy(&word, &single, sizeof single);
      else if (type == DType::f64)
        std::memcpy(&word, &numbers[n], sizeof numbers[n]);
      else
        word = type == DType::b8 ? numbers[n] != 0 : static_cast<int64_t>(numbers[n]);
    }
    put(word);
  }
  for (int64_t stride : c.g.strides) put(stride);
  for (const auto* strides : {&c.side_strides, &c.total_strides})
    for (size_t a = 0; a < c.g.axes; ++a) put(strides->empty() ? int64_t{0} : (*strides)[a]);
  for (int64_t size : c.g.sizes) put(size);
  for (void* partial : c.partial) put(partial);
  if (c.partial.empty()) put(static_cast<void*>(nullptr));
  for (size_t p = 0; p < std::max<size_t>(c.partial.size(), 1); ++p) put(c.merged(p) ? int64_t{1} : c.splits);
  for (int64_t value : {c.anchors, c.walked, c.parts, c.share, c.elements, c.splits, c.piece, c.line, c.tiles,
                        c.total_parts, c.side_blocks})
    put(value);
  auto divider = [&](int64_t n) { put(make_divider(static_cast<uint32_t>(std::clamp<int64_t>(n, 1, narrow_limit)))); };
  for (int64_t size : c.g.sizes) divider(size);
  for (int64_t n : {c.line, c.tiles, c.anchors, c.splits}) divider(n);
  put(bits(c.team));
  put(bits(c.lanes));
  while (bytes.size() % 8 != 0) bytes.push_back(0);
  return bytes;
}

void CudaLauncher::launch(Host& host, const Call& c, const std::string& entry, int64_t blocks,
                          const std::vector<char>& args) const {
  if (blocks == 0) return;
  require(blocks < (int64_t{1} << 31), entry, ": ", blocks, " blocks are more than a launch can have");
  cuda::LaunchShape shape;
  shape.blocks = static_cast<uint32_t>(blocks);
  shape.threads = static_cast<uint32_t>(c.threads);
  // Slots of fw::reduce: one for each warp and lane of a team, as large as the largest Sums.
  if (c.variant.tiling.operands != 0) {
    shape.shared_bytes = static_cast<uint32_t>(c.tile_bytes);
  } else if (c.team * c.lanes > 32) {
    int64_t largest = 16;
    for (const std::vector<int64_t>& sums : c.sums(code_))
      largest =
          std::max(largest, static_cast<int64_t>(sums.size()) * 8 *
                                (c.lanes > 1 || code_.nest.kind == LoopNest::Kind::column ? c.variant.vector : 1));
    largest = ceil_div(largest, 16) * 16;
    const int64_t slots = c.lanes < 32 ? c.team * c.lanes / 32 * c.lanes : c.team * c.lanes;
    shape.shared_bytes = static_cast<uint32_t>(largest * slots);
  }
  cuda::launch(module(c.variant)->kernel(entry, c.device), entry, c.device, shape, args.data(), host.stream());
}

void CudaLauncher::merge_loops(Geometry& g) const {
  const LoopNest& nest = code_.nest;
  std::vector<int> lines = nest.reduced, anchors = code_.cuda.anchor_axes;
  if (nest.inner >= 0) (nest.kind == LoopNest::Kind::column ? anchors : lines).push_back(nest.inner);
  geometry_.merge(g, lines, nest.inner, KernelGeometry::Text::own_axes);
  if (nest.kind == LoopNest::Kind::pointwise) return;
  geometry_.merge(g, anchors, nest.inner, KernelGeometry::Text::own_axes);
  geometry_.merge(g, code_.cuda.walked_axes, nest.inner, KernelGeometry::Text::own_axes);
}

void CudaLauncher::run(Host& host, const std::vector<const Tensor*>& operands, const int64_t* symbols,
                       const std::vector<double>& scalars) const {
  Call c;
  c.g = geometry_.bind(operands, symbols);
  c.device = host.device();
  c.processors = cuda::device(c.device).multiprocessors;
  const LoopNest& nest = code_.nest;
  const bool column = nest.kind == LoopNest::Kind::column, pointwise = nest.kind == LoopNest::Kind::pointwise;
  merge_loops(c.g);
  c.variant.vector = vectors_fit(c.g, operands) ? widest_ : 1;
  c.variant.wide = needs_wide(c.g);
  c.line = nest.inner < 0 ? 1 : c.g.sizes[static_cast<size_t>(nest.inner)] / c.variant.vector;
  if (pointwise) {
    if (!plan_tiled(c, operands, host.stream())) plan_pointwise(c);
  } else if (column) {
    plan_columns(c);
  } else {
    plan_rows(c);
  }

  std::vector<void*> pointers;
  for (const Tensor* operand : operands) pointers.push_back(operand->data);
  add_memory(host, c, pointers);
  const std::vector<double> numbers = geometry_.numbers(symbols, scalars);
  std::vector<char> args = pack(c, pointers, operands, numbers);
  if (!c.split) {
    launch(host, c, code_.name, c.blocks, args);
  } else {
    const CudaCode::Walking& walking = code_.cuda.walking;
    auto entry = [&](const char* kind, int p) { return code_.name + kind + std::to_string(p); };
    for (int p = 0; p < walking.stages; ++p) {
      launch(host, c, entry("_phase", p), c.blocks, args);
      if (c.merged(static_cast<size_t>(p))) launch(host, c, entry("_merge", p), c.blocks / c.splits, args);
    }
    if (walking.final_phase) launch(host, c, entry("_phase", walking.stages), c.blocks / c.splits, args);
  }
  if (code_.cuda.position_side.empty()) return;
  // The parts of sums on the side: neighbouring results side by side, a team for each.
  int64_t outputs = 1;
  for (size_t o = 0; o < code_.operands.size(); ++o)
    if (code_.operands[o].side) outputs = std::max(outputs, operands[o]->elements());
  c.variant.items = 0;
  c.threads = 256;
  c.lanes = std::min<int64_t>(32, power_of_two_from(outputs));
  c.team = c.threads / c.lanes;
  c.side_blocks = ceil_div(outputs, c.lanes);
  args = pack(c, pointers, operands, numbers);
  launch(host, c, code_.name + "_sides", c.side_blocks * static_cast<int64_t>(code_.cuda.position_side.size()), args);
}

}  // namespace fusewright
