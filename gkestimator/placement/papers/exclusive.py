"""One model per GPU, with the largest batch that keeps its objective."""

from __future__ import annotations

import heapq

from gkestimator.placement.integer import Deadline
from gkestimator.placement.papers.milp import on_gpus, without_choice
from gkestimator.placement.patterns import ROOM_PCT, Choice, ChoiceList, ReplicaPattern
from gkestimator.placement.policy import Placement, Policy
from gkestimator.placement.problem import Names, Problem
from gkestimator.placement.programs import Layout, pattern_form, serve
from gkestimator.tables.candidate import Candidate

# HiGHS proves these programs in well under a second; the limit is for inputs nobody has thought of.
_TIME_LIMIT_S = 60.0


class ExclusivePolicy(Policy):
    """Run on every GPU one replica of one model, at the largest batch size whose latency is at most the SLO.

    The setting that Shepherd's comparison uses (H. Zhang et al., Shepherd, NSDI 2023: no two models run on
    a GPU at once). Which GPU runs what is exact: most goodput, then the fewest GPUs; on rented GPUs every
    rate at the lowest cost. On GPUs of one type the gains of a model's further replicas never grow, so
    handing GPUs to the largest gain is optimal; several types are a small integer program (how many GPUs of
    each type each model gets).
    """

    name = "exclusive"
    summary = "one model per GPU at its largest batch within the objective (Shepherd's setting)"
    spares = ("memory",)

    def place(self, problem: Problem) -> Placement:
        """Return the placement; see the class."""
        choices = _choices(problem)
        notes: Names = ()
        gap: float | None = 0.0
        if len(problem.types) == 1:
            layout = _by_gain(problem, choices)
        else:
            patterns = []
            for t in problem.types:
                able = [i for i, c in enumerate(choices) if t in c.by_type]
                patterns += [ReplicaPattern(gpu_type=t, members=(i,)) for i in able]
            form = pattern_form(problem, choices, patterns)
            answer = serve(problem, form, deadline=Deadline(_TIME_LIMIT_S))
            if answer is None:
                layout = []
                gap = None
                notes = (f"time ran out ({_TIME_LIMIT_S:g} s) before any plan was found",)
            else:
                layout = answer.gpus
                gap = answer.gap_pct
                notes = answer.notes
        return Placement(
            placed=on_gpus(problem, choices, layout),
            reasons=without_choice(problem, choices),
            notes=notes,
            gap_pct=gap,
        )


def _choices(problem: Problem) -> ChoiceList:
    choices = []
    for model in problem.models:
        by_type: dict[str, Candidate] = {}
        for gpu_type in problem.types:
            fitting = [
                c for c in model.feasible(gpu_type) if c.memory_pct is None or c.memory_pct <= ROOM_PCT
            ]
            if fitting:
                by_type[gpu_type] = max(fitting, key=lambda c: c.batch_size)
        if by_type:
            choices.append(Choice(model=model, by_type=by_type))
    return choices


def _by_gain(problem: Problem, choices: ChoiceList) -> Layout:
    """Return GPUs of the one type, each to the model that gains most by it (ties: in the workload's
    order)."""
    gpu_type = problem.types[0]
    left = problem.limits[gpu_type]
    # (minus the gain of one more replica, number of the choice, rate that is not served yet)
    heap = [(-_gain(c, gpu_type, c.model.rate_rps), i, c.model.rate_rps) for i, c in enumerate(choices)]
    heapq.heapify(heap)
    layout: Layout = []
    while heap and (left is None or len(layout) < left):
        gain, i, missing = heapq.heappop(heap)
        layout.append((gpu_type, (i,)))
        missing += gain
        if missing > 1e-9 * choices[i].model.rate_rps:
            heapq.heappush(heap, (-_gain(choices[i], gpu_type, missing), i, missing))
    return sorted(layout, key=lambda gpu: gpu[1])


def _gain(choice: Choice, gpu_type: str, missing_rps: float) -> float:
    return min(missing_rps, choice.throughput_rps(gpu_type))
