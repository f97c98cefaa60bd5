"""The law that is chosen beats a constant where there is something to learn, and is the constant where there is not."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from _other_laws import LAWS, SEEDS, other_pairs
from _pairs import pairs, written

from gkestimator.interference.fitting import Fit, fit_interference
from gkestimator.interference.none import NoInterference
from gkestimator.interference.pairs import MeasuredSlowdown, read_pairs
from gkestimator.interference.regression import choose_fitted, constant_of, fitted_guess
from gkestimator.tables import CoRun

pytest.importorskip("scipy")


def measured(tmp_path: Path, runs: list[CoRun]) -> tuple[MeasuredSlowdown, ...]:
    return read_pairs(written(tmp_path / "pairs.csv", runs))


def errors(fit: Fit) -> dict[str, tuple[float, float]]:
    return {e.law: (e.median_pct, e.p90_pct) for e in fit.errors}


@pytest.mark.parametrize("name", LAWS)
def test_it_is_below_the_constant_on_laws_that_are_not_ours(tmp_path: Path, name: str) -> None:
    fit = fit_interference(measured(tmp_path, other_pairs(name, seed=SEEDS[0])))
    found = errors(fit)
    assert found["fitted"][0] < 0.5 * found["constant"][0]
    assert found["fitted"][1] < 0.5 * found["constant"][1]
    assert not any("no better than the constant" in note and "; fitted" in note for note in fit.notes)


def unlearnable(models: int, seed: int) -> list[CoRun]:
    """Slowdowns about 1.4 that no column tells anything of."""
    draw = random.Random(seed)
    runs = []
    for run in pairs(NoInterference(), models=models, seed=seed):
        runs.append(replace(run, latency_together_ms=run.latency_alone_ms * draw.uniform(1.2, 1.6)))
    return runs


@pytest.mark.parametrize("models", [3, 4, 9])
def test_where_nothing_can_be_learned_the_law_is_the_constant(tmp_path: Path, models: int) -> None:
    for seed in range(3):
        found = measured(tmp_path, unlearnable(models, seed))
        chosen = choose_fitted(found)
        mean = float(np.mean([m.slowdown for m in found]))
        assert constant_of(found) == mean
        # A form that fits chance now and then passes the bar; it stays near the constant.
        assert fitted_guess(chosen, found) == pytest.approx(np.full(len(found), mean), rel=0.1)


def test_it_is_said_which_laws_do_not_beat_the_constant(tmp_path: Path) -> None:
    fit = fit_interference(measured(tmp_path, unlearnable(6, 0)))
    (note,) = (n for n in fit.notes if n.startswith("no better than the constant"))
    for law in ("gpulet, derived", "contention, derived", "contention, fitted"):
        assert law in note
    assert f"a constant of {fit.constant:.3g} (the mean slowdown of the pairs)" in " ".join(fit.notes)


def test_the_constant_is_judged_on_models_left_out_too(tmp_path: Path) -> None:
    """One model slows all its neighbours threefold: a mean without it does not know."""
    runs = []
    for run in pairs(NoInterference(), models=4, shares=(100.0,)):
        factor = 3.0 if "m0" in run.group else 1.0
        runs.append(replace(run, latency_together_ms=run.latency_alone_ms * factor))
    found = measured(tmp_path, runs)
    fit = fit_interference(found)
    wrong = []
    for left_out in ("m0", "m1", "m2", "m3"):
        rest = np.mean([m.slowdown for m in found if left_out not in m.models])
        wrong += [abs(rest / m.slowdown - 1) for m in found if left_out in m.models]
    assert errors(fit)["constant"] == pytest.approx(tuple(100 * np.quantile(wrong, (0.5, 0.9))))


def test_the_chosen_form_is_what_the_engine_computes(tmp_path: Path) -> None:
    found = measured(tmp_path, other_pairs("cache-miss", seed=SEEDS[1]))
    chosen = choose_fitted(found)
    assert chosen.form != "constant"
    guessed = fitted_guess(chosen, found)
    off = np.abs(guessed / np.array([m.slowdown for m in found]) - 1)
    assert np.median(off) < 0.04
    assert np.all(guessed >= 1)
