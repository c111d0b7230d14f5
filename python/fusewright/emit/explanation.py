"""What stands at the top of an emitted file: what was fused, what it saves, what was left alone, and why."""

from __future__ import annotations

import textwrap
from collections import Counter

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from .. import _core
from ..benchmark.traffic import traffic_of
from ..log import logger
from ..units import show_bytes
from .capturing import Capture
from .extension import plain_words

_WIDTH = 116
_WHY = (
    "Every operator of eager PyTorch reads its operands from memory and writes its result back. A fused kernel reads "
    "each tensor once, keeps all that lies between in registers, and writes only what somebody else reads. The "
    "backward computes again what is cheaper to compute than to store."
)


def eager_bytes(model: torch.nn.Module, inputs: list, training: bool) -> int | None:
    """Bytes that eager's operators move beside those of its library, for these inputs. Nothing is computed."""
    try:
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
            fake = {name: mode.from_tensor(tensor) for name, tensor in tensors.items()}
            given = [mode.from_tensor(x) if isinstance(x, torch.Tensor) else x for x in inputs]

            def run() -> None:
                results = torch.func.functional_call(model, fake, tuple(given))
                results = torch.utils._pytree.tree_leaves(results)
                wanted = [r for r in results if isinstance(r, torch.Tensor) and r.requires_grad]
                if wanted:
                    torch.autograd.backward(wanted, [torch.empty_like(r) for r in wanted])

            with torch.set_grad_enabled(training):
                return traffic_of(run).bytes
    except Exception as error:  # a model that cannot be run without memory: the file says nothing about it
        logger.debug("what eager moves was not counted", exc_info=error)
        return None


def bytes_outside(capture: Capture, training: bool) -> int | None:
    """The same of what stands outside the regions of a captured graph."""
    try:
        module = capture.captured.module
        values = [node.meta["val"] for node in module.graph.nodes if node.op == "placeholder"]
        mode = next(x.fake_mode for x in values if isinstance(x, torch.Tensor))
        with mode, torch.set_grad_enabled(training):
            given = [
                x.detach().requires_grad_(training and wanted) if isinstance(x, torch.Tensor) else x
                for x, wanted in zip(values, capture.requires_grad, strict=True)
            ]

            def run() -> None:
                results = torch.utils._pytree.tree_leaves(module.forward(*given))
                wanted = [r for r in results if isinstance(r, torch.Tensor) and r.requires_grad]
                if wanted:
                    torch.autograd.backward(wanted, [torch.empty_like(r) for r in wanted])

            return traffic_of(run).bytes
    except Exception as error:
        logger.debug("what stays outside was not counted", exc_info=error)
        return None


def _paragraph(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=indent, subsequent_indent=indent, break_long_words=False)


def explanation(file, emitted, eager: int | None, outside: int | None, new_name: str) -> list[str]:
    """The lines of the file's docstring."""
    cuda = emitted.backend == "cuda"
    model = file.model.__name__
    step = "a training step" if emitted.training else "a call"
    needs = "nvcc of CUDA 11.8 or newer" if cuda else "a C++17 compiler"
    lines = [f"{file.name}: {new_name}, in place of {model}, with fused {'CUDA' if cuda else 'C++'} kernels.", ""]
    lines += _paragraph(
        f"Written by Fusewright {_core.version()}; needs PyTorch 2.0 or newer and {needs}, and nothing else. Kernels "
        f"are built when the model first runs. Names, order and first values of all parameters are those of {model}."
    )
    lines += ["", "What was fused"]
    for kernel in emitted.kernels:
        moved = f"reads {show_bytes(kernel['bytes_read'])}, writes {show_bytes(kernel['bytes_written'])}"
        lines.append(f"  {kernel['name']}")
        lines += _paragraph(
            f"{kernel['phase']}, {kernel['schedule']} schedule, {moved}: {' '.join(kernel['operators'])}", "    "
        )
    # Before and now, or neither: what cannot be counted on both sides is not compared.
    before = "" if None in (eager, outside) else f"{show_bytes(eager)} before, "
    now = emitted.bytes_of_a_step + (outside or 0)
    lines += ["", "What it moves"]
    lines += _paragraph(
        f"Outside of matrix products and convolutions, {step} with inputs {emitted.sizes} moves {before}"
        f"{show_bytes(now)} now{'' if outside is not None else ' in its kernels'}.",
        "  ",
    )
    lines += ["", "Why it is faster", *_paragraph(_WHY, "  ")]
    for name, meaning in emitted.rewrites:
        lines += _paragraph(f"{name}: {meaning}.", "  ")
    if emitted.library or emitted.fallbacks:
        lines += ["", "Left to PyTorch"]
    if emitted.library:
        calls = ", ".join(f"{call} x{n}" if n > 1 else call for call, n in Counter(emitted.library).items())
        lines += _paragraph(f"{calls}: its library computes them well, and is called as eager calls it.", "  ")
    for fallback in emitted.fallbacks:
        lines += _paragraph(fallback, "  ")
    if emitted.measured:
        lines += ["", "Measured", *(line for text in emitted.measured for line in _paragraph(text, "  "))]
    text = plain_words("\n".join(lines)).replace("\\", "/").replace('"""', "'''")
    return [f'"""{text}', '"""', ""]
