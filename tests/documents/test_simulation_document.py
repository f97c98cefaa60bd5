"""The document of a simulation: written, read back, and refused where something is wrong with it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from _plans import chain, plan, replica, simulated

from gkestimator.core.errors import DocumentError
from gkestimator.core.versions import record_version
from gkestimator.documents.simulation import (
    QUANTILES_PCT,
    SimulationReport,
    read_simulation,
    simulation_json,
)


@pytest.fixture
def report() -> SimulationReport:
    placed = plan(
        [replica("a"), replica("b")], [replica("b", 1)],
        models=[("a", 60.0, 100.0)], applications=[chain(20.0)], expected_rps=90.0,
    )  # fmt: skip
    return simulated(placed, seconds=2.0).report


def test_reading_gives_back_what_was_written(report: SimulationReport, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text(simulation_json(report))
    assert read_simulation(path) == report
    assert json.loads(path.read_text())["schema_version"] == record_version(SimulationReport)


def test_nulls_are_given_back_too(tmp_path: Path) -> None:
    """A plan without GPUs answers nothing: no latency, no batch, no utilisation; and says so by nulls, not by 0."""
    found = simulated(plan(), seconds=2.0).report
    model, totals = found.models[0], found.totals
    assert (model.latency_p50_ms, model.wait_mean_ms, model.batch_mean, model.queue.p99_ms) == (None,) * 4
    assert (totals.cuti_pct, totals.muti_pct, totals.latency_quantiles_ms) == (None, None, None)
    assert model.on_time_pct == 0.0 and model.rejected_rps == model.arrived_rps > 0
    path = tmp_path / "r.json"
    path.write_text(simulation_json(found))
    assert read_simulation(path) == found


def test_the_largest_seed_and_a_long_path_are_read_again(tmp_path: Path) -> None:
    """What the command takes, its report's reader takes too."""
    found = simulated(
        plan([replica("a")]), seconds=1.0, options={"seed": 2**63 - 1}, arrivals_name="tab\t" + "x" * 3000
    )
    path = tmp_path / "r.json"
    path.write_text(simulation_json(found.report))
    assert read_simulation(path) == found.report
    assert found.report.settings.seed == 2**63 - 1


Break = Callable[[dict[str, Any]], Any]
WRONG: dict[str, tuple[Break, str]] = {
    "version": (lambda d: d.update(schema_version=2), "schema_version: found 2, expected 1"),
    "version true": (lambda d: d.update(schema_version=True), "schema_version: found True"),
    "totals": (lambda d: d.pop("totals"), "totals is missing"),
    "negative": (lambda d: d["totals"].update(goodput_rps=-1), "totals: goodput_rps: found -1"),
    "null": (lambda d: d["totals"].update(goodput_rps=None), "totals: goodput_rps: found nothing"),
    "text": (lambda d: d["models"][0].update(batch_mean="4"), "models[0]: batch_mean: found '4'"),
    "half a batch": (lambda d: d["models"][0].update(batches=1.5), "models[0]: batches: found 1.5"),
    "unknown field": (lambda d: d["gpus"][0].update(heat=3), "gpus[0]: 'heat' is not a field of a GPU"),
    "stage": (lambda d: d["models"][1]["queue"].pop("p99_ms"), "models[1]: queue: p99_ms is missing"),
    "quantiles": (lambda d: d["totals"]["latency_quantiles_ms"].pop(), f"expected {len(QUANTILES_PCT)}"),
    "window": (lambda d: d["timeline"][0]["arrived"].append(1), "lists of different lengths"),
    "window of halves": (lambda d: d["timeline"][0].update(arrived=[0.5, 1]), "arrived: found 0.5 in the list"),
    "window true": (lambda d: d["timeline"][0].update(arrived=[True, 1]), "arrived: found True in the list"),
    "timeline": (lambda d: d["timeline"].pop(), "timeline: found other models than in models"),
    "notes": (lambda d: d.update(notes=["a\nb"]), "notes: found something other than lines of text"),
    "models a mapping": (lambda d: d.update(models={}), "models: found a mapping, expected a list"),
    "setting": (lambda d: d["settings"].pop("seed"), "settings: seed is missing"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_named(case: str, report: SimulationReport, tmp_path: Path) -> None:
    change, words = WRONG[case]
    found = json.loads(simulation_json(report))
    change(found)
    path = tmp_path / "r.json"
    path.write_text(json.dumps(found))
    with pytest.raises(DocumentError) as e:
        read_simulation(path)
    assert words in str(e.value) and "r.json" in str(e.value)
