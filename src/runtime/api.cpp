// The public C++ API over Graph and Executable.
#include <algorithm>
#include <cstring>
#include <sstream>

#include "fusewright/fusewright.h"
#include "ir/builder.h"
#include "runtime/plan/executable.h"

namespace fusewright {
namespace {

bool is_identifier(const std::string& name) {
  auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  if (name.empty() || !letter(name[0])) return false;
  return std::all_of(name.begin(), name.end(), [&](char c) { return letter(c) || (c >= '0' && c <= '9'); });
}

Shape to_shape(const std::vector<Dimension>& dimensions) {
  Shape shape;
  for (const Dimension& dimension : dimensions) shape.push_back(Size::parse(dimension.text));
  return shape;
}

Attr to_attr(const Attribute& attribute) {
  struct Visitor {
    Attr operator()(const std::vector<Dimension>& v) const { return to_shape(v); }
    Attr operator()(int64_t v) const { return v; }
    Attr operator()(double v) const { return v; }
    Attr operator()(const std::string& v) const { return v; }
    Attr operator()(DType v) const { return v; }
    Attr operator()(const std::vector<int64_t>& v) const { return v; }
  };
  return std::visit(Visitor{}, attribute.value);
}

// A norm's weight and bias follow its input; which of them are there need not be said twice.
void complete_norm(Op op, size_t operands, Attrs& attrs) {
  size_t first = op == Op::batch_norm_inference ? 3 : 1;
  bool norm = op == Op::group_norm || op == Op::instance_norm || op == Op::layer_norm || op == Op::rms_norm ||
              op == Op::batch_norm || first == 3;
  if (!norm || attrs.count("has_weight") || attrs.count("has_bias")) return;
  attrs["has_weight"] = int64_t{operands > first};
  attrs["has_bias"] = int64_t{operands > first + 1};
}

}  // namespace

// ---- GraphBuilder --------------------------------------------------------------------------------------------------

struct GraphBuilder::State {
  Graph graph;
  Builder builder{graph};

  void check(Ref value, const char* where) const {
    require(value >= 0 && value < static_cast<Ref>(graph.nodes.size()), where, ": value ", value,
            " is not of this graph");
  }
  void check_name(const std::string& name) const {
    require(is_identifier(name), "input '", name, "': a name has letters, digits and underscores");
    for (Value v : graph.inputs) require(graph[v].text("name") != name, "input '", name, "' is declared twice");
  }
};

GraphBuilder::GraphBuilder() : state_(std::make_unique<State>()) {}
GraphBuilder::GraphBuilder(std::string_view text) : state_(std::make_unique<State>()) {
  state_->graph = parse(text);  // the builder refers to this very graph
}
GraphBuilder::~GraphBuilder() = default;
GraphBuilder::GraphBuilder(GraphBuilder&&) noexcept = default;
GraphBuilder& GraphBuilder::operator=(GraphBuilder&&) noexcept = default;

GraphBuilder::Ref GraphBuilder::input(const std::string& name, DType dtype, const std::vector<Dimension>& shape,
                                      const std::vector<int>& order) {
  state_->check_name(name);
  require(shape.size() <= static_cast<size_t>(max_rank), "input '", name, "': more than ", max_rank, " dimensions");
  require(is_order(order, static_cast<int>(shape.size())), "input '", name,
          "': the memory order does not name each of ", shape.size(), " dimensions once");
  Shape parsed = to_shape(shape);
  for (const Size& size : parsed)
    require(!size.constant() || *size.constant() >= 0, "input '", name, "': negative size ", size.str());
  return state_->builder.input(name, dtype, std::move(parsed), order);
}

GraphBuilder::Ref GraphBuilder::scalar(const std::string& name, DType dtype) {
  state_->check_name(name);
  return state_->builder.scalar_input(name, dtype);
}

GraphBuilder::Ref GraphBuilder::constant(double value, DType dtype) { return state_->builder.constant(value, dtype); }

GraphBuilder::Ref GraphBuilder::op(const std::string& name, const std::vector<Ref>& operands,
                                   const Attributes& attributes) {
  auto op = find_op(name);
  require(op.has_value(), "no operation '", name, "'");
  for (Ref operand : operands) state_->check(operand, name.c_str());
  Attrs attrs;
  for (const auto& [key, value] : attributes) attrs[key] = to_attr(value);
  complete_norm(*op, operands.size(), attrs);
  state_->builder.set_origin(state_->graph.add_origin({name, ""}));
  return state_->builder.op(*op, operands, std::move(attrs));
}

void GraphBuilder::output(Ref value, const std::vector<int>& order) {
  state_->check(value, "output");
  require(is_order(order, state_->graph.type(value).rank()), "output: the memory order does not name each of ",
          state_->graph.type(value).rank(), " dimensions once");
  state_->builder.output(value, order);
}

std::string GraphBuilder::shape(Ref value) const {
  state_->check(value, "shape");
  return name_of(state_->graph.dtype(value)) + str(state_->graph.shape(value));
}

std::string GraphBuilder::text() const { return print(state_->graph); }

// ---- Function ------------------------------------------------------------------------------------------------------

struct Function::State {
  std::shared_ptr<const Executable> executable;

