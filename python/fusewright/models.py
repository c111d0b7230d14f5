"""Model files: what every command reads.

A file holds a plain PyTorch `Model`, `get_inputs()` and, if its constructor takes anything, `get_init_inputs()`; a
class in an importable module is `package.module:Class`. What is wrong with one is an `InputError`; an exception raised
inside it is a `UserCodeError` that shows the user's own lines and none of ours.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import torch
from torch import nn

from . import _core
from .errors import FusewrightError, InputError, UserCodeError

CPU = torch.device("cpu")


@dataclass(frozen=True)
class ModelFile:
    """A model class with the functions that make its arguments."""

    name: str  # as reports show it
    path: Path  # the file that holds the class
    module: ModuleType
    model: type
    get_inputs: Callable[..., Sequence] | None
    get_init_inputs: Callable[..., Sequence] | None
    loaded_as: tuple[str, str, str] = ("", "", "")  # what `load` was given: another process can do it again

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.path.read_bytes()).hexdigest()

    def build(self, scale: str = "small", seed: int = 0, device: torch.device = CPU) -> nn.Module:
        """The model with the weights of this seed."""
        torch.manual_seed(seed)
        with user_code(self.path, f"{self.model.__name__}(*get_init_inputs())"), device:
            arguments = _call_scaled(self.get_init_inputs, scale) if self.get_init_inputs else []
            made = self.model(*arguments)
        if not isinstance(made, nn.Module):
            raise InputError(f"{self.path}: {self.model.__name__} makes a {type(made).__name__}, not a torch.nn.Module")
        return made.to(device)

    def inputs(self, scale: str = "small", device: torch.device = CPU) -> list:
        """Inputs drawn afresh; files of others need not know about devices."""
        if self.get_inputs is None:
            raise InputError(f"{self.path}: no `get_inputs` in it; --inputs names another function")
        with user_code(self.path, f"{self.get_inputs.__name__}()"), device:
            drawn = _call_scaled(self.get_inputs, scale)
            if drawn is None or isinstance(drawn, dict):
                kind = type(drawn).__name__
                raise InputError(f"{self.path}: {self.get_inputs.__name__}() returns {kind}, and not a list of inputs")
            values = list(drawn) if isinstance(drawn, (list, tuple)) else [drawn]
        return [value.to(device) if isinstance(value, torch.Tensor) else value for value in values]

    def draw(self, scale: str = "small", device: torch.device = CPU) -> Callable[[int], list]:
        """A function of a seed that gives the inputs of this seed."""

        def inputs_of(seed: int) -> list:
            torch.manual_seed(seed)
            return self.inputs(scale, device)

        return inputs_of

    def output(self, model: nn.Module, inputs: Sequence) -> object:
        """What the plain model gives for the inputs, no gradients; where they do not fit, a `UserCodeError`."""
        with torch.no_grad(), user_code(self.path, f"{type(model).__name__} called with {describe(inputs)}"):
            return model(*inputs)


def load(spec: str | Path, class_name: str = "Model", inputs: str = "get_inputs") -> ModelFile:
    """Read MODEL.py or import package.module:Class."""
    text = str(spec)
    loaded_as = (text, class_name, inputs)
    if isinstance(spec, str) and not text.endswith(".py") and ":" in text and not Path(text).exists():
        module_name, _, class_name = text.partition(":")
        module = _import(module_name)
        path, name = Path(getattr(module, "__file__", None) or module_name), text
    else:
        path = Path(spec)
        module = _execute(path)
        name = path.stem if class_name == "Model" else f"{path.stem}.{class_name}"
    if not hasattr(module, class_name):
        classes = [n for n, v in vars(module).items() if inspect.isclass(v) and issubclass(v, nn.Module)]
        known = f"; its modules are {', '.join(classes)}" if classes else ""
        raise InputError(f"{text}: no `{class_name}` in it{known}")
    if not inspect.isclass(getattr(module, class_name)):
        raise InputError(f"{text}: `{class_name}` is no class")
    if inputs != "get_inputs" and not hasattr(module, inputs):
        raise InputError(f"{text}: no `{inputs}` in it")
    functions = (getattr(module, function, None) for function in (inputs, "get_init_inputs"))
    return ModelFile(name, path, module, getattr(module, class_name), *functions, loaded_as)


def _execute(path: Path) -> ModuleType:
    if not path.is_file():
        raise InputError(f"{path}: {'is a directory' if path.is_dir() else 'no such file'}")
    whole = path.resolve()
    # Two files of one name are two modules. The name is also what pickle and inspect look the module up by.
    name = f"fusewright_model_{whole.stem}_{hashlib.sha256(str(whole).encode()).hexdigest()[:8]}"
    # The loader is named: a file need not end in .py.
    spec = importlib.util.spec_from_file_location(name, whole, loader=SourceFileLoader(name, str(whole)))
    module = importlib.util.module_from_spec(spec)
    _may_import_from(whole.parent)
    sys.modules[name] = module
    try:
        with user_code(whole, "reading it"):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _import(name: str) -> ModuleType:
    _may_import_from(Path.cwd())
    try:
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError) as error:
        raise InputError(f"{name}: {error}") from None
    if found is None:
        raise InputError(f"{name}: no such module")
    with user_code(Path(found.origin or name), "importing it"):
        return importlib.import_module(name)


def _may_import_from(folder: Path) -> None:
    """What lies beside the user's file can be imported; last, so that it hides nothing."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def _call_scaled(function: Callable, scale: str) -> Sequence:
    """The showcase has two sizes; files of others need not know about them."""
    return function(scale) if "scale" in inspect.signature(function).parameters else function()


