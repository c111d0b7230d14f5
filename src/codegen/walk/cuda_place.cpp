// Where operands lie, and what is known at an element.
#include <algorithm>

#include "codegen/walk/cuda_emitter.h"

namespace fusewright {

using std::to_string;

bool CudaEmitter::is_row_axis(int a) const {
  if (a == nest().inner) return inner_in_row();
  return std::find(row_axes().begin(), row_axes().end(), a) != row_axes().end();
}

std::string CudaEmitter::stride(int operand, int a) const {
  return "static_cast<index>(a.strides[" + to_string(operand) + "][" + to_string(a) + "])";
}

bool CudaEmitter::operand_varies(int operand, int a) const {
  for (const auto& list : code_.operands[static_cast<size_t>(operand)].dims)
    if (std::find(list.begin(), list.end(), a) != list.end()) return true;
  return false;
}

// Position on an axis, for element i of the vector.
std::string CudaEmitter::coordinate(int a, const std::string& i) const {
  if (axis(a).tap) return "t" + to_string(a);
  if (a == nest().inner) return "(" + std::string(inner_in_row() ? "row." : at_) + "pos + " + i + ")";
  return (is_row_axis(a) ? "row.c" : at_ + "c") + to_string(a);
}

std::string CudaEmitter::row_offset(int operand) const {
  std::string text = "0";
  for (int a : row_axes())
    if (operand_varies(operand, a)) text += " + row.c" + to_string(a) + " * " + stride(operand, a);
  if (!inner_in_row() || !operand_varies(operand, nest().inner)) return text;
  // What is one value for each column is not read by vectors, and may lie in memory as it likes: row_index adds where.
  if (is_value_of_row(operand)) return text;
  return text + " + fw::along(row.pos, a.strides[" + to_string(operand) + "][" + to_string(nest().inner) + "])";
}

bool CudaEmitter::is_value_of_row(int operand) const {
  for (int s = 0; s < count(); ++s) {
    const Operands& of = operand_of_[static_cast<size_t>(s)];
    if (of.load == operand || of.store == operand) return row_level(s);
  }
  return false;
}

std::string CudaEmitter::element_offset(int operand) const {
  std::string text = "row.o" + to_string(operand);
  for (int a : element_axes()) {
    if (!operand_varies(operand, a)) continue;
    if (by_items())
      text += " + at.first * " + stride(operand, a) + " + at.item * (" + stride(operand, a) + " << at.bits)";
    else
      text += " + " + at_ + "c" + to_string(a) + " * " + stride(operand, a);
  }
  if (!inner_in_row() && nest().inner >= 0 && operand_varies(operand, nest().inner))
    text += " + fw::along(" + at_ + "pos, a.strides[" + to_string(operand) + "][" + to_string(nest().inner) + "])";
  return text;
}

// The offset is added up before the pointer: one addition of 64 bits instead of one for each of its parts.
std::string CudaEmitter::element_address(int operand) const {
  return pointer(operand) + " + (" + element_offset(operand) + ")";
}

// Of element i: an operand of a window may have any stride along the line.
std::string CudaEmitter::lane_offset(int operand, const std::string& i) const {
  std::string text = "row.o" + to_string(operand);
  for (int a : element_axes())
    if (operand_varies(operand, a)) text += " + " + at_ + "c" + to_string(a) + " * " + stride(operand, a);
  if (nest().inner < 0 || !operand_varies(operand, nest().inner)) return text;
  if (inner_in_row()) return text + " + " + i + " * " + stride(operand, nest().inner);
  return text + " + (" + at_ + "pos + " + i + ") * " + stride(operand, nest().inner);
}

std::string CudaEmitter::given(int s) const {
  if (row_level(s) && row_array(s) && own_column_) return "row.own" + to_string(s);
  if (row_level(s)) return "row.v" + to_string(s) + (row_array(s) ? "[i]" : "");
  if (carried(s) && stage(s) < pass_) return "kept.v" + to_string(s) + "[i]";
  if (step(s).role == Role::window) return "w" + to_string(s) + (inner_varying(s) ? "[i]" : "[0]");
  return "";
}

// Quotients of one divisor share its reciprocal: that of a row is kept with it.
std::string CudaEmitter::quotient(int s) const {
  const int by = step(s).operands[1];
  if (counts_row(by)) return "fw::over_row(" + use(step(s).operands[0]) + ", " + use(by) + ")";
  if (step(by).role == Role::scalar || row_level(s) || !is_divisor(by)) return "";
  return "fw::div(" + use(step(s).operands[0]) + ", row.d" + to_string(by) + (row_array(by) ? "[i])" : ")");
}

}  // namespace fusewright
