#pragma once
#include <pybind11/pybind11.h>

namespace fusewright {

// What fusewright.emit writes files from.
void bind_emission(pybind11::module_& module);

}  // namespace fusewright
