"""Build small ONNX files that would cost much: dense edges, empty attributes, calls and loops that multiply."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import onnx
from onnx import helper


def _graph(nodes: Sequence[onnx.NodeProto], functions: Sequence[onnx.FunctionProto] = ()) -> bytes:
    x = helper.make_tensor_value_info("x", 1, [1, 4])
    y = helper.make_tensor_value_info("y", 1, None)
    graph = helper.make_graph(list(nodes), "g", [x], [y])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    return helper.make_model(graph, opset_imports=opsets, functions=list(functions)).SerializeToString()


def _dense(rng: random.Random) -> bytes:
    """Nodes that read all nodes before them."""
    nodes = []
    count = rng.choice((50, 400, 900))
    for i in range(count):
        read = ["x", *(f"r{j}" for j in range(i))]
        nodes.append(
            helper.make_node(
                rng.choice(("Sum", "Concat", "Max", "Einsum")), read, [f"r{i}"], axis=0, equation="ab"
            )
        )
    nodes.append(helper.make_node("Relu", [f"r{count - 1}"], ["y"]))
    return _graph(nodes)


def _empty_attributes(rng: random.Random) -> bytes:
    """Protobuf messages of two bytes, some millions of them."""
    tag = rng.choice((b"\x2a", b"\x4a", b"\x0a", b"\x52"))
    node = b"\x22\x04Relu" + (tag + b"\0") * rng.choice((500, 2_500))
    one = b"\x0a" + _length(node) + node
    graph = one * (rng.choice((1 << 20, 6 << 20)) // len(one))
    return b"\x08\x08\x3a" + _length(graph) + graph


def _length(content: bytes) -> bytes:
    from gkestimator.onnx_io.reading.wire import varint

    return varint(len(content))


def _called_often(rng: random.Random) -> bytes:
    """A function with a large attribute, constant or name, called often."""
    call = {"name": "n" * rng.choice((1, 2_500))}
    large: Any = rng.choice(
        (b"x" * 400_000, list(range(100_000)), helper.make_tensor("t", 7, [50_000], range(50_000)))
    )
    inner = [
        helper.make_node("Constant", [], ["c"], value=large) if isinstance(large, onnx.TensorProto)
        else helper.make_node("Relu", ["a"], ["c"], large=large),
        helper.make_node("Relu", ["a"], ["b"]),
    ]  # fmt: skip
    function = helper.make_function("own", "f", ["a"], ["b"], inner, [helper.make_opsetid("", 17)])
    count = rng.choice((10, 3_000))
    nodes = [
        helper.make_node("f", [f"r{i}" if i else "x"], [f"r{i + 1}"], domain="own", **call)
        for i in range(count)
    ]
    nodes.append(helper.make_node("Relu", [f"r{count}"], ["y"]))
    return _graph(nodes, [function])


def _doubling(rng: random.Random) -> bytes:
    """Functions that call the next twice."""
    depth = rng.choice((8, 30, 70))
    functions = []
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    for i in range(depth):
        calls = [
            helper.make_node(f"f{i + 1}", ["a"], ["m"], domain="own"),
            helper.make_node(f"f{i + 1}", ["m"], ["b"], domain="own"),
        ]
        functions.append(helper.make_function("own", f"f{i}", ["a"], ["b"], calls, opsets))
    functions.append(
        helper.make_function(
            "own", f"f{depth}", ["a"], ["b"], [helper.make_node("Relu", ["a"], ["b"])], opsets
        )
    )
    return _graph([helper.make_node("f0", ["x"], ["y"], domain="own")], functions)


def _loops(rng: random.Random) -> bytes:
    """Loops in loops whose shapes change from trip to trip, with wide nodes inside."""
    trips = rng.choice((3, 300, 2_048, 2**62))
    width = rng.choice((2, 300))
    depth = rng.choice((1, 2, 5))
    text = f"k{depth} = Concat<axis = 0> ({', '.join([f'h{depth}'] * width)})"
    for i in range(depth, 0, -1):
        text = (
            f"k{i - 1} = Loop (t, c, h{i - 1}) <body = b{i} (int64 i{i}, bool c{i}, float[P, Q] h{i}) => "
            f"(bool d{i}, float[R, U] k{i}) {{ d{i} = Identity (c{i}) {text} }}>"
        )
    text = text.replace("k0 =", "y =").replace("h0)", "x)")
    head = '<ir_version: 8, opset_import: ["" : 17]> n (float[N, 4] x) => (float[A, B] y)'
    return onnx.parser.parse_model(
        f"{head} <int64 t = {{{trips}}}, bool c = {{1}}> {{ {text} }}"
    ).SerializeToString()


def _chain(rng: random.Random) -> bytes:
    """A long chain of one operator, or of many with no end in sight."""
    count = rng.choice((2_000, 20_000))
    nodes = [helper.make_node("Relu", [f"r{i}" if i else "x"], [f"r{i + 1}"]) for i in range(count)]
    if rng.random() < 0.5:
        nodes.reverse()
    nodes.append(helper.make_node("Identity", [f"r{count}"], ["y"]))
    return _graph(nodes)


def _sequences(rng: random.Random) -> bytes:
    """Sequences of many elements, taken apart and joined."""
    parts = helper.make_node("Constant", [], ["n"], value_ints=[1] * rng.choice((4, 60_000)))
    shape = helper.make_node("Shape", ["n"], ["s"])
    zeros = helper.make_node("ConstantOfShape", ["s"], ["z"])
    split = helper.make_node("SplitToSequence", ["z"], ["q"], axis=0, keepdims=rng.randrange(2))
    more = helper.make_node("SequenceInsert", ["q", "x"], ["q2"])
    return _graph(
        [parts, shape, zeros, split, more, helper.make_node("ConcatFromSequence", ["q2"], ["y"], axis=0)]
    )


COSTLY: tuple[Callable[[random.Random], bytes], ...] = (
    _dense, _empty_attributes, _called_often, _doubling, _loops, _chain, _sequences,
)  # fmt: skip
