"""One page: a study of each model, section by section."""

from __future__ import annotations

import time
from collections.abc import Sequence
from importlib import resources

from ...benchmark.benchmark import Benchmark
from ...benchmark.candidates import OURS
from ...benchmark.floor import least_bytes
from ...benchmark.measure import Timing
from ...explain import STOP_HEADER, Explanation, Kernel, LibraryCall, kernel_bytes
from ...judge.certify import Certificate
from ...units import show_bytes, show_seconds
from ..study import Study
from .charts import Bar, Point, bars, roofline
from .code import kernel_text, users_lines
from .graph import after_backward, after_forward, before
from .text import breakable, escape, number

# Nothing is fetched, whatever a name in the page may try.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
LABELLED = 12  # points of the roofline with a number, of each kind
LONG = 8  # rows of a table that unfolds
OPEN_SOURCES = 4  # kernels whose text is shown at once; the others unfold
SECTIONS = {
    "graph": "Graph",
    "bytes": "Bytes",
    "kernels": "Kernels",
    "roofline": "Roofline",
    "benchmark": "Benchmark",
    "certificate": "Certificate",
    "source": "Source",
    "outside": "Outside",
}


def page(studies: Sequence[Study], title: str) -> str:
    """The whole page."""
    style, script = ((resources.files(__package__) / name).read_text() for name in ("style.css", "script.js"))
    several = len(studies) > 1
    links = [(f"model-{i}", study.name) for i, study in enumerate(studies, 1)] if several else _links_to_sections(1)
    navigation = _links(links)
    index = _index(studies, title) if several else ""
    articles = "".join(_article(study, i, with_links=several) for i, study in enumerate(studies, 1))
    versions = studies[0].benchmark.versions
    footer = f"fusewright {versions['fusewright']}, torch {versions['torch']}, Python {versions['python']}"
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<link rel="icon" href="data:,">
<title>{escape(title)} - Fusewright</title>
<style>
{style}</style>
</head>
<body>
<div class="bar-top"><div><span class="brand">Fusewright</span><nav aria-label="parts of the page">{navigation}</nav>
<button class="theme" type="button">dark</button></div></div>
<main>
{index}{articles}
<footer>{escape(footer)}, {time.strftime("%Y-%m-%d %H:%M")}</footer>
</main>
<script>
{script}</script>
</body>
</html>
"""


def _index(studies: Sequence[Study], title: str) -> str:
    rows = []
    for i, study in enumerate(studies, 1):
        faster = [_times(study.benchmark.faster(OURS, mode)) for mode in ("forward", "step")]
        cells = [f'<td><a href="#model-{i}">{breakable(study.name)}</a></td>']
        cells += [f'<td class="n">{escape(text)}</td>' for text in faster]
        cells += [f'<td class="n">{show_bytes(study.eager.bytes)} &rarr; {show_bytes(study.fused.bytes)}</td>']
        cells += [f'<td class="n {"ok" if study.ok else "bad"}">{"right" if study.ok else "wrong"}</td>']
        rows.append(f"<tr>{''.join(cells)}</tr>")
    head = "<tr><th></th><th class=n>forward vs eager</th><th class=n>training step vs eager</th>"
    head += "<th class=n>bytes outside the library</th><th class=n>verdict</th></tr>"
    table = f'<div class="table index"><table><thead>{head}</thead><tbody>{"".join(rows)}</tbody></table></div>'
    where = f"{escape(studies[0].benchmark.device)}"
    return f'<header class="model"><h1>{breakable(title)}</h1><p class="where">{where}</p></header>{table}'


def _links_to_sections(i: int) -> list[tuple[str, str]]:
    return [(f"{section}-{i}", label) for section, label in SECTIONS.items()]


def _links(links: Sequence[tuple[str, str]]) -> str:
    return "".join(f'<a href="#{anchor}">{escape(label)}</a>' for anchor, label in links)


def _article(study: Study, i: int, with_links: bool) -> str:
    makers = {
        "graph": _graph,
        "bytes": _bytes,
        "kernels": _kernels,
        "roofline": _roofline,
        "benchmark": _benchmark,
        "certificate": _certificate,
        "source": _source,
        "outside": _outside,
    }
    parts = [f'<section id="{section}-{i}">{makers[section](study)}</section>' for section in SECTIONS]
    links = f'<nav class="parts" aria-label="sections">{_links(_links_to_sections(i))}</nav>' if with_links else ""
    return f'<article id="model-{i}">{_header(study, links)}{"".join(parts)}</article>'


def _header(study: Study, links: str) -> str:
    explanation, benchmark = study.explanation, study.benchmark
    eager, fused = study.eager, study.fused
    left = fused.operators - len(explanation.kernels)
    cards = [
        _card(
            "operators to kernels",
            f"{eager.operators} <em>&rarr; {fused.operators}</em>",
            f"forward and backward{f', {left} of them operators left to PyTorch' if left > 0 else ''}; "
            f"{eager.library} library calls, now {fused.library}",
        ),
        _card(
            "bytes outside the library",
            f"{show_bytes(eager.bytes)} <em>&rarr; {show_bytes(fused.bytes)}</em>",
            _compared(eager.bytes, fused.bytes),
        ),
    ]
    for mode, name in (("forward", "forward"), ("step", "training step")):
        if benchmark.timing(OURS, mode):
            compiled = benchmark.faster(OURS, mode, "torch.compile")
            more = f"; {compiled:.2f}x vs torch.compile" if compiled else ""
            time_of = show_seconds(benchmark.timing(OURS, mode).median)
            cards.append(_card(f"{name}, vs eager", f"<em>{_times(benchmark.faster(OURS, mode))}</em>", time_of + more))
    cases = study.certificate.cases
    word, kind = ("right", "ok") if study.ok else ("wrong", "bad")
    more = f"{sum(case.ok for case in cases)} of {len(cases)} cases against float64"
    cards.append(_card("verdict", word, more, kind))
    where = f"{escape(benchmark.device)}, torch {escape(benchmark.versions['torch'])}, {escape(benchmark.created)}"
    return (
        f'<header class="model"><h1>{breakable(study.name)}</h1><p class="where">{where}</p>{links}</header>'
        f'<div class="cards">{"".join(cards)}</div>'
    )


def _compared(before: int, now: int) -> str:
    """Two counts of bytes, in words. More is moved where eager's library adds a bias without an operator for it."""
    if max(before, now) <= 1.05 * min(before, now):
        return "as much traffic as before"
    if now < before:
        return f"{before / max(now, 1):.1f} times less traffic"
    return f"{now / max(before, 1):.1f} times as much traffic"


