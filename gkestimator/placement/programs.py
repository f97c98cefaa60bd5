"""The placement program: which replicas to run so that the most requests are served, then the least is
spent.

Two forms, the same optimum. Counting patterns (:func:`pattern_form`): one integer for each set of replicas
that fits on a GPU of a type. Naming slots (:func:`slot_form`): a 0/1 variable for each replica and GPU, for
when the patterns are too many.

Both with, for each model, y (which batch size; one) and w (part of its rate that a batch size serves):
w[m,b] <= y[m,b], rate w[m,b] <= sum of throughput over the replicas. Replicas of another batch size than
the chosen one then count nothing, so they need not be forbidden; they are left out of the answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from gkestimator.core.records import frozen
from gkestimator.placement.integer import SLACK, Deadline, IntegerProgram, Solution
from gkestimator.placement.patterns import Choice, ReplicaPattern, needs_pct
from gkestimator.placement.problem import Problem

# (GPU type, the choices that run on one GPU of it); one entry for each GPU that is used.
Layout = list[tuple[str, tuple[int, ...]]]


@frozen
class Form:
    """A program in one of the forms. ``served``: w by choice; ``used``: the columns that count the GPUs of
    each type; ``layout`` reads a solution as GPUs with the choices on each."""

    program: IntegerProgram
    choices: Sequence[Choice]
    served: Mapping[int, int]
    chosen: Mapping[int, int]
    used: Mapping[str, Sequence[int]]
    layout: Callable[[Sequence[float]], Layout]
    reachable: Mapping[str, float]


@frozen
class Answer:
    """``gpus``: the choices on each GPU that is used, needless replicas left out. ``gap_pct``: how far what
    the problem asks for is at most from its best (None: no bound was found). ``notes``: what ran out of
    time."""

    gpus: Layout
    gap_pct: float | None
    notes: tuple[str, ...] = ()


class _Service:
    """A program with w and y (by choice) and the rule that each model runs at one batch size; further columns are
    replicas of a choice (:meth:`replica`), which serve its model."""

    def __init__(self, problem: Problem, choices: Sequence[Choice]) -> None:
        self.choices = choices
        self.program = program = IntegerProgram()
        self.reachable = _reachable(problem, choices)
        of_model: dict[str, list[int]] = {}
        for i, choice in enumerate(choices):
            of_model.setdefault(choice.model.name, []).append(i)
        self.served: dict[int, int] = {}
        self.chosen: dict[int, int] = {}
        for own in of_model.values():
            for i in own:
                self.served[i] = program.column(upper=1.0)
            if len(own) > 1:
                for i in own:
                    self.chosen[i] = program.column(upper=1.0, integer=True)
                    program.row([(self.served[i], 1.0), (self.chosen[i], -1.0)], high=0.0)
                program.row([(self.chosen[i], 1.0) for i in own], high=1.0)
        self._capacity: dict[int, list[tuple[int, float]]] = {i: [] for i in self.served}

    def replica(self, i: int, gpu_type: str, column: int) -> None:
        """``column`` counts replicas of choice ``i`` on ``gpu_type``."""
        choice = self.choices[i]
        part = min(1.0, choice.throughput_rps(gpu_type) / self.reachable[choice.model.name])
        self._capacity[i].append((column, part))

    def hold(self) -> None:
        """No more is served than the replicas can."""
        for i, terms in self._capacity.items():
            self.program.row([(self.served[i], 1.0), *((c, -p) for c, p in terms)], high=0.0)

    def form(self, used: Mapping[str, Sequence[int]], layout: Callable[[Sequence[float]], Layout]) -> Form:
        """What :class:`Form` says, with ``used`` and ``layout`` as it has them."""
        return Form(
            program=self.program,
            choices=self.choices,
            served=self.served,
            chosen=self.chosen,
            used=used,
            layout=layout,
            reachable=self.reachable,
        )


def _reachable(problem: Problem, choices: Sequence[Choice]) -> dict[str, float]:
    """What of each model's rate (requests a second) the GPUs could serve at most, one replica on each. The
    parts w are of this: parts of a rate a thousand times larger than that would be lost among the
    solver's tolerances."""
    found: dict[str, float] = {}
    for choice in choices:
        most = 0.0
        for gpu_type in choice.by_type:
            limit = problem.limits[gpu_type]
            most += math.inf if limit is None else limit * choice.throughput_rps(gpu_type)
        found[choice.model.name] = max(found.get(choice.model.name, 0.0), most)
    return {c.model.name: min(c.model.rate_rps, found[c.model.name]) for c in choices}


