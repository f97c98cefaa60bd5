"""Measuring one pair after the other with the workers at hand."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gkestimator.core.errors import GkestimatorError
from gkestimator.core.records import frozen
from gkestimator.profiling.colocating.fleet import Worker, WorkerFleet
from gkestimator.profiling.colocating.journal import SideRecord
from gkestimator.profiling.colocating.order import PairJob, model_name
from gkestimator.profiling.colocating.process import WorkerError
from gkestimator.profiling.colocating.window import NO_TIMES, Loop, Times, loop_of, side_by_side, times
from gkestimator.profiling.plan import PlanEntry, SweepPlan, write_plan
from gkestimator.profiling.type_names import Fields, Members

# Calls of a model that must count for its median to be one.
LEAST_CALLS = 3
# Between the order and the start: both hear of it, and warm up meanwhile.
_LEAD_S = 0.3
_ALONE_S = 1.0
_CALLS_WANTED = 10
_MOST_RUN_S = 60.0
_HANG_S = 30.0
_HANG_CALLS = 20
# Beside another a model is not faster than alone; below this part of its time alone the latter is measured
# anew.
_FASTER = 0.9
_IMPLAUSIBLE = 0.5
Sides = Sequence[tuple[Worker, PlanEntry]]
Requests = Callable[[Sides], Sequence[Members]]
# The wall clock's nanoseconds between which something was measured.
Span = tuple[int, int]


@frozen
class Alone:
    """Name a latency alone that counts for every pair of ``entry`` in ``worker`` from now on, unless it is
    forgotten."""

    worker: Worker
    entry: PlanEntry
    span: Span

    def forget(self) -> None:
        """Have the next pair measure it anew."""
        self.worker.alone.pop(self.entry.id, None)


class PairFailed(GkestimatorError):  # noqa: N818 - a result, not a defect
    """Say that a pair could not be measured. ``entries``: those that fail by themselves, none where the pair does;
    ``broke``: a worker broke at it."""

    def __init__(self, message: object, *, entries: Sequence[PlanEntry] = (), broke: bool = False) -> None:
        super().__init__(message)
        self.entries = tuple(entries)
        self.broke = broke


@frozen
class _Failure:
    """Say what one side failed at."""

    error: WorkerError
    worker: Worker
    entry: PlanEntry


@dataclass(kw_only=True)
class WorkerSession:
    """Measure pairs with the workers of ``fleet``. ``files``: a folder for entries on their way to workers;
    ``seconds``: how long a pair runs side by side; ``entry_s``: how long preparing a model may take;
    ``preparing_s``: how long it took; ``alone``: what was measured alone since :meth:`fresh` was asked."""

    fleet: WorkerFleet
    files: Path
    runtime: str
    seed: int
    seconds: float
    entry_s: float
    preparing_s: list[float] = field(default_factory=list)
    alone: list[Alone] = field(default_factory=list)

    def fresh(self) -> list[Alone]:
        """Return what was measured alone since this was asked last."""
        fresh = self.alone
        self.alone = []
        return fresh

    def expected_s(self, job: PairJob) -> float:
        """Return the seconds that measuring ``job`` will take, as far as earlier ones tell."""
        running = {w.slot: w for w in self.fleet.all()}
        preparing_s = sum(self.preparing_s) / len(self.preparing_s) if self.preparing_s else 1.0
        slowest_s = 0.0
        total = _LEAD_S
        for slot, entry in zip(job.slots, job.entries, strict=True):
            worker = running.get(slot)
            if worker is None:
                total += self.fleet.start_s or 0.0
            if worker is None or entry.id not in worker.held:
                total += preparing_s
            if worker is None or entry.id not in worker.alone:
                total += min(self.seconds, _ALONE_S) + _LEAD_S
        for worker in running.values():
            for entry in job.entries:
                if entry.id in worker.alone:
                    slowest_s = max(slowest_s, worker.alone[entry.id].median_ms / 1e3)
        return total + self._side_by_side_s(slowest_s)

    def _side_by_side_s(self, slowest_s: float) -> float:
        return max(self.seconds, min(_MOST_RUN_S, _CALLS_WANTED * slowest_s))

    def try_ready(self, job: PairJob) -> None:
        """Prepare the models of ``job``; one that fails here is met again later."""
        with contextlib.suppress(PairFailed):
            self._ready(job)

    def _ready(self, job: PairJob) -> Sides:
        """Return workers with the models of ``job`` prepared, in the order of its entries. Raises PairFailed."""
        try:
            workers = self.fleet.get(job.slots)
        except WorkerError as e:
            raise PairFailed(f"a worker does not start: {e}", broke=True) from e
        sides = list(zip(workers, job.entries, strict=True))
        other = list(zip(workers[::-1], job.entries, strict=True))
        if job.shares[0] == job.shares[1] and _missing(other) < _missing(sides):
            sides = other  # which of two equal workers has which model does not matter
        missing = [(w, e) for w, e in sides if e.id not in w.held]
        keep = [e.id for _, e in sides]

        def preparation(asked: Sides) -> list[Fields]:
            return [
                {"do": "prepare", "entry": e.id, "file": str(self._file(e)), "keep": keep} for _, e in asked
            ]

        again = [[side] for side in missing]
        self._ask_twice(missing, preparation, self.entry_s, again, sides, of_entry=True)
        return sides

    def _file(self, entry: PlanEntry) -> Path:
        file = self.files / f"{entry.id}.json"
        if not file.exists():
            write_plan(SweepPlan(runtime=self.runtime, entries=(entry,), seed=self.seed), file)
        return file

    def measure(self, job: PairJob) -> tuple[tuple[SideRecord, ...], Span]:
        """Measure ``job``; return its two sides, and the wall clock's nanoseconds between which they ran side
        by side. Raises PairFailed."""
        sides = self._ready(job)
        alone, together, span = self._compare(sides)
        # What is faster beside another was disturbed when it was alone.
        if any(t.median_ms < _FASTER * a.median_ms for a, t in zip(alone, together, strict=True)):
            for worker, entry in sides:
                worker.alone.pop(entry.id, None)
            alone, together, span = self._compare(sides)
        for (_, entry), a, t in zip(sides, alone, together, strict=True):
            if t.median_ms < _IMPLAUSIBLE * a.median_ms:
                raise PairFailed(
                    f"{_name(entry)}: found {t.median_ms:.3g} ms beside the other and {a.median_ms:.3g} ms alone, "
                    "expected no less: something else slowed it down alone"
                )
        return tuple(map(_side, sides, alone, together)), span

    def _compare(self, sides: Sides) -> tuple[list[Times], list[Times], Span]:
        """Return latencies alone (measured where they are not known) and together, and when the latter was."""
        alone = [self._alone(worker, entry) for worker, entry in sides]
        slowest_s = max(t.median_ms for t in alone) / 1e3
        seconds = self._side_by_side_s(slowest_s)
        # Slow calls may not overlap often enough: once more, and longer, before giving up.
        for tries in (1, 4):
            began = time.time_ns()
            loops = self._run(sides, seconds * tries, seconds * tries, slowest_s, of_entry=False)
            together = [times(durations) for durations in side_by_side(loops)]
            if all(t.calls >= LEAST_CALLS for t in together):
                return alone, together, (began + int(_LEAD_S * 1e9), time.time_ns())
        counts = " and ".join(str(t.calls) for t in together)
        raise PairFailed(
            f"{counts} calls lie wholly within {4 * seconds:.3g} s side by side, expected {LEAST_CALLS} each"
        )

    def _alone(self, worker: Worker, entry: PlanEntry) -> Times:
        if entry.id in worker.alone:
            return worker.alone[entry.id]
        seconds = min(self.seconds, _ALONE_S)
        call_s = worker.call_s.get(entry.id, 0.0)
        most = 2 * LEAST_CALLS * call_s
        began = time.time_ns()
        loops = self._run([(worker, entry)], seconds, most, call_s, of_entry=True)
        measured = times(side_by_side(loops)[0]) if loops else NO_TIMES
        if measured.calls < LEAST_CALLS:
            within = max(seconds, most)
            raise PairFailed(
                f"{_name(entry)}: {measured.calls} calls within {within:.3g} s, expected {LEAST_CALLS}"
            )
        worker.alone[entry.id] = measured
        span = (began + int(_LEAD_S * 1e9), time.time_ns())
        self.alone.append(Alone(worker=worker, entry=entry, span=span))
        return measured

    def _run(self, sides: Sides, seconds: float, most: float, call_s: float, *, of_entry: bool) -> list[Loop]:
        def calls(asked: Sides) -> list[Fields]:
            request = {
                "do": "run",
                "start_ns": time.monotonic_ns() + int(_LEAD_S * 1e9),
                "seconds": seconds,
                "least": LEAST_CALLS if of_entry else 1,
                "most_seconds": most,
            }
            return [{**request, "entry": entry.id} for _, entry in asked]

        within_s = _LEAD_S + max(seconds, most) + max(_HANG_S, _HANG_CALLS * call_s)
        return self._ask_twice(sides, calls, within_s, [sides], sides, of_entry=of_entry)

    def _ask_twice(
        self,
        sides: Sides,
        requests: Requests,
        within_s: float,
        again: Sequence[Sides],
        needed: Sides,
        *,
        of_entry: bool,
    ) -> list[Loop]:
        """Ask all ``sides`` at once; where memory ran out and nothing else, close what ``needed`` sides do
        not need and ask those of ``again`` in turn. Return the loops that they tell of. Raises PairFailed."""
        loops, failures = self._ask(sides, requests, within_s)
        if failures and all(f.error.memory for f in failures):
            self._free(needed)
            for turn in again:
                loops, failures = self._ask(turn, requests, within_s)
                if failures:
                    break
        if failures:
            raise self._verdict(failures, of_entry=of_entry)
        return loops

    def _ask(self, sides: Sides, requests: Requests, within_s: float) -> tuple[list[Loop], list[_Failure]]:
        """Ask every side, then hear every side; return the loops that they tell of, and what failed."""
        loops: list[Loop] = []
        failures: list[_Failure] = []
        asked: list[tuple[Worker, PlanEntry, int]] = []
        for (worker, entry), request in zip(sides, requests(sides), strict=True):
            try:
                asked.append((worker, entry, worker.process.send(request)))
            except WorkerError as e:
                failures.append(_Failure(error=e, worker=worker, entry=entry))
        for worker, entry, number in asked:
            try:
                answer = self._hear(worker, number, within_s)
                if isinstance(answer.get("call_s"), int | float):
                    worker.call_s[entry.id] = float(answer["call_s"])
                if "ends_ns" in answer:
                    loops.append(loop_of(answer))
            except WorkerError as e:
                failures.append(_Failure(error=e, worker=worker, entry=entry))
        for failure in failures:
            if failure.error.broke:
                self.fleet.broken(failure.worker)
        return loops, failures

    def _hear(self, worker: Worker, number: int, within_s: float) -> Fields:
        answer = worker.process.answer(number, within_s=within_s, tick=self.fleet.tick)
        held = answer.get("held")
        if isinstance(held, list):
            worker.held = {str(h) for h in held}
        seconds = answer.get("seconds")
        if isinstance(seconds, int | float):
            self.preparing_s.append(float(seconds))
        return answer

    def _free(self, sides: Sides) -> None:
        """Memory ran out: close what no side needs, in all workers."""
        # The models of other pairs can be prepared again; this pair cannot go on without its own.
        needed = {id(worker): [entry.id] for worker, entry in sides}
        for worker in self.fleet.all():
            keep = needed.get(id(worker), [])
            if worker.held - set(keep):
                try:
                    self._hear(worker, worker.process.send({"do": "close", "keep": keep}), _HANG_S)
                except WorkerError:
                    self.fleet.broken(worker)

    def _verdict(self, failures: Sequence[_Failure], *, of_entry: bool) -> PairFailed:
        """Return whose fault it was. ``of_entry``: each side was on its own, so that it is its own failure.
        But where workers break together nobody knows which of two broke the other."""
        words = []
        blamed = []
        broke = sum(f.error.broke for f in failures)
        for failure in failures:
            error = failure.error
            who = "its worker " if error.broke else ""
            words.append(f"{_name(failure.entry)}: {who}{error}")
            alone = broke == 1 or not self.fleet.together
            if of_entry and (alone if error.broke else not error.memory):
                blamed.append(failure.entry)
        return PairFailed("; ".join(words), entries=blamed, broke=broke > 0)


def _missing(sides: Sides) -> int:
    return sum((e.id not in w.held) + (e.id not in w.alone) for w, e in sides)


def _name(entry: PlanEntry) -> str:
    if entry.model is None:
        return entry.id
    batch = "" if entry.model.batch_size is None else f", batch {entry.model.batch_size}"
    return f"{model_name(entry)} ({entry.dtype}{batch})"


def _side(side: tuple[Worker, PlanEntry], alone: Times, together: Times) -> SideRecord:
    worker, entry = side
    model = entry.model
    assert model is not None, "whole models alone are paired"
    return SideRecord(
        entry_id=entry.id,
        model=model.name,
        dtype=entry.dtype,
        batch_size=model.batch_size,
        dims=",".join(f"{name}={size}" for name, size in sorted(model.dims.items())),
        sm_share_pct=worker.slot[1],
        sms=worker.sms,
        latency_alone_ms=alone.median_ms,
        alone_calls=alone.calls,
        latency_together_ms=together.median_ms,
        together_calls=together.calls,
        together_p90_ms=together.p90_ms,
    )
