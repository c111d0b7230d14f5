"""The way into Dynamo: one entry function for each optimised model, our settings while its frames are compiled, and
eager for every frame that cannot be.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import inspect
import itertools
import linecache
import logging
import os
import sys
import types
import weakref
from collections.abc import Callable

import torch
import torch._dynamo
from torch._dynamo import bytecode_transformation, convert_frame, exc, output_graph, symbolic_convert, trace_rules
from torch._dynamo import guards as dynamo_guards
from torch._dynamo import types as dynamo_types
from torch._dynamo import utils as dynamo_utils
from torch._dynamo.comptime import comptime
from torch._dynamo.variables import higher_order_ops
from torch._dynamo.variables import torch as torch_variables
from torch._subclasses import fake_tensor

from .. import reasons
from ..errors import FusewrightError, UnsupportedError
from ..stats import count, count_fallback
from .backend import Fallback, Session, compile_graph
from .watch import calls, obstacle, tell_of_outer_compiler

_config = torch._dynamo.config
# Captures of one frame after which Dynamo stops trying. Frames below a graph break are shared by all models of a class.
_CAPTURES_PER_MODEL = 32
_FAILURES_PER_FRAME = 16
_RECURRENT = {getattr(torch._VF, name) for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")}
_NOT_THE_USERS = (os.path.dirname(torch.__file__) + os.sep, os.path.dirname(os.path.dirname(__file__)) + os.sep)
_silent = logging.Logger("silent", logging.CRITICAL + 1)
_live: weakref.WeakSet = weakref.WeakSet()
_entries = itertools.count()
_CAN_SKIP_ONCE = hasattr(dynamo_types, "FrameExecStrategy") and "apply_to_code" in getattr(
    dynamo_types.ConvertFrameReturn, "__dataclass_fields__", ()
)

# What Dynamo and export import while they capture, where this version has it: now, or a user's first call waits for it.
for _name in (
    "torch._dynamo.dce_extra_outputs",
    "torch._dynamo.repro.after_dynamo",
    "torch._export.passes._node_metadata_hook",
    "torch._higher_order_ops.auto_functionalize",
    "torch._higher_order_ops.passes.inline_invoke_subgraph",
    "torch._inductor.compiler_bisector",
    "torch._inductor.fx_passes.dedupe_symint_uses",
    "torch._inductor.sizevars",
    "torch._subclasses.schema_check_mode",
    "torch.distributed.tensor.experimental._func_map",
    "torch.export._trace",
    "torch.fx.experimental.validator",
):
    with contextlib.suppress(Exception):  # whatever is wrong with one of them, it may never be needed
        importlib.import_module(_name)
# And what every capture works out for itself where nobody has before: the files that Dynamo skips, the functions that a
# tensor may override, the instructions of a module's call, the patterns by which schemas are read.
for _fill in (
    lambda: trace_rules.check(torch.nn.Module.__call__),
    lambda: torch.overrides.get_overridable_functions(),
    lambda: bytecode_transformation.cleaned_instructions(torch.nn.Module._call_impl.__code__),
    lambda: torch.utils._python_dispatch.get_alias_info(torch.ops.aten.add_.Tensor),
):
    with contextlib.suppress(Exception):
        _fill()


def _settings() -> dict:
    """Dynamo's settings while a frame of ours is compiled; they never hold outside."""
    limit = _CAPTURES_PER_MODEL * max(1, len(_live))
    wanted = {
        "skip_nnmodule_hook_guards": False,  # hooks added later, or present on another instance, must be seen
        "allow_unspec_int_on_nn_module": True,  # a step counter must not cost a capture for each value
        "allow_rnn": True,  # else a frame that calls one is skipped; `_recurrent_left_to_python` breaks the graph there
        "specialize_float": False,  # an annealed float becomes an argument
        "invalidate_compile_context_weakrefs": False,  # None means the same for us, once all backends are imported
        "record_runtime_overhead": False,  # two Python calls around each of the model's, for a label in profiles
        "run_gc_after_compile": False,  # _without_collections: the interpreter collects by itself as soon as it may
        "recompile_limit" if hasattr(_config, "recompile_limit") else "cache_size_limit": limit,
        "accumulated_recompile_limit" if hasattr(_config, "accumulated_recompile_limit")
        else "accumulated_cache_size_limit": 16 * limit,
    }  # fmt: skip
    return {name: value for name, value in wanted.items() if hasattr(_config, name)}


