"""Files to editable models: where values are, what is renamed, what is refused and in which words."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper, numpy_helper

from gkestimator.core.dtypes import DType
from gkestimator.core.errors import LimitError, ModelError
from gkestimator.merging.editing import Held, Mapped, nodes, read_editable, write_editable
from gkestimator.merging.editing import values as values_module

RNG = np.random.default_rng(3)


def with_weight(tensor: TensorProto, *, extra: str = "") -> onnx.ModelProto:
    """A model that hands on its weight ``w``."""
    out = helper.make_tensor_value_info("y", tensor.data_type, list(tensor.dims))
    nodes = [helper.make_node("Identity", ["w"], ["y"], name=extra)]
    graph = helper.make_graph(nodes, "g", [], [out], [tensor])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


TYPED = [
    (TensorProto.FLOAT, DType.FLOAT, "<f4"),
    (TensorProto.DOUBLE, DType.DOUBLE, "<f8"),
    (TensorProto.FLOAT16, DType.FLOAT16, "<f2"),
    (TensorProto.BFLOAT16, DType.BFLOAT16, "<u2"),
    (TensorProto.INT64, DType.INT64, "<i8"),
    (TensorProto.INT32, DType.INT32, "<i4"),
    (TensorProto.INT8, DType.INT8, "i1"),
    (TensorProto.UINT8, DType.UINT8, "u1"),
    (TensorProto.UINT64, DType.UINT64, "<u8"),
    (TensorProto.BOOL, DType.BOOL, "?"),
    (TensorProto.FLOAT8E4M3FN, DType.FLOAT8E4M3FN, "u1"),
]


@pytest.mark.parametrize("count", [3, 5_000], ids=["small", "large"])
@pytest.mark.parametrize("raw", [True, False], ids=["raw", "typed"])
@pytest.mark.parametrize(("number", "dtype", "stored"), TYPED, ids=[str(t[1]) for t in TYPED])
def test_values_of_every_form(
    read, tmp_path: Path, number: int, dtype: DType, stored: str, raw: bool, count: int
):
    bits = RNG.integers(0, 2 if dtype is DType.BOOL else 127, size=count * (dtype.bits // 8), dtype=np.uint8)
    expected = bits.view(stored)
    tensor = TensorProto(name="w", data_type=number, dims=[count])
    if raw:
        tensor.raw_data = bits.tobytes()
    elif dtype is DType.FLOAT:
        tensor.float_data.extend(expected.tolist())
    elif dtype is DType.DOUBLE:
        tensor.double_data.extend(expected.tolist())
    elif dtype is DType.INT64:
        tensor.int64_data.extend(expected.tolist())
    elif dtype is DType.UINT64:
        tensor.uint64_data.extend(expected.tolist())
    else:
        kind = stored if dtype not in (DType.FLOAT16,) else "<u2"
        tensor.int32_data.extend(bits.view(kind).astype(int).tolist())
    model = read(with_weight(tensor))
    weight = model.weights["m/w"]
    assert (weight.dtype, weight.shape) == (dtype, (count,))
    in_file = raw or dtype in (DType.FLOAT, DType.DOUBLE)
    assert isinstance(weight.values, Mapped if in_file and weight.nbytes > 4_096 else Held)
    assert weight.values.array().dtype == np.dtype(stored)
    assert weight.values.array().tobytes() == bits.tobytes()
    assert not weight.values.array().flags.writeable
    [path] = write_editable(model, tmp_path / "out.onnx")
    again = onnx.load(path).graph.initializer[0]
    assert (again.data_type, again.raw_data) == (number, bits.tobytes())


def test_four_bit_values_and_text(read, tmp_path: Path):
    four = helper.make_tensor("w", TensorProto.INT4, [5], [1, -2, 3, -4, 5])
    text = helper.make_tensor("w", TensorProto.STRING, [3], [b"a", b"", "ü".encode()])
    for tensor in (four, text):
        model = read(with_weight(tensor))
        array = model.weights["m/w"].values.array()
        assert (array.dtype, array.ndim) == (np.uint8, 1)
        [path] = write_editable(model, tmp_path / "out.onnx")
        again = onnx.load(path).graph.initializer[0]
        assert np.array_equal(numpy_helper.to_array(again), numpy_helper.to_array(tensor))


def test_external_data_in_a_folder_below(saved, tmp_path: Path):
    (tmp_path / "deep").mkdir()
    values = RNG.standard_normal((64, 32)).astype(np.float32)
    (tmp_path / "deep" / "w.bin").write_bytes(b"x" * 100 + values.tobytes() + b"more")
    tensor = TensorProto(name="w", data_type=1, dims=[64, 32], data_location=TensorProto.EXTERNAL)
    for key, value in (("location", "deep/w.bin"), ("offset", "100"), ("length", str(values.nbytes))):
        tensor.external_data.add(key=key, value=value)
    model = read_editable(saved(with_weight(tensor)), prefix="p/", name="p")
    assert np.array_equal(model.weights["p/w"].values.array(), values)
    [out] = write_editable(model, tmp_path / "out.onnx")
    assert np.array_equal(numpy_helper.to_array(onnx.load(out).graph.initializer[0]), values)


def test_external_data_without_a_length(saved, run, tmp_path: Path):
    """A tensor of a file of several is as long as its shape says, as in ONNX Runtime."""
    values = RNG.standard_normal((3, 64, 32)).astype(np.float32)
    values.tofile(tmp_path / "all.bin")
    tensor = TensorProto(name="w", data_type=1, dims=[64, 32], data_location=TensorProto.EXTERNAL)
    for key, value in (("location", "all.bin"), ("offset", str(values[0].nbytes))):
        tensor.external_data.add(key=key, value=value)
    path = saved(with_weight(tensor))
    model = read_editable(path, prefix="p/", name="p")
    assert np.array_equal(model.weights["p/w"].values.array(), values[1])
    assert np.array_equal(run(path, {})["y"], values[1])


def external(tmp_path: Path, **entries: str) -> onnx.ModelProto:
    (tmp_path / "w.bin").write_bytes(bytes(64))
    tensor = TensorProto(name="w", data_type=1, dims=[4, 4], data_location=TensorProto.EXTERNAL)
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    return with_weight(tensor)


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ({"location": "absent.bin"}, "missing; merging needs the weights"),
        ({"location": "../w.bin"}, "not below the model's folder"),
        ({"location": "/etc/passwd"}, "not below the model's folder"),
        ({"location": "link.bin"}, "not below the model's folder"),
        ({"location": "fifo.bin"}, "not a regular file"),
        ({"location": "."}, "not below|not a regular file"),
        ({}, "not below the model's folder"),
        ({"location": "w\0bin"}, "not a file name"),
        ({"location": "w.bin", "offset": "1"}, "64 bytes from byte 1"),
        ({"location": "w.bin", "offset": "99999999999999999999"}, "64 bytes from byte 9999"),
        ({"location": "w.bin", "offset": "-1", "length": "64"}, "from byte -1"),
        ({"location": "w.bin", "offset": "32", "length": "64"}, "64 within it were expected"),
        ({"location": "w.bin", "length": "60"}, "60 bytes"),
        ({"location": "w.bin", "offset": "many"}, "no number"),
    ],
)
def test_external_data_that_is_refused(saved, tmp_path: Path, entries: dict[str, str], says: str):
    folder = tmp_path / "model"
    folder.mkdir()
    outside = tmp_path / "outside.bin"
    outside.write_bytes(bytes(64))
    os.symlink(outside, folder / "link.bin")
    os.mkfifo(folder / "fifo.bin")
    (folder / "bad.onnx").write_bytes(external(folder, **entries).SerializeToString())
    with pytest.raises(ModelError, match=says) as e:
        read_editable(folder / "bad.onnx", prefix="b/", name="b")
    assert str(e.value).startswith("bad.onnx: initializer 'w'")


def test_files_without_their_weights(read):
    bare = TensorProto(name="w", data_type=1, dims=[40, 40])
    with pytest.raises(ModelError, match="m.onnx: initializer 'w' has no values .*merging needs the weights"):
        read(with_weight(bare))
    short = TensorProto(name="w", data_type=1, dims=[40, 40], raw_data=bytes(6_000))
    with pytest.raises(ModelError, match="'w' has 6000 bytes of data; 6400 of float were expected"):
        read(with_weight(short))
    constant = helper.make_node("Constant", [], ["c"], value=TensorProto(name="v", data_type=1, dims=[3]))
    out = helper.make_tensor_value_info("c", 1, [3])
    with pytest.raises(ModelError, match="Constant.*has no values"):
        read(helper.make_model(helper.make_graph([constant], "g", [], [out])))


def test_a_token_cannot_be_guessed(read, tmp_path: Path):
    """An entry that claims to be the reader's own note of where values are is no such note."""
    tensor = TensorProto(name="w", data_type=1, dims=[4])
    tensor.external_data.add(key="0" * 32, value="9,0,16")
    with pytest.raises(ModelError, match="has no values"):
        read(with_weight(tensor))


