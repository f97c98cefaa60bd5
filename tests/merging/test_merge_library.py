"""``gkestimator.merge`` given what it should not be given: a GkestimatorError of one line, whatever the type."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import families
import numpy as np
import onnx
import pytest

import gkestimator
from gkestimator.core.errors import UsageError
from gkestimator.merging.similarity import search


@pytest.fixture
def pair(tmp_path: Path) -> list[Path]:
    one = families.resnet_like()
    families.saved(one, tmp_path / "a.onnx")
    families.saved(families.sibling(one, last=1), tmp_path / "b.onnx")
    return [tmp_path / "a.onnx", tmp_path / "b.onnx"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"batch_sizes": 3.5}, "batch_sizes: found 3.5, expected whole numbers from 1"),
        ({"batch_sizes": True}, "batch_sizes: found True"),
        ({"bundles": 5}, "bundles: found 5, expected paths"),
        ({"bundles": None}, "bundles: found None"),
        ({"gpu_specs": [3]}, "gpu_specs: found 3"),
        ({"output": 5}, "output: found 5, expected a path"),
        ({"dims": ["batch"]}, "dims: found ['batch']"),
        ({"dims": {3: 4}}, "dims: found {3: 4}"),
        ({"gpu": None}, "gpu: found None, expected a name"),
        ({"runtime": 3}, "runtime: found 3, expected one of"),
        ({"always": "no"}, "always: found 'no', expected True or False"),
        ({"omga": 0.4}, "found the option 'omga', expected one of models, output, gpu"),
    ],
)
def test_options(pair: list[Path], options: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError) as caught:
        gkestimator.merge(pair, **options)
    assert text in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("models", "text"),
    [
        (None, "models: found None, expected paths"),
        ("a.onnx", "found 1 model"),
        ([b"a.onnx", "b.onnx"], "models: found b'a.onnx'"),
        ([], "found 0 models"),
    ],
)
def test_models(models: Any, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        gkestimator.merge(models)


def test_paths_may_come_one_by_one(pair: list[Path]) -> None:
    assert gkestimator.merge(path for path in pair).report.pairs == 9


@pytest.mark.slow
def test_what_no_output_needs_is_neither_priced_nor_merged(pair: list[Path]) -> None:
    plain = gkestimator.merge(pair).report
    for path in pair:
        model = onnx.load(path)
        weight = onnx.numpy_helper.from_array(np.ones((32, 64), np.float32), "unused.weight")
        model.graph.initializer.append(weight)
        model.graph.node.append(
            onnx.helper.make_node("MatMul", ["flatten_output_0", "unused.weight"], ["unused"], name="unused")
        )
        onnx.save(model, path)
    found = gkestimator.merge(pair, always=True, tau_ms=float("inf")).report
    assert not any("unused" in name for one in found.merged for name in one.operators)
    assert (found.before.kernels, found.before.flops) == (plain.before.kernels, plain.before.flops)


@pytest.mark.slow
def test_weights_that_were_not_searched_wholly_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Channels set to zero in both, at other places: with almost no work allowed the search gives up."""
    base = families.bert_like(width=96, layers=1)
    paths = []
    for name, seed, zeros in (("a", 1, slice(0, 50)), ("b", 2, slice(40, None))):
        model = families.sibling(base, last=99, seed=seed)
        for tensor in model.graph.initializer:
            if list(tensor.dims) == [96, 96]:
                values = onnx.numpy_helper.to_array(tensor).copy()
                values[zeros] = 0
                tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
        paths.append(families.saved(model, tmp_path / f"{name}.onnx"))
    monkeypatch.setattr(search, "_MOST", 10)
    monkeypatch.setattr(search, "_MANY", 5)
    told = gkestimator.merge(paths, omega=0.1).report.words()
    assert any("Not every place was compared in" in line for line in told), told
    monkeypatch.undo()
    told = gkestimator.merge(paths, omega=0.1).report.words()
    assert not any("Not every place was compared in" in line for line in told), told
