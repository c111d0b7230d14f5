"""fusewright emit: the file that it writes, held against the model in a process that has torch alone.

FUSEWRIGHT_TEST_PYTHON=/path/to/python does that with the torch of another interpreter, and lets it build the CUDA
extensions too (CUDA_HOME and CC name its toolkit and host compiler; no GPU is needed).
"""

import concurrent.futures
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import showcase
import torch
from torch import nn

from fusewright import _core, models
from fusewright.benchmark.traffic import traffic_of
from fusewright.commands import cli
from fusewright.emit import emit, headers, tidy
from fusewright.emit.capturing import tells_guards
from fusewright.emit.explanation import eager_bytes
from fusewright.errors import InputError

pytestmark = [
    pytest.mark.real_core,
    pytest.mark.skipif(not tells_guards(), reason="this torch does not tell what a capture depends on"),
]

OTHER_PYTHON = os.environ.get("FUSEWRIGHT_TEST_PYTHON")
HERE = Path(__file__).parent
ROOT = HERE.parents[1]
EMITTED = ROOT / "examples" / "emitted"
OTHERS = {"mlp": [[(6, 24), (6, 24)], [(1, 24), (1, 24)], [(37, 24), (37, 24)]],
          "convnet": [[(4, 3, 10, 12)], [(1, 3, 7, 9)], [(5, 3, 33, 6)]]}  # fmt: skip
TOY, TOY_CASES = HERE.parent / "support" / "toy", [[(37,), (6, 24)], [(1,), (1, 24)], [(300,), (37, 24)]]
FORBIDDEN = (
    r"\btry\s*:",
    r"\bexcept\b",
    r"\bpass\b",
    r"\bthreading\b",
    r"\b__file__\b",
    r"\binspect\b",
    r"\bfusewright\.",
)


def model_file(name, folder):
    """A model as a file: the showcase at the sizes of tests, or one of tests/python/emitted."""
    path = folder / f"{name}.py"
    if name in (*OTHERS, "toy"):
        shutil.copy(HERE / "emitted" / f"{name}.py", path)
        return path
    text = (showcase.FOLDER / f"{name}.py").read_text()
    text = text[: text.index("SIZES = {")]
    text += f"def get_inputs():\n    return [torch.randn({showcase.SIZES[name][0]})]\n\n\n"
    text += f"def get_init_inputs():\n    return {list(showcase.ARGUMENTS[name])}\n"
    path.write_text(text)
    return path


def cases(name):
    return OTHERS[name] if name in OTHERS else [[size] for size in showcase.SIZES[name]]


NAMES = [*showcase.NAMES, *OTHERS]
EMULATED = ["channels_last", showcase.BATCH_NORM, showcase.CONV_TRANSPOSE, showcase.GROUP_NORM]
CHANNELS_LAST = [[(2, 64, 10, 13)], [(1, 64, 7, 6)]]  # of an example, whose convolution runs in channels last


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Every model with its files, for both backends."""
    folder = tmp_path_factory.mktemp("emitted")
    for name in NAMES:
        file = models.load(model_file(name, folder))
        for backend in ("cpu", "cuda"):
            (folder / f"{name}_{backend}.py").write_text(emit(file, backend=backend).text)
    file = models.load(model_file("toy", folder))
    for backend in ("cpu", "cuda"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_core, "describe_region", with_toys(_core.describe_region, backend == "cuda"))
            (folder / f"toy_{backend}.py").write_text(emit(file, backend=backend).text)
    (folder / "headers.json").write_text(json.dumps(_core.emitted_headers()))
    return folder


def with_toys(describe, cuda):
    """Regions whose negated vectors are of a kind that only tests know, described as its launcher does: the C++ test of
    that kind (toy_schedule_test.cpp) holds these fields."""

    def toy_of(kernel):
        if kernel["operators"] != ["neg"] or len(kernel["sizes"]) != 1:
            return kernel
        interface = [line for line in kernel["table"].splitlines() if not line.startswith(("  k.nest", "  k.cuda"))]
        name = kernel["name"].replace("pointwise", "toy")
        source, header = ("kernel.cu.txt", "toy_cuda_kernel") if cuda else ("kernel.cpp.txt", "toy_cpu_kernel")
        return kernel | {
            "name": name,
            "schedule": "toy",
            "table": "\n".join(interface).replace(kernel["name"], name) + "\n",
            "runner": "ToyCudaKernel" if cuda else "ToyCpuKernel",
            "headers": [(name, (TOY / f"{name}.h").read_text()) for name in ("toy_rules", header)],
            "texts": [(TOY / source).read_text().replace("KERNEL", name)],
            "variants": [
                {
                    "fields": "1" if cuda else "",
                    "defines": "#define FW_TOY_ITEMS 1\n" if cuda else "",
                    "preludes": [],
                    "text": 0,
                    "label": "",
                    "entries": [name],
                }
            ],
        }

    def described(*arguments):
        region = describe(*arguments)
        for plan in (region["forward"], region["backward"]):
            if plan is not None:
                plan["kernels"] = [toy_of(kernel) for kernel in plan["kernels"]]
        return region

    return described


def in_fresh_process(script, *arguments, folder, **variables):
    """Runs a script of tests/python/emitted with the torch that is tested, and extensions that are built anew."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment |= {"TORCH_EXTENSIONS_DIR": str(folder / "extensions"), **variables}
    command = [OTHER_PYTHON or sys.executable, HERE / "emitted" / script, *arguments]
    words = [str(word) for word in command]
    return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=900)


