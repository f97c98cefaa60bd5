"""The collector's thresholds are raised inside the block and come back, whatever happens."""

from __future__ import annotations

import gc

import pytest

from gkestimator.estimation.collection import rare_collection


@pytest.fixture
def thresholds():
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


def test_thresholds_come_back_after_nested_blocks_and_errors(thresholds: None) -> None:
    gc.set_threshold(701, 11, 12)
    with pytest.raises(ValueError, match="inside"), rare_collection():
        assert gc.get_threshold() == (50_000, 11, 12)
        with rare_collection():
            pass
        assert gc.get_threshold() == (50_000, 11, 12)
        raise ValueError("inside")
    assert gc.get_threshold() == (701, 11, 12)


@pytest.mark.parametrize("own", [(0, 10, 10), (90_000, 5, 5)])
def test_a_process_that_collects_less_is_left_alone(thresholds: None, own: tuple[int, int, int]) -> None:
    gc.set_threshold(*own)
    with rare_collection():
        assert gc.get_threshold() == own
    assert gc.get_threshold() == own