def _card(what: str, big: str, more: str, kind: str = "") -> str:
    return (
        f'<div class="card"><div class="what">{escape(what)}</div><div class="big {kind}">{big}</div>'
        f'<div class="more">{escape(more)}</div></div>'
    )


# ---- sections ----------------------------------------------------------------------------------------------


def _graph(study: Study) -> str:
    explanation, panels = study.explanation, []
    for number_of_graph, outline in enumerate(explanation.outlines, 1):
        which = f", graph {number_of_graph}" if len(explanation.outlines) > 1 else ""
        panels.append(_panel(f"Before{which}", "what eager runs in the forward", before(explanation, outline)))
        panels.append(_panel(f"After{which}: forward", "what runs instead", after_forward(explanation, outline)))
    if backward := after_backward(explanation):
        panels.append(_panel("After: backward", "reads what the forward kept", backward))
    if not panels:
        return _titled("Graph", "Nothing was captured: the model runs as it is.", "")
    legend = (
        '<ul class="legend"><li><i class="k"></i>one generated kernel</li><li><i class="l"></i>PyTorch\'s library</li>'
        '<li><i class="t"></i>stays PyTorch\'s</li></ul>'
    )
    lead = "Each coloured box becomes one kernel. Numbers are the same all over the page."
    return _titled("Graph", lead, f'<div class="graphs">{"".join(panels)}</div>{legend}')


def _panel(title: str, hint: str, content: str) -> str:
    below = f'<div class="hint">{escape(hint)}</div>'
    return f'<div class="panel"><h3>{escape(title)}</h3>{below}<div class="scroll">{content}</div></div>'


