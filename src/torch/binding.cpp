// fusewright._core: the core for Python. Thin: graphs go in, regions come out.
#include <pybind11/functional.h>
#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include "base/log.h"
#include "interface.h"
#include "ir/builder.h"
#include "passes/arithmetic.h"
#include "runtime/cache/disk_cache.h"
#include "runtime/compiler/background.h"
#include "runtime/compiler/native_compiler.h"
#include "runtime/contraction/contest.h"
#include "runtime/contraction/convolution_kernels.h"
#include "runtime/contraction/product_kernels.h"
#include "runtime/cuda/cuda.h"
#include "runtime/cuda/cuda_launch.h"
#include "runtime/cuda/tuner.h"
#include "torch/emission.h"
#include "torch/host.h"
#include "torch/region.h"

namespace py = pybind11;

extern "C" char FUSEWRIGHT_INTERFACE;

namespace fusewright {
namespace {

// A size from Python: a number, or an expression over symbols.
Size size_from(const py::handle& value) {
  if (py::isinstance<py::str>(value)) return Size::parse(value.cast<std::string>());
  return value.cast<int64_t>();
}

Shape shape_from(const py::handle& list) {
  Shape shape;
  for (const py::handle& value : list) shape.push_back(size_from(value));
  return shape;
}

Attr attr_from(const std::string& name, const py::handle& value) {
  if (name == "sizes") return shape_from(value);
  if (name == "dtype") return parse_dtype(value.cast<std::string>());
  if (py::isinstance<py::bool_>(value)) return int64_t{value.cast<bool>()};
  if (py::isinstance<py::int_>(value)) return value.cast<int64_t>();
  if (py::isinstance<py::float_>(value)) return value.cast<double>();
  if (py::isinstance<py::str>(value)) return value.cast<std::string>();
  return value.cast<Ints>();
}

// The Builder with what a capture adds: hints for sizes, origins for operations.
class PyBuilder {
 public:
  PyBuilder() : builder_(graph_) {}

  // A static size is a symbol of its own whose hint is the number: kernels serve other sizes too, and sizes that must
  // agree are made one symbol when an operation says so.
  Value input(const std::string& name, const std::string& dtype, const py::list& dims, const Ints& hints,
              const Order& order) {
    Shape shape;
    for (size_t d = 0; d < hints.size(); ++d) {
      if (py::isinstance<py::str>(dims[d])) {
        Size size = Size::parse(dims[d].cast<std::string>());
        if (auto symbol = size.scaled_symbol())
          if (symbol->first == 1) graph_.hints.try_emplace(symbol->second, hints[d]);
        size.collect_symbols(graph_.dynamic);
        shape.push_back(size);
      } else {
        shape.push_back(Size::symbol(graph_.fresh_symbol("d", hints[d])));
      }
    }
    return builder_.input(name, parse_dtype(dtype), shape, order);
  }
  Value scalar_input(const std::string& name, const std::string& dtype) {
    return builder_.scalar_input(name, parse_dtype(dtype));
  }
  Value constant(double value, const std::string& dtype, bool runtime) {
    return builder_.constant(value, parse_dtype(dtype), runtime);
  }
  void set_hint(const std::string& symbol, int64_t value) { graph_.hints[symbol] = value; }
  int origin(const std::string& op, const std::string& source) { return graph_.add_origin({op, source}); }
  Value op(const std::string& name, const std::vector<Value>& operands, const py::dict& attrs, int origin) {
    auto found = find_op(name);
    require(found.has_value(), "no operation '", name, "'");
    Attrs converted;
    for (auto [key, value] : attrs) {
      std::string attr_name = key.cast<std::string>();
      converted[attr_name] = attr_from(attr_name, value);
    }
    builder_.set_origin(origin);
    return builder_.op(*found, operands, std::move(converted));
  }
  std::string dtype(Value v) const { return name_of(graph_.dtype(v)); }
  Ints shape(Value v) const {
    Ints sizes;
    for (const Size& size : graph_.shape(v)) sizes.push_back(graph_.hint(size));
    return sizes;
  }
  void changes(Value input) { builder_.changes(input); }
  void output(Value v, const Order& order, bool differentiable, Value into, int origin) {
    builder_.output(v, order, differentiable, {}, into);
    graph_.outputs.back().origin = origin;
  }
  Graph finish() {
    verify(graph_);
    return graph_;
  }

