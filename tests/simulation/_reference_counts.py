"""What the reference simulator counts: lists of every counted request, added up at the end."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from gkestimator.simulation.histogram import BINS, bin_edges_ms
from gkestimator.simulation.options import Options
from gkestimator.simulation.result import STAGES, CountedRequests, Result
from gkestimator.simulation.system import System

if TYPE_CHECKING:
    from _reference_parts import Batch, Job, Request

_EDGES = bin_edges_ms()


class Counts:
    """Told of every event that counts; ``result()`` at any time."""

    def __init__(self, system: System, options: Options) -> None:
        self.system, self.options = system, options
        models, sources = len(system.models), len(system.sources)
        windows = math.ceil(options.duration_ms / options.window_ms)
        self.done: list[dict[str, Any]] = []
        self.arrived, self.arrived_by_window = np.zeros(models, int), np.zeros((models, windows), int)
        self.on_time_by_window = np.zeros((models, windows), int)
        self.done_by_window = np.zeros((models, windows), int)
        self.wait_by_window_ms = np.zeros((models, windows))
        self.dropped, self.source_dropped = np.zeros(models, int), np.zeros(sources, int)
        self.by_end, self.source_by_end = np.zeros(models, int), np.zeros(sources, int)
        self.batches, self.full, self.timed_out = (np.zeros(models, int) for _ in range(3))
        self.source_arrived, self.source_rejected = np.zeros(sources, int), np.zeros(sources, int)
        self.answered: list[list[tuple[float, float]]] = [[] for _ in system.sources]  # arrived, done
        self.replicas: list[Any] = []
        self.ran_for: list[tuple[float, int, int, float]] = []
        self.last_done: dict[int, float] = {}
        self.gpus: list[Any] = []
        self.gpu_spans: list[tuple[int, float, float]] = []
        self.end_ms = 0.0

    def counted(self, job: Job) -> bool:
        return job.arrived >= self.options.warmup_ms

    def in_time_that_counts(self, now: float) -> bool:
        return self.options.warmup_ms <= now <= self.options.duration_ms

    def window(self, time: float) -> int:
        return min(int(time // self.options.window_ms), self.arrived_by_window.shape[1] - 1)

    def within(self, start: float, end: float) -> float:
        """How much of [start, end] lies in the time that counts."""
        return max(0.0, min(end, self.options.duration_ms) - max(start, self.options.warmup_ms))

    def came(self, job: Job, let_in: bool) -> None:
        self.source_arrived[job.source] += self.counted(job)
        self.source_rejected[job.source] += self.counted(job) and not let_in

    def at_router(self, request: Request) -> None:
        self.arrived[request.model] += self.counted(request.job)
        self.arrived_by_window[request.model, self.window(request.arrived)] += 1

    def dropped_request(self, request: Request) -> None:
        counted = self.counted(request.job)
        self.dropped[request.model] += counted
        self.source_dropped[request.job.source] += counted and not request.job.dropped

    def ran(self, batch: Batch, end: float) -> None:
        """Service of ``batch`` ended."""
        r = batch.replica
        self.ran_for.append((batch.start, r.index, batch.size, end))
        if self.counted(batch.requests[0].job):
            self.batches[r.what.model] += 1
            self.full[r.what.model] += batch.size == r.what.batch_size
            self.timed_out[r.what.model] += batch.timed_out

    def request_done(self, request: Request, batch: Batch, served: float, now: float) -> None:
        """Its answer reached the client at ``now``; its service ended at ``served``."""
        self.end_ms = now
        self.by_end[request.model] += self.in_time_that_counts(now)
        wait, total = batch.start - request.arrived, now - request.arrived
        on_time = total <= self.system.models[request.model].slo_ms * (1 + 1e-9)
        window = self.window(request.arrived)
        self.on_time_by_window[request.model, window] += on_time
        self.done_by_window[request.model, window] += 1
        self.wait_by_window_ms[request.model, window] += wait
        if not self.counted(request.job):
            return
        self.done.append(
            {
                "source": request.job.source,
                "model": request.model,
                "replica": batch.replica.index,
                "batch": batch.size,
                "arrived_ms": request.arrived,
                "router_ms": request.left - request.arrived,
                "network_ms": (request.reached - request.left) + (now - served),
                "queue_ms": batch.start - request.reached,
                "gpu_ms": served - batch.start,
                "total": total,
                "wait": wait,
                "on_time": on_time,
            }
        )

    def source_done(self, job: Job, now: float) -> None:
        self.source_by_end[job.source] += self.in_time_that_counts(now)
        if self.counted(job):
            self.answered[job.source].append((job.arrived, now))

    def result(self) -> Result:
        models, sources = len(self.system.models), len(self.system.sources)
        columns = {key: np.array([d[key] for d in self.done]) for key in (self.done[0] if self.done else ())}
        sums, histograms = np.zeros((models, len(STAGES))), np.zeros((models, len(STAGES), BINS), int)
        done, on_time = (np.zeros(models, int) for _ in range(2))
        waits = np.zeros(models)
        for d in self.done:
            m = d["model"]
            done[m] += 1
            on_time[m] += d["on_time"]
            waits[m] += d["wait"]
            for i, stage in enumerate(STAGES):
                value = d[stage if stage == "total" else f"{stage}_ms"]
                sums[m, i] += value
                histograms[m, i, _bin(value)] += 1
        answers = np.zeros((2, sources), int)
        answer_sums, answer_histograms = np.zeros(sources), np.zeros((sources, BINS), int)
        for s, pairs in enumerate(self.answered):
            for came, now in pairs:
                late = now - came > self.system.sources[s].slo_ms * (1 + 1e-9)
                answers[:, s] += (1, not late)
                answer_sums[s] += now - came
                answer_histograms[s, _bin(now - came)] += 1
        busy, last = np.zeros(len(self.replicas)), np.zeros(len(self.replicas))
        batches, requests = (np.zeros(len(self.replicas), int) for _ in range(2))
        creq, gpu_busy = np.zeros(len(self.gpus)), np.zeros(len(self.gpus))
        for start, i, size, end in self.ran_for:
            replica = self.replicas[i].what
            busy[i] += self.within(start, end)
            batches[i] += 1
            requests[i] += size
            last[i] = end
            creq[replica.gpu] += self.within(start, end) * (
                math.nan if replica.creq_pct is None else replica.creq_pct
            )
        for g, start, end in self.gpu_spans:
            gpu_busy[g] += self.within(start, end)
        kept = None
        if self.options.keep_requests:
            whole, real = (
                ("source", "model", "replica", "batch"),
                ("arrived_ms", *(f"{s}_ms" for s in STAGES[:4])),
            )
            kept = CountedRequests(
                **{name: np.asarray(columns.get(name, []), np.int64) for name in whole},
                **{name: np.asarray(columns.get(name, []), np.float64) for name in real},
            )
        return Result(
            from_ms=self.options.warmup_ms,
            until_ms=self.options.duration_ms,
            end_ms=self.end_ms,
            arrived=self.arrived.copy(),
            done=done,
            done_by_end=self.by_end.copy(),
            on_time=on_time,
            sums_ms=sums,
            wait_sums_ms=waits,
            histograms=histograms,
            batches=self.batches.copy(),
            batches_full=self.full.copy(),
            batches_timed_out=self.timed_out.copy(),
            source_arrived=self.source_arrived.copy(),
            dropped=self.dropped.copy(),
            source_dropped=self.source_dropped.copy(),
            source_rejected=self.source_rejected.copy(),
            source_done=answers[0],
            source_done_by_end=self.source_by_end.copy(),
            source_on_time=answers[1],
            source_sums_ms=answer_sums,
            source_histograms=answer_histograms,
            window_ms=self.options.window_ms,
            arrived_by_window=self.arrived_by_window.copy(),
            on_time_by_window=self.on_time_by_window.copy(),
            done_by_window=self.done_by_window.copy(),
            wait_by_window_ms=self.wait_by_window_ms.copy(),
            busy_ms=busy,
            replica_batches=batches,
            replica_requests=requests,
            last_done_ms=last,
            gpu_busy_ms=gpu_busy,
            gpu_creq_ms=creq,
            requests=kept,
        )


def _bin(value: float) -> int:
    """The bin that holds ``value``: from its edge (included) to the next."""
    return min(int(np.searchsorted(_EDGES, value, side="right")) - 1, BINS - 1)