@pytest.fixture(scope="module")
def comparisons(folder):
    """For each model what fresh processes say of its files; the compilers work two at a time."""

    def compare(job):
        name, backend = job
        if name == "toy":
            files, shapes = [folder / "toy.py", folder / f"toy_{backend}.py"], TOY_CASES
        elif name == "channels_last":
            files, shapes = [showcase.FOLDER / f"{showcase.CONV}.py", EMITTED / f"{showcase.CONV}.py"], CHANNELS_LAST
        else:
            files, shapes = [folder / f"{name}.py", folder / f"{name}_{backend}.py"], cases(name)
        if backend == "cpu":
            return in_fresh_process("compare.py", *files, json.dumps(shapes), folder=folder)
        rest = [folder / "headers.json", *(["wide"] if name == showcase.GROUP_NORM else [])]
        return in_fresh_process("emulated.py", *files, json.dumps(shapes[:3]), *rest, folder=folder)

    jobs = [(name, "cpu") for name in (*NAMES, "toy")]
    if has_emulator():
        jobs += [(name, "cuda") for name in (*EMULATED, "toy")]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        return dict(zip(jobs, pool.map(compare, jobs), strict=True))


def has_emulator():
    return all(Path(os.environ.get(f"FUSEWRIGHT_{name}_LIBRARY", "")).is_file() for name in ("CUDA", "NVRTC"))


@pytest.mark.parametrize("name", [*NAMES, "toy"])
def test_file_is_the_model(name, comparisons):
    """Outputs, gradients, buffers, state dicts, modes, sizes, ten steps of training."""
    result = comparisons[name, "cpu"]
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-4000:]


@pytest.mark.parametrize("name", [*EMULATED, "toy"])
def test_cuda_file_is_the_model(name, emulator, comparisons):
    """The same of its CUDA half: the file's own launches and kernels, run by the emulator."""
    result = comparisons[name, "cuda"]
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-4000:]


@pytest.mark.parametrize("backend", ["cpu", "cuda"])
def test_a_kind_of_its_own(folder, backend):
    """Forward and backward are kernels of the toy kind, run by its own class; the softmax is not."""
    table = executed((folder / f"toy_{backend}.py").read_text())["_TABLE"]
    runners = {kernel: runner for kernel, runner, *_ in table}
    own, usual = ("ToyCudaKernel", "CudaKernel") if backend == "cuda" else ("ToyCpuKernel", "CpuKernel")
    assert sorted(set(runners.values())) == sorted([own, usual])
    assert all((runner == own) == ("_toy_" in kernel) for kernel, runner in runners.items())


@pytest.fixture(scope="module")
def cuda_texts(folder):
    return {name: (folder / f"{name}_cuda.py").read_text() for name in NAMES}


def executed(text):
    """As graders run it: no file, no module."""
    namespace = {}
    exec(compile(text, "<string>", "exec"), namespace)
    return namespace


