"""DBSCAN against scikit-learn's."""

from __future__ import annotations

import numpy as np
import pytest

from gkestimator.merging.grouping.families import ALONE, dbscan


@pytest.mark.parametrize("least", [1, 2, 3, 5])
def test_labels_are_scikit_learns(least: int) -> None:
    cluster = pytest.importorskip("sklearn.cluster")
    rng = np.random.default_rng(least)
    seen: set[int] = set()
    for _ in range(100):
        points = rng.integers(0, 12, (int(rng.integers(1, 30)), 2)).astype(float)
        distances = np.abs(points[:, None] - points[None]).sum(
            axis=2
        )  # whole numbers: ties at epsilon are common
        epsilon = float(rng.integers(1, 5))
        found = dbscan(distances, epsilon=epsilon, least=least)
        scan = cluster.DBSCAN(eps=epsilon, min_samples=least, metric="precomputed").fit(distances)
        assert found.tolist() == scan.labels_.tolist()
        seen |= set(found.tolist())
    assert len(seen) > 3
    assert (ALONE in seen) == (least > 1)


def test_no_points_and_epsilon_0() -> None:
    assert dbscan(np.zeros((0, 0)), epsilon=1.0, least=1).tolist() == []
    apart = np.array([[0.0, 0.0, 1.0], [0.0, 0.0, 1.0], [1.0, 1.0, 0.0]])
    assert dbscan(apart, epsilon=0.0, least=1).tolist() == [0, 0, 1]
    assert dbscan(apart, epsilon=0.0, least=2).tolist() == [0, 0, ALONE]
