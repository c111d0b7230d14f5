"""The stable names of the reasons why something stays PyTorch's.

`explain` prints them, log lines carry them and `UnsupportedError.reason` holds one: a user may search for them.
"""

UNSUPPORTED_OPERATOR = "unsupported_operator"  # the operator has no row in operators/
UNSUPPORTED_DTYPE = "unsupported_dtype"  # an element type (complex, quantised ...) or a mix the operator's row declines
UNSUPPORTED_ATTRIBUTE = "unsupported_attribute"  # the operator is known, this use of it is not
UNSUPPORTED_LAYOUT = "unsupported_layout"  # sparse, nested, or a tensor subclass
DEVICE = "device"  # a device without kernels of ours, or an operator between two devices
NO_GPU_RUNTIME = "no_gpu_runtime"  # tensors on a GPU, but the driver or NVRTC is missing or too old: the detail says
DYNAMIC_SHAPE = "dynamic_shape"  # a size that the region's inputs do not determine, or an attribute that is no constant
CAPTURE_FAILED = "capture_failed"  # Dynamo could not trace the frame: it runs in eager
CAPTURE_LIMIT = "capture_limit"  # too many captures of one frame: the known ones stay, others run in eager
EXPORT_FAILED = "export_failed"  # the traced graph could not be normalised: it runs as Dynamo gave it
CHECKPOINT = "checkpoint"  # torch.utils.checkpoint inside the model: PyTorch runs it
STATE = "state"  # a hook, functorch, inference mode or the like: PyTorch runs it, and what stands around it is fused
# A write into an input that is no buffer of a module, or behind autograd's back (under no_grad, through detach or
# .data) into a value that has a gradient: PyTorch runs it, and what stands around it is fused.
MUTATION = "mutation"
UNAVAILABLE = "no_compiler"  # the core has no compiler, or lacks something else, for the region
REJECTED = "core_rejected"  # the core refused the region: see the detail
INTERNAL = "internal_error"  # a fault of ours; the debug log has the traceback
TRANSFORM = "transform"  # a transform of torch.func, or derivatives in forward mode
DISPATCH_MODE = "dispatch_mode"  # a TorchDispatchMode that is to see every operator: FlopCounterMode
TRACED = "traced"  # torch.jit.trace or make_fx records what runs
OUTER_COMPILE = "outer_compile"  # inside of a function that torch.compile compiles with another backend
BYPASSED = "bypassed"  # by `forward` or another method of the model, and not by its call
SLOWER = "slower_than_eager"  # timed on the GPU: for inputs of these sizes PyTorch's own operators are faster
TOO_SMALL = "too_small"  # single numbers, or one operator on few: a kernel would cost more than it saves
ALONE = "nothing_to_fuse"  # a product, a cast or an update with no other operator beside it: PyTorch's own is as good
MADE_HERE = "not_computed_from_tensors"  # a fresh tensor or a number, of which nothing is read from memory

ALL = tuple(sorted(value for name, value in globals().items() if name.isupper() and isinstance(value, str)))
