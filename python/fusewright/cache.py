"""The kernels on disk: what `fusewright cache` shows, removes and checks.

The library's own reader is src/runtime/disk_cache.cpp, and this is a second reading of its format: it must say of an
entry what that one says (tests/python/test_cli.py holds the two together). Entries appear whole, by a rename, and
disappear whole: all of it works beside running processes.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from .errors import InputError

# An entry: magic and format version, key, payload length (little-endian), SHA-256 of the payload, payload.
MAGIC = b"FUSEWRIGHT\0\0\0\0\0\1"
KEY_SIZE, LENGTH_SIZE, DIGEST_SIZE = 64, 8, 32
HEADER_SIZE = len(MAGIC) + KEY_SIZE + LENGTH_SIZE + DIGEST_SIZE
MAX_PAYLOAD = 1 << 30
ENTRY = re.compile(r"([0-9a-f]{64})\.entry")
TRANSIENT = re.compile(r"tmp-.*|[0-9a-f]{64}\.lock", re.DOTALL)
LEFTOVER_AGE_SECONDS = 60  # a younger file may belong to a process that has not locked it yet


@dataclass
class CacheInfo:
    """Where the cache is, whether the library would use it, and what is in it."""

    root: str  # empty: memory only
    exists: bool = False
    usable: bool = False
    reason: str = ""  # why it is not usable
    mode: str = ""
    owner: int | None = None
    writable: bool = False
    entries: int = 0
    bytes: int = 0
    free_bytes: int | None = None


@dataclass
class Verification:
    """What `verify` found: damaged entries as (file, what is wrong with it)."""

    root: str
    entries: int = 0
    bad: list[tuple[str, str]] = field(default_factory=list)


def default_root() -> str:
    """FUSEWRIGHT_CACHE_DIR, else $XDG_CACHE_HOME/fusewright, else ~/.cache/fusewright, else empty."""
    chosen, xdg, home = (os.environ.get(name, "") for name in ("FUSEWRIGHT_CACHE_DIR", "XDG_CACHE_HOME", "HOME"))
    if chosen:
        return os.path.abspath(chosen)
    if xdg.startswith("/"):
        return os.path.abspath(f"{xdg}/fusewright")
    return os.path.abspath(f"{home}/.cache/fusewright") if home.startswith("/") and os.path.isdir(home) else ""


def info() -> CacheInfo:
    """Look at the cache; nothing is made or changed."""
    found = CacheInfo(default_root())
    if not found.root:
        found.reason = "there is no cache directory: set FUSEWRIGHT_CACHE_DIR, XDG_CACHE_HOME or HOME"
        return found
    try:
        status = os.lstat(found.root)
        found.exists = True
        found.mode, found.owner = f"{stat.S_IMODE(status.st_mode):04o}", status.st_uid
    except OSError:
        above = found.root
        while not os.path.exists(above):
            above = os.path.dirname(above)
        found.usable = found.writable = os.path.isdir(above) and os.access(above, os.W_OK | os.X_OK)
        found.reason = "" if found.usable else f"it cannot be made: {above} is not a directory that we can write to"
        return found
    found.writable = os.access(found.root, os.W_OK | os.X_OK)
    try:
        with _opened(found.root) as root:
            found.usable = True
            for name in _entries(root):
                try:
                    size = os.stat(name, dir_fd=root, follow_symlinks=False).st_size
                except FileNotFoundError:
                    continue  # removed meanwhile
                found.entries, found.bytes = found.entries + 1, found.bytes + size
            disk = os.fstatvfs(root)
            found.free_bytes = disk.f_bavail * disk.f_frsize
    except InputError as error:
        found.reason = str(error)
    return found


def clear() -> int:
    """Remove every entry and what dead processes left behind; returns how many entries. Nothing else is touched.

    A running process keeps the kernels that it has loaded, and writes its next ones as before.
    """
    removed = 0
    root = default_root()
    if not root or not os.path.lexists(root):
        return removed
    with _opened(root) as directory:
        for name in os.listdir(directory):
            if TRANSIENT.fullmatch(name) and _is_leftover(directory, name):
                _remove(directory, name)
        for name in _entries(directory):
            removed += _remove(directory, name)
    return removed


def verify() -> Verification:
    """Read every entry and check it as the library does before it loads one."""
    result = Verification(default_root())
    if not result.root or not os.path.lexists(result.root):
        return result
    with _opened(result.root) as root:
        for name in sorted(_entries(root)):
            problem = _problem(root, name)
            if problem is not _REMOVED:
                result.entries += 1
                result.bad += [(name, problem)] if problem else []
    return result


@contextmanager
def _opened(root: str) -> Iterator[int]:
    """The directory, under the conditions of the library: ours, of nobody else, no link."""
    try:
        directory = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        why = "it is a symbolic link" if os.path.islink(root) else error.strerror
        raise InputError(f"cache directory '{root}' is refused: {why}") from None
    try:
        status = os.fstat(directory)
        if status.st_uid != os.geteuid():
            raise InputError(f"cache directory '{root}' is refused: it belongs to user {status.st_uid}, not to us")
        if status.st_mode & 0o077:
            mode = f"{stat.S_IMODE(status.st_mode):04o}"
            raise InputError(
                f"cache directory '{root}' is refused: others have access to it (mode {mode}); make it 0700"
            )
        yield directory
    finally:
        os.close(directory)


def _entries(root: int) -> list[str]:
    return [name for name in os.listdir(root) if ENTRY.fullmatch(name)]


_REMOVED = "was removed meanwhile"


def _problem(root: int, name: str) -> str | None:
    """What is wrong with an entry: the order of the checks and the words are those of `read_entry`."""
    try:
        # O_NONBLOCK: a FIFO under this name must not make us wait for its writer.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        file = open(os.open(name, flags, dir_fd=root), "rb")  # noqa: SIM115
    except FileNotFoundError:
        return _REMOVED
    except OSError as error:
        return "is a symbolic link" if error.errno == errno.ELOOP else error.strerror
    with file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            return "is not a regular file"
        header = file.read(HEADER_SIZE)
        if len(header) < HEADER_SIZE:
            return "is truncated" if status.st_size else "is empty"
        key, rest = header[len(MAGIC) :][:KEY_SIZE], header[len(MAGIC) + KEY_SIZE :]
        length = int.from_bytes(rest[:LENGTH_SIZE], "little")
        if not header.startswith(MAGIC):
            return "has another format or version"
        if key.decode("latin-1") != ENTRY.fullmatch(name)[1]:
            return "belongs to another key"
        if length != status.st_size - HEADER_SIZE:
            return "has the wrong length"
        if length > MAX_PAYLOAD:
            return "is too large"
        payload = file.read(length)
        if len(payload) < length:
            return "is truncated"
        return None if hashlib.sha256(payload).digest() == rest[LENGTH_SIZE:] else "has the wrong checksum"


def _is_leftover(root: int, name: str) -> bool:
    """Whether the process that made it is gone: it holds a flock on it for life."""
    try:
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=root)
    except OSError:
        return False
    try:
        if os.fstat(file).st_mtime + LEFTOVER_AGE_SECONDS >= time.time():
            return False
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except OSError:
        return False
    finally:
        os.close(file)


def _remove(root: int, name: str) -> bool:
    try:
        os.unlink(name, dir_fd=root)
        return True
    except OSError:  # a directory of that name, or gone already
        return False
