"""The exceptions of the package. What eager PyTorch raises is raised as eager raises it, never wrapped."""

from __future__ import annotations


class FusewrightError(RuntimeError):
    """The base of the package's own exceptions."""


class InputError(FusewrightError):
    """What the user gave cannot be used: a file, a name, a device, a place to write to."""


class BuildError(FusewrightError, ImportError):
    """The compiled extension is missing, or was built for another torch than the one that is here."""


class UserCodeError(InputError):
    """The user's own code raised: the message holds the traceback from the first line of that code on."""


class UnsupportedError(FusewrightError):
    """Raised under `strict=True` for the first thing that would have stayed PyTorch's.

    Attributes: `reason` (a stable name from `fusewright.reasons`), `operator`, `shapes`, `dtype`, `source` (the
    user's line) and `detail`.
    """

    def __init__(
        self, reason: str, *, operator: str = "", shapes: str = "", dtype: str = "", source: str = "", detail: str = ""
    ):
        self.reason, self.operator, self.shapes = reason, operator, shapes
        self.dtype, self.source, self.detail = dtype, source, detail
        super().__init__(describe(reason, operator, shapes, dtype, source, detail))

    def __reduce__(self):
        return _rebuild, (self.reason, self.operator, self.shapes, self.dtype, self.source, self.detail)


def _rebuild(reason, operator, shapes, dtype, source, detail):
    return UnsupportedError(reason, operator=operator, shapes=shapes, dtype=dtype, source=source, detail=detail)


class Decline(Exception):
    """Internal: an import function or a stage cannot take this; it becomes a fallback with this reason."""

    def __init__(self, reason: str, detail: str = ""):
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason, self.detail = reason, detail


def describe(reason: str, operator: str, shapes: str, dtype: str, source: str, detail: str) -> str:
    """One line that says what stayed PyTorch's and why; log lines and exceptions share it."""
    subject = " ".join(part for part in (operator, shapes, dtype) if part) or "the graph"
    text = f"{subject} stays PyTorch's ({reason}"
    text += f": {detail})" if detail else ")"
    return f"{text} at {source}" if source else text