def _unread() -> list[tuple[object, str, Callable]]:
    """What Dynamo works out in each capture for logs alone, and what stands in for it while nobody reads them."""
    found = []
    if not _is_read(dynamo_guards, "guards_log"):
        # Guards are timed after a flush of the caches that takes 30 ms.
        found.append((dynamo_guards, "profile_guard_manager", lambda *_: 0.0))
    if not (_is_read(output_graph, "trace_call_log") or _is_read(symbolic_convert, "trace_source_log")):
        # The name of the function around a line: each file that the model runs through is taken to tokens.
        found.append((symbolic_convert, "get_funcname", lambda *_: None))
    if not any(getattr(handler, "root_dir", True) for handler in logging.getLogger("torch.__trace").handlers):
        # All settings of Inductor, which does not run, as JSON.
        found.append((dynamo_utils, "_scrubbed_inductor_config_for_logging", lambda: None))
    if not _is_read(fake_tensor, "log"):
        # What a fake tensor refuses is refused by eager right after, in its own words.
        found.append((fake_tensor, "log", _silent))
    return found


def _is_read(module: object, log: str) -> bool:
    return not hasattr(module, log) or getattr(module, log).isEnabledFor(logging.DEBUG)


def _otherwise(session: Session) -> list[tuple[object, str, Callable]]:
    """What is to go another way in our captures."""
    in_graph = torch_variables.TorchInGraphFunctionVariable
    return [
        (in_graph, "call_function", _recurrent_left_to_python(in_graph.call_function, session)),
        # A graph could hold an autograd.Function only as an operator that no trace keeps (untraced.py). Python calls it
        # instead, and what stands before and behind it is captured.
        (getattr(higher_order_ops, "AutogradFunctionApplyVariable", None), "call_function", _left_to_python),
    ]


def _left_to_python(*_args, **_kwargs):
    raise exc.Unsupported("fusewright leaves an autograd.Function to Python")


def _recurrent_left_to_python(call_function: Callable, session: Session) -> Callable:
    """A graph break at LSTM, GRU and RNN. In a graph, Dynamo would run them step by step, once for each length."""

    @functools.wraps(call_function)
    def broken(self, tx, args, kwargs):
        if self.value not in _RECURRENT:
            return call_function(self, tx, args, kwargs)
        fallback = Fallback(self.value.__name__, "", "", reasons.UNSUPPORTED_OPERATOR, _line_of(tx), "a graph break")
        if fallback not in session.breaks:
            session.breaks.append(fallback)
        raise exc.Unsupported(f"fusewright leaves {self.value.__name__} to Python")

    return broken


def _line_of(tx) -> str:
    """The user's line that Dynamo is at."""
    frame = tx
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(_NOT_THE_USERS):
            text = linecache.getline(name, frame.lineno).strip()
            return f"{name.rpartition('/')[2]}:{frame.lineno}: {text}"
        frame = getattr(frame, "parent", None)
    return ""


@contextlib.contextmanager
def _patched(session: Session):
    """Without the work that is for logs alone, and `_otherwise` (under the lock, like all that is patched)."""
    # What this version of PyTorch does not have stays as it is.
    there = [
        (owner, name, instead) for owner, name, instead in (*_unread(), *_otherwise(session)) if hasattr(owner, name)
    ]
    originals = [getattr(owner, name) for owner, name, _ in there]
    for owner, name, instead in there:
        setattr(owner, name, instead)
    try:
        yield
    finally:
        for (owner, name, _), original in zip(there, originals, strict=True):
            setattr(owner, name, original)


