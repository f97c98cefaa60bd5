"""Every public graph binds at every batch size with all shapes known."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

from gkestimator.core.graph import Tensor
from gkestimator.onnx_io import read_model

SHARED = os.environ.get("GKEST_SHARED")
GRAPHS = sorted(Path(SHARED, "models").glob("*/*.onnx")) if SHARED else []
pytestmark = [
    pytest.mark.shared,
    pytest.mark.skipif(not GRAPHS, reason="GKEST_SHARED names no folder with models/*/*.onnx"),
]


@pytest.mark.parametrize("path", GRAPHS, ids=[f"{p.parent.name}-{p.stem}" for p in GRAPHS])
def test_every_tensor_has_a_shape(path: Path):
    model = read_model(path)
    assert model.batch_dim == "N"
    elements = {}
    for batch in (1, 8, 64):
        graph = model.bind(batch_size=batch)
        assert graph.batch_size == batch
        assert graph.warnings == ()
        names = [o.name for o in graph.operators]
        assert len(set(names)) == len(names)
        written = {t.storage for t in graph.inputs if isinstance(t, Tensor)} | set(graph.weights)
        total = 0
        for operator in graph.operators:
            for value in operator.inputs:
                if isinstance(value, Tensor) and value.value is None:
                    assert value.storage in written, (
                        f"{operator.name} reads {value.name} before it is written"
                    )
            for value in operator.outputs:
                if value is None:
                    continue
                for tensor in (value,) if isinstance(value, Tensor) else value.elements_:
                    assert not tensor.bounded
                    written.add(tensor.storage)
                    total += math.prod(tensor.shape)
        elements[batch] = total
        assert batch in graph.outputs[0].shape
    assert elements[8] > 4 * elements[1]
    # equal up to small constants that operators read only where a value has grown too large to be evaluated
    small, large = (sum(model.bind(batch_size=b).weights.values()) for b in (8, 64))
    assert small == pytest.approx(large, rel=1e-4)


def test_weights_of_resnet50():
    path = next(p for p in GRAPHS if p.parent.name == "ethz" and p.stem == "resnet50")
    graph = read_model(path).bind(batch_size=1)
    # 25,557,032 parameters of torchvision's resnet50 less 53,120 of BatchNorm, folded into 26,560 biases
    assert sum(graph.weights.values()) == 4 * (25_557_032 - 53_120 + 26_560)


def test_bindings_with_equal_operators_share_their_structure():
    path = next(p for p in GRAPHS if p.stem == "bert")
    model = read_model(path)
    assert model.bind(batch_size=1).structure == model.bind(batch_size=2).structure
    assert model.bind(batch_size=1).structure != read_model(path).bind(batch_size=1).structure
