"""One entry, measured: warm-up, repeats inside its range, what the host saw; or, of a whole model, the latency of each
call alone. The clocks are passed in."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from gkestimator.core.records import frozen
from gkestimator.profiling.executors.base import Executor, Prepared
from gkestimator.profiling.plan import PlanEntry
from gkestimator.profiling.records import EntryRecord
from gkestimator.profiling.type_names import Floats, Ints

LEAST_REPEATS = 5
MOST_REPEATS = 50
# A second of calls warms up anything: slow operators are not called more often for it.
_WARM_NS = 1_000_000_000
_USUAL_CALLS = 20
_CALLS_NS = 1_000_000_000
_MOST_CALLS_NS = 4_000_000_000
# Clocks and caches settle, and the first calls' choices are made.
_LEAST_WARM_NS = 200_000_000
_MOST_WARM_NS = 2_000_000_000
Ranges = Callable[[str], AbstractContextManager[None]]


@frozen
class Effort:
    """Say how often to call. ``repeats`` None: as many as take ``min_ms`` together, within
    LEAST_REPEATS..MOST_REPEATS; of a whole model LEAST_REPEATS, for one call has thousands of launches; for
    its latency :func:`choose_calls`. ``counters``: one call after one warm-up, for a profiler that replays
    it."""

    warmup: int = 3
    repeats: int | None = None
    min_ms: float = 20.0
    counters: bool = False


@frozen
class Clocks:
    """Tell the time: ``elapsed_ns`` never goes back; ``unix_ns`` is the wall clock."""

    elapsed_ns: Callable[[], int] = time.perf_counter_ns
    unix_ns: Callable[[], int] = time.time_ns


def choose_repeats(call_ns: int, min_ms: float) -> int:
    """Return the calls of ``call_ns`` that take at least ``min_ms`` together, within LEAST_REPEATS..MOST_REPEATS."""
    wanted = math.ceil(min_ms * 1e6 / max(1, call_ns))
    return max(LEAST_REPEATS, min(MOST_REPEATS, wanted))


def choose_calls(call_ns: int) -> int:
    """Return the calls of a whole model of ``call_ns`` for its latency: 20; more while all take less than a
    second together, MOST_REPEATS at most; fewer where 20 take more than 4 seconds, LEAST_REPEATS at least."""
    call_ns = max(1, call_ns)
    if call_ns * _USUAL_CALLS < _CALLS_NS:
        return min(MOST_REPEATS, _CALLS_NS // call_ns)
    return max(LEAST_REPEATS, min(_USUAL_CALLS, _MOST_CALLS_NS // call_ns))


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


def measure_latency(
    executor: Executor, entry: PlanEntry, *, effort: Effort, seed: int, clocks: Clocks
) -> EntryRecord:
    """Prepare a whole model, warm up, call it and wait for the device, each call alone; then its memory. No profiler
    may run beside it. Raises what the executor raises; the model's memory is freed in any case."""
    prepared = executor.prepare(entry, seed)
    try:
        return _latency(prepared, entry, effort, clocks)
    finally:
        prepared.close()


def _latency(prepared: Prepared, entry: PlanEntry, effort: Effort, clocks: Clocks) -> EntryRecord:
    run = prepared.run
    synchronise = prepared.synchronise
    now = clocks.elapsed_ns
    call_ns = warm_ns = calls = 0
    # What loading left on the device is not the first call's.
    synchronise()
    while (calls < effort.warmup or warm_ns < _LEAST_WARM_NS) and warm_ns < _MOST_WARM_NS:
        before = now()
        run()
        synchronise()
        call_ns = now() - before
        warm_ns += max(1, call_ns)
        calls += 1
    repeats = effort.repeats or choose_calls(call_ns)
    begun = [0] * repeats
    issued = [0] * repeats
    done = [0] * repeats
    with no_collection():
        started = clocks.unix_ns()
        for i in range(repeats):
            begun[i] = now()
            run()
            issued[i] = now()
            synchronise()
            done[i] = now()
        ended = clocks.unix_ns()
    return EntryRecord(
        entry_id=entry.id,
        status="ok",
        repeats=repeats,
        started_unix_ns=started,
        ended_unix_ns=ended,
        host_us=_spans_us(begun, issued),
        elapsed_us=(done[-1] - begun[0]) / 1e3 / repeats,
        output_shapes=_plain(prepared.output_shapes),
        latency_us=_spans_us(begun, done),
        memory=prepared.memory(),
        cpu_nodes=prepared.cpu_nodes,
    )


def _spans_us(begun: Sequence[int], done: Sequence[int]) -> Floats:
    return tuple((end - start) / 1e3 for start, end in zip(begun, done, strict=True))


def _plain(shapes: Iterable[Sequence[int]]) -> tuple[Ints, ...]:
    return tuple(map(tuple, shapes))


@contextmanager
def no_collection() -> Iterator[None]:
    """Let Python's garbage collector rest while calls are timed."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _measured(
    prepared: Prepared, entry: PlanEntry, effort: Effort, ranges: Ranges, clocks: Clocks
) -> EntryRecord:
    call_ns = warm_ns = 0
    prepared.synchronise()
    for _ in range(1 if effort.counters else effort.warmup):
        before = clocks.elapsed_ns()
        prepared.run()
        prepared.synchronise()
        call_ns = clocks.elapsed_ns() - before  # the last counts: the first may choose algorithms
        warm_ns += call_ns
        if warm_ns >= _WARM_NS:
            break
    if effort.counters:
        repeats = 1
    elif effort.repeats is not None:
        repeats = effort.repeats
    elif entry.fragment.is_model:
        repeats = LEAST_REPEATS
    else:
        repeats = choose_repeats(call_ns, effort.min_ms)
    marks = [0] * (repeats + 1)
    run = prepared.run
    now = clocks.elapsed_ns
    # One range around all repeats: a range for each would be in the host's time.
    with no_collection(), ranges(f"{entry.id}#{repeats}"):
        started = clocks.unix_ns()
        marks[0] = now()
        for i in range(1, repeats + 1):
            run()
            marks[i] = now()
        prepared.synchronise()
        done = now()
        ended = clocks.unix_ns()
    return EntryRecord(
        entry_id=entry.id,
        status="ok",
        repeats=repeats,
        started_unix_ns=started,
        ended_unix_ns=ended,
        host_us=_spans_us(marks[:-1], marks[1:]),
        elapsed_us=(done - marks[0]) / 1e3 / repeats,
        output_shapes=_plain(prepared.output_shapes),
        # A whole model's memory is told by its latency pass; one more call would be traced for nothing.
        workspace_bytes=None if entry.fragment.is_model else prepared.workspace_bytes(),
        kernels=None if effort.counters else prepared.host_kernels(repeats),
    )
