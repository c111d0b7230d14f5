"""Activation checkpointing inside a captured graph, for when the graph runs as Dynamo gave it.

Dynamo's operator for `torch.utils.checkpoint` is made for AOTAutograd: run as it is, it recomputes dropout with other
random numbers, and calls a buffer that the recomputation updates (a counter of batches) modified.
"""

from __future__ import annotations

import torch
from torch import fx
from torch._higher_order_ops.wrap import TagActivationCheckpoint
from torch.utils.checkpoint import checkpoint


def checkpoints_in(gm: fx.GraphModule) -> list[fx.Node]:
    """Dynamo's operators for checkpoints, in the graph and below."""
    graphs = [module.graph for module in gm.modules() if isinstance(module, fx.GraphModule)]
    return [node for graph in graphs for node in graph.nodes if isinstance(node.target, TagActivationCheckpoint)]


def run_as_in_eager(checkpoints: list[fx.Node]) -> None:
    """PyTorch's own function in the place of Dynamo's operator."""
    for node in checkpoints:
        node.target = _checkpointed
        node.graph.owning_module.recompile()


def _checkpointed(body: torch.nn.Module, *args, **options):
    own, of_body = TagActivationCheckpoint.divide_kwargs(options)
    own["use_reentrant"] = False  # the other way knows only arguments, and a captured body has no others
    if "_checkpoint_context_fn" in getattr(body, "meta", {}):
        own["context_fn"] = body.meta["_checkpoint_context_fn"]
    # What needs no gradient is the body's own in the user's code, a buffer for one: not checked for modifications.
    tracked = [isinstance(x, torch.Tensor) and x.requires_grad for x in args]
    fixed = [None if t else x for x, t in zip(args, tracked, strict=True)]

    def run(*given):
        rest = iter(given)
        return body(*(next(rest) if t else x for x, t in zip(fixed, tracked, strict=True)))

    return checkpoint(run, *(x for x, t in zip(args, tracked, strict=True) if t), **own, **of_body)
