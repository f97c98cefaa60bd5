"""Written files: what is read again is what was written, wholly or not at all."""

from __future__ import annotations

import os
import resource
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from onnx import TensorProto, helper, numpy_helper

from gkestimator.core.dtypes import DType
from gkestimator.core.errors import ModelError, OutputError
from gkestimator.merging.editing import (
    EditableModel,
    EditNode,
    Rearranged,
    ValueBlock,
    ValueInfo,
    Weight,
    check_editable,
    make_weight,
    read_editable,
    write_editable,
    writing,
)

RNG = np.random.default_rng(5)
BIG = RNG.standard_normal((300, 700)).astype(np.float32)


def product(weight: np.ndarray = BIG) -> onnx.ModelProto:
    rows, columns = weight.shape
    return helper.make_model(
        helper.make_graph(
            [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Add", ["h", "b"], ["y"])],
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", rows])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", columns])],
            [
                numpy_helper.from_array(weight, "w"),
                numpy_helper.from_array(np.ones(columns, np.float32), "b"),
            ],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )


def same(a: EditableModel, b: EditableModel) -> bool:
    """Equal up to where the weights are."""
    fields = ("nodes", "inputs", "outputs", "opsets", "ir_version", "producer")
    return (
        all(getattr(a, f) == getattr(b, f) for f in fields)
        and list(a.weights) == list(b.weights)
        and all(
            (w.dtype, w.shape, w.values.array().tobytes())
            == (b.weights[n].dtype, b.weights[n].shape, b.weights[n].values.array().tobytes())
            for n, w in a.weights.items()
        )
    )


def test_read_write_read_is_the_identity(read, tmp_path: Path):
    first = read(product())
    [path] = write_editable(first, tmp_path / "one.onnx")
    second = read_editable(path, prefix="", name="m")
    assert same(first, second)
    [again] = write_editable(second, tmp_path / "two.onnx")
    assert again.read_bytes() == path.read_bytes()
    onnx.checker.check_model(str(path), full_check=True)


