"""From a spec and rows to a run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gkestimator.core.errors import UsageError
from gkestimator.hardware.gpus import gpu_catalogue
from gkestimator.simulation.lengths.report import lengths_words, render_lengths
from gkestimator.simulation.lengths.requests import Lengths
from gkestimator.simulation.lengths.running import simulate_lengths, simulate_lengths_files
from gkestimator.simulation.lengths.spec import DrawnArrivals, LengthsSpec, read_lengths_spec
from gkestimator.tables import REQUIREMENTS, read_table

EXAMPLES = Path(__file__).parents[3] / "examples" / "lengths"
TABLE = EXAMPLES / "bert-base.csv"


def short(name: str = "bert-base", **fields: object) -> LengthsSpec:
    spec = read_lengths_spec(EXAMPLES / f"{name}.yaml")
    return replace(spec, duration_ms=20e3, **fields)  # type: ignore[arg-type]


def test_cost_is_the_price_of_the_gpus_held() -> None:
    rows = [replace(r, gpu="T4") for r in read_table(TABLE, REQUIREMENTS)]
    run = simulate_lengths(short(gpu="T4"), rows)
    price = gpu_catalogue().spec("T4").price_per_hour_usd
    assert price is not None and run.price_per_hour == price
    (arlo, *_) = json.loads(render_lengths(run, "json"))["schemes"]
    assert arlo["cost_per_hour"] == pytest.approx(10 * price)
    assert "USD/h" in render_lengths(run, "table").decode()


def test_all_schemes_see_the_same_requests_and_padding_has_one_runtime() -> None:
    run = simulate_lengths_files(short(), [TABLE])
    assert len({s.requests for s in run.served.values()}) == 1
    assert len({s.tokens for s in run.served.values()}) == 1
    assert len(run.served["padding"].served) == 1 and len(run.served["arlo"].served) == 8
    assert run.served["padding"].padded_tokens == 512 * run.served["padding"].requests
    (word,) = lengths_words(run)
    best = min(run.served, key=lambda s: run.served[s].quantile_ms(0.98) or 0.0)
    assert f": {best}, " in word


def test_dynamic_shapes_pad_nothing_and_take_longer() -> None:
    """At next to no load a response is the request's own time: between two lengths in a line, times the slowdown."""
    spec = short(schemes=("dynamic", "padding", "infaas"), dynamic_slowdown=2.0)
    assert isinstance(spec.arrivals, DrawnArrivals)
    one = Lengths.listed([96], [1.0])
    spec = replace(spec, arrivals=replace(spec.arrivals, kind="constant", rate_rps=1.0, lengths=one))
    served = simulate_lengths_files(spec, [TABLE]).served
    dynamic = served["dynamic"]
    own = [r.latency_ms or 0.0 for r in read_table(TABLE, REQUIREMENTS)]
    assert dynamic.sum_ms / dynamic.requests == pytest.approx(2 * (own[0] + own[1]) / 2)
    assert dynamic.padded_tokens == dynamic.tokens == 96 * dynamic.requests
    assert served["padding"].sum_ms / dynamic.requests == pytest.approx(own[-1])
    # INFaaS' least loaded of the variants that suit: all idle, so the shortest.
    assert served["infaas"].sum_ms / dynamic.requests == pytest.approx(own[1])


def test_dynamic_shapes_that_keep_no_objective_are_refused() -> None:
    with pytest.raises(
        UsageError, match=r"dynamic shapes: the longest request takes 675.1 ms, above the SLO of 150 ms"
    ):
        simulate_lengths_files(short(schemes=("dynamic",), dynamic_slowdown=100.0), [TABLE])


def test_a_start_is_even_expected_or_given() -> None:
    def first(**fields: object) -> tuple[int, ...]:
        return simulate_lengths_files(short(**fields), [TABLE]).served["arlo"].windows[0].counts

    assert first(start="even") == (1, 1, 1, 1, 1, 1, 2, 2)
    assert first(start="expected") == (9, 0, 0, 0, 0, 0, 0, 1)
    assert first(start=(3, 3, 3, 0, 0, 0, 0, 1)) == (3, 3, 3, 0, 0, 0, 0, 1)


def test_nothing_counted_is_said_and_null() -> None:
    spec = short()
    quiet = replace(spec, arrivals=replace(spec.arrivals, rate_rps=1e-6))  # type: ignore[type-var]
    run = simulate_lengths_files(quiet, [TABLE])
    (arlo, *_) = json.loads(render_lengths(run, "json"))["schemes"]
    assert arlo["latency_p98_ms"] is None and arlo["on_time_pct"] is None and arlo["padding"] is None
    assert lengths_words(run) == ["No request was counted."]
    assert "–" in render_lengths(run, "table").decode()
