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

std::vector<int> kernel_origins(const Graph& graph, const Kernel& kernel) {
  std::vector<int> origins;
  for (const Step& step : kernel.steps) {
    if (step.role == Step::Role::load || step.role == Step::Role::scalar || step.once) continue;
    int origin = graph[step.value].origin;
    if (origin >= 0 && std::find(origins.begin(), origins.end(), origin) == origins.end()) origins.push_back(origin);
  }
  std::sort(origins.begin(), origins.end());
  return origins;
}

std::string kernel_name(const Graph& graph, const Kernel& kernel, const std::string& schedule) {
  std::string name = "fw_" + schedule;
  for (int origin : kernel_origins(graph, kernel)) {
    std::string part;
    for (char c : graph.origins[static_cast<size_t>(origin)].op)
      if ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_') part += c;
    if (name.size() + part.size() > 90) return name + "_etc";
    if (!part.empty()) name += "_" + part;
  }
  return name;
}

}  // namespace fusewright
