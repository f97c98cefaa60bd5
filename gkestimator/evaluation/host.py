"""Fit this host's launch overhead and copy rate to measured latencies.

The estimate of a row is ``T(h) + bytes / r``: T is the timeline of its kernels on a host that takes h
microseconds a framework call, bytes the inputs and outputs where the measurement includes their copies, at
the rate r. Fitted are h and r with the least mean |log(estimate / measurement)| over all rows: absolute, so
that a few rows whose kernels are badly estimated do not pull, and in logarithms, so that too high and too low
weigh alike. Only rows on which the host waits tell h, and only rows in which copies are seen tell r; where
there are none the fit is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TypeAlias

import numpy as np

from gkestimator.core.errors import UsageError
from gkestimator.core.kernels import Array
from gkestimator.core.records import Names, frozen
from gkestimator.estimation.timeline import LaunchProgram, schedule

# From a compiled loop to a slow interpreter, and from an old slot to a link between GPUs.
_OVERHEADS_US = np.geomspace(0.25, 1000.0, 141)
_RATES = np.geomspace(1e8, 5e11, 121)
_GRIDS = {"overhead": _OVERHEADS_US, "rate": _RATES}
# More rows take long, and move the figures by less than their range.
_MOST_CASES = 2000
# A row counts as host-bound when 1 % more overhead makes at least 0.5 % more latency, and as one that sees the copy
# when that is a twentieth of its time.
_LEAST_SHARES = {"overhead": 0.5, "rate": 0.05}
_WHOLLY_HOST_SHARE = 0.9
_LEAST_ROWS = 2
_LEAST_FOR_RANGE = 3
# Half and twice the fitted figure must be worse by at least 2 % of the error, else the rows do not tell it.
_RISE = 1.02
FloatPair: TypeAlias = tuple[float, float]
"""A range from least to largest, or a mean and a median."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HostCase:
    """Hold one measured latency and what its estimate is made of.

    ``duration_us`` is per launch of ``program``; ``moved_bytes`` None: the measurement is without copies;
    ``host_overhead_us`` and ``copy_bytes_per_s`` are what the estimate assumed.
    """

    model: str
    gpu: str
    runtime: str
    measured_ms: float
    program: LaunchProgram
    duration_us: Array
    streams: int
    moved_bytes: float | None
    host_overhead_us: float
    copy_bytes_per_s: float

    def latency_ms(self, overhead_us: float, copy_bytes_per_s: float) -> float:
        """Return the estimate with another host."""
        host = self._timeline_ms(overhead_us)
        if self.moved_bytes is None:
            return host
        return host + self.moved_bytes / copy_bytes_per_s * 1e3

    def _timeline_ms(self, overhead_us: float) -> float:
        timeline = schedule(
            self.program, self.duration_us, host_overhead_us=overhead_us, streams=self.streams
        )
        return timeline.total_us / 1e3

    def curve_ms(self) -> Array:
        """Return the timeline's total at every overhead of the grid."""
        return np.array([self._timeline_ms(float(h)) for h in _OVERHEADS_US])


@frozen
class HostFit:
    """Hold what the rows of one runtime say of the host. A figure that they do not tell is None.

    ``rows`` fitted, of which ``host_rows`` are host-bound and ``copy_rows`` see the copy.
    ``overhead_range_us`` and ``rate_range`` span the fits with one model left out each (None where one of
    these does not tell the figure); ``row_range_us`` spans the overheads that rows wholly bound by the host
    ask for one by one, nine in ten of them (all where they are fewer than ten): operators differ. Errors are
    mean and median absolute percentages of all rows: ``before`` with the figures assumed so far, ``after``
    with figures fitted to the other models (None: there is one model only).
    """

    runtime: str
    host_overhead_us: float | None
    overhead_range_us: FloatPair | None
    row_range_us: FloatPair | None
    copy_bytes_per_s: float | None
    rate_range: FloatPair | None
    rows: int
    models: int
    gpus: Names
    host_rows: int
    copy_rows: int
    before_pct: FloatPair
    after_pct: FloatPair | None
    notes: Names = field(default=())


def errors_words(fit: HostFit, *, untested: str) -> tuple[str, str]:
    """Return the errors before and after a fit in words; ``untested`` where there was no model to leave out."""
    before = f"{fit.before_pct[0]:.1f} % (median {fit.before_pct[1]:.1f}) before"
    if fit.after_pct is None:
        return before, untested
    mean, median = fit.after_pct
    return before, f"{mean:.1f} % (median {median:.1f}) with models left out one at a time"


@frozen
class _Figures:
    """Hold microseconds a framework call and bytes a second; None stands for what each row's estimate assumed."""

    overhead: float | None = None
    rate: float | None = None


_ASSUMED = _Figures()


