"""Serve requests with lengths by a ladder of runtimes: dispatch, re-allocation, autoscaling."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from gkestimator.core.errors import UsageError
from gkestimator.core.records import frozen
from gkestimator.simulation.arrays import Floats, Ints, NumberOrNone, Wholes, count_below
from gkestimator.simulation.histogram import BINS, bin_edges_ms, quantile_ms
from gkestimator.simulation.lengths.allocation import allocate, even
from gkestimator.simulation.lengths.dispatch import CONGESTED, SCHEMES, dispatch
from gkestimator.simulation.lengths.fleet import InstanceFleet
from gkestimator.simulation.lengths.requests import LengthRequests
from gkestimator.simulation.lengths.runtimes import DynamicShapes, Ladder, padded_tokens, service_ms
from gkestimator.simulation.options import check_fields
from gkestimator.simulation.summary import mean_of

_PERCENTILE = 0.98


@frozen
class Dispatching:
    """Hold who serves a request (:mod:`gkestimator.simulation.lengths.dispatch`).

    Defaults: the paper's, lambda 0.85, alpha 0.9, L 6.
    """

    scheme: str = "arlo"
    threshold: float = 0.85
    decay: float = 0.9
    levels: int = 6
    congested: str = "ideal"

    def __post_init__(self) -> None:
        check_fields(self, {"scheme": SCHEMES, "congested": CONGESTED})
        if not (self.threshold > 0 and 0 < self.decay <= 1 and self.levels >= 1):
            raise UsageError(
                f"dispatching: found threshold {self.threshold:g}, decay {self.decay:g} and {self.levels} levels, "
                "expected a threshold above 0, a decay above 0 and at most 1, and at least one level"
            )


@frozen
class Reallocation:
    """Hold how the Runtime Scheduler runs: every ``period_ms`` (the paper's 120 s) the program is solved for
    the lengths of the period, and instances are replaced ``at_once`` at a time, each out of service until it
    has answered what it was given and for ``load_ms`` more; the next ones follow when these are in service.
    (The paper replaces in small batches; how many and how long are ours.)
    """

    period_ms: float = 120_000.0
    at_once: int = 2
    load_ms: float = 1000.0

    def __post_init__(self) -> None:
        if not (self.period_ms > 0 and self.at_once >= 1 and self.load_ms >= 0):
            raise UsageError(
                "re-allocation: expected a period above 0, at least one instance at once, loading of 0 s or more"
            )


@frozen
class Autoscaling:
    """Hold when GPUs are added and taken.

    A GPU more when the 98th percentile of the responses of the last ``check_ms`` is at ``high_pct`` percent of the SLO
    or above, checked every ``check_ms``, and not while one is still starting; a GPU less when that of the last
    ``low_window_ms`` is below ``low_pct`` percent and nothing was added or taken for as long. Never under ``least`` or
    over ``most`` GPUs. A new GPU takes ``start_ms`` and loading before it serves. The runtime that gets an
    instance more (less) has the fewest (most) beside what the program says for the new number of GPUs and the
    last period's lengths. (95 %, 50 % and 60 s are the paper's; the rest is our reading.)
    """

    least: int = 1
    most: int = 10_000
    high_pct: float = 95.0
    low_pct: float = 50.0
    low_window_ms: float = 60_000.0
    check_ms: float = 5000.0
    start_ms: float = 0.0

    def __post_init__(self) -> None:
        if not (1 <= self.least <= self.most and 0 <= self.low_pct < self.high_pct):
            raise UsageError(
                f"autoscaling: found {self.least} to {self.most} GPUs and {self.low_pct:g} to {self.high_pct:g} % of "
                "the SLO, expected both ranges to ascend"
            )
        if not (0 < self.check_ms <= self.low_window_ms and self.start_ms >= 0):
            raise UsageError(
                "autoscaling: expected checks more often than the window of a GPU less, and a start of 0 s or more"
            )


@frozen
class ServeOptions:
    """Hold how requests are served.

    ``gpus`` at the start, spread over the runtimes by ``start`` (None: evenly). Requests that come before ``warmup_ms``
    are served and not counted. ``reallocation`` or ``autoscaling`` None: not done. ``window_ms`` of the timeline.
    ``keep``: every counted response is kept. ``dynamic``: requests are not padded, and each takes what that says.
    """

    gpus: int
    duration_ms: float
    warmup_ms: float = 0.0
    dispatching: Dispatching = field(default_factory=Dispatching)
    reallocation: Reallocation | None = field(default_factory=Reallocation)
    autoscaling: Autoscaling | None = None
    start: Wholes | None = None
    window_ms: float = 10_000.0
    keep: bool = False
    dynamic: DynamicShapes | None = None

    def __post_init__(self) -> None:
        if not (self.gpus >= 1 and 0 <= self.warmup_ms < self.duration_ms and self.window_ms > 0):
            raise UsageError(
                f"found {self.gpus} GPUs, a warm-up of {self.warmup_ms / 1e3:g} s and a duration of "
                f"{self.duration_ms / 1e3:g} s, expected at least one GPU and a warm-up below the duration"
            )
        if self.start is not None and (
            sum(self.start) != self.gpus or min(self.start) < 0 or self.start[-1] < 1
        ):
            raise UsageError(
                f"start: found {list(self.start)}, expected instances that sum to {self.gpus} GPUs, at least one of "
                "the longest runtime"
            )
        scaling = self.autoscaling
        if scaling is not None and not scaling.least <= self.gpus <= scaling.most:
            raise UsageError(
                f"found {self.gpus} GPUs at the start, expected {scaling.least} to {scaling.most}, as autoscaling has"
            )


@frozen
class TimeWindow:
    """Hold the requests that came in one stretch of time: how many, how many in time, their 98th percentile
    (None of none); at its end the GPUs held and the instances of each runtime (loading ones included).
    """

    end_ms: float
    requests: int
    on_time: int
    p98_ms: NumberOrNone
    gpus: int
    counts: Wholes


@dataclass(frozen=True, kw_only=True)
class Served:
    """Hold what came of the counted requests.

    By runtime: ``asked`` (requests whose shortest runtime it is), ``served``. ``tokens`` asked for and
    ``padded_tokens`` computed. ``gpu_ms``: GPU time held up to the end of arrivals. ``replaced``, ``added``,
    ``removed``: instances and GPUs. ``responses_ms`` in order of arrival where kept.
    """

    requests: int
    on_time: int
    sum_ms: float
    histogram: Ints
    asked: Ints
    served: Ints
    tokens: int
    padded_tokens: int
    gpu_ms: float
    replaced: int
    added: int
    removed: int
    windows: tuple[TimeWindow, ...]
    responses_ms: Floats | None = None

    @property
    def mean_ms(self) -> NumberOrNone:
        """Return the mean response; None of no requests."""
        return mean_of(self.sum_ms, self.requests)

    def quantile_ms(self, q: float) -> NumberOrNone:
        """Return the ``q`` quantile (0 to 1) of the responses: exact where they were kept, else to half a percent."""
        if self.responses_ms is not None and len(self.responses_ms):
            return float(np.quantile(self.responses_ms, q))
        return quantile_ms(self.histogram, q)


def serve(
    ladder: Ladder,
    requests: LengthRequests,
    options: ServeOptions,
    *,
    progress: Callable[[float], None] | None = None,
) -> Served:
    """Serve ``requests`` by instances of ``ladder``'s runtimes.

    ``progress`` is told how far it is (ms). Raises UsageError: a request longer than the longest runtime, a
    start that does not fit the ladder.
    """
    run = _Run(ladder, options)
    for chunk in requests.chunks(options.duration_ms):
        run.advance(chunk.times_ms, chunk.lengths, chunk.end_ms)
        if progress is not None:
            progress(chunk.end_ms)
    return run.finish()


def _joined(parts: list[Floats]) -> Floats:
    return np.concatenate([np.empty(0), *parts])


def _quantile(parts: list[Floats]) -> NumberOrNone:
    """Return the 98th percentile of all ``parts``; None of nothing."""
    responses = _joined(parts)
    return float(np.quantile(responses, _PERCENTILE)) if len(responses) else None


class _Run:
    """Hold one run that goes on chunk by chunk, stopping at the times at which something is decided."""

    def __init__(self, ladder: Ladder, options: ServeOptions) -> None:
        levels = len(ladder.runtimes)
        start = options.start or even(levels, options.gpus)
        if len(start) != levels:
            raise UsageError(f"start: found {len(start)} counts, expected one for each of {levels} runtimes")
        self.ladder = ladder
        self.options = options
        self.fleet = InstanceFleet(ladder, start)
        self.latency = np.asarray(ladder.latencies_ms)
        self.capacity = np.asarray(ladder.capacities, np.float64)
        self.edges = bin_edges_ms()[1:-1]
        self.target: Wholes | None = None
        # Of the period that runs, and of all counted requests.
        self.period_counts, self.asked, self.served = np.zeros((3, levels), np.int64)
        self.period_start = 0.0
        self.demand: Floats | None = None  # requests per SLO period in the last whole period
        self.recent: deque[tuple[Floats, Floats]] = deque()  # ends and responses
        self.scaled_ms = 0.0  # when the number of GPUs last changed
        self.started_ms = 0.0  # when the GPU added last serves
        self.window: list[Floats] = []
        self.windows: list[TimeWindow] = []
        self.kept: list[Floats] = []
        self.histogram = np.zeros(BINS, np.int64)
        self.on_time = self.tokens = self.padded = self.replaced = self.added = self.removed = 0
        self.sum_ms = 0.0
        self.next_window = options.window_ms
        self.next_period = options.reallocation.period_ms if options.reallocation else math.inf
        self.next_check = options.autoscaling.check_ms if options.autoscaling else math.inf

    def advance(self, times: Floats, lengths: Ints, end_ms: float) -> None:
        shortest = np.searchsorted(np.asarray(self.ladder.lengths), lengths, side="left")
        if len(lengths) and int(shortest.max()) == len(self.ladder.runtimes):
            raise UsageError(
                f"a request of {int(lengths.max())} tokens: the longest runtime takes {self.ladder.lengths[-1]}"
            )
        begin = 0
        while True:
            stop = min(self.next_window, self.next_period, self.next_check, self.fleet.next_ms)
            if stop > end_ms:
                break
            split = count_below(times, stop)
            self._dispatch(times[begin:split], lengths[begin:split], shortest[begin:split])
            begin = split
            self._decide(stop)
        self._dispatch(times[begin:], lengths[begin:], shortest[begin:])

    def _dispatch(self, times: Floats, lengths: Ints, shortest: Ints) -> None:
        count = len(times)
        if count == 0:
            return
        rules = self.options.dispatching
        fleet = self.fleet
        responses = np.empty(count)
        level_of = np.empty(count, np.int64)
        dispatch(
            times,
            shortest,
            SCHEMES.index(rules.scheme),
            rules.threshold,
            rules.decay,
            rules.levels,
            CONGESTED.index(rules.congested),
            self.latency,
            service_ms(self.options.dynamic, lengths),
            self.capacity,
            fleet.heaps,
            fleet.sizes,
            fleet.free_ms,
            responses,
            level_of,
        )
        levels = len(self.latency)
        self.period_counts += np.bincount(shortest, minlength=levels)
        self.window.append(responses)
        if self.options.autoscaling is not None:
            self.recent.append((times + responses, responses))
        first = count_below(times, self.options.warmup_ms)
        responses = responses[first:]
        level_of = level_of[first:]
        self.asked += np.bincount(shortest[first:], minlength=levels)
        self.served += np.bincount(level_of, minlength=levels)
        self.on_time += int(np.count_nonzero(responses <= self._slo))
        self.sum_ms += float(responses.sum())
        self.histogram += np.bincount(np.searchsorted(self.edges, responses, side="right"), minlength=BINS)
        self.tokens += int(lengths[first:].sum())
        self.padded += padded_tokens(self.ladder, self.options.dynamic, lengths[first:], level_of)
        if self.options.keep:
            self.kept.append(responses)

    @property
    def _slo(self) -> float:
        return self.ladder.slo_ms * (1 + 1e-9)

    def _decide(self, now: float) -> None:
        """Decide what is due at ``now``: loaded instances first, then a GPU more or less, then the runtimes'
        program.
        """
        self.fleet.activate(now)
        if now == self.next_window:
            self._close_window(now)
            self.next_window = (len(self.windows) + 1) * self.options.window_ms
        scaling = self.options.autoscaling
        if scaling is not None and now == self.next_check:
            self._scale(now, scaling)
            self.next_check += scaling.check_ms
        reallocation = self.options.reallocation
        if reallocation is None:
            return
        if now == self.next_period:
            if self.period_counts.any():  # a period without requests says nothing
                self.demand = self._measured(now)
                self.target = allocate(self.ladder, self.demand.tolist(), self.fleet.gpus).counts
            self.period_counts[:] = 0
            self.period_start = now
            self.next_period += reallocation.period_ms
        if self.target is not None and self.fleet.loading == 0:
            self._replace(now, reallocation)

    def _measured(self, now: float) -> Floats:
        per_slo = self.ladder.slo_ms / (now - self.period_start)
        return np.asarray(self.period_counts * per_slo, np.float64)

    def _replace(self, now: float, reallocation: Reallocation) -> None:
        """Replace up to ``at_once`` instances on the way to the target: from the runtime with most too many
        to the one with most too few.
        """
        assert self.target is not None
        for _ in range(reallocation.at_once):
            over = [n - t for n, t in zip(self.fleet.counts, self.target, strict=True)]
            able = [i for i, more in enumerate(over) if more > 0 and self.fleet.spare(i)]
            if not able:
                break
            source = max(able, key=over.__getitem__)
            target = over.index(min(over))
            self.fleet.replace(source, target, now, reallocation.load_ms)
            self.replaced += 1
        if list(self.target) == self.fleet.counts:
            self.target = None

    def _scale(self, now: float, scaling: Autoscaling) -> None:
        while self.recent and self.recent[0][0].max() <= now - scaling.low_window_ms:
            self.recent.popleft()
        slo = self.ladder.slo_ms
        gpus = self.fleet.gpus
        high = self._percentile(now - scaling.check_ms, now)
        if high is not None and high >= scaling.high_pct / 100 * slo:
            if gpus < scaling.most and now >= self.started_ms:
                self._grow(now, scaling)
            return  # also with all GPUs there may be: none is taken away from a burst
        low = self._percentile(now - scaling.low_window_ms, now)
        quiet = now - self.scaled_ms >= scaling.low_window_ms
        if low is not None and low < scaling.low_pct / 100 * slo and quiet and gpus > scaling.least:
            self._shrink(now)

    def _percentile(self, after_ms: float, now: float) -> NumberOrNone:
        return _quantile([r[(e > after_ms) & (e <= now)] for e, r in self.recent])

    def _beside(self, now: float, gpus: int) -> list[int]:
        """Return the instances of each runtime beyond what the program says for ``gpus``."""
        demand = self.demand
        if demand is None:
            demand = self._measured(now)
        best = even(len(demand), gpus)
        if demand.any():
            best = allocate(self.ladder, demand.tolist(), gpus).counts
        return [n - t for n, t in zip(self.fleet.counts, best, strict=True)]

    def _grow(self, now: float, scaling: Autoscaling) -> None:
        over = self._beside(now, self.fleet.gpus + 1)
        level = over.index(min(over))
        self.started_ms = now + scaling.start_ms
        if self.options.reallocation is not None:
            self.started_ms += self.options.reallocation.load_ms
        self.fleet.grow(level, now, self.started_ms)
        self._moved(level, 1, now)
        self.added += 1

    def _shrink(self, now: float) -> None:
        over = self._beside(now, self.fleet.gpus - 1)
        able = [i for i in range(len(over)) if self.fleet.spare(i)]
        if not able:
            return
        level = max(able, key=over.__getitem__)
        self.fleet.shrink(level, now)
        self._moved(level, -1, now)
        self.removed += 1

    def _moved(self, level: int, by: int, now: float) -> None:
        """Let a re-allocation on its way leave the added (taken) instance as it is."""
        self.scaled_ms = now
        if self.target is not None:
            self.target = tuple(max(0, t + by * (i == level)) for i, t in enumerate(self.target))

    def _close_window(self, end_ms: float) -> None:
        responses = _joined(self.window)
        self.windows.append(
            TimeWindow(
                end_ms=end_ms,
                requests=len(responses),
                on_time=int(np.count_nonzero(responses <= self._slo)),
                p98_ms=_quantile([responses]),
                gpus=self.fleet.gpus,
                counts=tuple(self.fleet.counts),
            )
        )
        self.window = []

    def finish(self) -> Served:
        """Return what was counted; all that came is answered (every response is known when it is dispatched)."""
        duration = self.options.duration_ms
        if not self.windows or self.windows[-1].end_ms < duration:
            self._close_window(duration)
        return Served(
            requests=int(self.asked.sum()),
            on_time=self.on_time,
            sum_ms=self.sum_ms,
            histogram=self.histogram,
            asked=self.asked,
            served=self.served,
            tokens=self.tokens,
            padded_tokens=self.padded,
            gpu_ms=self.fleet.gpu_ms(duration),
            replaced=self.replaced,
            added=self.added,
            removed=self.removed,
            windows=tuple(self.windows),
            responses_ms=_joined(self.kept) if self.options.keep else None,
        )
