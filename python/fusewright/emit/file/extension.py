"""Both extensions of emitted files: tables, and the call of the compiler. page.py copies it."""

import hashlib

from torch.utils.cpp_extension import load_inline


def _tables(makers, runners):
    """The tables of the kernels, and the call of one by its number."""
    names = [name for name, *_ in _TABLE]
    made, run = (
        ", ".join(f"{kind}_{name}" + ending for name in names) for kind, ending in (("loops", "()"), ("run", ""))
    )
    return (
        "namespace fusewright {\n"
        + "".join(makers)
        + "".join(runners)
        + "const std::vector<KernelLoops>& kernels() {\n"
        + f"  static const std::vector<KernelLoops> all = {{{made}}};\n  return all;\n}}\n"
        + "void run_kernel(size_t kernel, const KernelCall& call) {\n"
        + f"  static void (*const run[])(const KernelCall&) = {{{run}}};\n  run[kernel](call);\n}}\n}}\n"
    )


class _AsWritten(list):
    """Sources that load_inline inserts no headers into. An older PyTorch has no option for that, and its headers would
    take nvcc half a minute."""

    def insert(self, index, line):
        """Called with `#include` lines only."""


def _load(sources, **options):
    """Builds the extension under a name that follows from its text. Only what includes PyTorch's headers sees them."""
    if "no_implicit_headers" in load_inline.__code__.co_varnames:
        options["no_implicit_headers"] = True
    name = f"{_NAME}_{hashlib.sha256(''.join(sources.values()).encode()).hexdigest()[:12]}"
    return load_inline(name=name, **{kind: _AsWritten([text]) for kind, text in sources.items()}, **options)


_built = []
