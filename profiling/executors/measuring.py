"""One entry, measured: warm-up, repeats inside its range, what the host saw. The clocks are passed in."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import pairwise

from gkestimator.profiling.executors.base import Executor, Prepared
from gkestimator.profiling.plan import PlanEntry
from gkestimator.profiling.records import EntryRecord

__all__ = ["LEAST_REPEATS", "MOST_REPEATS", "Clocks", "Effort", "choose_repeats", "measure"]

LEAST_REPEATS, MOST_REPEATS = 5, 50
Ranges = Callable[[str], AbstractContextManager[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How often to call. ``repeats`` None: as many as take ``min_ms`` together, within LEAST_REPEATS..MOST_REPEATS.
    ``counters``: one call after one warm-up, for a profiler that replays it."""

    warmup: int = 3
    repeats: int | None = None
    min_ms: float = 20.0
    counters: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Clocks:
    """``elapsed_ns`` never goes back; ``unix_ns`` is the wall clock."""

    elapsed_ns: Callable[[], int] = time.perf_counter_ns
    unix_ns: Callable[[], int] = time.time_ns


def choose_repeats(call_ns: int, min_ms: float) -> int:
    """Calls of ``call_ns`` that take at least ``min_ms`` together, within LEAST_REPEATS..MOST_REPEATS."""
    wanted = math.ceil(min_ms * 1e6 / max(1, call_ns))
    return max(LEAST_REPEATS, min(MOST_REPEATS, wanted))


def measure(
    executor: Executor, entry: PlanEntry, *, effort: Effort, seed: int, ranges: Ranges, clocks: Clocks
) -> EntryRecord:
    """Prepare ``entry``, warm up, call it inside ``ranges("<id>#<repeats>")`` and say what was seen. Raises what the
    executor raises; the entry's memory is freed in any case."""
    prepared = executor.prepare(entry, seed)
    try:
        return _measured(prepared, entry, effort, ranges, clocks)
    finally:
        prepared.close()


def _measured(
    prepared: Prepared, entry: PlanEntry, effort: Effort, ranges: Ranges, clocks: Clocks
) -> EntryRecord:
    call_ns = 0
    prepared.synchronise()
    for _ in range(1 if effort.counters else effort.warmup):
        before = clocks.elapsed_ns()
        prepared.run()
        prepared.synchronise()
        call_ns = clocks.elapsed_ns() - before  # the last counts: the first may choose algorithms
    repeats = 1 if effort.counters else effort.repeats or choose_repeats(call_ns, effort.min_ms)
    marks = [0] * (repeats + 1)
    run, now = prepared.run, clocks.elapsed_ns
    collects = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        with ranges(f"{entry.id}#{repeats}"):
            started = clocks.unix_ns()
            marks[0] = now()
            for i in range(1, repeats + 1):
                run()
                marks[i] = now()
            prepared.synchronise()
            done = now()
            ended = clocks.unix_ns()
    finally:
        if collects:
            gc.enable()
    return EntryRecord(
        entry_id=entry.id,
        status="ok",
        repeats=repeats,
        started_unix_ns=started,
        ended_unix_ns=ended,
        host_us=tuple((b - a) / 1e3 for a, b in pairwise(marks)),
        elapsed_us=(done - marks[0]) / 1e3 / repeats,
        output_shapes=tuple(tuple(s) for s in prepared.output_shapes),
        workspace_bytes=prepared.workspace_bytes(),
        kernels=None if effort.counters else prepared.host_kernels(repeats),
    )
