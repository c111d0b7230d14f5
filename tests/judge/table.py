"""Reads the results that are known so far, and makes their table."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from functools import cached_property
from pathlib import Path

BAD = ("wrong", "crash", "timeout")
COLUMNS = ("operator", "samples", "whole", "partly", "left", "wrong", "crash", "timeout", "PyTorch's own")


class Results:
    """The lines of a file of results. The last line about a case counts."""

    def __init__(self, path: Path):
        self.path = path
        self.cases: dict[str, dict] = {}
        self.groups: dict[str, dict] = {}  # those that ran to their end

    def read(self) -> None:
        if not self.path.exists():
            return
        for line in self.path.read_text().splitlines():
            record = json.loads(line)
            if "case" in record:
                self.cases[record["case"]] = record
            else:
                self.groups[record["group"]] = record

    @property
    def ok(self) -> bool:
        return not any(record["status"] in BAD for record in self.cases.values())

    def is_done(self, group: str, most: int, seed: str) -> bool:
        """Returns whether all cases of the group ran that would be drawn, `most` of them by the seed (0: all)."""
        record = self.groups.get(group)
        if record is None:
            return False
        ran = record.get("most", 0)
        return ran == 0 or ran >= record["samples"] or (0 < most <= ran and record["seed"] == seed)

    @cached_property
    def fused(self) -> dict[str, bool]:
        """For each operator that was asked plainly, whether any of it was fused."""
        found: dict[str, bool] = {}
        for name, record in self.cases.items():
            operator, _, kind, _ = (*name.split("/"), "", "", "")[:4]
            if kind == "plain" and "fused" in record:
                found[operator] = found.get(operator, False) or record["fused"] != "left"
        return found


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
