#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "fusewright/host.h"

namespace fusewright {

class CompiledLibrary;
class TuningProgress;
namespace cuda {
class Module;
}

// The compiled form of a source: a library for the CPU, a module for a GPU.
using CompiledSource = std::variant<std::shared_ptr<CompiledLibrary>, std::shared_ptr<cuda::Module>>;

// Runs a generated kernel for the tensors of a call: knows the kernel's sources, binds the arguments, chooses the shape
// of the launch and starts the work.
class Launcher {
 public:
  virtual ~Launcher() = default;

  // The sources that a first call takes, and their compiled form in the same order. `device`: -1 for the CPU.
  virtual std::vector<std::string> sources(int device) const = 0;
  virtual void attach(const std::vector<CompiledSource>& compiled, int device) = 0;
  // Nothing is on its way in the background any more.
  virtual bool complete() const { return true; }

  // `operands` in the order of KernelCode::operands; `symbols` as SymbolBinder binds them; `scalars` by position among
  // the graph's scalar inputs. Without a `progress` nothing is timed: rules choose. `follows`: what was put on the
  // stream last is a generated kernel, whose end may overlap with the start of this one.
  virtual void run(Host& host, const std::vector<const Tensor*>& operands, const int64_t* symbols,
                   const std::vector<double>& scalars, TuningProgress* progress = nullptr,
                   bool follows = false) const = 0;

  // The ways to compile the kernel that a file holds which runs it by rule, on devices that are not known.
  struct Emitted {
    std::string fields;   // C++ that says which way this is; empty where there is one alone
    std::string defines;  // in front of the prelude
    std::string text;     // behind it
    std::string label;    // tells this text from the kernel's others; empty for the usual one
    std::vector<std::string> entries;
  };
  virtual std::vector<Emitted> emitted() const = 0;
};

}  // namespace fusewright
