#pragma once
#include <string>

#include "schedule/kernel.h"

namespace fusewright {

// The part of the text that every dialect shares: types, numbers and one expression for each computed step.
const char* storage_type(DType dtype);   // how a value lies in memory: "fw::half"
const char* register_type(DType dtype);  // what it is while a kernel computes: "float"
std::string literal(double value, DType dtype);
std::string as_stored(DType dtype, const std::string& value);  // rounded, as it would be read back from memory

// `arguments` are the operands' texts. Pointwise operations are calls of fw::<name>; views are their operand.
std::string expression(const Graph& graph, const Step& step, const std::vector<std::string>& arguments);

// fw_<schedule>_<operators>, or fw_<schedule>_backward_<operators> for derivatives: in the user's order, letters and
// digits only.
std::string kernel_name(const Graph& graph, const Kernel& kernel, const std::string& schedule);

// Names the user's operators that the kernel computes, or differentiates if it computes derivatives: "linear_bias"
// where the product of a linear layer is computed elsewhere. Operators that a derivative computes again are not named.
std::vector<std::string> kernel_operators(const Graph& graph, const Kernel& kernel);
bool differentiates(const Graph& graph, const Kernel& kernel);

// The user's operators that any step comes from.
std::vector<int> kernel_origins(const Graph& graph, const Kernel& kernel);

}  // namespace fusewright
