"""Fits to pairs of a known law find it again; what is no better than the law without a fit is not kept."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from _pairs import pairs, written

from gkestimator.core.errors import UsageError
from gkestimator.core.extras import install_extra
from gkestimator.documents.interference import ContentionWeights, GpuletWeights
from gkestimator.interference.contention import Contention
from gkestimator.interference.fitting import _contention_columns, fit_contention, fit_interference
from gkestimator.interference.gpulet import Gpulet
from gkestimator.interference.gpulet_law import DERIVED, GpuletCoefficients
from gkestimator.interference.laws import CONTENTION, slowdown
from gkestimator.interference.none import NoInterference
from gkestimator.interference.pairs import MeasuredSlowdown, read_pairs
from gkestimator.tables import CoRun

pytest.importorskip("scipy")
WEIGHTS = ContentionWeights(
    sm_overlap=0.3, sm_excess=0.8, dram_overlap=0.5, dram_excess=1.2, l2_overlap=0.2, l2_excess=0.6
)


def measured(tmp_path: Path, runs: list[CoRun]) -> tuple[MeasuredSlowdown, ...]:
    return read_pairs(written(tmp_path / "pairs.csv", runs))


def values(weights: object) -> list[float]:
    return [getattr(weights, f.name) for f in fields(weights) if f.name != "fitted"]  # type: ignore[arg-type]


def test_weights_of_contention_are_found_again(tmp_path: Path) -> None:
    found = fit_interference(measured(tmp_path, pairs(Contention(WEIGHTS))))
    assert found.contention is not None
    assert values(found.contention) == pytest.approx(values(WEIGHTS), rel=1e-9)
    errors = {e.law: e for e in found.errors}
    assert errors["contention, fitted"].p90_pct == pytest.approx(0, abs=1e-6)
    assert errors["contention, derived"].p90_pct > 5
    assert errors["none"].p90_pct > errors["contention, derived"].p90_pct


def test_noise_costs_what_it_is_and_not_the_law(tmp_path: Path) -> None:
    found = fit_interference(measured(tmp_path, pairs(Contention(WEIGHTS), noise=0.03, models=12)))
    assert found.contention is not None
    error = next(e for e in found.errors if e.law == "contention, fitted")
    # Of a lognormal factor with deviation 0.03 the median is 0.6745 x 3 %, the 90th percentile 1.645 x 3 %.
    assert error.median_pct == pytest.approx(2.02, rel=0.25)
    assert error.p90_pct == pytest.approx(4.93, rel=0.25)


def test_gpulets_coefficients_are_found_again(tmp_path: Path) -> None:
    # Above 1 for every pair: the paper's regression does not know of the bound at 1.
    truth = GpuletCoefficients(constant=1.05, l2_own=0.1, l2_other=0.4, dram_own=0.05, dram_other=0.6)
    found = fit_interference(measured(tmp_path, pairs(Gpulet(truth))))
    assert found.gpulet.fitted
    assert values(found.gpulet) == pytest.approx(values(truth), rel=1e-9)


@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_where_the_law_holds_no_fit_is_kept(tmp_path: Path, noise: float) -> None:
    found = fit_interference(measured(tmp_path, pairs(Contention(), noise=noise)))
    assert found.contention is None
    assert any(n.startswith("contention, derived is kept") for n in found.notes)


def test_gpulets_derived_coefficients_stay_where_a_fit_is_no_better(tmp_path: Path) -> None:
    found = fit_interference(measured(tmp_path, pairs(Gpulet(), noise=0.05)))
    assert found.gpulet == GpuletWeights(
        fitted=False, **{f.name: getattr(DERIVED, f.name) for f in fields(DERIVED)}
    )


def test_what_no_pair_shows_stays_proportional(tmp_path: Path) -> None:
    # Confined to shares of the SMs, models take none from each other: nothing can be learned of SMs.
    confined = measured(tmp_path, pairs(Contention(WEIGHTS), shares=(50.0,)))
    found = fit_contention(confined)
    assert (found.sm_overlap, found.sm_excess) == (0.0, 1.0)
    assert found.dram_overlap == pytest.approx(WEIGHTS.dram_overlap)
    assert any("nothing" in n or "sm_overlap, sm_excess" in n for n in fit_interference(confined).notes)


def test_errors_are_those_of_models_left_out(tmp_path: Path) -> None:
    # One model slows the others threefold, whatever the columns say: no fit without it can know.
    runs = []
    for run in pairs(NoInterference(), models=6):
        slow = run.group.startswith("m0+m") and run.model != "m0"
        factor = 3.0 if slow else 1.0
        runs.append(_times(run, factor))
    found = fit_interference(measured(tmp_path, runs))
    none, fitted = (next(e for e in found.errors if e.law == law) for law in ("none", "contention, fitted"))
    assert none.median_pct == 0 and none.p90_pct == pytest.approx(100 * (1 - 1 / 3))
    assert fitted.p90_pct > 50


def test_it_is_said_where_no_interference_would_do_better(tmp_path: Path) -> None:
    # A fit to noise where nothing slows.
    found = fit_interference(measured(tmp_path, pairs(NoInterference(), models=5, noise=0.15)))
    assert any(n.startswith("no interference at all is off by") for n in found.notes)
    assert not any(
        n.startswith("no interference at all")
        for n in fit_interference(measured(tmp_path, pairs(Contention(WEIGHTS)))).notes
    )


def _times(run: CoRun, factor: float) -> CoRun:
    return replace(run, latency_together_ms=run.latency_alone_ms * factor)


def test_no_interference_gives_weights_of_none(tmp_path: Path) -> None:
    found = fit_contention(measured(tmp_path, pairs(NoInterference())))
    assert values(found) == pytest.approx([0.0] * 6)


def test_the_order_of_the_rows_does_not_matter(tmp_path: Path) -> None:
    runs = pairs(Contention(WEIGHTS), noise=0.02)
    one = fit_interference(measured(tmp_path, runs))
    groups = sorted({r.group for r in runs}, reverse=True)
    other = fit_interference(measured(tmp_path, [r for g in groups for r in runs if r.group == g]))
    assert one.contention is not None and other.contention is not None
    assert values(one.contention) == pytest.approx(values(other.contention), rel=1e-9)


def test_coefficients_are_never_negative(tmp_path: Path) -> None:
    for seed in range(5):
        found = measured(tmp_path, pairs(NoInterference(), models=4, noise=0.1, seed=seed))
        assert min(values(fit_contention(found))) >= 0


def test_too_few_models(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"found 2 models .*\(m0, m1\), expected at least 3"):
        fit_interference(measured(tmp_path, pairs(Contention(), models=2)))
    runs = {r.model: replace(r, group="all") for r in pairs(Contention(), models=3, shares=(100.0,))}
    triple = list(runs.values())
    with pytest.raises(UsageError, match="every model is in every measured group"):
        fit_interference(measured(tmp_path, triple))


def test_without_scipy_it_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = measured(tmp_path, pairs(Contention(), models=3))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=re.escape(f"needs scipy: {install_extra('train')}")):
        fit_interference(found)


def test_the_ranges_are_those_of_the_measurements(tmp_path: Path) -> None:
    found = measured(tmp_path, pairs(Contention()))
    ranges = {r.name: (r.least, r.most) for r in fit_interference(found).ranges}
    assert ranges["slowdown"] == (min(m.slowdown for m in found), max(m.slowdown for m in found))
    dram = np.array([m.others[1] for m in found])
    assert ranges["dram_others"] == (dram.min(), dram.max())


def test_without_bandwidth_the_sms_alone_are_fitted(tmp_path: Path) -> None:
    """The law slows by SMs alone, and nothing is known of DRAM and L2."""
    weights = replace(WEIGHTS, dram_overlap=0.0, dram_excess=0.0, l2_overlap=0.0, l2_excess=0.0)
    runs = [replace(r, dram_util_mean_pct=None, l2_util_mean_pct=None) for r in pairs(Contention(weights))]
    found = fit_interference(measured(tmp_path, runs))
    assert found.contention is not None and not found.gpulet.fitted
    assert (found.contention.sm_overlap, found.contention.sm_excess) == pytest.approx((0.3, 0.8), rel=1e-9)
    # What no measurement says anything of keeps the weights of the law without.
    assert (found.contention.dram_overlap, found.contention.dram_excess) == (1.0, 0.0)
    laws = {"none", "constant", "contention, derived", "contention, fitted", "fitted"}
    assert {e.law for e in found.errors} == laws
    assert found.notes[0].startswith(
        "180 of 180 slowdowns are of models of which DRAM or L2 demand is not known"
    )
    assert {r.name for r in found.ranges} == {"slowdown", "sm_own", "sm_others"}


def test_the_columns_are_what_the_law_multiplies(tmp_path: Path) -> None:
    """Also where a demand of one is not known, and others ask for more than all there is."""
    runs = [
        replace(r, dram_util_mean_pct=None if r.model == "m0" else 110.0)
        for r in pairs(Contention(WEIGHTS), models=3)
    ]
    found = measured(tmp_path, runs)
    assert {m.known for m in found} == {True, False}
    terms = np.zeros(8)
    terms[:7] = [1.0, *values(WEIGHTS)]
    for m, columns in zip(found, _contention_columns(found), strict=True):
        law = slowdown(CONTENTION, np.array(m.own), np.array(m.others), 1, terms)
        assert 1 + float(columns @ np.array(values(WEIGHTS))) == pytest.approx(law, rel=1e-12), m.models
