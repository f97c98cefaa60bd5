"""The simulator, written down as simply as it can be: what the engine is checked by.

One heap of events, one object for each request, batch, replica, server and GPU, no shortcuts: every turn of a partition is an
event, every load is summed anew when it is asked for. It shares nothing with the engine but the description of a system and the
form of the result, and its rules are numbered as those of docs/explanation/simulation/rules.md. It serves some ten thousand requests
a second.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Sequence

import numpy as np
from _reference_counts import Counts
from _reference_parts import Answer, Batch, Copied, Gpu, Job, Replica, Request, Server

from gkestimator.interference.base import FEATURES
from gkestimator.interference.laws import slowdown
from gkestimator.interference.registry import law_code
from gkestimator.simulation.arrivals.base import Arrivals, Chunk
from gkestimator.simulation.options import Options
from gkestimator.simulation.result import Result
from gkestimator.simulation.system import SimGpu, SimReplica, System

# Order of events at one time.
END, REACH, TURN, TIMEOUT, ARRIVAL = range(5)


def simulate(system: System, arrivals: Arrivals, options: Options) -> Result:
    """As ``gkestimator.simulation.engine.simulator.simulate``."""
    simulator = Simulator(system, options)
    for chunk in arrivals.chunks(options.duration_ms):
        simulator.advance(chunk)
    return simulator.finish()


class Simulator:
    """As ``gkestimator.simulation.engine.simulator.Simulator``."""

    def __init__(self, system: System, options: Options) -> None:
        self.now_ms = 0.0
        self.system, self.options = system, options
        self.events: list[tuple[float, int, int, int, object]] = []
        self.orders = itertools.count()
        children = np.random.SeedSequence(options.seed).spawn(3)
        self.door, self.draws, factors = (np.random.Generator(np.random.PCG64(c)) for c in children)
        self.normals = [factors.standard_normal() for _ in system.models]
        self.admit = [s.admit for s in system.sources]
        self.open: list[Batch | None] = [None for _ in system.models]
        self.stranded: list[list[Request]] = [[] for _ in system.models]
        self.gpus: list[Gpu] = []
        self.replicas: list[Replica] = []
        self.partitions: dict[int, Server] = {}
        self.live = 0  # requests in batches, not answered
        self.counts = Counts(system, options)
        self.counts.replicas, self.counts.gpus = self.replicas, self.gpus
        self.add(system.replicas, [0.0] * len(system.replicas), gpus=system.gpus)

    # What may be done to it.

    def advance(self, chunk: Chunk) -> None:
        """All events before the chunk's end (those at its end come after what is changed then)."""
        for s, times in enumerate(chunk.times_ms):
            admit = self.admit[s]
            enters = np.full(len(times), admit >= 1)
            if 0 < admit < 1:
                enters = self.door.random(len(times)) < admit
            for k, (time, let_in) in enumerate(zip(times.tolist(), enters.tolist(), strict=True)):
                heapq.heappush(self.events, (time, ARRIVAL, s, k, let_in))
        while self.events and self.events[0][0] < chunk.end_ms:
            self._event()
        self.now_ms = chunk.end_ms

    def add(
        self, replicas: Sequence[SimReplica], available_ms: Sequence[float], *, gpus: Sequence[SimGpu] = ()
    ) -> list[int]:
        self.gpus += [Gpu(gpu) for gpu in gpus]
        first = len(self.replicas)
        for what, available in zip(replicas, available_ms, strict=True):
            server = (
                Server() if what.partition is None else self.partitions.setdefault(what.partition, Server())
            )
            late = self.options.batching == "late" and what.duty_cycle_ms is None
            replica = Replica(len(self.replicas), what, server, self.gpus[what.gpu], available, late)
            self.replicas.append(replica)
            if available <= self.now_ms:
                self._available(replica)
            else:
                self._push(available, REACH, next(self.orders), replica)
            if what.duty_cycle_ms is not None:
                from_ms = max(self.now_ms, available)
                while what.turn_offset_ms + replica.turns * what.duty_cycle_ms < from_ms:
                    replica.turns += 1
                self._push(
                    what.turn_offset_ms + replica.turns * what.duty_cycle_ms, TURN, replica.index, replica
                )
        for m in sorted({what.model for what in replicas}):
            stranded, self.stranded[m] = self.stranded[m], []
            for request in stranded:
                self._route(request)
        return list(range(first, len(self.replicas)))

    def retire(self, replicas: Sequence[int]) -> None:
        for i in replicas:
            self.replicas[i].retired = True

    def set_admission(self, source: int, admit: float) -> None:
        self.admit[source] = admit

    def outstanding(self) -> np.ndarray:
        """By replica: requests given to it (under construction included) whose service has not ended."""
        counts = np.zeros(len(self.replicas), np.int64)
        for batch in self.open:
            if batch is not None:
                counts[batch.replica.index] += batch.size
        for r in self.replicas:
            counts[r.index] += r.coming + sum(b.size for b in r.server.given if b.replica is r)
            if r.server.running is not None and r.server.running.replica is r:
                counts[r.index] += r.server.running.size
        return counts

    def progress(self) -> Result:
        return self.counts.result()

    def finish(self) -> Result:
        while self.live:
            self._event()
        return self.counts.result()

    # Events.

    def _push(self, time: float, kind: int, order: int, what: object) -> None:
        heapq.heappush(self.events, (time, kind, order, next(self.orders), what))

    def _event(self) -> None:
        time, kind, order, _, what = heapq.heappop(self.events)
        self.now_ms = time
        if kind == END:
            assert isinstance(what, Batch)
            if (
                what is what.replica.server.running and what.end == time
            ):  # else it was put off or brought forward
                self._end(what)
        elif kind == REACH:
            if isinstance(what, Replica):
                self._available(what)
            elif isinstance(what, Copied):
                self._copied(what.batch)
            elif isinstance(what, Answer):
                self._answer(what.batch)
            else:
                assert isinstance(what, Batch)
                self._reach(what)
        elif kind == TURN:
            assert isinstance(what, Replica)
            self._turn(what)
        elif kind == TIMEOUT:
            assert isinstance(what, Batch)
            if not what.closed:
                what.timed_out = True
                self._leave(what)
        else:
            self._arrive(order, bool(what))

    # 1. Door and stages.

    def _arrive(self, s: int, let_in: bool) -> None:
        stages = self.system.sources[s].stages
        job = Job(s, self.now_ms, [None] * len(stages), [0] * len(stages))
        self.counts.came(job, let_in)
        if let_in:
            self._begin_stages(job)

    def _begin_stages(self, job: Job) -> None:
        """Begin what can begin, in order of the stages, until nothing more can; then the job may be done."""
        stages = self.system.sources[job.source].stages
        began = True
        while began:
            began = False
            for i, stage in enumerate(stages):
                if job.asked[i] is not None or not all(job.done(j) for j in stage.after):
                    continue
                times = max((job.asked[j] or 0 for j in stage.after), default=1) * stage.fan_out
                whole = math.floor(times)
                if times > whole and self.door.random() < times - whole:
                    whole += 1
                job.asked[i] = job.lacking[i] = whole
                began = True
                for _ in range(whole):
                    request = Request(job, i, stage.model, self.now_ms)
                    self.counts.at_router(request)
                    self._route(request)
        if all(job.done(i) for i in range(len(stages))):
            self.counts.source_done(job, self.now_ms)
            if self.system.sources[job.source].closed and self.now_ms < self.options.duration_ms:
                self._push(self.now_ms, ARRIVAL, job.source, True)

    # 2. Router.

    def _route(self, request: Request) -> None:
        m = request.model
        batch = self.open[m]
        if batch is None:
            target = self._target(m)
            if target is None:
                self.stranded[m].append(request)
                return
            target.dealt += target.deal
            batch = self.open[m] = Batch(target)
            if not target.singly and target.what.max_wait_ms > 0:
                self._push(self.now_ms + target.what.max_wait_ms, TIMEOUT, next(self.orders), batch)
        batch.requests.append(request)
        self.live += 1
        what = batch.replica.what
        if batch.replica.singly or batch.size >= what.batch_size:
            self._leave(batch)
        elif what.max_wait_ms <= 0:
            batch.timed_out = True
            self._leave(batch)

    def _target(self, m: int) -> Replica | None:
        usable = [r for r in self.replicas if r.what.model == m and not r.retired]
        usable = [r for r in usable if r.available <= self.now_ms] or usable
        if not usable:
            return None
        if self.options.routing == "least-load":
            return min(usable, key=lambda r: (self._load(r), r.dealt / r.what.weight, r.index))
        return min(
            usable,
            key=lambda r: ((r.dealt + r.deal) / r.what.weight, r.index),
        )

    def _load(self, r: Replica) -> int:
        """Outstanding work in 1e-6 ms: whole numbers, so that no rest of a sum makes equal loads unequal."""
        if r.what.duty_cycle_ms is not None:
            return round(1e6 * (r.coming * r.what.duty_cycle_ms / r.what.batch_size))
        load = sum(round(1e6 * b.replica.at(b.replica.what.latencies_ms, b.size)) for b in r.server.given)
        for other in self.replicas:
            if other.late and other.server is r.server:
                size = other.what.batch_size
                load += other.coming * round(1e6 * other.at(other.what.latencies_ms, size) / size)
        running = r.server.running
        return load + (round(1e6 * running.left(self.now_ms)) if running is not None else 0)

    def _leave(self, batch: Batch) -> None:
        batch.closed = True
        r = batch.replica
        self.open[r.what.model] = None
        for request in batch.requests:
            request.left = self.now_ms
        if r.singly:
            r.coming += 1
        else:
            r.server.given.append(batch)
        if r.what.request_ms is None:
            self._reach(batch)
        else:
            self._push(self.now_ms + r.at(r.what.request_ms, batch.size), REACH, next(self.orders), batch)

    # 3, 4, 6. At the replica; the copy engine.

    def _reach(self, batch: Batch) -> None:
        r = batch.replica
        for request in batch.requests:
            request.reached = self.now_ms
        if r.takes_turns:
            r.waiting += batch.requests
        elif r.late:
            r.server.late.append((r, batch.requests[0]))
            self._serve(r.server)
        elif self.options.copy == "overlap" and r.what.copies_ms is not None:
            r.gpu.to_copy.append(batch)
            if len(r.gpu.to_copy) == 1:
                self._copy(batch)
        else:
            r.server.queue.append(batch)
            self._serve(r.server)

    def _copy(self, batch: Batch) -> None:
        time = self.now_ms + batch.replica.at(batch.replica.what.copies_ms, batch.size)
        self._push(time, REACH, next(self.orders), Copied(batch))

    def _copied(self, batch: Batch) -> None:
        r = batch.replica
        r.gpu.to_copy.pop(0)
        if r.gpu.to_copy:
            self._copy(r.gpu.to_copy[0])
        r.server.queue.append(batch)
        self._serve(r.server)

    def _available(self, replica: Replica) -> None:
        others = [r for r in self.replicas if r.what.model == replica.what.model and r is not replica]
        shares = [r.dealt / r.what.weight for r in others if not r.retired and r.became_available]
        replica.became_available = True
        if shares:
            replica.dealt = max(replica.dealt, replica.what.weight * min(shares))
        self._serve(replica.server)

    # 5. Servers and turns.

    def _serve(self, server: Server) -> None:
        """Start what is next where the server is free: a turn that is due, else the first batch that may start."""
        if server.running is not None:
            return
        if server.due:
            server.due.sort()
            _, index = server.due.pop(0)
            self._take_turn(self.replicas[index])
            return
        for batch in server.queue:
            if batch.replica.available <= self.now_ms:
                server.queue.remove(batch)
                server.given.remove(batch)
                self._start_in_time(batch)
                return
        for replica, _ in server.late:
            if replica.available <= self.now_ms:
                self._take_late(replica)
                return

    def _turn(self, r: Replica) -> None:
        cycle = r.what.duty_cycle_ms
        assert cycle is not None
        if r.waiting and r.last_turn != self.now_ms and all(index != r.index for _, index in r.server.due):
            r.server.due.append((self.now_ms, r.index))
            self._serve(r.server)
        while r.what.turn_offset_ms + r.turns * cycle <= self.now_ms:
            r.turns += 1
        self._push(r.what.turn_offset_ms + r.turns * cycle, TURN, r.index, r)

    def _take_turn(self, r: Replica) -> None:
        r.last_turn = self.now_ms
        r.coming -= self._drop_late(r, r.waiting)
        batch = Batch(r, r.waiting[: r.what.batch_size])
        del r.waiting[: batch.size]
        r.coming -= batch.size
        if batch.requests:
            self._start(batch)
        else:
            self._serve(r.server)

    def _take_late(self, r: Replica) -> None:
        """Form a batch of the oldest that wait at ``r``, but for those that it would answer too late."""
        waiting = [request for other, request in r.server.late if other is r]
        dropped = self._drop_late(r, waiting)
        batch = Batch(r, waiting[: r.what.batch_size])
        taken = dropped + batch.size
        r.coming -= taken
        for entry in [entry for entry in r.server.late if entry[0] is r][:taken]:
            r.server.late.remove(entry)
        if batch.requests:
            self._start(batch)
        else:
            self._serve(r.server)

    # 10. Dropping.

    def _drop_late(self, r: Replica, waiting: list[Request]) -> int:
        """Drop from the front of ``waiting`` those that would be late even alone on the GPU; how many."""
        slo = self.system.models[r.what.model].slo_ms * (1 + 1e-9)
        before = len(waiting)
        while self.options.drop == "late" and waiting:
            size = min(r.what.batch_size, len(waiting))
            answer = self.now_ms + r.at(r.what.latencies_ms, size) + self._copy_served(r, size)
            if waiting[0].arrived + slo >= answer + self._response(r, size):
                break
            self._drop(waiting.pop(0))
        return before - len(waiting)

    def _start_in_time(self, batch: Batch) -> None:
        """Start ``batch`` without those that would be late; if none is left the server goes on."""
        r = batch.replica
        self._drop_late(r, batch.requests)
        if batch.requests:
            self._start(batch)
        else:
            self._serve(r.server)

    def _drop(self, request: Request) -> None:
        self.live -= 1
        self.counts.dropped_request(request)
        request.job.dropped = True

    # 7. Service.

    def _start(self, batch: Batch) -> None:
        r, size = batch.replica, batch.size
        work = r.at(r.what.latencies_ms, size)
        if self.options.service == "interval":
            z = self.normals[r.what.model]
            work *= math.exp(z * (r.what.sigma_above if z > 0 else r.what.sigma_below))
        elif self.options.service == "exponential":
            work *= self.draws.standard_exponential()
        work += self._copy_served(r, size)
        r.server.running = batch
        batch.order, batch.start, batch.since, batch.work = next(self.orders), self.now_ms, self.now_ms, work
        if not r.gpu.running:
            r.gpu.busy_since = self.now_ms
        r.gpu.running.append(batch)
        self._change_speeds(r.gpu)

    def _copy_served(self, r: Replica, size: int) -> float:
        """The copy that is a part of the service."""
        serial = self.options.copy == "serial" or (self.options.copy == "overlap" and r.singly)
        return r.at(r.what.copies_ms, size) if serial else 0.0

    def _response(self, r: Replica, size: int) -> float:
        """The network's delay of an answer, which travels alone where its request did."""
        return r.at(r.what.response_ms, 1 if r.late else size)

    def _change_speeds(self, gpu: Gpu) -> None:
        code = law_code(self.options.interference)
        for batch in gpu.running:
            slow = 1.0
            if code:
                others = [b.replica.features(b.size) for b in gpu.running if b is not batch]
                beside = sum(others, np.zeros(FEATURES))
                own = batch.replica.features(batch.size)
                slow = slowdown(code, own, beside, len(others), np.array(gpu.what.terms, float))
            if slow != batch.slow:
                if batch.slow:
                    batch.work = batch.left(self.now_ms)
                batch.since, batch.slow = self.now_ms, slow
                batch.end = self.now_ms + batch.work * slow
                self._push(batch.end, END, batch.order, batch)

    def _end(self, batch: Batch) -> None:
        r = batch.replica
        r.gpu.running.remove(batch)
        r.server.running = None
        self.counts.ran(batch, self.now_ms)
        if not r.gpu.running:
            self.counts.gpu_spans.append((r.what.gpu, r.gpu.busy_since, self.now_ms))
        self._change_speeds(r.gpu)
        self._serve(r.server)
        if r.what.response_ms is None:
            self._answer(batch)
        else:
            self._push(self.now_ms + self._response(r, batch.size), REACH, next(self.orders), Answer(batch))

    def _answer(self, batch: Batch) -> None:
        for request in batch.requests:
            self.live -= 1
            self.counts.request_done(request, batch, batch.end, self.now_ms)
            request.job.lacking[request.stage] -= 1
            if request.job.done(request.stage) and not request.job.dropped:
                self._begin_stages(request.job)
