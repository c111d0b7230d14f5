"""The emitted file as a whole: explanation, C++ or CUDA, kernels, regions, ModelNew."""

from __future__ import annotations

import re
import textwrap

from .extension import kernel_prelude, plain_words, rules_header, shared_header, torch_header
from .regions import Kernel, Kernels, wrapped

_WIDTH = 116

HELPERS = {
    "_device_of": '''
def _device_of(x):
    if x.device.type != "{device}":
        raise RuntimeError(f"{model} has kernels for {device} tensors, but was given one on {{x.device}}")
    if {autocast}:
        raise RuntimeError("{model} was written without autocast: cast the model and its inputs instead")
    return x.device
''',
    "_positive": '''
def _positive(size, what):
    if size <= 0:
        raise RuntimeError(f"{what} is {size}, but must be positive")
''',
    "_more_than_one": '''
def _more_than_one(count):
    if count <= 1:
        raise ValueError("Expected more than 1 value per channel when training")
''',
    "_expect_size": '''
def _expect_size(holds, what):
    if not holds:
        raise RuntimeError(f"this file was written for sizes with {what}: emit the model again for these")
''',
    "_expect": '''
def _expect(actual, expected, what):
    if actual is not expected and (isinstance(actual, torch.Tensor) or actual != expected):
        raise RuntimeError(f"this file was written for {what} = {expected!r}, not {actual!r}: emit the model again")
''',
    "_expect_state": '''
def _expect_state(model, names):
    """The same parameters and buffers as the model that this file was made from; asked once."""
    if "_state_is_known" not in model.__dict__:
        found = [name for name, _ in (*model.named_parameters(), *model.named_buffers())]
        _expect(found, names, "the names of parameters and buffers")
        model.__dict__["_state_is_known"] = True
''',
    "_any_requires_grad": '''
def _any_requires_grad(*tensors):
    return any(x.requires_grad for x in tensors)
''',
    "_no_gradient": '''
def _no_gradient(*tensors):
    if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
        raise RuntimeError("this part of the model was emitted without gradients: call it under torch.no_grad()")
''',
    "_no_such_gradient": '''
def _no_such_gradient(needed, name):
    if needed:
        raise RuntimeError(f"{name} required no gradient when this file was emitted: there is none")
''',
    "_sizes_of": '''
def _sizes_of(x):
    """One element with the sizes of x: the backward asks for no more, so the memory of x is not held."""
    return x.new_empty(()).expand(x.shape)
''',
    "_in_order": '''
def _in_order(x, order):
    """x with its dimensions in this order in memory, copied if it lies otherwise."""
    lying = x.permute(order)
    if lying.is_contiguous():
        return x
    return lying.contiguous().permute([order.index(d) for d in range(x.dim())])
''',
    "_shaped": '''
def _shaped(like, sizes, groups):
    """What convolution_backward wants in place of a tensor of which it reads only sizes and memory format."""
    for channels_last in (torch.channels_last, torch.channels_last_3d):
        if groups == 1 and like.dim() == 3 + (channels_last is torch.channels_last_3d) + 1:
            if like.is_contiguous(memory_format=channels_last) and not like.is_contiguous():
                return torch.empty(sizes, dtype=like.dtype, device=like.device, memory_format=channels_last)
    return like.new_empty(()).expand(sizes)
''',
}  # fmt: skip


def helpers(text: str, model: str, cuda: bool) -> str:
    """The helpers that the text calls."""
    found, wanted = {}, text
    for _ in HELPERS:  # helpers may call helpers
        for name, code in HELPERS.items():
            if name not in found and re.search(rf"\b{name}\(", wanted):
                found[name] = code
                wanted += code
    return _formatted(found, model, cuda)


def _formatted(found: dict[str, str], model: str, cuda: bool) -> str:
    device, autocast = "cuda", "torch.is_autocast_enabled()"
    if not cuda:  # asked in another way before 2.4
        newer = 'torch.is_autocast_enabled("cpu") if hasattr(torch, "get_autocast_dtype")'
        device, autocast = "cpu", f"({newer} else torch.is_autocast_cpu_enabled())"
    parts = []
    for name in HELPERS:
        if name in found:
            code = found[name]
            filled = code.format(device=device, model=model, autocast=autocast) if name == "_device_of" else code
            parts.append(filled.strip("\n"))
    return "\n\n\n".join(parts) + "\n"


def _raw(name: str, text: str) -> str:
    assert "'''" not in text
    return f"{name} = r'''\n{text.strip()}\n'''\n"


