"""A stand-in for `fusewright._core` that evaluates a region with PyTorch's own operators.

It knows the language of src/ops/ops.def but no fusion: the tests of capture run against it where the extension is not
built (conftest.py), and it is a second reading of what each operation means.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

DTYPES = {
    "f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64, "b8": torch.bool,
    "i8": torch.int8, "u8": torch.uint8, "i16": torch.int16, "i32": torch.int32, "i64": torch.int64,
}  # fmt: skip
NAMES = {dtype: name for name, dtype in DTYPES.items()}


class Error(RuntimeError):
    pass


class SizeError(Error):
    pass


class Unavailable(RuntimeError):
    pass


class Interrupted(RuntimeError):
    pass


_stats = dict.fromkeys(
    (
        "kernels_compiled",
        "cache_hits",
        "memory_hits",
        "region_calls",
        "kernels_tuned",
        "matrix_products",
        "convolutions",
    ),
    0,
)
unavailable = False  # tests set it: every region then refuses to run
cuda = False  # tests set it: regions may be on a GPU


def finish_compiling():
    pass


def stats():
    return dict(_stats)


def set_key_salt(salt):
    """Nothing is compiled here."""


def set_log_sink(sink):
    pass


def add_library_directories(directories):
    """No library is opened here."""


def cuda_available():
    return cuda


def multiplies_float32(device):
    return False


def cuda_unavailable_because():
    return "the stand-in has no GPU"


def emulate_cuda(enabled):
    raise Error("the stand-in runs no kernels")


def version():
    return "0.0.fake"


def _functions(size):
    return {
        "floordiv": lambda a, b: a // b, "mod": lambda a, b: a % b, "min": min, "max": max, **size
    }  # fmt: skip


class Graph:
    def __init__(self):
        self.ops, self.inputs, self.scalars, self.outputs, self.origins = [], [], [], [], []

    def __str__(self):
        return "\n".join(
            f"%{i} = {op[0]}({', '.join(f'%{o}' for o in op[1])}) {op[2]}" for i, op in enumerate(self.ops)
        )


class Builder:
    """Infers types by running each operation on small real tensors of the hinted sizes (meta tensors)."""

    def __init__(self):
        self.graph, self._types, self._symbols = Graph(), [], {}

    def _add(self, entry, example):
        self.graph.ops.append(entry)
        self._types.append(example)
        return len(self._types) - 1

    def input(self, name, dtype, dims, hints, order):
        assert sorted(order) == list(range(len(dims))), order
        for dim, hint in zip(dims, hints, strict=True):
            if isinstance(dim, str) and dim.isidentifier():
                self._symbols[dim] = hint
        example = torch.empty(hints, dtype=DTYPES[dtype], device="meta")
        value = self._add(("input", [], {"name": name}), example)
        self.graph.inputs.append((value, dims))
        return value

    def set_hint(self, symbol, value):
        self._symbols[symbol] = value

    def scalar_input(self, name, dtype):
        value = self._add(("scalar_input", [], {"name": name, "dtype": dtype}), _meta(dtype))
        self.graph.scalars.append(value)
        return value

    def constant(self, value, dtype, runtime):
        assert isinstance(value, float) and isinstance(runtime, bool)
        return self._add(("constant", [], {"value": value, "dtype": dtype}), _meta(dtype))

    def origin(self, op, source):
        assert isinstance(op, str) and isinstance(source, str)
        self.graph.origins.append(op)
        return len(self.graph.origins) - 1

    def op(self, name, operands, attrs, origin):
        examples = [self._types[o] for o in operands]
        if name in _SAME_TYPE and len({e.dtype for e in examples}) > 1:
            raise Error(f"{name}: operands of {[e.dtype for e in examples]}")
        if name == "select" and (examples[0].dtype is not torch.bool or examples[1].dtype is not examples[2].dtype):
            raise Error(f"select: operands of {[e.dtype for e in examples]}")
        try:
            with torch.no_grad():
                example = _evaluate(name, examples, attrs, self._symbols)
        except (RuntimeError, KeyError, NotImplementedError) as error:
            raise Error(f"{name}{[tuple(e.shape) for e in examples]}: {error}") from error
        return self._add((name, list(operands), dict(attrs), origin), example)

    def dtype(self, value):
        return NAMES[self._types[value].dtype]

    def shape(self, value):
        return list(self._types[value].shape)

    def changes(self, value):
        assert value in [input for input, _ in self.graph.inputs]

    def output(self, value, order, differentiable, into=-1, origin=""):
        assert sorted(order) == list(range(self._types[value].dim())), order
        inputs = [input for input, _ in self.graph.inputs]
        self.graph.outputs.append((value, list(order), differentiable, inputs.index(into) if into >= 0 else -1))

    def finish(self):
        return self.graph


class Region:
    all: dict[int, Region] = {}

    contested = False

    def __init__(self, graph, name, gpu=-1, tune=None, plain=None, second_derivatives=False, owned=()):
        self.graph, self.name, self.handle = graph, name, len(Region.all)
        Region.all[self.handle] = self

    def prepare(self, wanted):
        pass

    def report(self, train):
        origins = dict.fromkeys(op[3] for op in self.graph.ops if len(op) > 3)
        operators = [self.graph.origins[origin] for origin in origins]
        row = {"name": self.name, "schedule": "fake", "bytes_read": 0, "bytes_written": 0, "text": "", "sources": []}
        wanted = any(train) if isinstance(train, list) else train  # one flag for each input, or one for all
        phases = ["forward", "backward"] if wanted else ["forward"]
        kernels = [{**row, "phase": phase, "operators": operators} for phase in phases]
        return {"kernels": kernels, "library": [], "rewrites": [], "stops": []}


def run_region(handle, tensors, scalars):
    if unavailable:
        raise Unavailable("no compiler")
    _stats["region_calls"] += 1
    graph = Region.all[handle].graph
    values: list = [None] * len(graph.ops)
    sizes: dict = {}
    assert len(tensors) == len(graph.inputs) and len(scalars) == len(graph.scalars)
    for (value, dims), tensor in zip(graph.inputs, tensors, strict=True):
        assert tensor.dim() == len(dims), (dims, tensor.shape)
        for dim, size in zip(dims, tensor.shape, strict=True):
            if isinstance(dim, int):
                assert dim == size, (dims, tensor.shape)
            elif dim.isidentifier():
                assert sizes.setdefault(dim, size) == size
        values[value] = tensor
    for value, scalar in zip(graph.scalars, scalars, strict=True):
        values[value] = torch.tensor(scalar, dtype=DTYPES[graph.ops[value][2]["dtype"]])
    with torch.autocast("cpu", enabled=False):  # regions run below autocast
        for i, (name, operands, attrs, *_) in enumerate(graph.ops):
            if name == "constant":
                values[i] = torch.tensor(attrs["value"], dtype=torch.float64).to(DTYPES[attrs["dtype"]])
            elif values[i] is None:
                values[i] = _evaluate(name, [values[o] for o in operands], attrs, sizes)
        results = []
        for value, order, differentiable, _ in graph.outputs:
            result = values[value] if differentiable else values[value].detach()
            physical = result.permute(order).contiguous()
            if any(physical.data_ptr() == t.data_ptr() for t in tensors):
                physical = physical.clone()
            results.append(physical.permute(sorted(range(len(order)), key=order.__getitem__)))
    returned = []
    for result, (*_, into) in zip(results, graph.outputs, strict=True):
        if into < 0:
            returned.append(result)
        else:
            tensors[into].copy_(result)
    return returned


def _meta(dtype):
    return torch.empty((), dtype=DTYPES[dtype], device="meta")


def _size(size, symbols):
    return size if isinstance(size, int) else eval(size, {"__builtins__": {}}, _functions(symbols))  # noqa: S307


def _sizes(attrs, symbols):
    return [_size(s, symbols) for s in attrs["sizes"]]


def _f32(x):
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _optional(operands, attrs, skip):
    rest = list(operands[skip:])
    weight = rest.pop(0) if attrs["has_weight"] else None
    bias = rest.pop(0) if attrs.get("has_bias") else None
    assert not rest
    return weight, bias


def _extremum(x, attrs, largest):
    dims, keepdim = attrs["dims"], bool(attrs["keepdim"])
    if attrs["tie"] == 0:
        return (torch.amax if largest else torch.amin)(x, dims, keepdim)
    assert len(dims) == 1
    return (torch.max if largest else torch.min)(x, dims[0], keepdim)[0]


def _conv(x, w, b, a):
    n = w.dim() - 2
    assert len(a["stride"]) == len(a["padding"]) == len(a["dilation"]) == len(a["output_padding"]) == n
    return torch.convolution(
        x, w, b, a["stride"], a["padding"], a["dilation"], bool(a["transposed"]), a["output_padding"], a["groups"]
    )


def _max_pool(x, a):
    n = len(a["kernel"])
    pool = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[n - 1]
    return pool(x, a["kernel"], a["stride"], a["padding"], a["dilation"], bool(a["ceil_mode"]))


def _avg_pool(x, a):
    n = len(a["kernel"])
    if n == 1:
        assert not a["divisor"]
        return F.avg_pool1d(
            x, a["kernel"], a["stride"], a["padding"], bool(a["ceil_mode"]), bool(a["count_include_pad"])
        )
    pool = (F.avg_pool2d, F.avg_pool3d)[n - 2]
    return pool(
        x,
        a["kernel"],
        a["stride"],
        a["padding"],
        bool(a["ceil_mode"]),
        bool(a["count_include_pad"]),
        a["divisor"] or None,
    )


def _running(x, running, momentum, unbiased):
    dims = [d for d in range(x.dim()) if d != 1]
    value = x.var(dims, unbiased=True) if unbiased else x.mean(dims)
    return running * (1 - momentum) + momentum * value


def _prod(x, attrs):
    for dim in sorted(attrs["dims"], reverse=True):
        x = x.prod(dim, keepdim=bool(attrs["keepdim"]))
    return x


_SAME_TYPE = set(
    "add sub mul div pow maximum minimum lt le gt ge eq ne logical_and logical_or matmul linear convolution group_norm "
    "layer_norm rms_norm batch_norm batch_norm_inference batch_norm_running_mean batch_norm_running_var".split()
)
_UNARY = set(
    "neg abs sign exp expm1 log log1p erf tanh sigmoid sin cos sqrt rsqrt reciprocal square floor ceil round trunc "
    "isnan logical_not".split()
)
_BINARY = set("add sub mul div pow maximum minimum lt le gt ge eq ne logical_and logical_or matmul".split())
_ACTIVATIONS = {
    "relu": F.relu, "silu": F.silu, "mish": F.mish, "hardswish": F.hardswish, "hardsigmoid": F.hardsigmoid,
    "log_sigmoid": F.logsigmoid, "softsign": F.softsign, "normal_cdf": torch.special.ndtr,
}  # fmt: skip


def _evaluate(name, v, a, symbols):
    if name in _UNARY:
        return getattr(torch, name)(*v)
    if name in _BINARY:
        return getattr(torch, name)(*v)
    if name in _ACTIVATIONS:
        return _ACTIVATIONS[name](*v)
    if name in ("sum", "mean", "var", "logsumexp"):
        more = {"correction": a["correction"]} if name == "var" else {}
        return getattr(torch, name)(v[0], dim=a["dims"], keepdim=bool(a["keepdim"]), **more)
    if name in ("argmax", "argmin"):
        assert len(a["dims"]) == 1
        return getattr(torch, name)(v[0], a["dims"][0], bool(a["keepdim"]))
    if name == "pick":
        x, index, dim = v[0], v[1], a["dim"]
        exists = (index >= 0) & (index < x.shape[dim])
        found = x.gather(
            dim, torch.where(exists, index, 0).expand([1 if d == dim else n for d, n in enumerate(x.shape)])
        )
        return found * torch.where(exists, 1.0, torch.nan).to(x.dtype)
    if name in ("softmax", "log_softmax"):
        return getattr(torch, name)(v[0], a["dim"])
    if name in ("batch_norm", "batch_norm_inference"):
        skip = 1 if name == "batch_norm" else 3
        weight, bias = _optional(v, a, skip)
        stats_ = (None, None) if skip == 1 else (v[1], v[2])
        return F.batch_norm(v[0], *stats_, weight, bias, training=skip == 1, eps=a["eps"])
    match name:
        case "cast":
            return v[0].to(DTYPES[a["dtype"]])
        case "stop_gradient":
            return v[0].detach()
        case "select":
            return torch.where(*v)
        case "amax" | "amin":
            return _extremum(v[0], a, name == "amax")
        case "prod":
            return _prod(v[0], a)
        case "reshape":
            return v[0].reshape(_sizes(a, symbols))
        case "expand":
            return v[0].expand(_sizes(a, symbols))
        case "permute":
            return v[0].permute(a["dims"])
        case "leaky_relu":
            return torch.where(v[0] > 0, v[0], v[0] * (v[1] if len(v) > 1 else a["negative_slope"]))
        case "gelu":
            return F.gelu(v[0], approximate=a["approximate"])
        case "softplus":
            return F.softplus(v[0], a["beta"], a["threshold"])
        case "hardtanh":
            low, high = v[1:] if len(v) > 1 else (a["min_val"], a["max_val"])
            return torch.where(v[0] <= low, low, torch.where(v[0] >= high, high, v[0]))
        case "clamp":
            limits = list(v[1:])
            low = limits.pop(0) if a.get("has_min") else a.get("min")
            return torch.clamp(v[0], low, limits.pop(0) if a.get("has_max") else a.get("max"))
        case "elu":
            return torch.ops.aten.elu(v[0], a["alpha"], a["scale"], a["input_scale"])
        case "group_norm":
            return F.group_norm(v[0], a["groups"], *_optional(v, a, 1), a["eps"])
        case "layer_norm":
            return F.layer_norm(v[0], v[0].shape[v[0].dim() - a["axes"] :], *_optional(v, a, 1), a["eps"])
        case "rms_norm":
            return F.rms_norm(v[0], v[0].shape[v[0].dim() - a["axes"] :], _optional(v, a, 1)[0], a["eps"])
        case "batch_norm_running_mean":
            return _running(*v, a["momentum"], False)
        case "batch_norm_running_var":
            return _running(*v, a["momentum"], True)
        case "linear":
            return F.linear(*v)
        case "convolution":
            return _conv(v[0], v[1], v[2] if len(v) > 2 else None, a)
        case "max_pool":
            return _max_pool(v[0], a)
        case "avg_pool":
            return _avg_pool(v[0], a)
    raise Error(f"no operation {name}")
