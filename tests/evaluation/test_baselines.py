"""Baselines on a law that each can or cannot express."""

from __future__ import annotations

import numpy as np
import pytest

from gkestimator.core.errors import UsageError
from gkestimator.evaluation.baselines import fit_constants, fit_free_stack
from gkestimator.evaluation.metrics import absolute_errors_pct
from gkestimator.evaluation.splits import hold_out_chip, hold_out_shapes
from gkestimator.hardware.gpus import GpuSpec
from gkestimator.training.rows import TrainingRows

for library in ("sklearn", "scipy", "xgboost", "lightgbm"):
    pytest.importorskip(library)


def mean_error(estimated: np.ndarray, rows: TrainingRows) -> float:
    return float(absolute_errors_pct(estimated, rows.measured_us).mean())


def test_constants_find_the_factor_of_every_gpu(rows: TrainingRows, gpus: dict[str, GpuSpec]) -> None:
    made = hold_out_shapes(rows)
    constants = fit_constants(rows.take(made.train), gpus)
    assert constants.seen["elementwise", "fp32", "T4"] == pytest.approx(2.0)
    assert constants.seen["elementwise", "fp32", "V100-PCIE-32GB"] == pytest.approx(1.25)
    left = rows.take(made.test)
    assert mean_error(constants.predict_us(left.table, left.gpu, gpus), left) < 1e-6


def test_an_unseen_gpu_gets_the_constant_of_all(rows: TrainingRows, gpus: dict[str, GpuSpec]) -> None:
    made = hold_out_chip(rows, frozenset({"T4"}))
    constants = fit_constants(rows.take(made.train), gpus)
    assert ("elementwise", "fp32", "T4") not in constants.seen
    # 1.25 on two of three GPUs: the best single constant, and on the T4 it errs by 1 - 1.25 / 2
    left = rows.take(made.test)
    assert mean_error(constants.predict_us(left.table, left.gpu, gpus), left) == pytest.approx(37.5)
    alien = rows.take(made.test[:1])
    alien.table.family[:] = "conv"
    assert np.isnan(constants.predict_us(alien.table, alien.gpu, gpus)).all()


@pytest.mark.slow
def test_log_ratio_transfers_between_sizes_and_milliseconds_do_not(
    rows: TrainingRows, gpus: dict[str, GpuSpec]
) -> None:
    size = rows.table.columns["flops"]
    small, large = rows.take(np.flatnonzero(size < 3e7)), rows.take(np.flatnonzero(size >= 3e7))
    errors = {
        target: mean_error(
            fit_free_stack(
                small, gpus, features="elementwise", target=target, members=("xgboost",)
            ).predict_us(large.table, large.gpu, gpus),
            large,
        )
        for target in ("ms", "log-ratio")
    }
    assert errors["log-ratio"] < 5 < 30 < errors["ms"]


def test_literal_features_have_no_column_for_a_new_gpu(rows: TrainingRows, gpus: dict[str, GpuSpec]) -> None:
    made = hold_out_chip(rows, frozenset({"T4"}))
    stack = fit_free_stack(rows.take(made.train), gpus, members=("lasso", "xgboost"))
    assert "T4" not in stack.gpu_names
    left = rows.take(made.test)
    time = stack.predict_us(left.table, left.gpu, gpus)
    assert np.isfinite(time).all() and (time >= 1).all()
    # the T4 has about a third of the V100's bandwidth, and nothing in its literal features says so
    assert np.median(time / left.measured_us) < 0.6


def test_too_few_rows_and_unknown_targets_are_refused(rows: TrainingRows, gpus: dict[str, GpuSpec]) -> None:
    with pytest.raises(UsageError, match="expected at least 100"):
        fit_free_stack(rows.take(np.arange(20)), gpus)
    with pytest.raises(UsageError, match="'seconds'"):
        fit_free_stack(rows, gpus, target="seconds")
