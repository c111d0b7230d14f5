"""`optimize` and its kin where the compiled part cannot be had: models stay PyTorch's, and one line says why."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from .errors import BuildError
from .log import configure, logger

T = TypeVar("T", bound=Callable)


def without(problem: BuildError) -> dict[str, Callable]:
    """The functions by name."""
    configure()
    logger.warning("nothing is fused: %s", problem)

    def optimize(model: T, *, strict: bool = False, **_: object) -> T:
        """Returns the model as it is; with strict=True, raises why it cannot be fused."""
        if strict:
            raise BuildError(str(problem))
        return model

    def restore(model: T) -> T:
        """Returns the model, which is PyTorch's already."""
        return model

    def is_optimized(model: object) -> bool:
        """False: nothing is."""
        return False

    return {function.__name__: function for function in (optimize, restore, is_optimized)}
