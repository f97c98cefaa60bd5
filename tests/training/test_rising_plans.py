"""Regressors bound to rise along a feature, and what a plan may ask of which members."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gkestimator.core.errors import TableError
from gkestimator.hardware.gpus import gpu_catalogue
from gkestimator.training.fit import fit_stack, problem
from gkestimator.training.importers.deepbench_rnn import recurrence_table
from gkestimator.training.members import fit_member, predicted
from gkestimator.training.plan import PLANS, RISING_MEMBERS
from gkestimator.training.rows import TrainingRows

PLAN = PLANS["rnn"]
V100 = gpu_catalogue().spec("V100-SXM2-16GB")


@pytest.mark.slow  # both libraries take seconds to import
@pytest.mark.parametrize("member", RISING_MEMBERS)
def test_a_member_that_is_bound_never_falls(member: str) -> None:
    pytest.importorskip(member)
    rng = np.random.default_rng(0)
    x = np.repeat(np.linspace(0, 1, 60), 4)[:, None].astype(np.float32)
    y = np.where(x[:, 0] < 0.5, x[:, 0], x[:, 0] - 0.4) + rng.normal(0, 0.02, len(x))  # falls at a half
    for bound in (True, False):
        rising = np.array([True]) if bound else None
        fitted = fit_member(member, x, y, np.ones(len(x)), seed=0, estimators=30, rising=rising)
        steps = np.diff(predicted(fitted, x[::4]))
        assert bool(steps.min() >= -1e-6) is bound


def test_a_feature_that_is_not_there_is_one_line() -> None:
    table = recurrence_table(
        np.array(["LSTM"] * 2, dtype=object),
        np.array(["fp32"] * 2, dtype=object),
        hidden=np.array([512.0, 1024.0]),
        batch=np.array([1.0, 2.0]),
        steps=np.array([25.0, 25.0]),
        size=np.full(2, 4.0),
    )
    gpu = np.array([V100.name] * 2, dtype=object)
    rows = TrainingRows.make(table, gpu=gpu, measured_us=np.array([1e3, 2e3]), source="s")
    plan = replace(PLAN, rising=("log_rows", "log_height"))
    with pytest.raises(TableError, match="rnn: feature 'log_height' is to rise; expected one of log_rows"):
        fit_stack(plan, problem(plan, rows, {V100.name: V100}), seed=0)


def test_only_members_that_keep_it_may_promise_to_rise() -> None:
    assert set(PLAN.members) <= set(RISING_MEMBERS)
    with pytest.raises(ValueError, match="only xgboost, lightgbm"):
        replace(PLAN, members=("lasso", "xgboost"))
    with pytest.raises(ValueError, match="squared errors alone"):
        replace(PLAN, loss="absolute")