@frozen
class _Rows:
    """Hold cases as arrays: the curve over the grid of overheads, moved bytes (0: none), measured milliseconds.

    ``overhead`` and ``rate`` are what the estimates assumed.
    """

    curve: Array
    moved: Array
    measured: Array
    model: Array
    rate: Array
    overhead: Array

    def take(self, index: Array) -> _Rows:
        """Return the rows that ``index`` selects."""
        return _Rows(**{column.name: getattr(self, column.name)[index] for column in fields(self)})

    def host_ms(self, figures: _Figures) -> Array:
        """Return the timelines; between points of the grid linear, as a timeline is between its kinks."""
        overhead = self.overhead
        if figures.overhead is not None:
            overhead = np.full(len(overhead), figures.overhead)
        right = np.clip(np.searchsorted(_OVERHEADS_US, overhead), 1, len(_OVERHEADS_US) - 1)
        left = _OVERHEADS_US[right - 1]
        share = (overhead - left) / (_OVERHEADS_US[right] - left)
        row = np.arange(len(overhead))
        return np.asarray(self.curve[row, right - 1] * (1 - share) + self.curve[row, right] * share)

    def copies_ms(self, figures: _Figures) -> Array:
        """Return the milliseconds of moving inputs and outputs."""
        rate = self.rate if figures.rate is None else figures.rate
        return np.asarray(self.moved / rate * 1e3)

    def estimate(self, figures: _Figures) -> Array:
        """Return the estimates on a host of these figures, milliseconds."""
        return np.asarray(self.host_ms(figures) + self.copies_ms(figures))

    def cost(self, figures: _Figures) -> float:
        """Return what the fit minimises: the mean |log(estimate / measurement)|."""
        return float(np.abs(np.log(self.estimate(figures) / self.measured)).mean())

    def share(self, name: str, figures: _Figures) -> Array:
        """Return the elasticity of each estimate to the overhead, or its share of copying (``rate``)."""
        if name == "rate":
            return np.asarray(self.copies_ms(figures) / self.estimate(figures))
        overhead = figures.overhead
        if overhead is None:
            overhead = float(np.median(self.overhead))
        less = np.log(self.estimate(replace(figures, overhead=overhead * 0.99)))
        more = np.log(self.estimate(replace(figures, overhead=overhead * 1.01)))
        return np.asarray((more - less) / np.log(1.01 / 0.99))

    def count(self, name: str, figures: _Figures) -> int:
        """Return how many rows a figure matters to."""
        return int((self.share(name, figures) >= _LEAST_SHARES[name]).sum())


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
    rows = _rows_of(cases)
    gpus = tuple(sorted({c.gpu for c in cases}))
    if len(gpus) > 1:
        notes.append(f"rows of {len(gpus)} GPUs are taken as measured on one host")
    figures = _choose(rows)
    if figures == _ASSUMED:
        raise UsageError(
            f"{len(cases)} rows do not tell the host's launch overhead: fewer than {_LEAST_ROWS} wait for the host, or "
            "another overhead fits as well; add small batches (batch 1) of models with many operators"
        )
    spread = _row_range(rows, figures)
    notes += _untold(rows, figures, spread)
    before = _errors(rows.estimate(_ASSUMED), rows.measured)
    after, others = _left_out(rows, figures)
    if after is not None and after[0] >= before[0]:
        notes.append(
            "warning: with models left out the error does not fall; the kernels' errors outweigh the host's"
        )
    return HostFit(
        runtime=cases[0].runtime,
        host_overhead_us=figures.overhead,
        row_range_us=spread,
        overhead_range_us=_span([other.overhead for other in others]),
        copy_bytes_per_s=figures.rate,
        rate_range=_span([other.rate for other in others]),
        rows=len(cases),
        models=len(set(rows.model.tolist())),
        gpus=gpus,
        host_rows=rows.count("overhead", figures),
        copy_rows=rows.count("rate", figures),
        before_pct=before,
        after_pct=after,
        notes=tuple(notes),
    )


def _rows_of(cases: Sequence[HostCase]) -> _Rows:
    return _Rows(
        curve=np.array([c.curve_ms() for c in cases]),
        moved=np.array([c.moved_bytes or 0.0 for c in cases]),
        measured=np.array([c.measured_ms for c in cases]),
        model=np.array([c.model for c in cases]),
        rate=np.array([c.copy_bytes_per_s for c in cases]),
        overhead=np.array([c.host_overhead_us for c in cases]),
    )


def _untold(rows: _Rows, figures: _Figures, spread: FloatPair | None) -> Iterator[str]:
    """Yield what the rows do not tell."""
    if figures.overhead is None:
        yield "launch overhead kept: these rows do not tell it"
    elif spread is None:
        yield (
            f"fewer than {_LEAST_FOR_RANGE} rows wholly wait for the host: how far the overhead spreads is not told"
        )
    if figures.rate is None and rows.moved.any():
        yield "copy rate kept: copies are too small a part of these rows to tell it"