 private:
  Graph graph_;
  Builder builder_;
};

// Tensors of a plan as (number, bytes): the same number, the same tensor.
py::tuple tensor_row(const Graph& graph, Value v) {
  v = graph.base(v);
  return py::make_tuple(v, graph.bytes(v));
}

// Groups are steps of the plan: the positions of kernels, or of library calls, among them.
std::vector<size_t> steps_of(const Plan& plan, bool library) {
  std::vector<size_t> result;
  for (size_t i = 0; i < plan.steps().size(); ++i)
    if ((plan.steps()[i].launcher->library_call() >= 0) == library) result.push_back(i);
  return result;
}

py::list report_kernels(const Plan& plan, const Fusion& fusion, const char* phase) {
  py::list result;
  const std::vector<size_t> steps = steps_of(plan, false);
  for (const Plan::KernelReport& kernel : plan.kernels()) {
    const size_t step = steps[result.size()];
    py::list reads, writes;
    for (const auto& operand : kernel.code->operands)
      (operand.store ? writes : reads).append(tensor_row(plan.graph(), operand.value));
    py::dict row;
    row["name"] = kernel.code->name;
    row["phase"] = phase;
    row["operators"] = kernel.code->operators;
    row["schedule"] = kernel.code->schedule;
    row["bytes_read"] = kernel.bytes_read;
    row["bytes_written"] = kernel.bytes_written;
    row["sources"] = sources_of(plan.graph(), *kernel.code);
    row["text"] = kernel.code->text;
    row["step"] = step;
    row["origins"] = kernel.code->origins;
    row["reads"] = reads;
    row["writes"] = writes;
    row["operations"] = operations(plan.graph(), fusion.groups[step]);
    result.append(row);
  }
  return result;
}

py::list report_library(const Plan& plan, const Fusion& fusion, const char* phase) {
  py::list result;
  const std::vector<size_t> steps = steps_of(plan, true);
  for (Value v : plan.library_calls()) {
    const size_t step = steps[result.size()];
    const Graph& graph = plan.graph();
    const Node& node = graph[v];
    py::list shapes, reads, writes;
    writes.append(tensor_row(graph, v));
    for (Value operand : node.operands) {
      reads.append(tensor_row(graph, operand));
      Ints sizes;
      for (const Size& size : graph.shape(operand)) sizes.push_back(graph.hint(size));
      shapes.append(sizes);
    }
    py::dict row;
    row["operator"] = name_of(node.op);
    row["schedule"] = plan.steps()[step].launcher->code().schedule;
    row["phase"] = phase;
    row["shapes"] = shapes;
    row["dtype"] = name_of(node.type.dtype);
    row["step"] = step;
    row["reads"] = reads;
    row["writes"] = writes;
    row["operations"] = operations(graph, fusion.groups[step]);
    row["origins"] = node.origin >= 0 ? Ints{node.origin} : Ints{};
    if (node.origin >= 0) {
      row["origin"] = graph.origins[static_cast<size_t>(node.origin)].op;
      row["source"] = graph.origins[static_cast<size_t>(node.origin)].source;
    }
    result.append(row);
  }
  return result;
}

// Which tensors of the plans come from outside and leave, and which of the backward's are the forward's.
py::dict report_tensors(const Program& program) {
  py::list inputs, outputs, saved, gradients;
  for (Value v : program.forward.inputs)
    if (program.forward[v].op == Op::input) inputs.append(v);
  for (size_t i = 0; i < program.user_outputs; ++i)
    outputs.append(program.forward.base(program.forward.outputs[i].value));
  for (size_t i = 0; i < program.saved.size(); ++i) {
    const Program::Saved& from = program.saved[i];
    const auto index = static_cast<size_t>(from.index);
    const Value value = from.is_input ? program.forward.inputs[index] : program.forward.outputs[index].value;
    Value kept = program.forward.base(value);
    while (is_layout_copy(program.forward, kept)) kept = program.forward.base(program.forward[kept].operands[0]);
    saved.append(py::make_tuple(program.backward.inputs[i], kept));
  }
  for (const Output& output : program.backward.outputs) gradients.append(program.backward.base(output.value));
  py::dict result;
  result["inputs"] = inputs;        // of the forward, without scalars
  result["outputs"] = outputs;      // of the forward, for the user
  result["saved"] = saved;          // (in the backward, in the forward)
  result["gradients"] = gradients;  // results of the backward
  return result;
}

py::list report_stops(const Graph& graph, const Fusion& fusion) {
  py::list result;
  for (const Stop& stop : fusion.stops) {
    const Node& node = graph[stop.value];
    Ints sizes;
    for (const Size& size : graph.shape(stop.value)) sizes.push_back(graph.hint(size));
    py::dict row;
    row["reason"] = stop.reason;
    row["operator"] = name_of(node.op);
    row["shape"] = sizes;
    row["source"] = node.origin >= 0 ? graph.origins[static_cast<size_t>(node.origin)].source : "";
    row["detail"] = stop.detail;
    result.append(row);
  }
  return result;
}

// One flag for each tensor input, or one for all that can have a gradient, as Region::executable takes it.
using Wanted = std::variant<bool, std::vector<bool>>;
std::vector<bool> pattern_of(const Region& region, const Wanted& wanted) {
  std::vector<bool> wrt;
  const auto* each = std::get_if<std::vector<bool>>(&wanted);
  size_t next = 0;
  for (Value v : region.graph().inputs) {
    bool tensor = region.graph()[v].op == Op::input && is_float(region.graph().dtype(v));
    bool flag = each ? next < each->size() && (*each)[next] : std::get<bool>(wanted);
    wrt.push_back(tensor && flag);
    next += region.graph()[v].op == Op::input;
  }
  return std::find(wrt.begin(), wrt.end(), true) == wrt.end() ? std::vector<bool>{} : wrt;
}

// What is compiled for a pattern of gradients.
py::dict report(Region& region, const Wanted& wanted) {
  const std::vector<bool> wrt = pattern_of(region, wanted);
  std::shared_ptr<const Executable> executable;
  bool slower = false;
  {
    py::gil_scoped_release release;
    executable = region.executable(wrt, region.gpu());
    slower = region.known_slower(wrt);
  }
  const Program& program = executable->program();
  py::dict result;
  py::list kernels = report_kernels(executable->forward(), program.forward_fusion, "forward");
  py::list library = report_library(executable->forward(), program.forward_fusion, "forward");
  py::list stops = report_stops(program.forward, program.forward_fusion);
  if (executable->training()) {
    kernels = kernels + report_kernels(executable->backward(), program.backward_fusion, "backward");
    library = library + report_library(executable->backward(), program.backward_fusion, "backward");
    stops = stops + report_stops(program.backward, program.backward_fusion);
  }
  result["kernels"] = kernels;
  result["library"] = library;
  result["rewrites"] = program.rewrites;
  result["stops"] = stops;
  result["slower_than_eager"] = slower;
  result["tensors"] = report_tensors(program);
  result["forward"] = print(program.forward);
  result["backward"] = executable->training() ? print(program.backward) : "";
  return result;
}

// The disk as it is now, under the root of the environment as it is now: not the cache that this process works with.
py::dict cache_info() {
  const CacheInfo info = DiskCache(DiskCache::default_root()).info();
  py::dict result;
  result["root"] = info.root;
  result["exists"] = info.exists;
  result["usable"] = info.usable;
  result["reason"] = info.reason;
  if (info.exists) {
    result["mode"] = info.mode;
    result["owner"] = info.owner;
  }
  result["writable"] = info.writable;
  result["entries"] = info.entries;
  result["bytes"] = info.bytes;
  result["free_bytes"] = info.free_bytes;
  return result;
}

// How many entries there are, and (file, problem) of the bad ones.
py::tuple cache_verify() {
  CacheCheck check;
  {
    py::gil_scoped_release release;
    check = DiskCache(DiskCache::default_root()).verify();
  }
  py::list bad;
  for (const BadEntry& entry : check.bad) bad.append(py::make_tuple(entry.file, entry.problem));
  return py::make_tuple(check.entries, bad);
}

size_t cache_clear() { return DiskCache(DiskCache::default_root()).clear(); }

// How many operations the plans of a pattern are, and would be without these rewrite rules.
std::pair<int64_t, int64_t> operations_saved(Region& region, const Wanted& wanted, const std::set<std::string>& rules) {
  auto executable = region.executable(pattern_of(region, wanted), region.gpu());
  const Program& program = executable->program();
  return {operations(program), operations(without_rules(region.graph(), program, rules))};
}

// The arguments of a call, with nothing converted that need not be: this is done for every region of every call.
class CallArguments {
 public:
  CallArguments(const py::handle& tensors, const py::handle& scalars)
      : tensors_(py::reinterpret_steal<py::object>(PySequence_Tuple(tensors.ptr()))) {
    if (!tensors_) throw py::error_already_set();
    for (const py::handle& scalar : scalars) scalars_.push_back(scalar.cast<double>());
    const Py_ssize_t count = PyTuple_GET_SIZE(tensors_.ptr());
    for (Py_ssize_t i = 0; i < count; ++i)
      if (!THPVariable_Check(PyTuple_GET_ITEM(tensors_.ptr(), i)))
        throw py::type_error("fusewright: a region is called with tensors");
    // From here on nothing may throw: a borrowed tensor must be given back.
    borrowed_.reserve(static_cast<size_t>(count));
    for (Py_ssize_t i = 0; i < count; ++i)
      borrowed_.push_back(Borrow::createBorrow(THPVariable_Unpack(PyTuple_GET_ITEM(tensors_.ptr(), i))));
  }
  ~CallArguments() {
    for (at::Tensor& tensor : borrowed_) Borrow::destroyBorrow(tensor);
  }
  CallArguments(const CallArguments&) = delete;