  const Program& program() const { return executable->program(); }
  bool is_scalar(size_t input) const {
    return program().forward[program().forward.inputs[input]].op == Op::scalar_input;
  }
  const std::string& input_name(size_t input) const {
    return program().forward[program().forward.inputs[input]].text("name");
  }
};

struct Function::Saved::State {
  std::shared_ptr<const Function::State> function;
  std::vector<Tensor> tensors;  // of the backward's inputs, the gradients not yet among them
  std::vector<double> scalars;
  std::vector<Tensor> outputs;  // sizes only
  int64_t bytes = 0;
};

namespace {

// A tensor of these sizes without memory for each element: what is never read, or is zero everywhere.
Tensor placeholder(const Tensor& like) {
  static const std::shared_ptr<void> zeros = std::make_shared<std::array<double, 2>>();
  Tensor result = like;
  result.data = zeros.get();
  result.owner = zeros;
  result.strides.fill(0);
  return result;
}

}  // namespace

Function Function::compile(const GraphBuilder& graph, const std::vector<std::string>& gradients_of) {
  const Graph& program = graph.state_->graph;
  require(!program.outputs.empty(), "the graph has no output");
  std::vector<bool> wrt(program.inputs.size());
  for (const std::string& name : gradients_of) {
    auto found = std::find_if(program.inputs.begin(), program.inputs.end(),
                              [&](Value v) { return program[v].text("name") == name; });
    require(found != program.inputs.end(), "no input '", name, "' to take a gradient of");
    require(is_float(program.dtype(*found)), "input '", name, "': ", name_of(program.dtype(*found)),
            " has no gradient");
    wrt[static_cast<size_t>(found - program.inputs.begin())] = true;
  }
  auto state = std::make_shared<State>();
  state->executable = Executable::compile(program, wrt);
  Function result;
  result.state_ = std::move(state);
  return result;
}

Function::Result Function::forward(const std::vector<Tensor>& inputs, const std::vector<double>& scalars,
                                   Host& host) const {
  require(state_ != nullptr, "this Function was not compiled");
  Result result;
  result.outputs = state_->executable->forward().run(host, inputs, scalars);
  const Program& program = state_->program();
  if (!program.training()) return result;

  auto saved = std::make_shared<Saved::State>();
  saved->function = state_;
  for (const Program::Saved& s : program.saved) {
    size_t index = static_cast<size_t>(s.index), position = 0;
    if (!s.is_input) {
      saved->tensors.push_back(result.outputs[index]);
      if (index >= program.user_outputs)
        saved->bytes += result.outputs[index].elements() * size_of(result.outputs[index].dtype);
      continue;
    }
    bool scalar = state_->is_scalar(index);
    for (size_t i = 0; i < index; ++i) position += state_->is_scalar(i) == scalar;
    if (scalar)
      saved->scalars.push_back(scalars[position]);
    else
      saved->tensors.push_back(s.sizes_only ? placeholder(inputs[position]) : inputs[position]);
  }
  result.outputs.resize(program.user_outputs);
  for (const Tensor& output : result.outputs) saved->outputs.push_back(placeholder(output));
  result.saved.state_ = std::move(saved);
  return result;
}

std::map<std::string, Tensor> Function::backward(const Saved& saved, const std::vector<Tensor>& dL_dy,
                                                 Host& host) const {
  require(state_ != nullptr && state_->program().training(), "this Function was compiled without gradients");
  require(saved.state_ != nullptr && saved.state_->function == state_, "what was saved belongs to another Function");
  const Saved::State& from = *saved.state_;
  require(dL_dy.size() == from.outputs.size(), "backward: ", from.outputs.size(), " gradients are needed, not ",
          dL_dy.size());
  const Program& program = state_->program();
  std::vector<Tensor> inputs = from.tensors;
  for (int output : program.gradient_of_output) {
    const Tensor& gradient = dL_dy[static_cast<size_t>(output)];
    inputs.push_back(gradient ? gradient : from.outputs[static_cast<size_t>(output)]);
  }
  std::vector<Tensor> gradients = state_->executable->backward().run(host, inputs, from.scalars);
  std::map<std::string, Tensor> result;
  for (size_t i = 0; i < gradients.size(); ++i)
    result[state_->input_name(static_cast<size_t>(program.gradient_for_input[i]))] = gradients[i];
  return result;
}

int64_t Function::Saved::bytes() const { return state_ ? state_->bytes : 0; }

std::vector<Function::KernelInfo> Function::kernels() const {
  require(state_ != nullptr, "this Function was not compiled");
  std::vector<KernelInfo> result;
  auto add = [&](const Plan& plan, const char* phase) {
    for (const Plan::KernelReport& report : plan.kernels()) {
      KernelInfo info{report.code->name, phase, report.code->schedule, report.code->operators, report.code->text};
      result.push_back(std::move(info));
    }
  };
  add(state_->executable->forward(), "forward");
  if (state_->program().training()) add(state_->executable->backward(), "backward");
  return result;
}

std::string Function::explain() const {
  std::ostringstream text;
  for (const KernelInfo& kernel : kernels()) {
    text << kernel.phase << "  " << kernel.name << "  (" << kernel.schedule << "):";
    for (const std::string& name : kernel.operators) text << " " << name;
    text << "\n";
  }
  const Program& program = state_->program();
  auto rest = [&](const Plan& plan, const Fusion& fusion, const char* phase) {
    for (Value v : plan.library_calls()) text << phase << "  library: " << plan.graph().describe(v) << "\n";
    for (const Stop& stop : fusion.stops)
      text << phase << "  stopped: " << stop.reason << ": " << plan.graph().describe(stop.value) << ": " << stop.detail
           << "\n";
  };
  rest(state_->executable->forward(), program.forward_fusion, "forward");
  if (program.training()) rest(state_->executable->backward(), program.backward_fusion, "backward");
  for (const std::string& rule : program.rewrites) text << "rewrite  " << rule << "\n";
  return text.str();
}

// ---- tensors -------------------------------------------------------------------------------------------------------

namespace {
template <class T>
constexpr DType dtype_of();
template <>
constexpr DType dtype_of<float>() {
  return DType::f32;
}
template <>
constexpr DType dtype_of<double>() {
  return DType::f64;
}
template <>
constexpr DType dtype_of<int64_t>() {
  return DType::i64;
}
template <>
constexpr DType dtype_of<int32_t>() {
  return DType::i32;
}
}  // namespace

template <class T>
Tensor make_tensor(const std::vector<T>& values, const std::vector<int64_t>& sizes) {
  require(sizes.size() <= static_cast<size_t>(max_rank), "make_tensor: more than ", max_rank, " dimensions");
  Tensor tensor;
  tensor.dtype = dtype_of<T>();
  tensor.rank = static_cast<int>(sizes.size());
  int64_t stride = 1;
  for (size_t d = sizes.size(); d-- > 0;) {
    require(sizes[d] >= 0, "make_tensor: negative size ", sizes[d]);
    tensor.sizes[d] = sizes[d];
    tensor.strides[d] = stride;
    stride *= std::max<int64_t>(sizes[d], 1);
  }
  require(tensor.elements() == static_cast<int64_t>(values.size()), "make_tensor: ", values.size(), " values for ",
          tensor.elements(), " elements");
  plain_host().allocate(tensor);
  std::copy(values.begin(), values.end(), static_cast<T*>(tensor.data));
  return tensor;
}

template <class T>
std::vector<T> to_vector(const Tensor& tensor) {
  require(tensor.dtype == dtype_of<T>(), "to_vector: the tensor is ", name_of(tensor.dtype), ", not ",
          name_of(dtype_of<T>()));
  std::vector<T> result(static_cast<size_t>(tensor.elements()));
  std::array<int64_t, max_rank> at{};
  for (T& value : result) {
    int64_t offset = 0;
    for (size_t d = 0; d < static_cast<size_t>(tensor.rank); ++d) offset += at[d] * tensor.strides[d];
    value = static_cast<const T*>(tensor.data)[offset];
    for (int d = tensor.rank; d-- > 0 && ++at[static_cast<size_t>(d)] == tensor.sizes[static_cast<size_t>(d)];)
      at[static_cast<size_t>(d)] = 0;
  }
  return result;
}

template Tensor make_tensor(const std::vector<float>&, const std::vector<int64_t>&);
template Tensor make_tensor(const std::vector<double>&, const std::vector<int64_t>&);
template Tensor make_tensor(const std::vector<int64_t>&, const std::vector<int64_t>&);
template Tensor make_tensor(const std::vector<int32_t>&, const std::vector<int64_t>&);
template std::vector<float> to_vector(const Tensor&);
template std::vector<double> to_vector(const Tensor&);
template std::vector<int64_t> to_vector(const Tensor&);
template std::vector<int32_t> to_vector(const Tensor&);

}  // namespace fusewright
