"""This host's launch overhead and copy rate, fitted to measured latencies.

The estimate of a row is ``T(h) + bytes / r``: T is the timeline of its kernels on a host that takes h microseconds a
framework call, bytes the inputs and outputs where the measurement includes their copies, at the rate r. Fitted are
h and r with the least mean |log(estimate / measurement)| over all rows: absolute, so that a few rows whose kernels are
badly estimated do not pull, and in logarithms, so that too high and too low weigh alike. Only rows on which the host
waits tell h, and only rows in which copies are seen tell r; where there are none the fit is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from gkestimator.core.errors import UsageError
from gkestimator.core.records import frozen
from gkestimator.estimation.timeline import LaunchProgram, schedule

_OVERHEADS_US = np.geomspace(0.25, 1000.0, 141)
_RATES = np.geomspace(1e8, 5e11, 121)
_MOST_CASES = 2000
_HOST_SHARE = 0.5
"""A row counts as host-bound when 1 % more overhead makes at least 0.5 % more latency."""
_WHOLLY_HOST_SHARE = 0.9
_COPY_SHARE = 0.05
_LEAST_ROWS = 2
_LEAST_FOR_RANGE = 3
_RISE = 1.02
"""Half and twice the fitted figure must be worse by at least 2 % of the error, else the rows do not tell it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HostCase:
    """One measured latency and what its estimate is made of.

    ``duration_us`` is per launch of ``program``; ``moved_bytes`` None: the measurement is without copies;
    ``host_overhead_us`` and ``copy_bytes_per_s`` are what the estimate assumed.
    """

    model: str
    gpu: str
    runtime: str
    measured_ms: float
    program: LaunchProgram
    duration_us: np.ndarray
    streams: int
    moved_bytes: float | None
    host_overhead_us: float
    copy_bytes_per_s: float

    def latency_ms(self, overhead_us: float, copy_bytes_per_s: float) -> float:
        """The estimate with another host."""
        if self.moved_bytes is None:
            copy = 0.0
        else:
            copy = self.moved_bytes / copy_bytes_per_s * 1e3
        return self._timeline_ms(overhead_us) + copy

    def _timeline_ms(self, overhead_us: float) -> float:
        timeline = schedule(
            self.program, self.duration_us, host_overhead_us=overhead_us, streams=self.streams
        )
        return timeline.total_us / 1e3

    def curve_ms(self) -> np.ndarray:
        """The timeline's total at every overhead of the grid."""
        return np.array([self._timeline_ms(float(h)) for h in _OVERHEADS_US])


