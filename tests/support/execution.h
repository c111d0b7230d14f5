#pragma once
// Compiled and run, forward and backward, and compared with the interpreter.
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "runtime/plan/executable.h"
#include "support/forwarding_host.h"
#include "support/interpreter.h"

namespace fusewright::testing {

// Kernels that tests compile are kept beside the test programs, so that a second run finds them.
inline const bool cache_is_set = [] {
  std::error_code none;
  std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", none);
  if (!none) setenv("FUSEWRIGHT_CACHE_DIR", (program.parent_path() / "kernels").c_str(), 0);
  return true;
}();

// With FUSEWRIGHT_TEST_EMULATOR set, the same tests run the CUDA kernels through the emulator (tests/CMakeLists.txt).
inline Options backend() {
  Options options;
  options.cuda = std::getenv("FUSEWRIGHT_TEST_EMULATOR") != nullptr;
  return options;
}

inline Host& backend_host() {
  struct Emulated : ForwardingHost {
    int device() const override { return 0; }
  };
  static Emulated emulated;
  return backend().cuda ? emulated : plain_host();
}

inline std::shared_ptr<const Executable> compile(const Graph& graph, std::vector<bool> wrt = {}) {
  return Executable::compile(graph, std::move(wrt), backend());
}

struct Execution {
  std::vector<Tensor> outputs, gradients;
};

// Layouts of the inputs, by position; those left out are row-major.
using Layouts = std::vector<Layout>;

// `Compiled`: an Executable, or what has its parts.
template <class Compiled>
Execution execute(const Compiled& executable, const std::vector<Array>& inputs, const std::vector<Array>& dL_dy,
                  const Layouts& layouts = {}, Host& host = backend_host()) {
  const Program& program = executable.program();
  std::vector<Tensor> tensors;
  std::vector<double> scalars;
  std::vector<Tensor> by_input(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (program.forward[program.forward.inputs[i]].op == Op::scalar_input) {
      scalars.push_back(inputs[i].data[0]);
    } else {
      by_input[i] = to_tensor(inputs[i], i < layouts.size() ? layouts[i] : Layout{});
      tensors.push_back(by_input[i]);
    }
  }
  Execution result;
  result.outputs = executable.forward().run(host, tensors, scalars);
  if (executable.training()) {
    std::vector<Tensor> saved;
    std::vector<double> saved_scalars;
    for (const Program::Saved& s : program.saved) {
      size_t index = static_cast<size_t>(s.index);
      if (!s.is_input)
        saved.push_back(result.outputs[index]);
      else if (by_input[index])
        saved.push_back(by_input[index]);
      else
        saved_scalars.push_back(inputs[index].data[0]);
    }
    for (int output : program.gradient_of_output) saved.push_back(to_tensor(dL_dy[static_cast<size_t>(output)]));
    result.gradients = executable.backward().run(host, saved, saved_scalars);
  }
  result.outputs.resize(program.user_outputs);
  return result;
}

// Returns whether two tensors without gaps, as results are, have the same bits.
inline bool same_bits(const Tensor& a, const Tensor& b) {
  return std::memcmp(a.data, b.data, static_cast<size_t>(a.elements() * size_of(a.dtype))) == 0;
}

struct Tolerance {
  double relative, absolute;
};

inline Tolerance tolerance_of(DType dtype) {
  switch (dtype) {
    case DType::f16:
      return {2e-3, 2e-3};
    case DType::bf16:
      return {1.6e-2, 1.6e-2};
    case DType::f32:
      return {2e-5, 2e-5};
    case DType::f64:
      return {1e-9, 1e-9};
    default:
      return {0, 0};
  }
}

inline std::string disagreement(const std::vector<Tensor>& found, const std::vector<Array>& expected, const char* what,
                                double slack = 1) {
  if (found.size() != expected.size()) return std::string("number of ") + what;
  for (size_t i = 0; i < found.size(); ++i) {
    Array array = to_array(found[i]);
    Tolerance tolerance = tolerance_of(array.dtype);
    double largest = 0;
    for (double value : expected[i].data)
      if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
    std::string text =
        difference(array, expected[i], slack * tolerance.relative, slack * tolerance.absolute * std::max(1.0, largest));
    if (!text.empty()) return std::string(what) + " " + std::to_string(i) + ", " + text;
  }
  return "";
}

// Empty when every output and every gradient agrees.
inline std::string disagreement(const Executable& executable, const Graph& graph, const std::vector<bool>& wrt,
                                const std::vector<Array>& inputs, const Layouts& layouts = {}, double slack = 1,
                                Host& host = backend_host()) {
  std::mt19937 random(5);
  std::vector<Array> dL_dy;
  std::vector<Array> outputs = interpret(graph, inputs);
  for (size_t i = 0; i < outputs.size(); ++i)
    dL_dy.push_back(random_array(graph.dtype(graph.outputs[i].value), outputs[i].sizes, random, 0.5, 1.5));
  Reference expected = interpret(graph, wrt, inputs, dL_dy);
  Execution found = execute(executable, inputs, dL_dy, layouts, host);
  std::string text = disagreement(found.outputs, expected.outputs, "output", slack);
  return text.empty() ? disagreement(found.gradients, expected.gradients, "gradient", slack) : text;
}

}  // namespace fusewright::testing