def _constants(kernel: Kernel) -> list[str]:
    """The names under which a kernel's texts stand in the file."""
    endings = [""] * len(kernel.described["texts"])
    for variant in kernel.described["variants"]:
        walking = "ITEMS 0\n" in variant["defines"]
        endings[variant["text"]] = "_TILED" if variant["tiled"] else "_WALKING" if walking else ""
    return [f"_{kernel.name.upper()}{ending}" for ending in endings]


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
        text = "\n".join(lines) + "\n"
        for name, source in zip(_constants(kernel), kernel.described["texts"], strict=True):
            text += _raw(name, plain_words(_tidy(source)))
        parts.append(text)
    return "\n".join(parts)


def _tidy(text: str) -> str:
    return text.replace('extern "C" ', "")


def extension_section(kernels: Kernels, arch: list[str], name: str) -> str:
    """The sources around the kernels, and the function that builds the extension when it is first needed."""
    cuda = kernels.cuda
    texts = [text for kernel in kernels.found.values() for text in kernel.described["texts"]]
    common, again, tiled = kernel_prelude(texts, cuda)
    parts = [
        "# What both halves of the extension know: the one that sees PyTorch, and the one with the kernels.",
        _raw("_SHARED", shared_header()),
        "# PyTorch's half: checks, and calls from Python.",
        _raw("_TORCH", torch_header()),
        "# What kernels call: types, mathematics" + (", the device." if cuda else ", loops."),
        _raw("_PRELUDE", common),
    ]
    if cuda:
        parts += [
            "# The same for every variant of a kernel, which are made by the macros in front.",
            _raw("_LOOPS", again),
        ]
        if tiled:
            parts += ["# Operands that do not lie along the lines of a kernel.", _raw("_TILES", tiled)]
    parts += [
        "# How kernels are launched: the shape follows from the sizes of a call, by rules."
        if cuda
        else "# How the work of a kernel is shared out to threads.",
        _raw("_RULES", rules_header(cuda)),
        kernels_section(kernels),
        _build_section(kernels, bool(tiled), arch, name),
    ]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _build_section(kernels: Kernels, tiled: bool, arch: list[str], name: str) -> str:
    rows = []
    for kernel in kernels.found.values():
        described = kernel.described
        loops = described["loops"].rstrip("\n")
        rows.append(f"    (\"{kernel.name}\", r'''\n{loops}\n''', [")
        if kernels.cuda:
            for variant in described["variants"]:
                constant = _constants(kernel)[variant["text"]]
                defines = ", ".join(f"{n}={v}" for n, v in re.findall(r"#define FW_(\w+) (\d+)", variant["defines"]))
                entries = [entry.removeprefix(kernel.name) for entry in variant["entries"]]
                rows.append(wrapped(f'        ("{variant["fields"]}", {constant}, {entries}, dict({defines})),'))
        else:
            rows.append(f"        {_constants(kernel)[0]},")
        rows.append("    ]),")
    table = "_TABLE = [\n" + "\n".join(rows) + "\n]\n"
    template = _CUDA_BUILD if kernels.cuda else _CPU_BUILD
    flags = [f"-gencode=arch=compute_{a},code=sm_{a}" for a in arch]
    text = template.replace("@NAME@", name).replace("@ARCH@", repr(flags))
    text = text.replace("@TILES@", '_TILES if "TILED" in defines else ""' if tiled else '""')
    return "# Each kernel: its loops, and the ways in which it is compiled.\n" + table + text


