"""All that a report shows of a model: what eager moves, the benchmark, a short certificate, the machine's roofs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from ..benchmark.benchmark import Benchmark, bench
from ..benchmark.candidates import OURS
from ..benchmark.floor import Machine, measure_machine
from ..benchmark.measure import Timing, tensors_in, training_step
from ..benchmark.traffic import Traffic, traffic_of
from ..explain import Explanation
from ..judge.certify import Certificate, certify
from ..models import ModelFile, is_float_tensor
from ..optimize import optimize
from ..subject import plain_copy

CANDIDATES = ("eager", "torch.compile", OURS)
# What a page needs to be believed; `fusewright certify` asks much more.
SHORT = {"seeds": 1, "dtypes": (), "batches": (3,), "layouts": ("channels_last", "strided"), "specials": ("nan",)}


@dataclass
class Study:
    name: str
    eager: Traffic
    fused: Traffic  # the same of the optimised model, with what stays PyTorch's
    benchmark: Benchmark
    certificate: Certificate
    machine: Machine

    @property
    def ok(self) -> bool:
        return self.benchmark.ok and self.certificate.ok

    @property
    def mode(self) -> str:
        """What is shown kernel by kernel: a training step, if the model has one."""
        return "step" if "step" in self.benchmark.explanations else "forward"

    @property
    def explanation(self) -> Explanation:
        return self.benchmark.explanations.get(self.mode) or Explanation(self.name)

    @property
    def steps(self) -> list[Timing | None]:
        """The times of `explanation.steps`."""
        return self.benchmark.steps.get(self.mode) or [None] * len(self.explanation.steps)

    @property
    def problems(self) -> list[str]:
        return [*self.benchmark.problems, *self.certificate.problems]

    def to_dict(self) -> dict:
        """Plain values only."""
        return {
            "name": self.name,
            "verdict": "right" if self.ok else "wrong",
            "eager": vars(self.eager),
            "fused": vars(self.fused),
            "machine": vars(self.machine),
            "benchmark": self.benchmark.to_dict(),
            "certificate": self.certificate.to_dict(),
        }


def study(
    model,
    draw: Callable[[int], Sequence],
    *,
    file: ModelFile | None = None,
    scale: str = "small",
    candidates: Sequence[str] = CANDIDATES,
    seconds: float = 2.0,
    seed: int = 0,
    first_call_of: Sequence[str] = (OURS,),
    progress: Callable[[str], None] | None = None,
) -> Study:
    """Works on copies; the arguments are those of `bench`."""
    progress = progress or (lambda _: None)
    progress("count operators")
    plain = plain_copy(model, "report")
    eager = _traffic(plain, list(draw(seed)))
    options = {"draw": draw, "seed": seed, "progress": progress}
    result = bench(
        model, **options, candidates=candidates, seconds=seconds, file=file, scale=scale, first_call_of=first_call_of
    )
    certificate = certify(model, **{**options, "progress": lambda case: progress(f"certify {case}")}, **SHORT)
    progress("count what runs now")
    regions = result.explanations.get("step") or result.explanations.get("forward") or Explanation(result.subject)
    fused = _traffic(optimize(copy.deepcopy(plain)), list(draw(seed)), regions)
    progress("measure the machine")
    dtype = next((p.dtype for p in plain.parameters() if p.is_floating_point()), torch.float32)
    everything = (*plain.parameters(), *tensors_in(list(draw(seed))))
    device = next((x.device for x in everything), torch.device("cpu"))
    machine = measure_machine(device, dtype)
    return Study(result.subject, eager, fused, result, certificate, machine)


def _traffic(model: nn.Module, inputs: list, regions: Explanation | None = None) -> Traffic:
    """Of a training step; of a call, if nothing has a gradient. `regions`: of an optimised model."""
    leaves = [x.detach().clone().requires_grad_() if is_float_tensor(x) else x for x in inputs]
    # The first call compiles.
    outputs = [x for x in tensors_in((model if regions else copy.deepcopy(model))(*leaves)) if x.requires_grad]
    if not outputs:
        return traffic_of(lambda: model(*leaves), regions)
    gradients = [torch.ones_like(x) for x in outputs]
    return traffic_of(lambda: training_step(model)(*leaves, gradients), regions)
