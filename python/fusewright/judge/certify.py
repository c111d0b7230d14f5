"""certify: is this model right? Output, every gradient and every buffer against float64, beside eager's own error.

The judge is `fusewright.judge.oracle`; this file decides what is asked: fresh numbers, awkward sizes, layouts, dtypes,
modes and special values. Which of them make sense for a model nobody knows beforehand: each is tried, and what the
reference itself does not accept is listed as refused, with its reason.
"""

from __future__ import annotations

import copy
import datetime
import functools
import hashlib
import inspect
import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace

import torch
from torch import nn
from torch.utils import _pytree as pytree

from ..errors import InputError
from ..explain import table
from ..models import describe
from ..optimize import is_optimized, optimize, restore
from ..stats import stats
from ..subject import device_words, first_line, flags, name_of, plain_copy, resampled, versions
from .oracle import (
    MEAN_FACTOR,
    NEIGHBOURS,
    OTHER_NUMBERS,
    TOLERANCE,
    Nudge,
    Verdict,
    as_they_are,
    copy_state,
    draws_differ,
    is_random,
    judge_runs,
    layout_applies,
    nudge_state,
    results_of,
)

MODES = ("train", "eval", "inference")  # inference: evaluation without gradients, which has kernels of its own
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
BATCHES = (0, 1, 2, 3, 31, 33)
LAYOUTS = ("channels_last", "transposed", "strided", "misaligned", "expanded")
SPECIALS = ("nan", "inf", "huge", "denormal", "zero")
# Special values only, where eager's error is larger than the value: both have nothing but rounding, which is luck.
NOISE_FACTOR = 10
MOST_ELEMENTS = 1 << 22  # of an input that was made larger than it came


@dataclass(frozen=True)
class Question:
    """One case: what the model is asked."""

    seed: int  # the first seed stands for weights and inputs as they were given; another moves and draws both anew
    mode: str
    dtype: torch.dtype
    size: tuple[int, int] | None = None  # (dimension, its size); None: as given
    layout: str = "contiguous"
    special: str = ""

    def __str__(self) -> str:
        parts = [self.mode, _dtype_name(self.dtype)]
        parts += [f"dimension {self.size[0]} of {self.size[1]}"] if self.size else []
        parts += [self.layout] if self.layout != "contiguous" else []
        parts += [self.special] if self.special else []
        return ", ".join((*parts, f"seed {self.seed}"))


@dataclass
class Case:
    """A question that was asked, and how each tensor of the answer was judged."""

    question: Question
    inputs: str
    verdicts: list[Verdict]
    fused_calls: int = 0
    fallback_calls: int = 0

    @property
    def ok(self) -> bool:
        return all(verdict.ok for verdict in self.verdicts)


