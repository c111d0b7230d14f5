"""Holds an emitted file against its model, in a process that has torch but not fusewright.

compare.py MODEL.py MODEL_NEW.py CASES.json: prints nothing if all is well. A case is a list of inputs' shapes.
"""

import copy
import importlib.util
import json
import sys

sys.modules["fusewright"] = None  # importing it fails

import torch  # noqa: E402


def load(name, path):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def draw(shapes, seed):
    torch.manual_seed(seed)
    return [torch.randn(shape) for shape in shapes]


def leaves(value):
    if isinstance(value, torch.Tensor):
        return [value]
    values = value.values() if isinstance(value, dict) else value
    return [leaf for item in values for leaf in leaves(item)]


def step(model, inputs, grad=True):
    """Outputs, gradients of inputs and parameters, and buffers after one call."""
    double = next(model.parameters()).dtype is torch.float64
    inputs = [(x.double() if double else x.clone()).requires_grad_(grad) for x in inputs]
    model.zero_grad()
    with torch.set_grad_enabled(grad):
        outputs = leaves(model(*inputs))
    found = {f"output {i}": y.detach() for i, y in enumerate(outputs)}
    if grad:
        torch.manual_seed(7)
        torch.autograd.backward(outputs, [torch.randn(y.shape).to(y.dtype) for y in outputs])
        found.update({f"gradient of input {i}": x.grad for i, x in enumerate(inputs)})
        found.update({f"gradient of {name}": p.grad for name, p in model.named_parameters()})
    found.update({f"buffer {name}": b.detach().clone() for name, b in model.named_buffers()})
    return found


def close(name, new, eager, exact):
    assert (new is None) == (exact is None), f"{name}: one of the two is None"
    if exact is None:
        return
    assert new.shape == exact.shape, f"{name}: {new.shape}, not {exact.shape}"
    scale = exact.abs().max().item() + 1e-30 if exact.numel() else 1.0
    wrong = (new.double() - exact).abs().max().item() / scale if exact.numel() else 0.0
    usual = (eager.double() - exact).abs().max().item() / scale if exact.numel() else 0.0
    assert wrong <= 3 * usual + 1e-5, f"{name}: off by {wrong:.2e}, eager by {usual:.2e}"


def same_structure(a, b):
    assert type(a) is type(b), f"{type(a)} instead of {type(b)}"
    if isinstance(a, dict):
        assert list(a) == list(b)
    if isinstance(a, (list, tuple)):
        assert len(a) == len(b)


def main(model_path, new_path, cases):
    reference, written = load("reference", model_path), load("written", new_path)
    arguments = reference.get_init_inputs() if hasattr(reference, "get_init_inputs") else []
    torch.manual_seed(3)
    eager = reference.Model(*arguments)
    torch.manual_seed(3)
    new = written.ModelNew(*arguments)
    old_state, new_state = copy.deepcopy(eager.state_dict()), new.state_dict()
    assert list(old_state) == list(new_state), "other names or another order"
    assert all(torch.equal(old_state[key], new_state[key]) for key in old_state), "the same seed gave other weights"
    assert [n for n, _ in eager.named_modules()] == [n for n, _ in new.named_modules()]
    exact = copy.deepcopy(eager).double()
    for seed, shapes in enumerate(cases):
        for training in (True, False):
            for grad in (True, False):
                for model in (eager, new, exact):
                    model.load_state_dict(old_state)
                    model.train(training)
                inputs = draw(shapes, seed)
                found, usual, right = (step(model, inputs, grad) for model in (new, eager, exact))
                assert found.keys() == right.keys()
                for name in right:
                    close(f"{shapes}, training={training}, grad={grad}: {name}", found[name], usual[name], right[name])
    inputs = draw(cases[0], 1)
    same_structure(new(*inputs), eager(*inputs))
    refuses_second_derivatives(new, inputs)
    train(eager, new, cases[0], old_state)


def refuses_second_derivatives(model, inputs):
    """In the words that say what to do. A gradient without a graph would look like a constant."""
    inputs = [x.clone().requires_grad_() for x in inputs]
    loss = sum(y.sum() for y in leaves(model(*inputs)))
    try:
        torch.autograd.grad(loss, inputs, create_graph=True)
    except RuntimeError as error:
        assert "for create_graph=True call the model it was made from" in str(error), error
        return
    raise AssertionError("create_graph=True was taken without a word")


def train(eager, new, shapes, state):
    """Ten steps of an optimizer lead both to the same place."""
    losses = []
    for model in (eager, new):
        model.load_state_dict(state)
        model.train()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        losses.append([])
        for turn in range(10):
            loss = sum(y.float().square().mean() for y in leaves(model(*draw(shapes, turn))))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses[-1].append(loss.item())
    difference = max(abs(a - b) / (abs(a) + 1e-6) for a, b in zip(*losses, strict=True))
    assert difference < 1e-3, f"losses differ by {difference:.1e}: {losses}"
    assert losses[1][-1] != losses[1][0]


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))
