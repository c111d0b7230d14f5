// The schedule of the host's library, as a step of a plan.
#include "runtime/plan/library.h"

#include "ir/error.h"
#include "schedule/library.h"

namespace fusewright {
namespace {

LibraryCall library_call_of(const Node& node) {
  LibraryCall call;
  switch (node.op) {
    case Op::matmul:
      call.kind = LibraryCall::Kind::matmul;
      return call;
    case Op::conv:
      call.kind = LibraryCall::Kind::conv;
      break;
    case Op::conv_input_grad:
      call.kind = LibraryCall::Kind::conv_input_grad;
      break;
    case Op::conv_weight_grad:
      call.kind = LibraryCall::Kind::conv_weight_grad;
      break;
    default:
      fail("the library computes no ", name_of(node.op));
  }
  call.transposed = node.integer("transposed") != 0;
  call.groups = node.integer("groups");
  call.stride = node.ints("stride");
  call.padding = node.ints("padding");
  call.dilation = node.ints("dilation");
  call.output_padding = node.ints("output_padding");
  return call;
}

KernelCode code_of(const Graph& graph, const Kernel& kernel, const Schedule& schedule) {
  KernelCode code;
  code.schedule = schedule.name();
  for (Value v : kernel.loaded()) code.operands.push_back({v, false, graph.dtype(v), {}});
  code.operands.push_back({kernel.contraction(), true, graph.dtype(kernel.contraction()), {}});
  return code;
}

}  // namespace

LibraryLauncher::LibraryLauncher(const Graph& graph, const Kernel& kernel, const Schedule& schedule)
    : Launcher(code_of(graph, kernel, schedule)), call_(library_call_of(graph[kernel.contraction()])) {}

Tensor LibraryLauncher::make_result(Host& host, const std::vector<const Tensor*>& operands, TuningProgress*) const {
  return library_result(host, operands, false);
}

Tensor LibraryLauncher::library_result(Host& host, const std::vector<const Tensor*>& operands, bool exactly) const {
  LibraryCall call = call_;
  call.rank = operands.back()->rank;
  call.sizes = operands.back()->sizes;
  std::vector<Tensor> given;
  for (size_t i = 0; i + 1 < operands.size(); ++i) given.push_back(*operands[i]);
  return exactly ? host.call_exactly(call, given) : host.call(call, given);
}

std::unique_ptr<Launcher> Library::launcher(const LauncherInputs& inputs) const {
  return std::make_unique<LibraryLauncher>(inputs.graph, inputs.kernel, *this);
}

}  // namespace fusewright