@dataclass
class Certificate:
    """What `certify` found. `str()` of it is a readable page, `to_json()` the whole of it."""

    subject: str
    reference: str
    device: str
    seed: int
    versions: dict[str, str | None]
    flags: dict[str, object]
    created: str
    files: dict[str, str] = field(default_factory=dict)  # name: SHA-256
    cases: list[Case] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)  # what was tried, why the reference does not take it
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether something was judged and all of it is right."""
        return bool(self.cases) and all(case.ok for case in self.cases)

    @property
    def problems(self) -> list[str]:
        return [f"{c.question}: {v.problem}" for c in self.cases for v in c.verdicts if not v.ok]

    def to_dict(self) -> dict:
        """Plain values only, as `to_json` writes them."""
        return {
            "verdict": "right" if self.ok else "wrong",
            "subject": self.subject,
            "reference": self.reference,
            "sha256": self.files,
            "created": self.created,
            "device": self.device,
            "seed": self.seed,
            "versions": self.versions,
            "flags": self.flags,
            "rule": {
                "tolerances": {_dtype_name(d): {"relative": r, "absolute": a} for d, (r, a, _) in TOLERANCE.items()},
                "times_eagers_error": {_dtype_name(d): factor for d, (_, _, factor) in TOLERANCE.items()},
                "second_opinion": {
                    "points_nearby": NEIGHBOURS,
                    "float32_means": MEAN_FACTOR,
                    "float32_eager_with_biases_apart": True,
                },
                "special_values_all_rounding": NOISE_FACTOR,
            },
            "cases": [
                {
                    **asdict(case.question),
                    "dtype": _dtype_name(case.question.dtype),
                    "inputs": case.inputs,
                    "verdict": "right" if case.ok else "wrong",
                    "fused_calls": case.fused_calls,
                    "fallback_calls": case.fallback_calls,
                    "results": [verdict.to_dict() for verdict in case.verdicts],
                }
                for case in self.cases
            ],
            "refused": [{"case": case, "reason": reason} for case, reason in self.refused],
            "notes": self.notes,
        }

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2, allow_nan=False) + "\n"

    def table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Header and rows, one for each case."""
        rows = []
        for case in self.cases:
            worst = max(case.verdicts, key=lambda v: (not v.ok, v.ratio))
            right = sum(v.ok for v in case.verdicts)
            error = f"{worst.error:.1e} ({worst.eager_error:.1e})"
            rows.append((str(case.question), worst.name, error, f"{right} of {len(case.verdicts)}"))
        return ("case", "worst against eager", "error (eager's)", "right"), rows

    def __str__(self) -> str:
        lines = [f"{self.subject} against {self.reference}: {self.device}, torch {self.versions['torch']}", ""]
        lines += table(*self.table())
        if self.refused:
            lines += ["", "tried, but the reference refuses"]
            lines += [f"  {case}: {reason}" for case, reason in self.refused]
        lines += ["", *self.notes] if self.notes else []
        lines += ["", *(f"WRONG: {problem}" for problem in self.problems)] if self.problems else []
        count = sum(case.ok == self.ok for case in self.cases)
        return "\n".join((*lines, "", f"{'right' if self.ok else 'WRONG'}: {count} of {len(self.cases)} cases"))


def certify(
    model,
    *inputs,
    reference=None,
    draw: Callable[[int], Sequence] | None = None,
    seed: int = 0,
    seeds: int = 3,
    modes: Sequence[str] = MODES,
    dtypes: Sequence[torch.dtype] = DTYPES,
    batches: Sequence[int] = BATCHES,
    layouts: Sequence[str] = LAYOUTS,
    specials: Sequence[str] = SPECIALS,
    progress: Callable[[str], None] | None = None,
) -> Certificate:
    """Hold a model against float64: its output, every gradient, every buffer after the call, beside eager's own error.

    certify(model, *inputs): what `optimize` makes of the model (a module or function), against the plain model.
    certify(model, reference, *inputs): the model as it is, a hand-written one say, against another with the same
        `state_dict` keys; the reference's weights are used in both.

    Works on copies. Inputs of further seeds have the elements of the given ones in random order; `draw(seed)` makes
    better ones. Weights of further seeds are moved a little, so that none is 0 or 1.

    seed, seeds: the first seed, and how many are asked of every mode. modes: of "train", "eval", "inference".
    dtypes: besides the model's own. batches: sizes of dimension 0; other dimensions are tried with two sizes each,
        unless this is empty. layouts, specials: of LAYOUTS and SPECIALS. progress: is told each case.

    Raises `InputError` where the reference refuses the inputs in every mode.
    """
    if reference is None and inputs and callable(inputs[0]) and not isinstance(inputs[0], torch.Tensor):
        reference, *inputs = inputs
    for given, known in ((modes, MODES), (layouts, LAYOUTS), (specials, SPECIALS)):
        if unknown := [name for name in given if name not in known]:
            raise ValueError(f"certify: no {unknown[0]!r}; there are {', '.join(known)}")
    if draw is None:
        if not pytree.tree_leaves(inputs):
            raise InputError("certify: no inputs: certify(model, *inputs) or certify(model, reference, *inputs)")
        draw = functools.partial(resampled, inputs, seed)
    gpus = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=gpus):
        certifier = _Certifier(model, reference, draw, seed)
        certificate = certifier.empty_certificate()
        for question in certifier.questions(seeds, modes, dtypes, batches, layouts, specials):
            if progress:
                progress(str(question))
            asked = certifier.ask(question, certificate)
            # A batch of one that cannot be normalised in training can still be evaluated.
            if not asked and question.mode == "train" and question.size and question.size[0] == 0 and "eval" in modes:
                certifier.ask(replace(question, mode="eval"), certificate)
    if all(case.question.size for case in certificate.cases):
        raise InputError(f"certify: the reference refuses the inputs; {': '.join(certificate.refused[0])}")
    if certifier.too_large:
        certificate.notes.append(f"not tried, more than {MOST_ELEMENTS} elements: {', '.join(certifier.too_large)}")
    if reference is None and not any(case.fused_calls for case in certificate.cases):
        certificate.notes.append("nothing was fused: this holds PyTorch against itself; see `fusewright explain`")
    return certificate


