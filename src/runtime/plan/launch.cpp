#include "runtime/plan/launch.h"

#include <algorithm>

#include "embedded_kernels.h"
#include "ir/error.h"
#include "runtime/compiler/compiled_library.h"

namespace fusewright {

SymbolBinder::SymbolBinder(const Graph& graph) {
  struct Dim {
    int input, dim;
    Size size;
  };
  std::vector<Dim> open;
  for (size_t i = 0; i < graph.inputs.size(); ++i) {
    const Shape& shape = graph.shape(graph.inputs[i]);
    for (size_t d = 0; d < shape.size(); ++d) open.push_back({static_cast<int>(i), static_cast<int>(d), shape[d]});
  }
  // Plain symbols first, then sizes that become linear in a single unknown.
  for (bool progress = true; progress;) {
    progress = false;
    for (const Dim& dim : open) {
      std::set<std::string> symbols;
      dim.size.collect_symbols(symbols);
      std::string unknown;
      int unknowns = 0;
      for (const std::string& symbol : symbols)
        if (!slots_.count(symbol)) unknown = symbol, ++unknowns;
      if (unknowns != 1) continue;
      for (const Size::Linear& linear : dim.size.linear_symbols()) {
        if (linear.symbol != unknown) continue;
        Size offset = dim.size - Size::symbol(unknown) * Size(linear.coefficient);
        int slot = static_cast<int>(slots_.size());
        solve_.push_back({unknown, dim.input, dim.dim, slot, linear.coefficient, offset, SizeProgram(offset, slots_)});
        slots_[unknown] = slot;
        progress = true;
      }
    }
  }
  for (const Dim& dim : open) checks_.push_back({dim.input, dim.dim, SizeProgram(dim.size, slots_)});
}

std::vector<int64_t> SymbolBinder::bind(const Graph& graph, const std::vector<Tensor>& tensors) const {
  std::vector<int64_t> symbols(slots_.size() + 1);
  auto actual = [&](int input, int dim) { return tensors[static_cast<size_t>(input)].sizes[static_cast<size_t>(dim)]; };
  for (const Solve& s : solve_)
    symbols[static_cast<size_t>(s.slot)] = (actual(s.input, s.dim) - s.offset.run(symbols.data())) / s.coefficient;
  for (const Check& c : checks_) {
    int64_t expected = c.size.run(symbols.data());
    if (expected == actual(c.input, c.dim)) continue;
    Value v = graph.inputs[static_cast<size_t>(c.input)];
    fail("input '", graph[v].text("name"), "': dimension ", c.dim, " is ", actual(c.input, c.dim), ", but ",
         graph.shape(v)[static_cast<size_t>(c.dim)].str(), " = ", expected, " is needed");
  }
  return symbols;
}

size_t EmittedKernel::place_of(const std::string& text) {
  const auto known = std::find(texts.begin(), texts.end(), text);
  const auto place = static_cast<size_t>(known - texts.begin());
  if (known == texts.end()) texts.push_back(text);
  return place;
}

EmittedKernel Launcher::emitted(const Graph&) const { fail("kernel ", code().name, ": files cannot run it yet"); }

void Launcher::run(Host&, const std::vector<const Tensor*>&, const int64_t*, const std::vector<double>&,
                   TuningProgress*, bool) const {
  fail("kernel ", code().name, " makes its result itself");
}

Tensor Launcher::make_result(Host&, const std::vector<const Tensor*>&, TuningProgress*) const {
  fail("kernel ", code().name, " is given memory for its result");
}

CpuLauncher::CpuLauncher(const Graph& graph, const KernelCode& code, const std::map<std::string, int>& slots)
    : Launcher(code), geometry_(graph, code, slots), rules_(loops_of(graph, code)) {}

std::vector<std::string> CpuLauncher::sources(int) const { return {cpp_prelude() + code().text}; }

void CpuLauncher::attach(const std::vector<CompiledSource>& compiled, int) {
  library_ = std::get<std::shared_ptr<CompiledLibrary>>(compiled.at(0));
  void* entry = library_->symbol(code().name.c_str());
  require(entry, "kernel ", code().name, " is missing from its library");
  rules_.attach(reinterpret_cast<CpuRules::Entry>(entry),
                static_cast<const int64_t*>(library_->symbol("fw_state_sizes")));
}

void CpuLauncher::run(Host& host, const std::vector<const Tensor*>& operands, const int64_t* symbols,
                      const std::vector<double>& scalars, TuningProgress*, bool) const {
  rules_.run(operands, geometry_.sizes(symbols), geometry_.numbers(symbols, scalars),
             [&](int64_t n, int64_t grain, const auto& body) { host.parallel_for(n, grain, body); });
}

EmittedKernel CpuLauncher::emitted(const Graph& graph) const {
  EmittedKernel kernel;
  kernel.runner = "CpuKernel";
  kernel.headers = {{"geometry", embedded_geometry},
                    {"kernel_abi", embedded_kernel_abi},
                    {"cpu_rules", embedded_cpu_rules},
                    {"cpu_kernel", embedded_cpu_kernel}};
  kernel.table = loops_as_cpp(loops_of(graph, code()));
  std::vector<std::string> entries = {code().name};
  if (code().text.find("fw_state_sizes") != std::string::npos) entries.push_back("fw_state_sizes");
  kernel.variants = {{"", "", {}, kernel.place_of(code().text), "", std::move(entries)}};
  return kernel;
}

}  // namespace fusewright
