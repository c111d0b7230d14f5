// The one place that looks behind c10::Stream. We link no CUDA library of PyTorch's, so that one build serves every
// torch; newer versions hand the handle out through c10, older ones only through a member of c10::cuda::CUDAStream.
#include "torch/stream.h"

#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>

namespace fusewright {
namespace {

// cudaStream_t c10::cuda::CUDAStream::stream() const. A CUDAStream is a c10::Stream and nothing else.
using StreamMember = void* (*)(const c10::Stream* self);

[[maybe_unused]] StreamMember find_member() {
  // It is loaded already: tensors of that device exist.
  void* library = dlopen("libc10_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
  void* symbol = library ? dlsym(library, "_ZNK3c104cuda10CUDAStream6streamEv") : nullptr;
  TORCH_CHECK(symbol, "fusewright: this version of PyTorch does not hand out its CUDA streams");
  return reinterpret_cast<StreamMember>(symbol);
}

template <class Stream>
void* handle_of(const Stream& stream) {
  if constexpr (requires { stream.native_handle(); }) {
    return stream.native_handle();
  } else {
    static const StreamMember member = find_member();
    return member(&stream);
  }
}

}  // namespace

void* current_stream(c10::Device device) {
  return handle_of(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
}

}  // namespace fusewright
