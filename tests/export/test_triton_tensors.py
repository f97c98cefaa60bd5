"""Inputs and outputs of Triton's configuration, from ONNX files: what it batches, and what it is told of shapes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
import pytest
import serving
from onnx import TensorProto, helper
from serving import deployment, instance

from gkestimator.core.errors import GkestimatorError
from gkestimator.exporting.triton import TritonExporter

pb = pytest.importorskip("tritonclient.grpc.model_config_pb2", reason="needs tritonclient[grpc] (extra test)")
text_format = pytest.importorskip("google.protobuf.text_format")


def exported(path: Path, **fields: Any) -> tuple[Any, str]:
    """The configuration of the file at ``path`` as Triton reads it, and its text."""
    found = deployment([instance("m", **fields)], models={"m": str(path)})
    text = TritonExporter().files(found)[0].text
    return text_format.Parse(text, pb.ModelConfig()), text


def identity(path: Path, shape: Sequence[Any], *, kind: int = TensorProto.FLOAT, out: Any = "same") -> Path:
    """A model that hands its input through; ``out``: the shape declared of its output (None: none)."""
    outputs = [helper.make_tensor_value_info("y", kind, shape if out == "same" else out)]
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", kind, shape)],
        outputs,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def dims(tensors: Any) -> list[tuple[str, str, list[int]]]:
    return [(t.name, pb.DataType.Name(t.data_type), list(t.dims)) for t in tensors]


def test_the_batch_is_left_to_triton(tmp_path: Path) -> None:
    config, _ = exported(serving.network(tmp_path / "m.onnx", sides=None))
    assert config.max_batch_size == 8
    assert dims(config.input) == [("image", "TYPE_FP32", [3, -1, -1])]
    assert dims(config.output) == [("scores", "TYPE_FP32", [5])]
    assert list(config.dynamic_batching.preferred_batch_size) == [8]


def test_dimensions_are_those_of_the_estimate(tmp_path: Path) -> None:
    config, _ = exported(serving.network(tmp_path / "m.onnx", sides=None), dims="H=224,other=3")
    assert dims(config.input) == [("image", "TYPE_FP32", [3, 224, -1])]


@pytest.mark.parametrize("dims_", ["H=²", "H=1e3", "H=-5", "H=0", "H=", "H", "=7", ",,", "H=" + "9" * 400])
def test_dimensions_that_say_no_size_are_left_open(tmp_path: Path, dims_: str) -> None:
    config, _ = exported(serving.network(tmp_path / "m.onnx", sides=None), dims=dims_)
    assert dims(config.input) == [("image", "TYPE_FP32", [3, -1, -1])]


def test_a_file_of_one_batch_size_is_not_batched(tmp_path: Path) -> None:
    path = serving.network(tmp_path / "m.onnx", batch=4)
    config, text = exported(path, batch_size=4)
    assert config.max_batch_size == 0 and not config.HasField("dynamic_batching")
    assert dims(config.input) == [("image", "TYPE_FP32", [4, 3, 8, 8])]
    assert "has no open batch dimension: it runs at batch 4 as it is" in text
    with pytest.raises(GkestimatorError, match="runs at batch 4 alone, batch 8 is asked for"):
        exported(path, batch_size=8)


def test_one_number_a_sample_is_reshaped(tmp_path: Path) -> None:
    """Triton allows no empty dims."""
    config, _ = exported(identity(tmp_path / "m.onnx", ["N"], kind=TensorProto.INT64))
    (only,) = config.input
    assert dims(config.input) == [("x", "TYPE_INT64", [1])]
    assert only.HasField("reshape") and list(only.reshape.shape) == []


@pytest.mark.parametrize(
    ("shape", "out"),
    [(["seq", "batch", 4], "same"), (["batch", 4], [1, 4]), (["batch", "seq"], ["seq", "batch"])],
)
def test_a_batch_elsewhere_cannot_be_formed_by_triton(tmp_path: Path, shape: list[Any], out: Any) -> None:
    path = identity(tmp_path / "m.onnx", shape, out=out)
    with pytest.raises(
        GkestimatorError, match="not begin with the batch, so Triton cannot form batches of 8"
    ):
        exported(path)
    config, _ = exported(path, batch_size=1)  # one sample at a time it runs as it is
    assert config.max_batch_size == 0
    assert list(config.input[0].dims) == [{"batch": 1, "seq": -1}.get(d, d) for d in shape]


def test_what_the_file_does_not_declare_is_left_to_triton(tmp_path: Path) -> None:
    config, text = exported(identity(tmp_path / "m.onnx", ["N", 3], out=None))
    assert dims(config.input) == [("x", "TYPE_FP32", [3])] and not config.output
    assert "what is left out, Triton completes" in text


@pytest.mark.parametrize("kind", [TensorProto.COMPLEX64, TensorProto.FLOAT8E4M3FN])
def test_an_element_type_that_triton_does_not_have_is_refused(tmp_path: Path, kind: int) -> None:
    with pytest.raises(GkestimatorError, match="input 'x' is of .*, which Triton does not have"):
        exported(identity(tmp_path / "m.onnx", ["N", 3], kind=kind))


@pytest.mark.parametrize(
    "kind",
    [
        *("BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64"),
        *("FLOAT16", "FLOAT", "DOUBLE", "STRING", "BFLOAT16"),
    ],
)
def test_every_type_of_triton(tmp_path: Path, kind: str) -> None:
    config, _ = exported(identity(tmp_path / "m.onnx", ["N", 3], kind=getattr(TensorProto, kind)))
    names = {"FLOAT16": "FP16", "FLOAT": "FP32", "DOUBLE": "FP64", "BFLOAT16": "BF16"}
    assert dims(config.input) == [("x", f"TYPE_{names.get(kind, kind)}", [3])]


def test_a_file_that_is_no_model_is_named(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"\x00not a model")
    with pytest.raises(GkestimatorError, match=r"^m\.onnx: not an ONNX"):
        exported(path)


def test_outputs_without_the_batch_are_left_out(tmp_path: Path) -> None:
    config, text = exported(serving.two_outputs(tmp_path / "m.onnx"))
    assert config.max_batch_size == 8
    assert dims(config.output) == [("y", "TYPE_FP32", [6])]
    assert "are left out: state." in text


@pytest.mark.shared
@pytest.mark.skipif("GKEST_SHARED" not in os.environ, reason="needs the public graphs of GKEST_SHARED")
def test_public_models_are_described_as_onnx_reads_them() -> None:
    """Names and shapes of every public graph against what onnx reads of it."""
    files = sorted(Path(os.environ["GKEST_SHARED"], "models").glob("*/*.onnx"))
    assert len(files) > 20
    checked = 0
    for path in files:
        declared = onnx.load(path, load_external_data=False).graph
        weights = {i.name for i in declared.initializer}
        inputs = [i for i in declared.input if i.name not in weights]
        first = inputs[0].type.tensor_type.shape.dim[0]
        size = first.dim_value or 4
        config, _ = exported(path, batch_size=size)
        batched = not first.dim_value
        assert config.max_batch_size == (size if batched else 0), path
        outputs = [
            o for o in declared.output if bool(o.type.tensor_type.shape.dim[0].dim_value) is not batched
        ]
        assert outputs, path
        for ours, theirs in ((config.input, inputs), (config.output, outputs)):
            assert [t.name for t in ours] == [t.name for t in theirs], path
            for mine, other in zip(ours, theirs, strict=True):
                shape = [d.dim_value or -1 for d in other.type.tensor_type.shape.dim][batched:]
                assert list(mine.dims) == (shape or [1]), (path, mine.name)
                checked += 1
    assert checked > 50
