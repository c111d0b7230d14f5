#pragma once
#include <c10/core/Device.h>

namespace fusewright {

// The CUstream that PyTorch's operators would be put on now, for a CUDA device; null is the default stream.
void* current_stream(c10::Device device);

}  // namespace fusewright
