"""The interval of a model from the intervals of its kernels, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from gkestimator.estimation.intervals import widen


def half_width(spans: list[float], widths: list[float], inside: list[bool], **terms: float) -> float:
    """The model's half-width: every kernel's own, times the factor, weighted by time."""
    time, width, known = np.array(spans), np.array(widths), np.array(inside)
    factor = widen(time, np.arange(len(time)), width, known, **terms)
    return float((time / time.sum() * width).sum() * factor)


NOTHING = {"common_share": 0.0, "structure": 0.0, "machine": 0.0}


def test_independent_kernels_add_in_squares_and_unknown_ones_together() -> None:
    assert half_width([1, 1], [0.2, 0.2], [True, True], **NOTHING) == pytest.approx(np.hypot(0.1, 0.1))
    assert half_width([1, 1], [0.2, 0.2], [False, False], **NOTHING) == pytest.approx(0.2)


def test_what_regressors_say_elsewhere_is_partly_common() -> None:
    """Half of the variance is common: sqrt(0.5) of both together, and sqrt(0.5) of each alone in squares."""
    time, width, no = np.ones(2), np.full(2, 0.2), np.zeros(2, dtype=bool)
    learned = widen(time, np.arange(2), width, no, ~no, elsewhere=0.5, structure=0.0)
    assert 0.2 * learned == pytest.approx(np.sqrt(0.5 * 0.2**2 + 0.5 * (0.1**2 + 0.1**2)))
    calculated = widen(time, np.arange(2), width, no, no, elsewhere=0.5, structure=0.0)
    assert calculated == pytest.approx(1.0)


def test_another_machine_counts_where_kernels_were_trained_on_alone() -> None:
    terms = {**NOTHING, "machine": 0.3}
    assert half_width([1, 1], [0.2, 0.2], [True, True], **terms) == pytest.approx(
        np.hypot(np.hypot(0.1, 0.1), 0.3)
    )
    # Half of the time was predicted for a GPU left out, whose intervals hold the machine already.
    assert half_width([1, 1], [0.2, 0.2], [True, False], **terms) == pytest.approx(
        np.sqrt(0.1**2 + 0.1**2 + 0.15**2)
    )
    assert half_width([1, 1], [0.2, 0.2], [False, False], **terms) == pytest.approx(0.2)


def test_a_model_without_gpu_time_keeps_its_kernels_widths() -> None:
    assert widen(np.zeros(2), np.arange(2), np.array([0.1, 0.1]), np.array([True, True])) == 1.0