def useful_replicas(choice: Choice, gpu_type: str) -> int:
    """Replicas that serve the model's whole rate; more are never needed."""
    return math.ceil(choice.model.rate_rps / choice.throughput_rps(gpu_type) * (1 - 1e-12))


def pattern_form(problem: Problem, choices: Sequence[Choice], patterns: Sequence[ReplicaPattern]) -> Form:
    """Integers that say on how many GPUs each pattern runs."""
    service = _Service(problem, choices)
    program = service.program
    columns: list[int] = []
    used: dict[str, list[int]] = {t: [] for t in problem.types}
    for pattern in patterns:
        most = max(useful_replicas(choices[i], pattern.gpu_type) for i in pattern.members)
        limit = problem.limits[pattern.gpu_type]
        column = program.column(upper=most if limit is None else min(most, limit), integer=True)
        columns.append(column)
        used[pattern.gpu_type].append(column)
        for i in pattern.members:
            service.replica(i, pattern.gpu_type, column)
    service.hold()
    for gpu_type, own in used.items():
        limit = problem.limits[gpu_type]
        if own and limit is not None:
            program.row([(c, 1.0) for c in own], high=limit)

    def layout(values: Sequence[float]) -> Layout:
        return [
            (pattern.gpu_type, pattern.members)
            for column, pattern in zip(columns, patterns, strict=True)
            for _ in range(int(values[column]))
        ]

    return service.form(used, layout)


def slot_form(problem: Problem, choices: Sequence[Choice], slots: Mapping[str, int]) -> Form:
    """The program as the thesis writes it: x[choice, GPU] in {0, 1}, on ``slots`` GPUs of each type; equal
    GPUs are filled in order (u[g] >= u[g + 1]), which forbids their empty permutations."""
    service = _Service(problem, choices)
    program = service.program
    used: dict[str, list[int]] = {}
    on_slot: list[tuple[str, dict[int, int]]] = []
    for gpu_type in problem.types:
        used[gpu_type] = []
        able = [i for i, choice in enumerate(choices) if gpu_type in choice.by_type]
        for _ in range(slots[gpu_type]):
            taken = program.column(upper=1.0, integer=True)
            if used[gpu_type]:
                program.row([(taken, 1.0), (used[gpu_type][-1], -1.0)], high=0.0)
            used[gpu_type].append(taken)
            x = {i: program.column(upper=1.0, integer=True) for i in able}
            on_slot.append((gpu_type, x))
            needs = {i: needs_pct(choices[i].by_type[gpu_type]) for i in able}
            for resource in (0, 1):
                program.row([*((x[i], needs[i][resource]) for i in able), (taken, -100.0)], high=0.0)
            of_model: dict[str, list[int]] = {}
            for i in able:
                of_model.setdefault(choices[i].model.name, []).append(i)
                service.replica(i, gpu_type, x[i])
            for own in of_model.values():
                program.row([*((x[i], 1.0) for i in own), (taken, -1.0)], high=0.0)
    service.hold()

    def layout(values: Sequence[float]) -> Layout:
        found = [(t, tuple(i for i, column in x.items() if values[column] > 0.5)) for t, x in on_slot]
        return [(t, members) for t, members in found if members]

    return service.form(used, layout)


def _useful(form: Form, values: Sequence[float]) -> tuple[Layout, float]:
    """The layout of ``values`` without replicas that serve nothing, and its goodput (requests a second)."""
    layout = [
        (t, tuple(i for i in members if i not in form.chosen or values[form.chosen[i]] > 0.5))
        for t, members in form.layout(values)
    ]
    capacity: dict[int, float] = {}
    for t, members in layout:
        for i in members:
            capacity[i] = capacity.get(i, 0.0) + form.choices[i].throughput_rps(t)
    goodput = sum(min(form.choices[i].model.rate_rps, c) for i, c in capacity.items())
    kept: Layout = []
    for t, members in reversed(layout):
        needed = []
        for i in members:
            left = capacity[i] - form.choices[i].throughput_rps(t)
            if left >= form.choices[i].model.rate_rps:
                capacity[i] = left
            else:
                needed.append(i)
        if needed:
            kept.append((t, tuple(needed)))
    return kept[::-1], goodput


