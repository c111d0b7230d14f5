#pragma once
#include <string>
#include <vector>

#include "ir/ir.h"

namespace fusewright {

// Appends operations to a Graph: infers types, makes sizes agree (unification of symbols), refuses what has no meaning.
class Builder {
 public:
  explicit Builder(Graph& graph) : graph_(graph) {}
  Graph& graph() { return graph_; }

  Value input(const std::string& name, DType dtype, Shape shape, Order order = {});
  Value scalar_input(const std::string& name, DType dtype);
  Value constant(double value, DType dtype, bool runtime = false);
  Value extent(const Size& size, DType dtype);
  Value iota(const Size& size);
  Value op(Op op, std::vector<Value> operands, Attrs attrs = {});
  int changes(Value input);  // something will replace it; returns its position
  void output(Value value, Order order = {}, bool differentiable = true, std::string name = {}, Value into = -1);

  // Operations added from here on come from this operator of the user.
  void set_origin(int origin) { origin_ = origin; }
  int origin() const { return origin_; }

  // Makes two sizes equal by substituting a symbol everywhere; throws when their hints differ. `what` heads the
  // message.
  void unify(const Size& a, const Size& b, const std::string& what);
  // The integer a size must be at compile time (kernel sizes); its symbol becomes that constant.
  int64_t specialise(const Size& size, const std::string& what);
  // Common size of two aligned dimensions under broadcasting.
  Size broadcast(const Size& a, const Size& b, const std::string& what);

  // Thin names for what composites and derivatives write most.
  Value cast(Value a, DType dtype);
  Value unary(Op op, Value a) { return this->op(op, {a}); }
  Value binary(Op op, Value a, Value b) { return this->op(op, {a, b}); }
  Value reshape(Value a, const Shape& sizes);
  Value permute(Value a, const Ints& dims);
  Value expand(Value a, const Shape& sizes);
  Value reduce(Op op, Value a, const Ints& dims, bool keepdim);
  const Shape& shape(Value v) const { return graph_.shape(v); }
  DType dtype(Value v) const { return graph_.dtype(v); }
  int rank(Value v) const { return graph_.type(v).rank(); }

 private:
  void substitute(const std::string& symbol, const Size& by);
  Graph& graph_;
  int origin_ = -1;
  std::vector<std::pair<std::string, Size>> substituted_;  // while the latest operation was inferred
};

// Type inference, one function for each kind (ops/infer.cpp). May unify sizes and rewrite attributes to symbolic form.
Type infer_type(Builder& builder, Op op, const std::vector<Value>& operands, Attrs& attrs);

}  // namespace fusewright
