"""The C++ extension of an emitted file. page.py copies it; the file defines the names in capitals."""

import platform


def _source():
    """Kernels and calls in one file."""
    kernels, makers, runners = [], [], []
    for number, (name, loops, ways) in enumerate(_TABLE):
        kernels.append(f"namespace kernel_{number} {{\n{ways[0]}\n}}\n")
        makers.append(f"static KernelLoops loops_{name}() {{\n  KernelLoops k;{loops}  return k;\n}}\n")
        sizes = f"kernel_{number}::fw_state_sizes" if "fw_state_sizes" in ways[0] else "nullptr"
        runners.append(
            f"static void run_{name}(const KernelCall& call) {{\n"
            f"  static const CpuRules rules = [] {{\n    CpuRules made(loops_{name}());\n"
            f"    made.attach(reinterpret_cast<CpuRules::Entry>(&kernel_{number}::{name}), {sizes});\n"
            "    return made;\n  }();\n"
            "  run_on_threads(rules, call);\n}\n"
        )
    return "".join([_SHARED, _PRELUDE, _RULES, *kernels, _tables(makers, runners, "void"), _TORCH])


def _kernels():
    """The extension; built when it is first needed."""
    if not _built:
        native = "-mcpu=native" if platform.machine() in ("aarch64", "arm64") else "-march=native"
        flags = ["-O3", native, "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-fopenmp"]
        _built.append(_load({"cpp_sources": _source()}, extra_cflags=flags))
    return _built[0]
