#pragma once
// Fusewright without Python and without PyTorch: build a graph, ask for gradients, compile, run.
//
//   using namespace fusewright;
//   GraphBuilder b;
//   auto x = b.input("x", DType::f32, {"n", "c", "h", "w"});
//   auto m = b.input("m", DType::f32, {"c", 1, 1});
//   auto y = b.op("leaky_relu", {b.op("mul", {x, m})}, {{"negative_slope", 0.01}});
//   b.output(y);
//   Function f = compile(b, {"x", "m"});                       // gradients wanted of these
//
//   Function::Result r = f.forward({make_tensor(values, {8, 3, 32, 32}), make_tensor(factors, {3, 1, 1})});
//   std::map<std::string, Tensor> dL = f.backward(r.saved, {dL_dy});   // dL["x"], dL["m"]
//
// Operations and their attributes are those of docs/language.md. A size is a number, a symbol, or an expression over
// symbols; a symbol takes its value from the tensors of each call, and no kernel is compiled anew for another one.
// What must be divisible says so: group_norm with 32 groups wants a channel dimension of "32*g".
#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "fusewright/dtype.h"
#include "fusewright/error.h"
#include "fusewright/host.h"
#include "fusewright/tensor.h"

namespace fusewright {

// One dimension: 64, "n", "2*c + 1".
struct Dimension {
  Dimension(int size) : text(std::to_string(size)) {}                 // NOLINT: {"n", 3} is how shapes are written
  Dimension(int64_t size) : text(std::to_string(size)) {}             // NOLINT
  Dimension(const char* expression) : text(expression) {}             // NOLINT
  Dimension(std::string expression) : text(std::move(expression)) {}  // NOLINT
  std::string text;
};

// The value of an attribute: a number, a word, an element type, a list of integers, or sizes({..}).
struct Attribute {
  Attribute(bool value) : value(int64_t{value}) {}                                         // NOLINT: as above
  Attribute(int value) : value(int64_t{value}) {}                                          // NOLINT
  Attribute(int64_t value) : value(value) {}                                               // NOLINT
  Attribute(double value) : value(value) {}                                                // NOLINT
  Attribute(const char* value) : value(std::string(value)) {}                              // NOLINT
  Attribute(std::string value) : value(std::move(value)) {}                                // NOLINT
  Attribute(DType value) : value(value) {}                                                 // NOLINT
  Attribute(std::vector<int64_t> value) : value(std::move(value)) {}                       // NOLINT
  Attribute(std::initializer_list<int64_t> value) : value(std::vector<int64_t>(value)) {}  // NOLINT
  Attribute(std::vector<Dimension> value) : value(std::move(value)) {}                     // NOLINT
  std::variant<int64_t, double, std::string, DType, std::vector<int64_t>, std::vector<Dimension>> value;
};
using Attributes = std::map<std::string, Attribute>;

inline Attribute sizes(std::vector<Dimension> dimensions) { return Attribute(std::move(dimensions)); }

// A graph in the making. Every call checks what it is given and throws Error, naming the operation and the shapes.
class GraphBuilder {
 public:
  using Ref = int;  // a value of this graph

  GraphBuilder();
  explicit GraphBuilder(std::string_view text);  // what text() writes
  ~GraphBuilder();
  GraphBuilder(GraphBuilder&&) noexcept;
  GraphBuilder& operator=(GraphBuilder&&) noexcept;

  // `order`: dimensions in memory, outermost first, where not row-major; {0, 2, 3, 1} is channels last. It is a
  // preference: tensors of any strides are accepted.
  Ref input(const std::string& name, DType dtype, const std::vector<Dimension>& shape,
            const std::vector<int>& order = {});
  Ref scalar(const std::string& name, DType dtype);  // a number given at each run
  Ref constant(double value, DType dtype);
  Ref op(const std::string& name, const std::vector<Ref>& operands, const Attributes& attributes = {});
  void output(Ref value, const std::vector<int>& order = {});

  std::string shape(Ref value) const;  // "f32[n, c, h, w]"
  std::string text() const;

 private:
  friend class Function;
  struct State;
  std::unique_ptr<State> state_;
};

// A compiled graph. May be copied, and called by several threads at once.
class Function {
 public:
  // What backward() reads: tensors of the call that it belongs to.
  class Saved {
   public:
    Saved() = default;
    int64_t bytes() const;  // memory that it keeps alive beside the inputs

   private:
    friend class Function;
    struct State;
    std::shared_ptr<const State> state_;
  };
  struct Result {
    std::vector<Tensor> outputs;
    Saved saved;  // empty when no gradient was asked for
  };

  // `gradients_of`: names of inputs. Throws Error, or CompileError from the system's compiler.
  static Function compile(const GraphBuilder& graph, const std::vector<std::string>& gradients_of = {});

  // Tensors and scalars in the order in which they were declared. Throws Error when they do not fit.
  Result forward(const std::vector<Tensor>& inputs, const std::vector<double>& scalars = {},
                 Host& host = plain_host()) const;
  // dL_dy: one for each output, in order; an empty Tensor stands for zero. Gradients by the name of the input; none
  // of an input from which no differentiable path leads to an output.
  std::map<std::string, Tensor> backward(const Saved& saved, const std::vector<Tensor>& dL_dy,
                                         Host& host = plain_host()) const;

  struct KernelInfo {
    std::string name, phase, schedule;   // "fw_row_softmax", "forward" or "backward", "row"
    std::vector<std::string> operators;  // as the graph names them
    std::string source;                  // the generated C++, without the headers in front of it
  };
  std::vector<KernelInfo> kernels() const;
  std::string explain() const;  // kernels, library calls and where fusion stopped, to read

 private:
  struct State;
  std::shared_ptr<const State> state_;
};

inline Function compile(const GraphBuilder& graph, const std::vector<std::string>& gradients_of = {}) {
  return Function::compile(graph, gradients_of);
}

// A row-major tensor that owns a copy of the values. T: float, double, int64_t or int32_t.
template <class T>
Tensor make_tensor(const std::vector<T>& values, const std::vector<int64_t>& sizes);
// The elements in row-major order, whatever the strides. T must be the tensor's element type.
template <class T>
std::vector<T> to_vector(const Tensor& tensor);

}  // namespace fusewright