  at::TensorList tensors() const { return borrowed_; }
  at::ArrayRef<double> scalars() const { return scalars_; }

 private:
  using Borrow = c10::MaybeOwnedTraits<at::Tensor>;
  py::object tensors_;  // holds them, whatever becomes of the caller's list
  c10::SmallVector<at::Tensor, 8> borrowed_;
  c10::SmallVector<double, 4> scalars_;
};

// Asks Python. What it raises passes through autograd, and to other threads, as PyTorch's own exception for it.
template <class Question>
auto asked(const Question& question) {
  py::gil_scoped_acquire gil;
  try {
    return question();
  } catch (py::error_already_set& error) {
    error.restore();
    python_error persistent;
    persistent.persist();
    throw persistent;
  }
}

// The region in PyTorch's operators, which Python runs (plain.py). Threads of autograd ask it too: they take the lock.
class PyPlain : public Plain {
 public:
  explicit PyPlain(py::object plain) : plain_(std::move(plain)) {}
  ~PyPlain() override {
    if (!Py_IsInitialized()) {
      plain_.release();
      return;
    }
    py::gil_scoped_acquire gil;
    plain_ = py::object();
  }

  std::vector<bool> reads() const override {
    return asked([&] { return plain_.attr("reads").cast<std::vector<bool>>(); });
  }
  int64_t bytes_kept(at::TensorList inputs, at::ArrayRef<double> scalars,
                     const std::vector<bool>& held) const override {
    return asked([&] { return plain_.attr("bytes_kept")(list(inputs), scalars.vec(), held).cast<int64_t>(); });
  }
  std::vector<at::Tensor> run(at::TensorList inputs, at::ArrayRef<double> scalars) const override {
    return asked([&] {
      std::vector<at::Tensor> results;
      for (const py::handle& result : plain_.attr("differentiable")(list(inputs), scalars.vec()))
        results.push_back(result.is_none() ? at::Tensor() : result.cast<at::Tensor>());
      return results;
    });
  }

