"""Fit what a request takes beyond its queue and its batch's run: the network, and the host's CPU.

The law is that of :class:`gkestimator.simulation.network.Network`: a constant and a time per byte for each transfer, a
time for each request that is sent together, and CPU time of the host, which does one request at a time. The fit takes
the least mean absolute residual, so that a few requests that something else held up do not pull, and coefficients are
at least 0. A term that does not make the residuals smaller is left out.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np

from gkestimator.core.errors import UsageError, one_line
from gkestimator.core.records import Names, frozen
from gkestimator.simulation.arrays import Floats, Ints
from gkestimator.simulation.network import Network, work_done

# More rows tell no more of four numbers; every candidate of the host's time is a fit of its own.
_MOST_ROWS = 4_000
_LEAST_ROWS = 20
_STEPS = 30
_HOST_CANDIDATES = 24
_FINER = 1.3
# A larger law must make the mean residual smaller by so much.
_TERM_PAYS = 0.02
_HOST_PAYS = 0.02
# The host is never taken to be busier than this in the mean: its queue would have no end.
_BUSIEST = 0.95
_BYTE_SCALE = 1e6  # coefficients of like size: ms per MB


@frozen
class Beyond:
    """Hold what requests took beyond queue and service, in arrays of one length, and what they sent.

    ``sent_bytes`` there and back together (nan: the table does not say); ``sent_requests``: of both transfers.
    ``model``: index into ``models``. ``came_ms``: arrivals of all requests of the log, ``at`` which of them these are.
    """

    beyond_ms: Floats
    sent_bytes: Floats
    sent_requests: Floats
    model: Ints
    models: Names
    came_ms: Floats
    at: Ints


@frozen
class LawFit:
    """Hold the fitted law, from how many ``rows``, and how far it is off.

    Mean, median and 90th percentile of the absolute residual in ms; ``nothing_ms`` the mean without any law (what the
    requests took), ``constant_ms`` with a constant alone. ``by_model``: rows, median beyond and median signed residual.
    """

    network: Network
    rows: int
    mean_ms: float
    median_ms: float
    p90_ms: float
    nothing_ms: float
    constant_ms: float
    by_model: tuple[tuple[str, int, float, float], ...]


def fit_law(beyond: Beyond, name: str) -> LawFit:
    """Return the law that fits the requests of the log ``name``. Raises UsageError where they are too few."""
    rows = len(beyond.beyond_ms)
    if rows < _LEAST_ROWS:
        raise UsageError(
            f"{name}: found {rows} requests of which the log says what they took beyond queue and service, expected at "
            f"least {_LEAST_ROWS}"
        )
    chosen = np.unique(np.linspace(0, rows - 1, min(rows, _MOST_ROWS)).astype(np.int64))
    terms, columns = _columns(beyond)

    def without_host(host_ms: float) -> tuple[Floats, float]:
        waits = host_waits(beyond.came_ms, host_ms)[beyond.at]
        return _fitted(columns[chosen], (beyond.beyond_ms - waits)[chosen])

    best_host = 0.0
    best, least = without_host(best_host)
    candidates = _candidates(beyond.came_ms)
    likely = min(candidates, key=lambda host_ms: without_host(host_ms)[1], default=0.0)
    bound = least * (1 - _HOST_PAYS)
    near = np.linspace(likely / _FINER, likely * _FINER, _HOST_CANDIDATES).tolist()
    for host_ms in near:
        fit, mean = without_host(host_ms)
        if mean < bound:
            best, bound, best_host = fit, mean, host_ms
    coefficients = dict(zip(terms, best.tolist(), strict=True))
    residuals = beyond.beyond_ms - columns @ best - host_waits(beyond.came_ms, best_host)[beyond.at]
    off = np.abs(residuals)
    per_byte = coefficients.get("bytes", 0.0) / _BYTE_SCALE
    words = (
        f"fitted by gkest evaluate to {rows:,} requests of {name}: residuals {off.mean():.3g} ms in the mean, "
        f"{np.quantile(off, 0.9):.3g} ms at the 90th percentile"
    )
    network = Network(
        source=one_line(words, limit=590),
        base_ms=coefficients["constant"],
        bytes_per_s=1e3 / per_byte if per_byte > 0 else None,
        per_request_ms=coefficients.get("requests", 0.0),
        host_ms=best_host,
    )
    return LawFit(
        network=network,
        rows=rows,
        mean_ms=float(off.mean()),
        median_ms=float(np.median(off)),
        p90_ms=float(np.quantile(off, 0.9)),
        nothing_ms=float(np.abs(beyond.beyond_ms).mean()),
        constant_ms=float(np.abs(beyond.beyond_ms - np.median(beyond.beyond_ms)).mean()),
        by_model=tuple(_by_model(beyond, residuals)),
    )


def host_waits(came_ms: Floats, host_ms: float) -> Floats:
    """Return from arrival to the end of the host's work for each request, where it does one at a time."""
    if host_ms <= 0:
        return np.zeros(len(came_ms))
    waits: Floats = work_done(came_ms, host_ms) - came_ms
    return waits


