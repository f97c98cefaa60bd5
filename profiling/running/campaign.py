"""The state of a run into one raw folder: what is left, what comes next, when to give up. No effects in here.

Whole models come first: the latency of each, without a profiler, then their timelines. Operators follow, then what came
out noisy once more, then counters.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace

from gkestimator.profiling.collectors import records_launches
from gkestimator.profiling.plan import PlanEntry, SweepPlan
from gkestimator.profiling.raw import DeviceFacts
from gkestimator.profiling.running.folder import Done
from gkestimator.profiling.running.jobs import MAX_CHUNK_ENTRIES, ChunkJob, ChunkResult, RunOptions
from gkestimator.profiling.running.pace import Pace, limits_of
from gkestimator.profiling.running.report import ModelCounts, RunReport
from gkestimator.profiling.running.states import EntryState, Known, PendingPass

CRASHES_IN_A_ROW = 3
LOST_COUNTERS_IN_A_ROW = 2
PROBE_AFTER_LOST = 3
LOST_IN_A_ROW = 12
"""So many captures lost in a row have the profiler tried out; so many end the run. Halving a full chunk down to one bad
entry loses ten."""
_MOST_PROBLEMS = 200


class Campaign:
    """Not thread-safe: the engine holds its lock around every call."""

    def __init__(
        self,
        plan: SweepPlan,
        options: RunOptions,
        *,
        executor: str,
        collector: str,
        counters_collector: str | None,
        facts: Mapping[str, DeviceFacts],
        next_number: int,
    ) -> None:
        self.plan = plan
        self.options = options
        self.executor = executor
        self.collector = collector
        self.counters_collector = counters_collector
        self.facts = dict(facts)
        self.problems: list[str] = []
        self.messages: list[str] = []
        self.stopped: str | None = None
        self.stop_status = 0
        self.chunks = 0
        self._number = next_number
        self._states = {e.id: EntryState() for e in plan.entries}
        self._latencies: deque[PendingPass] = deque()
        self._models: deque[PendingPass] = deque()
        self._main: deque[PendingPass] = deque()
        self._again: deque[PendingPass] = deque()
        self._counters: deque[PendingPass] = deque()
        self._alone: deque[PendingPass] = deque()
        self._open: dict[int, tuple[PendingPass, ...]] = {}
        self._pace = Pace()
        self._crashes = self._lost = 0
        # Without a collector a GPU tells nothing of a model's launches; a CPU's runtime profiles itself.
        self._records_launches = records_launches(collector) or all(f.kind == "cpu" for f in facts.values())

    def resume(self, done: Iterable[Done]) -> None:
        """Take in what earlier runs committed, then queue the rest."""
        for record in done:
            if record.entry_id in self._states:
                known = self._states[record.entry_id].of(record.pass_name)
                known.take(record.attempt, record.status, record.quality)
        for entry in self.plan.entries:
            self._begin(entry, 0)

    def _passes(self, entry: PlanEntry) -> tuple[str, ...]:
        """What is to be measured of ``entry``, in order: each only where the one before it could be."""
        if entry.model is not None:  # no counters: ncu would replay thousands of launches
            if self._records_launches:
                return ("latency", "timeline")
            return ("latency",)
        if entry.counters and self.counters_collector:
            return ("timeline", "counters")
        return ("timeline",)

    def _begin(self, entry: PlanEntry, step: int) -> None:
        """Queue that pass of ``entry``, once in a run; where it is known already go on from there."""
        pass_name = self._passes(entry)[step]
        known = self._states[entry.id].of(pass_name)
        if known.asked:
            return
        known.asked = True
        if known.status is None or (known.status == "failed" and self.options.retry_failed):
            attempt = 1 if pass_name == "counters" else known.attempts + 1
            self._queue(PendingPass(entry=entry, pass_name=pass_name, attempt=attempt))
        elif known.status == "ok":
            self._go_on(entry, pass_name)

    def _go_on(self, entry: PlanEntry, pass_name: str) -> None:
        """What an entry with an ok record of a pass still needs: another attempt, its next pass."""
        known = self._states[entry.id].of(pass_name)
        passes = self._passes(entry)
        if pass_name != "counters" and not known.good and known.attempts <= self.options.retries:
            self._queue(PendingPass(entry=entry, pass_name=pass_name, attempt=known.attempts + 1, again=True))
        following = passes.index(pass_name) + 1
        if following < len(passes):
            self._begin(entry, following)

    def _queue(self, item: PendingPass) -> None:
        self._queue_of(item).append(item)

    def _queue_of(self, item: PendingPass) -> deque[PendingPass]:
        if item.alone:
            return self._alone
        if item.again:
            return self._again
        if item.pass_name == "latency":
            return self._latencies
        if item.pass_name == "counters":
            return self._counters
        if item.whole:
            return self._models
        return self._main

    def next_job(self, device: str, seconds_left: float | None) -> ChunkJob | None:
        """The next chunk for ``device``; None where nothing is left to begin (others may still return some)."""
        queue = next((q for q in self._queues() if q), None)
        if queue is None or self.stopped is not None:
            return None
        budget = self.options.chunk_seconds
        if seconds_left is not None:
            budget = min(budget, max(seconds_left, 0.0))
        items = self._cut(queue, budget)
        number = self._number
        first = items[0]
        self._number += 1
        self._open[number] = items
        options = self.options
        return ChunkJob(
            number=number,
            pass_name=first.pass_name,
            attempt=first.attempt,
            settle=first.alone,
            probe_if_lost=first.alone or self._lost >= PROBE_AFTER_LOST,
            runtime=self.plan.runtime,
            executor=self.executor,
            collector=self._collector_of(first.pass_name),
            device=device,
            facts=self.facts[device],
            entries=tuple(i.entry for i in items),
            repeats=options.repeats,
            warmup=options.warmup,
            min_ms=options.min_ms,
            seed=options.seed,
            limits=limits_of(items, options.limits),
            min_free_bytes=options.min_free_mb * 2**20,
        )

    def _collector_of(self, pass_name: str) -> str:
        if pass_name == "latency":
            return "none"
        if pass_name == "counters":
            return self.counters_collector or self.collector
        return self.collector

    def _cut(self, queue: deque[PendingPass], budget_s: float) -> tuple[PendingPass, ...]:
        items = [queue.popleft()]
        first = items[0]
        seconds = self._pace.seconds(items[0])
        while queue and not first.alone and len(items) < min(first.most, MAX_CHUNK_ENTRIES):
            if not first.goes_with(queue[0]):
                break
            seconds += self._pace.seconds(queue[0])
            if seconds > budget_s:
                break
            items.append(queue.popleft())
        return tuple(items)

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
            known = self._states[item.entry.id].of(pass_name)
            known.take(item.attempt, status, result.qualities.get(item.entry.id, "ok"))
            if status == "failed":
                self.problem(f"{item.entry.id}: {pass_name} failed: {result.reasons.get(item.entry.id, '')}")
            if status == "ok":
                self._go_on(item.entry, pass_name)
        self.chunks += bool(kept)
        if result.kind == "whole" and len(kept) == len(items) and result.working_s is not None:
            self._pace.learn(items, result.working_s)
        left = [i for i in items if i.entry.id not in kept]
        if result.kind == "lost":
            left = [self._after_loss(i, len(items)) for i in left]
        self._return(left)
        self._count(job, result)

    def _after_loss(self, item: PendingPass, together: int) -> PendingPass:
        """The same chunk once more; then halves of it, down to a single entry; that one again when all else is
        done."""
        losses = item.losses + 1
        most = together if losses == 1 else max(1, together // 2)
        return replace(item, losses=losses, most=most, alone=together == 1 and losses > 1)

    def _return(self, left: list[PendingPass]) -> None:
        for item in reversed(left):
            queue = self._queue_of(item)
            queue.append(item) if item.alone else queue.appendleft(item)

    def _queues(self) -> tuple[deque[PendingPass], ...]:
        """In the order in which they are worked off."""
        return self._latencies, self._models, self._main, self._again, self._counters, self._alone

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
                status=1 if any(known.status for known in self._firsts()) else 2,
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
            self.stopped = line
            self.stop_status = status

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
        names = ("latency", "timeline", "timeline", "again", "counters", "last")
        stage = next((n for n, queue in zip(names, self._queues(), strict=True) if queue), "last")
        models = [self._states[e.id] for e in self.plan.entries if e.model is not None]
        done = sum(known.status is not None for known in self._firsts())
        done += sum(s.timeline.status is not None for s in models)
        # A model's timeline is queued once its latency is there.
        if self._records_launches:
            coming = sum(s.latency.status is None for s in models)
        else:
            coming = 0
        return stage, done, done + coming + self.waiting + sum(len(i) for i in self._open.values())

    def _firsts(self) -> list[Known]:
        """Of each entry the pass that says whether it is measured."""
        return [self._states[e.id].first(e) for e in self.plan.entries]

    def report(self, raw: str, minutes: float) -> RunReport:
        """Counts over the whole folder, earlier runs included."""
        firsts = self._firsts()
        return RunReport(
            raw=raw,
            entries=len(firsts),
            ok=sum(k.status == "ok" for k in firsts),
            failed=sum(k.status == "failed" for k in firsts),
            skipped=sum(k.status == "skipped" for k in firsts),
            noisy=sum(k.status == "ok" and not k.good for k in firsts),
            left=sum(k.status is None for k in firsts),
            counters=sum(s.counters.status == "ok" for s in self._states.values()),
            counters_left=sum(i.pass_name == "counters" for q in self._queues() for i in q),
            chunks=self.chunks,
            minutes=minutes,
            stopped=self.stopped,
            stop_status=self.stop_status,
            problems=tuple(self.problems),
            messages=tuple(self.messages),
            whole=self._whole(),
        )

    def _whole(self) -> ModelCounts:
        entries = [e for e in self.plan.entries if e.model is not None]
        known = [s for s in (self._states[e.id] for e in entries) if s.latency.status == "ok"]
        return ModelCounts(
            models=len(entries),
            latencies=len(known),
            timelines=sum(s.timeline.status == "ok" for s in known),
            timelines_failed=sum(s.timeline.status == "failed" for s in known),
            timelines_left=sum(s.timeline.status is None for s in known) if self._records_launches else 0,
        )
