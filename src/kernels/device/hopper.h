// The wrappers of Hopper's instructions in one text, pasted behind cuda_device.h in front of kernels that use them.
#include "shapes.h"

#include "barrier.h"

#include "async.h"

#include "wgmma_registers.h"

#include "tensor_core.h"
