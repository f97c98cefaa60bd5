"""Send `gkest merge` pairs of small siblings of which one or both were mutated.

Seeds are two models of one architecture each, which share some of their weights: products, convolutions, embeddings, a
loop, operators of an old opset, which are converted before they are merged.
"""

from __future__ import annotations

import contextlib
import io
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
from onnx import helper, numpy_helper

from benchmarks.fuzz.onnx import mutate_message
from benchmarks.fuzz.wires import mutate_bytes, mutate_wire

_TEXTS = {
    "products": """
        <ir_version: 8, opset_import: ["": 17]>
        g (float[N,32] x) => (float[N,8] y) <float[32,16] w0, float[16] b0, float[16,8] w1> {
            a = MatMul (x, w0)
            b = Add (a, b0)
            c = Relu (b)
            d = MatMul (c, w1)
            y = Softmax <axis = -1> (d)
        }""",
    "gemm": """
        <ir_version: 8, opset_import: ["": 17]>
        g (float[2,32] x) => (float[2,8] y) <float[16,32] w0, float[16] b0, float[8,16] w1> {
            a = Gemm <transB = 1> (x, w0, b0)
            b = Tanh (a)
            y = Gemm <transB = 1, alpha = 0.5> (b, w1)
        }""",
    "convolutions": """
        <ir_version: 8, opset_import: ["": 17]>
        g (float[N,3,12,12] x) => (float[N,10] y) <float[8,3,3,3] w0, float[8] b0, float[8,8,3,3] w1, float[32,10] w2> {
            a = Conv <pads = [1,1,1,1]> (x, w0, b0)
            b = Relu (a)
            c = Conv <strides = [2,2], pads = [1,1,1,1]> (b, w1)
            d = MaxPool <kernel_shape = [3,3], strides = [3,3]> (c)
            e = Flatten (d)
            y = MatMul (e, w2)
        }""",
    "tokens": """
        <ir_version: 8, opset_import: ["": 17]>
        g (int64[N,S] ids, int64[N,S] mask) => (float[N,S,8] y) <float[50,16] t, float[16,16] w0, float[16,16] w1, float[16,8] w2> {
            e = Gather (t, ids)
            q = MatMul (e, w0)
            k = MatMul (e, w1)
            kt = Transpose <perm = [0,2,1]> (k)
            s = MatMul (q, kt)
            p = Softmax (s)
            v = MatMul (p, e)
            y = MatMul (v, w2)
        }""",
    "old": """
        <ir_version: 6, opset_import: ["": 9]>
        g (float[N,8,16] x) => (float[N,1,8] y) <float[16,16] w0, float[16,8] w1> {
            a = MatMul (x, w0)
            b = Pad <pads = [0,1,0,0,1,0]> (a)
            c = Slice <starts = [1], ends = [5], axes = [1]> (b)
            d, e = Split <axis = 1, split = [2,2]> (c)
            f = Add (d, e)
            h = ReduceMax <axes = [1], keepdims = 0> (f)
            i = Unsqueeze <axes = [1]> (h)
            y = MatMul (i, w1)
        }""",
    "loop": """
        <ir_version: 8, opset_import: ["": 17]>
        g (float[1,16] x) => (float[1,16] y) <float[16,16] w0, int64 trips = {3}> {
            h = MatMul (x, w0)
            y = Loop (trips, , h) <body = b (int64 i, bool on, float[1,16] s) => (bool out, float[1,16] r) {
                out = Identity (on)
                r = Tanh (s)
            }>
        }""",
}  # fmt: skip


def prepare(cache: Path) -> None:
    """Write the pairs, and merge one of them so that modules and bundle are loaded."""
    from gkestimator.cli import run

    rng = np.random.default_rng(0)
    for name, text in _TEXTS.items():
        first = _with_weights(onnx.parser.parse_model(text), rng)
        second = onnx.ModelProto()
        second.CopyFrom(first)
        other = second.graph.initializer[-1]
        other.CopyFrom(_random(other.name, other.dims, rng))
        onnx.save(first, str(cache / f"pair-{name}-a.onnx"))
        onnx.save(second, str(cache / f"pair-{name}-b.onnx"))
    models = [str(cache / f"pair-products-{which}.onnx") for which in "ab"]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        run(["merge", *models, "--always", "--samples", "0"])


def _with_weights(model: onnx.ModelProto, rng: np.random.Generator) -> onnx.ModelProto:
    """Return the model with random values in what the text declares beside inputs and outputs."""
    graph = model.graph
    for value in graph.value_info:
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        graph.initializer.append(_random(value.name, shape, rng))
    del graph.value_info[:]
    return model


def _random(name: str, shape: Sequence[int], rng: np.random.Generator) -> onnx.TensorProto:
    return numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name)


