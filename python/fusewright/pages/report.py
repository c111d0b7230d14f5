"""report: one page that shows what was done to a model, how fast it is and whether it is right.

The page holds everything itself (`html/`) and needs no network.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path

from torch.utils import _pytree as pytree

from ..console import output_file
from ..errors import InputError
from ..models import ModelFile
from ..subject import resampled
from .html.page import page
from .study import CANDIDATES, Study, study


def report(
    model,
    *inputs,
    path: str | Path,
    draw: Callable[[int], Sequence] | None = None,
    candidates: Sequence[str] = CANDIDATES,
    seconds: float = 2.0,
    seed: int = 0,
    file: ModelFile | None = None,
    scale: str = "small",
    progress: Callable[[str], None] | None = None,
) -> Study:
    """Write the report of a model (a module or function) to `path`, and return what it shows.

    Works on copies. All other arguments are those of `bench`. Raises `InputError` where the inputs do not
    fit or the file cannot be written; it is whole or not there.
    """
    if draw is None:
        if not pytree.tree_leaves(inputs):
            raise InputError("report: no inputs: report(model, *inputs, path=...)")
        draw = functools.partial(resampled, inputs, seed)
    with output_file(Path(path)) as written:
        found = study(
            model,
            draw,
            candidates=candidates,
            seconds=seconds,
            seed=seed,
            file=file,
            scale=scale,
            progress=progress,
        )
        written.write(page([found], found.name))
    return found
