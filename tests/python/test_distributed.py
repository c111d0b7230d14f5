"""Data parallel training: `optimize` before and after DistributedDataParallel, and fully_shard, against eager.

The workers are processes of their own (gloo, on the CPU): this file, run as a program.
"""

import functools
import json
import logging
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

STEPS = 3
ORDERS = ("before", "after")


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@functools.cache
def run_workers(world: int) -> list[dict]:
    """Returns the findings of each rank, by the name of the case."""
    environment = os.environ | {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(world), "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo", "PYTHONFAULTHANDLER": "1",
    }  # fmt: skip
    command = [sys.executable, __file__]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    workers = [subprocess.Popen(command, env=environment | {"RANK": str(rank)}, **pipes) for rank in range(world)]
    try:
        outputs = [worker.communicate(timeout=200) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    for worker, (_, errors) in zip(workers, outputs, strict=True):
        assert worker.returncode == 0, errors[-4000:]
    return [json.loads(out.splitlines()[-1]) for out, _ in outputs]


@pytest.mark.real_core
@pytest.mark.parametrize("unused", [False, True], ids=["", "find_unused_parameters"])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("world", [1, 2])
def test_data_parallel_training_is_eagers(world, order, unused):
    for found in run_workers(world):
        assert (found["alone"] > 1e-3) == (world > 1)
        result = found[f"ddp {order} {unused}"]
        assert result["difference"] < 1e-5, result
        assert result["region_calls"] == STEPS and result["fallback_calls"] == 0 and not result["log"], result


@pytest.mark.real_core
@pytest.mark.parametrize("order", ORDERS)
def test_fully_sharded_training_is_eagers(order):
    for found in run_workers(2):
        result = found[f"fsdp {order}"]
        assert result["difference"] < 1e-5, result
        assert result["region_calls"] == STEPS or result["log"], "neither fused nor said why not"


# ---- the workers -----------------------------------------------------------------------------------------------------


def main() -> None:
    sys.path.insert(0, str(Path(__file__).parent))
    import showcase
    import torch
    import torch.distributed as dist
    from torch import nn

    import fusewright

    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logging.getLogger("fusewright").addHandler(handler)
    dist.init_process_group("gloo")
    rank = dist.get_rank()

    def make(unused: bool):
        torch.manual_seed(0)
        model = showcase.make(showcase.GROUP_NORM)
        if unused:
            model.never_read = nn.Parameter(torch.randn(3))
        return model

    def train(model):
        """Each rank has data of its own: without the exchange of gradients the ranks would part."""
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        generator = torch.Generator().manual_seed(100 + rank)
        for _ in range(STEPS):
            x = torch.randn(showcase.SIZES[showcase.GROUP_NORM][0], generator=generator)
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()

    def distributed_data_parallel(unused, order=None):
        model = make(unused)
        if order == "before":
            fusewright.optimize(model, strict=True)
        wrapped = nn.parallel.DistributedDataParallel(model, find_unused_parameters=unused)
        if order == "after":
            fusewright.optimize(wrapped)
        train(wrapped)
        return {key: value.clone() for key, value in model.state_dict().items()}

    def fully_sharded(order=None):
        from torch.distributed.fsdp import fully_shard

        model = make(False)
        if order == "before":
            fusewright.optimize(model)
        fully_shard(model, mesh=dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),)))
        if order == "after":
            fusewright.optimize(model)
        train(model)
        return {key: value.full_tensor() for key, value in model.state_dict().items()}

    results = {}

    def compare(name, run, *arguments):
        expected = run(*arguments)
        for order in ORDERS:
            torch._dynamo.reset()
            fusewright.reset_stats()
            lines.clear()
            found = run(*arguments, order)
            difference = max((found[key] - expected[key]).abs().max().item() for key in expected)
            counts = {key: fusewright.stats()[key] for key in ("region_calls", "fallback_calls")}
            case = " ".join(map(str, (name, order, *arguments)))
            results[case] = {"difference": difference, "log": list(lines), **counts}

    # Records what the tests would see if ranks did not exchange their gradients.
    expected, alone = distributed_data_parallel(False), make(False)
    train(alone)
    results["alone"] = max((alone.state_dict()[key] - expected[key]).abs().max().item() for key in expected)
    for unused in (False, True):
        compare("ddp", distributed_data_parallel, unused)
    if dist.get_world_size() > 1:
        compare("fsdp", fully_sharded)
    dist.barrier()
    dist.destroy_process_group()
    print(json.dumps(results), flush=True)
    # The threads of a gloo group outlive destroy_process_group once DistributedDataParallel or fully_shard has used it.
    # One that lets go of a tensor while the interpreter ends is stopped in the middle of a destructor, and the process
    # aborts ("terminate called without an active exception"): PyTorch alone does so, if that thread is 10 ms late.
    os._exit(0)


if __name__ == "__main__":
    main()