def _choose(rows: _Rows) -> _Figures:
    """Return the figures that the rows tell, jointly where they tell both."""
    for free in (("overhead", "rate"), ("overhead",), ("rate",)):
        if "rate" in free and not rows.moved.any():
            continue
        figures = _fit(rows, free)
        if all(_tells(rows, name, figures) for name in free):
            return figures
    return _ASSUMED


def _fit(rows: _Rows, free: Sequence[str]) -> _Figures:
    """Return the least cost over the grids, then over finer and finer grids about it."""
    grids = {name: _GRIDS[name] for name in free}
    best = _least(rows, grids)
    # The grids are 6 % and 7 % apart; the last step is finer than any measurement.
    for step in (0.06, 0.012, 0.0024):
        around = np.linspace(1 - step, 1 + step, 11)
        best = _least(rows, {name: getattr(best, name) * around for name in free})
    return best


def _least(rows: _Rows, grids: Mapping[str, Array]) -> _Figures:
    """Return the figures of least cost on the grids; a figure without a grid stays as assumed."""
    logs = np.log(rows.measured)[None, :]
    rates: list[float | None] = [None]
    seconds = 1 / rows.rate[None, :]
    if "rate" in grids:
        rates = grids["rate"].tolist()
        seconds = 1 / grids["rate"][:, None]
    copies = rows.moved[None, :] * seconds * 1e3
    overheads: list[float | None] = [None]
    if "overhead" in grids:
        overheads = grids["overhead"].tolist()
    least = np.inf
    best = _Figures(overhead=overheads[0], rate=rates[0])
    for overhead in overheads:
        # All rates at once: the timelines are the same for each.
        host = rows.host_ms(_Figures(overhead=overhead))
        costs = np.abs(np.log(host[None, :] + copies) - logs).mean(axis=1)
        at = int(np.argmin(costs))
        if costs[at] < least:
            least = float(costs[at])
            best = _Figures(overhead=overhead, rate=rates[at])
    return best


def _tells(rows: _Rows, name: str, figures: _Figures) -> bool:
    """Return whether the rows tell a figure: inside its grid, with rows that it matters to, and a clear
    minimum.
    """
    value = getattr(figures, name)
    grid = _GRIDS[name]
    if not grid[0] * 1.1 < value < grid[-1] / 1.1 or rows.count(name, figures) < _LEAST_ROWS:
        return False
    least = rows.cost(figures)
    away = [replace(figures, **{name: value * factor}) for factor in (0.5, 2.0)]
    return all(rows.cost(other) > _RISE * least for other in away)


def _row_range(rows: _Rows, figures: _Figures) -> FloatPair | None:
    """Return the overheads at which the estimate of each row wholly bound by the host is its measurement.

    5th to 95th percentile. In a row where kernels count as well, their errors would pass for the host's.
    """
    if figures.overhead is None:
        return None
    bound = rows.take(np.flatnonzero(rows.share("overhead", figures) >= _WHOLLY_HOST_SHARE))
    if len(bound.measured) < _LEAST_FOR_RANGE:
        return None
    without_copies = bound.measured - bound.copies_ms(figures)
    asked = []
    for timeline, curve in zip(without_copies, bound.curve, strict=True):
        asked.append(float(np.interp(timeline, curve, _OVERHEADS_US)))
    # Of few rows the fifth percentile is the least one anyway.
    tail = 0.05 if len(asked) >= 10 else 0.0
    low = float(np.quantile(asked, tail))
    high = float(np.quantile(asked, 1 - tail))
    return min(low, figures.overhead), max(high, figures.overhead)


def _left_out(rows: _Rows, figures: _Figures) -> tuple[FloatPair | None, list[_Figures]]:
    """Return the errors of each model's rows with figures fitted to the other models, and those figures.

    What the others do not tell stays as it was assumed. With one model there is nothing to test: None.
    """
    models = np.unique(rows.model)
    if len(models) < 2:
        return None, []
    estimates = np.empty(len(rows.measured))
    fitted = []
    for model in models:
        out = rows.model == model
        chosen = _choose(rows.take(np.flatnonzero(~out)))
        if figures.overhead is None:
            chosen = replace(chosen, overhead=None)
        if figures.rate is None:
            chosen = replace(chosen, rate=None)
        estimates[out] = rows.take(np.flatnonzero(out)).estimate(chosen)
        fitted.append(chosen)
    return _errors(estimates, rows.measured), fitted


def _errors(estimated: Array, measured: Array) -> FloatPair:
    errors = 100 * np.abs(estimated / measured - 1)
    return float(errors.mean()), float(np.median(errors))


def _span(values: Sequence[float | None]) -> FloatPair | None:
    """Return least and largest; None unless every fit tells the figure: it hangs on one model then."""
    known = [v for v in values if v is not None]
    if known and len(known) == len(values):
        return (min(known), max(known))
    return None