PLAIN = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.floats(width=32),
    st.text(max_size=5),
    st.lists(st.integers(-9, 9), max_size=3).map(tuple),
    st.lists(st.floats(width=32), min_size=1, max_size=3).map(tuple),
    st.lists(st.text(max_size=3), min_size=1, max_size=3).map(tuple),
)
ARRAYS = st.sampled_from(["<f4", "<f8", "<f2", "<i8", "<i4", "u1", "i1", "?", "<u2"]).flatmap(
    lambda kind: hnp.arrays(kind, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
)


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(attributes=st.dictionaries(st.text(min_size=1, max_size=4), PLAIN, max_size=4), array=ARRAYS)
def test_attributes_and_weights_survive(tmp_path_factory: pytest.TempPathFactory, attributes, array):
    node = EditNode(
        name="p/n",
        op_type="Own",
        domain="own",
        inputs=("p/x", "", "p/w"),
        outputs=("p/y",),
        attributes=attributes,
    )
    value = ValueInfo(name="p/x", dtype=DType.FLOAT, shape=("p/N", 3, None))
    model = EditableModel(
        name="p",
        nodes=[node],
        weights={"p/w": make_weight("p/w", array)},
        inputs=[value],
        outputs=[ValueInfo(name="p/y", dtype=None, shape=None)],
        opsets={"": 17, "own": 2},
        ir_version=8,
    )
    folder = tmp_path_factory.mktemp("survive")
    [path] = write_editable(model, folder / "one.onnx")
    found = read_editable(path, prefix="", name="p")
    assert repr(found.nodes) == repr(model.nodes)  # by text: a NaN equals none
    assert found.inputs == model.inputs
    assert found.weights["p/w"].values.array().tobytes() == array.tobytes()
    assert found.weights["p/w"].shape == array.shape


def test_two_gibibytes_and_more_go_beside(read, tmp_path: Path, monkeypatch, run):
    monkeypatch.setattr(writing, "INLINE_BELOW", 100_000)
    source = read(product())
    path, data = write_editable(source, tmp_path / "out.onnx")
    assert (path.name, data.name) == ("out.onnx", "out.onnx.data")
    tensors = {t.name: t for t in onnx.load(path, load_external_data=False).graph.initializer}
    entries = {e.key: e.value for e in tensors["m/w"].external_data}
    assert entries == {"location": "out.onnx.data", "offset": "0", "length": str(BIG.nbytes)}
    assert tensors["m/b"].raw_data  # small ones stay where shape inference sees them
    x = RNG.standard_normal((2, 300)).astype(np.float32)
    assert np.array_equal(run(path, {"m/x": x})["m/y"], run(tmp_path / "m.onnx", {"x": x})["y"])
    onnx.checker.check_model(str(path), full_check=True)
    back = read_editable(path, prefix="", name="m")
    assert same(source, back)
    monkeypatch.setattr(writing, "INLINE_BELOW", 1 << 30)
    [single] = write_editable(back, tmp_path / "single.onnx")
    assert same(source, read_editable(single, prefix="", name="m"))


def test_offsets_are_whole_pages(read, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(writing, "INLINE_BELOW", 100_000)
    graph = product()
    graph.graph.initializer.insert(0, numpy_helper.from_array(BIG[:7], "first"))
    graph.graph.output.add(name="first").type.tensor_type.elem_type = 1
    path, data = write_editable(read(graph), tmp_path / "out.onnx")
    tensors = onnx.load(path, load_external_data=False).graph.initializer
    offsets = {t.name: int(e.value) for t in tensors for e in t.external_data if e.key == "offset"}
    assert offsets == {"m/first": 0, "m/w": 20_480}
    assert data.stat().st_size == 20_480 + BIG.nbytes


def test_blocks_and_rearranged_weights(tmp_path: Path, read, monkeypatch):
    monkeypatch.setattr(writing, "_SLICE", 1_000)
    base = read(product()).weights["m/w"].values
    block = ValueBlock(base=base, start=(3, 5), stop=(203, 605))
    turned = Rearranged(base=block, axes=(1, 0), shape=(20, 30, 200))
    model = EditableModel(
        name="v",
        nodes=[],
        weights={
            "b": Weight(name="b", dtype=DType.FLOAT, shape=(200, 600), values=block),
            "t": Weight(name="t", dtype=DType.FLOAT, shape=(20, 30, 200), values=turned),
        },
        inputs=[],
        outputs=[ValueInfo(name=n, dtype=DType.FLOAT, shape=None) for n in "bt"],
        opsets={"": 17},
        ir_version=8,
    )
    [path] = write_editable(model, tmp_path / "v.onnx")
    found = {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}
    assert np.array_equal(found["b"], BIG[3:203, 5:605])
    assert np.array_equal(found["t"], BIG[3:203, 5:605].T.reshape(20, 30, 200))


def test_values_that_do_not_fit(tmp_path: Path):
    weight = replace(make_weight("w", BIG), shape=(300, 701))
    model = EditableModel(
        name="v", nodes=[], weights={"w": weight}, inputs=[], opsets={"": 17}, ir_version=8,
        outputs=[ValueInfo(name="w", dtype=DType.FLOAT, shape=None)],
    )  # fmt: skip
    with pytest.raises(OutputError, match="'w' has 840000 bytes of values; 841200 were expected"):
        write_editable(model, tmp_path / "v.onnx")
    assert not list(tmp_path.iterdir())


@pytest.fixture
def little_room():
    """No file may grow beyond 200,000 bytes, as on a device that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("outside", [False, True])
def test_a_full_device_leaves_what_was_there(read, tmp_path: Path, monkeypatch, little_room, outside: bool):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    model = read(product())
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    if outside:
        monkeypatch.setattr(writing, "INLINE_BELOW", 100_000)
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "out.onnx").write_bytes(b"old")
    with pytest.raises(OutputError, match="cannot be written"):
        write_editable(model, folder / "out.onnx")
    assert [p.name for p in folder.iterdir()] == ["out.onnx"]
    assert (folder / "out.onnx").read_bytes() == b"old"


def test_a_rename_that_fails_restores_the_pair(read, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(writing, "INLINE_BELOW", 100_000)
    model = read(product())
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "out.onnx.data").write_bytes(b"old data")
    (folder / "out.onnx").write_bytes(b"old")
    replace_, count = os.replace, []

    def fails_second(source, target):
        count.append(target)
        if len(count) == 2:
            raise OSError(5, "Input/output error")
        replace_(source, target)

    monkeypatch.setattr(os, "replace", fails_second)
    with pytest.raises(OutputError, match="Input/output error"):
        write_editable(model, folder / "out.onnx")
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == {
        "out.onnx": b"old",
        "out.onnx.data": b"old data",
    }


def test_places_that_cannot_be_written(read, tmp_path: Path):
    model = read(product())
    with pytest.raises(OutputError, match="found a folder"):
        write_editable(model, tmp_path)
    with pytest.raises(OutputError, match="No such file"):
        write_editable(model, tmp_path / "absent" / "out.onnx")
    with pytest.raises(OutputError, match="weights are read from this file"):
        write_editable(model, tmp_path / "m.onnx")
    os.symlink(tmp_path / "m.onnx", tmp_path / "link.onnx")
    with pytest.raises(OutputError, match="weights are read from this file"):
        write_editable(model, tmp_path / "link.onnx")
    assert np.array_equal(model.weights["m/w"].values.array(), BIG)
    with pytest.raises(OutputError, match="weights are read from this file"):
        write_editable(read(product(), "other"), tmp_path / "m.onnx", keep=[model])
    with pytest.raises(OutputError, match="cannot be written"):
        write_editable(model, Path("/dev/full"))


@pytest.mark.parametrize("least", [writing.INLINE_BELOW, 0])
def test_a_file_that_is_written_to_while_it_is_copied(read, tmp_path: Path, monkeypatch, least: int):
    class Late:
        def array(self) -> np.ndarray:
            with open(tmp_path / "m.onnx", "r+b") as stream:
                stream.seek(-8, os.SEEK_END)
                stream.write(bytes(8))
            return BIG

    monkeypatch.setattr(writing, "INLINE_BELOW", least or 100_000)
    model = read(product())
    late = Weight(name="m/z", dtype=DType.FLOAT, shape=BIG.shape, values=Late())
    (tmp_path / "out.onnx").write_bytes(b"old")
    with pytest.raises(ModelError, match="^m.onnx: was changed while it was read$"):
        write_editable(replace(model, weights={**model.weights, "m/z": late}), tmp_path / "out.onnx")
    assert {p.name for p in tmp_path.iterdir()} == {"m.onnx", "out.onnx"}
    assert (tmp_path / "out.onnx").read_bytes() == b"old"


def test_a_written_file_is_an_ordinary_one(read, tmp_path: Path):
    [path] = write_editable(read(product()), tmp_path / "out.onnx")
    umask = os.umask(0)
    os.umask(umask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~umask


def test_without_the_systems_copying(read, tmp_path: Path, monkeypatch):
    monkeypatch.delattr(os, "copy_file_range", raising=False)
    model = read(product())
    [path] = write_editable(model, tmp_path / "out.onnx")
    assert same(model, read_editable(path, prefix="", name="m"))


def test_checking_without_values(read):
    check_editable(read(product()))