@pytest.mark.parametrize("name", NAMES)
def test_contract(name, cuda_texts):
    text = cuda_texts[name]
    for pattern in FORBIDDEN:
        found = re.search(pattern, text)
        assert found is None, text[max(0, found.start() - 80) : found.end() + 80]
    assert "__global__" in text and "load_inline" in text and "threadIdx" in text
    imports = set(re.findall(r"^(?:import|from) (\w+)", text, re.M))
    assert imports <= {"torch", "hashlib", "os", "math", "__future__"}
    assert issubclass(executed(text)["ModelNew"], torch.nn.Module)
    assert max(map(len, text.splitlines())) < 400


@pytest.mark.parametrize("name", NAMES)
def test_every_entry_of_the_table_is_in_its_text(name, cuda_texts):
    namespace = executed(cuda_texts[name])
    assert namespace["_TABLE"]
    for kernel, _, _, ways in namespace["_TABLE"]:
        for fields, (*_, text), entries, defines in ways:
            assert fields.startswith(f"{{{defines['VECTOR']}, {defines['ITEMS']}, ")
            for entry in entries:
                assert f" {kernel}{entry}(const Args a)" in text


def test_columns_of_few_rows_at_capture(tmp_path):
    """More rows than those are held in registers, too."""
    path = tmp_path / "model.py"
    body = "    def forward(self, x):\n        return torch.softmax(x * 2, 1)\n"
    path.write_text(HEAD + body + TAIL.replace("4, 8", "2, 16, 64"))
    (kernel, _, _, ways), *_ = executed(emit(models.load(path), backend="cuda").text)["_TABLE"]
    assert kernel.startswith("fw_column")
    assert {4, 8} <= {defines["ITEMS"] for _, _, _, defines in ways}


def test_it_reads_well(cuda_texts):
    """The explanation at the top; above each kernel its formula and the user's lines; each text once."""
    text = cuda_texts[showcase.GROUP_NORM]
    top = text.split('"""')[1]
    assert re.search(r"moves [\d.]+ kB before, [\d.]+ k?B now", top.replace("\n ", ""))
    for part in ("What was fused", "row_constants_leave_sum: ", "Left to PyTorch", "forward: matmul"):
        assert part in top
    assert re.search(r"#     t\d+ = sum\(square\(t\d+\), over n\d+\)", text)
    assert f"# {showcase.GROUP_NORM}.py:17: x = x * torch.sigmoid(x)" in text
    kernels = re.findall(r"^_FW_\w+ = r'''$(.*?)^'''$", text, re.M | re.S)
    assert len(kernels) == len(set(kernels)) == 2  # forward and backward; rows in registers and rows walked over in one


def test_cut_down_headers():
    """Only what is reached by name, conditions that are known gone, comments with what they are about."""
    header = """#ifndef FW_KERNELS_X_H
#define FW_KERNELS_X_H
namespace fw {
// Twice.
template <class T>
FW_FN T twice(T x) {
  return helper(x) + x;
}
#ifdef FW_EMULATOR
FW_FN float helper(float x) { return slow(x); }
#else
FW_FN float helper(float x) { return x; }
#endif
FW_FN int unused() { return 0; }
constexpr int one = 1, two = one + 1;
}  // namespace fw
#endif
"""
    parts = headers.definitions(headers.resolve(header, {"FW_EMULATOR": False}))
    assert [part.names for part in parts] == [{"twice"}, {"helper"}, {"unused"}, {"one", "two"}]
    kept = headers.trimmed(parts, ["y = fw::twice(x);  // not unused"])
    assert [part.names for part in kept] == [{"twice"}, {"helper"}]
    assert kept[0].text.startswith("// Twice.\n") and "slow" not in kept[1].text


