"""optimize, restore, is_optimized: in place on modules, by wrapping for functions."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import torch

from .capture.backend import Session
from .capture.capture import capture
from .capture.watch import unwatch_parts, watch_parts

T = TypeVar("T", bound=Callable)
_MARK = "_fusewright"  # on the compiled callable, never on the model: copies of the model stay plain


class _Original(NamedTuple):
    target: Callable  # the function, or what the module's _compiled_call_impl was
    session: Session


def optimize(
    model: T,
    *,
    strict: bool = False,
    dynamic: bool | None = None,
    tune: bool | None = None,
    second_derivatives: bool = False,
) -> T:
    """Let fused kernels run the model wherever they can.

    A module is changed in place and returned: the same object with the same parameters, `state_dict` and hooks; its
    calls go through the compiled version. A function is not changed; the returned function is the compiled one.

    strict: raise `UnsupportedError` for the first operator that would stay PyTorch's, instead of logging one line.
    dynamic: as in `torch.compile`: None captures sizes as they come and generalises those that change, True treats
        all sizes as variable from the start, False captures each size anew.
    tune: on a GPU, time the ways to run each kernel once for sizes of a kind, and take the fastest; False chooses by
        rule, and so does `torch.use_deterministic_algorithms(True)`. None: FUSEWRIGHT_TUNE decides, else True.
    second_derivatives: keep every tensor that second derivatives (`create_graph=True`) read. Otherwise regions keep
        them where that takes no more memory than eager does; others say so when they are differentiated twice.

    What is fused is the model's own call. `model.forward(x)`, methods that call its parts, an outer torch.compile, the
    transforms of torch.func and modes that see every operator run PyTorch's, with a line in the log and a count by
    reason in `stats()`.

    A copy of an optimised model is a plain model (`is_optimized(copy)` is False): a deep copy, a pickle, an average of
    weights. One call makes it fused as well: `average = AveragedModel(model)`, then `optimize(average)`.
    """
    if isinstance(model, torch.jit.ScriptModule):
        raise TypeError("optimize: a ScriptModule is compiled already; optimise the module it was made from")
    if isinstance(model, type) or not callable(model):
        raise TypeError(f"optimize: expected a torch.nn.Module or a function, got {_kind(model)}")
    if isinstance(model, torch.nn.Module):
        if is_optimized(model):
            restore(model)
        session = Session(type(model).__name__, strict=strict, tune=tune, second_derivatives=second_derivatives)
        compiled = capture(model._call_impl, session, dynamic)
        setattr(compiled, _MARK, _Original(model._compiled_call_impl, session))
        compiled.fusewright_session = session  # for `watch`
        model._compiled_call_impl = compiled
        watch_parts(model, session)
        return model
    function = restore(model) if is_optimized(model) else model
    session = Session(function_name(function), strict=strict, tune=tune, second_derivatives=second_derivatives)
    compiled = functools.wraps(function)(capture(function, session, dynamic))
    setattr(compiled, _MARK, _Original(function, session))
    return compiled


def restore(model: T) -> T:
    """Undo `optimize`: the module is plain again and returned; for a function, the original one is returned.

    What is not optimised comes back as it is.
    """
    if not is_optimized(model):
        return model
    if not isinstance(model, torch.nn.Module):
        return getattr(model, _MARK).target
    original = getattr(model._compiled_call_impl, _MARK)
    model._compiled_call_impl = original.target
    unwatch_parts(model, original.session)
    return model


def is_optimized(model: object) -> bool:
    """Whether `optimize` is in force on this very object (not on a part of it, or on what it was copied from)."""
    compiled = model._compiled_call_impl if isinstance(model, torch.nn.Module) else model
    return isinstance(getattr(compiled, _MARK, None), _Original)


def session_of(model: Callable) -> Session:
    """What an optimised model remembers."""
    return getattr(model._compiled_call_impl if isinstance(model, torch.nn.Module) else model, _MARK).session


def function_name(function: Callable) -> str:
    """The function's name, as part of an identifier."""
    return re.sub(r"\W+", "", getattr(function, "__name__", type(function).__name__)) or "function"


def _kind(value: object) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"
