"""Measuring one pair after the other with the workers at hand."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gkestimator.core.errors import GkestimatorError
from gkestimator.core.records import frozen
from gkestimator.profiling.colocating.fleet import Worker, WorkerFleet
from gkestimator.profiling.colocating.journal import SideRecord
from gkestimator.profiling.colocating.order import PairJob
from gkestimator.profiling.colocating.process import AnswerError, WorkerError
from gkestimator.profiling.colocating.window import Loop, Times, loop_of, side_by_side, times
from gkestimator.profiling.plan import PlanEntry, SweepPlan, write_plan

LEAST_CALLS = 3
"""Calls of a model that must count for its median to be one."""
_LEAD_S = 0.3
"""Between the order and the start: both hear of it, and warm up meanwhile."""
_ALONE_S = 1.0
_CALLS_WANTED = 10
_MOST_RUN_S = 60.0
_HANG_S = 30.0
_HANG_CALLS = 20
_FASTER = 0.9
"""Beside another a model is not faster than alone; below this part of its time alone the latter is measured anew."""
_IMPLAUSIBLE = 0.5
Sides = Sequence[tuple[Worker, PlanEntry]]
Span = tuple[int, int]
"""The wall clock's nanoseconds between which something was measured."""


@frozen
class Alone:
    """A latency alone that counts for every pair of ``entry`` in ``worker`` from now on, unless it is forgotten."""

    worker: Worker
    entry: PlanEntry
    span: Span

    def forget(self) -> None:
        """The next pair measures it anew."""
        self.worker.alone.pop(self.entry.id, None)


class PairFailed(GkestimatorError):  # noqa: N818 - a result, not a defect
    """A pair that could not be measured. ``entries``: those that fail by themselves, none where the pair does;
    ``broke``: a worker broke at it."""

    def __init__(self, message: object, *, entries: Sequence[PlanEntry] = (), broke: bool = False) -> None:
        super().__init__(message)
        self.entries = tuple(entries)
        self.broke = broke


