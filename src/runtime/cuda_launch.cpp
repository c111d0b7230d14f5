// The texts of a kernel, what their launches are handed, and the launches themselves.
#include "runtime/cuda_launch.h"

#include <cstring>
#include <set>

#include "ir/error.h"
#include "runtime/background.h"
#include "runtime/cuda_call.h"
#include "runtime/divider.h"
#include "runtime/log.h"

namespace fusewright {
namespace {

uint32_t bits(int64_t power) { return static_cast<uint32_t>(std::countr_zero(static_cast<uint64_t>(power))); }

constexpr int64_t narrow_limit = (int64_t{1} << 31) - (int64_t{1} << 24);  // with room for the last block's excess

constexpr uintptr_t widest_vector = 16;  // bytes

std::vector<const Tensor*> pointers_to(const std::vector<Tensor>& tensors) {
  std::vector<const Tensor*> result;
  for (const Tensor& tensor : tensors) result.push_back(&tensor);
  return result;
}

}  // namespace

CudaLauncher::CudaLauncher(const Graph& graph, const KernelCode& code, const std::map<std::string, int>& slots,
                           const std::vector<Order>& orders)
    : code_(code), geometry_(graph, code, slots), symbols_(slots.size()) {
  for (Value v : code.numbers) number_types_.push_back(compute_type(graph.dtype(v)));
  // 16 bytes of the widest operand; no vectors at all where nothing lies along the line.
  int64_t bytes = 0;
  for (const CudaCode::Vector& v : code.cuda.vectors)
    bytes = std::max<int64_t>(bytes, size_of(code.operands[static_cast<size_t>(v.operand)].dtype));
  if (bytes > 0) widest_ = static_cast<int>(std::min<int64_t>(8, 16 / bytes));
  std::vector<int> items = code.cuda.items;
  if (code.nest.kind != LoopNest::Kind::pointwise) items.push_back(0);
  for (int n : items) {
    variants_.push_back({widest_, n, false, {}});
    // Single elements are the exception: the variants that the rule takes serve all sizes.
    bool by_rule = n == items[0] || n == 0;
    if (code.nest.kind == LoopNest::Kind::row) by_rule = n == 0 || n >= items[items.size() - 3];
    if (widest_ > 1 && by_rule) variants_.push_back({1, n, false, {}});
  }
  expect_rows(graph);
  expect_tensors(graph, slots, orders);
  expect_tiles();
}

// Rows of a length that the graph knows have texts for just that; those of the length at capture have some beside the
// ones for all, unless it is known to change: another size compiles nothing.
void CudaLauncher::expect_rows(const Graph& graph) {
  if (code_.nest.kind != LoopNest::Kind::row) return;
  Size size = code_.axes[static_cast<size_t>(code_.nest.inner)].size;
  for (int a : code_.nest.reduced) size = size * code_.axes[static_cast<size_t>(a)].size;
  const bool known = size.constant().has_value();
  const int64_t elements = graph.hint(size);
  std::set<std::string> symbols;
  size.collect_symbols(symbols);
  const bool changes =
      std::any_of(symbols.begin(), symbols.end(), [&](const std::string& s) { return graph.dynamic.count(s) != 0; });
  if (elements <= 0 || changes) return;
  const int expected = elements % widest_ == 0 ? widest_ : 1;
  std::vector<Variant> rest;
  for (const Variant& variant : variants_) {
    if (variant.items == 0 || !known) rest.push_back(variant);
    if (variant.items == 0 || elements % variant.vector != 0 || (!known && variant.vector != expected)) continue;
    Variant of_length = variant;
    of_length.row = elements / variant.vector;
    const int64_t team = power_of_two_from(ceil_div(of_length.row, variant.items));
    // The rule takes one item where more would be empty for the most part.
    const bool empty = variant.vector == widest_ && variant.items > 1 && of_length.row * 2 <= variant.items;
    if (team <= held(of_length).most_threads && !empty) rest.push_back(of_length);
  }
  variants_ = std::move(rest);
}

// The operands as the graph knows them: aligned, in their orders, with the sizes at capture.
void CudaLauncher::expect_tensors(const Graph& graph, const std::map<std::string, int>& slots,
                                  const std::vector<Order>& orders) {
  expected_symbols_.assign(slots.size() + 1, 1);
  for (const auto& [name, slot] : slots)
    if (const auto hint = graph.hints.find(name); hint != graph.hints.end())
      expected_symbols_[static_cast<size_t>(slot)] = hint->second;
  for (const KernelCode::Operand& operand : code_.operands) {
    Tensor& tensor = expected_.emplace_back();
    for (const Size& size : graph.shape(operand.value))
      tensor.sizes[static_cast<size_t>(tensor.rank++)] = SizeProgram(size, slots).run(expected_symbols_.data());
    set_strides(tensor, orders[static_cast<size_t>(operand.value)]);
    const Node& node = graph[operand.value];
    takes_gradient_ |= node.op == Op::input && node.text("name").starts_with("dL_dy");
  }
}

// Where the graph itself says that operands lie differently, the tiled variant for its sizes is compiled with the rest.
void CudaLauncher::expect_tiles() {
  if (code_.cuda.tiled_text.empty()) return;
  const std::vector<const Tensor*> operands = pointers_to(expected_);
  Geometry g = geometry_.bind(operands, expected_symbols_.data());
  merge_loops(g);
  if (const Tiling tiling = find_tiling(code_, g); tiling.operands != 0) {
    const Variant variant = tiled_variant(g, operands, tiling);
    if (!variant.wide) variants_.push_back(variant);
  }
}

// What the rule takes for the sizes at capture.
std::vector<CudaLauncher::Variant> CudaLauncher::first_variants(int device) const {
  if (variants_.back().tiling.operands != 0) return {variants_.back()};
  Call c = bind(device, pointers_to(expected_), expected_symbols_.data());
  c.estimate = true;
  c.wide = false;  // which is compiled when a tensor needs it
  std::vector<Variant> result;
  auto add = [&](const Variant& variant) {
    if (std::find(result.begin(), result.end(), variant) == result.end()) result.push_back(variant);
  };
  auto add_by_rule = [&](int vector) {
    plan(c, rule(c, vector));
    add(c.variant);
    if (!code_.cuda.position_side.empty()) add({c.variant.vector, 0, false, {}});
  };
  add_by_rule(c.widest);
  if (takes_gradient_) add_by_rule(1);
  return result;
}

std::string CudaLauncher::source(const Variant& variant) const {
  std::string text;
  auto define = [&](const char* name, auto value) {
    text += "#define FW_" + std::string(name) + " " + std::to_string(value) + "\n";
  };
  define("VECTOR", variant.vector);
  define("ITEMS", variant.items);
  define("WIDE", variant.wide ? 1 : 0);
  define("ROW", variant.row);
  if (variant.tiling.operands != 0) {
    define("TILED", variant.tiling.operands);
    define("ACROSS", variant.tiling.across);
    return text + cuda_tile_prelude() + code_.cuda.tiled_text;
  }
  if (variant.items == 0) return text + cuda_prelude() + code_.cuda.walking.text;
  if (code_.nest.kind != LoopNest::Kind::pointwise) {
    const Held h = held(variant);
    define("DEPTH", h.depth);
    define("AHEAD", h.ahead);
    define("FIXED", h.fixed);
    define("SLOT", h.slot);
    define("THREADS", h.most_threads);
  }
  return text + cuda_prelude() + code_.text;
}

std::vector<std::string> CudaLauncher::sources(int device) const {
  std::vector<std::string> result;
  for (const Variant& variant : first_variants(device)) result.push_back(source(variant));
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
  const cuda::Architecture architecture = loaded_->architecture = cuda::device(device).architecture;
  const std::vector<Variant> first = first_variants(device);
  for (size_t i = 0; i < first.size(); ++i) {
    for (const std::string& entry : entries(first[i])) modules[i]->kernel(entry, device);
    loaded_->modules[first[i]] = std::move(modules[i]);
  }
  for (const Variant& variant : variants_) {
    if (std::find(first.begin(), first.end(), variant) != first.end()) continue;
    ++loaded_->missing;
    auto load = [=, loaded = loaded_, source = source(variant), entries = entries(variant)] {
      try {
        const std::shared_ptr<cuda::Module> module = cuda::compile({source}, architecture)[0];
        for (const std::string& entry : entries) module->kernel(entry, device);
        const std::lock_guard lock(loaded->mutex);
        loaded->modules.try_emplace(variant, module);
      } catch (const std::exception& error) {
        log(LogLevel::debug, error.what());  // a call that needs it tries again, and its caller is told
      }
      --loaded->missing;
    };
    Background::instance().add(std::move(load));
  }
}

bool CudaLauncher::complete() const { return loaded_->missing == 0; }

int CudaLauncher::resident_blocks(const Call& c, const char* entry) const {
  if (c.estimate) return 1;
  const uint32_t shared = shared_bytes(c);
  const auto key = std::make_tuple(c.variant, c.device, c.threads, shared, *entry != 0);
  const std::shared_ptr<cuda::Module> kernels = module(c.variant);
  std::lock_guard<std::mutex> lock(loaded_->mutex);
  const auto known = loaded_->resident.find(key);
  if (known != loaded_->resident.end()) return known->second;
  const cuda::LaunchShape shape{1, static_cast<uint32_t>(c.threads), shared};
  return loaded_->resident[key] = cuda::resident_blocks(kernels->kernel(code_.name + entry, c.device), c.device, shape);
}

std::shared_ptr<cuda::Module> CudaLauncher::module(const Variant& variant) const {
  {
    const std::lock_guard lock(loaded_->mutex);
    if (auto known = loaded_->modules.find(variant); known != loaded_->modules.end()) return known->second;
  }
  // Wide offsets, tiles, and what is still on its way: whoever compiles the same source is waited for.
  const std::shared_ptr<cuda::Module> module = cuda::compile({source(variant)}, loaded_->architecture)[0];
  const std::lock_guard lock(loaded_->mutex);
  return loaded_->modules.try_emplace(variant, module).first->second;
}

bool CudaLauncher::is_loaded(const Variant& variant) const {
  const std::lock_guard lock(loaded_->mutex);
  return loaded_->modules.count(variant) != 0;
}

bool CudaLauncher::vectors_fit(const Geometry& g, const std::vector<const Tensor*>& operands,
                               const Tiling& tiling) const {
  const int inner = code_.nest.inner, widest = tiling.operands != 0 ? std::min(widest_, widest_in_tile) : widest_;
  if (inner < 0 || g.sizes[static_cast<size_t>(inner)] % widest != 0) return false;
  if (tiling.operands != 0 && g.sizes[static_cast<size_t>(tiling.across)] % widest != 0) return false;
  for (const CudaCode::Vector& v : code_.cuda.vectors) {
    const auto operand = static_cast<size_t>(v.operand);
    const auto bytes =
        std::min<uintptr_t>(widest_vector, static_cast<uintptr_t>(widest * size_of(code_.operands[operand].dtype)));
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

CudaLauncher::Call CudaLauncher::bind(int device, const std::vector<const Tensor*>& operands,
                                      const int64_t* symbols) const {
  Call c;
  c.g = geometry_.bind(operands, symbols);
  c.device = device;
  c.processors = cuda::device(c.device).multiprocessors;
  merge_loops(c.g);
  c.widest = vectors_fit(c.g, operands) ? widest_ : 1;
  c.wide = needs_wide(c.g);
  return c;
}

// Of KernelArgs::partial among the words of the arguments.
size_t CudaLauncher::first_partial(const Call& c) const {
  return 2 * std::max<size_t>(c.g.operands, 1) + std::max<size_t>(number_types_.size(), 1) + c.g.strides.size() +
         3 * c.g.axes;
}

// Buffers for partial sums and for sums on the side.
void CudaLauncher::add_memory(Call& c, Prepared& prepared) const {
  const int64_t width = code_.nest.kind == LoopNest::Kind::column ? c.variant.vector : 1;
  for (const std::vector<int64_t>& sums : c.sums(code_)) {
    int64_t bytes = 0;
    for (int64_t size : sums) bytes = ceil_div(bytes, size) * size + size * width;
    bytes = std::max<int64_t>(ceil_div(bytes, 16) * 16, 16);
    c.partial.push_back(c.split && !sums.empty());
    if (c.partial.back())
      prepared.buffers.push_back({c.rows * c.splits * c.lanes * bytes, first_partial(c) + c.partial.size() - 1});
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
    const int64_t elements = position ? c.side_parts * c.elements * c.variant.vector : c.total_parts;
    prepared.buffers.push_back({elements * c.anchors * size_of(code_.operands[o].dtype), o});
  }
}

// A number as kernels read it.
int64_t CudaLauncher::word_of(size_t n, double number) const {
  int64_t word = 0;
  const auto single = static_cast<float>(number);
  if (number_types_[n] == DType::f32)
    std::memcpy(&word, &single, sizeof single);
  else if (number_types_[n] == DType::f64)
    std::memcpy(&word, &number, sizeof number);
  else
    word = number_types_[n] == DType::b8 ? number != 0 : static_cast<int64_t>(number);
  return word;
}

// The bytes of fw::KernelArgs (kernels/cuda_loops.h); addresses and numbers are 0.
std::vector<char> CudaLauncher::pack(const Call& c) const {
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
  for (int64_t value : {c.anchors, c.walked, c.parts, c.share, c.elements, c.rows, c.splits, c.piece, c.line, c.tiles,
                        c.side_parts, c.total_parts, c.side_blocks})
    put(value);
  auto divider = [&](int64_t n) { put(make_divider(static_cast<uint32_t>(std::clamp<int64_t>(n, 1, narrow_limit)))); };
  for (int64_t size : c.g.sizes) divider(size);
  for (int64_t n : {c.line, c.tiles, c.anchors, c.rows}) divider(n);
  put(bits(c.team));
  put(bits(c.lanes));
  put(bits(c.anchors_together));
  put(bits(c.partial_lanes));
  put(slot_bytes(c));
  while (bytes.size() % 8 != 0) bytes.push_back(0);
  return bytes;
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
                       const std::vector<double>& scalars, TuningProgress* progress) const {
  if (host.deterministic()) progress = nullptr;
  std::vector<int64_t> key;
  key.reserve(2 + symbols_ + operands.size() * (1 + max_rank));
  key.push_back(host.device());
  key.push_back(progress != nullptr);
  key.insert(key.end(), symbols, symbols + symbols_);
  for (const Tensor* operand : operands) {
    key.push_back(static_cast<int64_t>(reinterpret_cast<uintptr_t>(operand->data) % widest_vector));
    key.insert(key.end(), operand->strides.begin(), operand->strides.begin() + operand->rank);
  }
  const std::vector<double> numbers = geometry_.numbers(symbols, scalars);
  const bool forced = candidate_hook.load(std::memory_order_relaxed) != nullptr;
  if (!forced)
    if (const auto known = recent_.find(key)) return launch(host, *known, operands, numbers);
  auto prepared = std::make_shared<Prepared>(prepare(host, operands, symbols, numbers, progress));
  launch(host, *prepared, operands, numbers);
  // While a graph is recorded no tiles are compiled: another call may choose better.
  if (forced || !prepared->lasting || cuda::is_capturing(host.stream())) return;
  prepared->key = std::move(key);
  recent_.add(std::move(prepared));
}

// Chooses how; without a `progress` by rule.
CudaLauncher::Prepared CudaLauncher::prepare(Host& host, const std::vector<const Tensor*>& operands,
                                             const int64_t* symbols, const std::vector<double>& numbers,
                                             TuningProgress* progress) const {
  Call c = bind(host.device(), operands, symbols);
  if (plan_tiled(c, operands, host.stream())) return prepare(c, operands);
  std::optional<LaunchChoice> choice = known_choice(c, progress);
  if (!choice) choice = tune(host, c, operands, numbers, *progress);
  // Others in the bucket may have sizes that this choice cannot serve; the rule serves all that launch() takes.
  if (!choice || !plan(c, *choice)) plan(c, rule(c, c.widest));
  Prepared prepared = prepare(c, operands);
  prepared.lasting = choice.has_value();
  return prepared;
}

void CudaLauncher::launch(Host& host, const Prepared& prepared, const std::vector<const Tensor*>& operands,
                          const std::vector<double>& numbers) const {
  if (prepared.launches.empty()) return;
  std::vector<Tensor> memory(prepared.buffers.size());
  for (size_t b = 0; b < memory.size(); ++b) {
    memory[b].dtype = DType::u8;
    memory[b].rank = 1;
    memory[b].sizes[0] = std::max<int64_t>(prepared.buffers[b].bytes, 1);
    memory[b].strides[0] = 1;
    host.allocate(memory[b]);
  }
  for (const Prepared::Launch& l : prepared.launches) {
    std::vector<char> arguments = l.arguments;
    auto put = [&](size_t place, const auto& word) {
      static_assert(sizeof word == 8);
      std::memcpy(arguments.data() + 8 * place, &word, sizeof word);
    };
    for (size_t o = 0; o < operands.size(); ++o) put(o, operands[o]->data), put(operands.size() + o, operands[o]->data);
    for (size_t n = 0; n < numbers.size(); ++n) put(2 * operands.size() + n, word_of(n, numbers[n]));
    for (size_t b = 0; b < memory.size(); ++b) put(prepared.buffers[b].place, memory[b].data);
    cuda::launch(l.kernel, l.name, host.device(), l.shape, arguments.data(), host.stream());
  }
}

CudaLauncher::Prepared CudaLauncher::prepare(Call& c, const std::vector<const Tensor*>& operands) const {
  Prepared prepared;
  c.partial_lanes = c.lanes;
  add_memory(c, prepared);
  auto start = [&](const Call& call, const std::string& entry, int64_t blocks) {
    if (blocks == 0) return;
    require(blocks < (int64_t{1} << 31), entry, ": ", blocks, " blocks are more than a launch can have");
    // Those behind the first wait in their own text for what they need of the one before.
    const cuda::LaunchShape shape{static_cast<uint32_t>(blocks), static_cast<uint32_t>(call.threads),
                                  shared_bytes(call), !prepared.launches.empty()};
    prepared.launches.push_back({module(call.variant)->kernel(entry, call.device), entry, shape, pack(call)});
  };
  if (!c.split) {
    start(c, code_.name, c.blocks);
  } else {
    const CudaCode::Walking& walking = code_.cuda.walking;
    auto entry = [&](const char* kind, int p) { return code_.name + kind + std::to_string(p); };
    Call merge = c;  // the same sums, by more threads
    merge.lanes = std::min<int64_t>(c.lanes, 4);
    merge.team = merge.threads / merge.lanes;
    for (int p = 0; p < walking.stages; ++p) {
      start(c, entry("_phase", p), c.blocks);
      if (c.merged(static_cast<size_t>(p))) start(merge, entry("_merge", p), c.rows * (c.lanes / merge.lanes));
    }
    if (walking.final_phase) start(c, entry("_phase", walking.stages), c.rows);
  }
  if (code_.cuda.position_side.empty()) return prepared;
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
  const int64_t team = std::min<int64_t>(power_of_two_from(ceil_div(terms, 8)), 64);
  c.variant.items = 0;
  c.variant.row = 0;
  c.lanes = std::min<int64_t>(team > 16 ? 8 : 32, power_of_two_from(outputs));
  c.team = std::max(team, 32 / c.lanes);
  c.threads = c.team * c.lanes;
  c.side_blocks = ceil_div(outputs, c.lanes);
  start(c, code_.name + "_sides", c.side_blocks * static_cast<int64_t>(code_.cuda.position_side.size()));
  return prepared;
}

}  // namespace fusewright