def case(rng: random.Random, cache: Path, folder: Path) -> Sequence[str]:
    """Write the two models of a pair, one or both mutated; return a command that merges them."""
    name = rng.choice(list(_TEXTS))
    names = [f"pair-{name}-a.onnx", f"pair-{name}-b.onnx"]
    if rng.random() < 0.1:
        names[1] = f"pair-{rng.choice(list(_TEXTS))}-b.onnx"
    both = rng.random() < 0.3
    alike = rng.random() < 0.5
    state = rng.getstate()
    for place, (source, target) in enumerate(zip(names, ("a.onnx", "b.onnx"), strict=True)):
        data = (cache / source).read_bytes()
        if place == 0 or both:
            if place and alike:  # the same damage in both: siblings still
                rng.setstate(state)
            data = _mutated(data, rng)
        (folder / target).write_bytes(data)
    arguments = ["merge", "a.onnx", "b.onnx"]
    if "tokens" in "".join(names):
        arguments += ["--dim", rng.choice(("S=16", "S=16", "S=16", "S=9223372036854775807"))]
    options: list[tuple[float, list[str]]] = [
        (0.7, ["--always"]),
        (0.5, ["--tau-ms", rng.choice(("inf", "0", "1"))]),
        (0.4, ["--omega", rng.choice(("0.01", "0.4", "1"))]),
        (0.3, ["--tolerance", rng.choice(("0", "1", "0.01"))]),
        (0.3, ["--group-distance", "1"]),
        (0.15, ["--batch-size", rng.choice(("1", "3,7", "1000000"))]),
        (0.1, ["--dim", rng.choice(("N=3", "N=2147483647", "N=0"))]),
        (0.2, ["--gpu", rng.choice(("L4", "H100"))]),
        (0.2, ["--runtime", rng.choice(("torch", "tensorrt"))]),
        (0.2, ["--format", rng.choice(("json", "markdown"))]),
        (0.7, ["-o", "merged.onnx"]),
    ]
    for probability, words in options:
        if rng.random() < probability:
            arguments += words
    # a check starts a process and ONNX Runtime: seconds
    arguments += ["--samples", "2" if rng.random() < 0.1 else "0"]
    return arguments


def _mutated(data: bytes, rng: random.Random) -> bytes:
    kind = rng.random()
    if kind < 0.1:
        return mutate_bytes(data, rng)
    if kind < 0.2:
        return mutate_wire(data, rng)
    if kind < 0.45:
        return mutate_message(data, rng)
    model = onnx.ModelProto()
    model.ParseFromString(data)
    for _ in range(rng.choice((1, 2, 3))):
        rng.choice(_CHANGES)(model.graph, rng)
    if rng.random() < 0.1:
        model.opset_import[0].version = rng.choice((1, 6, 9, 11, 12, 13, 18, 22))
    return model.SerializeToString()


def _other_values(graph: onnx.GraphProto, rng: random.Random) -> None:
    """Put values into a weight that are equal, not finite or huge."""
    weight = rng.choice(graph.initializer)
    values = numpy_helper.to_array(weight).copy().reshape(-1)
    if values.dtype.kind == "f" and values.size:
        some = slice(None, rng.choice((None, 1, values.size // 2)))
        values[some] = rng.choice((0.0, np.nan, np.inf, -np.inf, 1e30, 1e-40, values[0]))
        weight.CopyFrom(numpy_helper.from_array(values.reshape(tuple(weight.dims)), weight.name))


def _other_sizes(graph: onnx.GraphProto, rng: random.Random) -> None:
    """Cut, repeat or turn a weight along one axis: the model may still fit."""
    weight = rng.choice(graph.initializer)
    values = numpy_helper.to_array(weight)
    if values.ndim:
        axis = rng.randrange(values.ndim)
        size = rng.choice((0, 1, values.shape[axis] // 2, values.shape[axis] * 3))
        other = np.resize(values, (*values.shape[:axis], size, *values.shape[axis + 1 :]))
        if rng.random() < 0.2:
            other = values.T
        weight.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(other), weight.name))


def _other_type(graph: onnx.GraphProto, rng: random.Random) -> None:
    """Let all that is float be of another type."""
    kind = rng.choice((np.float16, np.float64))
    number = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    for value in (*graph.input, *graph.output):
        if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT:
            value.type.tensor_type.elem_type = number
    for weight in graph.initializer:
        if weight.data_type == onnx.TensorProto.FLOAT:
            weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight).astype(kind), weight.name))


def _other_input(graph: onnx.GraphProto, rng: random.Random) -> None:
    """Change the first dimension of the inputs, mostly the batch, which a model may take at any size."""
    size = rng.choice((0, 1, 5, 60_000_000, 2**31, 2**40, 2**62))
    for value in (*graph.input, *graph.output):
        dims = value.type.tensor_type.shape.dim
        if dims:
            dims[0].dim_value = size


def _other_names(graph: onnx.GraphProto, rng: random.Random) -> None:
    """Give nodes names, some of them those that the merger makes."""
    for node in graph.node:
        node.name = rng.choice(("", "a/MatMul#0", "gkest/0", "b/x", "n/" * 90, node.op_type))


def _other_attribute(graph: onnx.GraphProto, rng: random.Random) -> None:
    """Give an attribute a value of another type, or another value."""
    nodes = [node for node in graph.node if node.attribute]
    if nodes:
        attribute = rng.choice(rng.choice(nodes).attribute)
        value = rng.choice((0, -1, 2**40, [1, 2], [2**62], 1.5, [1.5], "nearest", "", b"\xff", [b"a"]))
        attribute.CopyFrom(helper.make_attribute(attribute.name, value))


_CHANGES = (_other_values, _other_sizes, _other_type, _other_input, _other_names, _other_attribute)