@contextlib.contextmanager
def _without_collections():
    """No garbage is collected meanwhile: the objects of a capture are many and live until its end, and would have the
    interpreter look through them again and again."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class _EagerInstead(Exception):
    """Internal, before torch 2.8: the entry frame must run in eager this once (`_in_eager` explains)."""


class _FrameCallback(convert_frame.CatchErrorsWrapper):
    """Dynamo's own callback for a frame, under our settings and with our answer to failures."""

    def __init__(self, inner: convert_frame.CatchErrorsWrapper, session: Session):
        convert = getattr(inner, "_torchdynamo_orig_backend", None) or inner._torchdynamo_orig_callable
        super().__init__(convert, inner.hooks)
        self._session = session
        self._failures: dict[types.CodeType, int] = {}

    def __call__(self, frame, cache_entry, frame_state):
        if _records_a_graph():
            # Dynamo reads the state of random generators, which CUDA forbids now; and kernels would have to be loaded.
            if frame.f_code in self._failures:
                return self._in_eager(frame, below=False)
            raise FusewrightError(
                f"fusewright: {self._place(frame)} is not captured yet for these inputs, and cannot be while a CUDA "
                "graph is captured: call the model once before capturing"
            )
        # The lock is Dynamo's: patches of two threads must not overlap, or the later one would restore ours.
        settings = {**_settings(), **self._session.settings}
        with convert_frame.compile_lock, _config.patch(settings), _patched(self._session), _without_collections():
            self._session.frame = frame.f_code
            try:
                result = super().__call__(frame, cache_entry, frame_state)
            except Exception as error:
                self._report(frame, error)
                return self._in_eager(frame, below=False)
            self._report_breaks()
        answer = _answer(result)
        if answer == "skip" and frame.f_code is self._session.entry:
            return self._in_eager(frame, below=True)  # Dynamo gave up quietly; frames below may still be captured
        if answer == "run_only":
            self._session.say(
                f"{self._place(frame)} was captured too often ({reasons.CAPTURE_LIMIT}): new cases are eager"
            )
        return result

    def _report_breaks(self) -> None:
        """Say what the graph was broken for. Under `strict` that is an exception."""
        breaks, self._session.breaks = self._session.breaks, []
        for fallback in breaks:
            if not self._session.record:
                self._session.report(fallback)
            elif fallback.source and fallback not in self._session.failures:
                self._session.failures.append(fallback)

    def _report(self, frame, error: Exception) -> None:
        """Say that the frame cannot be captured, unless it is the user's own mistake, which eager says best."""
        cause = getattr(error, "inner_exception", None)
        if isinstance(cause, UnsupportedError):
            raise cause from None
        lines = str(error).strip().splitlines()
        detail = f"{type(error).__name__}: {lines[0] if lines else ''}"
        if self._session.strict and not isinstance(error, exc.TorchRuntimeError):
            raise UnsupportedError(reasons.CAPTURE_FAILED, source=self._place(frame), detail=detail) from error
        if self._session.record:
            failure = Fallback("", "", "", reasons.CAPTURE_FAILED, self._place(frame), detail)
            self._session.failures.append(failure)
            return
        count("failed_captures")
        count_fallback(reasons.CAPTURE_FAILED)
        self._session.say(f"{self._place(frame)} runs in eager ({reasons.CAPTURE_FAILED}: {detail})")

    def _in_eager(self, frame, below: bool):
        """Tell Dynamo to run the frame as it is: this time, or after many failures (known captures excepted) for good.

        below: whether the frames that it calls may be captured. Older versions only know "for good": there the
        exception reaches `capture`, which calls the target itself.
        """
        self._failures[frame.f_code] = failures = self._failures.get(frame.f_code, 0) + 1
        if not _CAN_SKIP_ONCE:
            if frame.f_code is self._session.entry:
                raise _EagerInstead
            return None if not hasattr(dynamo_types, "ConvertFrameReturn") else dynamo_types.ConvertFrameReturn()
        action = dynamo_types.FrameAction
        for_good = failures >= _FAILURES_PER_FRAME
        own = action.RUN_ONLY if for_good else action.SKIP
        strategy = dynamo_types.FrameExecStrategy(own, action.DEFAULT if below else own)
        return dynamo_types.ConvertFrameReturn(frame_exec_strategy=strategy, apply_to_code=for_good)

    def _place(self, frame) -> str:
        code = frame.f_code
        if code is self._session.entry:
            return "the call"
        return f"{code.co_filename.rpartition('/')[2]}:{code.co_firstlineno} {code.co_name}"


