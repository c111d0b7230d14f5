#pragma once
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace fusewright {

enum class Op : uint8_t {
#define PRIMITIVE(name, kind, operands, cost, meaning) name,
#define COMPOSITE(name, min_operands, max_operands, meaning) name,
#include "ops/ops.def"
};

enum class Kind : uint8_t { source, pointwise, reduce, window, contraction, movement, composite };

// One row of ops.def.
struct OpInfo {
  Op op;
  const char* name;
  Kind kind;
  int min_operands, max_operands;
  int cost;
  const char* meaning;
};

const std::vector<OpInfo>& all_ops();
const OpInfo& info(Op op);
std::optional<Op> find_op(std::string_view name);
const char* kind_name(Kind kind);
bool gives_boolean(Op op);  // whatever its operands are

inline const char* name_of(Op op) { return info(op).name; }
inline Kind kind_of(Op op) { return info(op).kind; }

}  // namespace fusewright
