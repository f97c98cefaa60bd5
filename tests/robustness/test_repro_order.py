"""The same model is the same row, whatever the order of its attributes, weights and nodes."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from gkestimator.estimation import estimate_rows
from gkestimator.hardware.runtimes import RUNTIMES
from gkestimator.tables import Requirement


def tensor(name: str, *shape: int) -> TensorProto:
    return numpy_helper.from_array(np.ones(shape, np.float32), name)


def model(nodes: list[onnx.NodeProto], shape: list[int], weights: list[TensorProto]) -> onnx.ModelProto:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def images() -> onnx.ModelProto:
    """Return two branches of convolutions with normalisations, which meet again."""
    nodes = []
    for side in ("a", "b"):
        strides = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 2], "group": 1}
        nodes += [
            helper.make_node("Conv", ["x", f"w{side}", f"c{side}"], [f"conv{side}"], **strides),
            helper.make_node(
                "BatchNormalization",
                [f"conv{side}", *(f"{n}{side}" for n in "stmv")],
                [f"n{side}"],
                epsilon=1e-5,
                momentum=0.9,
            ),
            helper.make_node("Relu", [f"n{side}"], [f"r{side}"]),
        ]
    nodes += [
        helper.make_node("Add", ["ra", "rb"], ["sum"]),
        helper.make_node("MaxPool", ["sum"], ["y"], kernel_shape=[2, 2], strides=[2, 2], ceil_mode=0),
    ]
    weights = [tensor(f"w{side}", 16, 8, 3, 3) for side in "ab"]
    weights += [tensor(f"{n}{side}", 16) for side in "ab" for n in "cstmv"]
    return model(nodes, [2, 8, 32, 32], weights)


def loop() -> onnx.ModelProto:
    """Return a loop whose body has attributes and names from around it."""
    inner = [
        helper.make_node("Gemm", ["h", "w", "bias"], ["g"], alpha=0.5, beta=2.0, transB=1),
        helper.make_node("Relu", ["g"], ["out"]),
        helper.make_node("Identity", ["go"], ["again"]),
    ]
    infos = {
        name: helper.make_tensor_value_info(name, kind, shape)
        for name, kind, shape in (
            ("i", TensorProto.INT64, []),
            ("go", TensorProto.BOOL, []),
            ("h", TensorProto.FLOAT, [4, 16]),
            ("again", TensorProto.BOOL, []),
            ("out", TensorProto.FLOAT, [4, 16]),
        )
    }
    body = helper.make_graph(
        inner, "body", [infos[n] for n in ("i", "go", "h")], [infos[n] for n in ("again", "out")]
    )
    nodes = [
        helper.make_node("Loop", ["trips", "yes", "x"], ["z"], body=body),
        helper.make_node("Softmax", ["z"], ["p"], axis=-1),
        helper.make_node("LeakyRelu", ["x"], ["q"], alpha=0.2),
        helper.make_node("Concat", ["p", "q"], ["y"], axis=1),
    ]
    numbers = [np.array(7, np.int64), np.array(True)]
    given = [numpy_helper.from_array(n, name) for n, name in zip(numbers, ("trips", "yes"), strict=True)]
    return model(nodes, [4, 16], [*given, tensor("w", 16, 16), tensor("bias", 16)])


def attention() -> onnx.ModelProto:
    """Return one layer of attention with three products that may be one, and its normalisation."""
    nodes = [helper.make_node("MatMul", ["x", f"w{n}"], [f"p{n}"]) for n in "qkv"]
    for n in "qkv":
        nodes.append(helper.make_node("Reshape", [f"p{n}", "heads"], [f"h{n}"], allowzero=0))
        perm = [0, 2, 3, 1] if n == "k" else [0, 2, 1, 3]
        nodes.append(helper.make_node("Transpose", [f"h{n}"], [f"t{n}"], perm=perm))
    nodes += [
        helper.make_node("MatMul", ["tq", "tk"], ["scores"]),
        helper.make_node("Div", ["scores", "scale"], ["scaled"]),
        helper.make_node("Softmax", ["scaled"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "tv"], ["context"]),
        helper.make_node("Transpose", ["context"], ["c"], perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["c", "flat"], ["f"]),
        helper.make_node("Add", ["f", "x"], ["residual"]),
        helper.make_node("LayerNormalization", ["residual", "s", "b"], ["y"], axis=-1, epsilon=1e-5),
    ]
    weights = [tensor(f"w{n}", 64, 64) for n in "qkv"] + [tensor("s", 64), tensor("b", 64), tensor("scale")]
    shapes = {"heads": [2, 32, 4, 16], "flat": [2, 32, 64]}
    weights += [numpy_helper.from_array(np.array(shape), name) for name, shape in shapes.items()]
    return model(nodes, [2, 32, 64], weights)


def shuffle_attributes(graph: onnx.GraphProto, rng: random.Random) -> None:
    for node in graph.node:
        attributes = list(node.attribute)
        rng.shuffle(attributes)
        for attribute in attributes:
            if attribute.HasField("g"):
                shuffle_attributes(attribute.g, rng)
        del node.attribute[:]
        node.attribute.extend(attributes)


def shuffle_weights(graph: onnx.GraphProto, rng: random.Random) -> None:
    weights = list(graph.initializer)
    rng.shuffle(weights)
    del graph.initializer[:]
    graph.initializer.extend(weights)


def shuffle_nodes(graph: onnx.GraphProto, rng: random.Random) -> None:
    """Bring the nodes into another order; what a node reads need not stand before it for our reader."""
    nodes = list(graph.node)
    rng.shuffle(nodes)
    known = {each.name for each in (*graph.input, *graph.initializer)}
    ordered: list[onnx.NodeProto] = []
    while nodes:
        ready = next(node for node in nodes if known.issuperset(node.input))
        nodes.remove(ready)
        known.update(ready.output)
        ordered.append(ready)
    del graph.node[:]
    graph.node.extend(ordered)


def row(folder: Path, changed: onnx.ModelProto, runtime: str) -> Requirement:
    folder.mkdir(parents=True)
    path = folder / "m.onnx"
    onnx.save(changed, path)
    result = estimate_rows([path], gpus=["T4"], runtime=runtime)
    assert not result.failures
    return result.rows[0]


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("make", [images, loop, attention])
def test_the_order_of_what_has_none_changes_nothing(
    make: Callable[[], onnx.ModelProto], runtime: str, tmp_path: Path
) -> None:
    first = row(tmp_path / "first", make(), runtime)
    for seed, shuffle in enumerate(
        (shuffle_attributes, shuffle_weights, shuffle_attributes, shuffle_weights)
    ):
        changed = make()
        shuffle(changed.graph, random.Random(seed))
        assert row(tmp_path / f"{seed}", changed, runtime) == first


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("make", [images, loop, attention])
def test_another_order_of_execution_has_the_same_kernels(
    make: Callable[[], onnx.ModelProto], runtime: str, tmp_path: Path
) -> None:
    """Memory in use depends on what runs first; what runs does not."""
    first = row(tmp_path / "first", make(), runtime)
    for seed in range(3):
        changed = make()
        shuffle_nodes(changed.graph, random.Random(seed))
        other = row(tmp_path / f"{seed}", changed, runtime)
        for name in ("latency_ms", "gpu_ms", "host_ms", "occupancy_max_pct", "occupancy_mean_pct"):
            assert getattr(other, name) == pytest.approx(getattr(first, name), rel=1e-9), (seed, name)
        counted = (
            "flops",
            "dram_bytes",
            "kernels",
            "weights_bytes",
            "input_bytes",
            "output_bytes",
            "warnings",
        )
        assert [getattr(other, name) for name in counted] == [getattr(first, name) for name in counted]


def chain(names: list[str]) -> onnx.ModelProto:
    """Return operators one after another, the inner three of them in one block where the names say so."""
    nodes = []
    for at, (name, op) in enumerate(zip(names, ("Exp", "Sin", "Cos", "Tanh", "Sin"), strict=True)):
        nodes.append(
            helper.make_node(op, [f"t{at}" if at else "x"], ["y" if at == 4 else f"t{at + 1}"], name=name)
        )
    return model(nodes, [4, 1024], [])


def test_where_names_decide_the_row_says_so(tmp_path: Path) -> None:
    """What a module of torch is called with lives until it returns; exporters write modules into names of nodes."""
    said = "which the nodes' names say"
    named = chain(["/pre/Exp", "/block/a/Sin", "/block/b/Cos", "/block/c/Tanh", "/post/Sin"])
    renamed = chain(list("abcde"))
    rows = {name: row(tmp_path / name, m, "torch") for name, m in (("named", named), ("renamed", renamed))}
    assert rows["named"].activations_bytes != rows["renamed"].activations_bytes
    assert said in rows["named"].warnings and said not in rows["renamed"].warnings
    held = [row(tmp_path / f"ort_{at}", m, "onnxruntime") for at, m in enumerate((named, renamed))]
    assert held[0] == held[1] and said not in held[0].warnings  # its memory does not hang on Python


def folded(weight: str, bias: str, node: str) -> onnx.ModelProto:
    """Return a convolution and its activation, called as an exporter calls them that folded a BatchNorm into it."""
    nodes = [
        helper.make_node("Conv", ["x", weight, bias], [f"{node}_output_0"], name=node, kernel_shape=[3, 3]),
        helper.make_node("Relu", [f"{node}_output_0"], ["y"]),
    ]
    return model(nodes, [2, 8, 32, 32], [tensor(weight, 16, 8, 3, 3), tensor(bias, 16)])


def test_where_names_of_weights_decide_the_row_says_so(tmp_path: Path) -> None:
    first = row(tmp_path / "first", folded("onnx::Conv_7", "onnx::Conv_8", "/conv/Conv"), "torch")
    other = row(tmp_path / "other", folded("kernel", "offset", "/conv/Conv"), "torch")
    assert first.latency_ms > other.latency_ms
    assert "their names say so" in first.warnings and "their names say so" not in other.warnings
