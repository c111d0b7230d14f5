#pragma once

#include <stdexcept>

namespace fusewright {

// A kernel could not be compiled or loaded; the message holds the compiler's output.
class CompileError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace fusewright
