"""The command as a process: Ctrl-C at any moment ends it with one line and status 130, a closed pipe without a word."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
import traceback
from types import FrameType

FAULT = 1  # an exception of ours: the traceback says what happened
INTERRUPTED = 130
READER_GONE = 141  # as for a program that SIGPIPE ends
_PATIENCE = 1.0  # seconds that the main thread has to end by itself after an interrupt

_interrupted = threading.Event()
_answered = threading.Event()  # the line about it is printed


def run() -> None:
    """Run `cli.main` and end the process with its status.

    The interpreter does not take itself to pieces: that takes most of a second after torch, in which an interrupt
    would have no answer.
    """
    status = _status()
    atexit._run_exitfuncs()
    _flush()
    os._exit(status)


def _status() -> int:
    _watch_for_interrupts()
    try:
        from .cli import main

        status = main()
        if sys.stdout is not None:  # it was closed from the start
            sys.stdout.flush()
    except SystemExit as leaving:  # of argparse
        status = leaving.code
    except BrokenPipeError:
        status = READER_GONE
    except BaseException:
        if not _interrupted.is_set():
            traceback.print_exc()
        status = FAULT
    if _interrupted.is_set():  # whatever the interrupt became on its way
        _leave()
    signal.signal(signal.SIGINT, lambda *_: _leave())  # an exception would be lost in what runs at exit
    return status


def answer(command: str) -> None:
    """Print the line about an interrupt, once."""
    if not _answered.is_set():
        _answered.set()
        print(f"{command}: interrupted", file=sys.stderr, flush=True)


def _watch_for_interrupts() -> None:
    """Python handles a signal between two of its own instructions, which may be long after it came: a thread ends the
    process where that, or the way out, takes too long."""
    incoming, wakeup = os.pipe()
    os.set_blocking(wakeup, False)
    signal.signal(signal.SIGINT, _on_interrupt)
    signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)

    def watch() -> None:
        os.read(incoming, 1)
        threading.Event().wait(_PATIENCE)
        _leave()

    threading.Thread(target=watch, name="interrupts", daemon=True).start()


def _on_interrupt(_: int, frame: FrameType | None) -> None:
    """Raises the exception; not during an import, where it may reach C++ that aborts the process for it. What is being
    imported has nothing to tidy up."""
    _interrupted.set()
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            _leave()
        frame = frame.f_back
    raise KeyboardInterrupt


def _leave() -> None:
    """Ends the process here. The interpreter's own end may take long, and may set another status after an interrupt."""
    answer("fusewright")
    os._exit(INTERRUPTED)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # closed, at either end
            stream.flush()
