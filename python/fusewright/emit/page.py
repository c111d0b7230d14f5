"""The emitted file as a whole: explanation, C++ or CUDA, kernels, regions, ModelNew."""

from __future__ import annotations

import ast
import re
import textwrap
from pathlib import Path

from .extension import kernel_prelude, plain_words, rules_header, shared_header, torch_header
from .kernels import Kernel, Kernels
from .texts import wrapped

_WIDTH = 116
# Headers that depend on the macros of a variant: what stands above them, and their names in the file.
_PRELUDES = {
    "cuda_loops": ("# The same for every variant of a kernel, which are made by the macros in front.", "_LOOPS"),
    "cuda_tile": ("# Operands that do not lie along the lines of a kernel.", "_TILES"),
}
_FILES = Path(__file__).parent / "file"


def _code(name: str) -> dict[str, str]:
    """What a file under file/ defines, by name: its functions, classes and variables, without its imports."""
    text = (_FILES / f"{name}.py").read_text(encoding="utf-8")
    found = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = ast.get_source_segment(text, node)
        elif isinstance(node, ast.Assign):
            found[node.targets[0].id] = ast.get_source_segment(text, node)
    return found


def helpers(text: str) -> str:
    """The helpers that the text calls, and those that they call."""
    known, wanted = _code("helpers"), {}
    for _ in known:
        calls = text + "".join(wanted.values())
        wanted.update({name: code for name, code in known.items() if re.search(rf"\b{name}\(", calls)})
    return "\n\n\n".join(code for name, code in known.items() if name in wanted) + "\n"


def _raw(name: str, text: str) -> str:
    assert "'''" not in text
    return f"{name} = r'''\n{text.strip()}\n'''\n"


def _constant(kernel: Kernel) -> str:
    """The name under which a kernel's text stands in the file."""
    return f"_{kernel.name.upper()}"


def kernels_section(kernels: Kernels) -> str:
    """Every kernel's texts, each under its formula."""
    parts = []
    for kernel in kernels.found.values():
        title = f"# ---- {kernel.name}: {kernel.phase}, {kernel.described['schedule']} schedule "
        lines = [title + "-" * max(0, _WIDTH - len(title)), "#"]
        lines += [
            f"# operators: {line}" if i == 0 else f"#            {line}"
            for i, line in enumerate(textwrap.wrap(" ".join(kernel.described["operators"]), 96))
        ]
        for source in kernel.described["sources"]:
            lines.append(f"# {plain_words(source)}")
        lines.append("#")
        for formula in kernel.formulas:
            wrapped = textwrap.wrap(plain_words(formula), _WIDTH - 8, break_long_words=False) or [""]
            lines.append(f"#     {wrapped[0]}")
            lines += [f"#         {line}" for line in wrapped[1:]]
        parts.append("\n".join(lines) + "\n" + _raw(_constant(kernel), plain_words(kernel.text())))
    return "\n".join(parts)


def extension_section(kernels: Kernels, arch: list[str], name: str) -> str:
    """The sources around the kernels, and the function that builds the extension when it is first needed. It stands
    behind the kernels, whose texts its table names."""
    cuda = kernels.cuda
    common, again = kernel_prelude(kernels)
    parts = [
        "# What both halves of the extension know: the one that sees PyTorch, and the one with the kernels.",
        _raw("_SHARED", shared_header()),
        "# PyTorch's half: checks, and calls from Python.",
        _raw("_TORCH", torch_header()),
        "# What kernels call: types, mathematics" + (", the device." if cuda else ", loops."),
        _raw("_PRELUDE", common),
    ]
    for header, text in again.items():
        about, constant = _PRELUDES[header]
        parts += [about, _raw(constant, text)]
    parts += [
        "# How kernels are launched: the shape follows from the sizes of a call, by rules."
        if cuda
        else "# How the work of a kernel is shared out to threads.",
        _raw("_RULES", rules_header(kernels)),
        _build_section(kernels, arch, name),
    ]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _build_section(kernels: Kernels, arch: list[str], name: str) -> str:
    rows = []
    for kernel in kernels.found.values():
        described = kernel.described
        table = described["table"].rstrip("\n")
        rows.append(f"    (\"{kernel.name}\", \"{described['runner']}\", r'''\n{table}\n''', [")
        for variant in described["variants"]:
            constant = _constant(kernel)
            if kernels.cuda:
                defines = ", ".join(f"{n}={v}" for n, v in re.findall(r"#define FW_(\w+) (\d+)", variant["defines"]))
                entries = [entry.removeprefix(kernel.name) for entry in variant["entries"]]
                source = ", ".join([*(_PRELUDES[header][1] for header in variant["preludes"]), constant])
                rows.append(wrapped(f'        ("{variant["fields"]}", [{source}], {entries}, dict({defines})),'))
            else:
                rows.append(f"        ({constant}, {variant['entries']}),")
        rows.append("    ]),")
    table = "_TABLE = [\n" + "\n".join(rows) + "\n]\n"
    architectures = ";".join(re.sub(r"(\d)(\D?)$", r".\1\2", a) for a in arch)  # 90a is PyTorch's 9.0a
    settings = [f'_BACKEND, _NAME = "{"cuda" if kernels.cuda else "cpu"}", "{name}"']
    settings += [f'_ARCHITECTURES = "{architectures}"'] if kernels.cuda else []
    code = [*_code("extension").values(), *_code("cuda_extension" if kernels.cuda else "cpu_extension").values()]
    head = "# Each kernel: what runs it, its table, and the ways in which it is compiled.\n"
    return head + table + "\n".join(settings) + "\n\n\n" + "\n\n\n".join(code) + "\n"
