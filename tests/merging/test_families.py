"""The families are sound: they pass the checker, run, and their relatives differ where they should."""

from __future__ import annotations

from pathlib import Path

import families
import numpy as np
import onnx
import pytest

BUILDERS = (families.resnet_like, families.mobilenet_like, families.bert_like, families.gpt_like)


def run(model: onnx.ModelProto, **dims: int) -> np.ndarray:
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, families.feeds(model, **dims))[0], np.float32)


@pytest.mark.parametrize("build", BUILDERS)
@pytest.mark.parametrize("opset", [13, 17, 18, 21])
@pytest.mark.parametrize("dtype", [families.FLOAT, families.FLOAT16])
def test_every_family_runs(build, opset, dtype) -> None:
    model = build(opset=opset, dtype=dtype)
    onnx.checker.check_model(model, full_check=True)
    found = run(model, batch=3)
    assert found.shape[0] == 3 and np.isfinite(found).all() and found.std() > 0.01


@pytest.mark.parametrize("reshape", ["zero", "static", "shape"])
@pytest.mark.parametrize("decomposed", [False, True])
def test_ways_of_writing_bert_agree(reshape, decomposed) -> None:
    model = families.bert_like(reshape=reshape, decomposed=decomposed, batch=2)
    np.testing.assert_allclose(run(model), run(families.bert_like(), batch=2), rtol=1e-4, atol=1e-5)


def test_bfloat16_weights_are_rounded(tmp_path: Path) -> None:
    exact = families.resnet_like()
    rounded = families.resnet_like(dtype=families.BFLOAT16)
    for a, b in zip(exact.graph.initializer, rounded.graph.initializer, strict=True):
        np.testing.assert_allclose(families.values(a), families.values(b), rtol=2**-8)


@pytest.mark.parametrize("build", BUILDERS)
def test_a_sibling_differs_in_its_last_layers_alone(build) -> None:
    model = build()
    other = families.sibling(model, last=2)
    again = {name for layer in families.weighted_layers(model)[-2:] for name in layer}
    assert again and len(again) >= 2
    for a, b in zip(model.graph.initializer, other.graph.initializer, strict=True):
        assert (a.SerializeToString() != b.SerializeToString()) == (a.name in again), a.name
    assert families.sibling(model, last=0).SerializeToString() == model.SerializeToString()


@pytest.mark.parametrize("build", BUILDERS)
def test_a_shifted_model_holds_a_block_of_each_weight(build) -> None:
    model = build()
    other = {t.name: families.values(t) for t in families.shifted(model, share=0.5).graph.initializer}
    for layer in families.weighted_layers(model):
        old = next(families.values(t) for t in model.graph.initializer if t.name == layer[0])
        common = np.intersect1d(old, other[layer[0]]).size
        assert 0.45 * old.size <= common < old.size or old.shape[1] <= 3


def test_nudged_weights_stay_within_the_bound() -> None:
    model = families.bert_like()
    other = families.nudged(model, by=1e-3)
    apart = [
        np.abs(families.values(a).astype(np.float64) - families.values(b)).max()
        for a, b in zip(model.graph.initializer, other.graph.initializer, strict=True)
        if a.data_type == families.FLOAT and a.dims
    ]
    assert max(apart) <= 1.001e-3 and max(apart) > 5e-4


def test_external_data_is_written_beside_the_model(tmp_path: Path) -> None:
    model = families.resnet_like()
    path = families.saved(model, tmp_path / "m.onnx", external=True)
    assert (tmp_path / "m.onnx.data").stat().st_size > 50_000 > path.stat().st_size
    np.testing.assert_array_equal(run(onnx.load(path)), run(model))
