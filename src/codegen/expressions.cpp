#include "codegen/expressions.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace fusewright {

const char* storage_type(DType dtype) {
  switch (dtype) {
    case DType::f16:
      return "fw::half";
    case DType::bf16:
      return "fw::bfloat16";
    case DType::f32:
      return "float";
    case DType::f64:
      return "double";
    case DType::i8:
      return "fw::i8";
    case DType::u8:
      return "fw::u8";
    case DType::i16:
      return "fw::i16";
    case DType::i32:
      return "fw::i32";
    case DType::i64:
      return "fw::i64";
    default:
      return "bool";
  }
}

const char* register_type(DType dtype) { return storage_type(compute_type(dtype)); }

std::string literal(double value, DType dtype) {
  DType type = compute_type(dtype);
  if (type == DType::b8) return value != 0 ? "true" : "false";
  if (type == DType::i64 && std::isinf(value))
    return value < 0 ? "(-9223372036854775807LL - 1)" : "9223372036854775807LL";
  if (type == DType::i64) return "fw::i64(" + std::to_string(static_cast<int64_t>(value)) + ")";
  bool single = type == DType::f32;
  std::string special = single ? "<float>()" : "<double>()";
  if (std::isnan(value)) return "fw::nan" + special;
  if (std::isinf(value)) return (value < 0 ? "-fw::infinity" : "fw::infinity") + special;
  char buffer[40];
  std::snprintf(buffer, sizeof buffer, single ? "%.9g" : "%.17g", value);
  std::string text = buffer;
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return single ? text + "f" : text;
}

std::string as_stored(DType dtype, const std::string& value) {
  return "fw::as_stored<" + std::string(storage_type(dtype)) + ", " + register_type(dtype) + ">(" + value + ")";
}

std::string expression(const Graph& graph, const Step& step, const std::vector<std::string>& arguments) {
  const Node& node = graph[step.value];
  if (node.kind() != Kind::pointwise || node.op == Op::stop_gradient) return arguments[0];
  if (node.op == Op::cast) {
    // Rounded to the new type, then on in the type that kernels compute with.
    return as_stored(node.type.dtype, arguments[0]);
  }
  std::string text = "fw::" + std::string(name_of(node.op)) + "(";
  for (size_t i = 0; i < arguments.size(); ++i) text += (i ? ", " : "") + arguments[i];
  text += ")";
  // Registers are wider than small integers, which wrap around at every operation.
  bool overflows = node.op == Op::add || node.op == Op::sub || node.op == Op::mul || node.op == Op::neg ||
                   node.op == Op::abs || node.op == Op::square;
  bool small = !is_float(node.type.dtype) && compute_type(node.type.dtype) != node.type.dtype;
  if (!small || !overflows) return text;
  return "fw::convert<fw::i64>(fw::convert<" + std::string(storage_type(node.type.dtype)) + ">(" + text + "))";
}

namespace {

bool computes(const Step& step) {
  return step.role != Step::Role::load && step.role != Step::Role::scalar && !step.once;
}

// What depends on the gradient of a result, or is one of an input. A layout copy of such a value is the value itself.
std::vector<bool> find_gradients(const Graph& graph) {
  std::vector<bool> result(graph.nodes.size());
  for (Value v : graph.inputs) result[static_cast<size_t>(v)] = graph[v].text("name").rfind("dL_dy", 0) == 0;
  for (size_t i = 0; i < graph.nodes.size(); ++i)
    for (Value v : graph.nodes[i].operands)
      if (result[static_cast<size_t>(v)]) result[i] = true;
  for (const Output& output : graph.outputs)
    if (output.is_gradient() && graph[output.value].op != Op::input) result[static_cast<size_t>(output.value)] = true;
  return result;
}

bool only_copies(const Graph& graph, Value v) {
  const Node& node = graph[v];
  return node.kind() == Kind::movement || (node.op == Op::cast && graph.dtype(node.operands[0]) == node.type.dtype);
}

bool has_product(const Graph& graph, int origin) {
  return std::any_of(graph.nodes.begin(), graph.nodes.end(),
                     [&](const Node& node) { return node.origin == origin && node.kind() == Kind::contraction; });
}

// Whether a sum adds up a product of its own operator: the gradient of a matrix that the product repeats.
bool sums_own_product(const Graph& graph, Value sum) {
  Value v = graph[sum].operands[0];
  while (kind_of(graph[v].op) == Kind::movement || graph[v].op == Op::cast) v = graph[v].operands[0];
  return graph[v].kind() == Kind::contraction && graph[v].origin == graph[sum].origin;
}

// Names the part that a kernel computes of an operator whose product is computed elsewhere: its bias, or the bias's
// gradient; casts of its operands. Sums of a matrix's gradients have no name of their own.
const char* rest_of_product(const Graph& graph, const std::vector<const Step*>& steps, bool backward) {
  const Op bias = backward ? Op::sum : Op::add;
  bool has_bias = false, has_casts = false;
  for (const Step* step : steps) {
    const Op op = graph[step->value].op;
    if (kind_of(op) == Kind::movement) continue;
    if (op != bias && op != Op::cast) return "";
    if (op == Op::sum && sums_own_product(graph, step->value)) return "";
    has_bias = has_bias || op == bias;
    has_casts = has_casts || op == Op::cast;
  }
  return has_bias ? "_bias" : has_casts ? "_cast" : "";
}

}  // namespace

std::vector<int> kernel_origins(const Graph& graph, const Kernel& kernel) {
  std::vector<int> origins;
  for (const Step& step : kernel.steps) {
    if (!computes(step)) continue;
    int origin = graph[step.value].origin;
    if (origin >= 0 && std::find(origins.begin(), origins.end(), origin) == origins.end()) origins.push_back(origin);
  }
  std::sort(origins.begin(), origins.end());
  return origins;
}

bool differentiates(const Graph& graph, const Kernel& kernel) {
  const std::vector<bool> is_gradient = find_gradients(graph);
  return std::any_of(kernel.steps.begin(), kernel.steps.end(), [&](const Step& step) {
    return computes(step) && is_gradient[static_cast<size_t>(step.value)] && !only_copies(graph, step.value);
  });
}

std::vector<std::string> kernel_operators(const Graph& graph, const Kernel& kernel) {
  const bool backward = differentiates(graph, kernel);
  const std::vector<bool> is_gradient = find_gradients(graph);
  std::vector<std::string> result;
  for (int origin : kernel_origins(graph, kernel)) {
    std::vector<const Step*> steps;
    for (const Step& step : kernel.steps)
      if (computes(step) && graph[step.value].origin == origin)
        if (!backward || is_gradient[static_cast<size_t>(step.value)]) steps.push_back(&step);
    if (steps.empty()) continue;  // it is computed again, for a derivative
    const bool is_whole = !has_product(graph, origin) || std::any_of(steps.begin(), steps.end(), [&](const Step* step) {
      return graph[step->value].kind() == Kind::contraction;
    });
    const std::string& user = graph.origins[static_cast<size_t>(origin)].op;
    result.push_back(is_whole ? user : user + rest_of_product(graph, steps, backward));
  }
  return result;
}

std::string kernel_name(const Graph& graph, const Kernel& kernel, const std::string& schedule) {
  std::string name = "fw_" + schedule + (differentiates(graph, kernel) ? "_backward" : "");
  for (const std::string& user : kernel_operators(graph, kernel)) {
    std::string part;
    for (char c : user)
      if ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_') part += c;
    if (name.size() + part.size() > 90) return name + "_etc";
    if (!part.empty()) name += "_" + part;
  }
  return name;
}

}  // namespace fusewright
