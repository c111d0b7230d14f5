"""The documentation is true: its Python runs, its outputs are what is printed, its table is src/ops/ops.def.

    python tests/python/test_docs.py      writes the table of docs/language.md anew

A fence `output` after a fence `python` is what that one prints. A fence `python NAME.py` is a file, and one `console`
holds commands (`$ fusewright ...`) that run beside it, each followed by lines of what it prints, in order, where `...`
stands for anything. A fence `cpp kernel` is part of a kernel's text, lines with `...` left out, from an Explanation
that the page has called `explanation`. A table below a comment `from bench/results/NAME` is made of rows of that file.
"""

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from fusewright import _core

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINKING = [*PAGES, ROOT / "CONTRIBUTING.md"]
FENCE = re.compile(r"^```(\w[\w. ]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
NAMED_TEST = re.compile(r"`([\w/]+\.(?:py|cpp))::([\w.]+)`")
RECORDED = re.compile(r"^<!-- from (bench/results/[\w.]+) -->\n((?:\|.*\n)+)", re.MULTILINE)
TABLE = re.compile(r"(?<=<!-- operations -->\n).*(?=<!-- end of operations -->)", re.DOTALL)


def page_name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def table_of_operations() -> str:
    rows = [(f"`{name}`", kind, meaning.replace("|", "\\|")) for name, kind, meaning in _core.operations()]
    rows = [("operation", "kind", "meaning {attributes}"), ("---", "---", "---"), *rows]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


@pytest.mark.real_core
def test_table_of_operations():
    text = (ROOT / "docs/language.md").read_text()
    assert TABLE.search(text).group() == table_of_operations(), f"run: python {Path(__file__).relative_to(ROOT)}"


def run_commands(text: str, directory: Path) -> None:
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, *expected = part.rstrip().splitlines()
        program, *arguments = shlex.split(command, comments=True)
        assert program == "fusewright", command
        done = subprocess.run(
            [sys.executable, "-m", "fusewright", *arguments],
            cwd=directory,
            env=os.environ | {"COLUMNS": "200"},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"
        printed = done.stdout
        for line in filter(str.strip, expected):
            found = re.search(r"\s+".join(re.escape(word).replace(r"\.\.\.", ".*") for word in line.split()), printed)
            assert found, f"{command} does not print {line!r} but {printed}"
            printed = printed[found.end() :]


@pytest.mark.real_core
@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_examples(page, tmp_path):
    namespace, printed = {"__name__": "example"}, ""
    whole = page.read_text()
    for fence in FENCE.finditer(whole):
        kind, text = fence.groups()
        if kind == "python":
            above = "\n" * whole.count("\n", 0, fence.start(2))  # so that a traceback names the page's own line
            with contextlib.redirect_stdout(io.StringIO()) as stdout:
                exec(compile(above + text, str(page), "exec"), namespace)
            printed = stdout.getvalue()
        elif kind.startswith("python "):
            (tmp_path / kind.removeprefix("python ")).write_text(text)
        elif kind == "console":
            run_commands(text, tmp_path)
        elif kind == "output":
            assert printed.strip() == text.strip()
        elif kind == "cpp kernel":
            parts = [part.strip("\n") for part in re.split(r"^\s*\.\.\.$", text, flags=re.MULTILINE)]
            kernels = [kernel.text for kernel in namespace["explanation"].kernels]
            assert any(all(part in kernel for part in parts) for kernel in kernels)


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    titles = HEADING.findall(re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE))
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", LINKING, ids=page_name)
def test_links(page):
    """Every relative link leads to a file, and every anchor to a heading."""
    broken = []
    for target, anchor in LINK.findall(page.read_text()):
        file = page.parent / target if target else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(f"{target}#{anchor}")
    assert not broken


@pytest.mark.parametrize("page", LINKING, ids=page_name)
def test_lines_are_short(page):
    """No line is longer than 140 characters, but for what other tests compare: outputs, kernels, the operations."""
    text = TABLE.sub(
        "", re.sub(r"^```(output|cpp kernel)\n.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    )
    assert [line for line in text.splitlines() if len(line) > 140] == []


def test_trust_names_tests_that_exist():
    text = (ROOT / "docs/trust.md").read_text()
    for name, test in NAMED_TEST.findall(text):
        file = ROOT / "tests" / name
        assert file.exists(), name
        if file.suffix == ".cpp":
            suite, _, case = test.partition(".")
            declared = re.search(rf"^TEST(_[FP])?\({suite}, {case}\)", file.read_text(), re.MULTILINE)
        else:  # written there, or imported to run there too
            declared = re.search(rf"^(def |    ){test}[(,]", file.read_text(), re.MULTILINE)
        assert declared, f"{name} has no {test}"
    cases = [int(number) for number in re.findall(r"^(\d+)\. ", text, re.MULTILINE)]
    assert cases == list(range(1, 41))


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_numbers_are_recorded_ones(page):
    """Below `<!-- from bench/results/NAME -->`, every row of the table stands in that file."""
    for name, table in RECORDED.findall(page.read_text()):
        recorded = (ROOT / name).read_text().splitlines()
        missing = [row for row in table.splitlines() if row.startswith("|") and row not in recorded]
        assert not missing, f"not in {name}: {missing}"


if __name__ == "__main__":
    language = ROOT / "docs/language.md"
    language.write_text(TABLE.sub(lambda _: table_of_operations(), language.read_text()))
