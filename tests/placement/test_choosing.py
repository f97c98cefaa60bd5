"""Choosing a GPU for one model: what holds, what it costs, and how sure that is."""

from __future__ import annotations

import pytest

from gkestimator.core.errors import UsageError
from gkestimator.hardware.gpus import gpu_catalogue
from gkestimator.placement.choosing import choose
from gkestimator.tables import Requirement

CATALOGUE = gpu_catalogue()
L4, V100 = (CATALOGUE.spec(name) for name in ("L4", "V100-SXM2-16GB"))


def row(gpu: str, batch: int, latency_ms: float, high_ms: float | None, model: str = "m") -> Requirement:
    """A row that fits, keeps half of the GPU busy, and is as fast as said."""
    return Requirement(
        model=model, gpu=gpu, runtime="onnxruntime", dtype="fp32", batch_size=batch, latency_ms=latency_ms,
        latency_low_ms=latency_ms / 2, latency_high_ms=high_ms, throughput_rps=batch / latency_ms * 1e3,
        sm_util_mean_pct=50.0, sm_util_busy_mean_pct=50.0, mreq_bytes=2**30, mreq_pct=5.0, coverage_pct=80.0,
        source="trained:x", occupancy_source="analytical", memory_source="analytical",
    )  # fmt: skip


def test_the_cheapest_that_holds_comes_first() -> None:
    rows = [row("L4", 1, 4.0, 5.0), row(V100.name, 1, 2.0, 2.5)]
    first, second = choose(rows, [V100, L4], rate_rps=100, slo_ms=50)
    assert L4.price_per_hour_usd is not None and V100.price_per_hour_usd is not None
    assert L4.price_per_hour_usd < V100.price_per_hour_usd
    assert (first.gpu, first.gpus, first.careful_gpus, first.cost_per_hour) == (
        "L4", 1, 1, pytest.approx(L4.price_per_hour_usd),
    )  # fmt: skip
    assert second.gpu == V100.name
    assert first.slowest_ms == pytest.approx(4.0, abs=2.0)
    assert first.margin_pct == pytest.approx(100 * (1 - first.slowest_ms / 50))


def test_more_load_needs_more_gpus_and_costs_more() -> None:
    rows = [row("L4", 1, 4.0, 4.4)]
    (little,) = choose(rows, [L4], rate_rps=50, slo_ms=50)
    (much,) = choose(rows, [L4], rate_rps=2_000, slo_ms=50)
    assert little.gpus == 1
    # A copy serves 250 a second at most, and keeps half of a GPU busy: two share one.
    assert much.gpus is not None and much.gpus >= 4
    assert much.cost_per_hour == pytest.approx(much.gpus * (L4.price_per_hour_usd or 0))


def test_what_rests_on_the_estimate_being_right_is_said() -> None:
    """10 ms as estimated, 60 ms at the slow end, 30 ms to answer: it holds, but not for sure."""
    (choice,) = choose([row("L4", 1, 10.0, 60.0)], [L4], rate_rps=20, slo_ms=30)
    assert choice.gpus == 1
    assert choice.careful_gpus is None
    assert choice.careful_cost_per_hour is None
    assert "slow end of the interval" in choice.reason
    (unknown,) = choose([row("L4", 1, 10.0, None)], [L4], rate_rps=20, slo_ms=30)
    assert unknown.careful_gpus is None


def test_what_cannot_hold_says_why_and_comes_last() -> None:
    rows = [row("L4", 1, 100.0, 120.0), row(V100.name, 1, 2.0, 2.5)]
    choices = choose(rows, [L4, V100], rate_rps=10, slo_ms=20, reasons={"B300": "B300: bandwidth unknown"})
    assert [choice.gpu for choice in choices] == [V100.name, "L4", "B300"]
    assert choices[1].gpus is None and choices[1].reason
    assert choices[2].reason == "B300: bandwidth unknown"


def test_one_model_is_asked_for() -> None:
    with pytest.raises(UsageError, match="rows of 2 models, expected one"):
        choose([row("L4", 1, 1, 1), row("L4", 1, 1, 1, model="n")], [L4], rate_rps=1, slo_ms=1)