def _bytes(study: Study) -> str:
    explanation, eager, fused = study.explanation, study.eager.bytes, study.fused.bytes
    left = max(0, fused - kernel_bytes(explanation))  # what operators left to PyTorch move
    least = least_bytes(explanation) + left
    rows = [Bar("eager", eager, [show_bytes(eager)]), Bar("fused", fused, [show_bytes(fused)], "ours")]
    rows.append(Bar("the least possible", least, [show_bytes(least)], "floor"))
    lead = (
        "Read and written outside the library in one training step. The least possible reads what comes from outside "
        "the kernels once and writes what leaves them once, in each direction."
    )
    return _titled("Bytes", lead, bars(rows))


def _kernels(study: Study) -> str:
    rows = []
    for place, step, timing in _timed(study):
        moved = _moved(step)
        texts = ["did not run"]
        if timing:
            texts = [str(timing), show_bytes(moved), f"{number(moved / timing.median)}B/s"]
        name = f'<span class="mono">{breakable(step.name)}</span> <span class="phase">{step.phase}</span>'
        label = f"{_no(place, step)}<span>{name}</span>"
        rows.append(Bar(label, timing.median if timing else 0.0, texts, _kind(step)))
    lead = (
        "The time of every kernel and library call of a training step, in the order in which they run, with what it "
        "moves. Medians with their quartiles, from PyTorch's profiler."
    )
    return _titled("Kernels", lead, bars(rows) if rows else "<p>No kernel was generated.</p>")


def _roofline(study: Study) -> str:
    shown = [(place, step, timing) for place, step, timing in _timed(study) if timing and step.operations]
    by_time = sorted(shown, key=lambda entry: -entry[2].median)
    slowest = [e for kind in (Kernel, LibraryCall) for e in [e for e in by_time if isinstance(e[1], kind)][:LABELLED]]
    points, names = [], []
    for place, step, timing in shown:
        labelled = any(place == other for other, *_ in slowest)
        intensity, speed = step.operations / max(_moved(step), 1), step.operations / timing.median
        points.append(Point(str(place) if labelled else "", step.name, intensity, speed, _kind(step)))
        if labelled:
            names.append(f"<li>{_no(place, step)}<span>{breakable(step.name)} ({step.phase})</span></li>")
    lead = (
        f"What this machine can do, measured: {number(study.machine.bandwidth)}B/s in a large copy, "
        f"{number(study.machine.arithmetic)}op/s in a large matrix product. A kernel on the slope is as fast as "
        "memory; with tensors that fit into a cache it may be above. A function (exp, erf) counts as one operation."
    )
    if len(shown) > len(slowest):
        lead += f" Of kernels and of library calls, the {LABELLED} that take longest have a number."
    chart = f'<div class="panel"><div class="scroll">{roofline(study.machine, points)}</div></div>'
    return _titled("Roofline", lead, f'{chart}<ul class="legend mono">{"".join(names)}</ul>')


def _benchmark(study: Study) -> str:
    result: Benchmark = study.benchmark
    tables = [
        _table(title, header, rows, right_from=1, ours=lambda row: row[0] == OURS)
        for title, header, rows in result.tables()
    ]
    remarks = [f"<li>{escape(line)}</li>" for line in result.remarks()]
    remarks += [f'<li class="bad">{escape(line)}</li>' for line in (*result.doubts, *result.problems)]
    lead = (
        "All candidates in one process, in turns, on inputs drawn afresh for every round; what was timed is judged "
        "against float64 afterwards."
    )
    return _titled("Benchmark", lead, "".join(tables) + f'<ul class="remarks">{"".join(remarks)}</ul>')


def _certificate(study: Study) -> str:
    found: Certificate = study.certificate
    header, rows = found.table()
    bad = {row for row, case in zip(rows, found.cases, strict=True) if not case.ok}
    table = _table("", header, rows, right_from=2, wrong=bad)
    notes = [*(f"refused by eager itself: {case}: {reason}" for case, reason in found.refused), *found.notes]
    remarks = [f"<li>{escape(line)}</li>" for line in notes]
    remarks += [f'<li class="bad">{escape(line)}</li>' for line in found.problems]
    lead = (
        "Output, every gradient and every buffer against float64, beside eager's own error. This is a short run; "
        "fusewright certify asks much more."
    )
    return _titled("Certificate", lead, table + f'<ul class="remarks">{"".join(remarks)}</ul>')