class WorkerSession:
    """``files``: a folder for entries on their way to workers."""

    def __init__(
        self, fleet: WorkerFleet, files: Path, *, runtime: str, seed: int, seconds: float, entry_s: float
    ) -> None:
        self.fleet = fleet
        self._files = files
        self._runtime = runtime
        self._seed = seed
        self._seconds = seconds
        self._entry_s = entry_s
        self._preparing_s: list[float] = []
        self._fresh: list[Alone] = []

    def fresh(self) -> list[Alone]:
        """What was measured alone since this was asked last."""
        found = self._fresh
        self._fresh = []
        return found

    def expected_s(self, job: PairJob) -> float:
        """Seconds that measuring ``job`` will take, as far as earlier ones tell."""
        running = {w.slot: w for w in self.fleet.all()}
        if self._preparing_s:
            each = sum(self._preparing_s) / len(self._preparing_s)
        else:
            each = 1.0
        known = [
            w.alone[e.id].median_ms / 1e3 for w in running.values() for e in job.entries if e.id in w.alone
        ]
        total = self._side_by_side_s(max(known, default=0.0)) + _LEAD_S
        for slot, entry in zip(job.slots, job.entries, strict=True):
            worker = running.get(slot)
            if worker is None:
                total += self.fleet.start_s or 0.0
            if worker is None or entry.id not in worker.held:
                total += each
            if worker is None or entry.id not in worker.alone:
                total += min(self._seconds, _ALONE_S) + _LEAD_S
        return total

    def _side_by_side_s(self, slowest_s: float) -> float:
        return max(self._seconds, min(_MOST_RUN_S, _CALLS_WANTED * slowest_s))

    def ready(self, job: PairJob) -> Sides:
        """Workers with the models of ``job`` prepared, in the order of its entries. Raises PairFailed."""
        try:
            workers = self.fleet.get(job.slots)
        except WorkerError as e:
            raise PairFailed(f"a worker does not start: {e}", broke=True) from e
        sides = list(zip(workers, job.entries, strict=True))
        other = list(zip(workers[::-1], job.entries, strict=True))
        if job.shares[0] == job.shares[1] and _missing(other) < _missing(sides):
            sides = other  # which of two equal workers has which model does not matter
        self._prepare(sides)
        return sides

    def measure(self, job: PairJob) -> tuple[tuple[SideRecord, ...], Span]:
        """The two sides of ``job``, and the wall clock's nanoseconds between which they ran side by side. Raises
        PairFailed."""
        sides = self.ready(job)
        alone = [self._alone(w, e) for w, e in sides]
        together, span = self._together(sides, alone)
        if any(t.median_ms < _FASTER * a.median_ms for t, a in zip(together, alone, strict=True)):
            for worker, entry in sides:
                worker.alone.pop(entry.id, None)
            alone = [self._alone(w, e) for w, e in sides]
            together, span = self._together(sides, alone)
        for (_, entry), t, a in zip(sides, together, alone, strict=True):
            if t.median_ms < _IMPLAUSIBLE * a.median_ms:
                raise PairFailed(
                    f"{_name(entry)}: found {t.median_ms:.3g} ms beside the other and {a.median_ms:.3g} ms alone, "
                    "expected no less: something else slowed it down alone"
                )
        return tuple(map(_side, sides, alone, together)), span

    def _prepare(self, sides: Sides) -> None:
        keep = [e.id for _, e in sides]
        missing = [(w, e) for w, e in sides if e.id not in w.held]
        try:
            self._all(missing, lambda e: self._preparation(e, keep), self._entry_s)
        except _Failed as e:
            if not e.memory:
                raise self._verdict(e, of_entry=True) from e
            self._free(sides)
            for side in missing:
                try:
                    self._all([side], lambda x: self._preparation(x, keep), self._entry_s)
                except _Failed as again:
                    raise self._verdict(again, of_entry=True) from again

    def _preparation(self, entry: PlanEntry, keep: Sequence[str]) -> dict[str, Any]:
        file = self._files / f"{entry.id}.json"
        if not file.exists():
            write_plan(SweepPlan(runtime=self._runtime, entries=(entry,), seed=self._seed), file)
        return {"do": "prepare", "entry": entry.id, "file": str(file), "keep": list(keep)}

    def _free(self, sides: Sides) -> None:
        """Memory ran out: close what no side needs, in all workers."""
        needed = {id(w): [e.id] for w, e in sides}
        for worker in self.fleet.all():
            keep = needed.get(id(worker), [])
            if worker.held - set(keep):
                try:
                    number = worker.process.send({"do": "close", "keep": keep})
                    self._take(worker, worker.process.answer(number, within_s=_HANG_S, tick=self.fleet.tick))
                except WorkerError:
                    self.fleet.broken(worker)

    def _alone(self, worker: Worker, entry: PlanEntry) -> Times:
        if entry.id in worker.alone:
            return worker.alone[entry.id]
        seconds = min(self._seconds, _ALONE_S)
        call_s = worker.call_s.get(entry.id, 0.0)
        most = 2 * LEAST_CALLS * call_s
        began = time.time_ns()
        (loop,) = self._run([(worker, entry)], seconds, most, of_entry=True, call_s=call_s)
        found = times(side_by_side([loop])[0])
        if found is None or found.calls < LEAST_CALLS:
            count = 0 if found is None else found.calls
            within = max(seconds, most)
            raise PairFailed(f"{_name(entry)}: {count} calls within {within:.3g} s, expected {LEAST_CALLS}")
        worker.alone[entry.id] = found
        self._fresh.append(
            Alone(worker=worker, entry=entry, span=(began + int(_LEAD_S * 1e9), time.time_ns()))
        )
        return found

    def _together(self, sides: Sides, alone: Sequence[Times]) -> tuple[list[Times], Span]:
        slowest = max(t.median_ms for t in alone) / 1e3
        seconds = self._side_by_side_s(slowest)
        for tries in (1, 4):
            began = time.time_ns()
            loops = self._run(sides, seconds * tries, seconds * tries, of_entry=False, call_s=slowest)
            found = [times(d) for d in side_by_side(loops)]
            if all(t is not None and t.calls >= LEAST_CALLS for t in found):
                return [t for t in found if t is not None], (began + int(_LEAD_S * 1e9), time.time_ns())
        counts = " and ".join(str(0 if t is None else t.calls) for t in found)
        raise PairFailed(
            f"{counts} calls lie wholly within {4 * seconds:.3g} s side by side, expected {LEAST_CALLS} each"
        )

    def _run(self, sides: Sides, seconds: float, most: float, *, of_entry: bool, call_s: float) -> list[Loop]:
        within = _LEAD_S + max(seconds, most) + max(_HANG_S, _HANG_CALLS * call_s)
        for first in (True, False):
            start = time.monotonic_ns() + int(_LEAD_S * 1e9)
            try:
                answers = self._all(
                    sides,
                    lambda e, start=start: {  # type: ignore[misc]
                        "do": "run",
                        "entry": e.id,
                        "start_ns": start,
                        "seconds": seconds,
                        "least": LEAST_CALLS if of_entry else 1,
                        "most_seconds": most,
                    },
                    within,
                )
                return [loop for loop in answers if loop is not None]
            except _Failed as e:
                if not (e.memory and first):
                    raise self._verdict(e, of_entry=of_entry) from e
                self._free(sides)
        raise AssertionError("the second attempt returns or raises")

    def _all(
        self, sides: Sides, request: Callable[[PlanEntry], dict[str, Any]], within_s: float
    ) -> list[Loop | None]:
        """Ask every side, then hear every side; the loops that they tell of. Raises _Failed."""
        failed: list[_Failure] = []
        asked: list[tuple[Worker, PlanEntry, int]] = []
        found: list[Loop | None] = []
        for worker, entry in sides:
            try:
                asked.append((worker, entry, worker.process.send(request(entry))))
            except WorkerError as e:
                failed.append(_Failure(e, worker, entry))
        for worker, entry, number in asked:
            try:
                answer = worker.process.answer(number, within_s=within_s, tick=self.fleet.tick)
                self._take(worker, answer)
                if isinstance(answer.get("call_s"), int | float):
                    worker.call_s[entry.id] = float(answer["call_s"])
                found.append(loop_of(answer) if "ends_ns" in answer else None)
            except (AnswerError, WorkerError) as e:
                failed.append(_Failure(e, worker, entry))
        for each in failed:
            if isinstance(each.error, WorkerError):
                self.fleet.broken(each.worker)
        if failed:
            raise _Failed(failed)
        return found

    def _verdict(self, failed: _Failed, *, of_entry: bool) -> PairFailed:
        return failed.of_pair(of_entry=of_entry, together=self.fleet.together)

    def _take(self, worker: Worker, answer: dict[str, Any]) -> None:
        held = answer.get("held")
        if isinstance(held, list):
            worker.held = {str(h) for h in held}
        seconds = answer.get("seconds")
        if isinstance(seconds, int | float):
            self._preparing_s.append(float(seconds))


