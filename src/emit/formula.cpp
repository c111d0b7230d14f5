// What a kernel computes, in readable lines: for comments.
#include <algorithm>
#include <map>
#include <set>

#include "emit/describe.h"

namespace fusewright {
namespace {

const std::map<Op, const char*> infix = {
    {Op::add, "+"},           {Op::sub, "-"},        {Op::mul, "*"}, {Op::div, "/"}, {Op::lt, "<"},
    {Op::le, "<="},           {Op::gt, ">"},         {Op::ge, ">="}, {Op::eq, "=="}, {Op::ne, "!="},
    {Op::logical_and, "and"}, {Op::logical_or, "or"}};

std::string short_number(double value) {
  char text[32];
  snprintf(text, sizeof text, "%.6g", value);
  return text;
}

class Writer {
 public:
  Writer(const Graph& graph, const Kernel& kernel) : graph_(graph), kernel_(kernel), uses_(kernel.steps.size()) {
    for (const Step& step : kernel.steps)
      for (int s : step.operands) ++uses_[static_cast<size_t>(s)];
  }

  std::vector<std::string> run() {
    for (size_t s = 0; s < kernel_.steps.size(); ++s) texts_.push_back(text_of(static_cast<int>(s)));
    return std::move(lines_);
  }

 private:
  // A value that is stored, summed up or used again has a line of its own; all others stand where they are used.
  std::string text_of(int s) {
    const Step& step = kernel_.steps[static_cast<size_t>(s)];
    const Node& node = graph_[step.value];
    if (step.role == Step::Role::load) return name_of_load(node, step.value);
    if (step.role == Step::Role::scalar) return number(node);
    if (step.role == Step::Role::iota) return "position";
    std::string text = expression(step, node);
    const bool simple = uses_[static_cast<size_t>(s)] <= 1 && text.size() < 60;
    if (node.kind() == Kind::movement || (!step.stored && step.role == Step::Role::compute && simple))
      return step.stored ? keep(step, text) : text;
    return keep(step, text);
  }

  std::string keep(const Step& step, const std::string& text) {
    std::string name = step.stored ? output_name(step.value) : "t" + std::to_string(next_++);
    lines_.push_back(name + " = " + stripped(text));
    return name;
  }

  std::string expression(const Step& step, const Node& node) {
    std::vector<std::string> arguments;
    for (int s : step.operands) arguments.push_back(texts_[static_cast<size_t>(s)]);
    if (node.kind() == Kind::movement || node.op == Op::stop_gradient) return arguments[0];
    if (auto op = infix.find(node.op); op != infix.end())
      return "(" + arguments[0] + " " + op->second + " " + arguments[1] + ")";
    if (node.op == Op::neg) return "(-" + arguments[0] + ")";
    if (node.op == Op::square) return "square(" + stripped(arguments[0]) + ")";
    if (node.op == Op::select) return "(" + stripped(arguments[0]) + " ? " + arguments[1] + " : " + arguments[2] + ")";
    std::string text = name_of(node.op);
    text += "(";
    for (size_t i = 0; i < arguments.size(); ++i) text += (i ? ", " : "") + stripped(arguments[i]);
    if (node.op == Op::cast) text += std::string(", ") + name_of(node.type.dtype);
    if (step.role == Step::Role::reduce) text += ", over " + reduced(node);
    return text + ")";
  }

  std::string reduced(const Node& node) const {
    std::string text;
    for (int64_t d : node.ints("dims"))
      text += (text.empty() ? "" : ", ") + graph_.shape(node.operands[0])[static_cast<size_t>(d)].str();
    return text;
  }

  // Without the parentheses around all of it.
  static std::string stripped(const std::string& text) {
    if (text.size() < 2 || text.front() != '(' || text.back() != ')') return text;
    int depth = 0;
    for (size_t i = 0; i + 1 < text.size(); ++i) {
      depth += text[i] == '(' ? 1 : text[i] == ')' ? -1 : 0;
      if (depth == 0) return text;
    }
    return text.substr(1, text.size() - 2);
  }

  std::string name_of_load(const Node& node, Value v) const {
    if (node.op == Op::input) return node.text("name");
    return name_of(node.op) + std::string("_") + std::to_string(v);
  }

  std::string output_name(Value v) const {
    for (const Output& output : graph_.outputs)
      if (output.value == v && !output.name.empty()) return output.name;
    for (const Output& output : graph_.outputs)
      if (output.value == v && output.into >= 0)
        return graph_[graph_.inputs[static_cast<size_t>(output.into)]].text("name");
    return name_of(graph_[v].op) + std::string("_") + std::to_string(v);
  }

  std::string number(const Node& node) const {
    if (node.op == Op::constant) return short_number(node.number("value"));
    if (node.op == Op::extent) return node.sizes("size")[0].str();
    return node.op == Op::scalar_input ? node.text("name") : name_of(node.op);
  }

  const Graph& graph_;
  const Kernel& kernel_;
  std::vector<int> uses_;
  std::vector<std::string> texts_, lines_;
  int next_ = 0;
};

}  // namespace

std::vector<std::string> formulas(const Graph& graph, const Kernel& kernel) { return Writer(graph, kernel).run(); }

}  // namespace fusewright