class _Refused(Exception):
    """The reference, or its float64 twin, does not take the question."""


class _Raised(Exception):
    """The model raised where the reference did not."""


class _Certifier:
    def __init__(self, model, reference, draw: Callable[[int], Sequence], seed: int):
        self.fuse = reference is None or is_optimized(model)  # copies of an optimised model are plain
        self.name = f"{name_of(model)}, optimised" if self.fuse else name_of(model)
        self.reference_name = "eager" if reference is None else name_of(reference)
        self.files = {k: v for m in (model, reference) if m is not None for k, v in _sha256_of_source(m).items()}
        self.model = plain_copy(model, "certify")
        self.reference = plain_copy(model if reference is None else reference, "certify")
        _same_state(self.model, self.reference)
        self.draw, self.first_seed = draw, seed
        self.tensors = [x for x in pytree.tree_leaves(list(draw(seed))) if isinstance(x, torch.Tensor)]
        everything = (*self.reference.parameters(), *self.tensors)
        self.dtype = next((x.dtype for x in everything if x.is_floating_point()), torch.float32)
        self.device = next((x.device for x in everything), torch.device("cpu"))
        # The tensor whose dimensions are varied, and with each those of equal size in other tensors.
        self.largest = max(self.tensors, key=torch.Tensor.dim, default=None)
        self.subjects: dict[torch.dtype, nn.Module] = {}
        self.too_large: list[str] = []  # sizes that are not tried
        self.random: dict[str, bool] = {}  # by mode
        self.vanishing: set[tuple[str, str]] = set()  # (mode, name) of what is zero but for rounding

    # ---- what is asked ----

    def questions(self, seeds, modes, dtypes, batches, layouts, specials) -> Iterator[Question]:
        seed, base = self.first_seed, self.dtype
        for number in range(seeds):
            for mode in modes:
                yield Question(seed + number, mode, base)
        seed += seeds
        for size in self._sizes(batches):
            yield Question(seed, modes[0], base, size=size)
        for layout in layouts:
            if layout_applies(layout, self.tensors):
                yield Question(seed, modes[0], base, layout=layout)
        for dtype in dtypes:
            for mode in modes:
                if dtype is not base:
                    yield Question(seed, mode, dtype)
        # In 16 bits eager rounds, and overflows, after every operator: not a measure of where infinity has to stand.
        for special in specials:
            for mode in modes:
                yield Question(seed, mode, base, special=special)

    def _sizes(self, batches: Sequence[int]) -> Iterator[tuple[int, int]]:
        first = self.largest
        if first is None or not batches:
            return
        for dimension, size in enumerate(first.shape):
            other = batches if dimension == 0 else (size + 1, size // 2 | 1)
            for wanted in dict.fromkeys(other):
                if wanted * first.numel() > max(size, 1) * max(MOST_ELEMENTS, first.numel()):
                    self.too_large.append(f"dimension {dimension} of {wanted}")
                elif wanted != size:
                    yield dimension, wanted

    # ---- one case ----

    def ask(self, question: Question, certificate: Certificate) -> bool:
        """Whether the reference takes the question: then the answer is in the certificate."""
        before = stats()
        inputs: list = []
        try:
            inputs = self._inputs(question)
            self._check_random(question, inputs)
            verdicts = self._judge(question, inputs, certificate.notes)
        except _Refused as refused:
            certificate.refused.append((str(question), str(refused)))
            return False
        except _Raised as raised:
            verdicts = [Verdict("call", math.nan, 0.0, f"raises where the reference does not: {raised}")]
        after = stats()
        fused, fallback = (after[name] - before[name] for name in ("region_calls", "fallback_calls"))
        certificate.cases.append(Case(question, describe(inputs), verdicts, fused, fallback))
        return True

    def _judge(self, question: Question, inputs: list, notes: list[str]) -> list[Verdict]:
        first: dict[str, dict] = {}

        def run(who: str, nudge: Nudge) -> dict[str, torch.Tensor | None]:
            result = self._run(question, inputs, who, nudge)
            first.setdefault(who, result)
            return result

        verdicts = judge_runs(run)
        if not verdicts:
            raise _Refused("nothing to compare: it returns no tensor")
        if not question.special:
            # Eager's error is larger than the value: all that it has there is rounding.
            self.vanishing |= {(question.mode, v.name) for v in verdicts if v.ok and v.eager_error > 1}
            return verdicts
        for i, verdict in enumerate(verdicts):
            if verdict.ok:
                continue
            # What is 0 whatever the input (the gradient of a bias in front of a norm) may be 0 without reading it.
            if (question.mode, verdict.name) in self.vanishing and not first["fused"][verdict.name].any():
                verdicts[i] = Verdict(verdict.name, 0.0, 0.0)
                notes.append(f"{question}: {verdict.name} is exactly 0, as for every input; eager's is not finite")
            elif verdict.eager_error > 1 and verdict.ratio <= NOISE_FACTOR:
                verdicts[i] = replace(verdict, problem=None)
                notes.append(f"{question}: {verdict.name} is all rounding in eager; ours {verdict.ratio:.1f} times it")
        return verdicts

    def _inputs(self, question: Question) -> list:
        """On the device, in the dtype, of the size, with special values; the layout comes last, in the call."""
        drawn = [list(self.draw(question.seed))]
        if question.size:
            dimension, wanted = question.size
            given = self.largest.shape[dimension]
            # Rows that nobody has seen, rather than the same ones again: equal rows would hide and cancel too much.
            drawn += [list(self.draw(question.seed + 1000 + i)) for i in range(math.ceil(wanted / max(given, 1)) - 1)]
        generator = torch.Generator("cpu").manual_seed(question.seed)

        def one(x: object, *others: object) -> object:
            if not isinstance(x, torch.Tensor):
                return x
            if question.size:
                dimension, wanted = question.size
                if x.dim() > dimension and x.shape[dimension] == given:
                    x = torch.cat((x, *others), dimension).narrow(dimension, 0, wanted).contiguous()
            if x.is_floating_point():
                x = _with_special(x.to(question.dtype) if x.dtype is self.dtype else x, question.special, generator)
            return x

        if question.special and not any(x.is_floating_point() for x in self.tensors):
            raise _Refused("no input is floating-point")
        try:
            return pytree.tree_map(one, *drawn)
        except (RuntimeError, ValueError) as error:
            raise _Refused(f"the inputs cannot be made: {first_line(error)}") from None

    def _run(
        self, question: Question, inputs: list, who: str, nudge: Nudge, draws: int = 0
    ) -> dict[str, torch.Tensor | None]:
        master = copy.deepcopy(self.reference)
        if question.seed != self.first_seed:
            _move_weights(master, question.seed)
        if question.dtype is not self.dtype:
            master.to(question.dtype)
        nudge_state(master, nudge)
        model = master.double() if who == "exact" else master
        if who == "fused":
            model = self._subject(question.dtype)
            copy_state(master, model)
        try:
            return _call(model, inputs, question, nudge, wide=who == "exact", draws=draws)
        except Exception as error:
            if who == "fused":
                raise _Raised(f"{type(error).__name__}: {first_line(error)}") from error
            where = "in float64, " if who == "exact" else ""
            raise _Refused(f"{where}{type(error).__name__}: {first_line(error)}") from error

    def _subject(self, dtype: torch.dtype) -> nn.Module:
        """One object for all cases of a dtype, as a user has one: what a call leaves behind meets the next."""
        if dtype not in self.subjects:
            model = copy.deepcopy(self.model)
            model = model.to(dtype) if dtype is not self.dtype else model
            self.subjects[dtype] = optimize(model) if self.fuse else model
        return self.subjects[dtype]

    def _check_random(self, question: Question, inputs: list) -> None:
        """A random model can be judged only where float64 draws the same numbers from the same seed."""
        run = functools.partial(self._run, question, inputs, nudge=as_they_are)
        if question.mode not in self.random:
            self.random[question.mode] = is_random(run("eager"), run("eager", draws=1))
        if self.random[question.mode] and draws_differ(run("eager"), run("exact")):
            raise _Refused(OTHER_NUMBERS)

    def empty_certificate(self) -> Certificate:
        return Certificate(
            subject=self.name,
            reference=self.reference_name,
            device=device_words(self.device),
            seed=self.first_seed,
            versions=versions(),
            flags=flags(),
            files=self.files,
            created=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        )


def _call(
    model: nn.Module, inputs: list, question: Question, nudge: Nudge, wide: bool, draws: int
) -> dict[str, torch.Tensor | None]:
    """All that a call gives: outputs, gradients of inputs and parameters, buffers afterwards."""
    model.train(question.mode == "train")
    torch.manual_seed(question.seed + draws)
    gradients = question.mode != "inference"
    return results_of(
        model, inputs, gradients=gradients, seed=question.seed, nudge=nudge, wide=wide, layout=question.layout
    )


def _with_special(x: torch.Tensor, special: str, generator: torch.Generator) -> torch.Tensor:
    """A few elements become special; `denormal` and `zero` take all of them."""
    if not special or x.numel() == 0:
        return x
    limits = torch.finfo(x.dtype)
    if special == "zero":
        return torch.zeros_like(x)
    if special == "denormal":
        return x / x.abs().max().clamp(min=limits.smallest_normal) * limits.smallest_normal
    # A million squares of it, which a variance adds up, are still finite; in float16, whose sums are wider, one square.
    huge = limits.max**0.5 / (4 if x.dtype is torch.float16 else 1024)
    # Not -huge: where a sum of the two is 0, float64 has lost what stands beside them too, and is no judge.
    values = {"nan": (math.nan,), "inf": (math.inf, -math.inf), "huge": (huge, -huge / 3)}[special]
    x = x.clone()
    places = torch.randperm(x.numel(), generator=generator, device="cpu")[: len(values) * (1 + x.numel() // 1009)]
    x.view(-1)[places.to(x.device)] = torch.tensor(values, dtype=x.dtype, device=x.device).repeat(len(places))[
        : len(places)
    ]
    return x


def _move_weights(model: nn.Module, seed: int) -> None:
    """A norm that forgets its weight is right as long as the weight is 1. Buffers stay positive: variances are."""
    generator = torch.Generator("cpu").manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            if p.is_floating_point() and p.numel():
                spread = p.std().item() if p.numel() > 1 else 0.0
                p += torch.randn(p.shape, generator=generator, device="cpu").to(p) * (0.1 * spread or 0.25)
        for b in model.buffers():
            if b.is_floating_point():
                b.copy_(b * (1 + 0.25 * torch.rand(b.shape, generator=generator, device="cpu").to(b)))
                b += 0.25 * torch.rand(b.shape, generator=generator, device="cpu").to(b)


def _same_state(model: nn.Module, reference: nn.Module) -> None:
    ours, theirs = ({k: tuple(v.shape) for k, v in m.state_dict().items()} for m in (model, reference))
    if ours != theirs:
        different = [k for k in dict.fromkeys((*ours, *theirs)) if ours.get(k) != theirs.get(k)]
        text = ", ".join(f"{k} ({ours.get(k, 'missing')} for {theirs.get(k, 'missing')})" for k in different[:5])
        raise InputError(f"certify: the two models have different states: {text}")


def _sha256_of_source(model) -> dict[str, str]:
    """Of the file that defines it, unless that is PyTorch's."""
    try:
        path = inspect.getsourcefile(type(model) if isinstance(model, nn.Module) else restore(model))
        if path and not path.startswith(os.path.dirname(torch.__file__)):
            with open(path, "rb") as file:
                return {os.path.basename(path): hashlib.sha256(file.read()).hexdigest()}
    except (TypeError, OSError):  # typed at a prompt, or written in C
        pass
    return {}


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