def test_only_called_functions_are_reached():
    """A member of the same name reaches none, nor does a function of a class that is not used by a reached one."""
    header = """namespace fw {
FW_FN int remainder(int a) { return a; }
struct Pair {
  int quotient, remainder;
};
class Rules {
  // The choice.
  int rule(int x) const;
  int other(int x) const;
  int both(int x,
           int y) const;
};
inline int Rules::rule(int x) const { return both(x, x); }
inline int Rules::other(int x) const { return x; }
inline int Rules::both(int x, int y) const { return x + y; }
}  // namespace fw
"""
    parts = headers.members(headers.definitions(header))
    kept = headers.trimmed(parts, ["Pair p; p.remainder = 1; Rules().rule(2)"])
    text = "\n".join(part.text for part in kept)
    assert "int remainder(" not in text and "other" not in text
    assert "  // The choice.\n  int rule(int x) const;\n" in text and "Rules::both" in text and "int y) const;" in text


def test_functions_of_other_types_are_gone():
    header = """namespace fw {
template <class T>
FW_FN T exp(T x) { return tail(x); }
FW_FN double tail(double x) { return x; }
FW_FN float exp(float x) { return x; }
FW_FN float to_float(half x) { return x; }
template <class T>
FW_FN T square(T x) { return x * x; }
}  // namespace fw
"""

    def reached(text):
        parts = headers.definitions(header)
        return [part.text for part in headers.trimmed(headers.without_types(parts, [text], []), [text])]

    assert [text.split("(")[0] for text in reached("float y = fw::exp(fw::square(x));")] == [
        "FW_FN float exp", "template <class T>\nFW_FN T square",
    ]  # fmt: skip
    assert len(reached("double y = fw::exp(fw::square(x));")) == 4
    assert len(reached("float y = fw::exp(fw::to_float(half{x}));")) == 2


KERNEL = """
namespace {
using fw::V;
struct Row {
  float v2;
  index o0;
  index o1;
  bool live;
};

FW_FN void place_row(const Args& a, [[maybe_unused]] index anchor, Row& row) {
  (void)a;
  row.o0 = 0 + anchor * static_cast<index>(a.strides[0][0]);
  row.o1 = 0;
}

struct Values {
  float in0[V];
};
struct Kept {
};

FW_FN void stage_0(const Args& a, const Row& row, const Values& x, Kept& kept, bool inside, float* sums) {
  (void)a, (void)row, (void)kept;
  [[maybe_unused]] const float number0 = a.numbers[0].as<float>();
  [[maybe_unused]] const float number1 = a.numbers[1].as<float>();
  [[maybe_unused]] constexpr int i = 0;
  for (int i = 0; i < V; ++i) {
    const float v0 = fw::convert<float>(x.in0[i]);
    const float v1 = fw::mul(v0, number0);
    const float v2 = fw::add(v1, 1.0f);
    const float v3 = fw::square(v2);
    if (inside) sums[i] += v3;
  }
}
}  // namespace
__global__ void kernel(const Args a) {
  Row row;
  place_row(a, 1, row);
  Kept kept;
  stage_0(a, row, x, kept, true, static_cast<float*>(a.pointers[1]) + row.o1);
}
"""


def test_kernels_are_tidy():
    """What a kernel does not use is gone, operations are formulas; what a thread does on condition stays so."""
    text = tidy.tidy(KERNEL)
    for gone in (
        "(void)",
        "maybe_unused",
        "number1",
        "constexpr int i",
        "0 +",
        "convert",
        "Kept",
        "kept",
        "o1",
        "fw::add",
    ):
        assert gone not in text, gone
    assert "FW_FN void stage_0(const Args& a, const Values& x, bool inside, float* sums) {" in text
    assert "const float v3 = fw::square((x.in0[i] * number0) + 1.0f);\n    if (inside) sums[i] += v3;" in text
    assert "stage_0(a, x, true, static_cast<float*>(a.pointers[1]) + 0);" in text


def test_two_texts_become_one():
    first = "struct Row {\n  int a;\n};\n\nvoid load() {\n  fast();\n}\nvoid both() {}\n"
    second = "struct Row {\n  int a;\n};\n\nvoid load() {\n  slow();\n}\nvoid both() {}\nvoid more() {}\n"
    text = tidy.merged("FW_TILED", [first, second])
    assert text.count("struct Row") == text.count("void both") == 1
    for chosen, whole in ((True, first), (False, second)):
        found = headers.resolve(text, {"FW_TILED": chosen})
        assert [line for line in found.splitlines() if line] == [line for line in whole.splitlines() if line]


