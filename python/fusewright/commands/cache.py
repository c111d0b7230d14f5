"""The kernels on disk: what `fusewright cache` shows, removes and checks.

The library's own reader, src/runtime/cache/disk_cache.cpp, checks and removes. `info` is its `DiskCache::info` in
Python: it answers without torch. Entries appear whole, by a rename, and disappear whole: it works beside running
processes.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from dataclasses import dataclass, field

from ..errors import InputError

_ENTRY = re.compile(r"[0-9a-f]{64}\.entry")


@dataclass
class CacheInfo:
    """Where the cache is, whether the library would use it, and what is in it."""

    root: str  # empty: memory only
    exists: bool
    usable: bool  # a missing one is, if it could be made
    reason: str  # why it is not usable
    writable: bool
    entries: int
    bytes: int
    free_bytes: int | None
    mode: str = ""
    owner: int | None = None


@dataclass
class Verification:
    """What `verify` found: damaged entries as (file, what is wrong with it)."""

    root: str
    entries: int = 0
    bad: list[tuple[str, str]] = field(default_factory=list)


def info() -> CacheInfo:
    """Look at the cache; nothing is made or changed."""
    chosen = _chosen_root()
    if not chosen:
        reason = "there is no cache directory: set FUSEWRIGHT_CACHE_DIR, XDG_CACHE_HOME or HOME"
        return CacheInfo("", False, False, reason, False, 0, 0, None)
    root = "/" + os.path.abspath(chosen).lstrip("/")
    directory, why = _opened(root)
    reason = f"cache directory '{root}' is refused: {why}" if why else ""
    found = CacheInfo(root, os.path.lexists(root), not why, reason, not why, 0, 0, None)
    try:
        if found.exists:
            status = os.lstat(root)
            found.mode, found.owner = f"{stat.S_IMODE(status.st_mode):04o}", status.st_uid
            found.writable = os.access(root, os.W_OK | os.X_OK, effective_ids=True)
        if directory is not None:
            with os.scandir(directory) as files:
                sizes = [file.stat(follow_symlinks=False).st_size for file in files if _ENTRY.fullmatch(file.name)]
            disk = os.fstatvfs(directory)
            found.entries, found.bytes, found.free_bytes = len(sizes), sum(sizes), disk.f_bavail * disk.f_frsize
    finally:
        if directory is not None:
            os.close(directory)
    return found


def _chosen_root() -> str:
    """`DiskCache::default_root`."""
    if chosen := os.environ.get("FUSEWRIGHT_CACHE_DIR"):
        return chosen
    if (xdg := os.environ.get("XDG_CACHE_HOME", "")).startswith("/"):
        return f"{xdg}/fusewright"
    home = os.environ.get("HOME", "")
    return f"{home}/.cache/fusewright" if home.startswith("/") and os.path.isdir(home) else ""


def _opened(root: str) -> tuple[int | None, str]:
    """A descriptor of the directory, if it is there and safe to use, and why it is refused, if it is: as
    `DiskCache::open_root` decides."""
    try:
        directory = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        problem = _why_not_created(root)
        return None, f"it cannot be created: {problem}" if problem else ""
    except OSError as error:
        return None, "it is a symbolic link" if os.path.islink(root) else error.strerror
    status, us = os.fstat(directory), os.geteuid()
    mode = stat.S_IMODE(status.st_mode)
    if status.st_uid != us:
        why = f"it belongs to user {status.st_uid}, not to us (user {us})"
    elif mode & 0o077:
        why = f"others have access to it (mode {mode:04o}); make it 0700"
    else:
        return directory, ""
    os.close(directory)
    return None, why


def _why_not_created(path: str) -> str:
    """What the nearest directory above that exists says, without trying."""
    path = os.path.dirname(path)
    while path != "/" and not os.path.isdir(path):
        path = os.path.dirname(path)
    if os.access(path, os.W_OK | os.X_OK, effective_ids=True):
        return ""
    read_only = os.statvfs(path).f_flag & os.ST_RDONLY
    return os.strerror(errno.EROFS if read_only else errno.EACCES)


def clear() -> int:
    """Remove every entry and what dead processes left behind; returns how many entries. Nothing else is touched.

    A running process keeps the kernels that it has loaded, and writes its next ones as before.
    """
    from .. import _core

    _root()
    return _core.cache_clear()


def verify() -> Verification:
    """Read every entry and check it as the library does before it loads one."""
    from .. import _core

    return Verification(_root(), *_core.cache_verify())


def _root() -> str:
    """The directory; an InputError if there is one and the library would not use it."""
    found = info()
    if found.exists and not found.usable:
        raise InputError(found.reason)
    return found.root