BODY = """
agraph (float[N,4] x, bool c) => (float[N,4] y, float[N,4] z)
<float[4] w = {1, 2, 3, 4}>
{
    k = Constant <value_floats: floats = [0.5, 1.5, 2.5, 3.5]> ()
    s = Add (x, w)
    y = If (c) <
        then_branch = t () => (float[N,4] a) { i = Constant <value_float: float = 2.0> ()
            a = Mul (s, i) },
        else_branch = e () => (float[N,4] b) { b = Add (s, k) }
    >
    z = Mul (y, k)
}
"""


def test_names_inside_subgraphs(saved, tmp_path: Path, run):
    path = saved(BODY)
    model = read_editable(path, prefix="p/q#2/", name="p/q#2")
    assert set(model.weights) == {"p/q#2/w", "p/q#2/k"}
    assert [i.name for i in model.inputs] == ["p/q#2/x", "p/q#2/c"]
    assert model.inputs[0].shape == ("p/q#2/N", 4)
    branch = next(n for n in model.nodes if n.op_type == "If")
    assert branch.outer == ("p/q#2/k", "p/q#2/s")
    assert [n.name for n in model.nodes] == ["p/q#2/Add#1", "p/q#2/If#2", "p/q#2/Mul#3"]
    [out] = write_editable(model, tmp_path / "out.onnx")
    x = RNG.standard_normal((3, 4)).astype(np.float32)
    for c in (True, False):
        before = run(path, {"x": x, "c": np.array(c)})
        after = run(out, {"p/q#2/x": x, "p/q#2/c": np.array(c)})
        assert list(after) == ["p/q#2/y", "p/q#2/z"]
        for name, value in before.items():
            assert np.array_equal(after["p/q#2/" + name], value)


