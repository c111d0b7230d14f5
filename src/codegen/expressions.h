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

// fw_<schedule>_<operators>: from the user's operators in order, each once in a row, letters and digits only.
std::string kernel_name(const Graph& graph, const Kernel& kernel, const std::string& schedule);
std::vector<int> kernel_origins(const Graph& graph, const Kernel& kernel);

}  // namespace fusewright