 private:
  static py::list list(at::TensorList tensors) {
    py::list result;
    for (const at::Tensor& t : tensors) result.append(py::reinterpret_steal<py::object>(THPVariable_Wrap(t)));
    return result;
  }

  py::object plain_;
};

py::object to_python(Region::Verdict verdict) { return py::cast(verdict); }
py::object to_python(std::vector<at::Tensor>& results) {
  py::list list(results.size());
  for (size_t i = 0; i < results.size(); ++i)
    PyList_SET_ITEM(list.ptr(), static_cast<Py_ssize_t>(i), THPVariable_Wrap(std::move(results[i])));
  return list;
}

py::object call_region(int64_t handle, const py::handle& tensors, const py::handle& scalars) {
  const CallArguments arguments(tensors, scalars);
  Answer answer;
  {
    py::gil_scoped_release release;
    answer = run_region(handle, arguments.tensors(), arguments.scalars());
  }
  return std::visit([](auto& found) { return to_python(found); }, answer);
}

py::object call_contested(int64_t handle, const py::handle& tensors, const py::handle& scalars) {
  const CallArguments arguments(tensors, scalars);
  Answer answer;
  {
    py::gil_scoped_release release;
    answer = run_contested(handle, arguments.tensors(), arguments.scalars());
  }
  return std::visit([](auto& found) { return to_python(found); }, answer);
}

py::object python_sink;

void log_to_python(LogLevel level, const std::string& message) {
  if (!Py_IsInitialized()) return;
  py::gil_scoped_acquire gil;
  if (!python_sink || python_sink.is_none()) return;
  try {
    python_sink(10 * (static_cast<int>(level) + 1), message);  // the levels of Python's logging
  } catch (py::error_already_set& error) {
    error.discard_as_unraisable("fusewright log sink");
  }
}

}  // namespace
}  // namespace fusewright

