"""Say when every kernel of one inference starts and ends, and which kernels run at the same time.

The host issues framework calls one after another, each costing the launch overhead; a kernel starts when it
has been issued, when its stream is free and when its producers are done. Loops are one block of ``repeat``
trips.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from gkestimator.core.kernels import Array, Kernel, KernelGraph, Step
from gkestimator.core.records import NamedNumbers, frozen
from gkestimator.estimation.request import TAU_MS

__all__ = ["TAU_MS", "KernelPool", "LaunchProgram", "Timeline", "concurrent_maxima", "schedule"]

_MOST_UNROLLED = 200_000  # steps


class KernelPool:
    """Hold the distinct kernels of everything lowered so far; each is predicted once per GPU and SM share."""

    def __init__(self) -> None:
        self.kernels: list[Kernel] = []
        self._row_of: dict[Kernel, int] = {}
        self.row_of_id: dict[int, int] = {}
        self._kept: list[Kernel] = []  # an id names an object only while it lives

    def add(self, graph: KernelGraph) -> None:
        """Give every kernel of ``graph`` that runs on the GPU a row."""
        by_id = self.row_of_id
        for step in graph.steps:
            for kernel in step.kernels:
                if id(kernel) in by_id:
                    continue
                row = self._row_of.get(kernel)
                if row is None:
                    row = self._row_of[kernel] = len(self.kernels)
                    self.kernels.append(kernel)
                self._kept.append(kernel)
                by_id[id(kernel)] = row


@frozen
class LaunchProgram:
    """Hold a lowered model flattened to launches, ready for arithmetic on arrays.

    ``kernel[i]`` is the row of launch i in the table of distinct kernels, ``step[i]`` the step it belongs to,
    ``repeat[i]`` how often it runs; ``calls[s]`` is the number of framework calls of step s, trips included. In one
    CUDA graph (``one_graph``) the first step has the time of the launch, counted in calls.
    """

    steps: tuple[Step, ...]
    kernel: Array
    step: Array
    repeat: Array
    calls: Array
    one_graph: bool = False

    @property
    def launches(self) -> int:
        """Return the kernel launches of one inference, trips counted."""
        return int(self.repeat.sum())

    def captured(self, launch_calls: float) -> LaunchProgram:
        """Return the same launches as one CUDA graph, which the host launches in the time of ``launch_calls`` framework
        calls; the kernels follow each other on the device without it.
        """
        calls = np.zeros(self.calls.size)
        calls[:1] = launch_calls
        return replace(self, calls=calls, one_graph=True)

    def only(self, kept: Array) -> LaunchProgram:
        """Return the program of the steps for which ``kept`` (a boolean per step) holds, as if the others
        were not there.
        """
        launches = kept[self.step]
        place = np.cumsum(kept) - 1
        return LaunchProgram(
            steps=tuple([step for step, stays in zip(self.steps, kept.tolist(), strict=True) if stays]),
            kernel=self.kernel[launches],
            step=place[self.step[launches]],
            repeat=self.repeat[launches],
            calls=self.calls[kept],
        )

    def unrolled(self) -> LaunchProgram:
        """Return the same launches trip by trip: neighbouring steps that run equally often are the body of a loop, as a
        decoder's layers are, whose trips follow each other. A program that would grow too long stays as it is.
        """
        repeats = np.array([step.repeat for step in self.steps], dtype=np.intp)
        if not repeats.size or repeats.sum() > _MOST_UNROLLED:
            return self
        bounds = [0, *(np.flatnonzero(np.diff(repeats)) + 1), repeats.size]
        bodies = [np.tile(np.arange(a, b), repeats[a]) for a, b in pairwise(bounds)]
        order = np.concatenate(bodies)
        first, last = (
            np.searchsorted(self.step, np.arange(repeats.size), side=side) for side in ("left", "right")
        )
        counts = (last - first)[order]
        before = np.cumsum(counts) - counts
        launches = np.repeat(first[order] - before, counts) + np.arange(counts.sum())
        once = [replace(step, repeat=1) for step in self.steps]
        return LaunchProgram(
            steps=tuple([once[at] for at in order.tolist()]),
            kernel=self.kernel[launches],
            step=np.repeat(np.arange(order.size), counts),
            repeat=np.ones(launches.size),
            calls=(self.calls / repeats)[order],
        )

    def producers(self) -> tuple[tuple[int, ...], ...]:
        """Return for each step the earlier steps that it waits for: who wrote what it touches, who reads what it
        overwrites.
        """
        writer: dict[str, int] = {}
        readers: dict[str, list[int]] = {}
        producers: list[tuple[int, ...]] = []
        for at, step in enumerate(self.steps):
            written = [name for name, _ in step.writes]
            awaited = {writer[name] for name in (*step.reads, *written) if name in writer}
            for name in written:
                awaited.update(readers.pop(name, ()))
            producers.append(tuple(sorted(awaited)))
            for name in step.reads:
                readers.setdefault(name, []).append(at)
            for name in written:
                writer[name] = at
        return tuple(producers)

    @classmethod
    def of(cls, steps: Sequence[Step], row_of: Mapping[int, int]) -> LaunchProgram:
        """Flatten ``steps``; ``row_of`` maps ``id(kernel)`` to its row in the table of distinct kernels."""
        kernel: list[int] = []
        owner: list[int] = []
        repeat: list[int] = []
        for at, step in enumerate(steps):
            for k in step.kernels:
                kernel.append(row_of[id(k)])
                owner.append(at)
                repeat.append(step.repeat)
        return cls(
            steps=tuple(steps),
            kernel=np.array(kernel, dtype=np.intp),
            step=np.array(owner, dtype=np.intp),
            repeat=np.array(repeat, dtype=np.float64),
            calls=np.array([float(s.host_calls) * s.repeat for s in steps], dtype=np.float64),
        )


@frozen
class Timeline:
    """Hold start and end of every launch in microseconds from the first launch; ``stream`` of each;
    ``end_us`` the whole.

    ``host_us`` is the time the host needs to issue everything; ``busy_us`` the sum of the kernels' durations.
    """

    start_us: Array
    end_us: Array
    stream: Array
    total_us: float
    host_us: float
    busy_us: float


def schedule(
    program: LaunchProgram, duration_us: Array, *, host_overhead_us: float, streams: int = 1
) -> Timeline:
    """Lay the launches out in time.

    ``duration_us[i]`` is the time of one run of launch i. On one stream the end of launch i is ``max over j
    <= i of (issue_j + sum of durations j..i)``, a running maximum. On several streams a step goes to the
    stream that is free first once its producers are done; overlapping kernels are not slowed down here, but
    the whole never ends before the work would on a GPU kept full (the caller passes utilisations to check).
    """
    spans = duration_us * program.repeat
    issued = np.cumsum(program.calls) * host_overhead_us
    host = float(issued[-1]) if issued.size else 0.0
    busy = float(spans.sum())
    if not spans.size:
        empty = np.zeros(0)
        return Timeline(
            start_us=empty, end_us=empty, stream=empty.astype(int), total_us=host, host_us=host, busy_us=0.0
        )
    # A repeated step is issued trip by trip: its first trip can start after one trip's calls, and its last trip
    # cannot start before all of them are issued.
    trips = program.repeat
    calls = program.calls[program.step] * host_overhead_us
    last_issue = issued[program.step]
    ready = np.maximum(last_issue - calls + calls / trips, last_issue - (trips - 1) * duration_us)
    if streams <= 1:
        done = np.cumsum(spans)
        end = done + np.maximum.accumulate(ready - (done - spans))
        start = end - spans
        stream = np.zeros(spans.size, dtype=int)
    else:
        start, end, stream = _on_streams(program, spans, ready, streams)
    return Timeline(
        start_us=start,
        end_us=end,
        stream=stream,
        total_us=max(float(end.max()), host),
        host_us=host,
        busy_us=busy,
    )


def _on_streams(
    program: LaunchProgram, spans: Array, ready: Array, streams: int
) -> tuple[Array, Array, Array]:
    producers = program.producers()
    first = np.searchsorted(program.step, np.arange(len(program.steps)), side="left")
    last = np.searchsorted(program.step, np.arange(len(program.steps)), side="right")
    free = [0.0] * streams
    step_end = [0.0] * len(program.steps)
    start = np.zeros(spans.size)
    end = np.zeros(spans.size)
    stream = np.zeros(spans.size, dtype=int)
    for at in range(len(program.steps)):
        inputs_done = max((step_end[p] for p in producers[at]), default=0.0)
        # The stream that is free first; of equals the lowest, so that the answer is always the same.
        lane = min(range(streams), key=lambda s: (max(free[s], inputs_done), s))
        clock = max(free[lane], inputs_done)
        for i in range(int(first[at]), int(last[at])):
            start[i] = max(clock, float(ready[i]))
            clock = end[i] = start[i] + float(spans[i])
            stream[i] = lane
        if last[at] > first[at]:
            free[lane] = clock
        step_end[at] = clock
    return start, end, stream


def concurrent_maxima(
    timeline: Timeline, values: Mapping[str, Array], *, tau_ms: float = TAU_MS
) -> NamedNumbers:
    """Return the largest sum over concurrent launches of each named per-launch value (USHER's Creq, Mreq).

    Launches are concurrent when they run on different streams and their starts differ by at most ``tau_ms``
    or their intervals overlap. On one stream every set is a single launch. NaN values are unknown and make
    the maximum NaN.
    """
    if timeline.start_us.size == 0:
        return dict.fromkeys(values, float("nan"))
    # On one stream nothing overlaps: every launch is alone.
    if not np.any(timeline.stream):
        return {name: float(np.max(v)) for name, v in values.items()}
    # Only a launch that starts can make a larger set, so sets are looked at when one starts.
    order = np.argsort(timeline.start_us, kind="stable")
    tau = tau_ms * 1e3
    best = {name: np.nan if np.isnan(v).any() else -np.inf for name, v in values.items()}
    running: dict[int, int] = {}  # stream -> launch
    for i in order:
        now = timeline.start_us[i]
        running = {
            s: j
            for s, j in running.items()
            if s != timeline.stream[i] and (timeline.end_us[j] > now or now - timeline.start_us[j] <= tau)
        }
        running[int(timeline.stream[i])] = int(i)
        members = list(running.values())
        for name, v in values.items():
            best[name] = np.maximum(best[name], v[members].sum())  # NaN stays NaN
    return {name: float(b) for name, b in best.items()}
