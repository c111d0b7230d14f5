#pragma once
#include <stdexcept>

namespace fusewright {

// A program that has no meaning, or tensors that do not fit it. The message names the operation and the shapes.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Sizes of a call for which the program has no meaning, although it has one for others: a maximum over nothing, a
// window larger than its image.
class SizeError : public Error {
 public:
  using Error::Error;
};

// A kernel could not be compiled or loaded; the message holds the compiler's output.
class CompileError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace fusewright
