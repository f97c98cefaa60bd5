"""Files from strangers: one line that names what and where, in bounded time and memory."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from gkestimator.core.errors import (
    GkestimatorError,
    LimitError,
    ModelError,
    ShapeError,
    UnboundDimensionError,
    UnsupportedOperatorError,
    UsageError,
)
from gkestimator.onnx_io import read_model

SMALL = "g (float[N,4] x) => (float[N,4] y) { y = Relu(x) }"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "empty file"),
        (b"\x00", "not an ONNX"),
        (b"this is a text file, not a model\n" * 20, "not an ONNX"),
        (b"\x3a", "not an ONNX"),
        (bytes(range(256)) * 64, "not an ONNX"),
        (b"\x08\x08", "no graph"),
    ],
)
def test_files_that_are_no_models(tmp_path: Path, content: bytes, says: str):
    path = tmp_path / "bad.onnx"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=says) as e:
        read_model(path)
    assert str(e.value).startswith(f"{path}: ")
    assert "\n" not in str(e.value)


def test_noise_and_truncation(tmp_path: Path):
    rng = np.random.default_rng(7)
    path = tmp_path / "noise.onnx"
    path.write_bytes(rng.bytes(3 << 20))  # large enough for the walk over the wire format
    with pytest.raises(ModelError):
        read_model(path)
    weight = helper.make_tensor("w", TensorProto.FLOAT, [1 << 19], rng.bytes(1 << 21), raw=True)
    model = helper.make_model(helper.make_graph([], "g", [], [], [weight]))
    path.write_bytes(model.SerializeToString()[:-100])
    with pytest.raises(ModelError, match="truncated"):
        read_model(path)


def test_paths_that_are_no_regular_files(tmp_path: Path):
    with pytest.raises(ModelError, match="regular|directory"):
        read_model(tmp_path)
    with pytest.raises(ModelError, match="No such file"):
        read_model(tmp_path / "absent.onnx")
    fifo = tmp_path / "fifo.onnx"
    os.mkfifo(fifo)
    with pytest.raises(ModelError, match="regular"):
        read_model(fifo)
    with pytest.raises(ModelError):
        read_model("nul\0byte.onnx")


def test_external_data_is_never_opened(load, tmp_path: Path):
    os.mkfifo(tmp_path / "weights.bin")  # opening it for reading would block for ever
    locations = ["weights.bin", "../../../../etc/shadow", "/dev/zero"]
    weights = []
    for i, location in enumerate(locations):
        weight = TensorProto(name=f"w{i}", data_type=TensorProto.FLOAT, dims=[4, 4])
        weight.data_location = TensorProto.EXTERNAL
        weight.external_data.add(key="location", value=location)
        weights.append(weight)
    nodes = [helper.make_node("MatMul", [f"t{i}", f"w{i}"], [f"t{i + 1}"]) for i in range(3)]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("t0", 1, ["N", 4])],
        [helper.make_tensor_value_info("t3", 1, ["N", 4])],
        weights,
    )
    bound = load(helper.make_model(graph)).bind(batch_size=2)
    assert bound.weights == {"w0": 64, "w1": 64, "w2": 64}


@pytest.mark.parametrize(
    ("body", "error", "says"),
    [
        ("n = Constant<value_int = 1000000000000>() z = Constant<value_int = 0>() o = Constant<value_int = 1>()"
         " r = Range(z, n, o) s = Shape(r) c = Cast<to = 1>(r) y = Add(x, c)", ShapeError, "broadcast"),
        ("s = Constant<value_ints = [1000000000000000]>() c = ConstantOfShape(s) y = Add(x, c)", ShapeError, "broadcast"),
        ("s = Constant<value_ints = [4294967296, 4294967296]>() y = ConstantOfShape(s)", LimitError, "2\\^63"),
        ("s = Constant<value_ints = [4294967296, 4294967296, 1, 4]>() y = Expand(x, s)", LimitError, "2\\^63"),
        ("s = Constant<value_ints = [9000000000000000000, 4]>() y = Tile(x, s)", LimitError, "2\\^63"),
        ("p = Constant<value_ints = [0, 0, 9000000000000000000, 4]>() y = Pad(x, p)", LimitError, "2\\^63"),
        ("p = Constant<value_ints = [0, 0, -9, 0]>() y = Pad(x, p)", ShapeError, "negative"),
        ("s = Constant<value_ints = [3, 3]>() y = Reshape(x, s)", ShapeError, "cannot be reshaped"),
        ("t = Concat<axis = 7>(x, x) y = Relu(t)", ShapeError, "axis 7"),
        ("t = Transpose<perm = [0, 0]>(x) y = Relu(t)", ShapeError, "perm"),
        ("y = MatMul(x, x)", ShapeError, "inner dimensions"),
        ("y = Conv(x)", ShapeError, "Conv"),
        ("y = acme.Mystery(x)", UnsupportedOperatorError, "acme.Mystery"),
    ],
)  # fmt: skip
def test_hostile_and_wrong_operators(load, body: str, error: type[Exception], says: str):
    started = time.monotonic()
    text = (
        '<ir_version: 10, opset_import: ["": 21, "acme": 1]>\n'
        + f"g (float[N,4] x) => (float[A,B] y) {{ {body} }}"
    )
    with pytest.raises(error, match=says) as e:
        load(text).bind(batch_size=2)
    assert str(e.value).startswith(("model: ", "/"))  # the name of what was read, or the path of what was not
    assert time.monotonic() - started < 5


def test_all_unknown_operators_are_listed(load):
    text = '<ir_version: 10, opset_import: ["": 21, "acme": 1]>\n' + (
        "g (float[N,4] x) => (float[N,4] y) { a = acme.Zip(x) b = Relu(a) c = acme.Zap(b) y = acme.Zip(c) }"
    )
    with pytest.raises(UnsupportedOperatorError) as e:
        load(text).bind(batch_size=1)
    assert e.value.operators == ("acme.Zap", "acme.Zip")
    declared = onnx.parser.parse_model(text.replace("{ a", "<float[N,4] a, float[N,4] c> { a"))
    graph = load(declared).bind(batch_size=3)
    assert [o.outputs[0].shape for o in graph.operators] == [(3, 4)] * 4


def test_large_values_are_not_evaluated_but_their_shapes_are_known(load):
    graph = load(
        "g (float[N,4] x) => (int64[1] y) { s = Constant<value_ints = [1000000, 1000000, 1000]>()"
        " c = ConstantOfShape(s) y0 = Shape(c) z = Shape(x) y = Concat<axis = 0>(y0, z) }"
    ).bind(batch_size=2)
    assert graph.outputs[0].value.tolist() == [10**6, 10**6, 1000, 2, 4]


def test_cycle_names_its_nodes(load):
    with pytest.raises(ModelError, match="cycle") as e:
        load("g (float[N,4] x) => (float[N,4] y) { a = Add(x, b) b = Relu(a) y = Relu(b) }")
    assert "Add" in str(e.value)


def test_unsorted_nodes_are_sorted(load):
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21]>\n'
        "g (float[N,4] x, bool c) => (float[N,4] y) { y = If (c) <then_branch = a () => (float[N,4] t) { t = Relu(b) },"
        " else_branch = f () => (float[N,4] e) { e = Exp(b) }> b = Tanh(a) a = Neg(x) }"
    )
    graph = load(model).bind(batch_size=1)
    assert [o.op_type for o in graph.operators][:2] == ["Neg", "Tanh"]


def test_undeclared_tensor(load):
    with pytest.raises(ModelError, match="'ghost'"):
        load("g (float[N,4] x) => (float[N,4] y) { y = Add(x, ghost) }")
    with pytest.raises(ModelError, match="output 'z'"):
        load("g (float[N,4] x) => (float[N,4] z) { y = Relu(x) }")


def test_names_defined_twice(load):
    with pytest.raises(ModelError, match="'t' is defined twice"):
        load("g (float[N,4] x) => (float[N,4] y) { t = Relu(x) t = Exp(x) y = Neg(t) }")


def _model(shape, *, initializer=None) -> onnx.ModelProto:
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", 1, shape)],
        [helper.make_tensor_value_info("y", 1, None)],
        [initializer] if initializer is not None else [],
    )
    return helper.make_model(graph)


def test_impossible_dimensions(load):
    with pytest.raises(ModelError, match="negative dimension -3"):
        load(_model([2, -3]))
    with pytest.raises(LimitError, match="100 dimensions"):
        load(_model([1] * 100)).bind()
    with pytest.raises(LimitError, match=r"2\^63"):
        load(_model([2**32, 2**32])).bind()
    bad = TensorProto(name="w", data_type=1, dims=[-5])
    with pytest.raises(ModelError, match="negative dimension -5"):
        load(_model([1], initializer=bad))
    bad = TensorProto(name="w", data_type=99, dims=[1])
    with pytest.raises(ModelError, match="element type 99"):
        load(_model([1], initializer=bad))
    bad = TensorProto(name="w", data_type=7, dims=[3], raw_data=b"12345")
    with pytest.raises(ModelError, match="5 bytes of data; 24"):
        load(_model([1], initializer=bad))


@pytest.mark.parametrize("batch", [0, -1, 10**7, True, 2.5, "8"])
def test_impossible_batch_sizes(load, batch):
    with pytest.raises(UsageError, match="batch size"):
        load(SMALL).bind(batch_size=batch)


def test_dimension_names(load):
    model = load("g (float[N,T,S] x) => (float[N,T,S] y) { y = Relu(x) }")
    assert model.dims == ("N", "T", "S")
    with pytest.raises(UnboundDimensionError, match="dims={'T': <number>}"):
        model.bind(batch_size=1)
    with pytest.raises(UsageError, match="'Q' is not in the model; known: N, T, S"):
        model.bind(batch_size=1, dims={"Q": 3, "T": 1, "S": 1})
    with pytest.raises(UsageError, match="batch dimension 'Q'"):
        model.bind(batch_size=1, batch_dim="Q")
    assert model.bind(batch_size=5, dims={"T": 7, "S": 2}).outputs[0].shape == (5, 7, 2)
    assert model.bind(batch_size=5, batch_dim="T", dims={"N": 7, "S": 2}).outputs[0].shape == (7, 5, 2)


def test_inline_weights_of_a_large_file_are_not_read(tmp_path: Path):
    """A sparse file of 1.9 GB: were its weights read, the process would grow by as much."""
    rows, each = 475, 4 << 20
    path = tmp_path / "large.onnx"
    nodes = [helper.make_node("Add", [f"t{i}", f"w{i}"], [f"t{i + 1}"]) for i in range(rows)]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("t0", 1, ["N", 1 << 20])],
        [helper.make_tensor_value_info(f"t{rows}", 1, None)],
    )
    head = helper.make_model(helper.make_graph([], "g", [], []))
    head.ClearField("graph")

    def varint(n: int) -> bytes:
        out = b""
        while n > 127:
            out += bytes([n & 127 | 128])
            n >>= 7
        return out + bytes([n])

    body = graph.SerializeToString()
    tensors = []
    for i in range(rows):
        fields = (
            TensorProto(name=f"w{i}", data_type=1, dims=[1 << 20]).SerializeToString()
            + b"\x4a"
            + varint(each)
        )
        tensors.append(b"\x2a" + varint(len(fields) + each) + fields)
    size = len(body) + sum(map(len, tensors)) + rows * each
    with open(path, "wb") as file:
        file.write(head.SerializeToString() + b"\x3a" + varint(size) + body)
        for tensor in tensors:
            file.write(tensor)
            file.seek(each, os.SEEK_CUR)
        file.truncate()
    assert path.stat().st_size > 1.9e9
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    graph = read_model(path).bind(batch_size=1)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert sum(graph.weights.values()) == rows * each
    assert grown < 300 << 10, f"grew by {grown} KiB"


@pytest.mark.slow
def test_mutated_files_never_give_a_traceback(tmp_path: Path):
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21]>\n'
        "g (float[N,3,8,8] x, float[4,3,3,3] w) => (float[N,M] y) <int64[2] s = {0, -1}> "
        "{ c = Conv<pads = [1,1,1,1]>(x, w) r = Relu(c) p = MaxPool<kernel_shape = [2,2]>(r) q = Shape(p)"
        " z = Gather<axis = 0>(q, s) t = Concat<axis = 0>(z, z) k = Slice(p, s, s) y = Reshape(p, s) }"
    )
    content = model.SerializeToString()
    rng = np.random.default_rng(11)
    path = tmp_path / "mutant.onnx"
    outcomes = {True: 0, False: 0}
    for _ in range(1000):
        mutant = bytearray(content)
        for _ in range(int(rng.integers(1, 4))):
            mutant[int(rng.integers(len(mutant)))] = int(rng.integers(256))
        path.write_bytes(mutant)
        try:
            read_model(path).bind(batch_size=2)
            outcomes[True] += 1
        except GkestimatorError as e:
            assert "\n" not in str(e)
            outcomes[False] += 1
    assert min(outcomes.values()) > 20
