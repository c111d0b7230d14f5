#include "ops/op.h"

namespace fusewright {

const std::vector<OpInfo>& all_ops() {
  static const std::vector<OpInfo> table = {
#define PRIMITIVE(name, kind, operands, cost, meaning)               \
  { Op::name, #name, Kind::kind, operands, operands, cost, meaning } \
  ,
#define CONTRACTION(name, min_operands, max_operands, meaning)                    \
  { Op::name, #name, Kind::contraction, min_operands, max_operands, 64, meaning } \
  ,
#define COMPOSITE(name, min_operands, max_operands, meaning) \
  {Op::name, #name, Kind::composite, min_operands, max_operands, 0, meaning},
#include "ops/ops.def"
  };
  return table;
}

const OpInfo& info(Op op) { return all_ops()[static_cast<size_t>(op)]; }

std::optional<Op> find_op(std::string_view name) {
  for (const OpInfo& row : all_ops())
    if (name == row.name) return row.op;
  return std::nullopt;
}

bool gives_boolean(Op op) {
  switch (op) {
    case Op::lt:
    case Op::le:
    case Op::gt:
    case Op::ge:
    case Op::eq:
    case Op::ne:
    case Op::isnan:
    case Op::logical_and:
    case Op::logical_or:
    case Op::logical_not:
      return true;
    default:
      return false;
  }
}

const char* kind_name(Kind kind) {
  constexpr const char* names[] = {"source", "pointwise", "reduce", "window", "contraction", "movement", "composite"};
  return names[static_cast<size_t>(kind)];
}

}  // namespace fusewright
