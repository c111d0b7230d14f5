"""What emitted files call. page.py copies the functions that a file needs, and defines _BACKEND."""

import torch


def _device_of(x):
    """Where a region runs: on the device that the kernels are for."""
    if x.device.type != _BACKEND:
        raise RuntimeError(f"this file has kernels for {_BACKEND} tensors, but was given one on {x.device}")
    if _autocast_is_on():
        raise RuntimeError("this file was written without autocast: cast the model and its inputs instead")
    return x.device


def _autocast_is_on():
    if hasattr(torch, "get_autocast_dtype"):  # PyTorch 2.4
        return torch.is_autocast_enabled(_BACKEND)
    return torch.is_autocast_enabled() if _BACKEND == "cuda" else torch.is_autocast_cpu_enabled()


def _positive(size, what):
    if size <= 0:
        raise RuntimeError(f"{what} is {size}, but must be positive")


def _more_than_one(count):
    """Values in a channel, for statistics of the batch. (Eager takes an empty batch, and leaves its buffers alone.)"""
    if count == 1:
        raise ValueError("Expected more than 1 value per channel when training")
    if count == 0:
        raise RuntimeError("this file takes no empty batch in training: there are no statistics of it")


def _expect_size(holds, what):
    if not holds:
        raise RuntimeError(f"this file was written for sizes with {what}: emit the model again for these")


def _expect(actual, expected, what):
    if actual is not expected and (isinstance(actual, torch.Tensor) or actual != expected):
        raise RuntimeError(f"this file was written for {what} = {expected!r}, not {actual!r}: emit the model again")


def _expect_state(model, names):
    """The same parameters and buffers as the model that this file was made from; asked once."""
    if "_state_is_known" not in model.__dict__:
        found = [name for name, _ in (*model.named_parameters(), *model.named_buffers())]
        _expect(found, names, "the names of parameters and buffers")
        model.__dict__["_state_is_known"] = True


def _any_requires_grad(*tensors):
    return any(x.requires_grad for x in tensors)


def _no_gradient(*tensors):
    if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
        raise RuntimeError("this part of the model was emitted without gradients: call it under torch.no_grad()")


def _no_such_gradient(needed, name):
    if needed:
        raise RuntimeError(f"{name} required no gradient when this file was emitted: there is none")


def _first_derivatives_only():
    """Whoever differentiates a gradient would take it for a constant."""
    if torch.is_grad_enabled():
        raise RuntimeError("this file has no second derivatives: for create_graph=True call the model it was made from")


def _kinds_of(*results):
    return [(x.shape, x.dtype, x.device) for x in results]


def _needed(asked, leads_to, *gradients):
    """Whose gradient is asked for, and leads to a result that somebody used: an unused head has none, and not zeros."""
    return [
        wanted and (i not in leads_to or any(gradients[k] is not None for k in leads_to[i]))
        for i, wanted in enumerate(asked)
    ]


def _or_zeros(kinds, *gradients):
    def zeros(shape, dtype, device):
        return torch.zeros(shape, dtype=dtype, device=device)

    return [zeros(*kinds[i]) if g is None else g for i, g in enumerate(gradients)]


def _sizes_of(x):
    """One element with the sizes of x: the backward asks for no more, so the memory of x is not held."""
    return x.new_empty(()).expand(x.shape)


def _in_order(x, order):
    """x with its dimensions in this order in memory, copied if it lies otherwise."""
    lying = x.permute(order)
    if lying.is_contiguous():
        return x
    return lying.contiguous().permute([order.index(d) for d in range(x.dim())])


def _shaped(like, sizes):
    """What convolution_backward wants in place of a tensor of which it reads only sizes and memory format."""
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(like.dim())
    if last and like.is_contiguous(memory_format=last) and not like.is_contiguous():
        return torch.empty(sizes, dtype=like.dtype, device=like.device, memory_format=last)
    return like.new_empty(()).expand(sizes)