def _columns(beyond: Beyond) -> tuple[Names, Floats]:
    """Return the terms of the law and their column: what a coefficient is multiplied by for each request."""
    columns = {"constant": np.full(len(beyond.beyond_ms), 2.0)}
    further = {"requests": beyond.sent_requests, "bytes": beyond.sent_bytes / _BYTE_SCALE}
    for name, column in further.items():
        # What is the same for all, or not known, cannot be told from the constant.
        if np.isfinite(column).all() and np.ptp(column) > 0:
            columns[name] = column
    return tuple(columns), np.stack(list(columns.values()), axis=1)


def _candidates(came_ms: Floats) -> list[float]:
    """Return times of the host, from a 500th of the mean gap between requests up to nearly the whole of it."""
    gap = float(came_ms[-1] - came_ms[0]) / max(len(came_ms) - 1, 1)
    if gap <= 0:
        return []
    candidates: list[float] = np.geomspace(gap / 500, _BUSIEST * gap, _HOST_CANDIDATES).tolist()
    return candidates


def _fitted(columns: Floats, values: Floats) -> tuple[Floats, float]:
    """Return coefficients of at least 0 and the mean absolute residual.

    The constant, which is the first column, is always there; each further term must make the residual smaller.
    """
    count = columns.shape[1]
    best: Floats = np.zeros(count)
    least = math.inf
    for size in range(count):
        bound = least * (1 - _TERM_PAYS)
        for others in itertools.combinations(range(1, count), size):
            terms = (0, *others)
            part = _least_absolute(columns[:, terms], values)
            mean = float(np.abs(values - columns[:, terms] @ part).mean())
            if (part >= 0).all() and mean < bound:
                bound = least = mean
                best = np.zeros(count)
                best[list(terms)] = part
    if least == math.inf:  # a host that takes longer than the requests themselves leaves less than nothing
        return best, float(np.abs(values).mean())
    return best, least


def _least_absolute(columns: Floats, values: Floats) -> Floats:
    """Return the coefficients of the least mean absolute residual, by least squares weighted anew."""
    weights = np.ones(len(values))
    part: Floats = np.zeros(columns.shape[1])
    for _ in range(_STEPS):
        root = np.sqrt(weights)
        part = np.asarray(np.linalg.lstsq(columns * root[:, None], values * root, rcond=None)[0], np.float64)
        off = np.abs(values - columns @ part)
        weights = 1.0 / np.maximum(off, 1e-4 * max(float(off.mean()), 1e-12))
    return part


def _by_model(beyond: Beyond, residuals: Floats) -> Iterator[tuple[str, int, float, float]]:
    for m, model in enumerate(beyond.models):
        mine = beyond.model == m
        if mine.any():
            took = float(np.median(beyond.beyond_ms[mine]))
            yield model, int(mine.sum()), took, float(np.median(residuals[mine]))