def serve(problem: Problem, form: Form, *, deadline: Deadline) -> Answer | None:
    """The best answer, one thing after the other, each solve bound to what the solves before it reached:
    goodput; then, for rented GPUs, their cost and their number; for GPUs that are there, their number
    and (where all prices are known) their cost. None: time ran out before anything was found.
    """
    program = form.program
    choices = form.choices
    rates = form.reachable
    total = sum(rates.values())
    if not rates:
        return Answer(gpus=[], gap_pct=0.0)
    goodput = {w: rates[choices[i].model.name] / total for i, w in form.served.items()}
    notes: list[str] = []
    gap: float | None = 0.0
    best: Solution | None = None
    # Enough GPUs can be rented for everything: no need to ask how much can be served.
    everything = problem.elastic and all(
        any(
            problem.limits[t] is None
            for i in form.served
            if choices[i].model.name == name
            for t in choices[i].by_type
        )
        for name in rates
    )
    if not everything:
        best = program.solve(goodput, maximise=True, seed=problem.seed, deadline=deadline)
        if best is None:
            return None
        if not best.optimal:
            notes.append("time ran out before the goodput was proven to be the most")
            gap = _gap_pct(best.objective, best.bound)
        everything = best.objective >= 1 - SLACK
    of_model: dict[str, list[int]] = {}
    for i, w in form.served.items():
        of_model.setdefault(choices[i].model.name, []).append(w)
    if everything:
        for own in of_model.values():
            # What was reached, where rounding kept it from 1.
            if best is None:
                reached = 1.0
            else:
                reached = min(1.0, sum(best.values[w] for w in own))
            program.row([(w, 1.0) for w in own], low=reached - SLACK)
    elif best is not None:
        program.row(goodput.items(), low=best.objective - SLACK)
    for what, objective in _thrift(problem, form):
        found = program.solve(
            objective,
            seed=problem.seed,
            deadline=deadline,
            start=None if best is None else best.values,
        )
        if found is None:
            if best is None:
                return None
            if deadline.left_s() > 0:
                notes.append(
                    f"the solver found no plan again that serves as much: {what} may not be the least"
                )
            else:
                notes.append(f"time ran out before {what} was looked at")
            break
        asked = problem.objective == "cost" and everything and what == _asked(problem)
        if not found.optimal:
            notes.append(f"time ran out before {what} was proven to be the least")
            gap = _gap_pct(found.objective, found.bound) if asked else gap
        if best is not None and _useful(form, found.values)[1] < _useful(form, best.values)[1] * (1 - 1e-9):
            # The solver's tolerance would give goodput away.
            notes.append(f"{what} is the least only among the plans that were tried")
            break
        best = found
        program.row(objective.items(), high=found.objective + SLACK * max(1.0, abs(found.objective)))
    assert best is not None
    return Answer(gpus=_useful(form, best.values)[0], gap_pct=gap, notes=tuple(notes))


def _asked(problem: Problem) -> str:
    """What the objective ``cost`` means first."""
    return "the cost" if problem.elastic else "the number of GPUs"


def _thrift(problem: Problem, form: Form) -> list[tuple[str, dict[int, float]]]:
    number = {c: 1.0 for own in form.used.values() for c in own}
    prices = [problem.prices.get(t) for t in problem.types]
    known = [p for p in prices if p is not None]
    stages = [("the number of GPUs", number)]
    if len(known) == len(prices) and (problem.elastic or len(set(known)) > 1):
        dearest = max(known)
        cost = {c: p / dearest for t, p in zip(problem.types, known, strict=True) for c in form.used[t]}
        stages.insert(0 if problem.elastic else 1, ("the cost", cost))
    if problem.elastic and len(set(known)) == 1:
        del stages[1]  # equal prices: the number is the cost
    return stages


def _gap_pct(found: float, bound: float) -> float | None:
    """How far ``found`` is at most from the best, percent of ``bound``, which the best does not pass; None:
    no bound."""
    if not math.isfinite(bound) or bound <= 0:
        return None
    return 100 * abs(found - bound) / bound
