"""Random models merged wherever they can be give what they gave, at several batches, other in each model."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import onnx
import pytest
from random_siblings import BATCH, sibling_of

import gkestimator

pytest.importorskip("scipy")
ort = pytest.importorskip("onnxruntime")


def _session(path: Path):
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def _run(session, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    names = [o.name for o in session.get_outputs()]
    taken = {i.name for i in session.get_inputs()}
    return dict(zip(names, session.run(names, {n: f for n, f in feeds.items() if n in taken}), strict=True))


def _merged_and_same(seed: int, folder: Path) -> bool:
    """Whether anything was merged in family ``seed``; that all outputs are the originals' is asserted."""
    draw = random.Random(seed)
    batches = [draw.choice(["batch", "N", 1, 2]) for _ in range(draw.choice([2, 2, 3]))]
    paths, sizes = [folder / f"{place}.onnx" for place in range(len(batches))], []
    for place, (path, batch) in enumerate(zip(paths, batches, strict=True)):
        model, inputs = sibling_of(seed, place, batch)
        onnx.save(model, path)
        sizes.append(inputs)
    merged = folder / "merged.onnx"
    found = gkestimator.merge(paths, merged, always=True, tau_ms=float("inf"), group_distance=1.0)
    session = _session(merged)
    for numbers in ((1, 3, 2), (2, 1, 1)):
        feeds, wanted = {}, {}
        for place, path in enumerate(paths):
            count = batches[place] if isinstance(batches[place], int) else numbers[place]
            values = np.random.default_rng([seed, count, place])
            mine = {
                name: values.standard_normal([count if s == BATCH else s for s in dims], np.float32)
                for name, dims in sizes[place].items()
            }
            feeds |= {f"{place}/{name}": value for name, value in mine.items()}
            wanted |= {f"{place}/{name}": value for name, value in _run(_session(path), mine).items()}
        got = _run(session, feeds)
        assert got.keys() == wanted.keys()
        for name, value in wanted.items():
            scale = max(1.0, float(np.abs(value).max(initial=0)))
            assert got[name].shape == value.shape, (seed, name)
            np.testing.assert_allclose(
                got[name], value, rtol=1e-3, atol=1e-4 * scale, err_msg=f"{seed} {name}"
            )
    return any(m.merged for m in found.report.merged)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 30, 10))
def test_random_models_give_what_they_gave(first: int, tmp_path: Path) -> None:
    assert sum(_merged_and_same(seed, tmp_path) for seed in range(first, first + 10)) >= 7