def test_no_kernel_twice(cuda_texts):
    """Without gradients the kernels of training run; short sums are PyTorch's; the same copy serves tensors of all
    sizes."""
    kernels = [name for name, *_ in executed(cuda_texts[showcase.BATCH_NORM])["_TABLE"]]
    assert len(kernels) == 4 and not any("row_add" in name for name in kernels)
    assert "torch.sum(" in cuda_texts[showcase.BATCH_NORM] and "backward: sum" in cuda_texts[showcase.BATCH_NORM]
    texts = re.findall(r"^_FW_\w+ = r'''$(.*?)^'''$", (EMITTED / f"{showcase.CONV}.py").read_text(), re.M | re.S)
    assert len(texts) == 4


LINES = {showcase.CONV: 3250, showcase.CONV_TRANSPOSE: 3300, showcase.BATCH_NORM: 4800, showcase.GROUP_NORM: 4150}


@pytest.mark.parametrize("name", showcase.NAMES)
def test_only_what_the_kernels_need(name):
    text = (EMITTED / f"{name}.py").read_text()
    for word in ("FW_EMULATOR", "FW_WITHOUT", "mbarrier", "rule_clusters", "(void)a", "maybe_unused]] constexpr int i"):
        assert word not in text
    assert ("rule_rows" in text) == ("Kind::row;" in text)
    assert ("rule_columns" in text) == ("Kind::column;" in text)
    assert ("plan_tiled" in text) == ("TILED=" in text)
    assert len(text.splitlines()) <= LINES[name]


@pytest.mark.parametrize(
    "condition, left",
    [
        ("#if YES && !defined(NO)", True),
        ("#if NO || defined(NO)", False),
        ("#ifndef NO", True),
        ("#if OPEN >= 900 && (defined(NO) || OTHER * 100 >= 1201)", "#if OPEN >= 900 && OTHER * 100 >= 1201"),
        ("#if NO || OPEN", "#if OPEN"),
        ("#if (OPEN || OTHER) && YES", "#if (OPEN || OTHER)"),
        ("#if !OPEN", "#if !OPEN"),
    ],
)
def test_conditions_that_are_known_in_part(condition, left):
    found = headers.resolve(f"{condition}\na\n#else\nb\n#endif\n", {"YES": True, "NO": False}).splitlines()
    assert found == ([left, "a", "#else", "b", "#endif"] if isinstance(left, str) else ["a" if left else "b"])


def test_branches_behind_a_known_one():
    text = "#ifdef NO\na\n#elif OPEN\nb\n#elif YES\nc\n#else\nd\n#endif\n"
    found = headers.resolve(text, {"YES": True, "NO": False})
    assert found.splitlines() == ["#if OPEN", "b", "#else", "c", "#endif"]
    assert headers.resolve(text, {"YES": True, "NO": False, "OPEN": False}) == "c\n"


NVCC = shutil.which(os.path.join(os.environ["CUDA_HOME"], "bin", "nvcc") if "CUDA_HOME" in os.environ else "nvcc")
needs_nvcc = pytest.mark.skipif(NVCC is None, reason="no nvcc")


@needs_nvcc
@pytest.mark.parametrize("name", NAMES)
def test_cuda_compiles(name, cuda_texts, tmp_path):
    source = tmp_path / "kernels.cu"
    source.write_text(executed(cuda_texts[name])["_cuda_source"]())
    target = ["-ptx", "-arch=compute_90a"]
    if name == showcase.BATCH_NORM:  # through the assembler
        target = ["-O1", "-cubin", "-arch=sm_80"]
    command = [NVCC, "-std=c++17", *target, "--diag-suppress=177,550", source, "-o", tmp_path / "kernels"]
    command += ["-ccbin", os.environ["CC"]] if "CC" in os.environ else []
    result = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-3000:]


@needs_nvcc
@pytest.mark.skipif(OTHER_PYTHON is None, reason="FUSEWRIGHT_TEST_PYTHON names no other interpreter")
@pytest.mark.parametrize("name", NAMES)
def test_cuda_extension_is_built_and_loaded(name, folder, tmp_path):
    """By PyTorch itself, for more than one architecture; no kernel is launched."""
    result = in_fresh_process("build.py", folder / f"{name}_cuda.py", folder=tmp_path, TORCH_CUDA_ARCH_LIST="8.0;9.0")
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-4000:]
    if result.stdout.startswith("no CUDA"):
        pytest.skip(result.stdout)


