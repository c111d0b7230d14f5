#include "torch/host.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/CUDAHooksInterface.h>

#include <atomic>

#include "torch/recorded.h"
#include "torch/stream.h"
#include "torch/tensors.h"
#include "torch/threads.h"

namespace fusewright {
namespace {

std::atomic<bool> emulating = false;

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(const LibraryCall& call, const at::Tensor& dL_dy,
                                                                    const at::Tensor& x, const at::Tensor& w,
                                                                    bool input) {
  return at::convolution_backward(dL_dy, x, w, c10::nullopt, call.stride, call.padding, call.dilation, call.transposed,
                                  call.output_padding, call.groups, {input, !input, false});
}

// The question has a form of its own in each of PyTorch's versions.
[[maybe_unused]] bool ask(bool (at::Context::*tf32)() const, const at::Context& context) { return (context.*tf32)(); }
[[maybe_unused]] bool ask(bool (at::Context::*tf32)(const std::string&) const, const at::Context& context) {
  return (context.*tf32)("conv");
}
template <class Op>
bool ask(bool (at::Context::*tf32)(std::optional<Op>) const, const at::Context& context) {
  return (context.*tf32)(Op::CONV);
}

// allowTF32CuBLAS raises an error where the user chose by fp32_precision, which newer versions have.
template <class Precision, class Backend, class Op>
[[maybe_unused]] bool ask_products(Precision (at::Context::*precision)(Backend, Op) const, const at::Context& context) {
  return (context.*precision)(Backend::CUDA, Op::MATMUL) == Precision::TF32;
}
[[maybe_unused]] bool ask_products(std::string (at::Context::*precision)(const std::string&, const std::string&) const,
                                   const at::Context& context) {
  return (context.*precision)("cuda", "matmul") == "tf32";
}
template <class Context>
auto ask_products(const Context& context, int) -> decltype(ask_products(&Context::float32Precision, context)) {
  return ask_products(&Context::float32Precision, context);
}
template <class Context>
bool ask_products(const Context& context, long) {
  return context.allowTF32CuBLAS();
}

template <class Precision, class Backend, class Op>
[[maybe_unused]] void set_products(void (at::Context::*precision)(Backend, Op, Precision), at::Context& context,
                                   bool tf32) {
  (context.*precision)(Backend::CUDA, Op::MATMUL, tf32 ? Precision::TF32 : Precision::IEEE);
}
[[maybe_unused]] void set_products(void (at::Context::*precision)(const std::string&, const std::string&,
                                                                  const std::string&),
                                   at::Context& context, bool tf32) {
  (context.*precision)("cuda", "matmul", tf32 ? "tf32" : "ieee");
}
template <class Context>
auto set_products(Context& context, bool tf32,
                  int) -> decltype(set_products(&Context::setFloat32Precision, context, tf32)) {
  set_products(&Context::setFloat32Precision, context, tf32);
}
template <class Context>
void set_products(Context& context, bool tf32, long) {
  context.setAllowTF32CuBLAS(tf32);
}

}  // namespace

bool allows_tf32_convolution() { return ask(&at::Context::allowTF32CuDNN, at::globalContext()); }
bool allows_tf32_products() { return ask_products(at::globalContext(), 0); }

static Tf32 current_tf32() { return {allows_tf32_convolution(), allows_tf32_products()}; }

static void set(const Tf32& before, const Tf32& setting) {
  if (setting.convolutions != before.convolutions) at::globalContext().setAllowTF32CuDNN(*setting.convolutions);
  if (setting.products != before.products) set_products(at::globalContext(), *setting.products, 0);
}

Tf32 Tf32::of(at::Device device) { return device.is_cuda() ? current_tf32() : Tf32{}; }

Tf32::Restored::Restored(const Tf32& wanted) {
  if (!wanted.products) return;
  before_ = current_tf32();
  changed_ = !(before_ == wanted);
  if (changed_) set(before_, wanted);
}

Tf32::Restored::~Restored() {
  if (changed_) set(current_tf32(), before_);
}

void emulate_cuda(bool enabled) { emulating = enabled; }
bool emulates_cuda() { return emulating; }

int gpu_of(at::Device device) { return device.is_cuda() ? device.index() : emulating ? 0 : -1; }

TorchHost::TorchHost(at::Device device)
    : device_(device), gpu_(gpu_of(device)), stream_(device.is_cuda() ? current_stream(device) : nullptr) {}

void TorchHost::parallel_for(int64_t n, int64_t grain, const std::function<void(int64_t, int64_t)>& body) {
  parallel_in_torch(n, grain, body);
}

// As at::empty_strided does it, without the way through the dispatcher. On a GPU: the current one, which is ours.
void TorchHost::allocate(Tensor& t) {
  const at::IntArrayRef sizes = sizes_of(t), strides = strides_of(t);
  at::Tensor memory;
  if (device_.is_cpu())
    memory = at::detail::empty_strided_cpu(sizes, strides, scalar_type(t.dtype));
  else
    memory = at::detail::empty_strided_generic(sizes, strides, at::detail::getCUDAHooks().getCUDADeviceAllocator(),
                                               c10::DispatchKeySet(c10::DispatchKey::CUDA), scalar_type(t.dtype));
  t.data = memory.data_ptr();
  t.owner = std::make_shared<at::Tensor>(std::move(memory));
}

void TorchHost::named(const std::string& name, const std::function<void()>& work) {
  recorded([&] { return name; }, work);
}

Tensor TorchHost::call(const LibraryCall& call, const std::vector<Tensor>& operands) {
  at::Tensor a = view(operands[0]), b = view(operands[1]);
  std::optional<at::Tensor> bias;
  if (operands.size() == 3) bias = view(operands[2]);
  switch (call.kind) {
    case LibraryCall::Kind::matmul:
      if (bias) return wrap(at::addmm(*bias, a, b));
      return wrap(a.dim() == 2 ? at::mm(a, b) : at::matmul(a, b));
    case LibraryCall::Kind::conv:
      return wrap(at::convolution(a, b, bias, call.stride, call.padding, call.dilation, call.transposed,
                                  call.output_padding, call.groups));
    case LibraryCall::Kind::conv_input_grad:
      return wrap(std::get<0>(convolution_backward(call, a, shape_only(call, a), b, true)));
    default:
      return wrap(std::get<1>(convolution_backward(call, a, b, shape_only(call, a), false)));
  }
}

Tensor TorchHost::call_exactly(const LibraryCall& what, const std::vector<Tensor>& operands) {
  Tf32 wanted = current_tf32();
  wanted.convolutions = wanted.products = false;
  const Tf32::Restored exact(wanted);
  return call(what, operands);
}

double TorchHost::distance(const Tensor& a, const Tensor& b) {
  const at::NoGradGuard no_grad;
  // Added up in float64, without a copy in float64: the tensors may be large.
  const auto norm = [](const at::Tensor& t) { return at::linalg_vector_norm(t, 2, std::nullopt, false, at::kDouble); };
  return (norm(view(a) - view(b)) / norm(view(b))).item<double>();
}

bool TorchHost::exact_matrix_products() const { return !allows_tf32_products(); }

// Without cuDNN eager's convolutions are exact, whatever cuDNN may do.
bool TorchHost::allows_tf32_convolutions() const {
  return allows_tf32_convolution() && at::globalContext().userEnabledCuDNN();
}

bool TorchHost::deterministic() const { return at::globalContext().deterministicAlgorithms(); }

void TorchHost::copy(const Tensor& from, Tensor& to) { view(to).copy_(view(from)); }
void TorchHost::clear(Tensor& t) { view(t).zero_(); }

Tensor TorchHost::zeros(const std::vector<int64_t>& sizes, DType dtype) {
  Tensor t;
  t.dtype = dtype;
  allocate(t);  // on a GPU it is written on this call's stream: a zero kept from another one might not be there yet
  clear(t);
  t.rank = static_cast<int>(sizes.size());
  std::copy(sizes.begin(), sizes.end(), t.sizes.begin());
  return t;
}

at::Tensor TorchHost::view(const Tensor& t) const {
  // The device is told, not asked of the driver, for each pointer.
  return at::for_blob(t.data, sizes_of(t))
      .strides(strides_of(t))
      .options(at::dtype(scalar_type(t.dtype)).device(device_))
      .target_device(device_)
      .make_tensor();
}

// convolution_backward wants the tensor whose gradient it computes, but reads only its sizes and memory format.
at::Tensor TorchHost::shape_only(const LibraryCall& call, const at::Tensor& like) const {
  at::IntArrayRef sizes(call.sizes.data(), static_cast<size_t>(call.rank));
  // Grouped convolutions have backends that make every operand row-major, and would read what is not there. Those that
  // the layout pass moves to channels last are cuDNN's: depthwise, of images.
  const bool by_cudnn = device_.is_cuda() && like.dim() == 4 && !call.transposed && like.size(1) == call.groups &&
                        like.scalar_type() != at::kDouble && at::globalContext().userEnabledCuDNN();
  auto format = call.groups == 1 || by_cudnn ? like.suggest_memory_format() : at::MemoryFormat::Contiguous;
  std::vector<int64_t> strides;
  if (format == at::MemoryFormat::ChannelsLast) {
    strides = c10::get_channels_last_strides_2d(sizes);
  } else if (format == at::MemoryFormat::ChannelsLast3d) {
    strides = c10::get_channels_last_strides_3d(sizes);
  } else {
    auto row_major = c10::contiguous_strides(sizes);
    strides.assign(row_major.begin(), row_major.end());
  }
  return at::for_blob(like.data_ptr(), sizes)
      .strides(strides)
      .options(like.options())
      .target_device(device_)
      .make_tensor();
}

}  // namespace fusewright
