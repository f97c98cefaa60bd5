"""Inputs and outputs of a file as it declares them, without reading its operators or weights."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper

from gkestimator.core.dtypes import DType
from gkestimator.core.errors import ModelError
from gkestimator.onnx_io.reading.signature import Signature, TensorSpec, read_signature


def write(path: Path, text: str) -> Path:
    onnx.save(onnx.parser.parse_model('<ir_version: 10, opset_import: ["": 21]>\n' + text), path)
    return path


def test_shapes_are_numbers_names_or_nothing(tmp_path: Path) -> None:
    path = write(
        tmp_path / "m.onnx",
        "g (float[N,3,?] x, int64[N] n) => (float[M,3] y, float z) { y = A(x) z = B(n) }",
    )
    assert read_signature(path) == Signature(
        inputs=(
            TensorSpec(name="x", dtype=DType.FLOAT, shape=("N", 3, "x.2")),
            TensorSpec(name="n", dtype=DType.INT64, shape=("N",)),
        ),
        outputs=(
            TensorSpec(name="y", dtype=DType.FLOAT, shape=("M", 3)),
            TensorSpec(name="z", dtype=DType.FLOAT, shape=()),
        ),
        batch_dims=("N",),
        fixed_batch=None,
    )


def test_operators_that_nobody_knows_do_not_matter(tmp_path: Path) -> None:
    """A and B above, of no schema; here a node that reads what nothing defines."""
    path = write(tmp_path / "m.onnx", "g (float[4,3] x) => (float[4,3] y) { y = A(x, nowhere) }")
    assert read_signature(path).fixed_batch == 4


def test_weights_are_no_inputs(tmp_path: Path) -> None:
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in ("x", "w")],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
        [helper.make_tensor("w", TensorProto.FLOAT, [2], [1.0, 2.0])],
    )
    onnx.save(helper.make_model(graph), tmp_path / "m.onnx")
    assert [i.name for i in read_signature(tmp_path / "m.onnx").inputs] == ["x"]


def test_an_output_without_a_shape_is_known_by_name_alone(tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", "g (float[N] x) => (float[] y) { y = A(x) }")
    model = onnx.load(path)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    onnx.save(model, path)
    assert read_signature(path).outputs == (TensorSpec(name="y", dtype=DType.FLOAT, shape=None),)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("g (seq(float[N]) x) => (float[N] y) { y = A(x) }", "input 'x' is not a tensor"),
        ("g (float[N] x) => (optional(float[N]) y) { y = A(x) }", "output 'y' is not a tensor"),
    ],
)
def test_what_is_no_tensor_is_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ModelError, match=rf"^m\.onnx: {said}"):
        read_signature(write(tmp_path / "m.onnx", text))


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    (tmp_path / "empty.onnx").write_bytes(b"")
    (tmp_path / "checkpoint.pt").write_bytes(b"PK\x03\x04" + bytes(100))
    for name, said in (
        ("empty.onnx", "empty file"),
        ("none.onnx", "cannot be opened"),
        ("checkpoint.pt", "as torch.save writes"),
        (".", "not a regular"),
    ):
        with pytest.raises(ModelError, match=said):
            read_signature(tmp_path / name)
