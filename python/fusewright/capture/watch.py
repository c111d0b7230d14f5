"""Says when an optimised model runs, but is not fused: by a method, inside of another compiler, under a mode.

Nothing here changes what runs. A line in the log and a count in `stats()` are all.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable

import torch
import torch._dynamo
from torch._dynamo.variables import nn_module
from torch.nn.utils.parametrize import ParametrizationList
from torch.utils import _python_dispatch

from .. import reasons
from ..stats import count_fallback
from .backend import Session, fusewright_backend

_transform = torch._C._functorch.peek_interpreter_stack  # the innermost of torch.func's, or None
_tracing_state = torch._C._get_tracing_state
_count_of_modes = torch._C._len_torch_dispatch_stack


class _Calls(threading.local):
    depth = 0  # of calls of optimised models in this thread


calls = _Calls()


def obstacle() -> tuple[str, str] | None:
    """The reason why nothing can be captured or run fused now, and the end of the line about it."""
    if _transform() is not None:
        return reasons.TRANSFORM, "under the transforms of torch.func"
    if _count_of_modes() and (mode := _mode_that_sees_operators()):
        return reasons.DISPATCH_MODE, f"under {mode}, which is to see every operator"
    if _tracing_state() is not None:
        return reasons.TRACED, "while torch.jit.trace records it: trace fusewright.restore(model)"
    return None


def _mode_that_sees_operators() -> str | None:
    """The name of a TorchDispatchMode of the user's, which Dynamo does not capture under."""
    for i in range(_count_of_modes()):
        mode = _python_dispatch._get_dispatch_stack_at(i)
        for passes in ("is_infra_mode", "ignore_compile_internals"):  # not all versions know both
            if hasattr(mode, passes) and getattr(mode, passes)():
                break
        else:
            return type(mode).__name__
    return None


# ---- an outer compiler -------------------------------------------------------------------------------------


def tell_of_outer_compiler(session: Session) -> None:
    """Count the model as one that another compiler took, unless it is part of a capture of ours."""
    if not calls.depth and not session.restored:
        reason = reasons.OUTER_COMPILE
        session.say(f"is compiled by the torch.compile around it ({reason}): its backend decides what is fused")
        count_fallback(reason)


def _is_ours(compiler: object) -> bool:
    """Whether Dynamo's backend is `fusewright`, below what Dynamo wraps around one."""
    while compiler is not None and compiler is not fusewright_backend:
        below = ("_torchdynamo_orig_backend", "_torchdynamo_orig_callable", "compiler_fn")
        compiler = next((vars(compiler)[name] for name in below if name in getattr(compiler, "__dict__", ())), None)
    return compiler is fusewright_backend


def _watch_dynamo() -> None:
    """Dynamo takes a module's `forward` and goes past its call: this is the place where it does."""
    owner = getattr(nn_module, "UnspecializedNNModuleVariable", None)
    original = getattr(owner, "call_function", None)
    if original is None:
        return

    @functools.wraps(original)
    def call_function(self, tx, *args, **kwargs):
        compiled = getattr(self.value, "_compiled_call_impl", None)
        session = getattr(compiled, "fusewright_session", None)
        if session is not None and not _is_ours(getattr(tx.output, "compiler_fn", None)):
            tell_of_outer_compiler(session)
        return original(self, tx, *args, **kwargs)

    owner.call_function = call_function


_watch_dynamo()


# ---- a method ----------------------------------------------------------------------------------------------


def watch_parts(model: torch.nn.Module, session: Session) -> None:
    """From now on a call of a submodule that does not come from the model's own call is told of: it comes from
    `model.forward(x)` or another method. Copies do not take this along, as PyTorch drops the attribute."""
    skipped: set[torch.nn.Module] = set()
    for name, module in model.named_modules():
        if isinstance(module, (ParametrizationList, torch.jit.ScriptModule)):  # reading a weight is no call
            skipped.update(module.modules())
        elif module is not model and module not in skipped and module._compiled_call_impl is None:
            module._compiled_call_impl = _watched(module, name, session)


def unwatch_parts(model: torch.nn.Module, session: Session) -> None:
    session.restored = True
    for module in model.modules():
        if getattr(module._compiled_call_impl, "watched_for", None) is session:
            module._compiled_call_impl = None


def _watched(module: torch.nn.Module, name: str, session: Session) -> Callable:
    call_impl = module._call_impl

    def call(*args, **kwargs):
        # Checkpoints call parts once more in the backward.
        if torch.compiler.is_dynamo_compiling() or calls.depth or session.restored or _in_backward():
            return call_impl(*args, **kwargs)
        caller = sys._getframe(2)  # behind Module.__call__
        session.say(_bypassed(name, caller), (reasons.BYPASSED, caller.f_code))
        count_fallback(reasons.BYPASSED)
        calls.depth += 1
        try:
            return call_impl(*args, **kwargs)
        finally:
            calls.depth -= 1

    torch._dynamo.eval_frame.skip_code(call.__code__)
    call.watched_for = session
    return call


def _in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


def _bypassed(name: str, caller) -> str:
    place = f"{caller.f_code.co_name} at {caller.f_code.co_filename.rpartition('/')[2]}:{caller.f_lineno}"
    return (
        f"{place} calls {name} past the model's own call ({reasons.BYPASSED}): it runs in eager; "
        "call the model, or optimize the method or the module that is called"
    )
