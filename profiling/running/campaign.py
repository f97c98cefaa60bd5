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
CRASHES_IN_A_ROW, LOST_COUNTERS_IN_A_ROW = 3, 2
PROBE_AFTER_LOST, LOST_IN_A_ROW = 3, 12
"""So many captures lost in a row have the profiler tried out; so many end the run. Halving a full chunk down to one bad
entry loses ten."""
COUNTERS_PATIENCE = 5
"""ncu runs each launch once for each group of counters, with memory saved and restored in between: an entry may take so
many times as long."""
_MOST_PROBLEMS = 200
_PACE_WEIGHT, _PACE_RANGE = 0.3, (0.02, 50.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Item:
    """``most``: how many entries its next chunk may hold, after captures of larger ones were lost; ``alone``: its own
    capture was lost as well, so it comes last, and then it is settled."""

    entry: PlanEntry
    pass_name: str = "timeline"
    attempt: int = 1
    losses: int = 0
    most: int = MAX_CHUNK_ENTRIES
    alone: bool = False


@dataclass(slots=True)
class _State:
    """What is known of one entry. ``status``: None: not measured; ``ok`` outweighs all. ``good``: an ok record of
    quality ok. ``counters``: what became of its counters, likewise; ``counting``: they are queued, or were."""

    status: str | None = None
    good: bool = False
    attempts: int = 0
    counters: str | None = None
    counting: bool = False


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
        self._alone: deque[_Item] = deque()
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
            if state.status is None or (state.status == "failed" and self.options.retry_failed):
                self._main.append(_Item(entry=entry, attempt=state.attempts + 1))
            else:
                self._follow(entry, state)

    def _take(self, entry: str, pass_name: str, attempt: int, status: str, quality: str) -> None:
        state = self._states[entry]
        if pass_name == "counters":
            state.counters = "ok" if "ok" in (state.counters, status) else status
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
        self._count_launches(entry, state)

    def _count_launches(self, entry: PlanEntry, state: _State) -> None:
        """Queue the counters of an entry once, whichever attempt was the first good one."""
        wanted = (None, "failed") if self.options.retry_failed else (None,)
        if entry.counters and self.counters_collector and not state.counting and state.counters in wanted:
            state.counting = True
            self._counters.append(_Item(entry=entry, pass_name="counters"))

    def next_job(self, device: str, seconds_left: float | None) -> ChunkJob | None:
        """The next chunk for ``device``; None where nothing is left to begin (others may still return some)."""
        queue = next((q for q in self._queues() if q), None)
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
            settle=first.alone,
            probe_if_lost=first.alone or self._lost >= PROBE_AFTER_LOST,
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
            limits=replace(options.limits, entry_s=options.limits.entry_s * COUNTERS_PATIENCE)
            if counters
            else options.limits,
            min_free_bytes=options.min_free_mb * 2**20,
        )

    def _cut(self, queue: deque[_Item], budget_s: float) -> tuple[_Item, ...]:
        items, seconds = [queue.popleft()], 0.0
        first = items[0]
        seconds += self._seconds(first)
        while queue and not first.alone and len(items) < min(first.most, MAX_CHUNK_ENTRIES):
            following = queue[0]
            if (following.attempt, following.most) != (first.attempt, first.most):
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
                self.problem(f"{item.entry.id}: {pass_name} failed: {result.reasons.get(item.entry.id, '')}")
            if pass_name == "timeline":
                self._follow_up(item, status, result)
        self.chunks += bool(kept)
        self._learn_pace(items, kept, result)
        left = [i for i in items if i.entry.id not in kept]
        if result.kind == "lost":
            left = [self._after_loss(i, len(items)) for i in left]
        self._return(left)
        self._count(job, result)

    def _follow_up(self, item: _Item, status: str, result: ChunkResult) -> None:
        if status != "ok":
            return
        state = self._states[item.entry.id]
        if not state.good and item.attempt <= self.options.retries:
            self._again.append(_Item(entry=item.entry, attempt=item.attempt + 1))
        self._count_launches(item.entry, state)

    def _after_loss(self, item: _Item, together: int) -> _Item:
        """The same chunk once more; then halves of it, down to a single entry; that one again when all else is
        done."""
        losses = item.losses + 1
        most = together if losses == 1 else max(1, together // 2)
        return replace(item, losses=losses, most=most, alone=together == 1 and losses > 1)

    def _return(self, left: list[_Item]) -> None:
        for item in reversed(left):
            if item.alone:
                self._alone.append(item)
            elif item.pass_name == "counters":
                self._counters.appendleft(item)
            else:
                (self._main if item.attempt == 1 else self._again).appendleft(item)

    def _queues(self) -> tuple[deque[_Item], ...]:
        """In the order in which they are worked off."""
        return self._main, self._again, self._counters, self._alone

    def _learn_pace(self, items: tuple[_Item, ...], kept: set[str], result: ChunkResult) -> None:
        """Without the time that starting and finishing take: else short chunks would look slow and get shorter."""
        if result.kind != "whole" or len(kept) != len(items) or result.working_s is None:
            return
        planned = sum(self._seconds(i) for i in items) / self._pace
        low, high = _PACE_RANGE
        found = min(high, max(low, result.working_s / planned))
        self._pace += _PACE_WEIGHT * (found - self._pace)

    def _count(self, job: ChunkJob, result: ChunkResult) -> None:
        """Give up where going on is senseless."""
        if "ok" in result.statuses.values():
            self._crashes = self._lost = 0
        elif result.kind in ("crashed", "device"):
            self._crashes += 1
        if result.kind == "lost":
            self._lost = self._lost + 1
        if result.line and result.kind in ("crashed", "lost", "device"):
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
            self._alone = deque(i for i in self._alone if i.pass_name != "counters")
            self.problem(f"counters given up: {result.line}")
        elif self._crashes >= CRASHES_IN_A_ROW:
            self.stop(f"stopped: {self._crashes} chunks in a row ended without a result: {result.line}")
        elif result.kind == "profiler":
            self.stop(f"stopped: {result.line}")
        elif self._lost >= LOST_IN_A_ROW:
            self.stop(f"stopped: {self._lost} captures in a row were lost: {result.line}")

    def give_back(self, job: ChunkJob) -> None:
        """A job of which nothing came back (its machine died): all of it is to be done again."""
        self._return(list(self._open.pop(job.number)))

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
        return sum(len(q) for q in self._queues())

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
            counters_left=sum(i.pass_name == "counters" for q in self._queues() for i in q),
            chunks=self.chunks,
            minutes=minutes,
            stopped=self.stopped,
            stop_status=self.stop_status,
            problems=tuple(self.problems),
            messages=tuple(self.messages),
        )
