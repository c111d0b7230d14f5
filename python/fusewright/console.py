"""How the commands talk: results on stdout, progress and errors on stderr, files whole or not at all."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import rich.console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from .errors import InputError


class Console(rich.console.Console):
    """Leaves the answer to a closed pipe to the process (rich's is the exit status 1, which means a wrong result)."""

    def on_broken_pipe(self) -> None:
        raise  # the BrokenPipeError that is being handled


@contextmanager
def progress(total: int | None = None) -> Iterator[Callable[[str], None]]:
    """A function that says what is done next: a moving bar on a terminal, one plain line each in a pipe."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda text: print(text, file=sys.stderr, flush=True)
        return
    text = TextColumn("{task.description}", markup=False)
    columns = (SpinnerColumn(), text, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=total)
        begun = False

        def step(text: str) -> None:
            nonlocal begun
            bar.update(task, description=text, advance=1 if begun else 0)
            begun = True

        yield step


@contextmanager
def output_file(path: Path | None) -> Iterator[TextIO | None]:
    """A file to write to that takes the name `path` when the block ends well; after an exception nothing is there.

    It is opened at once: a place that cannot be written to is known before the work, not after.
    """
    if path is None:
        yield None
        return
    path = path.resolve()  # a link stays one
    if path.exists() and not path.is_file():
        raise InputError(f"cannot write {path}: it is not a regular file")
    try:
        stream = tempfile.NamedTemporaryFile(  # noqa: SIM115
            "w", dir=path.parent, prefix=f".{path.name}.", delete=False, encoding="utf-8"
        )
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from None
    try:
        with stream:
            yield stream
            try:
                stream.flush()
                os.fsync(stream.fileno())
                os.chmod(stream.name, path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~_umask())
                os.replace(stream.name, path)
            except OSError as error:
                raise InputError(f"cannot write {path}: {error.strerror}") from None
    except BaseException:
        Path(stream.name).unlink(missing_ok=True)
        raise


def _umask() -> int:
    """Only setting it tells what it was."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
