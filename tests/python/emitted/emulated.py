"""Runs the CUDA half of an emitted file on the CPU: its own host code, tables and kernel texts, over the emulator.

emulated.py MODEL.py MODEL_NEW.py CASES.json HEADERS.json: as compare.py. The headers are the library's, whole: the file
has what a GPU needs of them. With `wide` behind it all, every tensor counts as one that needs offsets of 64 bits.
"""

import json
import sys
from pathlib import Path

import compare
import torch
from torch.utils.cpp_extension import load_inline

HERE = Path(__file__).parent
PRELUDES = {"LOOPS": "loops", "TILES": "tile"}


def source_of(written, headers, wide):
    """The half with the kernels, with an address for each of them instead of its code."""
    limit = "(int64_t{1} << 31) - (int64_t{1} << 24)"
    assert limit in written._RULES
    rules = written._RULES.replace(limit, "1") if wide else written._RULES
    prelude = "\n".join(headers[name] for name in ("prelude", "math", "cuda_device"))
    whole_of = {getattr(written, f"_{name}", None): headers[f"cuda_{header}"] for name, header in PRELUDES.items()}
    handles, texts, registered = [], [], []
    for name, _, _, ways in written._TABLE:
        for _, (*preludes, text), entries, defines in ways:
            number = len(handles)
            before = "".join(f"#define FW_{key} {value}\n" for key, value in defines.items())
            again = "".join(whole_of[text] for text in preludes)
            text = of_variant(text, defines).replace("__global__ void", 'extern "C" __global__ void')
            texts.append(pieces(f"text_{number}", before, "prelude()", again + text))
            names = ", ".join(name + entry for entry in entries)
            handles.append(f"namespace variant_{number} {{\nstatic char {names};\n}}\n")
            for entry in entries:
                registered.append(
                    f'  emulated_kernels()[&variant_{number}::{name}{entry}] = {{"{name}{entry}", &text_{number}()}};'
                )
    whole = written._cuda_source()
    tables = whole[whole.index("namespace fusewright {\nstatic KernelLoops loops_") :]
    runtime = f'#include "{HERE / "emulated_runtime.h"}"\n'
    registration = "static const bool registered = [] {\n" + "\n".join(registered) + "\n  return true;\n}();\n"
    return "".join(
        [written._SHARED, runtime, rules.replace("#include <cuda_runtime.h>", ""), pieces("prelude", prelude)]
        + [*texts, *handles, registration, tables, written._TORCH]
    )


def of_variant(text, defines):
    """The text as the preprocessor leaves it: the emulator finds entries in every branch of its conditions."""
    answers = {"#if FW_TILED": "TILED" in defines, "#if FW_ITEMS > 0": defines.get("ITEMS", 0) > 0}
    answers |= {f"#if !({condition[4:]})": not answer for condition, answer in answers.items()}
    kept, stack = [], []  # of each open condition: is it one of these, is its branch kept
    for line in text.splitlines():
        if line.startswith("#if"):
            stack.append([line in answers, answers.get(line, True)])
            ours = stack[-1][0]
        elif line.startswith("#else") and stack[-1][0]:
            ours, stack[-1][1] = True, not stack[-1][1]
        elif line.startswith("#endif"):
            ours = stack.pop()[0]
        else:
            ours = False
        if not ours and all(keeps for _, keeps in stack):
            kept.append(line)
    return "\n".join(kept) + "\n"


def pieces(name, *parts):
    """A function that returns the parts as one string; those that are no text are C++."""
    terms = [f"std::string({part})" if part == "prelude()" else literal(part) for part in parts]
    return (
        f"static const std::string& {name}() {{\n  static const std::string all = {' + '.join(terms)};\n"
        "  return all;\n}\n"
    )


def literal(text):
    chunks = [text[i : i + 8000] for i in range(0, len(text), 8000)] or [""]
    return "std::string(" + "\n".join(f'R"FW_RAW({chunk})FW_RAW"' for chunk in chunks) + ")"


def main(model_path, new_path, cases, headers, wide):
    def load(name, path):
        module = load_plain(name, path)
        if name == "written":
            extension = load_inline(
                "emulated_" + Path(new_path).stem, [source_of(module, headers, wide)], extra_cflags=["-O1"],
                **({"no_implicit_headers": True} if "no_implicit_headers" in load_inline.__code__.co_varnames else {}),
            )  # fmt: skip
            module._built.append(extension)
            module._device_of = lambda x: x.device
        return module

    load_plain, compare.load = compare.load, load
    torch.set_num_threads(1)
    compare.main(model_path, new_path, cases)


if __name__ == "__main__":
    everything = json.loads(Path(sys.argv[4]).read_text())
    main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), everything, sys.argv[5:] == ["wide"])