@frozen
class HostFit:
    """What the rows of one runtime say of the host. A figure that they do not tell is None.

    ``rows`` fitted, of which ``host_rows`` are host-bound and ``copy_rows`` see the copy. ``overhead_range_us`` and
    ``rate_range`` span the fits with one model left out each (None where one of these does not tell the figure);
    ``row_range_us`` spans the overheads that rows wholly bound by the host ask for one by one, nine in ten of them (all
    where they are fewer than ten): operators differ. Errors are mean and median absolute percentages of all rows:
    ``before`` with the figures assumed so far, ``after`` with figures fitted to the other models (None: there is one
    model only).
    """

    runtime: str
    host_overhead_us: float | None
    overhead_range_us: tuple[float, float] | None
    row_range_us: tuple[float, float] | None
    copy_bytes_per_s: float | None
    rate_range: tuple[float, float] | None
    rows: int
    models: int
    gpus: tuple[str, ...]
    host_rows: int
    copy_rows: int
    before_pct: tuple[float, float]
    after_pct: tuple[float, float] | None
    notes: tuple[str, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class _Rows:
    """Cases as arrays: the curve over the grid of overheads, moved bytes (0: none), measured milliseconds."""

    curve: np.ndarray
    moved: np.ndarray
    measured: np.ndarray
    model: np.ndarray
    rate: np.ndarray
    overhead: np.ndarray

    def take(self, at: np.ndarray) -> _Rows:
        return _Rows(
            self.curve[at],
            self.moved[at],
            self.measured[at],
            self.model[at],
            self.rate[at],
            self.overhead[at],
        )

    def timeline(self, overhead: float) -> np.ndarray:
        """Milliseconds at one overhead; between points of the grid linear, as the timeline is between its kinks."""
        right = int(np.clip(np.searchsorted(_OVERHEADS_US, overhead), 1, len(_OVERHEADS_US) - 1))
        left = _OVERHEADS_US[right - 1]
        share = (overhead - left) / (_OVERHEADS_US[right] - left)
        return np.asarray(self.curve[:, right - 1] * (1 - share) + self.curve[:, right] * share)

    def estimate(self, overhead: float | None, rate: float | None) -> np.ndarray:
        """Milliseconds; None stands for what each row's estimate assumed."""
        if overhead is None:
            host = np.array(
                [row.timeline(float(h))[0] for row, h in zip(self._each(), self.overhead, strict=True)]
            )
        else:
            host = self.timeline(overhead)
        return np.asarray(host + self.moved / (self.rate if rate is None else rate) * 1e3)

    def _each(self) -> list[_Rows]:
        return [self.take(np.array([i])) for i in range(len(self.measured))]

    def cost(self, overhead: float | None, rate: float | None) -> float:
        return float(np.abs(np.log(self.estimate(overhead, rate) / self.measured)).mean())


def fit_host(cases: Sequence[HostCase]) -> HostFit:
    """Fit the cases of one runtime. Raises UsageError, one line, where they tell neither figure.

    Above 2,000 cases an even sample of them is fitted, and a note says so.
    """
    notes = []
    if len(cases) > _MOST_CASES:
        notes.append(f"fitted to an even sample of {_MOST_CASES:,} of {len(cases):,} rows")
        cases = [cases[i] for i in np.linspace(0, len(cases) - 1, _MOST_CASES).astype(int)]
    if not cases:
        raise UsageError("no row has a measured and an estimated latency: nothing to fit the host to")
    rows = _Rows(
        curve=np.array([c.curve_ms() for c in cases]),
        moved=np.array([c.moved_bytes or 0.0 for c in cases]),
        measured=np.array([c.measured_ms for c in cases]),
        model=np.array([c.model for c in cases]),
        rate=np.array([c.copy_bytes_per_s for c in cases]),
        overhead=np.array([c.host_overhead_us for c in cases]),
    )
    gpus = tuple(sorted({c.gpu for c in cases}))
    if len(gpus) > 1:
        notes.append(f"rows of {len(gpus)} GPUs are taken as measured on one host")
    overhead, rate = _choose(rows)
    if overhead is None and rate is None:
        raise UsageError(
            f"{len(cases)} rows do not tell the host's launch overhead: fewer than {_LEAST_ROWS} wait for the host, or "
            "another overhead fits as well; add small batches (batch 1) of models with many operators"
        )
    span = None if overhead is None else _row_range(rows, overhead, rate)
    if overhead is not None and span is None:
        notes.append(
            f"fewer than {_LEAST_FOR_RANGE} rows wholly wait for the host: how far the overhead spreads is not told"
        )
    if overhead is None:
        notes.append("launch overhead kept: these rows do not tell it")
    if rate is None and rows.moved.any():
        notes.append("copy rate kept: copies are too small a part of these rows to tell it")
    others = _left_out(rows, overhead is not None, rate is not None)
    after = None
    if others is not None:
        estimates, fitted = others
        after = _errors(estimates, rows.measured)
    before = _errors(rows.estimate(None, None), rows.measured)
    if after is not None and after[0] >= before[0]:
        notes.append(
            "warning: with models left out the error does not fall; the kernels' errors outweigh the host's"
        )
    return HostFit(
        runtime=cases[0].runtime,
        host_overhead_us=overhead,
        row_range_us=span,
        overhead_range_us=_span([f[0] for f in fitted]) if others and overhead is not None else None,
        copy_bytes_per_s=rate,
        rate_range=_span([f[1] for f in fitted]) if others and rate is not None else None,
        rows=len(cases),
        models=len(set(rows.model.tolist())),
        gpus=gpus,
        host_rows=int((_host_share(rows, overhead, rate) >= _HOST_SHARE).sum()),
        copy_rows=int((_copy_share(rows, overhead, rate) >= _COPY_SHARE).sum()),
        before_pct=before,
        after_pct=after,
        notes=tuple(notes),
    )


def _choose(rows: _Rows) -> tuple[float | None, float | None]:
    """The figures that the rows tell, jointly where they tell both."""
    if rows.moved.any():
        overhead, rate = _fit(rows, True, True)
        if _tells_overhead(rows, overhead, rate) and _tells_rate(rows, overhead, rate):
            return overhead, rate
    overhead, _ = _fit(rows, True, False)
    if _tells_overhead(rows, overhead, None):
        return overhead, None
    if rows.moved.any():
        _, rate = _fit(rows, False, True)
        if _tells_rate(rows, None, rate):
            return None, rate
    return None, None


def _fit(rows: _Rows, free_overhead: bool, free_rate: bool) -> tuple[float | None, float | None]:
    """The least cost over the grids, then over finer and finer grids about it. A figure that is not free is None."""
    overheads: list[float | None] = [float(h) for h in _OVERHEADS_US] if free_overhead else [None]
    rates: list[float | None] = [float(r) for r in _RATES] if free_rate else [None]
    best = _least(rows, overheads, rates)
    for step in (0.06, 0.012, 0.0024):
        around = np.linspace(1 - step, 1 + step, 11)
        near = [[None] if b is None else [float(b * factor) for factor in around] for b in best]
        best = _least(rows, near[0], near[1])
    return best


def _least(
    rows: _Rows, overheads: Sequence[float | None], rates: Sequence[float | None]
) -> tuple[float | None, float | None]:
    logs = np.log(rows.measured)[None, :]
    seconds = np.array(
        [1 / rows.rate if rate is None else np.full(len(rows.rate), 1 / rate) for rate in rates]
    )
    copies = rows.moved[None, :] * seconds * 1e3
    least = np.inf
    best = (overheads[0], rates[0])
    for overhead in overheads:
        host = rows.estimate(overhead, np.inf)
        costs = np.abs(np.log(host[None, :] + copies) - logs).mean(axis=1)
        at = int(np.argmin(costs))
        if costs[at] < least:
            least = float(costs[at])
            best = (overhead, rates[at])
    return best


def _host_share(rows: _Rows, overhead: float | None, rate: float | None) -> np.ndarray:
    """Elasticity of each row's estimate to the overhead."""
    if overhead is None:
        overhead = float(np.median(rows.overhead))
    less, more = (np.log(rows.estimate(overhead * f, rate)) for f in (0.99, 1.01))
    return np.asarray((more - less) / np.log(1.01 / 0.99))


def _copy_share(rows: _Rows, overhead: float | None, rate: float | None) -> np.ndarray:
    """Share of each row's estimate that is copying."""
    return np.asarray(
        rows.moved / (rows.rate if rate is None else rate) * 1e3 / rows.estimate(overhead, rate)
    )


def _row_range(rows: _Rows, overhead: float, rate: float | None) -> tuple[float, float] | None:
    """The overheads at which the estimate of each row wholly bound by the host is its measurement, 5th to 95th
    percentile. (In a row where kernels count as well, their errors would pass for the host's.)"""
    bound = rows.take(np.flatnonzero(_host_share(rows, overhead, rate) >= _WHOLLY_HOST_SHARE))
    if len(bound.measured) < _LEAST_FOR_RANGE:
        return None
    copies = bound.moved / (bound.rate if rate is None else rate) * 1e3
    asked = [
        float(np.interp(measured - copy, curve, _OVERHEADS_US))
        for measured, copy, curve in zip(bound.measured, copies, bound.curve, strict=True)
    ]
    low, high = (float(np.quantile(asked, q)) for q in ((0.05, 0.95) if len(asked) >= 10 else (0.0, 1.0)))
    return min(low, overhead), max(high, overhead)


def _tells_overhead(rows: _Rows, overhead: float | None, rate: float | None) -> bool:
    if overhead is None or not _OVERHEADS_US[0] * 1.1 < overhead < _OVERHEADS_US[-1] / 1.1:
        return False
    if (_host_share(rows, overhead, rate) >= _HOST_SHARE).sum() < _LEAST_ROWS:
        return False
    least = rows.cost(overhead, rate)
    return all(rows.cost(overhead * f, rate) > _RISE * least for f in (0.5, 2.0))


def _tells_rate(rows: _Rows, overhead: float | None, rate: float | None) -> bool:
    if rate is None or not _RATES[0] * 1.1 < rate < _RATES[-1] / 1.1:
        return False
    if (_copy_share(rows, overhead, rate) >= _COPY_SHARE).sum() < _LEAST_ROWS:
        return False
    least = rows.cost(overhead, rate)
    return all(rows.cost(overhead, rate * f) > _RISE * least for f in (0.5, 2.0))


def _left_out(
    rows: _Rows, free_overhead: bool, free_rate: bool
) -> tuple[np.ndarray, list[tuple[float | None, float | None]]] | None:
    """Estimates of each model's rows with figures fitted to the other models, and those figures; what the others do
    not tell stays as it was assumed."""
    models = np.unique(rows.model)
    if len(models) < 2:
        return None
    estimates = np.empty(len(rows.measured))
    fitted = []
    for model in models:
        out = rows.model == model
        told = _choose(rows.take(np.flatnonzero(~out)))
        figures = (told[0] if free_overhead else None, told[1] if free_rate else None)
        estimates[out] = rows.take(np.flatnonzero(out)).estimate(*figures)
        fitted.append(figures)
    return estimates, fitted


def _errors(estimated: np.ndarray, measured: np.ndarray) -> tuple[float, float]:
    errors = 100 * np.abs(estimated / measured - 1)
    return float(errors.mean()), float(np.median(errors))


def _span(values: Sequence[float | None]) -> tuple[float, float] | None:
    """Least and largest; None unless every fit tells the figure: it hangs on one model then."""
    known = [v for v in values if v is not None]
    if len(known) == len(values):
        return (min(known), max(known))
    return None
