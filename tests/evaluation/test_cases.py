"""Cases: what the clock would have shown, what the launch hides, and a round trip through a file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gkestimator.bundles.bundle import Bundle
from gkestimator.core.errors import TableError
from gkestimator.evaluation.cases import KernelCases, predict_cases
from gkestimator.hardware.gpus import GpuSpec
from gkestimator.kernel_models.analytical import analytical_duration_us
from gkestimator.training.rows import TrainingRows


@pytest.fixture(scope="module")
def cases(rows: TrainingRows, gpus: dict[str, GpuSpec]) -> KernelCases:
    return predict_cases(Bundle(name="none", models=()), rows, gpus)


def test_without_regressors_the_analytical_model_answers(
    cases: KernelCases, rows: TrainingRows, gpus: dict[str, GpuSpec]
) -> None:
    assert np.array_equal(cases.estimates["estimator"], cases.estimates["analytical"])
    assert not cases.trained.any() and not cases.in_range.any()
    t4 = np.flatnonzero(rows.gpu == "T4")
    expected = analytical_duration_us(rows.table.take(t4), gpus["T4"])
    assert np.array_equal(cases.estimates["analytical"][t4], expected)


def test_the_roofline_errs_by_the_factor_of_the_law(cases: KernelCases) -> None:
    for gpu, factor in (("T4", 2.0), ("A100-PCIE-40GB", 1.5), ("V100-PCIE-32GB", 1.25)):
        errors = cases.where(gpu=gpu).errors_pct("roofline")
        assert errors == pytest.approx(np.full(len(errors), 100 * (1 - 1 / factor)))


def test_launch_gap_and_hold_are_added_to_every_method(cases: KernelCases) -> None:
    few = cases.take(np.arange(3))
    shifted = replace(
        few, measured_us=np.full(3, 30.0), gap_us=np.full(3, 10.0), hold_us=np.array([5.0, 5.0, 25.0])
    ).with_estimate("known", np.array([20.0, 2.0, 2.0]))
    assert shifted.errors_pct("known").tolist() == pytest.approx([0, 50, 100 / 6])
    time = shifted.gpu_time_us
    assert time[:2].tolist() == [20, 20] and np.isnan(time[2])  # floor 35: the launch hides the third


def test_cases_survive_a_file(cases: KernelCases, tmp_path: Path) -> None:
    cases.write(tmp_path / "cases.npz")
    again = KernelCases.read(tmp_path / "cases.npz")
    assert len(again) == len(cases) and set(again.estimates) == set(cases.estimates)
    assert np.array_equal(again.gpu, cases.gpu)
    assert np.array_equal(again.errors_pct(), cases.errors_pct())


def test_joining_parts_marks_what_one_lacks(cases: KernelCases) -> None:
    first = cases.take(np.arange(2)).with_estimate("only here", np.array([1.0, 2.0]))
    both = KernelCases.concatenate([first, cases.take(np.arange(2, 4))])
    assert (
        both.estimates["only here"][:2].tolist() == [1, 2] and np.isnan(both.estimates["only here"][2:]).all()
    )
    with pytest.raises(TableError, match="3 estimates for 2 cases"):
        first.with_estimate("x", np.ones(3))
    with pytest.raises(TableError):
        KernelCases.concatenate([])
