#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "codegen/kernel_code.h"
#include "fusewright/host.h"
#include "schedule/schedule.h"

namespace fusewright {

class CompiledLibrary;
class TuningProgress;
namespace cuda {
class Module;
}

// A kernel as a file holds it that runs it without this library, by rule, on devices that are not known.
struct EmittedKernel {
  // A C++ class of the file that runs the kernel; the file makes one object of it. On the CPU it is made from the
  // table and a map of symbols to addresses; in CUDA from the table and a vector of its `Text`, one for each variant,
  // which has the initialiser `fields` and pairs of entries and their addresses.
  std::string runner;
  struct Header {
    std::string name, text;
  };
  std::vector<Header> headers;     // that define it, in the order in which they need each other
  std::string table;               // C++ statements that fill in `KernelLoops k`
  std::vector<std::string> texts;  // each once: variants name theirs by position
  struct Variant {
    std::string fields;   // how `runner` writes which variant this is; empty where there is one alone
    std::string defines;  // in front of all the rest
    // Headers of the library that depend on the defines, and stand in front of each such text: by name.
    std::vector<std::string> preludes;
    size_t text;
    std::string label;                 // tells this text from the kernel's others; empty for the usual one
    std::vector<std::string> entries;  // symbols of the text that `runner` is handed
  };
  std::vector<Variant> variants;  // the first are what the rule takes for the sizes at capture

  // The place of a text, which is added unless it is there.
  size_t place_of(const std::string& text);
};

// The compiled form of a source: a library for the CPU, a module for a GPU.
using CompiledSource = std::variant<std::shared_ptr<CompiledLibrary>, std::shared_ptr<cuda::Module>>;

// Runs a generated kernel for the tensors of a call: knows the kernel's sources, binds the arguments, chooses the shape
// of the launch and starts the work.
class Launcher {
 public:
  explicit Launcher(KernelCode code) : kernel_code_(std::move(code)) {}
  virtual ~Launcher() = default;

  // Returns the kernel's text, arguments and names. A contraction of the library has no text.
  const KernelCode& code() const { return kernel_code_; }

  // The sources that a first call takes, and their compiled form in the same order. `device`: -1 for the CPU.
  virtual std::vector<std::string> sources(int) const { return {}; }
  virtual void attach(const std::vector<CompiledSource>&, int) {}
  // Nothing is on its way in the background any more.
  virtual bool complete() const { return true; }

  // `operands` in the order of KernelCode::operands; `symbols` as SymbolBinder binds them; `scalars` by position among
  // the graph's scalar inputs. Without a `progress` nothing is timed: rules choose. `follows`: what was put on the
  // stream last is a generated kernel, whose end may overlap with the start of this one.
  virtual void run(Host& host, const std::vector<const Tensor*>& operands, const int64_t* symbols,
                   const std::vector<double>& scalars, TuningProgress* progress, bool follows) const;

  // For a file that `emit` writes. Throws Error where such a file cannot run the kernel.
  virtual EmittedKernel emitted(const Graph& graph) const;

  // The contraction that the host's library computes; -1: a kernel of ours.
  virtual Value library_call() const { return -1; }
  // In place of run: the library allocates its result, the last operand, itself. `operands` has its sizes there.
  virtual bool makes_result() const { return false; }
  virtual Tensor make_result(Host& host, const std::vector<const Tensor*>& operands, TuningProgress* progress) const;

 private:
  KernelCode kernel_code_;
};

// From which a schedule makes a launcher. Nothing of it is kept.
struct LauncherInputs {
  const Graph& graph;
  const Kernel& kernel;
  Dialect dialect;
  const std::map<std::string, int>& slots;  // of the symbols
  const std::vector<Order>& orders;         // how each value lies in memory, as far as the graph knows
};

}  // namespace fusewright