@dataclass(frozen=True, slots=True)
class _Failure:
    """What one side failed at."""

    error: AnswerError | WorkerError
    worker: Worker
    entry: PlanEntry


class _Failed(Exception):  # noqa: N818 - not yet an error
    """Sides that failed, before it is known what that means. ``memory``: memory ran out, and nothing else."""

    def __init__(self, failures: Sequence[_Failure]) -> None:
        super().__init__(*failures)
        self.failures = failures
        self.memory = all(isinstance(f.error, AnswerError) and f.error.memory for f in failures)

    def of_pair(self, *, of_entry: bool, together: bool) -> PairFailed:
        """``of_entry``: each side was on its own, so that it is its own failure. But where workers break ``together``
        nobody knows which of two broke the other."""
        words = []
        for f in self.failures:
            who = "its worker " if isinstance(f.error, WorkerError) else ""
            words.append(f"{_name(f.entry)}: {who}{f.error}")
        broke = sum(isinstance(f.error, WorkerError) for f in self.failures)
        blamed = [
            f.entry
            for f in self.failures
            if (not f.error.memory if isinstance(f.error, AnswerError) else broke == 1 or not together)
        ]
        return PairFailed("; ".join(words), entries=blamed if of_entry else (), broke=broke > 0)


def _missing(sides: Sides) -> int:
    return sum((e.id not in w.held) + (e.id not in w.alone) for w, e in sides)


def _dims(entry: PlanEntry) -> str:
    """The bound dimensions as tables have them: ``name=value``, sorted, comma-joined."""
    if entry.model is None:
        return ""
    return ",".join(f"{k}={v}" for k, v in sorted(entry.model.dims.items()))


def _name(entry: PlanEntry) -> str:
    if entry.model is None:
        return entry.id
    if entry.model.batch_size is None:
        batch = ""
    else:
        batch = f", batch {entry.model.batch_size}"
    return f"{entry.model.name} ({entry.dtype}{batch})"


def _side(side: tuple[Worker, PlanEntry], alone: Times, together: Times) -> SideRecord:
    worker, entry = side
    assert entry.model is not None, "whole models alone are paired"
    return SideRecord(
        entry_id=entry.id,
        model=entry.model.name,
        dtype=entry.dtype,
        batch_size=entry.model.batch_size,
        dims=_dims(entry),
        sm_share_pct=worker.slot[1],
        sms=worker.sms,
        latency_alone_ms=alone.median_ms,
        alone_calls=alone.calls,
        latency_together_ms=together.median_ms,
        together_calls=together.calls,
        together_p90_ms=together.p90_ms,
    )
