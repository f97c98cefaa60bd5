"""Say what a new plan changes: which loaded replicas go on as which of its own, what is loaded, and what ends."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from gkestimator.core.errors import UsageError
from gkestimator.core.records import Names, frozen
from gkestimator.serving.served import ServedPlan, ServedReplica
from gkestimator.simulation.replanning.matching import Content, match_gpus, pair_replicas

_FULL_PCT = 100.0 + 1e-5


@frozen
class PlanMoves:
    """Hold the way from what is loaded to a plan.

    ``target``: every replica of the plan, under the names by which it is to run. ``loads``: those that are new, on GPUs
    with room for them beside what runs; ``late_loads``: those that must wait until ``ends`` have gone. ``ends``: names
    of replicas that the plan has no use for.
    """

    target: tuple[ServedReplica, ...]
    loads: tuple[ServedReplica, ...]
    late_loads: tuple[ServedReplica, ...]
    ends: Names

    @property
    def words(self) -> str:
        """Return what is done, as the end of a sentence."""
        loads = len(self.loads) + len(self.late_loads)
        kept = len(self.target) - loads
        return f"{kept} replicas stay, {loads} are loaded, {len(self.ends)} end"


def plan_moves(
    loaded: Sequence[ServedReplica], plan: ServedPlan, pool: Mapping[str, Sequence[str]] | None
) -> PlanMoves:
    """Return the way to ``plan`` with the fewest loads from what is ``loaded``.

    ``pool``: ids of the GPUs there are, by type (None: GPUs of any number, under names of their own). Raises UsageError
    where the plan uses more GPUs than there are.
    """
    by_gpu: dict[str, list[ServedReplica]] = defaultdict(list)
    for replica in loaded:
        by_gpu[replica.gpu].append(replica)
    becomes = _matched_gpus(by_gpu, plan, pool)
    names = {replica.name for replica in loaded}
    target: list[ServedReplica] = []
    loads: list[ServedReplica] = []
    stays: set[str] = set()
    replicas = iter(plan.replicas)
    for gpu in plan.plan.gpus:
        planned = [next(replicas) for _ in gpu.replicas]
        here = by_gpu.get(becomes[gpu.id], [])
        pairs = pair_replicas([r.asked for r in here], [r.asked for r in planned])
        for number, replica in enumerate(planned):
            replica = replace(replica, gpu=becomes[gpu.id])
            if number in pairs:
                replica = _going_on(here[pairs[number]], replica)
                stays.add(replica.name)
            else:
                replica = _named(replica, names)
                loads.append(replica)
            target.append(replica)
    ends = tuple(r.name for r in loaded if r.name not in stays)
    full = _without_room(loaded, loads)
    return PlanMoves(
        target=tuple(target),
        loads=tuple(r for r in loads if r.gpu not in full),
        late_loads=tuple(r for r in loads if r.gpu in full),
        ends=ends,
    )


def _going_on(runs: ServedReplica, planned: ServedReplica) -> ServedReplica:
    """Return ``planned`` as the loaded replica ``runs`` goes on as it: under its name, on a lane that is its own."""
    lane = planned.lane
    if planned.asked.partition is None:
        lane = runs.lane
    return replace(planned, name=runs.name, lane=lane)


def _named(replica: ServedReplica, taken: set[str]) -> ServedReplica:
    """Return ``replica`` under the plan's id, or where another still runs under it, with a number behind."""
    name = replica.asked.id
    if name in taken:
        name = next(n for i in itertools.count(2) if (n := f"{name}.{i}") not in taken)
    taken.add(name)
    lane = replica.lane
    if replica.asked.partition is None:
        lane = name
    return replace(replica, name=name, lane=lane)


def _matched_gpus(
    by_gpu: Mapping[str, Sequence[ServedReplica]],
    plan: ServedPlan,
    pool: Mapping[str, Sequence[str]] | None,
) -> Mapping[str, str]:
    """Return the GPU that each of the plan's becomes."""
    contents = []
    for gpu, replicas in by_gpu.items():
        asked = tuple(r.asked for r in replicas)
        contents.append(Content(id=gpu, type=replicas[0].gpu_type, replicas=asked))
    for gpu_type in dict.fromkeys(g.type for g in plan.plan.gpus):
        own = [g.id for g in plan.plan.gpus if g.type == gpu_type]
        there: Iterable[str]
        if pool is not None:
            there = pool.get(gpu_type, ())
        else:
            numbered = (f"{gpu_type}-{number}" for number in range(len(by_gpu) + 2 * len(own)))
            there = dict.fromkeys([*own, *numbered])
        contents += [Content(id=name, type=gpu_type) for name in there if name not in by_gpu]
    becomes = {}
    for planned, running in match_gpus(contents, plan.plan.gpus).items():
        if running is None:
            raise UsageError(f"the plan uses {planned}: expected no more GPUs of a type than there are")
        becomes[planned] = running
    return becomes


def _without_room(loaded: Iterable[ServedReplica], loads: Iterable[ServedReplica]) -> set[str]:
    """Return the GPUs on which what is loaded and what is to be have no room beside each other."""
    taken: dict[str, float] = defaultdict(float)
    for replica in (*loaded, *loads):
        taken[replica.gpu] += replica.asked.mreq_pct or 0.0
    return {gpu for gpu, percent in taken.items() if percent > _FULL_PCT}
