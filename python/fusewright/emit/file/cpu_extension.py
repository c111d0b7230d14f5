"""The C++ extension of an emitted file. page.py copies it; the file defines the names in capitals."""

import platform


def _source():
    """Kernels and calls in one file."""
    kernels, makers, runners = [], [], []
    for number, (name, runner, table, ((text, symbols),)) in enumerate(_TABLE):
        kernels.append(f"namespace kernel_{number} {{\n{text}\n}}\n")
        makers.append(f"static KernelLoops loops_{name}() {{\n  KernelLoops k;{table}  return k;\n}}\n")
        addresses = ", ".join(
            f'{{"{symbol}", reinterpret_cast<const void*>(&kernel_{number}::{symbol})}}' for symbol in symbols
        )
        runners.append(
            f"static void run_{name}(const KernelCall& call) {{\n"
            f"  static const {runner} kernel(loops_{name}(), {{{addresses}}});\n"
            "  kernel.run(call);\n}\n"
        )
    return "".join([_SHARED, _PRELUDE, _RULES, *kernels, _tables(makers, runners), _TORCH])


def _kernels():
    """The extension; built when it is first needed."""
    if not _built:
        native = "-mcpu=native" if platform.machine() in ("aarch64", "arm64") else "-march=native"
        flags = ["-O3", native, "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-fopenmp"]
        _built.append(_load({"cpp_sources": _source()}, extra_cflags=flags))
    return _built[0]
