"""The command `fusewright`: what it prints, what it returns, and what it says when something does not fit."""

import ast
import fcntl
import hashlib
import json
import os
import re
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_bad_input import run as run_somewhere

import fusewright as package
from fusewright import console
from fusewright.commands import cache, cli, doctor
from fusewright.errors import InputError
from fusewright.judge.oracle import Verdict

pytestmark = pytest.mark.real_core

MODEL = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(7, width)

    def forward(self, x):
        return torch.tanh(self.linear(x)) * 2

def get_inputs():
    return [torch.randn(5, 7)]

def get_init_inputs():
    return [8]
"""


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model.py"
    path.write_text(MODEL)
    return str(path)


def fusewright(capsys, *arguments):
    """Exit status, stdout, stderr."""
    try:
        status = cli.main(list(arguments))
    except SystemExit as leaving:  # of argparse
        status = leaving.code
    printed = capsys.readouterr()
    return status, printed.out, printed.err


# ---- what does not fit -------------------------------------------------------------------------------------

BAD_FILES = {
    "no such file": (None, ["no such file"]),
    "without Model": ("from torch import nn\nclass Net(nn.Module): pass\n", ["no `Model`", "Net"]),
    "Model is no class": ("Model = 3\n", ["`Model` is no class"]),
    "not a module": ("class Model: pass\n", ["not a torch.nn.Module"]),
    "syntax": ("def f(:\n", ["SyntaxError", "line 1"]),
    "raises": ("def f():\n    return 1 / 0\nf()\n", ["line 3, in <module>", "line 2, in f", "ZeroDivisionError"]),
    "leaves": ("import sys\nsys.exit('not today')\n", ["SystemExit", "not today"]),
    "constructor": (MODEL.replace("return [8]", "return [8, 9]"), ["Model(*get_init_inputs()) failed", "TypeError"]),
    "draws nothing": (MODEL.replace("torch.randn(5, 7)", "missing"), ["get_inputs() failed", "NameError"]),
    "inputs do not fit": (MODEL.replace("(5, 7)", "(5, 6)"), ["float32[5, 6]", "in forward", "RuntimeError"]),
    "without get_inputs": (MODEL.replace("def get_inputs", "def other"), ["no `get_inputs`", "--inputs"]),
}


@pytest.mark.parametrize("command", ["explain", "certify", "bench", "report"])
@pytest.mark.parametrize("kind", BAD_FILES)
def test_a_file_that_does_not_fit(capsys, tmp_path, command, kind):
    """One message, the user's own lines, none of ours."""
    text, expected = BAD_FILES[kind]
    path = tmp_path / "model.py"
    if text is not None:
        path.write_text(text)
    written = ["-o", str(tmp_path / "page.html")] if command == "report" else []
    status, out, err = fusewright(capsys, command, str(path), *written)
    assert status == 2 and not out and not (tmp_path / "page.html").exists()
    assert str(path) in err and all(part in err for part in expected), err
    assert not re.search(r'File ".*fusewright/\w+\.py"', err), err