def _source(study: Study) -> str:
    parts = []
    for place, step in enumerate(study.explanation.steps, 1):
        if isinstance(step, Kernel):
            about = f"{step.phase}, {step.schedule} schedule"
            title = f'<span class="mono">{breakable(step.name)}</span> <span class="where">{escape(about)}</span>'
            opened = " open" if len(parts) < OPEN_SOURCES else ""
            parts.append(
                f"<details{opened}><summary>{_no(place, step)}{title}</summary>"
                f'<div class="pair">{users_lines(step.sources)}{kernel_text(step.text)}</div></details>'
            )
    lead = "Your lines on the left, the kernel that was generated from them on the right, as it is compiled."
    return _titled("Source", lead, "".join(parts) or "<p>No kernel was generated.</p>")


def _outside(study: Study) -> str:
    explanation: Explanation = study.explanation
    fallbacks = [
        (f.operator or "graph", f.shapes, f.dtype, f"{f.reason}: {f.detail}" if f.detail else f.reason, f.source)
        for f in explanation.fallbacks
    ]
    header = ("operator", "shapes", "dtype", "reason", "where")
    parts = [_table("", header, fallbacks)] if fallbacks else ["<p>Everything is in a fused region.</p>"]
    if rows := explanation.stops_to_show:
        opened = " open" if len(rows) <= LONG else ""
        table = _table("", STOP_HEADER, rows)
        parts.append(f"<details{opened}><summary>Where fusion stopped ({len(rows)})</summary>{table}</details>")
    if explanation.savings:
        rows = [
            (s.rule, f"{number(s.without)}op", f"{number(s.operations)}op", f"{_change(s.operations, s.without)}")
            for s in explanation.savings
        ]
        header = ("rewrite rule", "operations without it", "with it", "change")
        parts.append(_table("Rewrites, and what they did to the arithmetic", header, rows, right_from=1))
    return _titled("Outside", "What stays PyTorch's, and why; where kernels end; what was rewritten.", "".join(parts))


# ---- small parts -------------------------------------------------------------------------------------------


def _titled(title: str, lead: str, content: str) -> str:
    return f'<h2>{escape(title)}</h2><p class="lead">{escape(lead)}</p>{content}'


def _table(title, header, rows, right_from=99, ours=lambda row: False, wrong=()) -> str:
    def cell(tag: str, i: int, text: object) -> str:
        return f"<{tag}{' class=n' if i >= right_from else ''}>{escape(text)}</{tag}>"

    caption = f"<caption>{escape(title)}</caption>" if title else ""
    head = "".join(cell("th", i, text) for i, text in enumerate(header))
    body = []
    for row in rows:
        kind = ' class="ours"' if ours(row) else ""
        cells = "".join(cell("td", i, text) for i, text in enumerate(row))
        if row in wrong:
            cells = cells.replace("<td class=n>", '<td class="n bad">')
        body.append(f"<tr{kind}>{cells}</tr>")
    return (
        f'<div class="table"><table>{caption}<thead><tr>{head}</tr></thead><tbody>{"".join(body)}</tbody></table></div>'
    )


def _timed(study: Study) -> list[tuple[int, Kernel | LibraryCall, Timing | None]]:
    pairs = zip(study.explanation.steps, study.steps, strict=True)
    return [(i, step, timing) for i, (step, timing) in enumerate(pairs, 1)]


def _no(place: int, step: Kernel | LibraryCall) -> str:
    return f'<span class="no {_kind(step)}">{place}</span>'


def _kind(step: Kernel | LibraryCall) -> str:
    return "kernel" if isinstance(step, Kernel) else "library"


def _moved(step: Kernel | LibraryCall) -> int:
    return step.bytes_read + step.bytes_written


def _times(value: float | None) -> str:
    return f"{value:.2f}x" if value else "n/a"


def _change(now: int, without: int) -> str:
    return f"{(now - without) / without:+.2%}" if without and now != without else "none"
