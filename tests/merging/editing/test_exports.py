"""What exporters and runtimes write (tests/data): the same outputs and the same price once read and written."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import gkestimator
from gkestimator.core.errors import ModelError
from gkestimator.merging.editing import align_opsets, check_editable, read_editable, tidy, write_editable

DATA = Path(__file__).parents[2] / "data"
# Decoders of tests/data/exported_decoders have no weights to run with.
FILES = [path for path in sorted(DATA.rglob("*.onnx")) if path.parent.name != "exported_decoders"]
NAMES = [p.relative_to(DATA).with_suffix("").as_posix() for p in FILES]
PREFIX = "team/a#2/"
SIZES = {"N": 2, "tokens": 7}


def drawn(session: Any) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(9)
    feeds = {}
    for given in session.get_inputs():
        shape = [d if isinstance(d, int) else SIZES.get(d, 3) for d in given.shape]
        kind = given.type.removeprefix("tensor(").removesuffix(")")
        if kind in ("int64", "int32"):
            feeds[given.name] = rng.integers(0, 2, shape).astype(kind)
        elif kind == "bool":
            feeds[given.name] = rng.integers(0, 2, shape).astype(bool)
        else:
            feeds[given.name] = rng.standard_normal(shape).astype(
                {"float": "f4", "float16": "f2", "double": "f8"}[kind]
            )
    return feeds


def sessions(*paths: Path) -> list[Any]:
    ort = pytest.importorskip("onnxruntime")
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return [ort.InferenceSession(str(p), options, providers=["CPUExecutionProvider"]) for p in paths]


def test_there_are_files() -> None:
    assert len(FILES) >= 54


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_outputs_stay(path: Path, tmp_path: Path) -> None:
    model = tidy(read_editable(path, prefix=PREFIX, name="a"))
    [written] = write_editable(model, tmp_path / "out.onnx")
    before, after = sessions(path, written)
    feeds = drawn(before)
    expected = before.run(None, feeds)
    found = after.run(None, {PREFIX + k: v for k, v in feeds.items()})
    assert [o.name for o in after.get_outputs()] == [PREFIX + o.name for o in before.get_outputs()]
    assert len(expected) > 0
    for a, b in zip(expected, found, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_outputs_stay_at_a_newer_opset(path: Path, tmp_path: Path, read: Any) -> None:
    newest = max(19, *(o.version for o in onnx.load(path).opset_import if not o.domain))
    other = read(
        f'<ir_version: 10, opset_import: ["": {newest}]> g (float[4] x) => (float[4] y) {{ y = Relu (x) }}'
    )
    model, _ = align_opsets([read_editable(path, prefix=PREFIX, name="a"), other])
    assert model.opsets[""] == newest
    check_editable(model)
    [written] = write_editable(tidy(model), tmp_path / "out.onnx")
    before, after = sessions(path, written)
    feeds = drawn(before)
    found = after.run(None, {PREFIX + k: v for k, v in feeds.items()})
    for a, b in zip(before.run(None, feeds), found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


SHARED = Path(os.environ.get("GKEST_SHARED", "absent")) / "models"
shared = pytest.mark.skipif(not SHARED.is_dir(), reason="GKEST_SHARED does not name a folder with models")


@pytest.mark.shared
@shared
def test_graphs_without_weights_say_so() -> None:
    graphs = [path for folder in ("ethz", "llm", "timm") for path in sorted(SHARED.glob(f"{folder}/*.onnx"))]
    assert len(graphs) == 28
    for path in graphs:
        with pytest.raises(ModelError, match=f"^{path.name}: .*missing; merging needs the weights"):
            read_editable(path, prefix="a/", name="a")


@pytest.mark.shared
@shared
@pytest.mark.parametrize("name", ["timm/mobilenetv2_100", "timm/efficientnet_b0"])
def test_real_graphs_with_random_weights(name: str, tmp_path: Path) -> None:
    proto = onnx.load(SHARED / f"{name}.onnx", load_external_data=False)
    rng = np.random.default_rng(1)
    for tensor in proto.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            values = 0.02 * rng.standard_normal(list(tensor.dims), dtype=np.float32)
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.abs(values) + 0.01, tensor.name))
    source = tmp_path / "in.onnx"
    source.write_bytes(proto.SerializeToString())
    model = tidy(read_editable(source, prefix=PREFIX, name="a"))
    check_editable(model)
    [written] = write_editable(model, tmp_path / "out.onnx")
    before, after = sessions(source, written)
    feeds = drawn(before)
    found = after.run(None, {PREFIX + k: v for k, v in feeds.items()})
    for a, b in zip(before.run(None, feeds), found, strict=True):
        assert np.isfinite(a).all()
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("runtime", ["onnxruntime", "torch"])
def test_a_prefix_does_not_change_the_price(tmp_path: Path, runtime: str) -> None:
    """Lowering reads exporters' names: of folded normalisations, of the modules around a node."""
    names = ("conv_norm_relu.script", "conv_norm_relu.dynamo", "attention_causal.script", "layer_norm.script")
    for name in names:
        path = DATA / "pattern_exports" / f"{name}.onnx"
        [written] = write_editable(read_editable(path, prefix=PREFIX, name="a"), tmp_path / f"{name}.onnx")
        before, after = (
            gkestimator.estimate(str(p), gpus=["V100"], runtime=runtime).astype(str) for p in (path, written)
        )
        assert before.equals(after), name
