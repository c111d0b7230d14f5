"""What a training step holds: the numbers of PyTorch's own allocators, above what stood before the step.

On a GPU the allocator counts. On the CPU the profiler is told of every block that it hands out and takes back; scratch
memory that a library gets elsewhere is not seen.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.profiler import record_function

from .measure import synchronize, tensors_in
from .profiling import profiled

_FORWARD_IS_DONE = "fusewright: forward is done"


@dataclass(frozen=True)
class Memory:
    """Bytes."""

    held: int  # between forward and backward, the result apart
    peak: int  # of the whole step


def memory_of(model: nn.Module, call: Callable[..., object], inputs: list, gradients: list[torch.Tensor]) -> Memory:
    """Of a step that has run before: whatever is made once is there. `call` is called in the model's place."""
    leaves = [*tensors_in(inputs), *model.parameters()]

    def forget() -> None:
        for tensor in leaves:
            tensor.grad = None
        gc.collect()
        synchronize(inputs)

    def step(between: Callable[[object], None]) -> None:
        output = call(*inputs)
        between(output)
        outputs = [x for x in tensors_in(output) if x.requires_grad]
        del output
        torch.autograd.backward(outputs, gradients)

    forget()
    try:
        gpu = next((tensor.device for tensor in leaves if tensor.is_cuda), None)
        return _on_gpu(step, gpu) if gpu else _on_cpu(step)
    finally:
        forget()


def _on_gpu(step: Callable, gpu: torch.device) -> Memory:
    held = []
    before = torch.cuda.memory_allocated(gpu)
    torch.cuda.reset_peak_memory_stats(gpu)
    step(lambda output: held.append(torch.cuda.memory_allocated(gpu) - before - _bytes(output)))
    return Memory(held[0], torch.cuda.max_memory_allocated(gpu) - before)


def _on_cpu(step: Callable) -> Memory:
    result = []

    def mark(output: object) -> None:
        result.append(_bytes(output))
        with record_function(_FORWARD_IS_DONE):
            pass

    with profiled(profile_memory=True) as found:
        step(mark)
    events = found.profiler.kineto_results.events()
    (done,) = (event.start_ns() for event in events if event.name() == _FORWARD_IS_DONE)
    blocks = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    now = held = peak = 0
    for moment, size in blocks:
        now += size
        peak = max(peak, now)
        if moment < done:
            held = now
    return Memory(held - result[0], peak)


def _bytes(value: object) -> int:
    """Of the memory behind the tensors, each block once."""
    storages = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in tensors_in(value)}
    return sum(storages.values())