@pytest.mark.parametrize("name", showcase.NAMES)
def test_examples_are_what_emit_writes(name):
    text = emit(models.load(showcase.FOLDER / f"{name}.py"), backend="cuda", scale="full").text
    assert (EMITTED / f"{name}.py").read_text() == text, "run `make examples`: it writes them anew"


# ---- what is refused -----------------------------------------------------------------------------------------

HEAD = "import torch\nfrom torch import nn\n\n\nclass Model(nn.Module):\n"
TAIL = "\n\ndef get_inputs():\n    return [torch.randn(4, 8)]\n"


def refused(tmp_path, text, **options):
    path = tmp_path / "model.py"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        emit(models.load(path), backend="cpu", **options)
    return str(error.value)


def test_graph_break(tmp_path):
    body = "    def forward(self, x):\n        if x.sum() > 0:\n            return x.exp()\n        return x.sin()\n"
    message = refused(tmp_path, HEAD + body + TAIL)
    assert "graph break" in message and "model.py" in message


def test_foreign_import(tmp_path):
    text = "import numpy as np\n" + HEAD
    text += "    def __init__(self):\n        super().__init__()\n        self.k = float(np.sqrt(4.0))\n\n"
    text += "    def forward(self, x):\n        return torch.exp(x) * self.k\n" + TAIL
    message = refused(tmp_path, text)
    assert "model.py:1" in message and "numpy" in message


def test_nothing_to_fuse(tmp_path):
    message = refused(tmp_path, HEAD + "    def forward(self, x):\n        return torch.cumsum(x, 0)\n" + TAIL)
    assert "nothing in the model can be fused" in message


def test_starred_arguments(tmp_path):
    assert "*args" in refused(tmp_path, HEAD + "    def forward(self, *xs):\n        return xs[0].exp()\n" + TAIL)


# ---- what is checked when the file runs ------------------------------------------------------------------------


def namespace_of(tmp_path, body, init="        pass\n", **options):
    path = tmp_path / "model.py"
    path.write_text(HEAD + f"    def __init__(self):\n        super().__init__()\n{init}\n" + body + TAIL)
    return executed(emit(models.load(path), backend="cpu", **options).text)


def test_attributes_that_changed(tmp_path):
    body = "    def forward(self, x):\n        return torch.exp(x) * self.factor\n"
    model = namespace_of(tmp_path, body, "        self.factor = 2.0\n")["ModelNew"]()
    model.factor = 3.0
    with pytest.raises(RuntimeError, match=r"self\.factor = 2\.0, not 3\.0"):
        model(torch.randn(4, 8))


def test_sizes_that_the_model_asks_for(tmp_path):
    body = "    def forward(self, x):\n        return torch.exp(x) if x.shape[0] > 3 else torch.sin(x)\n"
    model = namespace_of(tmp_path, body)["ModelNew"]()
    with pytest.raises(RuntimeError, match="sizes with"):
        model(torch.randn(2, 8))


def test_arguments_that_are_no_tensors(tmp_path):
    """A number that was given may change where the graph has it as an argument; what was left out must be left out."""
    path = tmp_path / "model.py"
    body = "    def forward(self, x, factor: float, rows: int, mask=None, *, shift=float('inf')):\n"
    body += "        y = torch.exp(x[:rows]) * factor\n        return y if mask is None else y * mask\n"
    path.write_text(HEAD + body + TAIL.replace("[torch.randn(4, 8)]", "[torch.randn(4, 8), 2.0, 3]"))
    model = executed(emit(models.load(path), backend="cpu").text)["ModelNew"]()
    x = torch.randn(4, 8)
    for arguments, what in [((x, 3.0, 3), "factor = 2.0"), ((x, 2.0, 3, x), "mask = None")]:
        with pytest.raises(RuntimeError, match=what):
            model(*arguments)
    with pytest.raises(RuntimeError, match="shift = inf"):
        model(x, 2.0, 3, shift=1.0)