@contextmanager
def user_code(path: Path, what: str):
    """Turns what the code within raises into a `UserCodeError`."""
    try:
        yield
    except (FusewrightError, KeyboardInterrupt):
        raise
    except (Exception, SystemExit) as error:
        raise UserCodeError(f"{path}: {what} failed\n{user_traceback(error, path)}") from error


def user_traceback(error: BaseException, path: Path) -> str:
    """The traceback from the first line of the user's file on; without such a line, the exception alone."""
    frame, file = error.__traceback__, os.path.realpath(path)
    while frame is not None and os.path.realpath(frame.tb_frame.f_code.co_filename) != file:
        frame = frame.tb_next
    if frame is None:
        return "".join(traceback.format_exception_only(error)).rstrip()
    return "".join(traceback.format_exception(type(error), error, frame, chain=False)).rstrip()


def describe(inputs: Sequence) -> str:
    """Shapes and dtypes, for messages."""

    def one(value: object) -> str:
        if not isinstance(value, torch.Tensor):
            return type(value).__name__
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"

    return "(" + ", ".join(map(one, inputs)) + ")"


def is_float_tensor(value: object) -> bool:
    """Whether a gradient of it can be asked for."""
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def default_models() -> list[Path]:
    """The showcase of the source tree that this package, or the current directory, belongs to."""
    for root in (Path(__file__).resolve().parents[2], Path.cwd()):
        found = sorted((root / "examples" / "showcase").glob("*.py"))
        if found:
            return found
    return []


def choose_device(name: str = "auto") -> torch.device:
    """The device of this name; `auto` is a GPU, where there is one that we have kernels for."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() and _core.cuda_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise InputError(f"--device {name}: it is auto, cpu, cuda or cuda:N")
    if device.type == "cuda":
        if not torch.cuda.is_available():
            built = "is built without CUDA" if torch.version.cuda is None else "finds no GPU or no driver"
            raise InputError(f"no GPU for --device {name}: torch {torch.__version__} {built}; see `fusewright doctor`")
        if (device.index or 0) >= torch.cuda.device_count():
            raise InputError(f"no GPU for --device {name}: there are {torch.cuda.device_count()}")
    return device


def scale_for_this_machine(device: torch.device = CPU) -> str:
    """The full sizes want about 60 GB for their float64 twin, and a GPU or many cores to end within minutes."""
    if device.type == "cuda":
        return "full" if torch.cuda.get_device_properties(device).total_memory > 70e9 else "small"
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return "full" if memory > 96e9 and (os.cpu_count() or 1) >= 16 else "small"
