"""What an experiment leaves out: nothing of it stays in training."""

from __future__ import annotations

import numpy as np
import pytest

from gkestimator.core.errors import UsageError
from gkestimator.evaluation.splits import (
    chip_of,
    chips,
    hold_out_chip,
    hold_out_shapes,
    hold_out_source,
    thin,
)
from gkestimator.hardware.gpus import GpuSpec
from gkestimator.training.rows import TrainingRows


def test_a_shape_left_out_is_left_out_on_every_gpu(rows: TrainingRows) -> None:
    made = hold_out_shapes(rows)
    assert len(np.intersect1d(made.train, made.test)) == 0
    assert len(made.train) + len(made.test) == len(rows)
    size = rows.table.columns["flops"]
    assert not set(size[made.train]) & set(size[made.test])
    assert 0.08 < len(made.test) / len(rows) < 0.22
    assert set(rows.gpu[made.test]) == set(rows.gpu)


def test_boards_of_one_chip_go_together(rows: TrainingRows, gpus: dict[str, GpuSpec]) -> None:
    boards = frozenset({"V100-SXM2-16GB", "V100-PCIE-32GB"})
    assert chip_of("V100-PCIE-32GB", gpus) == boards
    assert chips(rows, gpus) == (frozenset({"A100-PCIE-40GB"}), frozenset({"T4"}), boards)
    made = hold_out_chip(rows, boards)
    assert set(rows.gpu[made.test]) == boards
    assert set(rows.gpu[made.train]) == {"T4", "A100-PCIE-40GB"}


def test_a_source_is_left_out_whole(rows: TrainingRows) -> None:
    made = hold_out_source(rows, "b")
    assert set(rows.source[made.test]) == {"b"} and "b" not in set(rows.source[made.train])
    with pytest.raises(UsageError, match=r"'c'; expected one of a, b"):
        hold_out_source(rows, "c")
    with pytest.raises(UsageError, match="no row was measured on L4"):
        hold_out_chip(rows, frozenset({"L4"}))


def test_thinning_keeps_every_group_and_is_repeatable(rows: TrainingRows) -> None:
    index = np.arange(len(rows))
    kept = thin(rows, index, most=20, seed=5)
    names, counts = np.unique(rows.gpu[kept].astype(str), return_counts=True)
    assert set(counts) == {20} and len(names) == 4
    assert np.array_equal(kept, thin(rows, index, most=20, seed=5))
    assert np.array_equal(thin(rows, index, most=10_000), index)
