"""Fusewright: a fusion compiler for PyTorch.

model = fusewright.optimize(model)        # in place; train and evaluate it as before
print(fusewright.explain(model, x))       # what was fused, what was not, and why
print(fusewright.certify(model, x))       # whether it is right, against float64
print(fusewright.bench(model, x))         # how fast it is, beside eager and torch.compile
fusewright.report(model, x, path="report.html")  # all of it on one page

The package itself imports nothing: torch and the compiled core are loaded with the first name that is used.
"""

import sys
from types import ModuleType

TYPE_CHECKING = False  # typing's own constant, without the import
if TYPE_CHECKING:
    from .benchmark.benchmark import Benchmark, bench
    from .errors import FusewrightError, InputError, UnsupportedError
    from .explain import Explanation, explain
    from .judge.certify import Certificate, certify
    from .optimize import is_optimized, optimize, restore
    from .pages.report import report
    from .stats import reset_stats, stats

__all__ = [
    "Benchmark",
    "Certificate",
    "Explanation",
    "FusewrightError",
    "InputError",
    "UnsupportedError",
    "bench",
    "certify",
    "explain",
    "is_optimized",
    "optimize",
    "report",
    "reset_stats",
    "restore",
    "stats",
]

_HOMES = {  # the module of each name
    "Benchmark": "benchmark.benchmark",
    "Certificate": "judge.certify",
    "Explanation": "explain",
    "FusewrightError": "errors",
    "InputError": "errors",
    "UnsupportedError": "errors",
    "bench": "benchmark.benchmark",
    "certify": "judge.certify",
    "explain": "explain",
    "is_optimized": "optimize",
    "optimize": "optimize",
    "report": "pages.report",
    "reset_stats": "stats",
    "restore": "optimize",
    "stats": "stats",
}


class _Package(ModuleType):
    """Importing the module `explain` sets the attribute of its name: to the function, not to the module."""

    def __setattr__(self, name: str, value: object) -> None:
        if name in _HOMES and isinstance(value, ModuleType):
            value = getattr(value, name)
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name in _HOMES:
        try:
            found = getattr(import_module(f".{_HOMES[name]}", __name__), name)
        except ImportError as error:
            from .errors import BuildError

            if _HOMES[name] != "optimize" or not isinstance(error, BuildError):
                raise
            globals().update(import_module(".unfused", __name__).without(error))
            return globals()[name]
    elif name == "__version__":
        found = _version()
    elif name == "_core":
        found = import_module(".core", __name__).extension
    elif name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    else:
        try:
            return import_module(f".{name}", __name__)  # `fusewright.errors`, without an import of its own
        except ModuleNotFoundError as error:
            if error.name != f"{__name__}.{name}":
                raise
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})


def _version() -> str:
    from importlib import metadata

    try:
        return metadata.version("fusewright")
    except metadata.PackageNotFoundError:  # run from a build directory
        from . import _core

        return _core.version()