PYBIND11_MODULE(_core, m) {
  using namespace fusewright;
  [[maybe_unused]] static char* const volatile interface = &FUSEWRIGHT_INTERFACE;  // the linker looks for it
  auto& error = py::register_exception<Error>(m, "Error", PyExc_RuntimeError);
  py::register_exception<SizeError>(m, "SizeError", error);
  py::register_exception<CompileError>(m, "Unavailable", PyExc_RuntimeError);
  py::register_exception<Interrupted>(m, "Interrupted", PyExc_RuntimeError);
  // What PyTorch raises below us keeps its Python type: out of memory, for one.
  py::register_local_exception_translator([](std::exception_ptr error) {
    try {
      if (error) std::rethrow_exception(error);
    } catch (const c10::Error&) {
      torch::translate_exception_to_python(error);
    }
  });

  py::class_<Graph>(m, "Graph").def("__str__", [](const Graph& graph) { return print(graph); });
  m.def("parse", [](const std::string& text) { return parse(text); });

  py::class_<PyBuilder>(m, "Builder")
      .def(py::init<>())
      .def("input", &PyBuilder::input)
      .def("scalar_input", &PyBuilder::scalar_input)
      .def("constant", &PyBuilder::constant)
      .def("set_hint", &PyBuilder::set_hint)
      .def("origin", &PyBuilder::origin)
      .def("op", &PyBuilder::op)
      .def("dtype", &PyBuilder::dtype)
      .def("shape", &PyBuilder::shape)
      .def("changes", &PyBuilder::changes)
      .def("output", &PyBuilder::output, py::arg("value"), py::arg("order"), py::arg("differentiable"),
           py::arg("into") = -1, py::arg("origin") = -1)
      .def("finish", &PyBuilder::finish);

  py::class_<Region, std::shared_ptr<Region>>(m, "Region")
      .def(py::init([](const Graph& graph, const std::string& name, int gpu, std::optional<bool> tune,
                       const py::object& plain, bool second_derivatives, const std::vector<bool>& owned) {
             Region::Settings settings{gpu, tune, nullptr, second_derivatives, owned};
             if (!plain.is_none()) settings.plain = std::make_shared<PyPlain>(plain);
             return Region::create(graph, name, std::move(settings));
           }),
           py::arg("graph"), py::arg("name"), py::arg("gpu") = -1, py::arg("tune") = py::none(),
           py::arg("plain") = py::none(), py::arg("second_derivatives") = false, py::arg("owned") = std::vector<bool>{})
      .def_property_readonly("handle", &Region::handle)
      .def_property_readonly("name", &Region::name)
      .def_property_readonly("contested", &Region::contested)
      // contest(inputs, fused, eager): whether eager is the faster
      .def("contest",
           [](Region& region, const std::vector<at::Tensor>& inputs, const py::function& fused,
              const py::function& eager) {
             auto run = [&](size_t which) {
               py::gil_scoped_acquire gil;
               try {
                 (which == 0 ? fused : eager)();
               } catch (py::error_already_set& error) {
                 throw Error(error.what());  // which must not outlive the lock
               }
             };
             py::gil_scoped_release release;
             return region.contest(inputs, run) == Region::Verdict::eager;
           })
      .def("prepare", [](const Region& region, const Wanted& wanted) { region.prepare(pattern_of(region, wanted)); })
      .def("operations_saved", &operations_saved, py::call_guard<py::gil_scoped_release>())
      .def("report", &report);

  m.def("run_region", &call_region);
  py::enum_<Region::Verdict>(m, "Verdict")
      .value("eager", Region::Verdict::eager)
      .value("unknown", Region::Verdict::unknown)
      .value("transformed", Region::Verdict::transformed);
  m.def("run_contested", &call_contested);
  m.def("operations", [] {
    py::list rows;
    for (const OpInfo& row : all_ops()) rows.append(py::make_tuple(row.name, kind_name(row.kind), row.meaning));
    return rows;
  });
  // Waits for what is compiled in the background.
  m.def("finish_compiling", [] { Background::instance().wait(); }, py::call_guard<py::gil_scoped_release>());
  m.def("stats", [] {
    const CompileStats cpu = NativeCompiler::instance().stats(), gpu = cuda::stats();
    py::dict result;
    result["kernels_compiled"] = cpu.kernels_compiled + gpu.kernels_compiled;
    result["cache_hits"] = cpu.cache_hits + gpu.cache_hits;
    result["memory_hits"] = cpu.memory_hits + gpu.memory_hits;
    result["region_calls"] = region_calls();
    result["kernels_tuned"] = Tuner::instance().kernels_timed();
    result["matrix_products"] = ProductKernels::instance().products();
    result["convolutions"] = ConvolutionKernels::instance().convolutions();
    return result;
  });
  m.def("set_key_salt", [](const std::string& salt) {
    NativeCompiler::instance().set_key_salt(salt);
    cuda::set_key_salt(salt);
  });
  m.def("set_log_sink", [](py::object sink) {
    python_sink = std::move(sink);
    set_log_sink(log_to_python);
  });

  // GPUs. The libraries are looked for when the first of these asks, so directories must come before.
  m.def("add_library_directories", &cuda::add_library_directories);
  // On this GPU, and with what the user allows now, kernels of our own may compute products of float32.
  m.def(
      "multiplies_float32",
      [](int device) {
        return wanted_variant(product_variable) != WantedVariant::library && !allows_tf32_products() &&
               cuda::available() && ProductKernels::serves(cuda::device(device).architecture);
      },
      py::call_guard<py::gil_scoped_release>());
  m.def("cuda_available", &cuda::available, py::call_guard<py::gil_scoped_release>());
  m.def("let_l2_forget", &cuda::let_l2_forget, py::call_guard<py::gil_scoped_release>());
  m.def("cuda_unavailable_because", &cuda::unavailable_because, py::call_guard<py::gil_scoped_release>());
  m.def("emulate_cuda", &emulate_cuda);
  // Tests: the candidate of this number, or the last, runs of every kernel; -1: the usual choice.
  m.def("force_candidate", [](int number) {
    static std::atomic<size_t> wanted;
    wanted = static_cast<size_t>(std::max(number, 0));
    set_candidate_hook(
        number < 0 ? nullptr : +[](const std::string&, size_t count) { return std::min(wanted.load(), count - 1); });
  });

  m.def("cache_info", &cache_info);
  m.def("cache_verify", &cache_verify);
  m.def("cache_clear", &cache_clear, py::call_guard<py::gil_scoped_release>());

  bind_emission(m);
  m.def("version", [] { return FUSEWRIGHT_VERSION; });
  // The sink must not outlive the interpreter.
  m.add_object("_drop_sink", py::capsule([] { python_sink = py::object(); }));
}
