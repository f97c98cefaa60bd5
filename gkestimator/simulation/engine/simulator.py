"""Simulate one run, chunk by chunk."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from gkestimator.core.errors import UsageError
from gkestimator.core.limits import check_amount, exceeded
from gkestimator.interference.base import TERMS
from gkestimator.llm.steps import StepLaw
from gkestimator.simulation.arrays import Floats, Ints
from gkestimator.simulation.arrivals.base import Arrivals, Chunk
from gkestimator.simulation.engine import codes
from gkestimator.simulation.engine.building import (
    batches_late,
    curve_key,
    curves_of,
    fill_replica,
    first_state,
    iterator_row,
    law_numbers,
    most_asked,
)
from gkestimator.simulation.engine.changes import (
    expect_available,
    fill_streams,
    join_servers,
    make_available,
    resumes,
    unstream,
)
from gkestimator.simulation.engine.checking import (
    check_chunk,
    check_closed,
    check_gpu,
    check_replica,
    check_room,
    check_source,
    check_takes_time,
)
from gkestimator.simulation.engine.plain import run_plainly
from gkestimator.simulation.engine.pools import Draws, bytes_under_way, count_windows, fit_pools, with_needs
from gkestimator.simulation.engine.records import Records, joined, rows
from gkestimator.simulation.engine.results import result_of
from gkestimator.simulation.engine.state import GpuRecord, KeptRecord, ReplicaRecord, ServerRecord
from gkestimator.simulation.network import work_done
from gkestimator.simulation.options import Options
from gkestimator.simulation.result import Result
from gkestimator.simulation.system import SimGpu, SimIterating, SimReplica, System


def simulate(system: System, arrivals: Arrivals, options: Options) -> Result:
    """Simulate ``system`` under ``arrivals``."""
    simulator = Simulator(system, options)
    for chunk in arrivals.chunks(options.duration_ms):
        simulator.advance(chunk)
    return simulator.finish()


class Simulator:
    """Hold one run that goes on chunk by chunk; replicas may be added and retired between chunks.

    What happens is said in docs/explanation/simulation/rules.md. State is arrays alone (:mod:`.columns`), which the
    event loop (:mod:`.loop`; compiled where numba is installed, with the same results) works on until the chunk's end
    or until it needs room: pools are made larger here, between its calls.
    """

    def __init__(self, system: System, options: Options) -> None:
        self.now_ms = 0.0
        self._system = system
        self._options = options
        door, draws, factors = (
            np.random.Generator(np.random.PCG64(child))
            for child in np.random.SeedSequence(options.seed).spawn(3)
        )
        self._uniforms, self._draws = Draws(door.random), Draws(draws.standard_exponential)
        self._normals = factors.standard_normal(len(system.models))
        self._admit = [source.admit for source in system.sources]
        self._source_arrived = np.zeros(len(system.sources), np.int64)
        self._source_rejected = np.zeros(len(system.sources), np.int64)
        self._kept: list[Records[KeptRecord]] = []
        self._partitions: dict[int, tuple[int, int]] = {}  # server, GPU
        self._curve_rows: dict[tuple[object, ...], int] = {}
        self._law_starts: dict[StepLaw, int] = {}
        for source in system.sources:
            check_source(source, system.models)
            if source.closed:
                check_closed(source, options.drop)
        self._closed = any(source.closed for source in system.sources)
        self._host_free_ms = 0.0
        if self._closed and system.host_ms:
            raise UsageError("host_ms of the network: has no use where clients wait for their answers")
        self._most_asked = max((most_asked(source) for source in system.sources), default=0)
        self._s = first_state(system, options)
        self.add(system.replicas, [0.0] * len(system.replicas), gpus=system.gpus)

    def advance(self, chunk: Chunk) -> None:
        """Simulate up to ``chunk.end_ms``."""
        self._take(chunk)
        self._run(chunk.end_ms)
        self.now_ms = chunk.end_ms

    def add(
        self,
        replicas: Sequence[SimReplica],
        available_ms: Sequence[float],
        *,
        gpus: Sequence[SimGpu] = (),
    ) -> list[int]:
        """Add ``gpus``, then ``replicas``, which take batches and may start to serve from ``available_ms``
        on; their indices.

        The router chooses a replica that is not available yet only where its model has no other.
        """
        s = self._s
        for new in gpus:
            check_gpu(new)
        idle = rows(GpuRecord, len(gpus))
        for field in ("first", "last", "copy_head", "copy_tail"):
            idle[field] = -1
        terms = np.array([gpu.terms for gpu in gpus], float).reshape(-1, TERMS)
        s = self._s = s._replace(gpus=joined([s.gpus, idle]), terms=joined([s.terms, terms]))
        first = len(s.replicas)
        new_rows = rows(ReplicaRecord, len(replicas))
        curves = [s.curves]
        features = [s.curve_features]
        at = len(s.curves)
        servers = len(s.servers)
        for row, replica, available in zip(new_rows, replicas, available_ms, strict=True):
            check_replica(replica, self._system.models, len(s.gpus))
            if self._closed:
                check_takes_time(replica)
            if not 0 <= available < math.inf:
                raise UsageError(f"replica {replica.id!r}: available from {available} ms, expected 0 or more")
            server = servers
            if replica.partition is not None:
                server, gpu = self._partitions.setdefault(replica.partition, (servers, replica.gpu))
                if gpu != replica.gpu:
                    raise UsageError(
                        f"replica {replica.id!r}: partition {replica.partition} is on GPU {gpu}, found {replica.gpu}"
                    )
            servers = max(servers, server + 1)
            late = batches_late(replica, self._options)
            curve = self._curve_rows.setdefault(curve_key(replica, late), at)
            if curve == at:
                at += replica.batch_size + 1
                check_room(replica.batch_size, self._most_asked, at)
                its_curve, its_features = curves_of(replica, late)
                curves.append(its_curve)
                features.append(its_features)
            fill_replica(row, replica, server=server, curve=curve, available_ms=available, late=late)
            row.factor = self._factor(replica)
            if replica.iterates is not None:
                row.iterator = self._iterating(replica.iterates)
        open_now = [k for k, available in enumerate(available_ms, first) if available <= self.now_ms]
        s = self._s
        new_servers = rows(ServerRecord, servers - len(s.servers))
        for field in ("running", "head", "tail", "due", "due_tail", "late"):
            new_servers[field] = -1
        self._s = s._replace(
            replicas=joined([s.replicas, new_rows]),
            curves=joined(curves),
            curve_features=joined(features),
            servers=joined([s.servers, new_servers]),
        )
        added = list(range(first, first + len(replicas)))
        join_servers(self._s, added)
        make_available(self._s, open_now)
        self._retarget(added)
        return added

    def retire(self, replicas: Sequence[int]) -> None:
        """Open no batch for these from now on; what they were given they serve to the end."""
        for replica in replicas:
            self._s.replicas[replica].retired = 1
        self._retarget([])

    def set_admission(self, source: int, admit: float) -> None:
        """Let requests of ``source`` in with chance ``admit`` from now on."""
        self._admit[source] = admit

    def outstanding(self) -> Ints:
        """Return the requests that each replica (in order of index) was given and whose service has not ended
        by ``now_ms``: those of the batch under construction for it, on the network, being copied, queued or
        running.
        """
        s = self._s
        requests: Ints = s.replicas["given"].copy()
        for model in s.models:
            if model.open_for >= 0:
                source = s.sources[model.source]
                requests[model.open_for] += source.stop - source.at
            elif model.batch >= 0:
                batch = s.batches[model.batch]
                requests[batch.replica] += batch.size
        return requests

    def progress(self) -> Result:
        """Return what was counted so far (arrays copied)."""
        self._flush()
        return result_of(
            self._system, self._options, self._s, self._source_arrived, self._source_rejected, self._kept
        )

    def finish(self) -> Result:
        """Serve all that came; return what was counted."""
        self._run(math.inf)
        return self.progress()

    def _iterating(self, iterates: SimIterating) -> int:
        """Return the row of a new replica that serves by iterations; equal laws are kept once."""
        s = self._s
        at = self._law_starts.setdefault(iterates.law, len(s.laws))
        if at == len(s.laws):
            s = s._replace(laws=np.concatenate((s.laws, law_numbers(iterates.law))))
        self._s = s._replace(iterators=joined([s.iterators, iterator_row(iterates, at)]))
        return len(s.iterators)

    def _factor(self, replica: SimReplica) -> float:
        """Return by how much the replica's latencies are taken to be wrong in this run."""
        if self._options.service != "interval":
            return 1.0
        z = float(self._normals[replica.model])
        return math.exp(z * (replica.sigma_above if z > 0 else replica.sigma_below))

    def _retarget(self, added: list[int]) -> None:
        """Make the lists of replicas that may be chosen anew after ``added`` came or others were retired."""
        s = self._s
        now = self.now_ms
        replicas = s.replicas
        before = s.models["targets"].copy()
        usable = np.flatnonzero(replicas["retired"] == 0)
        its_model = replicas["model"][usable]
        is_available = replicas["available"][usable]
        # By model, the available ones first, those in the order of the round robin (a sorted list is a heap).
        order = np.lexsort((usable, replicas["key"][usable], -is_available, its_model))
        targets = usable[order]
        models = len(s.models)
        s.models["targets"] = np.bincount(its_model, minlength=models)
        s.models["first_target"] = np.cumsum(s.models["targets"]) - s.models["targets"]
        s.models["available"] = np.bincount(its_model, weights=is_available, minlength=models)
        self._s = s._replace(targets=targets)
        self._fit()
        for r in added:
            replica = replicas[r]
            model = s.models[replica.model]
            if replica.turns == 1 and model.streamed == 1:
                self._fit()
                unstream(self._s, replica.model)
            if before[replica.model] == 0:
                model.resumed_ms = now
            if replica.available == 0:
                self._fit()
                expect_available(self._s, r)
        fill_streams(self._s)
        if resumes(self._s):
            self._run(now, resume_only=True)

    def _fit(self) -> None:
        """Make room, draws and uniforms for one event at least."""
        self._s = with_needs(self._s, self._most_asked)
        s = fit_pools(self._s)
        check_amount("requests under way", "under_way_bytes", bytes_under_way(s))
        loop = s.loop
        needs = s.needs
        if len(s.draws) - loop.draw < needs.draws:
            s = s._replace(draws=self._draws.filled(s.draws[loop.draw :], int(needs.draws)))
            loop.draw = 0
        if len(s.uniforms) - loop.uniform < needs.uniforms:
            s = s._replace(uniforms=self._uniforms.filled(s.uniforms[loop.uniform :], int(needs.uniforms)))
            loop.uniform = 0
        self._s = s

    def _flush(self) -> None:
        """Take kept requests out of the kernel's buffer."""
        kept = int(self._s.loop.kept)
        if kept:
            self._kept.append(self._s.kept[:kept].copy())
            self._s.loop.kept = 0

    def _run(self, until_ms: float, *, resume_only: bool = False) -> None:
        from gkestimator.simulation.engine.loop import run

        self._s.loop.now_ms = self.now_ms
        while True:
            if hasattr(run, "py_func"):
                code = run(self._s, float(until_ms), resume_only)
            else:
                code = run_plainly(run, self._s, float(until_ms), resume_only)
            if code == codes.DONE:
                return
            if code == codes.TOO_MANY:
                raise UsageError(f"arrivals: {exceeded('requests', int(self._s.loop.sent))}")
            if code == codes.TOO_CLOSE:
                raise UsageError(f"interference: {exceeded('speeds', int(self._s.loop.speeds))}")
            if code == codes.FLUSH:
                self._flush()
            self._fit()

    def _take(self, chunk: Chunk) -> None:
        """Take in the chunk's requests, after those that wait from chunks before: turned away or let in, counted."""
        s = self._s
        options = self._options
        check_chunk(chunk, len(s.sources), self.now_ms)
        parts: list[Floats] = []
        came: list[Floats] = []
        through = self._through_host(chunk.times_ms)
        at = 0
        for k, times in enumerate(chunk.times_ms):
            source = s.sources[k]
            admit = self._admit[k]
            entered = times
            routed = through[k]
            if admit < 1:
                if admit > 0:
                    chosen = self._uniforms.take(s, len(times)) < admit
                else:
                    chosen = np.zeros(len(times), bool)
                entered = times[chosen]
                routed = routed[chosen]
            counted = len(times) - int(np.searchsorted(times, options.warmup_ms))
            counted_in = len(entered) - int(np.searchsorted(entered, options.warmup_ms))
            self._source_arrived[k] += counted
            self._source_rejected[k] += counted - counted_in
            if source.kind != codes.JOB and len(entered):
                s.models[source.model].arrived += counted_in
                count_windows(s, source.model, entered)
            waiting = s.arrivals[source.at : source.stop]
            parts += [waiting, routed]
            came += [s.came[source.at : source.stop], entered]
            source.at = at
            at += len(waiting) + len(entered)
            source.stop = at
        arrivals = np.concatenate(parts) if parts else np.zeros(0)
        self._s = s._replace(arrivals=arrivals, came=np.concatenate(came) if came else arrivals)
        fill_streams(self._s)

    def _through_host(self, times_ms: Sequence[Floats]) -> Sequence[Floats]:
        """Return when the host has done its work for each request: one at a time, in the order in which they came."""
        host_ms = self._system.host_ms
        if host_ms == 0 or not times_ms:
            return times_ms
        together = np.concatenate(times_ms)
        order = np.argsort(together, kind="stable")
        done = np.empty(len(together))
        done[order] = work_done(together[order], host_ms, free_ms=self._host_free_ms)
        self._host_free_ms = max(self._host_free_ms, done.max(initial=0.0))
        return np.split(done, np.cumsum([len(times) for times in times_ms])[:-1])
