#!/usr/bin/env python3
"""Checks that folders of src/ include each other only as the table in docs/layout.md says.

Rows name a folder, and the folders that its files may include beside their own. Only src/torch and src/emit/file may
include headers of PyTorch.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
TITLE = "## Which folder may include which"
OUTSIDE = re.compile(r"(ATen|c10|torch|pybind11|cuda_runtime)\b")
MAY_SEE_TORCH = {"torch", "emit/file"}


def table(text: str) -> dict[str, set[str]]:
    """For each folder, those that it may include."""
    section = text[text.index(TITLE) + len(TITLE) :].split("\n## ")[0]
    result: dict[str, set[str]] = {}
    for folder, allowed in re.findall(r"^\| `([\w/]+)` \|([^|]*)\|", section, re.M):
        result.setdefault(folder, set()).update(re.findall(r"`([\w/]+)`", allowed))
    return result


def complaints(allowed: dict[str, set[str]], folder: str, text: str) -> list[str]:
    """Returns what is wrong with the includes of a file in this folder of src/."""
    if folder not in allowed:
        return [f"src/{folder} has no row in docs/layout.md ({TITLE[3:]})"]
    found = []
    for quoted, name in re.findall(r'^#include ([<"])([^">]+)', text, re.M):
        other = str(Path(name).parent)
        if quoted == "<":
            if OUTSIDE.match(name) and folder not in MAY_SEE_TORCH:
                found.append(f"includes <{name}>, which only {' and '.join(sorted(MAY_SEE_TORCH))} may")
        elif other not in (".", folder) and other not in allowed[folder]:
            found.append(f'includes "{name}": src/{folder} may not include {other}')
    return found


def main() -> int:
    allowed = table((ROOT / "docs" / "layout.md").read_text(encoding="utf-8"))
    status = 0
    for path in sorted([*(ROOT / "src").rglob("*.h"), *(ROOT / "src").rglob("*.cpp")]):
        folder = str(path.parent.relative_to(ROOT / "src"))
        for complaint in complaints(allowed, folder, path.read_text(encoding="utf-8")):
            print(f"{path.relative_to(ROOT)}: {complaint}")
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
