"""The law that a log was made with comes back, also under noise; what does not pay is left out."""

from __future__ import annotations

import numpy as np
import pytest

from gkestimator.core.errors import UsageError
from gkestimator.simulation.measured.law import Beyond, fit_law, host_waits

MODELS = ("large", "small", "wide")
BYTES = np.array([6e5, 4e3, 1.2e6])


def made(rows: int, *, host_ms: float, per_request_ms: float, noise_ms: float, seed: int = 1) -> Beyond:
    """What requests took by a known law: 0.6 ms and 0.8 GB/s a transfer."""
    rng = np.random.default_rng(seed)
    came = np.cumsum(rng.exponential(5.0, rows))
    model = rng.integers(0, 3, rows)
    sent_requests = 1.0 + rng.integers(1, 9, rows)
    took = 2 * 0.6 + 1e3 * BYTES[model] / 8e8 + per_request_ms * sent_requests + host_waits(came, host_ms)
    # Now and then something else holds a request up for long: that must not pull.
    took += noise_ms * (rng.exponential(1.0, rows) + 50 * (rng.random(rows) < 0.02))
    return Beyond(
        beyond_ms=took,
        sent_bytes=BYTES[model],
        sent_requests=sent_requests,
        model=model,
        models=MODELS,
        came_ms=came,
        at=np.arange(rows),
    )


def test_the_host_does_one_request_at_a_time() -> None:
    came = np.array([0.0, 0.5, 10.0, 10.0, 10.0])
    assert host_waits(came, 2.0).tolist() == [2.0, 3.5, 2.0, 4.0, 6.0]
    assert host_waits(came, 0.0).tolist() == [0.0] * 5


def test_the_law_comes_back() -> None:
    fit = fit_law(made(6000, host_ms=1.5, per_request_ms=0.05, noise_ms=0.05), "log.csv")
    network = fit.network
    assert network.bytes_per_s == pytest.approx(8e8, rel=0.05)
    assert network.per_request_ms == pytest.approx(0.05, abs=0.01)
    assert network.host_ms == pytest.approx(1.5, rel=0.05)
    assert network.base_ms == pytest.approx(0.6, abs=0.08)
    assert fit.rows == 6000 and fit.mean_ms < 0.2 * fit.constant_ms < fit.nothing_ms
    assert tuple(row[0] for row in fit.by_model) == MODELS and sum(row[1] for row in fit.by_model) == 6000
    assert "6,000 requests of log.csv" in network.source


def test_terms_that_are_not_there_are_not_found() -> None:
    network = fit_law(made(4000, host_ms=0.0, per_request_ms=0.0, noise_ms=0.05), "log.csv").network
    assert network.host_ms == 0.0
    assert network.bytes_per_s == pytest.approx(8e8, rel=0.05)
    assert network.per_request_ms < 0.005


def test_without_bytes_no_time_per_byte() -> None:
    known = made(1000, host_ms=0.0, per_request_ms=0.0, noise_ms=0.01)
    values = {
        name: getattr(known, name)
        for name in ("beyond_ms", "sent_requests", "model", "models", "came_ms", "at")
    }
    network = fit_law(Beyond(sent_bytes=np.full(1000, np.nan), **values), "log.csv").network
    assert network.bytes_per_s is None and network.base_ms > 0.5


def test_too_few_are_refused() -> None:
    with pytest.raises(UsageError, match=r"log\.csv: found 5 requests .* expected at least 20"):
        fit_law(made(5, host_ms=0.0, per_request_ms=0.0, noise_ms=0.0), "log.csv")