@pytest.mark.parametrize(
    "arguments, expected",
    [
        (["explain", "FILE", "--device", "cuda:99"], "no GPU for --device cuda:99"),
        (["explain", "FILE", "--device", "banana"], "auto, cpu, cuda"),
        (["explain", "FILE", "--inputs", "other"], "no `other`"),
        (["explain", "FILE", "--class", "Other"], "no `Other`"),
        (["explain", "no.such.module:Model"], "No module named 'no'"),
        (["certify", "FILE", "-o", "/nonexistent/certificate.json"], "cannot write /nonexistent/certificate.json"),
        (["certify", "FILE", "--seeds", "0"], "less than 1"),
        (["bench", "FILE", "--seconds", "0"], "not more than 0"),
        (["bench", "FILE", "--modes", "sideways"], "invalid choice"),
        (["run", "/nonexistent/model.py"], "no such file"),
        (["explain"], "required"),
        (["cache", "polish"], "invalid choice"),
        ([], "required"),
        (["--turbo"], "unrecognized arguments: --turbo"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_usage(capsys, model, arguments, expected):
    status, out, err = fusewright(capsys, *(model if a == "FILE" else a for a in arguments))
    assert status == 2 and not out and expected in err, err


COMMANDS = ["run", "explain", "certify", "emit", "bench", "report", "doctor", "cache"]


@pytest.mark.parametrize("command", COMMANDS)
def test_an_unknown_flag_shows_the_usage_of_its_command(capsys, command):
    needed = {"report": ["-o", "page.html", "model.py"], "cache": ["info"], "run": [], "doctor": []}
    status, out, err = fusewright(capsys, command, "--turbo", *needed.get(command, ["model.py"]))
    assert status == 2 and not out and err.startswith(f"usage: fusewright {command} [-h]"), err
    assert err.endswith(f"fusewright {command}: error: unrecognized arguments: --turbo\n")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_examples(capsys, command):
    status, out, _ = fusewright(capsys, command, "--help")
    assert status == 0 and f"examples:\n  fusewright {command}" in out and "--json" in out


# ---- what is imported --------------------------------------------------------------------------------------


def fresh_process(program, *arguments, **options):
    """Returns what a program prints in an interpreter that has imported nothing yet."""
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["explain", "--help"],
        ["explain", "--turbo", "model.py"],
        ["bench", "model.py", "--seconds", "0"],
        ["cache", "info"],
        ["cache", "info", "--json"],
        [],
    ],
    ids=" ".join,
)
def test_answers_without_torch(arguments):
    program = """
import sys, time
from fusewright.commands.cli import main
try:
    main(sys.argv[1:])
except SystemExit:
    pass
heavy = {"torch", "numpy", "rich", "fusewright._core"} & {*sys.modules}
print("heavy:", *heavy, "seconds:", time.process_time())
"""
    heavy, seconds = fresh_process(program, *arguments).splitlines()[-1].removeprefix("heavy:").split("seconds:")
    assert not heavy.strip() and float(seconds) < 0.3


def test_the_package_imports_next_to_nothing():
    program = """
import importlib.machinery, sys  # as the finder of an editable install does
before = {*sys.modules}
import fusewright
print(*sorted({*sys.modules} - before))
"""
    assert {*fresh_process(program).split()} <= {"fusewright", "types"}


def test_names_of_the_package():
    """Each is found where the type checker is told that it is, whatever was imported before it."""
    source = ast.parse(Path(package.__file__).read_text())
    (told,) = (node for node in source.body if isinstance(node, ast.If))
    homes = {alias.name: node.module for node in told.body for alias in node.names}
    assert homes == package._HOMES and sorted(homes) == sorted(package.__all__)
    assert {*package.__all__, "__version__"} <= {*dir(package)}
    program = """
import fusewright.capture.backend
from fusewright.explain import Kernel
import fusewright
for name in fusewright.__all__:
    assert callable(getattr(fusewright, name)), name
assert fusewright.errors.InputError is fusewright.InputError
assert not hasattr(fusewright, "nothing") and not hasattr(fusewright, "_nothing")
assert fusewright.__version__ == fusewright._core.version()
"""
    fresh_process(program)


# ---- interrupts and closed pipes ---------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [0.0, 0.3, 1.0, 2.0, 4.0, 6.0])
def test_interrupted(tmp_path, model, seconds):
    """While torch is imported, in the middle of the work, at the end: one line and 130. No file is left.

    The interrupt comes some seconds after the first line of ours runs; what a slow machine does then does not matter.
    """
    waiting = MODEL + "\nimport time\ntime.sleep(60)\n" if seconds == 6.0 else MODEL
    Path(model).write_text(waiting)
    page = tmp_path / "page.html"
    program = "print('begun', flush=True); from fusewright.__main__ import main; main()"
    command = [sys.executable, "-c", program, "report", model, "-o", str(page), "--seconds", "30"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    environment = os.environ | {"FUSEWRIGHT_CACHE_DIR": str(tmp_path / "cache")}
    with subprocess.Popen(command, **pipes, text=True, env=environment, start_new_session=True) as process:
        assert process.stdout.readline() == "begun\n"
        time.sleep(0.1 + seconds)  # the first lines of `main` are Python's to answer
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: compilers get it too
        sent = time.monotonic()
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130 and not out, err
    assert re.fullmatch(r"fusewright( report)?: interrupted", err.splitlines()[-1]) and "Traceback" not in err, err
    assert time.monotonic() - sent < 10 and not page.exists()


def test_interrupted_while_importing(tmp_path):
    """torch's own code in C++ aborts the process if an exception comes out of what it imports."""
    (tmp_path / "aborts.py").write_text(
        "import os, signal, time\n"
        "try:\n  os.kill(os.getpid(), signal.SIGINT)\n  time.sleep(30)\n"
        "except BaseException:\n  os.abort()\n"
    )
    program = "from fusewright.commands import process; process._watch_for_interrupts(); import aborts"
    found = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (found.returncode, found.stdout, found.stderr) == (130, "", "fusewright: interrupted\n")


def test_a_closed_pipe(model):
    """`| head -1`: no word about it, and not the status of a wrong result."""
    command = [sys.executable, "-m", "fusewright", "explain", model, "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.close()
        err = process.stderr.read()
    assert process.returncode == 141 and err.splitlines() == ["model: build", "model: run in eager", "model: explain"]
    command = [sys.executable, "-m", "fusewright", "explain", model]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout.readline() == "model: build\n"
        process.stdout.close()
    assert process.returncode == 141


def test_a_closed_pipe_below_a_table():
    read, write = os.pipe()
    os.close(read)
    with pytest.raises(BrokenPipeError), open(write, "w") as pipe:
        console.Console(file=pipe).print("a line")


# ---- explain -----------------------------------------------------------------------------------------------


def test_explain(capsys, model):
    status, out, err = fusewright(capsys, "explain", model)
    assert status == 0 and "backward: 1 kernel" in out and "outside: nothing" in out
    assert err.splitlines() == [
        "model: build",
        "model: run in eager",
        "model: explain",
    ]  # plain lines: no terminal here
    status, out, _ = fusewright(capsys, "explain", model, "--inference", "--json")
    result = json.loads(out)
    assert status == 0 and {kernel["phase"] for kernel in result["kernels"]} == {"forward"}


def test_a_class_in_a_module(capsys, tmp_path, monkeypatch):
    """From the current directory, which a command does not have in its path by itself."""
    (tmp_path / "some_package").mkdir()
    (tmp_path / "some_package" / "blocks.py").write_text(MODEL.replace("class Model", "class Block"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    status, out, _ = fusewright(capsys, "explain", "some_package.blocks:Block", "--inference")
    assert status == 0 and out.startswith("Block: 1 graph")


# ---- run ---------------------------------------------------------------------------------------------------


def test_run(capsys, model, tmp_path):
    page = tmp_path / "page.html"
    options = ("--seconds", "0.01", "--no-compile", "--device", "cpu", "-o", str(page))
    status, out, err = fusewright(capsys, "run", model, *options, "--json")
    (report,) = json.loads(out)["models"]
    assert page.read_text().count("<article") == 1
    assert status == 0 and not report["problems"] and report["kernels"] == 2
    assert report["benchmark"]["candidates"]["fusewright"]["first_call_s"].keys() == {"cold", "warm"}
    assert err.splitlines()[0] == "model: run in eager"


# ---- cache -------------------------------------------------------------------------------------------------


def test_cache(capsys, tmp_path, monkeypatch):
    """Entries of the library are whole; entries it would refuse are named; nothing is created; other files stay."""
    root = tmp_path / "cache"
    monkeypatch.setenv("FUSEWRIGHT_CACHE_DIR", str(root))
    assert fusewright(capsys, "cache", "info")[:2] == (0, f"{root}: 0 entries, 0 B\n")
    assert fusewright(capsys, "cache", "verify")[0] == fusewright(capsys, "cache", "clear")[0] == 0
    assert not root.exists()

    run_somewhere(FUSEWRIGHT_CACHE_DIR=str(root))
    status, out, _ = fusewright(capsys, "cache", "info", "--json")
    found = json.loads(out)
    entries = sorted(root.glob("*.entry"), key=lambda path: path.stat().st_size)
    assert status == 0 and found["entries"] == len(entries) == 3 and found["mode"] == "0700" and found["usable"]
    assert found["bytes"] == sum(path.stat().st_size for path in entries)
    assert fusewright(capsys, "cache", "verify")[:2] == (0, "3 of 3 entries are whole\n")

    _, small, large = entries
    small.write_bytes(small.read_bytes()[:-100])
    flipped = bytearray(large.read_bytes())
    flipped[-1] ^= 1
    large.write_bytes(bytes(flipped))
    status, out, _ = fusewright(capsys, "cache", "verify", "--json")
    bad = dict(json.loads(out)["bad"])
    assert status == 1 and bad == {small.name: "has the wrong length", large.name: "has the wrong checksum"}
    _, log = run_somewhere(FUSEWRIGHT_CACHE_DIR=str(root))
    assert all(any(problem in line for line in log) for problem in bad.values()), log

    foreign = [root / "notes.txt", root / "0123.entry", root / f"{'a' * 64}.entry.bak"]
    for path in foreign:
        path.write_text("mine")
    held, left, young = root / f"{'b' * 64}.lock", root / "tmp-left", root / "tmp-young"
    for path in (held, left, young):
        path.touch()
    for path in (held, left):
        os.utime(path, (0, 0))
    with open(held) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert fusewright(capsys, "cache", "clear")[:2] == (0, "3 entries removed\n")
    assert sorted(root.iterdir()) == sorted([*foreign, held, young])


CACHES = {
    "there": lambda path: path.mkdir(0o700),
    "missing": lambda path: None,
    "open to others": lambda path: (path.mkdir(), path.chmod(0o750)),
    "a file": lambda path: path.write_text(""),
    "a link": lambda path: path.symlink_to("/tmp"),
    "another's": lambda path: (path.mkdir(0o700), os.geteuid() or os.chown(path, 12345, -1)),
}


@pytest.mark.parametrize("name", ["cache", "below/cache", "./cache/../cache/."])
@pytest.mark.parametrize("state", CACHES)
def test_info_is_the_librarys(tmp_path, monkeypatch, state, name):
    """`info` reads the cache without the library, and decides as it does."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FUSEWRIGHT_CACHE_DIR", name)
    CACHES[state](tmp_path / "cache")
    if state == "there":
        (tmp_path / "cache" / f"{'a' * 64}.entry").write_text("some bytes")
        (tmp_path / "cache" / f"{'a' * 64}.lock").write_text("")
    assert_info_is_the_librarys()


@pytest.mark.parametrize(
    "variables",
    [
        {"XDG_CACHE_HOME": "/tmp/somewhere"},
        {"XDG_CACHE_HOME": "relative", "HOME": "/tmp"},
        {"HOME": "/nonexistent"},
        {"HOME": "relative"},
        {"HOME": "/tmp", "FUSEWRIGHT_CACHE_DIR": ""},
        {},
    ],
    ids=str,
)
def test_info_finds_the_place_that_the_library_takes(monkeypatch, variables):
    for name in ("FUSEWRIGHT_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert_info_is_the_librarys()


def assert_info_is_the_librarys():
    theirs, ours = package._core.cache_info(), vars(cache.info()).copy()
    theirs["mode"] = f"{theirs['mode']:04o}" if "mode" in theirs else ""
    theirs.setdefault("owner", None)
    if ours["free_bytes"] is not None:  # others write to this disk
        assert ours.pop("free_bytes") == pytest.approx(theirs.pop("free_bytes"), rel=0.1)
    assert ours == theirs


def test_every_kind_of_damage(tmp_path, monkeypatch):
    """The checks of `read_entry` (runtime/cache/disk_cache.cpp), one by one, and the format on disk, byte by byte."""
    monkeypatch.setenv("FUSEWRIGHT_CACHE_DIR", str(tmp_path))
    tmp_path.chmod(0o700)
    key, payload = "0a" * 32, b"a kernel"
    length, digest = len(payload).to_bytes(8, "little"), hashlib.sha256(payload).digest()
    whole = b"FUSEWRIGHT\0\0\0\0\0\1" + key.encode() + length + digest + payload
    entry = tmp_path / f"{key}.entry"
    entry.write_bytes(whole)
    assert cache.verify() == cache.Verification(str(tmp_path), 1)
    for content, problem in [
        (b"", "is empty"),
        (whole[:50], "is truncated"),
        (b"X" + whole[1:], "has another format or version"),
        (whole[:16] + b"0" * 64 + whole[80:], "belongs to another key"),
        (whole + b"0", "has the wrong length"),
        (whole[:-1] + bytes([whole[-1] ^ 1]), "has the wrong checksum"),
    ]:
        entry.write_bytes(content)
        assert cache.verify().bad == [(entry.name, problem)]
    entry.unlink()
    entry.symlink_to("/etc/hostname")
    assert cache.verify().bad == [(entry.name, "is a symbolic link")]
    entry.unlink()
    os.mkfifo(entry)
    assert cache.verify().bad == [(entry.name, "is not a regular file")]


def test_a_cache_that_is_refused(capsys, tmp_path, monkeypatch):
    """As the library refuses it: then nothing in it is read or removed."""
    monkeypatch.setenv("FUSEWRIGHT_CACHE_DIR", str(tmp_path))
    (tmp_path / f"{'a' * 64}.entry").write_text("")
    tmp_path.chmod(0o777)
    for action in ("verify", "clear"):
        status, _, err = fusewright(capsys, "cache", action)
        assert status == 2 and "mode 0777" in err
    assert "not usable" in fusewright(capsys, "cache", "info")[1] and len(list(tmp_path.iterdir())) == 1
    tmp_path.chmod(0o700)
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    monkeypatch.setenv("FUSEWRIGHT_CACHE_DIR", f"{link}/.")
    assert "it is a symbolic link" in fusewright(capsys, "cache", "clear")[2]


# ---- doctor ------------------------------------------------------------------------------------------------


def test_doctor(capsys, monkeypatch):
    monkeypatch.setenv("FUSEWRIGHT_CASHE_DIR", "/tmp")
    status, out, _ = fusewright(capsys, "doctor")
    assert status == 0 and "self-test on cpu: right" in out and out.endswith("\nusable\n")
    assert "FUSEWRIGHT_CASHE_DIR is set, but nothing reads it" in out
    monkeypatch.setattr(doctor, "judge_step", lambda *_: [Verdict("output", 1.0, 0.0, "output: error 1")])
    status, out, _ = fusewright(capsys, "doctor", "--json")
    result = json.loads(out)
    assert status == 1 and not result["usable"] and result["self_tests"][0]["result"] == "wrong"


def test_doctor_without_a_compiler(tmp_path):
    """As a process of its own: the compiler is looked for once in one."""
    environment = {"FUSEWRIGHT_CXX": "/nonexistent/g++", "FUSEWRIGHT_CACHE_DIR": "/proc/nowhere"}
    command = [sys.executable, "-m", "fusewright", "doctor"]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and "NOT usable" in done.stdout and "Traceback" not in done.stderr, done.stderr
    assert "no usable C++ compiler" in done.stdout and "-> install g++ or set FUSEWRIGHT_CXX" in done.stdout


def test_doctor_knows_the_variables():
    page = (Path(__file__).parents[2] / "docs/environment.md").read_text()
    table = page[page.index("## When a model runs") : page.index("## GPUs")]
    assert set(re.findall(r"^\| `(FUSEWRIGHT_\w+)`", table, re.MULTILINE)) == doctor.VARIABLES


# ---- progress and files ------------------------------------------------------------------------------------


def test_progress_on_a_terminal(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # what rich takes for a terminal
    with console.progress(2) as step:
        step("first [stage]")
        step("second")
    assert "\x1b[" in capsys.readouterr().err


def test_a_file_is_whole_or_not_there(tmp_path):
    path = tmp_path / "certificate.json"
    with pytest.raises(KeyboardInterrupt), console.output_file(path) as file:
        file.write("half")
        raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())
    with console.output_file(path) as file:
        file.write("whole")
        assert not path.exists()
    assert path.read_text() == "whole" and [path] == list(tmp_path.iterdir())
    umask = os.umask(0o022)
    os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask
    with pytest.raises(ZeroDivisionError), console.output_file(path) as file:
        file.write("other")
        raise ZeroDivisionError
    assert path.read_text() == "whole" and [path] == list(tmp_path.iterdir())
    for place in (tmp_path, Path("/dev/null")):
        with pytest.raises(InputError, match="not a regular file"), console.output_file(place):
            pass
