#include "ir/ir.h"

#include <algorithm>

namespace fusewright {

namespace {
constexpr const char* dtype_names[] = {"f16", "bf16", "f32", "f64", "i8", "u8", "i16", "i32", "i64", "b8"};
}

const char* name_of(DType t) { return dtype_names[static_cast<size_t>(t)]; }

DType parse_dtype(std::string_view name) {
  for (size_t i = 0; i < std::size(dtype_names); ++i)
    if (name == dtype_names[i]) return static_cast<DType>(i);
  fail("no element type '", name, "'");
}

bool is_row_major(const Order& order) {
  for (size_t i = 0; i < order.size(); ++i)
    if (order[i] != static_cast<int>(i)) return false;
  return true;
}

bool is_order(const Order& order, int rank) {
  if (order.empty()) return true;
  std::vector<bool> seen(static_cast<size_t>(rank));
  for (int d : order) {
    if (d < 0 || d >= rank || seen[static_cast<size_t>(d)]) return false;
    seen[static_cast<size_t>(d)] = true;
  }
  return static_cast<int>(order.size()) == rank;
}

double Node::number(const std::string& name) const {
  auto it = attrs.find(name);
  require(it != attrs.end(), name_of(op), ": attribute '", name, "' is missing");
  if (const int64_t* whole = std::get_if<int64_t>(&it->second)) return static_cast<double>(*whole);
  return get<double>(name);
}

bool Graph::may_change(const Size& size) const {
  std::set<std::string> symbols;
  size.collect_symbols(symbols);
  return std::any_of(symbols.begin(), symbols.end(), [&](const std::string& s) { return dynamic.count(s) != 0; });
}

int64_t Graph::hint(const Size& size) const {
  return size.evaluate([&](const std::string& symbol) {
    auto it = hints.find(symbol);
    require(it != hints.end(), "symbol '", symbol, "' is unknown");
    return it->second;
  });
}

int64_t Graph::bytes(Value v) const {
  int64_t bytes = size_of(dtype(v));
  for (const Size& size : shape(v)) bytes *= hint(size);
  return bytes;
}

std::string Graph::fresh_symbol(const std::string& prefix, int64_t hint) {
  for (size_t i = hints.size();; ++i) {
    std::string name = prefix + std::to_string(i);
    if (hints.try_emplace(name, hint).second) return name;
  }
}

Value Graph::base(Value v) const {
  while ((*this)[v].kind() == Kind::movement) v = (*this)[v].operands[0];
  return v;
}

// Outputs that would lie in the memory of an input or of another result, or a gradient in that of another in a
// different shape. Autograd takes a gradient that nobody else holds for its own, and adds to it in place. It sees that
// two are one tensor (a gradient may be the incoming one), not that two tensors share memory.
std::vector<bool> Graph::borrowed_outputs() const {
  std::vector<bool> result;
  std::map<Value, std::set<Value>> gradients;  // by base
  std::set<Value> results;                     // bases: what is saved beside them is nobody's to change
  for (const Output& output : outputs) {
    const Value from = base(output.value);
    bool borrowed = (*this)[from].op == Op::input && !(output.is_gradient() && from == output.value);
    if (output.is_gradient() && (*this)[from].op != Op::constant) {  // zeros have memory of their own
      std::set<Value>& earlier = gradients[from];
      if (!earlier.empty() && !earlier.count(output.value)) borrowed = true;
      if (!borrowed) earlier.insert(output.value);
    }
    if (!output.is_gradient() && output.into < 0 && !output.is_saved()) borrowed |= !results.insert(from).second;
    result.push_back(borrowed);
  }
  return result;
}

int Graph::add_origin(const Origin& origin) {
  origins.push_back(origin);
  return static_cast<int>(origins.size()) - 1;
}

std::vector<std::vector<Value>> Graph::users() const {
  std::vector<std::vector<Value>> result(nodes.size());
  for (size_t i = 0; i < nodes.size(); ++i)
    for (Value v : nodes[i].operands) result[static_cast<size_t>(v)].push_back(static_cast<Value>(i));
  return result;
}

std::string Graph::describe(Value v) const {
  const Node& node = (*this)[v];
  std::string text = std::string(name_of(node.op)) + "(";
  for (size_t i = 0; i < node.operands.size(); ++i) {
    const Type& type = this->type(node.operands[i]);
    text += (i ? ", " : "") + std::string(name_of(type.dtype)) + str(type.shape);
  }
  return text + ")";
}

void remove_dead(Graph& graph) {
  std::vector<bool> live(graph.nodes.size());
  for (Value v : graph.inputs) live[static_cast<size_t>(v)] = true;
  for (const Output& output : graph.outputs) live[static_cast<size_t>(output.value)] = true;
  for (size_t i = graph.nodes.size(); i-- > 0;)
    if (live[i])
      for (Value v : graph.nodes[i].operands) live[static_cast<size_t>(v)] = true;
  std::vector<Value> renamed(graph.nodes.size(), -1);
  std::vector<Node> kept;
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    if (!live[i]) continue;
    Node node = std::move(graph.nodes[i]);
    for (Value& v : node.operands) v = renamed[static_cast<size_t>(v)];
    renamed[i] = static_cast<Value>(kept.size());
    kept.push_back(std::move(node));
  }
  graph.nodes = std::move(kept);
  for (Value& v : graph.inputs) v = renamed[static_cast<size_t>(v)];
  for (Output& output : graph.outputs) output.value = renamed[static_cast<size_t>(output.value)];
}

std::vector<Value> in_reading_order(Graph& graph, size_t first, std::vector<Value> results) {
  std::vector<Node> tail(std::make_move_iterator(graph.nodes.begin() + static_cast<long>(first)),
                         std::make_move_iterator(graph.nodes.end()));
  graph.nodes.resize(first);
  std::vector<Value> renamed(tail.size(), -1);
  auto place = [&](auto&& self, Value v) -> Value {
    if (v < static_cast<Value>(first)) return v;
    size_t i = static_cast<size_t>(v) - first;
    if (renamed[i] >= 0) return renamed[i];
    for (Value& operand : tail[i].operands) operand = self(self, operand);
    graph.nodes.push_back(std::move(tail[i]));
    return renamed[i] = static_cast<Value>(graph.nodes.size()) - 1;
  };
  for (Value& v : results) v = place(place, v);
  return results;
}

}  // namespace fusewright
