"""The package's logger: `logging.getLogger("fusewright")`; FUSEWRIGHT_LOG=debug|info|warning|error sets its level."""

from __future__ import annotations

import logging
import os

logger = logging.getLogger("fusewright")


def configure() -> None:
    """Apply FUSEWRIGHT_LOG. With no handler installed by the user, the chosen level gets one on stderr."""
    name = os.environ.get("FUSEWRIGHT_LOG", "").strip().upper()
    if not name:
        return
    level = logging.getLevelName(name)
    if not isinstance(level, int):
        logger.warning("FUSEWRIGHT_LOG=%s is no level; use debug, info, warning or error", name.lower())
        return
    logger.setLevel(level)
    if not logger.handlers and not logging.getLogger().handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
        logger.addHandler(handler)


def core_sink(level: int, message: str) -> None:
    """Where the core's own lines go; its levels are the standard ones (10, 20, 30, 40)."""
    logger.log(level, "%s", message)