FUNCTIONS = """
<ir_version: 8, opset_import: ["": 17, "own": 1]>
agraph (float[N,4] x) => (float[N,4] y) { h = own.Twice <by: float = 3.0> (x)
    y = own.Twice <by: float = 0.5> (h) }
<domain: "own", opset_import: ["": 17]>
Twice <by> (v) => (o) { k = Constant <value_float: float = @by> ()
    u = Mul (v, k)
    o = Add (u, v) }
"""


def test_local_functions_are_inlined(saved, tmp_path: Path, run):
    path = saved(FUNCTIONS)
    model = read_editable(path, prefix="f/", name="f")
    assert [n.op_type for n in model.nodes] == ["Mul", "Add"] * 2
    assert model.opsets == {"": 17}
    [out] = write_editable(model, tmp_path / "out.onnx")
    x = RNG.standard_normal((2, 4)).astype(np.float32)
    assert np.array_equal(run(out, {"f/x": x})["f/y"], run(path, {"x": x})["y"])


def test_functions_of_another_opset(saved, tmp_path: Path, run):
    """Squeeze had its axes as an attribute in the function's opset, as an input in the model's."""
    path = saved(
        """<ir_version: 8, opset_import: ["": 17, "own": 1]>
        g (float[N,1,4] x) => (float[N,4] y) { y = own.Flat (x) }
        <domain: "own", opset_import: ["": 11]> Flat (v) => (o) { o = Squeeze <axes: ints = [1]> (v) }"""
    )
    model = read_editable(path, prefix="f/", name="f")
    [out] = write_editable(model, tmp_path / "out.onnx")
    x = RNG.standard_normal((2, 1, 4)).astype(np.float32)
    assert np.array_equal(run(out, {"f/x": x})["f/y"], x[:, 0])


def test_functions_without_end(read):
    doubling = "".join(
        f'<domain: "own", opset_import: ["": 17, "own": 1]> F{i} (v) => (o) '
        f"{{ a = own.F{i + 1} (v) o = own.F{i + 1} (a) }}\n"
        for i in range(40)
    )
    last = '<domain: "own", opset_import: ["": 17]> F40 (v) => (o) { o = Relu (v) }'
    head = '<ir_version: 8, opset_import: ["": 17, "own": 1]> g (float[4] x) => (float[4] y) { y = own.F0 (x) }\n'
    with pytest.raises(LimitError, match="found 20,001 nodes once functions are inlined"):
        read(head + doubling + last)
    itself = '<domain: "own", opset_import: ["": 17, "own": 1]> F0 (v) => (o) { o = own.F0 (v) }'
    with pytest.raises(LimitError, match=r"own\.F0 calls itself"):
        read(head + itself)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("{ a = Add (x, b) b = Relu (a) y = Relu (b) }", "in a cycle"),
        ("{ y = Relu (nowhere) }", "nothing defines"),
        ("{ a = Relu (x) a = Abs (x) y = Relu (a) }", "defined twice"),
        ("{ a = Relu (x) }", "'y' of the graph is defined by no node"),
        ("{ x = Relu (x) y = Relu (x) }", "defined twice"),
    ],
)
def test_graphs_that_are_none(read, body: str, says: str):
    with pytest.raises(ModelError, match=says) as e:
        read(f"g (float[4] x) => (float[4] y) {body}")
    assert str(e.value).startswith("m.onnx: ") and "\n" not in str(e.value)


