"""Which regressors an experiment trains: those that the rows it is tested on would ask."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gkestimator.evaluation.splits import hold_out_chip, hold_out_shapes
from gkestimator.hardware.gpus import GpuSpec
from gkestimator.training.rows import TrainingRows


@pytest.fixture
def space(rows: TrainingRows, gpus: dict[str, GpuSpec]) -> Any:
    return SimpleNamespace(rows=rows, gpus=gpus)


def scopes(space: Any, train: np.ndarray, test: np.ndarray, *, unseen: bool) -> list[tuple[str, str]]:
    from benchmarks.accuracy.workspace import plans_for

    return [(p.trains[0][0], p.scope) for p in plans_for(space, train, test, unseen=unseen)]


def test_shapes_held_out_ask_the_regressor_of_gpus_seen(space: Any) -> None:
    made = hold_out_shapes(space.rows)
    assert scopes(space, made.train, made.test, unseen=False) == [("elementwise", "seen")]


def test_a_chip_left_out_asks_the_regressor_of_gpus_not_seen(space: Any) -> None:
    made = hold_out_chip(space.rows, frozenset({"T4"}))
    assert scopes(space, made.train, made.test, unseen=True) == [("elementwise", "unseen")]


def test_where_too_few_chips_remain_the_other_regressor_is_trained(space: Any) -> None:
    made = hold_out_chip(space.rows, frozenset({"T4"}))
    one = made.train[space.rows.gpu[made.train] == "A100-PCIE-40GB"]
    assert ("elementwise", "seen") in scopes(space, one, made.test, unseen=True)
