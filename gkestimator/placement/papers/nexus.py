"""Nexus' squishy bin packing: models that fill whole GPUs, the rest in turns (Shen et al., SOSP 2019)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TypeAlias

from gkestimator.core.records import frozen
from gkestimator.placement.policy import Placed, Placement, Policy
from gkestimator.placement.problem import PlacementModel, Problem, Words
from gkestimator.tables.candidate import Candidate

_CLOSE = 1e-9
# A model and the requests a second of it that nodes are looked for.
_Asked: TypeAlias = tuple[PlacementModel, float]


@frozen
class NexusSession:
    """Hold a model in a node: the rate that it is to serve there, and the batch of every turn."""

    model: PlacementModel
    rate_rps: float
    candidate: Candidate


@frozen
class NexusNode:
    """Hold one GPU: its sessions, each run once in ``cycle_ms``."""

    sessions: tuple[NexusSession, ...]
    cycle_ms: float

    @property
    def occupancy(self) -> float:
        """Return the part of the cycle that it runs."""
        return sum(s.candidate.latency_ms for s in self.sessions) / self.cycle_ms

    @property
    def goodput_rps(self) -> float:
        """Return what its sessions serve together (requests a second)."""
        return sum(s.rate_rps for s in self.sessions)


Nodes: TypeAlias = list[NexusNode]


class NexusPolicy(Policy):
    """Pack whole GPUs, then models in turns. Source: Shen et al., "Nexus: A GPU Cluster Engine for
    Accelerating DNN-Based Video Analysis", SOSP 2019, section 6.1, algorithm 1 (ScheduleSaturate,
    ScheduleResidue, MergeNodes).

    A model whose batches come back to back answers within two latencies, so its batch is the largest with
    twice the latency within the objective; it gets as many whole GPUs as its rate fills. The rest of each
    model takes the largest batch with latency + batch / rate within the objective, and nodes are merged into
    the one that is then busiest. Nexus knows one GPU type and as many as it wants: of several types a model
    takes that of the lowest price (on a fixed cluster: the highest throughput) first; where GPUs are short,
    the nodes that serve most are kept.
    """

    name = "nexus"
    summary = "squishy bin packing: whole GPUs, then models in turns (Nexus, SOSP 2019)"
    spares = ("memory",)

    def place(self, problem: Problem) -> Placement:
        """Return replicas in turns; see :class:`Policy`."""
        left = {m.name: m.rate_rps for m in problem.models}
        room = dict(zip(problem.types, problem.pools, strict=True))
        used: dict[str, Nodes] = {gpu: [] for gpu in problem.types}
        while True:
            asked: dict[str, list[_Asked]] = {gpu: [] for gpu in problem.types}
            for model in problem.models:
                if left[model.name] > _CLOSE * model.rate_rps:
                    gpu = _preferred(problem, model, room)
                    if gpu is not None:
                        asked[gpu].append((model, left[model.name]))
            if not any(asked.values()):
                break
            for gpu, models in asked.items():
                nodes = _nodes(models, gpu)
                run = _most_goodput(nodes, room[gpu])
                used[gpu] += run
                room[gpu] -= len(run)
                if len(run) < len(nodes) or (models and not nodes):
                    room[gpu] = 0
                for session in itertools.chain.from_iterable(node.sessions for node in run):
                    left[session.model.name] -= session.rate_rps
        return Placement(placed=tuple(_placed(problem, used)), reasons=_reasons(problem))


def _reasons(problem: Problem) -> Words:
    """Return why models cannot take turns on any GPU type."""
    reasons = {}
    for m in problem.models:
        if all(_largest_batch(m, gpu) is None for gpu in problem.types):
            reasons[m.name] = (
                f"no batch has twice its latency within the SLO of {m.slo_ms:g} ms, as taking turns needs"
            )
    return reasons


def _most_goodput(nodes: Nodes, room: float) -> Nodes:
    """Return the nodes for which there is room, in their order: those that serve most."""
    if len(nodes) <= room:
        return nodes
    best = sorted(range(len(nodes)), key=lambda i: (-nodes[i].goodput_rps, i))[: int(room)]
    return [nodes[i] for i in sorted(best)]


def _largest_batch(model: PlacementModel, gpu: str) -> Candidate | None:
    """Return the candidate of the largest batch with twice its latency within the objective, that fits a
    GPU."""
    twice = model.slo_ms * (1 + _CLOSE) / 2
    fitting = [c for c in _fitting(model, gpu) if c.latency_ms <= twice]
    return max(fitting, key=lambda c: c.batch_size, default=None)


def _fitting(model: PlacementModel, gpu: str) -> list[Candidate]:
    return [c for c in model.on(gpu) if (c.memory_pct or 0.0) <= 100]


def _preferred(problem: Problem, model: PlacementModel, room: Mapping[str, float]) -> str | None:
    """Return the GPU type with room that serves ``model`` at the lowest price for the rate; None where none
    can."""
    best = None
    least = math.inf
    for gpu in problem.types:
        if room[gpu] < 1:
            continue
        candidate = _largest_batch(model, gpu)
        if candidate is None:
            continue
        dear = problem.rent(gpu) / candidate.throughput_rps
        if dear < least * (1 - _CLOSE):
            least = dear
            best = gpu
    return best


def _nodes(asked: list[_Asked], gpu: str) -> Nodes:
    nodes = []
    residue = []
    for model, rate in asked:
        full, rest = saturated(model, rate, gpu)
        nodes += full
        if rest > _CLOSE * model.rate_rps:
            residue.append((model, rest))
    return nodes + residual_nodes(residue, gpu)


def saturated(model: PlacementModel, rate_rps: float, gpu: str) -> tuple[Nodes, float]:
    """Return (ScheduleSaturate) the GPUs that ``model`` fills, and the rate that is left over."""
    candidate = _largest_batch(model, gpu)
    if candidate is None:
        return [], rate_rps
    throughput = 1e3 * candidate.batch_size / candidate.latency_ms
    count = math.floor(rate_rps / throughput * (1 + _CLOSE))
    session = NexusSession(model=model, rate_rps=throughput, candidate=candidate)
    node = NexusNode(sessions=(session,), cycle_ms=candidate.latency_ms)
    return [node] * count, max(0.0, rate_rps - count * throughput)


def residual_nodes(asked: list[_Asked], gpu: str) -> Nodes:
    """Return (ScheduleResidue) each model's rest in a node of its own, then, the busiest first, merged into
    the node that becomes the busiest. Models of which no batch answers in time have no node."""
    alone = [node for model, rate in asked for node in _residual(model, rate, gpu)]
    nodes: Nodes = []
    for node in sorted(alone, key=lambda n: (-n.occupancy, n.sessions[0].model.name)):
        best: tuple[float, int, NexusNode] | None = None
        for i, other in enumerate(nodes):
            merged = _merged(other, node, gpu)
            if merged is not None and (best is None or merged.occupancy > best[0] * (1 + _CLOSE)):
                best = (merged.occupancy, i, merged)
        if best is None:
            nodes.append(node)
        else:
            nodes[best[1]] = best[2]
    return nodes


def _residual(model: PlacementModel, rate: float, gpu: str) -> Nodes:
    """Return the node of what is left of a model, none where no batch answers in time."""
    in_time = []
    for c in _fitting(model, gpu):
        cycle = 1e3 * c.batch_size / rate
        if c.latency_ms + cycle <= model.slo_ms * (1 + _CLOSE) and c.latency_ms <= cycle * (1 + _CLOSE):
            in_time.append(c)
    if in_time:
        candidate = max(in_time, key=lambda c: c.batch_size)
        session = NexusSession(model=model, rate_rps=rate, candidate=candidate)
        return [NexusNode(sessions=(session,), cycle_ms=1e3 * candidate.batch_size / rate)]
    # Too few requests to fill even the smallest batch in time (it runs unfilled, as often as the objective
    # asks), or more than any batch sustains that leaves time to wait for it (it serves what it can).
    best: NexusNode | None = None
    for candidate in _fitting(model, gpu):
        cycle = model.slo_ms - candidate.latency_ms
        if cycle < candidate.latency_ms:
            continue
        served = min(rate, 1e3 * candidate.batch_size / candidate.latency_ms)
        cycle = min(cycle, 1e3 * candidate.batch_size / served)
        session = NexusSession(model=model, rate_rps=served, candidate=candidate)
        node = NexusNode(sessions=(session,), cycle_ms=cycle)
        if best is None or node.goodput_rps > best.goodput_rps * (1 + _CLOSE):
            best = node
    if best is None:
        return []
    return [best]


def _merged(first: NexusNode, second: NexusNode, gpu: str) -> NexusNode | None:
    """Return (MergeNodes) both in one: the shorter cycle, every batch as small as that allows; None where it
    does not fit."""
    cycle = min(first.cycle_ms, second.cycle_ms)
    sessions = []
    for session in (*first.sessions, *second.sessions):
        model = session.model
        least = session.rate_rps * cycle / 1e3 * (1 - _CLOSE)
        most_ms = model.slo_ms * (1 + _CLOSE)
        enough = [c for c in model.on(gpu) if c.batch_size >= least and c.latency_ms + cycle <= most_ms]
        if not enough:
            return None
        sessions.append(replace(session, candidate=min(enough, key=lambda c: c.batch_size)))
    node = NexusNode(sessions=tuple(sessions), cycle_ms=cycle)
    memory = sum(s.candidate.memory_pct or 0.0 for s in sessions)
    if node.occupancy <= 1 + _CLOSE and memory <= 100 * (1 + _CLOSE):
        return node
    return None


def _placed(problem: Problem, used: Mapping[str, Nodes]) -> list[Placed]:
    placed = []
    for gpu_type, nodes in used.items():
        for number, node in enumerate(nodes):
            gpu = problem.gpu(gpu_type, number)
            for session in node.sessions:
                replica = Placed(
                    gpu=gpu,
                    model=session.model.name,
                    candidate=session.candidate,
                    partition=f"{gpu.id}-turns",
                    duty_cycle_ms=node.cycle_ms,
                )
                placed.append(replica)
    return placed