@pytest.mark.parametrize("content", [b"", b"\x00", b"text\n" * 999, b"\x08\x08", bytes(range(256)) * 64])
def test_files_that_are_no_models(tmp_path: Path, content: bytes):
    (tmp_path / "m.onnx").write_bytes(content)
    with pytest.raises(ModelError, match=r"^m\.onnx: "):
        read_editable(tmp_path / "m.onnx", prefix="m/", name="m")
    with pytest.raises(ModelError, match="not a regular file"):
        read_editable(tmp_path, prefix="m/", name="m")


def test_initializers_that_are_inputs_too(read):
    model = read(
        "<ir_version: 3, opset_import: ['': 7]> g (float[4] x, float[4] w) => (float[4] y) "
        "<float[4] w = {1, 2, 3, 4}> { y = Add (x, w) }".replace("'", '"')
    )
    assert [i.name for i in model.inputs] == ["m/x"]
    assert model.ir_version >= 4


def test_a_file_changed_after_reading(saved):
    values = RNG.standard_normal((64, 64)).astype(np.float32)
    path = saved(with_weight(numpy_helper.from_array(values, "w")))
    model = read_editable(path, prefix="m/", name="m")
    saved(with_weight(numpy_helper.from_array(-values, "w"), extra="other"))
    with pytest.raises(ModelError, match="changed while it was read"):
        model.weights["m/w"].values.array()
    os.unlink(path)
    with pytest.raises(ModelError, match="cannot be opened"):
        model.weights["m/w"].values.array()


def test_a_large_file_is_not_read(tmp_path: Path):
    """1.9 GB of weights, as a hole in the file: their pages are never asked for."""
    size = 1_900 << 20
    tensor = TensorProto(name="w", data_type=1, dims=[size // 4])
    model = with_weight(tensor)
    model.graph.ClearField("initializer")
    body = tensor.SerializeToString()

    def varint(n: int) -> bytes:
        out = bytearray()
        while n >= 0x80:
            out.append(n & 0x7F | 0x80)
            n >>= 7
        return bytes(out) + bytes([n])

    body += b"\x4a" + varint(size)
    graph = model.graph.SerializeToString() + b"\x2a" + varint(len(body) + size) + body
    model.ClearField("graph")
    path = tmp_path / "large.onnx"
    with open(path, "wb") as stream:
        stream.write(model.SerializeToString() + b"\x3a" + varint(len(graph) + size) + graph)
        stream.truncate(stream.tell() + size)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = read_editable(path, prefix="l/", name="l").weights["l/w"]
    assert found.nbytes == size
    assert found.values.array()[-1] == 0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10  # KiB


def test_a_file_beyond_the_limit(read, monkeypatch):
    monkeypatch.setenv("GKEST_LIMITS", "file_bytes=40")
    with pytest.raises(
        LimitError, match=r"^m\.onnx: found \d+ bytes of a model file, expected at most 40 \("
    ):
        read("g (float[4] x) => (float[4] y) { y = Relu (x) }")


def test_weights_inside_subgraphs_stay_in_memory_up_to_a_limit(read, monkeypatch):
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
        g (bool c, float[2000] x) => (float[2000] y) { y = If (c) <
            then_branch = a () => (float[2000] t) { t = Add (x, w) },
            else_branch = b () => (float[2000] e) { e = Relu (x) }> }""")
    weight = numpy_helper.from_array(np.arange(2000, dtype=np.float32), "w")
    model.graph.node[0].attribute[0].g.initializer.append(weight)
    assert weight.raw_data in b"".join(read(model).nodes[0].opaque)
    monkeypatch.setattr(nodes, "_MAX_OPAQUE_BYTES", 7_999)
    with pytest.raises(LimitError, match="tensors inside subgraphs and attributes hold more than 7999 bytes"):
        read(model)


def test_few_files_are_open_at_once(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(values_module, "_MOST_OPEN", 2)
    arrays = []
    for k in range(5):
        path = tmp_path / f"{k}.data"
        path.write_bytes(bytes([k]) * 8)
        arrays.append(values_module.mapped_array(path, values_module.identity_of(path), 0, 8, "u1", (8,)))
        assert len(values_module._open) <= 2
    assert [a.tolist() for a in arrays] == [[k] * 8 for k in range(5)]  # those let go of are there while used
