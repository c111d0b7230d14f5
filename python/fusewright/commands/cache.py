"""The kernels on disk: what `fusewright cache` shows, removes and checks.

All of it is done by the library's own reader, src/runtime/cache/disk_cache.cpp. Entries appear whole, by a rename, and
disappear whole: it works beside running processes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .. import _core
from ..errors import InputError


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
    found = _core.cache_info()
    if "mode" in found:
        found["mode"] = f"{found['mode']:04o}"
    return CacheInfo(**found)


def clear() -> int:
    """Remove every entry and what dead processes left behind; returns how many entries. Nothing else is touched.

    A running process keeps the kernels that it has loaded, and writes its next ones as before.
    """
    _root()
    return _core.cache_clear()


def verify() -> Verification:
    """Read every entry and check it as the library does before it loads one."""
    return Verification(_root(), *_core.cache_verify())


def _root() -> str:
    """The directory; an InputError if there is one and the library would not use it."""
    found = info()
    if found.exists and not found.usable:
        raise InputError(found.reason)
    return found.root
