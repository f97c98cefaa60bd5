"""How uncertain a prediction is called: never more than what measured rows showed."""

from __future__ import annotations

import numpy as np
import pytest

from gkestimator.core.errors import BundleError
from gkestimator.core.stored import StoredArrays
from gkestimator.kernel_models.regressors import Forest, Uncertainty


def runaway(largest: float | None) -> Uncertainty:
    """One tree that says exp(2) below 0 and exp(-3) above, as a sum of trees may where no row was."""
    forest = Forest(
        feature=np.zeros((1, 1), dtype=np.int16),
        threshold=np.zeros((1, 1), dtype=np.float32),
        leaf=np.array([[2.0, -3.0]], dtype=np.float32),
        starts=np.array([0]),
        base=np.array([0.0]),
    )
    if largest is None:
        return Uncertainty(forest=forest)
    return Uncertainty(forest=forest, largest=largest)


COLUMNS = np.array([[-1.0, 0, 0, 0], [1.0, 0, 0, 0]], dtype=np.float32)


def test_the_scale_stops_at_the_largest_that_was_seen() -> None:
    assert runaway(None).scale(COLUMNS) == pytest.approx([5.0, np.exp(-3)])
    assert runaway(0.25).scale(COLUMNS) == pytest.approx([0.25, np.exp(-3)])


def test_the_bound_travels_with_the_arrays_and_older_bundles_have_none() -> None:
    arrays = runaway(0.25).arrays()
    again = Uncertainty.from_arrays(StoredArrays(arrays, "here"), features=1)
    assert again.scale(COLUMNS) == pytest.approx([0.25, np.exp(-3)])
    del arrays["uncertainty.largest"]
    assert Uncertainty.from_arrays(StoredArrays(arrays, "here"), features=1).largest == 5.0


@pytest.mark.parametrize("value", [np.array([9.0]), np.array([np.nan]), np.array([0.1, 0.2]), np.array([9])])
def test_a_strange_bound_is_refused_in_one_line(value: np.ndarray) -> None:
    arrays = {**runaway(0.25).arrays(), "uncertainty.largest": value}
    with pytest.raises(BundleError, match=r"here, array 'uncertainty.largest'"):
        Uncertainty.from_arrays(StoredArrays(arrays, "here"), features=1)
