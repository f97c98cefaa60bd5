"""The thesis' mixed-integer program, for GPUs of several types and for rented ones."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from gkestimator.core.errors import UsageError
from gkestimator.placement.integer import Deadline
from gkestimator.placement.patterns import (
    ChoiceList,
    ReplicaPattern,
    batch_choices,
    maximal_patterns,
    needs_pct,
)
from gkestimator.placement.policy import Placed, Placement, Policy
from gkestimator.placement.problem import Problem, Words
from gkestimator.placement.programs import (
    Answer,
    Layout,
    pattern_form,
    serve,
    slot_form,
    useful_replicas,
)

# Beyond these a form is not written down: seconds of enumeration, and what HiGHS can hold.
_PATTERN_STEPS = 400_000
_PATTERNS = 20_000
_SLOT_VARIABLES = 500_000


class MilpPolicy(Policy):
    """Place for the most goodput, then the fewest GPUs; on rented GPUs every rate at the lowest cost, then on
    the fewest GPUs.

    P. Elvinger's program (master thesis 505, ETH Zurich 2024): one batch size per model, the sums of Creq
    and of Mreq on a GPU at most 100 %, at most one replica of a model per GPU, goodput at most rate and the
    throughput of the replicas (the printed constraint lacks the placement variable x). A replica is a row
    of the table for the whole GPU, whose latency is at most the SLO.

    GPUs of one type are interchangeable, so the maximal sets of replicas that fit on one (patterns) are
    enumerated and the program says how many GPUs run each: exact, since it loses only which of equal GPUs
    is which. Where they are too many, each GPU has variables of its own, and the rented GPUs of a type are
    at most what a first-fit plan's cost would buy. Ties are broken by further solves that hold what was
    reached, not by weights, which could change the goodput.
    """

    name = "milp"
    summary = (
        "the thesis' mixed-integer program: most goodput or least cost on whole GPUs, one batch size a model"
    )
    creq = "occupancy-max"
    needs = ("creq", "memory")
    options = ("time_limit_s",)
    packs_by_creq = True

    def __init__(self, *, time_limit_s: float = 60.0) -> None:
        """Set ``time_limit_s``: seconds for all solves together; the best plan found by then is the answer,
        with the gap that is left. Raises UsageError: not a number above 0."""
        if (
            isinstance(time_limit_s, bool)
            or not isinstance(time_limit_s, (int, float))
            or not 0 < time_limit_s < math.inf
        ):
            raise UsageError(f"time-limit-s: found {time_limit_s!r}, expected a number of seconds above 0")
        self._time_limit_s = float(time_limit_s)

    def place(self, problem: Problem) -> Placement:
        """Return the placement. Raises UsageError: the program would be too large to write down."""
        deadline = Deadline(self._time_limit_s)
        choices = [c for m in problem.models for c in batch_choices(problem, m)]
        answer = self._solve(problem, choices, deadline)
        notes = answer.notes
        if notes:
            notes = (*notes, f"time limit {self._time_limit_s:g} s: a slower machine may find another plan")
        return Placement(
            placed=on_gpus(problem, choices, answer.gpus),
            reasons=without_choice(problem, choices),
            notes=notes,
            gap_pct=answer.gap_pct,
        )

    def _solve(self, problem: Problem, choices: ChoiceList, deadline: Deadline) -> Answer:
        patterns: list[ReplicaPattern] = []
        for gpu_type in problem.types:
            more = maximal_patterns(choices, gpu_type, limit=_PATTERN_STEPS)
            if more is None or len(patterns) + len(more) > _PATTERNS:
                break
            patterns += more
        else:
            answer = serve(problem, pattern_form(problem, choices, patterns), deadline=deadline)
            return answer or _out_of_time(problem, choices)
        slots = _slots(problem, choices)
        size = sum(slots[t] * sum(t in c.by_type for c in choices) for t in problem.types)
        if size > _SLOT_VARIABLES:
            raise UsageError(
                f"policy {self.name}: {len(choices)} ways to run {len(problem.models)} models on "
                f"{sum(slots.values())} GPUs need {size:,} variables, expected at most {_SLOT_VARIABLES:,}; "
                "another policy (gkest, usher) is not bounded so"
            )
        answer = serve(problem, slot_form(problem, choices, slots), deadline=deadline)
        return answer or _out_of_time(problem, choices)


def _out_of_time(problem: Problem, choices: ChoiceList) -> Answer:
    return Answer(
        gpus=first_fit(problem, choices),
        gap_pct=None,
        notes=("time ran out before the program had any solution: a first-fit plan instead",),
    )


def _slots(problem: Problem, choices: ChoiceList) -> dict[str, int]:
    """Return how many GPUs of each type a best plan uses at most."""
    if not problem.elastic:
        return dict(problem.counts)
    fitted = first_fit(problem, choices)
    price = {o.type: o.price_per_hour for o in problem.offers}
    cost = sum(price[t] for t, _ in fitted)
    served = {choices[i].model.name for _, members in fitted for i in members}
    # A first-fit plan that leaves a model out bounds nothing: serving it costs more.
    whole = served == {c.model.name for c in choices} and all(o.limit is None for o in problem.offers)
    slots = {}
    for offer in problem.offers:
        replicas: dict[str, int] = {}
        for c in choices:
            if offer.type in c.by_type:
                useful = useful_replicas(c, offer.type)
                replicas[c.model.name] = max(replicas.get(c.model.name, 0), useful)
        number = sum(replicas.values())
        if whole:
            number = min(number, math.floor(cost / offer.price_per_hour * (1 + 1e-9)))
        slots[offer.type] = number if offer.limit is None else min(number, offer.limit)
    return slots


def first_fit(problem: Problem, choices: ChoiceList) -> Layout:
    """Return a plan without search. Models in order; each takes the batch size and GPU type at which its rate
    costs least if it were alone (rented GPUs; else the one with the most throughput), on the first GPUs
    with room, then on new ones."""
    by_model: dict[str, list[tuple[float, int, int, int]]] = {}
    for i, choice in enumerate(choices):
        for t in choice.by_type:
            if problem.elastic:
                price = problem.prices.get(t) or 1.0
            else:
                price = 1.0
            number = useful_replicas(choice, t)
            way = (price * number, number, i, problem.types.index(t))
            by_model.setdefault(choice.model.name, []).append(way)
    pools = dict(zip(problem.types, problem.pools, strict=True))
    gpus: list[_Filling] = []
    for ways in by_model.values():
        _, number, i, at = min(ways)
        t = problem.types[at]
        creq, memory = needs_pct(choices[i].by_type[t])
        for gpu in gpus:
            if number and gpu.type == t and gpu.put(i, creq, memory):
                number -= 1
        while number and pools[t] >= 1:
            gpu = _Filling(t)
            gpu.put(i, creq, memory)
            gpus.append(gpu)
            pools[t] -= 1
            number -= 1
    return [(gpu.type, tuple(gpu.members)) for gpu in gpus]


@dataclass(slots=True)
class _Filling:
    """Hold one GPU of ``type`` while it is filled, with the room that is left, percent."""

    type: str
    members: list[int] = field(default_factory=list)
    creq: float = 100.0
    memory: float = 100.0

    def put(self, choice: int, creq: float, memory: float) -> bool:
        """Put a replica of ``choice`` there if it fits; return whether it does."""
        if creq > self.creq + 1e-9 or memory > self.memory + 1e-9:
            return False
        self.members.append(choice)
        self.creq -= creq
        self.memory -= memory
        return True


def on_gpus(problem: Problem, choices: ChoiceList, layout: Layout) -> tuple[Placed, ...]:
    """Return ``layout`` on the problem's GPUs of each type, from the first on."""
    used = dict.fromkeys(problem.types, 0)
    placed = []
    for gpu_type, members in layout:
        gpu = problem.gpu(gpu_type, used[gpu_type])
        used[gpu_type] += 1
        for i in members:
            choice = choices[i]
            placed.append(Placed(gpu=gpu, model=choice.model.name, candidate=choice.by_type[gpu_type]))
    return tuple(placed)


def without_choice(problem: Problem, choices: ChoiceList) -> Words:
    """Return why models have no way to run on a whole GPU that is within their objective and fits."""
    able = {c.model.name for c in choices}
    return {
        m.name: f"no row for a whole GPU (SM share 100 %) within its SLO of {m.slo_ms:g} ms fits in the memory"
        for m in problem.models
        if m.name not in able
    }
