// The texts of a kernel, what their launches are handed, and the launches themselves.
#include "runtime/cuda/cuda_launch.h"

#include "base/log.h"
#include "embedded_kernels.h"
#include "ir/error.h"
#include "runtime/compiler/background.h"
#include "runtime/cuda/cuda_call.h"

namespace fusewright {
namespace {

std::vector<const Tensor*> pointers_to(const std::vector<Tensor>& tensors) {
  std::vector<const Tensor*> result;
  for (const Tensor& tensor : tensors) result.push_back(&tensor);
  return result;
}

}  // namespace

CudaLauncher::CudaLauncher(const Graph& graph, const KernelCode& code, const std::map<std::string, int>& slots,
                           const std::vector<Order>& orders)
    : Launcher(code),
      CudaRules(loops_of(graph, code)),
      text_(code.text),
      walking_text_(code.cuda.walking_text),
      tiled_text_(code.cuda.tiled_text),
      walking_parts_(code.cuda.walking_parts),
      geometry_(graph, code, slots),
      symbols_(slots.size()) {
  variants_ = variants_for_all_rows();
  expect_rows(graph, code);
  expect_tensors(graph, code, slots, orders);
  expect_tiles();
}

// Rows of a length that the graph knows have texts for just that; those of the length at capture have some beside the
// ones for all, unless it is known to change: another size compiles nothing.
void CudaLauncher::expect_rows(const Graph& graph, const KernelCode& code) {
  if (code_.nest.kind != LoopNest::Kind::row) return;
  const Size size = elements_of_row(code.axes, code.nest);
  const bool known = size.constant().has_value();
  const int64_t elements = graph.hint(size);
  if (elements <= 0) return;
  expect_clusters(elements, graph.may_change(size));
  if (graph.may_change(size)) return;
  const int expected = elements % widest_ == 0 ? widest_ : 1;
  std::vector<Variant> rest;
  for (const Variant& variant : variants_) {
    if (variant.items == 0 || !known) rest.push_back(variant);
    if (variant.items == 0 || elements % variant.vector != 0 || (!known && variant.vector != expected)) continue;
    Variant of_length = variant;
    of_length.row = elements / variant.vector;
    const int64_t team = power_of_two_from(ceil_div(of_length.row, variant.items));
    // Most of the items would be empty.
    const bool empty = variant.vector == widest_ && variant.items > 1 && of_length.row * 2 <= variant.items;
    if (team <= most_in_team(of_length) && !empty) rest.push_back(of_length);
  }
  variants_ = std::move(rest);
}

// Rows that a block cannot hold are those of a cluster, by vectors, if they would be read twice or more. Few models
// have them, and the others compile nothing for it.
void CudaLauncher::expect_clusters(int64_t elements, bool may_change) {
  const int passes = code_.cuda.walking.stages;
  if (!spreads_teams() || elements % widest_ != 0 || passes < 2) return;
  const Variant alone{widest_, code_.cuda.items.back(), false, {}};
  Variant together = alone;
  together.cluster = true;
  // With 512 threads to a block two passes over split rows are as fast.
  Variant of_length = together;
  if (passes > 2 && !may_change) of_length.row = elements / widest_;
  const int64_t threads = ceil_div(elements / widest_, alone.items);
  if (threads > most_in_team(alone) && threads <= most_in_team(of_length)) variants_.push_back(together);
}

// The operands as the graph knows them: aligned, in their orders, with the sizes at capture.
void CudaLauncher::expect_tensors(const Graph& graph, const KernelCode& code, const std::map<std::string, int>& slots,
                                  const std::vector<Order>& orders) {
  expected_symbols_.assign(slots.size() + 1, 1);
  for (const auto& [name, slot] : slots)
    if (const auto hint = graph.hints.find(name); hint != graph.hints.end())
      expected_symbols_[static_cast<size_t>(slot)] = hint->second;
  for (const KernelCode::Operand& operand : code.operands) {
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
  if (!code_.cuda.can_tile) return;
  const std::vector<const Tensor*> operands = pointers_to(expected_);
  Geometry g = geometry_.bind(operands, expected_symbols_.data());
  merge_loops(g);
  if (const Tiling tiling = find_tiling(code_, g); tiling.operands != 0) {
    const Variant variant = tiled_variant(g, operands, tiling);
    if (!variant.wide) variants_.push_back(variant);
  }
}

// What the rule takes for the sizes at capture.
std::vector<CudaLauncher::First> CudaLauncher::first_kernels(int device) const {
  if (variants_.back().tiling.operands != 0) return {{variants_.back(), Part::all}};
  return first_kernels(bind(device, pointers_to(expected_), expected_symbols_.data()));
}

std::vector<CudaLauncher::First> CudaLauncher::first_kernels(Call c) const {
  c.estimate = true;
  c.wide = false;  // which is compiled when a tensor needs it
  std::vector<First> result;
  auto add = [&](const First& first) {
    if (std::find(result.begin(), result.end(), first) == result.end()) result.push_back(first);
  };
  auto add_by_rule = [&](int vector) {
    const LaunchChoice choice = rule(c, vector);
    plan(c, choice);
    if (code_.nest.kind == LoopNest::Kind::pointwise || c.variant.items != 0)
      add({c.variant, Part::all});
    else if (!choice.split)
      add({c.variant, Part::whole_rows});
    else  // more blocks than here reckoned with may be resident: then rows are split, if they were not yet
      add({c.variant, c.split ? Part::split_rows : Part::all});
    if (code_.cuda.has_sides()) add({{c.variant.vector, 0, false, {}}, Part::sides});
  };
  add_by_rule(c.widest);
  if (takes_gradient_) add_by_rule(1);
  return result;
}

EmittedKernel CudaLauncher::emitted(const Graph& graph) const {
  std::vector<Variant> all;
  auto add = [&](const Variant& variant) {
    if (std::find(all.begin(), all.end(), variant) == all.end()) all.push_back(variant);
  };
  Call c;
  c.processors = 132, c.shared_limit = 227 << 10;  // of the devices that are usual where speed matters
  const std::vector<const Tensor*> operands = pointers_to(expected_);
  CudaRules::bind(c, geometry_.bind(operands, expected_symbols_.data()), operands);
  if (variants_.back().tiling.operands != 0) add(variants_.back());
  for (const auto& [variant, part] : first_kernels(c)) {
    add(variant);
    const Variant of_any_row{variant.vector, variant.items, false, {}};
    if (has(of_any_row)) add(of_any_row);
    // More rows of columns than those at capture.
    if (holds_columns(variant.items)) add({variant.vector, in_registers(variant.vector).items, false, {}});
  }
  // The rule falls back to these, by vectors or not; and offsets of 64 bits are for the last of them.
  const int general = code_.nest.kind == LoopNest::Kind::pointwise ? code_.cuda.items[0] : 0;
  add({widest_, general, false, {}});
  add({1, general, false, {}});
  add({1, general, true, {}});
  EmittedKernel kernel;
  kernel.runner = "CudaKernel";
  kernel.headers = {{"geometry", embedded_geometry},       {"divider", embedded_divider},
                    {"cuda_tiling", embedded_cuda_tiling}, {"cuda_rules", embedded_cuda_rules},
                    {"cuda_shape", embedded_cuda_shape},   {"cuda_arguments", embedded_cuda_arguments},
                    {"recent", embedded_recent},           {"cuda_kernel", embedded_cuda_kernel}};
  kernel.table = loops_as_cpp(loops_of(graph, code()));
  for (const Variant& v : all) {
    const std::string tiling = v.tiling.operands == 0
                                   ? "{}"
                                   : "{" + std::to_string(v.tiling.operands) + ", " + std::to_string(v.tiling.across) +
                                         ", " + std::to_string(v.tiling.vector) + "}";
    const std::string fields = "{" + std::to_string(v.vector) + ", " + std::to_string(v.items) + ", " +
                               (v.wide ? "true" : "false") + ", " + tiling + ", " + std::to_string(v.row) + "}";
    const char* label = v.tiling.operands != 0 ? "tiled" : v.items == 0 ? "walking" : "";
    std::vector<std::string> preludes = {"cuda_loops"};
    if (v.tiling.operands != 0) preludes.push_back("cuda_tile");
    kernel.variants.push_back({fields, defines(v), std::move(preludes), kernel.place_of(text(v)), label, entries(v)});
  }
  return kernel;
}

std::string CudaLauncher::defines(const Variant& variant) const {
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
    define("ACROSS_VECTOR", variant.tiling.vector);
  } else if (variant.items != 0 && code_.nest.kind != LoopNest::Kind::pointwise) {
    const Held h = held(variant);
    define("DEPTH", h.depth);
    define("AHEAD", h.ahead);
    define("FIXED", h.fixed);
    define("SLOT", h.slot);
    define("THREADS", h.most_threads);
    define("CLUSTER", variant.cluster ? 1 : 0);
  }
  return text;
}

const std::string& CudaLauncher::text(const Variant& variant) const {
  if (variant.tiling.operands != 0) return tiled_text_;
  return variant.items == 0 ? walking_text_ : text_;
}

std::string CudaLauncher::source(const Variant& variant) const {
  return defines(variant) + (variant.tiling.operands != 0 ? cuda_tile_prelude() : cuda_prelude()) + text(variant);
}

std::string CudaLauncher::source(const First& first) const {
  if (first.part == Part::all) return source(first.variant);
  const auto& [whole_rows, split_rows, sides] = walking_parts_;
  return defines(first.variant) + cuda_prelude() +
         (first.part == Part::sides        ? sides
          : first.part == Part::split_rows ? split_rows
                                           : whole_rows);
}

CudaLauncher::Part CudaLauncher::part_of(const std::string& entry) const {
  if (entry == code_.name) return Part::whole_rows;
  return entry == code_.name + "_sides" ? Part::sides : Part::split_rows;
}

std::vector<std::string> CudaLauncher::entries(const First& first) const {
  std::vector<std::string> result = entries(first.variant);
  std::erase_if(result,
                [&](const std::string& entry) { return first.part != Part::all && part_of(entry) != first.part; });
  return result;
}

std::vector<std::string> CudaLauncher::sources(int device) const {
  std::vector<std::string> result;
  for (const First& first : first_kernels(device)) result.push_back(source(first));
  return result;
}

void CudaLauncher::attach(const std::vector<CompiledSource>& compiled, int device) {
  const cuda::Architecture architecture = loaded_->architecture = cuda::device(device).architecture;
  const std::vector<First> first = first_kernels(device);
  const bool clusters = cuda::largest_cluster(device) > 1;
  for (size_t i = 0; i < first.size(); ++i) {
    const auto& module = std::get<std::shared_ptr<cuda::Module>>(compiled.at(i));
    for (const std::string& entry : entries(first[i])) module->kernel(entry, device);
    if (first[i].part == Part::all)
      loaded_->modules[first[i].variant] = module;
    else
      loaded_->parts[{first[i].variant, first[i].part}] = module;
  }
  for (const Variant& variant : variants_) {
    if (std::find(first.begin(), first.end(), First{variant, Part::all}) != first.end()) continue;
    if (variant.cluster && !clusters) continue;
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
  const std::shared_ptr<cuda::Module> kernels = module(c.variant, code_.name + entry);
  std::lock_guard<std::mutex> lock(loaded_->mutex);
  const auto known = loaded_->resident.find(key);
  if (known != loaded_->resident.end()) return known->second;
  const cuda::LaunchShape shape{1, static_cast<uint32_t>(c.threads), shared};
  return loaded_->resident[key] = cuda::resident_blocks(kernels->kernel(code_.name + entry, c.device), c.device, shape);
}

std::shared_ptr<cuda::Module> CudaLauncher::module(const Variant& variant, const std::string& entry) const {
  {
    const std::lock_guard lock(loaded_->mutex);
    if (auto known = loaded_->modules.find(variant); known != loaded_->modules.end()) return known->second;
    if (auto known = loaded_->parts.find({variant, part_of(entry)}); known != loaded_->parts.end())
      return known->second;
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

CudaLauncher::Call CudaLauncher::bind(int device, const std::vector<const Tensor*>& operands,
                                      const int64_t* symbols) const {
  Call c;
  const cuda::Device& where = cuda::device(device);
  c.device = device;
  c.processors = where.multiprocessors;
  c.shared_limit = where.shared_bytes;
  c.l2_bytes = where.l2_bytes;
  c.largest_cluster = cuda::largest_cluster(device);
  CudaRules::bind(c, geometry_.bind(operands, symbols), operands);
  return c;
}

void CudaLauncher::run(Host& host, const std::vector<const Tensor*>& operands, const int64_t* symbols,
                       const std::vector<double>& scalars, TuningProgress* progress, bool follows) const {
  if (host.deterministic()) progress = nullptr;
  std::vector<int64_t> key;
  key.reserve(2 + symbols_ + operands.size() * (1 + max_rank));
  key.push_back(host.device());
  key.push_back(progress != nullptr);
  key.insert(key.end(), symbols, symbols + symbols_);
  add_places(key, operands);
  const std::vector<double> numbers = geometry_.numbers(symbols, scalars);
  const bool forced = candidate_hook.load(std::memory_order_relaxed) != nullptr;
  if (!forced)
    if (const auto known = recent_.find(key)) return launch(host, *known, operands, numbers, follows);
  auto prepared = std::make_shared<Prepared>(prepare(host, operands, symbols, numbers, progress));
  launch(host, *prepared, operands, numbers, follows);
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
  c.stream = host.stream();
  if (plan_tiled(c, operands)) return prepare(c, operands);
  std::optional<LaunchChoice> choice = known_choice(c, progress);
  if (!choice) choice = tune(host, c, operands, numbers, *progress);
  // Others in the bucket may have sizes that this choice cannot serve; the rule serves all that launch() takes.
  if (!choice || !plan(c, *choice)) plan(c, rule(c, c.widest));
  Prepared prepared = prepare(c, operands);
  prepared.lasting = choice.has_value();
  return prepared;
}

void CudaLauncher::launch(Host& host, const Prepared& prepared, const std::vector<const Tensor*>& operands,
                          const std::vector<double>& numbers, bool follows) const {
  if (prepared.launches.empty()) return;
  std::vector<Tensor> memory(prepared.buffers.size());
  for (size_t b = 0; b < memory.size(); ++b) {
    memory[b].dtype = DType::u8;
    memory[b].rank = 1;
    memory[b].sizes[0] = std::max<int64_t>(prepared.buffers[b].bytes, 1);
    memory[b].strides[0] = 1;
    host.allocate(memory[b]);
  }
  std::vector<void*> addresses;
  for (const Tensor& buffer : memory) addresses.push_back(buffer.data);
  // A later pass over split rows reads ahead of its own wait: what it reads has to be there for all of the device when
  // the first one begins, not only for those that waited.
  follows = follows && prepared.launches[0].entry == code_.name;
  for (size_t i = 0; i < prepared.launches.size(); ++i) {
    const Launches::Launch& l = prepared.launches[i];
    std::vector<char> arguments = filled(l.arguments, operands, numbers, prepared.buffers, addresses);
    cuda::launch(prepared.kernels[i], l.entry, host.device(),
                 {static_cast<uint32_t>(l.blocks), l.threads, l.shared_bytes, i == 0 ? follows : l.overlap, l.cluster},
                 arguments.data(), host.stream());
  }
}

CudaLauncher::Prepared CudaLauncher::prepare(Call& c, const std::vector<const Tensor*>& operands) const {
  Prepared prepared{launches(c, operands), {}, true, {}};
  for (const Launches::Launch& launch : prepared.launches) {
    require(launch.blocks < (int64_t{1} << 31), launch.entry, ": ", launch.blocks,
            " blocks are more than a launch can have");
    prepared.kernels.push_back(module(launch.variant, launch.entry)->kernel(launch.entry, c.device));
  }
  return prepared;
}

}  // namespace fusewright
