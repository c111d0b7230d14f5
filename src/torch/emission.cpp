// Regions as emit wants them, for Python: plain dictionaries and lists, sizes as expressions.
#include "torch/emission.h"

#include <pybind11/stl.h>

#include "embedded_kernels.h"
#include "emit/describe.h"

namespace py = pybind11;

namespace fusewright {
namespace {

py::list texts(const Shape& shape) {
  py::list result;
  for (const Size& size : shape) result.append(size.str());
  return result;
}

py::dict row_of(const DescribedKernel& kernel) {
  py::dict row;
  row["name"] = kernel.name;
  row["schedule"] = kernel.schedule;
  row["operators"] = kernel.operators;
  row["sources"] = kernel.sources;
  row["formulas"] = kernel.formulas;
  row["bytes_read"] = kernel.bytes_read;
  row["bytes_written"] = kernel.bytes_written;
  row["texts"] = kernel.texts;
  row["table"] = kernel.table;
  row["runner"] = kernel.runner;
  py::list headers, variants, operands, numbers;
  for (const EmittedKernel::Header& h : kernel.headers) headers.append(py::make_tuple(h.name, h.text));
  for (const EmittedKernel::Variant& v : kernel.variants)
    variants.append(py::dict(py::arg("fields") = v.fields, py::arg("defines") = v.defines,
                             py::arg("preludes") = v.preludes, py::arg("text") = v.text, py::arg("label") = v.label,
                             py::arg("entries") = v.entries));
  for (const DescribedKernel::Operand& o : kernel.operands) operands.append(py::make_tuple(o.value, o.store));
  for (const KernelNumber& n : kernel.numbers) {
    using Source = KernelNumber::Source;
    if (n.source == Source::constant)
      numbers.append(py::make_tuple("constant", n.value));
    else if (n.source == Source::size)
      numbers.append(py::make_tuple("size", n.size.str()));
    else
      numbers.append(py::make_tuple("scalar", n.scalar));
  }
  row["headers"] = headers;
  row["variants"] = variants;
  row["operands"] = operands;
  row["numbers"] = numbers;
  row["sizes"] = kernel.sizes;
  return row;
}

// Every value of the graph: what it is, and where it lies in memory when it is made.
py::list values_of(const Plan& plan) {
  const Graph& graph = plan.graph();
  py::list result;
  for (size_t v = 0; v < graph.nodes.size(); ++v) {
    const Node& node = graph.nodes[v];
    py::dict row;
    row["op"] = name_of(node.op);
    row["kind"] = kind_name(node.kind());
    row["operands"] = node.operands;
    row["dtype"] = name_of(node.type.dtype);
    row["shape"] = texts(node.type.shape);
    row["order"] = plan.order(static_cast<Value>(v));
    py::dict attributes;
    for (const auto& [name, attribute] : node.attrs) {
      if (const auto* number = std::get_if<int64_t>(&attribute)) attributes[name.c_str()] = *number;
      if (const auto* number = std::get_if<double>(&attribute)) attributes[name.c_str()] = *number;
      if (const auto* text = std::get_if<std::string>(&attribute)) attributes[name.c_str()] = *text;
      if (const auto* list = std::get_if<Ints>(&attribute)) attributes[name.c_str()] = *list;
      if (const auto* shape = std::get_if<Shape>(&attribute)) attributes[name.c_str()] = texts(*shape);
    }
    row["attributes"] = attributes;
    result.append(row);
  }
  return result;
}

py::dict plan_of(const Plan& plan, const Fusion& fusion) {
  const Graph& graph = plan.graph();
  const DescribedPlan described = describe(plan, fusion);
  py::dict result;
  py::list symbols, steps, kernels, outputs;
  for (const DescribedPlan::Symbol& s : described.symbols)
    symbols.append(py::make_tuple(s.name, s.input, s.dim, s.coefficient, s.offset));
  for (const DescribedPlan::Step& s : described.steps) steps.append(py::make_tuple(s.call, s.kernel, s.release));
  for (const DescribedKernel& kernel : described.kernels) kernels.append(row_of(kernel));
  const std::vector<bool> borrowed = graph.borrowed_outputs();
  for (size_t i = 0; i < graph.outputs.size(); ++i) {
    const Output& o = graph.outputs[i];
    outputs.append(py::dict(py::arg("value") = o.value, py::arg("order") = o.order,
                            py::arg("differentiable") = o.differentiable, py::arg("name") = o.name,
                            py::arg("into") = o.into, py::arg("borrowed") = static_cast<bool>(borrowed[i])));
  }
  result["inputs"] = graph.inputs;
  result["values"] = values_of(plan);
  result["symbols"] = symbols;
  result["steps"] = steps;
  result["kernels"] = kernels;
  result["outputs"] = outputs;
  result["positive"] = described.positive;
  result["in_place"] = plan.in_place();
  return result;
}

py::dict describe_region(const Graph& graph, const std::vector<bool>& wanted, bool cuda, bool tf32) {
  Program program;
  program.forward = graph;
  program.wrt = wanted;
  program.wrt.resize(graph.inputs.size());
  program.options.cuda = cuda;
  program.options.tf32_convolution = cuda && tf32;
  run_pipeline(program);
  py::dict result;
  result["forward"] = plan_of(Plan(program.forward, program.forward_fusion, cuda), program.forward_fusion);
  result["backward"] = py::none();
  if (program.training())
    result["backward"] =
        plan_of(Plan(program.backward, program.backward_fusion, cuda, false, true), program.backward_fusion);
  py::list saved;
  for (const Program::Saved& s : program.saved) saved.append(py::make_tuple(s.is_input, s.index, s.sizes_only));
  result["saved"] = saved;
  result["user_outputs"] = program.user_outputs;
  result["gradient_of_output"] = program.gradient_of_output;
  result["gradient_for_input"] = program.gradient_for_input;
  result["leads_to"] = leads_to(graph, program);
  py::list rewrites;
  for (const std::string& rule : program.rewrites) rewrites.append(py::make_tuple(rule, meaning_of_rule(rule)));
  result["rewrites"] = rewrites;
  py::list positive;  // sizes without which the graph has no meaning
  for (const Size& size : Preconditions::sizes(graph)) positive.append(size.str());
  result["positive"] = positive;
  py::list counts;  // values in each channel of a batch's own statistics, of which eager wants more than one
  for (const Node& node : graph.nodes) {
    if (node.op != Op::batch_norm) continue;
    Shape counted = node.type.shape;
    counted.erase(counted.begin() + 1);
    counts.append(product(counted).str());
  }
  result["counts"] = counts;
  return result;
}

}  // namespace

void bind_emission(py::module_& m) {
  m.def("describe_region", &describe_region);
  // The headers that every emitted file carries, by name; kernels bring those of their schedule.
  m.def("emitted_headers", [] {
    py::dict result;
    for (const auto& [name, text] :
         std::initializer_list<std::pair<const char*, const char*>>{{"prelude", embedded_prelude},
                                                                    {"math", embedded_math},
                                                                    {"cuda_device", embedded_cuda_device},
                                                                    {"cuda_loops", embedded_cuda_loops},
                                                                    {"cuda_tile", embedded_cuda_tile},
                                                                    {"cpu_loops", embedded_cpu_loops},
                                                                    {"dtype", embedded_dtype},
                                                                    {"tensor", embedded_tensor},
                                                                    {"kernel_loops", embedded_kernel_loops},
                                                                    {"scalar_type", embedded_scalar_type},
                                                                    {"kernel_call", embedded_kernel_call},
                                                                    {"torch_calls", embedded_torch_calls}})
      result[name] = text;
    return result;
  });
}

}  // namespace fusewright
