"""The state of a run into one raw folder: what is left, what comes next, when to give up. No effects in here.

Whole models come first: the latency of each, without a profiler, then their timelines. Operators follow, then
what came out noisy once more, then counters.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace

from gkestimator.jobs.stopping import RunLog
from gkestimator.profiling.collectors import records_launches
from gkestimator.profiling.plan import PlanEntry, SweepPlan
from gkestimator.profiling.raw import DeviceFacts
from gkestimator.profiling.running.folder import Done
from gkestimator.profiling.running.jobs import ChunkJob, ChunkResult, RunOptions
from gkestimator.profiling.running.pace import Pace, limits_of
from gkestimator.profiling.running.report import ModelCounts, RunReport
from gkestimator.profiling.running.states import Known, PassQueues, PendingPass
from gkestimator.profiling.type_names import Names

CRASHES_IN_A_ROW = 3
LOST_COUNTERS_IN_A_ROW = 2
PROBE_AFTER_LOST = 3
# So many captures lost in a row have the profiler tried out; so many end the run. Halving a full chunk down
# to one bad entry loses ten.
LOST_IN_A_ROW = 12


class Campaign(RunLog):
    """Decide what a run measures next. Not thread-safe: the engine holds its lock around every call."""

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
        super().__init__()
        self.plan = plan
        self.options = options
        self.executor = executor
        self._collectors = {
            "latency": "none",
            "timeline": collector,
            "counters": counters_collector or collector,
        }
        self._counters = counters_collector is not None
        self.facts = dict(facts)
        self.chunks = 0
        self._number = next_number
        self._known: defaultdict[tuple[str, str], Known] = defaultdict(Known)
        self._queues = PassQueues()
        self._open: dict[int, tuple[PendingPass, ...]] = {}
        self._pace = Pace()
        self._crashes = self._lost = 0
        # Without a collector a GPU tells nothing of a model's launches; a CPU's runtime profiles itself.
        self._records_launches = records_launches(collector) or all(f.kind == "cpu" for f in facts.values())

    def resume(self, done: Iterable[Done]) -> None:
        """Take in what earlier runs committed, then queue the rest."""
        for record in done:
            known = self._known[record.entry_id, record.pass_name]
            known.take(record.attempt, record.status, record.quality)
        for entry in self.plan.entries:
            self._begin(entry, 0)

    def _passes(self, entry: PlanEntry) -> Names:
        """Return what is to be measured of ``entry``, in order: each only where the one before it could be."""
        if entry.model is not None:  # no counters: ncu would replay thousands of launches
            return ("latency", "timeline") if self._records_launches else ("latency",)
        return ("timeline", "counters") if entry.counters and self._counters else ("timeline",)

    def _begin(self, entry: PlanEntry, step: int) -> None:
        """Queue that pass of ``entry``, once in a run; where it is known already go on from there."""
        pass_name = self._passes(entry)[step]
        known = self._known[entry.id, pass_name]
        if known.asked:
            return
        known.asked = True
        if known.status is None or (known.status == "failed" and self.options.retry_failed):
            # Counters are deterministic: they are never measured again for being noisy.
            attempt = 1 if pass_name == "counters" else known.attempts + 1
            self._queues.add(PendingPass(entry=entry, pass_name=pass_name, attempt=attempt))
        elif known.status == "ok":
            self._go_on(entry, pass_name)

    def _go_on(self, entry: PlanEntry, pass_name: str) -> None:
        """Queue what an entry with an ok record of a pass still needs: another attempt, its next pass."""
        known = self._known[entry.id, pass_name]
        if pass_name != "counters" and not known.good and known.attempts <= self.options.retries:
            attempt = known.attempts + 1
            self._queues.add(PendingPass(entry=entry, pass_name=pass_name, attempt=attempt, again=True))
        passes = self._passes(entry)
        following = passes.index(pass_name) + 1
        if following < len(passes):
            self._begin(entry, following)

    def next_job(self, device: str, seconds_left: float | None) -> ChunkJob | None:
        """Return the next chunk for ``device``; None where nothing is left to begin (others may still return
        some)."""
        if self.stopped is not None or not self._queues:
            return None
        # A chunk that the deadline cuts off costs its start and its capture for nothing.
        budget = self.options.chunk_seconds
        if seconds_left is not None:
            budget = min(budget, max(seconds_left, 0.0))
        items = self._cut(budget)
        first = items[0]
        job = ChunkJob(
            number=self._number,
            pass_name=first.pass_name,
            attempt=first.attempt,
            settle=first.alone,
            probe_if_lost=first.alone or self._lost >= PROBE_AFTER_LOST,
            runtime=self.plan.runtime,
            executor=self.executor,
            collector=self._collectors[first.pass_name],
            device=device,
            facts=self.facts[device],
            entries=tuple(i.entry for i in items),
            options=self.options,
            limits=limits_of(items, self.options.limits),
        )
        self._open[self._number] = items
        self._number += 1
        return job

    def _cut(self, budget_s: float) -> tuple[PendingPass, ...]:
        """Take what one chunk holds from the queue that is worked off now."""
        queue = self._queues.current()
        first = queue.popleft()
        items = [first]
        seconds = self._pace.seconds(first)
        # Alone, a lost capture has one entry to blame.
        most = 1 if first.alone else first.most
        while queue and len(items) < most and queue[0].kind == first.kind:
            seconds += self._pace.seconds(queue[0])
            if seconds > budget_s:
                break
            items.append(queue.popleft())
        return tuple(items)

    def finished(self, job: ChunkJob, result: ChunkResult) -> None:
        """Take in what became of a job that :meth:`next_job` gave out."""
        items = self._open.pop(job.number)
        for item in items:
            self._take(item, result)
        left = [i for i in items if i.entry.id not in result.statuses]
        self.chunks += len(left) < len(items)
        if result.kind == "whole" and not left and result.working_s is not None:
            self._pace.learn(items, result.working_s)
        # Halving finds the one entry that breaks the capture of all others.
        if result.kind == "lost":
            left = [_after_loss(i, len(items)) for i in left]
        self._queues.put_back(left)
        self._count(job, result)

    def _take(self, item: PendingPass, result: ChunkResult) -> None:
        entry = item.entry
        status = result.statuses.get(entry.id)
        if status is None:
            return
        quality = result.qualities.get(entry.id, "ok")
        self._known[entry.id, item.pass_name].take(item.attempt, status, quality)
        if status == "failed":
            self.problem(f"{entry.id}: {item.pass_name} failed: {result.reasons.get(entry.id, '')}")
        elif status == "ok":
            self._go_on(entry, item.pass_name)

    def _count(self, job: ChunkJob, result: ChunkResult) -> None:
        """Count what went wrong in a row, and say it."""
        kind = result.kind
        line = result.line
        # One good record says that device, runtime and profiler work.
        if "ok" in result.statuses.values():
            self._crashes = self._lost = 0
        elif kind in ("crashed", "device"):
            self._crashes += 1
        self._lost += kind == "lost"
        if line and kind in ("crashed", "lost", "device"):
            self.problem(f"chunk {job.folder_name}: {line}")
        if kind == "disk":
            self.disk_full()
        elif kind == "usage":
            # With something measured the run has partly failed; without, the command was wrong.
            begun = any(known.status for known in self._firsts())
            status = 2
            if begun:
                status = 1
            self.stop(f"stopped: {line}", status)
        else:
            self._give_up(job, result)

    def _give_up(self, job: ChunkJob, result: ChunkResult) -> None:
        """Give up where going on is senseless."""
        crashing = self._crashes >= CRASHES_IN_A_ROW
        if job.pass_name == "counters" and (crashing or self._lost >= LOST_COUNTERS_IN_A_ROW):
            self._queues.drop("counters")
            self.problem(f"counters given up: {result.line}")
        elif crashing:
            self.stop(f"stopped: {self._crashes} chunks in a row ended without a result: {result.line}")
        elif result.kind == "profiler":
            self.stop(f"stopped: {result.line}")
        elif self._lost >= LOST_IN_A_ROW:
            self.stop(f"stopped: {self._lost} captures in a row were lost: {result.line}")

    def give_back(self, job: ChunkJob) -> None:
        """Queue a job again of which nothing came back (its machine died)."""
        self._queues.put_back(self._open.pop(job.number))

    def disk_full(self) -> None:
        """Stop before anything is written half."""
        self.stop(
            f"stopped: the disk of the raw folder is full, expected at least {self.options.min_free_mb:.0f} MB free"
        )

    @property
    def waiting(self) -> int:
        """Return how many passes are queued."""
        return len(self._queues)

    @property
    def running(self) -> int:
        """Return how many jobs were given out and have not come back."""
        return len(self._open)

    def progress(self) -> tuple[str, int, int]:
        """Return what is being measured, how much is done, and of how much, over all passes."""
        latencies = self._of_models("latency")
        timelines = self._of_models("timeline")
        done = sum(known.status is not None for known in (*self._firsts(), *timelines))
        # A model's timeline is queued once its latency is there.
        coming = sum(known.status is None for known in latencies) if self._records_launches else 0
        running = sum(map(len, self._open.values()))
        return self._queues.stage(), done, done + coming + self.waiting + running

    def _firsts(self) -> list[Known]:
        """Return of each entry the pass that says whether it is measured."""
        return [self._known[e.id, self._passes(e)[0]] for e in self.plan.entries]

    def _of_models(self, pass_name: str) -> list[Known]:
        return [self._known[e.id, pass_name] for e in self.plan.entries if e.model is not None]

    def report(self, raw: str, minutes: float) -> RunReport:
        """Return the counts over the whole folder, earlier runs included."""
        firsts = self._firsts()
        by_status = Counter(known.status for known in firsts)
        counters = [self._known[e.id, "counters"].status for e in self.plan.entries]
        return RunReport(
            raw=raw,
            entries=len(firsts),
            ok=by_status["ok"],
            failed=by_status["failed"],
            skipped=by_status["skipped"],
            noisy=by_status["ok"] - sum(k.status == "ok" and k.good for k in firsts),
            left=by_status[None],
            counters=counters.count("ok"),
            counters_left=sum(item.pass_name == "counters" for item in self._queues),
            chunks=self.chunks,
            minutes=minutes,
            whole=self._whole(),
            **self.outcome(),
        )

    def _whole(self) -> ModelCounts:
        latencies = self._of_models("latency")
        pairs = zip(latencies, self._of_models("timeline"), strict=True)
        timelines = Counter(timeline.status for latency, timeline in pairs if latency.status == "ok")
        left = 0
        if self._records_launches:
            left = timelines[None]
        return ModelCounts(
            models=len(latencies),
            latencies=timelines.total(),
            timelines=timelines["ok"],
            timelines_failed=timelines["failed"],
            timelines_left=left,
        )


def _after_loss(item: PendingPass, together: int) -> PendingPass:
    """Return how a lost item is measured next: in the same chunk once more; then in halves of it, down to a single
    entry; that one again when all else is done."""
    losses = item.losses + 1
    most = together if losses == 1 else max(1, together // 2)
    return replace(item, losses=losses, most=most, alone=together == 1 and losses > 1)