def _records_a_graph() -> bool:
    """A CUDA graph is being captured on the current stream."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def _answer(result) -> str:
    """What Dynamo decided for a frame: captured, skip or run_only."""
    if result is None:
        return "skip"
    if getattr(result, "guarded_code", result) is not None:
        return "captured"
    strategy = getattr(result, "frame_exec_strategy", None)
    return "skip" if strategy is None else strategy.cur_action.name.lower()


def _own_code(function: types.FunctionType, namespace: dict) -> types.FunctionType:
    """The function with a code object and a name of its own: Dynamo keeps captures on the code object, and what it has
    learned of changing sizes under file, line and name."""
    code = function.__code__.replace(co_name=f"entry_{next(_entries)}")
    own = types.FunctionType(code, namespace, code.co_name, function.__defaults__, function.__closure__)
    own.__kwdefaults__ = function.__kwdefaults__
    return own


def _unregistered(target: Callable) -> list[dict]:
    """Namespaces of the code that `target` runs which are not the module that their name has in `sys.modules`: files
    loaded by path, one after the other under one name. Dynamo finds globals by that name, save those of the entry."""
    owner = getattr(target, "__self__", target)
    modules = owner.modules() if isinstance(owner, torch.nn.Module) else ()
    found: dict[int, dict] = {}
    for function in (target, *(module.forward for module in modules)):
        namespace = getattr(inspect.unwrap(getattr(function, "__func__", function)), "__globals__", {})
        name = namespace.get("__name__")  # code without a module's name is found by its namespace
        if name is not None and getattr(sys.modules.get(name), "__dict__", None) is not namespace:
            found[id(namespace)] = namespace
    return list(found.values())


def capture(target: Callable, session: Session, dynamic: bool | None) -> Callable:
    """`target` compiled by Dynamo with our backend. Each call makes an entry of its own, shared with nobody."""

    def entry(*args, **kwargs):
        return target(*args, **kwargs)

    def backend(gm, example_inputs):
        return compile_graph(gm, session)

    unregistered = _unregistered(target)
    if len(unregistered) > 1:
        names = ", ".join(sorted({str(namespace["__name__"]) for namespace in unregistered}))
        failure = Fallback("", "", "", reasons.CAPTURE_FAILED, "", f"modules {names} are not those of sys.modules")
        if session.record:
            session.failures.append(failure)
            return target
        session.report(failure)
        return _unfused(target)
    entry = _own_code(entry, *(unregistered or [globals()]))
    watched = {} if session.guards is None else {"guard_filter_fn": _watching(session.guards)}
    context = torch._dynamo.optimize(backend=backend, dynamic=dynamic, **watched)
    if not hasattr(context, "callback"):  # TORCHDYNAMO_DISABLE=1
        session.say(f"Dynamo is disabled ({reasons.CAPTURE_FAILED}): everything runs in eager")
        return _unfused(entry)
    context.callback = _FrameCallback(context.callback, session)
    session.entry = entry.__code__
    weakref.finalize(entry, _forget, entry.__code__).atexit = False
    _live.add(session)
    compiled = _where_it_can_capture(context(entry), target, session)
    if _CAN_SKIP_ONCE:
        return compiled
    eager = torch._dynamo.disable(target)

    @functools.wraps(target)
    def compiled_or_eager(*args, **kwargs):
        try:
            return compiled(*args, **kwargs)
        except _EagerInstead:
            pass
        return eager(*args, **kwargs)

    return compiled_or_eager


def _unfused(target: Callable) -> Callable:
    """The target in eager. Each call counts once: the model itself calls its parts."""

    @functools.wraps(target)
    def call(*args, **kwargs):
        count_fallback(reasons.CAPTURE_FAILED)
        calls.depth += 1
        try:
            return target(*args, **kwargs)
        finally:
            calls.depth -= 1

    return call


def _forget(code: types.CodeType) -> None:
    """Let go of the captures of an entry that is gone. Dynamo hangs them on its code, which they hold in turn, where
    the garbage collector does not look."""
    with contextlib.suppress(Exception):  # where a version of Dynamo has no such function, they stay
        torch._dynamo.eval_frame.reset_code(code)


def _watching(guards: list) -> Callable:
    """A filter of Dynamo's guards that keeps them all, and tells of them."""

    def keep(entries):
        guards.extend(entries)
        return [True] * len(entries)

    return keep


def _where_it_can_capture(compiled: Callable, target: Callable, session: Session) -> Callable:
    """While one thread captures, Dynamo believes of all of them that they trace, and refuses their calls: they wait.
    Where it would capture nothing, and say nothing, the target runs as it is, and a line says so."""

    def in_eager(args, kwargs, reason, when):
        session.say(f"runs in eager ({reason}) {when}", reason)
        count_fallback(reason)
        return target(*args, **kwargs)

    @functools.wraps(target)
    def call(*args, **kwargs):
        if torch.compiler.is_dynamo_compiling():  # an outer torch.compile traces this line
            comptime(tell)
            return target(*args, **kwargs)
        calls.depth += 1
        try:
            if found := obstacle():
                return in_eager(args, kwargs, *found)
            try:
                return compiled(*args, **kwargs)
            except RuntimeError as error:
                if not _refuses_to_trace(error):
                    raise
            try:
                with convert_frame.compile_lock:  # nobody else captures now: if it is refused again, we trace ourselves
                    return compiled(*args, **kwargs)
            except RuntimeError as error:
                if not _refuses_to_trace(error):
                    raise
            return in_eager(args, kwargs, reasons.TRACED, "while make_fx traces it: trace fusewright.restore(model)")
        finally:
            calls.depth -= 1

    def tell(_context):
        tell_of_outer_compiler(session)

    return call


def _refuses_to_trace(error: RuntimeError) -> bool:
    return "using FX to symbolically trace" in str(error)
