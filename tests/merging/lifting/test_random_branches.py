"""Random graphs of two branches: lifted against original in ONNX Runtime, at two pairs of batch sizes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnxruntime")
import branches
from random_branches import random_graph


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "fixed"),
    [(0, None), (20, None), (40, None), (60, (1, 1)), (80, (3, 3)), (100, (4, 4)), (120, (3, 1))],
)
def test_random_graphs_give_what_they_gave(first: int, fixed: tuple[int, int] | None, tmp_path: Path) -> None:
    """Also where the batches are numbers that equal each other, or other sizes of the graph."""
    fewer = 0
    for seed in range(first, first + 20):
        model, feeds = random_graph(seed, fixed)
        lifted = branches.lifted(model, feeds, tmp_path)
        fewer += len(lifted.model.nodes) < len(model.graph.node)
        for feed in feeds:
            wanted = branches.originals(model, feed)
            for name, value in branches.results(lifted.model, feed, tmp_path).items():
                scale = max(float(np.abs(wanted[name]).max()), 1.0)
                assert value.shape == wanted[name].shape, (seed, name)
                np.testing.assert_allclose(
                    value, wanted[name], rtol=1e-4, atol=1e-5 * scale, err_msg=f"{seed} {name}"
                )
    assert fewer >= 10  # the graphs are not such that nothing could be lifted
