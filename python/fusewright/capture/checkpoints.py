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
    """Put PyTorch's own function in the place of Dynamo's operator."""
    for node in checkpoints:
        body, *operands = node.args
        own = tuple(isinstance(x, fx.Node) and _is_of_a_module(x) for x in operands)
        node.target, node.args = _checkpointed, (body, own, *operands)
        node.graph.owning_module.recompile()


def is_checkpoint(node: fx.Node) -> bool:
    """Whether the node is PyTorch's own function, put there by `run_as_in_eager`."""
    return node.target is _checkpointed


def _is_of_a_module(node: fx.Node) -> bool:
    return node.op == "get_attr" or any(part in str(node.target) for part in ("_buffers_", "_parameters_"))


def _checkpointed(body: torch.nn.Module, own: tuple[bool, ...], *operands, **options):
    """own: the operands that are parameters and buffers. The user's function has them without being handed them, and
    nobody checks whether they were changed in between."""
    of_checkpoint, of_body = TagActivationCheckpoint.divide_kwargs(options)
    of_checkpoint["use_reentrant"] = False  # the other way follows arguments alone
    if "_checkpoint_context_fn" in getattr(body, "meta", {}):
        of_checkpoint["context_fn"] = body.meta["_checkpoint_context_fn"]
    state = [x if mine else None for x, mine in zip(operands, own, strict=True)]

    def run(*arguments, **rest):
        given = iter(arguments)
        return body(*(x if mine else next(given) for x, mine in zip(state, own, strict=True)), **rest)

    arguments = [x for x, mine in zip(operands, own, strict=True) if not mine]
    return checkpoint(run, *arguments, **of_checkpoint, **of_body)