@pytest.mark.parametrize("batch, error", [(1, ValueError), (0, RuntimeError)])
def test_batches_without_statistics(batch, error, folder):
    model = executed((folder / f"{showcase.BATCH_NORM}_cpu.py").read_text())["ModelNew"](
        *showcase.ARGUMENTS[showcase.BATCH_NORM]
    )
    with pytest.raises(error):
        model(torch.randn(batch, 7))
    assert model.batch_norm.num_batches_tracked == 0


def test_other_parameters(tmp_path):
    init = "        self.a = nn.Parameter(torch.ones(8))\n"
    model = namespace_of(tmp_path, "    def forward(self, x):\n        return torch.exp(x) * self.a\n", init)[
        "ModelNew"
    ]()
    model.b = torch.nn.Parameter(torch.ones(1))
    with pytest.raises(RuntimeError, match="parameters and buffers"):
        model(torch.randn(4, 8))


def test_gradients_add_up_apart(tmp_path):
    """Two parameters of different shapes, whose gradients are one sum; autograd adds the second time in place."""
    init = "        self.a, self.b = nn.Parameter(torch.ones(8)), nn.Parameter(torch.ones(1, 8))\n"
    forward = "    def forward(self, x):\n        return torch.tanh(x * 2 + self.a + self.b)\n"
    model = namespace_of(tmp_path, forward, init)["ModelNew"]()
    x = torch.randn(4, 8)
    once = 1 - torch.tanh(x * 2 + 2) ** 2
    for turn in (1, 2, 3):
        model(x).sum().backward()
        for parameter in (model.a, model.b):
            torch.testing.assert_close(parameter.grad, turn * once.sum(0).view(parameter.shape))


def test_what_no_gradient_reaches_has_none(tmp_path):
    init = "        self.w, self.t = nn.Parameter(torch.ones(8)), nn.Parameter(torch.zeros(8))\n"
    forward = "    def forward(self, x):\n        return torch.exp(x * self.w) * (x > self.t)\n"
    model = namespace_of(tmp_path, forward, init)["ModelNew"]()
    x = torch.randn(4, 8)
    model(x).sum().backward()
    assert model.t.grad is None
    torch.testing.assert_close(model.w.grad, (torch.exp(x) * x * (x > 0)).sum(0))
    forward = "    def forward(self, x):\n        return torch.exp(x.detach() * self.w.detach()) * (x > self.t)\n"
    y = namespace_of(tmp_path, forward, init)["ModelNew"]()(x)
    assert not y.requires_grad
    torch.testing.assert_close(y, torch.exp(x) * (x > 0))


def test_an_unused_head_has_no_gradient(tmp_path):
    init = "        self.v, self.w = nn.Parameter(torch.ones(8)), nn.Parameter(torch.ones(8))\n"
    forward = "    def forward(self, x):\n        h = torch.tanh(x)\n"
    forward += "        return h * self.v + 1, torch.sigmoid(h * self.w)\n"
    model = namespace_of(tmp_path, forward, init)["ModelNew"]()
    for used, unused in (("v", "w"), ("w", "v")):
        x = torch.randn(4, 8, requires_grad=True)
        model.zero_grad()
        model(x)[used == "w"].sum().backward()
        h, s = torch.tanh(x), torch.sigmoid(torch.tanh(x))
        slope = torch.ones_like(h) if used == "v" else s * (1 - s)
        torch.testing.assert_close(getattr(model, used).grad, (slope * h).sum(0))
        torch.testing.assert_close(x.grad, slope * (1 - h * h))
        assert getattr(model, unused).grad is None


def test_what_a_call_sets(tmp_path):
    """A buffer that is bound anew, a tensor that is kept, and a first parameter of another name."""
    init = '        self.register_buffer("mean", torch.zeros(8))\n'
    init += '        self.register_buffer("calls", torch.tensor(0))\n'
    init += "        self.a, self.last = nn.Parameter(torch.ones(8)), None\n"
    body = "    def forward(module, x):\n        h = torch.tanh(x * module.a)\n        module.calls += 1\n"
    body += "        if module.training:\n            module.mean = module.mean * 0.9 + h.detach().mean(0) * 0.1\n"
    body += "        module.last = h * 2\n        return torch.sigmoid(h - module.mean)\n"
    model = namespace_of(tmp_path, body, init)["ModelNew"]()
    plain = models.load(tmp_path / "model.py").model()
    for training in (True, True, False):
        x = torch.randn(4, 8)
        found, expected = model.train(training)(x), plain.train(training)(x)
        torch.testing.assert_close((found, model.last), (expected, plain.last))
        torch.testing.assert_close(model.state_dict(), plain.state_dict())
        torch.testing.assert_close(
            torch.autograd.grad(found.sum() + model.last.sum(), model.a),
            torch.autograd.grad(expected.sum() + plain.last.sum(), plain.a),
        )


