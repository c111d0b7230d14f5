"""What is compared: the same model as PyTorch runs it, as torch.compile does in two ways, and ours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from ..optimize import optimize
from ..stats import stats

OURS = "fusewright"


def _compiled(**options) -> Callable[[nn.Module], Callable]:
    return lambda model: torch.compile(model, **options)


MAKERS: dict[str, Callable[[nn.Module], Callable]] = {
    "eager": lambda model: model,
    "torch.compile": _compiled(),
    "max-autotune": _compiled(mode="max-autotune"),
    OURS: optimize,
}


@dataclass(frozen=True)
class Candidate:
    """A model that is ready to run."""

    name: str
    model: nn.Module  # holds parameters and buffers, under the names that the user gave them
    call: Callable[..., object]  # what is called


def prepared(name: str, model: nn.Module, run: Callable[[Candidate], None]) -> Candidate:
    """The candidate of this name, after `run` has run all that will be asked of it: compiled, and on a GPU tuned."""
    candidate = Candidate(name, model, MAKERS[name](model))
    run(candidate)
    if name == OURS:  # the tuner chooses once all kernels are there, which stats() waits for
        stats()
        run(candidate)
        stats()
    return candidate
