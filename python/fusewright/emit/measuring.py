"""How fast a written file is beside its model, where it can be run."""

from __future__ import annotations

from dataclasses import replace

import torch

from ..benchmark.measure import interleaved, speedup, training_step
from ..models import ModelFile


def measured(
    file: ModelFile, text: str, device: torch.device, scale: str, seed: int, training: bool, seconds: float = 2.0
) -> list[str]:
    """Lines that say how long Model and ModelNew take, in turns, on fresh inputs."""
    namespace: dict = {}
    exec(compile(text, f"<{file.name}_new>", "exec"), namespace)
    made = {
        "Model": file.build(scale, seed, device).train(training),
        "ModelNew": replace(file, model=namespace["ModelNew"]).build(scale, seed, device).train(training),
    }
    with torch.no_grad():
        output = made["Model"](*file.inputs(scale, device))
        forward = interleaved(made, lambda: file.inputs(scale, device), seconds=seconds)
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else "this CPU"
    lines = [f"On {where}, PyTorch {torch.__version__}; medians with quartiles, in turns on fresh inputs."]
    rows = {"forward": forward}
    if training and isinstance(output, torch.Tensor):

        def fresh() -> list:
            inputs = [x.requires_grad_(x.is_floating_point()) for x in file.inputs(scale, device)]
            return [*inputs, torch.randn_like(output)]

        steps = {name: training_step(model) for name, model in made.items()}
        rows["training step"] = interleaved(steps, fresh, seconds=seconds)
    for what, times in rows.items():
        ratio = speedup(times["Model"], times["ModelNew"])
        lines.append(f"{what}: Model {times['Model']}, ModelNew {times['ModelNew']}: {ratio:.2f}x")
    return lines