_CUDA_BUILD = '''

def _variant(number, text, defines):
    """A kernel's text under one set of macros, in a namespace of its own."""
    names = {**dict.fromkeys(("DEPTH", "AHEAD", "FIXED", "SLOT", "THREADS"), 0), **defines}
    before = "".join(f"#define FW_{name} {value}\\n" for name, value in names.items())
    after = "".join(f"#undef FW_{name}\\n" for name in names)
    tiles = @TILES@
    inner = "namespace fw {\\nusing namespace ::fw;\\n}\\n" + _LOOPS + tiles + text
    return f"{before}namespace variant_{number} {{\\n{inner}\\n}}\\n{after}"


def _cuda_source():
    """The half with the kernels."""
    variants, makers, runners = [], [], []
    for name, loops, ways in _TABLE:
        rows = []
        for fields, text, entries, defines in ways:
            space = f"variant_{len(variants)}"
            variants.append(_variant(len(variants), text, defines))
            functions = ", ".join(
                f'{{"{name}{entry}", reinterpret_cast<const void*>(&{space}::{name}{entry})}}' for entry in entries
            )
            rows.append(f"      {{{fields}, {{{functions}}}}},")
        makers.append(f"static KernelLoops loops_{name}() {{\\n  KernelLoops k;{loops}  return k;\\n}}\\n")
        texts = "\\n".join(rows)
        runners.append(f"static bool run_{name}(const KernelCall& call) {{\\n"
            f"  static const std::vector<CudaKernel::Text> texts = {{\\n{texts}\\n  }};\\n"
            f"  static const CudaKernel narrow(loops_{name}(), texts, false), wide(loops_{name}(), texts, true);\\n"
            f"  return narrow.run(call) || wide.run(call);\\n}}\\n")
    names = [name for name, _, _ in _TABLE]
    made = ", ".join(f"loops_{name}()" for name in names)
    run = ", ".join(f"run_{name}" for name in names)
    tables = (
        "namespace fusewright {\\n" + "".join(makers) + "".join(runners)
        + "const std::vector<KernelLoops>& kernels() {\\n"
        + f"  static const std::vector<KernelLoops> all = {{{made}}};\\n  return all;\\n}}\\n"
        + "void run_kernel(size_t kernel, const KernelCall& call) {\\n"
        + f"  static bool (*const run[])(const KernelCall&) = {{{run}}};\\n  run[kernel](call);\\n}}\\n}}\\n"
    )
    return "#include <cuda_runtime.h>\\n" + _SHARED + _PRELUDE + _RULES + "".join(variants) + tables


_built = []


def _kernels():
    """The extension; built when a tensor first needs it, for the GPUs of this machine or TORCH_CUDA_ARCH_LIST."""
    if not _built:
        cpp, cuda = "#define FW_CUDA_EXTENSION\\n" + _SHARED + _TORCH, _cuda_source()
        options = {}
        if "no_implicit_headers" in load_inline.__code__.co_varnames:
            options["no_implicit_headers"] = True  # PyTorch's headers are for the C++ half alone
        flags = [] if "TORCH_CUDA_ARCH_LIST" in os.environ else @ARCH@
        _built.append(load_inline(
            name="@NAME@_" + hashlib.sha256((cpp + cuda).encode()).hexdigest()[:12],
            cpp_sources=[cpp],
            cuda_sources=[cuda],
            extra_cflags=["-O2"],
            extra_cuda_cflags=["-O3", "--diag-suppress=177,550", *flags],
            **options,
        ))
    return _built[0]
'''

_CPU_BUILD = '''

def _source():
    """Kernels and calls in one file."""
    kernels, makers, runners = [], [], []
    for number, (name, loops, ways) in enumerate(_TABLE):
        kernels.append(f"namespace kernel_{number} {{\\n{ways[0]}\\n}}\\n")
        makers.append(f"static KernelLoops loops_{name}() {{\\n  KernelLoops k;{loops}  return k;\\n}}\\n")
        sizes = f"kernel_{number}::fw_state_sizes" if "fw_state_sizes" in ways[0] else "nullptr"
        runners.append(
            f"static void run_{name}(const KernelCall& call) {{\\n"
            f"  static const CpuRules rules = [] {{\\n    CpuRules made(loops_{name}());\\n"
            f"    made.attach(reinterpret_cast<CpuRules::Entry>(&kernel_{number}::{name}), {sizes});\\n"
            "    return made;\\n  }();\\n"
            "  run_on_threads(rules, call);\\n}\\n"
        )
    names = [name for name, _, _ in _TABLE]
    made = ", ".join(f"loops_{name}()" for name in names)
    run = ", ".join(f"run_{name}" for name in names)
    tables = (
        "namespace fusewright {\\n" + "".join(makers) + "".join(runners)
        + "const std::vector<KernelLoops>& kernels() {\\n"
        + f"  static const std::vector<KernelLoops> all = {{{made}}};\\n  return all;\\n}}\\n"
        + "void run_kernel(size_t kernel, const KernelCall& call) {\\n"
        + f"  static void (*const run[])(const KernelCall&) = {{{run}}};\\n  run[kernel](call);\\n}}\\n}}\\n"
    )
    return _SHARED + _PRELUDE + _RULES + "".join(kernels) + tables + _TORCH


_built = []


def _kernels():
    """The extension; built when it is first needed."""
    if not _built:
        source, options = _source(), {}
        native = "-mcpu=native" if platform.machine() in ("aarch64", "arm64") else "-march=native"
        if "no_implicit_headers" in load_inline.__code__.co_varnames:
            options["no_implicit_headers"] = True
        _built.append(load_inline(
            name="@NAME@_" + hashlib.sha256(source.encode()).hexdigest()[:12],
            cpp_sources=[source],
            extra_cflags=["-O3", native, "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-fopenmp"],
            **options,
        ))
    return _built[0]
'''
