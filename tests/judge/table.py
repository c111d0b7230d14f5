"""What is known so far, and the table of it."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path

BAD = ("wrong", "crash", "timeout")
COLUMNS = ("operator", "samples", "whole", "partly", "left", "wrong", "crash", "timeout", "PyTorch's own")


class Results:
    """The lines of a file of results. The last line about a case counts."""

    def __init__(self, path: Path, drawn: list | None = None):
        self.path, self.drawn = path, drawn
        self.cases: dict[str, dict] = {}
        self.done: set[str] = set()  # names of groups whose every case ran, or all that are drawn

    def read(self) -> None:
        if not self.path.exists():
            return
        for line in self.path.read_text().splitlines():
            record = json.loads(line)
            if "case" in record:
                self.cases[record["case"]] = record
            elif record.get("drawn") in (None, self.drawn):
                self.done.add(record["group"])

    @property
    def ok(self) -> bool:
        return not any(record["status"] in BAD for record in self.cases.values())

    def left(self, operator: str) -> bool:
        """Whether plain cases of the operator ran, and none was fused."""
        fused = [
            r["fused"]
            for n, r in self.cases.items()
            if n.startswith(f"{operator}/") and "/plain/" in n and "fused" in r
        ]
        return bool(fused) and all(one == "left" for one in fused)


def table(results: Results, verbose: bool = False) -> str:
    rows: dict[str, Counter] = defaultdict(Counter)
    for name, record in results.cases.items():
        if record["status"] == "none":
            continue
        counts = rows[name.split("/")[0]]
        counts["samples"] += 1
        counts[record.get("fused", "")] += 1
        counts[record["status"]] += 1
    total = sum(rows.values(), Counter())
    shown = {n: c for n, c in sorted(rows.items()) if verbose or c["whole"] + c["partly"] or any(c[b] for b in BAD)}
    shown[f"all {len(rows)} operators"] = total
    lines = ["  ".join([f"{COLUMNS[0]:44}", *(f"{c:>9}" for c in COLUMNS[1:])])]
    for name, counts in shown.items():
        numbers = [counts["theirs" if column == COLUMNS[-1] else column] for column in COLUMNS[1:]]
        lines.append("  ".join([f"{name:44}", *(f"{n:>9}" for n in numbers)]))
    for name, record in results.cases.items():
        if record["status"] in BAD:
            lines.append(f"{record['status']}: {name}: {'; '.join(record.get('problems', []))[:400]}")
    verdict = "nothing wrong" if results.ok else "WRONG"
    lines.append(f"judge: {verdict}, {total['samples']} cases of {len(rows)} operators")
    return "\n".join(lines)
