#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "ir/ir.h"

namespace fusewright {
namespace {

std::string number(double value) {
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  if (std::isnan(value)) return "nan";
  char buffer[40];
  for (int digits : {6, 9, 17}) {  // the shortest of these that reads back exactly
    std::snprintf(buffer, sizeof buffer, "%.*g", digits, value);
    if (std::strtod(buffer, nullptr) == value) break;
  }
  std::string text = buffer;
  return text.find_first_of(".en") == std::string::npos ? text + ".0" : text;
}

std::string attribute(const Attr& attr) {
  struct Visitor {
    std::string operator()(int64_t v) const { return std::to_string(v); }
    std::string operator()(double v) const { return number(v); }
    std::string operator()(const std::string& v) const {
      std::string text = "\"";
      for (char c : v) {
        if (c == '"' || c == '\\') text += '\\';
        text += c == '\n' ? "\\n" : std::string(1, c);
      }
      return text + '"';
    }
    std::string operator()(DType v) const { return name_of(v); }
    std::string operator()(const Ints& v) const {
      std::string text = "(";
      for (size_t i = 0; i < v.size(); ++i) text += (i ? ", " : "") + std::to_string(v[i]);
      return text + ")";
    }
    std::string operator()(const Shape& v) const { return str(v); }
  };
  return std::visit(Visitor{}, attr);
}

std::string order_suffix(const Order& order) {
  if (order.empty()) return "";
  std::string text = "@";
  for (int dim : order) text += std::to_string(dim);
  return text;
}

std::string type_text(const Type& type) {
  return std::string(name_of(type.dtype)) + str(type.shape) + order_suffix(type.order);
}

}  // namespace

std::string print(const Graph& graph) {
  std::vector<std::string> names(graph.nodes.size());
  std::set<int> changing = graph.changing;  // but for those that a result says it of
  for (const Output& output : graph.outputs) changing.erase(output.into);
  std::string text = "graph(";
  for (size_t i = 0; i < graph.inputs.size(); ++i) {
    const Node& node = graph[graph.inputs[i]];
    std::string& name = names[static_cast<size_t>(graph.inputs[i])];
    name = "%" + node.text("name");
    text += (i ? ", " : "") + name + ": " + (changing.count(static_cast<int>(i)) ? "changing " : "") +
            (node.op == Op::scalar_input ? "scalar " : "") + type_text(node.type);
  }
  text += ") {\n";
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    if (!names[i].empty()) continue;
    names[i] = "%" + std::to_string(i);
    text += "  " + names[i] + ": " + type_text(node.type) + " = " + name_of(node.op) + "(";
    for (size_t k = 0; k < node.operands.size(); ++k)
      text += (k ? ", " : "") + names[static_cast<size_t>(node.operands[k])];
    text += ")";
    if (!node.attrs.empty()) {
      text += " {";
      for (bool first = true; const auto& [name, attr] : node.attrs) {
        text += (first ? "" : ", ") + name + " = " + attribute(attr);
        first = false;
      }
      text += "}";
    }
    text += "\n";
  }
  text += "  return ";
  for (size_t i = 0; i < graph.outputs.size(); ++i) {
    const Output& output = graph.outputs[i];
    text += i ? ", " : "";
    if (!output.name.empty()) text += output.name + " = ";
    text += names[static_cast<size_t>(output.value)] + order_suffix(output.order) + (output.differentiable ? "" : "!");
    if (output.into >= 0) text += " -> " + names[static_cast<size_t>(graph.inputs[static_cast<size_t>(output.into)])];
  }
  return text + "\n}\n";
}

}  // namespace fusewright
