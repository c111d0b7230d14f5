// The operators without memory: what tracers and compilers run to learn sizes and strides.
#include <ATen/ATen.h>
#include <torch/library.h>

#include "runtime/plan/preconditions.h"
#include "torch/region.h"
#include "torch/tensors.h"

namespace fusewright {
namespace {

using Results = std::vector<at::Tensor>;

c10::SymInt apply_symbolic(SizeCall call, const c10::SymInt& a, const c10::SymInt& b) {
  auto x = a.maybe_as_int(), y = b.maybe_as_int();
  switch (call) {
    case SizeCall::floordiv:
      return x && y ? c10::SymInt(*Size::floordiv(*x, *y).constant()) : a / b;
    case SizeCall::mod:
      return x && y ? c10::SymInt(*Size::mod(*x, *y).constant()) : a % b;
    case SizeCall::min:
      return a.min(b);
    default:
      return a.max(b);
  }
}

// Tensors without memory, as a plan of the graph gives them for tensors of these sizes, which may be symbolic.
Results fake_results(const Graph& graph, const std::vector<at::Tensor>& tensors) {
  SymbolBinder binder(graph);
  auto actual = [&](int input, int dim) {
    int index = tensor_index(graph, input);
    TORCH_CHECK(index < static_cast<int>(tensors.size()), "fusewright: too few tensors");
    return tensors[static_cast<size_t>(index)].sym_size(dim);
  };
  const std::vector<c10::SymInt> symbols = binder.solve<c10::SymInt>(actual, apply_symbolic);
  auto value_of = [&](const Size& size) { return SizeProgram(size, binder.slots()).run_over(symbols, apply_symbolic); };
  for (size_t i = 0; i < graph.inputs.size(); ++i) {
    const Shape& shape = graph.shape(graph.inputs[i]);
    for (size_t d = 0; d < shape.size(); ++d)
      TORCH_CHECK(value_of(shape[d]) == actual(static_cast<int>(i), static_cast<int>(d)), "fusewright: input '",
                  graph[graph.inputs[i]].text("name"), "': dimension ", d, " must be ", shape[d].str());
  }
  Results results;
  for (const Output& output : graph.outputs) {
    const Shape& shape = graph.shape(output.value);
    std::vector<c10::SymInt> sizes, strides(shape.size());
    for (const Size& size : shape) sizes.push_back(value_of(size));
    c10::SymInt stride = 1;
    for (size_t i = sizes.size(); i-- > 0;) {
      size_t d = output.order.empty() ? i : static_cast<size_t>(output.order[i]);
      strides[d] = stride;
      stride = stride * sizes[d].max(1);
    }
    results.push_back(at::empty_strided_symint(sizes, strides,
                                               tensors.at(0).options().dtype(scalar_type(graph.dtype(output.value)))));
  }
  return results;
}

Results run_meta(int64_t handle, at::TensorList inputs, at::ArrayRef<double>) {
  return fake_results(Region::find(handle)->graph(), inputs.vec());
}

Results run_training_meta(int64_t handle, at::TensorList inputs, at::ArrayRef<double>, at::IntArrayRef wanted) {
  std::shared_ptr<Region> region = Region::find(handle);
  auto executable = region->executable(pattern(region->graph(), wanted), region->gpu());
  return fake_results(executable->program().forward, inputs.vec());
}

Results run_backward_meta(int64_t handle, at::TensorList saved, at::TensorList gradients, at::ArrayRef<double>,
                          at::IntArrayRef wanted) {
  std::shared_ptr<Region> region = Region::find(handle);
  auto executable = region->executable(pattern(region->graph(), wanted), region->gpu());
  Results inputs = saved.vec();
  inputs.insert(inputs.end(), gradients.begin(), gradients.end());
  return fake_results(executable->program().backward, inputs);
}

}  // namespace

TORCH_LIBRARY_IMPL(fusewright, Meta, m) {
  m.impl("run", run_meta);
  m.impl("run_training", run_training_meta);
  m.impl("run_backward", run_backward_meta);
}

}  // namespace fusewright
