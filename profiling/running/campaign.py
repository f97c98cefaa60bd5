"""The state of a run into one raw folder: what is left, what comes next, when to give up. No effects in here."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from gkestimator.profiling.plan import PlanEntry, SweepPlan
from gkestimator.profiling.raw import DeviceFacts
from gkestimator.profiling.running.folder import Done
from gkestimator.profiling.running.jobs import MAX_CHUNK_ENTRIES, ChunkJob, ChunkResult, RunOptions, RunReport

__all__ = ["Campaign"]

UNKNOWN_S = 1.0
"""What an entry of which the plan does not know how long it takes is taken to need, until chunks show better."""
CRASHES_IN_A_ROW, LOST_IN_A_ROW, LOST_COUNTERS_IN_A_ROW = 3, 5, 2
_MOST_PROBLEMS = 200
_PACE_WEIGHT, _PACE_RANGE = 0.3, (0.02, 50.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Item:
    entry: PlanEntry
    pass_name: str = "timeline"
    attempt: int = 1
    stage: int = 0


@dataclass(slots=True)
class _State:
    """What is known of one entry. ``status``: None: not measured; ``ok`` outweighs all. ``good``: an ok record of
    quality ok."""

    status: str | None = None
    good: bool = False
    attempts: int = 0
    counters: str | None = None


class Campaign:
    """Not thread-safe: the engine holds its lock around every call."""

    def __init__(
        self, plan: SweepPlan, options: RunOptions, *, executor: str, collector: str, counters_collector: str | None,
        facts: Mapping[str, DeviceFacts], next_number: int,
    ) -> None:  # fmt: skip
        self.plan, self.options = plan, options
        self.executor, self.collector, self.counters_collector = executor, collector, counters_collector
        self.facts = dict(facts)
        self.problems: list[str] = []
        self.messages: list[str] = []
        self.stopped: str | None = None
        self.stop_status = 0
        self.chunks = 0
        self._number = next_number
        self._states = {e.id: _State() for e in plan.entries}
        self._entries = {e.id: e for e in plan.entries}
        self._main: deque[_Item] = deque()
        self._again: deque[_Item] = deque()
        self._counters: deque[_Item] = deque()
        self._open: dict[int, tuple[_Item, ...]] = {}
        self._pace = 1.0
        self._crashes = self._lost = 0

    def resume(self, done: Iterable[Done]) -> None:
        """Take in what earlier runs committed, then queue the rest."""
        for record in done:
            if record.entry_id in self._states:
                self._take(record.entry_id, record.pass_name, record.attempt, record.status, record.quality)
        for entry in self.plan.entries:
            state = self._states[entry.id]
            if state.status is None:
                self._main.append(_Item(entry=entry))
            else:
                self._follow(entry, state)

    def _take(self, entry: str, pass_name: str, attempt: int, status: str, quality: str) -> None:
        state = self._states[entry]
        if pass_name == "counters":
            state.counters = status
            return
        state.attempts = max(state.attempts, attempt)
        state.good = state.good or (status == "ok" and quality == "ok")
        if state.status != "ok":
            state.status = status

    def _follow(self, entry: PlanEntry, state: _State) -> None:
        """Queue what an entry with a record still needs: another attempt, its counters."""
        if state.status != "ok":
            return
        if not state.good and state.attempts <= self.options.retries:
            self._again.append(_Item(entry=entry, attempt=state.attempts + 1))
        if entry.counters and self.counters_collector and state.counters is None:
            self._counters.append(_Item(entry=entry, pass_name="counters"))

    def next_job(self, device: str, seconds_left: float | None) -> ChunkJob | None:
        """The next chunk for ``device``; None where nothing is left to begin (others may still return some)."""
        queue = next((q for q in (self._main, self._again, self._counters) if q), None)
        if queue is None or self.stopped is not None:
            return None
        budget = self.options.chunk_seconds
        if seconds_left is not None:
            budget = min(budget, max(seconds_left, 0.0))
        items = self._cut(queue, budget)
        number, first = self._number, items[0]
        self._number += 1
        self._open[number] = items
        options = self.options
        counters = first.pass_name == "counters"
        return ChunkJob(
            number=number,
            pass_name=first.pass_name,
            attempt=first.attempt,
            stage=first.stage,
            runtime=self.plan.runtime,
            executor=self.executor,
            collector=self.counters_collector if counters and self.counters_collector else self.collector,
            device=device,
            facts=self.facts[device],
            entries=tuple(i.entry for i in items),
            repeats=options.repeats,
            warmup=options.warmup,
            min_ms=options.min_ms,
            seed=options.seed,
            limits=options.limits,
            min_free_bytes=options.min_free_mb * 2**20,
        )

    def _cut(self, queue: deque[_Item], budget_s: float) -> tuple[_Item, ...]:
        items, seconds = [queue.popleft()], 0.0
        first = items[0]
        seconds += self._seconds(first)
        while queue and first.stage < 2 and len(items) < MAX_CHUNK_ENTRIES:
            following = queue[0]
            if (following.attempt, following.stage) != (first.attempt, first.stage):
                break
            seconds += self._seconds(following)
            if seconds > budget_s:
                break
            items.append(queue.popleft())
        return tuple(items)

    def _seconds(self, item: _Item) -> float:
        planned = item.entry.estimated_s
        return self._pace * (UNKNOWN_S if planned is None else max(planned, 1e-3))

    def finished(self, job: ChunkJob, result: ChunkResult) -> None:
        """What became of a job that :meth:`next_job` gave out."""
        items = self._open.pop(job.number)
        pass_name = job.pass_name
        kept = set()
        for item in items:
            status = result.statuses.get(item.entry.id)
            if status is None:
                continue
            kept.add(item.entry.id)
            self._take(
                item.entry.id, pass_name, item.attempt, status, result.qualities.get(item.entry.id, "ok")
            )
            if status == "failed":
                self.problem(f"{item.entry.id}: failed ({pass_name}): {result.line or 'see its record'}")
            if pass_name == "timeline":
                self._follow_up(item, status, result)
        self.chunks += bool(kept)
        self._learn_pace(items, kept, result)
        left = [i for i in items if i.entry.id not in kept]
        self._return(left, step=result.kind == "lost")
        self._count(job, result)

    def _follow_up(self, item: _Item, status: str, result: ChunkResult) -> None:
        if status != "ok":
            return
        state = self._states[item.entry.id]
        if not state.good and item.attempt <= self.options.retries:
            self._again.append(_Item(entry=item.entry, attempt=item.attempt + 1))
        if item.attempt == 1 and item.entry.counters and self.counters_collector and state.counters is None:
            self._counters.append(_Item(entry=item.entry, pass_name="counters"))

    def _return(self, left: list[_Item], *, step: bool) -> None:
        for item in reversed(left):
            again = replace(item, stage=min(2, item.stage + step))
            queue = self._counters if item.pass_name == "counters" else self._main
            (queue if item.attempt == 1 else self._again).appendleft(again)

    def _learn_pace(self, items: tuple[_Item, ...], kept: set[str], result: ChunkResult) -> None:
        if result.kind != "whole" or len(kept) != len(items):
            return
        planned = sum(self._seconds(i) for i in items) / self._pace
        low, high = _PACE_RANGE
        found = min(high, max(low, result.seconds / planned))
        self._pace += _PACE_WEIGHT * (found - self._pace)

    def _count(self, job: ChunkJob, result: ChunkResult) -> None:
        """Give up where going on is senseless."""
        if "ok" in result.statuses.values():
            self._crashes = self._lost = 0
        elif result.kind == "crashed":
            self._crashes += 1
        if result.kind == "lost":
            self._lost = self._lost + 1
        if result.line and result.kind in ("crashed", "lost"):
            self.problem(f"chunk {job.folder_name}: {result.line}")
        if result.kind == "disk":
            self.disk_full()
        elif result.kind == "usage":
            self.stop(
                f"stopped: {result.line}",
                status=2 if not any(s.status for s in self._states.values()) else 1,
            )
        elif job.pass_name == "counters" and (
            self._lost >= LOST_COUNTERS_IN_A_ROW or self._crashes >= CRASHES_IN_A_ROW
        ):
            self._counters.clear()
            self.problem(f"counters given up: {result.line}")
        elif self._crashes >= CRASHES_IN_A_ROW:
            self.stop(f"stopped: {self._crashes} chunks in a row ended without a result: {result.line}")
        elif self._lost >= LOST_IN_A_ROW:
            self.stop(f"stopped: {self._lost} captures in a row were lost: {result.line}")

    def give_back(self, job: ChunkJob) -> None:
        """A job of which nothing came back (its machine died): all of it is to be done again."""
        self._return(list(self._open.pop(job.number)), step=False)

    def disk_full(self) -> None:
        """Stop before anything is written half."""
        self.stop(
            f"stopped: the disk of the raw folder is full, expected at least {self.options.min_free_mb:.0f} MB free"
        )

    def stop(self, line: str, *, status: int = 1) -> None:
        """Begin nothing more; the first reason stays."""
        if self.stopped is None:
            self.stopped, self.stop_status = line, status

    def problem(self, line: str) -> None:
        """One line for people, each once, not without end."""
        if line not in self.problems and len(self.problems) < _MOST_PROBLEMS:
            self.problems.append(line)

    @property
    def waiting(self) -> int:
        """Items that are queued."""
        return len(self._main) + len(self._again) + len(self._counters)

    @property
    def running(self) -> int:
        """Jobs given out and not come back."""
        return len(self._open)

    def progress(self) -> tuple[str, int, int]:
        """(what is being done, done, of how many) over all passes."""
        stage = (
            "timeline" if self._main else "again" if self._again else "counters" if self._counters else "last"
        )
        open_ = self.waiting + sum(len(i) for i in self._open.values())
        measured = sum(s.status is not None for s in self._states.values())
        return stage, measured, measured + open_

    def report(self, raw: str, minutes: float) -> RunReport:
        """Counts over the whole folder, earlier runs included."""
        states = self._states.values()
        return RunReport(
            raw=raw,
            entries=len(self._states),
            ok=sum(s.status == "ok" for s in states),
            failed=sum(s.status == "failed" for s in states),
            skipped=sum(s.status == "skipped" for s in states),
            noisy=sum(s.status == "ok" and not s.good for s in states),
            left=sum(s.status is None for s in states),
            counters=sum(s.counters == "ok" for s in states),
            chunks=self.chunks,
            minutes=minutes,
            stopped=self.stopped,
            stop_status=self.stop_status,
            problems=tuple(self.problems),
            messages=tuple(self.messages),
        )