def test_what_a_call_sets_and_a_file_cannot(tmp_path):
    init = "    def __init__(self):\n        super().__init__()\n        self.calls = 0\n\n"
    body = "    def forward(self, x):\n        self.calls += 1\n        return torch.exp(x) * 2\n"
    assert "forward sets self.calls" in refused(tmp_path, HEAD + init + body + TAIL)


def test_inputs_that_do_not_fit(tmp_path):
    body = "    def forward(self, x):\n        return torch.exp(x @ x) * 2\n"
    message = refused(tmp_path, HEAD + body + TAIL)
    assert "Model called with (float32[4, 8]) failed" in message and "return torch.exp(x @ x) * 2" in message
    assert "fusewright/" not in message
    for nothing in ("None", "{'x': torch.ones(2)}"):
        body = "    def forward(self, x):\n        return torch.exp(x)\n"
        tail = f"\n\ndef get_inputs():\n    return {nothing}\n"
        assert "get_inputs() returns" in refused(tmp_path, HEAD + body + tail)


def test_inference_has_no_gradient(tmp_path):
    namespace = namespace_of(tmp_path, "    def forward(self, x):\n        return torch.exp(x) * 2\n", training=False)
    assert "backward" not in str(namespace.get("_Region0"))
    with pytest.raises(RuntimeError, match="without gradients"):
        namespace["ModelNew"]()(torch.randn(4, 8, requires_grad=True))


def test_devices_and_autocast(tmp_path):
    model = namespace_of(tmp_path, "    def forward(self, x):\n        return torch.exp(x) * 2\n")["ModelNew"]()
    with pytest.raises(RuntimeError, match="was given one on meta"):
        model(torch.randn(4, 8, device="meta"))
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(RuntimeError, match="autocast"):
        model(torch.randn(4, 8))


# ---- the command -----------------------------------------------------------------------------------------------


def test_command(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = model_file(showcase.GROUP_NORM, tmp_path)
    assert cli.main(["emit", str(path), "--arch", "sm_90a", "80"]) == 0
    written = tmp_path / f"{showcase.GROUP_NORM}_new.py"
    assert written.name in capsys.readouterr().out
    assert '_ARCHITECTURES = "9.0a;8.0"' in written.read_text()
    assert cli.main(["emit", str(path), "-o", "-", "--backend", "cpu", "--inference", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["backend"] == "cpu" and not result["training"] and "class ModelNew" in result["text"]
    assert {kernel["phase"] for kernel in result["kernels"]} == {"forward"}


@pytest.mark.parametrize(
    "arguments", [["missing.py"], ["model.py", "-o", "missing/new.py"], ["model.py", "-o", "model.py"]]
)
def test_command_refuses(arguments, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copy(HERE / "emitted" / "mlp.py", tmp_path / "model.py")
    before = sorted(tmp_path.iterdir())
    assert cli.main(["emit", *arguments]) == 2
    assert "fusewright emit: " in capsys.readouterr().err
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("name", ["hopper", "12"])
def test_bad_architecture(name, capsys):
    with pytest.raises(SystemExit) as error:
        cli.main(["emit", "model.py", "--arch", name])
    assert error.value.code == 2 and f"{name} is no architecture" in capsys.readouterr().err


def test_bytes_of_eager_are_those_that_it_moves():
    """Counted without memory, for the file's first lines, and with: the same."""
    model = nn.Sequential(nn.Linear(7, 12), nn.GroupNorm(3, 12), nn.SiLU())
    x = torch.randn(5, 7)

    def step():
        y = model(x)
        y.backward(torch.empty_like(y))

    assert eager_bytes(model, [x], training=True) == traffic_of(step).bytes
