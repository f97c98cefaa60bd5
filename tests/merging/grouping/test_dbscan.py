"""Groups against scikit-learn's DBSCAN with at least one sample."""

from __future__ import annotations

import numpy as np
import pytest

from gkestimator.merging.grouping import EditDistance
from gkestimator.merging.grouping.edit_distance import linked


@pytest.mark.parametrize("seed", range(4))
def test_groups_are_scikit_learns(seed: int) -> None:
    cluster = pytest.importorskip("sklearn.cluster")
    rng = np.random.default_rng(seed)
    several = 0
    for _ in range(50):
        points = rng.integers(0, 12, (int(rng.integers(1, 30)), 2)).astype(float)
        # whole numbers: ties at epsilon are common
        apart = np.abs(points[:, None] - points[None]).sum(axis=2)
        epsilon = float(rng.integers(1, 5))
        between = {
            (i, j): EditDistance(lower=0, upper=int(2 * apart[i, j]), sizes=(1, 1))
            for j in range(len(points))
            for i in range(j)
        }
        groups = linked(between, len(points), epsilon)
        scan = cluster.DBSCAN(eps=epsilon, min_samples=1, metric="precomputed").fit(apart)
        labels = {point: label for label, group in enumerate(groups) for point in group}
        assert [labels[point] for point in range(len(points))] == scan.labels_.tolist()
        several += len(groups) > 1
    assert several > 10
