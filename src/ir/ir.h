#pragma once
// The language.
//
// A Graph is a list of operations in static single assignment over tensors. A Value is the result of one operation; a
// Type is its element type, its symbolic shape and its memory order. The meaning of a Graph:
//
// - Broadcasting. Operands of a pointwise operation are aligned at their last dimension; a dimension of size 1, or a
//   missing one, is repeated. Nothing else broadcasts.
// - Element types. Operands of one pointwise operation have one type (`select` has a b8 condition beside it); casts are
//   explicit. Comparisons give b8.
// - Accumulation. Arithmetic on f16, bf16 and f32 happens in f32, on f64 in f64, on integers in i64.
// - Rounding. A 16-bit value that has a copy in memory (a result, saved for the backward, read by another kernel) is
//   rounded where it is computed, and is that number everywhere, in forward and backward (passes/round.cpp). So is what
//   a maximum or a view of it is taken from. All other values are rounded at a `cast` to their type alone.
// - NaN, infinities and signed zero are PyTorch's: maximum, minimum, amax, amin and max_pool propagate NaN.
// - No aliasing. Every value is a tensor of its own; `reshape`, `permute` and `expand` are new values too. Operations
//   read inputs as they were before the call; an output that goes `into` an input replaces it when all is computed.
// - Sizes are expressions over symbols (size.h). A symbol has a hint, its value when the graph was captured, used to
//   tell apart "broadcast" from "equal" while operations are added; kernels never depend on hints.
//
// Operations and their kinds stand in ops/ops.def.
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "fusewright/dtype.h"
#include "ir/error.h"
#include "ir/size.h"
#include "ops/op.h"

namespace fusewright {

// Memory order of dimensions, outermost first. Empty: row-major. {0, 2, 3, 1}: channels last.
using Order = std::vector<int>;

struct Type {
  DType dtype = DType::f32;
  Shape shape;
  Order order;
  int rank() const { return static_cast<int>(shape.size()); }
};

using Value = int32_t;  // index into Graph::nodes
using Ints = std::vector<int64_t>;
using Attr = std::variant<int64_t, double, std::string, DType, Ints, Shape>;
using Attrs = std::map<std::string, Attr>;

struct Node {
  Op op;
  std::vector<Value> operands;
  Attrs attrs;
  Type type;
  int origin = -1;  // index into Graph::origins: the user's operator this one came from
  int joint = -1;   // number in the graph of forward and backward together (passes/remember.cpp): equal in both halves

  Kind kind() const { return kind_of(op); }
  bool has(const std::string& name) const { return attrs.count(name) != 0; }
  int64_t integer(const std::string& name) const { return get<int64_t>(name); }
  double number(const std::string& name) const;  // an integer attribute reads as a number too
  const std::string& text(const std::string& name) const { return get<std::string>(name); }
  const Ints& ints(const std::string& name) const { return get<Ints>(name); }
  const Shape& sizes(const std::string& name) const { return get<Shape>(name); }

 private:
  template <class T>
  const T& get(const std::string& name) const {
    auto it = attrs.find(name);
    require(it != attrs.end(), name_of(op), ": attribute '", name, "' is missing");
    const T* value = std::get_if<T>(&it->second);
    require(value, name_of(op), ": attribute '", name, "' has the wrong type");
    return *value;
  }
};

struct Origin {
  std::string op;      // as the user knows it: "leaky_relu"
  std::string source;  // "model.py:13: y = F.leaky_relu(x)", or empty
};

struct Output {
  Value value;
  Order order;                 // memory order that the caller expects
  bool differentiable = true;  // false: statistics and the like
  std::string name;            // "dL_dx" for gradients
  int into = -1;               // position of the input that it replaces: running statistics
  int origin = -1;             // the user's operator whose result it is, whatever computes the value by now

  bool is_gradient() const { return name.rfind("dL_d", 0) == 0; }
  bool is_saved() const { return name.rfind("saved", 0) == 0; }  // for the backward alone
};

struct Graph {
  std::vector<Node> nodes;  // operands always precede their users
  std::vector<Value> inputs;
  std::vector<Output> outputs;
  std::vector<Origin> origins;
  std::map<std::string, int64_t> hints;  // symbol -> its value at capture
  std::set<std::string> dynamic;         // symbols that other calls may give other values: never specialised
  std::set<int> changing;                // positions of inputs that are replaced before the backward runs, by whomever

  const Node& operator[](Value v) const { return nodes[static_cast<size_t>(v)]; }
  Node& operator[](Value v) { return nodes[static_cast<size_t>(v)]; }
  const Type& type(Value v) const { return (*this)[v].type; }
  const Shape& shape(Value v) const { return (*this)[v].type.shape; }
  DType dtype(Value v) const { return (*this)[v].type.dtype; }

  int64_t hint(const Size& size) const;
  bool may_change(const Size& size) const;  // with a dynamic symbol
  int64_t bytes(Value v) const;             // for the sizes at capture
  Value base(Value v) const;                // through movements to what holds the data
  std::vector<bool> borrowed_outputs() const;
  std::string fresh_symbol(const std::string& prefix, int64_t hint);
  int add_origin(const Origin& origin);
  std::vector<std::vector<Value>> users() const;
  std::string describe(Value v) const;  // "mul(f32[n, c], f32[c])": for messages
};

bool is_row_major(const Order& order);
bool is_order(const Order& order, int rank);  // empty, or each dimension once

std::string print(const Graph& graph);
Graph parse(std::string_view text);  // throws Error with the line
void verify(const Graph& graph);     // throws Error naming the operation
void remove_dead(Graph& graph);      // keeps inputs
// Puts the operations from `first` on into the order in which `results` (-1: none), one after the other, need them,
// left operand before right; drops what none of them needs. Returns where the results are then.
std::vector<Value> in_reading_order(Graph& graph, size_t first, std::vector<Value> results);

}  // namespace fusewright
