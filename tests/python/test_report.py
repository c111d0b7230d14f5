"""The report: what stands in the page, that its drawings hold together, and that a real browser shows it."""

import json
import random
import re

import browser
import pytest
import torch
from test_cli import MODEL
from test_cli import fusewright as command
from torch import nn

import fusewright
from fusewright.benchmark import benchmark, candidates
from fusewright.benchmark.floor import Machine
from fusewright.explain import Explanation
from fusewright.pages.html import charts, graph
from fusewright.pages.html.code import kernel_text, users_lines
from fusewright.pages.html.layers import GAP_X, Box, place
from fusewright.pages.html.page import SECTIONS, _compared, page
from fusewright.pages.html.text import breakable, wrapped
from fusewright.pages.study import study

pytestmark = pytest.mark.real_core

NASTY = '</script><script>window.hacked = 1</script><img src=x onerror="window.hacked = 1">'


class Everything(nn.Module):
    """A library call, several kernels, a branch, a part that stays PyTorch's, two results."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, bias=False)
        self.norm = nn.BatchNorm2d(6)

    def forward(self, x):
        y = torch.relu(self.norm(self.conv(x)))
        z = torch.sort(y.mean((2, 3)), dim=-1).values  # </script><script>window.hacked = 1</script>
        return y * torch.sigmoid(y), torch.tanh(z) * 2


@pytest.fixture(scope="module")
def studied():
    torch.manual_seed(0)
    torch._dynamo.reset()
    named = type(NASTY, (Everything,), {})
    x = torch.randn(5, 3, 9, 7)
    return study(named(), lambda seed: [x + 0.01 * seed], candidates=("eager", "fusewright"), seconds=0.01)


@pytest.fixture(scope="module")
def report(studied, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(page([studied], studied.name))
    return path


# ---- what stands in it -------------------------------------------------------------------------------------


def test_page_holds_everything_itself(report, studied):
    text = report.read_text()
    assert studied.ok, studied.problems
    assert "http:" not in text and "https:" not in text and "default-src 'none'" in text
    assert "<script>window" not in text and "<img" not in text and text.count("<script>") == 1
    assert all(f'id="{section}-1"' in text for section in SECTIONS)
    for kernel in studied.explanation.kernels:
        assert breakable(kernel.name) in text
    assert "aten.sort.default" in text and "unsupported_operator" in text and "training step: forward" in text
    assert "of 1" in text and "train, float32, strided" in text


def test_graphs(studied):
    """As many boxes as there are steps, each with its number; what is not fused is drawn as such."""
    explanation = studied.explanation
    (outline,) = explanation.outlines
    steps = explanation.steps
    forward, backward = graph.after_forward(explanation, outline), graph.after_backward(explanation)
    for drawn, phase in ((forward, "forward"), (backward, "backward")):
        mine = [(i, s) for i, s in enumerate(steps, 1) if s.phase == phase]
        assert drawn.count('class="item kernel"') + drawn.count('class="item library"') == len(mine)
        assert [i for i, _ in mine] == sorted(map(int, re.findall(r'badge-text"[^>]*>(\d+)<', drawn)))
    assert forward.count('class="item torch"') == 1 and forward.count(">output<") == 2

    eager = graph.before(explanation, outline)
    labels = re.findall(r'class="label"[^>]*>([^<]+)<', eager)
    assert labels.count("sort") == 1 and {"conv2d", "batch_norm", "relu", "sigmoid", "mul", "tanh", "mean"} <= set(
        labels
    )
    assert eager.count('class="item group"') == len([s for s in steps if s.phase == "forward" and s.name != "conv"])


def test_a_model_that_is_not_fused():
    """A page too, that says so."""
    result = study(
        lambda x: torch.sort(x).values, lambda seed: [torch.randn(5)], candidates=("eager", "fusewright"), seconds=0.01
    )
    assert not result.explanation.kernels
    assert "No kernel was generated" in page([result], "sort")


def test_what_is_drawn():
    """Single numbers too, but not the count of batches; both halves of a graph break."""
    explanation = fusewright.explain(lambda x: torch.tanh(x) * (x.sum() + x.amax()), torch.randn(7, 9))
    drawn = graph.before(explanation, explanation.outlines[0])
    assert re.findall(r'class="label"[^>]*>([^<]+)<', drawn).count("add") == 1
    model = nn.BatchNorm1d(9)
    explanation = fusewright.explain(model, torch.randn(7, 9))
    assert ">add<" not in graph.before(explanation, explanation.outlines[0])

    def broken(x):
        y = torch.tanh(x) * 2
        torch._dynamo.graph_break()
        return torch.sigmoid(y) * 3

    explanation = fusewright.explain(broken, torch.randn(7, 9))
    halves = [graph.after_forward(explanation, outline) for outline in explanation.outlines]
    assert [half.count('class="item kernel"') for half in halves] == [1, 1]


def test_groups_are_never_entangled():
    """A kernel that computes a bit of an operator whose rest is elsewhere makes no cycle of boxes."""
    torch.manual_seed(0)

    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.convs = nn.ModuleList(nn.Conv2d(4, 4, 3, padding=1, bias=False) for _ in range(4))
            self.norms = nn.ModuleList(nn.BatchNorm2d(4) for _ in range(4))

        def forward(self, x):
            for conv, norm in zip(self.convs, self.norms, strict=True):
                x = torch.relu(x + norm(conv(x)))
            return x

    explanation = fusewright.explain(Residual(), torch.randn(3, 4, 5, 6))
    drawn = graph.before(explanation, explanation.outlines[0])
    # Each norm is in a box with the relu behind it.
    assert drawn.count(">batch_norm<") == 4 and drawn.count('class="item group"') == 4


@pytest.mark.parametrize("seed", range(25))
def test_boxes_never_overlap(seed):
    """Any graph: no box on another, every edge leads down and passes between boxes."""
    draw = random.Random(seed)
    boxes = [Box(draw.uniform(20, 300), draw.uniform(15, 90)) for _ in range(draw.randint(1, 60))]
    edges = [(a, b) for b in range(len(boxes)) for a in range(b) if draw.random() < 1.5 / len(boxes)]
    drawing = place(boxes, edges)
    for i, a in enumerate(boxes):
        assert min(a.x, a.y) >= 0
        assert a.x + a.width <= drawing.width + 1e-6 and a.y + a.height <= drawing.height + 1e-6
        for b in boxes[:i]:
            apart_x = a.x + a.width <= b.x + 1e-6 or b.x + b.width <= a.x + 1e-6
            apart_y = a.y + a.height <= b.y + 1e-6 or b.y + b.height <= a.y + 1e-6
            assert apart_x or apart_y, (seed, a, b)
            if not apart_y:
                assert max(a.x, b.x) - min(a.x + a.width, b.x + b.width) >= GAP_X - 1e-6
    assert set(drawing.paths) == set(edges)
    for (source, target), points in drawing.paths.items():
        assert all(lower >= upper - 1e-6 for (_, upper), (_, lower) in zip(points, points[1:], strict=False))
        for (_, y), (_, to_y) in zip(points[0::2], points[1::2], strict=True):  # from a layer to the next
            assert not any(y <= box.y and box.y + box.height <= to_y for box in boxes), (seed, source, target)
        for (x, y), (_, to_y) in zip(points[1::2], points[2::2], strict=False):  # past a layer
            for number, box in enumerate(boxes):
                if number not in (source, target) and box.y < to_y and y < box.y + box.height:
                    assert not (box.x < x < box.x + box.width), (seed, source, target)


def test_labels_of_the_roofline_are_apart():
    points = [charts.Point(str(i), "same", 2.0, 3e9, "kernel") for i in range(30)]
    drawn = charts.roofline(Machine(1e10, 1e11), points)
    places = [(float(x), float(y)) for x, y in re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)" r="10.0"', drawn)]
    assert len(places) == 30
    for i, (x, y) in enumerate(places):
        assert charts.LEFT <= x <= charts.WIDTH - charts.RIGHT and charts.TOP <= y <= charts.HEIGHT - charts.BOTTOM
        assert all(abs(complex(x - a, y - b)) >= 2 * charts.RADIUS for a, b in places[:i])
    assert "roofline" in charts.roofline(Machine(1e10, 1e11), [])


def test_traffic_in_words():
    """A model may move more than before: its library added a bias without an operator for it."""
    assert _compared(300, 100) == "3.0 times less traffic" and _compared(100, 0) == "100.0 times less traffic"
    assert _compared(100, 104) == _compared(0, 0) == "as much traffic as before"
    assert _compared(100, 120) == "1.2 times as much traffic"


def test_text():
    assert "&lt;b&gt;" in kernel_text("a<b> // x\nint y;") and '<span class="c">// x</span>' in kernel_text("a<b> // x")
    lines = users_lines(["m.py:13: y = x<1", "m.py:2: x", "m.py:13: y = x<1"])
    assert lines.index("   2") < lines.index("  13") and lines.count("13") == 1 and "x&lt;1" in lines
    assert wrapped("fw_row_batch_norm_relu", 12) == ["fw_row_", "batch_norm_", "relu"]


# ---- the command -------------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "model.py"
    path.write_text(MODEL)
    return path


def test_command(capsys, monkeypatch, file, tmp_path):
    seconds = {"cold": {"seconds": 1.25}, "warm": {"seconds": 0.5}}
    monkeypatch.setattr(benchmark, "first_calls", lambda *_: seconds)  # test_bench.py has the real ones
    written = tmp_path / "page.html"
    arguments = ("report", str(file), "--seconds", "0.01", "--no-compile", "-o", str(written))
    status, out, err = command(capsys, *arguments)
    assert status == 0 and out == f"model: right; the report is in {written}\n" and "certify train" in err
    assert "<title>model - Fusewright</title>" in written.read_text() and "1.25 s" in written.read_text()
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_file()) == ["model.py", "page.html"]


def test_a_wrong_result(capsys, monkeypatch, file, tmp_path):
    """The page is written, and says so; the exit status is 1."""
    monkeypatch.setitem(candidates.MAKERS, "fusewright", lambda model: lambda x: model(x) * 1.001)
    monkeypatch.setattr(benchmark, "first_calls", lambda *_: {})  # they take long, and say nothing here
    written = tmp_path / "page.html"
    arguments = ("report", str(file), "--seconds", "0.01", "--no-compile", "-o", str(written), "--json")
    status, out, _ = command(capsys, *arguments)
    assert status == 1 and json.loads(out)["verdict"] == "wrong"
    assert '<div class="big bad">wrong</div>' in written.read_text()


def test_nowhere_to_write(capsys, file):
    status, out, err = command(capsys, "report", str(file), "-o", "/nonexistent/page.html")
    assert status == 2 and not out and "cannot write /nonexistent/page.html" in err
    with pytest.raises(fusewright.InputError, match="no inputs"):
        fusewright.report(nn.Linear(3, 4), path="page.html")


# ---- in a browser ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def chromium():
    if browser.executable() is None:
        pytest.skip("no Chromium (apt-get install chromium): the report was not opened in a browser")
    try:
        opened = browser.Browser()
    except RuntimeError as error:
        pytest.skip(f"Chromium does not start here: {error}")
    with opened:
        yield opened


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_in_a_browser(chromium, report, width, dark):
    chromium.open(report, width, dark=dark)
    assert chromium.evaluate("typeof window.hacked") == "undefined"
    assert chromium.evaluate("document.title").startswith("</script><script>")
    assert chromium.evaluate("document.documentElement.scrollWidth") <= width
    hidden = """[...document.querySelectorAll("section, svg, .card, table")].filter(e => {
        const r = e.getBoundingClientRect(); return r.width < 40 || r.height < 20 }).map(e => e.outerHTML)"""
    assert chromium.evaluate(hidden) == []
    assert chromium.evaluate('document.querySelectorAll("section").length') == len(SECTIONS)
    # Nothing sticks out of the page but what can be scrolled, and no text is too small to be read.
    outside = f"""[...document.querySelectorAll("main *")].filter(e => e.getBoundingClientRect().right > {width} + 1
        && !e.closest(".scroll, .table, pre")).map(e => e.outerHTML.slice(0, 80))"""
    assert chromium.evaluate(outside) == []
    smallest = (
        'Math.min(...[...document.querySelectorAll("main *")].map(e => parseFloat(getComputedStyle(e).fontSize)))'
    )
    assert chromium.evaluate(smallest) >= 9.5
    assert chromium.complaints == []


def test_the_switch_of_colours(chromium, report):
    paper = "getComputedStyle(document.body).backgroundColor"
    colours = {}
    for dark in (False, True):
        chromium.open(report, 1280, dark=dark)
        chromium.evaluate("localStorage.clear()")
        chromium.open(report, 1280, dark=dark)
        before = chromium.evaluate(paper)
        colours[dark] = before
        chromium.evaluate('document.querySelector(".theme").click()')
        assert chromium.evaluate(paper) != before
        chromium.open(report, 1280, dark=dark)  # it remembers
        assert chromium.evaluate(paper) != before
        chromium.evaluate("localStorage.clear()")
    assert colours[False] != colours[True] and chromium.complaints == []


def test_labels_fit_their_boxes(chromium, report):
    """As the browser measures them, whatever its fonts: we only guessed their width."""
    chromium.open(report, 1280)
    outside = """[...document.querySelectorAll("svg.graph .item")].flatMap(item => {
        const box = item.querySelector(".shape").getBBox();
        return [...item.children].filter(e => e.tagName == "text").filter(e => {
            const t = e.getBBox(); return t.x < box.x || t.x + t.width > box.x + box.width || t.y < box.y - 1
                || t.y + t.height > box.y + box.height + 1 }).map(e => e.textContent) })"""
    assert chromium.evaluate(outside) == []


def test_no_outline_no_graph():
    assert graph.after_backward(Explanation("nothing")) == ""
