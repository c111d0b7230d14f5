"""The CUDA extension of an emitted file. page.py copies it; the file defines the names in capitals."""

import os


def _variant(number, texts, defines):
    """A kernel's texts under one set of macros, in a namespace of their own."""
    names = {**dict.fromkeys(("DEPTH", "AHEAD", "FIXED", "SLOT", "THREADS"), 0), **defines}
    before = "".join(f"#define FW_{name} {value}\n" for name, value in names.items())
    after = "".join(f"#undef FW_{name}\n" for name in names)
    inner = "namespace fw {\nusing namespace ::fw;\n}\n" + "".join(texts)
    return f"{before}namespace variant_{number} {{\n{inner}\n}}\n{after}"


def _cuda_source():
    """The half with the kernels."""
    variants, makers, runners = [], [], []
    for name, runner, table, ways in _TABLE:
        rows = []
        for fields, texts, entries, defines in ways:
            space = f"variant_{len(variants)}"
            variants.append(_variant(len(variants), texts, defines))
            functions = ", ".join(
                f'{{"{name}{entry}", reinterpret_cast<const void*>(&{space}::{name}{entry})}}' for entry in entries
            )
            rows.append(f"      {{{fields}, {{{functions}}}}},\n")
        makers.append(f"static KernelLoops loops_{name}() {{\n  KernelLoops k;{table}  return k;\n}}\n")
        runners.append(
            f"static void run_{name}(const KernelCall& call) {{\n"
            f"  static const std::vector<{runner}::Text> texts = {{\n{''.join(rows)}  }};\n"
            f"  static const {runner} kernel(loops_{name}(), texts);\n"
            "  kernel.run(call);\n}\n"
        )
    parts = ["#include <cuda_runtime.h>\n", _SHARED, _PRELUDE, _RULES, *variants, _tables(makers, runners)]
    return "".join(parts)


class _Architectures:
    """Inside of it PyTorch compiles for what the file was written for, unless TORCH_CUDA_ARCH_LIST says otherwise. (To
    flags that name an architecture an older PyTorch adds the GPUs of the machine, and fails where there is none.)"""

    def __enter__(self):
        self.chosen = "TORCH_CUDA_ARCH_LIST" not in os.environ and _ARCHITECTURES != ""
        if self.chosen:
            os.environ["TORCH_CUDA_ARCH_LIST"] = _ARCHITECTURES

    def __exit__(self, *_):
        if self.chosen:
            del os.environ["TORCH_CUDA_ARCH_LIST"]


def _kernels():
    """The extension; built when a tensor first needs it: for TORCH_CUDA_ARCH_LIST, else for what the file was written
    for, else for the GPUs of this machine."""
    if not _built:
        sources = {"cpp_sources": "#define FW_CUDA_EXTENSION\n" + _SHARED + _TORCH, "cuda_sources": _cuda_source()}
        with _Architectures():
            cuda_flags = ["-O3", "--diag-suppress=177,550"]
            _built.append(_load(sources, extra_cflags=["-O2"], extra_cuda_cflags=cuda_flags))
    return _built[0]
