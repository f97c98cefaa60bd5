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
from gkestimator.placement.patterns import Choice, Choices, ReplicaPattern, needs_pct
from gkestimator.placement.problem import FloatByIndex, FloatByName, Floats, IndicesByName, Names, Problem

# (GPU type, the choices that run on one GPU of it); one entry for each GPU that is used.
Layout = list[tuple[str, tuple[int, ...]]]


@frozen
class Form:
    """Hold a program in one of the forms. ``served``: w by choice; ``used``: the columns that count the GPUs
    of each type; ``layout`` reads a solution as GPUs with the choices on each."""

    program: IntegerProgram
    choices: Choices
    served: Mapping[int, int]
    chosen: Mapping[int, int]
    used: Mapping[str, Sequence[int]]
    layout: Callable[[Floats], Layout]
    reachable: Mapping[str, float]


@frozen
class Answer:
    """Hold ``gpus``: the choices on each GPU that is used, needless replicas left out. ``gap_pct``: how far
    what the problem asks for is at most from its best (None: no bound was found). ``notes``: what ran out of
    time."""

    gpus: Layout
    gap_pct: float | None
    notes: Names = ()


class _Service:
    """Build a program with w and y (by choice) and the rule that each model runs at one batch size; further
    columns are replicas of a choice (:meth:`replica`), which serve its model."""

    def __init__(self, problem: Problem, choices: Choices) -> None:
        self.choices = choices
        self.program = program = IntegerProgram()
        self.reachable = _reachable(problem, choices)
        of_model: IndicesByName = {}
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
        """Let ``column`` count replicas of choice ``i`` on ``gpu_type``."""
        choice = self.choices[i]
        part = min(1.0, choice.throughput_rps(gpu_type) / self.reachable[choice.model.name])
        self._capacity[i].append((column, part))

    def hold(self) -> None:
        """Hold that no more is served than the replicas can."""
        for i, terms in self._capacity.items():
            self.program.row([(self.served[i], 1.0), *((c, -p) for c, p in terms)], high=0.0)

    def form(self, used: Mapping[str, Sequence[int]], layout: Callable[[Floats], Layout]) -> Form:
        """Return the form, with ``used`` and ``layout`` as :class:`Form` has them."""
        return Form(
            program=self.program,
            choices=self.choices,
            served=self.served,
            chosen=self.chosen,
            used=used,
            layout=layout,
            reachable=self.reachable,
        )


def _reachable(problem: Problem, choices: Choices) -> FloatByName:
    """Return what of each model's rate (requests a second) the GPUs could serve at most, one replica on each.
    The parts w are of this: parts of a rate a thousand times larger than that would be lost among the
    solver's tolerances."""
    pools = dict(zip(problem.types, problem.pools, strict=True))
    most: FloatByName = {}
    rates: FloatByName = {}
    for choice in choices:
        name = choice.model.name
        reach = 0.0
        for gpu_type in choice.by_type:
            reach += pools[gpu_type] * choice.throughput_rps(gpu_type)
        most[name] = max(most.get(name, 0.0), reach)
        rates[name] = min(choice.model.rate_rps, most[name])
    return rates


def useful_replicas(choice: Choice, gpu_type: str) -> int:
    """Return how many replicas serve the model's whole rate; more are never needed."""
    return math.ceil(choice.model.rate_rps / choice.throughput_rps(gpu_type) * (1 - 1e-12))


def pattern_form(problem: Problem, choices: Choices, patterns: Sequence[ReplicaPattern]) -> Form:
    """Return the program whose integers say on how many GPUs each pattern runs."""
    service = _Service(problem, choices)
    program = service.program
    columns: list[int] = []
    used: IndicesByName = {t: [] for t in problem.types}
    for pattern in patterns:
        most = max(useful_replicas(choices[i], pattern.gpu_type) for i in pattern.members)
        limit = problem.limits[pattern.gpu_type]
        upper = most
        if limit is not None:
            upper = min(most, limit)
        column = program.column(upper=upper, integer=True)
        columns.append(column)
        used[pattern.gpu_type].append(column)
        for i in pattern.members:
            service.replica(i, pattern.gpu_type, column)
    service.hold()
    for gpu_type, own in used.items():
        limit = problem.limits[gpu_type]
        if own and limit is not None:
            program.row([(c, 1.0) for c in own], high=limit)

    def layout(values: Floats) -> Layout:
        gpus: Layout = []
        for column, pattern in zip(columns, patterns, strict=True):
            gpus += [(pattern.gpu_type, pattern.members)] * int(values[column])
        return gpus

    return service.form(used, layout)


def slot_form(problem: Problem, choices: Choices, slots: Mapping[str, int]) -> Form:
    """Return the program as the thesis writes it: x[choice, GPU] in {0, 1}, on ``slots`` GPUs of each type;
    equal GPUs are filled in order (u[g] >= u[g + 1]), which forbids their empty permutations."""
    service = _Service(problem, choices)
    program = service.program
    used: IndicesByName = {}
    on_slot: list[tuple[str, dict[int, int]]] = []
    for gpu_type in problem.types:
        own_type = used[gpu_type] = []
        able = [i for i, choice in enumerate(choices) if gpu_type in choice.by_type]
        needs = {i: needs_pct(choices[i].by_type[gpu_type]) for i in able}
        for _ in range(slots[gpu_type]):
            taken = program.column(upper=1.0, integer=True)
            if own_type:
                program.row([(taken, 1.0), (own_type[-1], -1.0)], high=0.0)
            own_type.append(taken)
            x = {i: program.column(upper=1.0, integer=True) for i in able}
            on_slot.append((gpu_type, x))
            for resource in (0, 1):
                program.row([*((x[i], needs[i][resource]) for i in able), (taken, -100.0)], high=0.0)
            of_model: IndicesByName = {}
            for i in able:
                of_model.setdefault(choices[i].model.name, []).append(i)
                service.replica(i, gpu_type, x[i])
            for own in of_model.values():
                program.row([*((x[i], 1.0) for i in own), (taken, -1.0)], high=0.0)
    service.hold()

    def layout(values: Floats) -> Layout:
        gpus: Layout = []
        for gpu_type, x in on_slot:
            members = tuple(i for i, column in x.items() if values[column] > 0.5)
            if members:
                gpus.append((gpu_type, members))
        return gpus

    return service.form(used, layout)


def _useful(form: Form, values: Floats) -> tuple[Layout, float]:
    """Return the layout of ``values`` without replicas that serve nothing, and its goodput (requests a
    second)."""
    choices = form.choices
    capacity: FloatByIndex = {}
    layout: Layout = []
    for t, members in form.layout(values):
        chosen = tuple(i for i in members if i not in form.chosen or values[form.chosen[i]] > 0.5)
        layout.append((t, chosen))
        for i in chosen:
            capacity[i] = capacity.get(i, 0.0) + choices[i].throughput_rps(t)
    goodput = sum(min(choices[i].model.rate_rps, c) for i, c in capacity.items())
    useful: Layout = []
    for t, members in reversed(layout):
        needed = []
        for i in members:
            left = capacity[i] - choices[i].throughput_rps(t)
            if left >= choices[i].model.rate_rps:
                capacity[i] = left
            else:
                needed.append(i)
        if needed:
            useful.append((t, tuple(needed)))
    return useful[::-1], goodput


def serve(problem: Problem, form: Form, *, deadline: Deadline) -> Answer | None:
    """Return the best answer, one thing after the other, each solve bound to what the solves before it
    reached: goodput; then, for rented GPUs, their cost and their number; for GPUs that are there, their
    number and (where all prices are known) their cost. None: time ran out before there was any."""
    if not form.reachable:
        return Answer(gpus=[], gap_pct=0.0)
    return _Solving(problem, form, deadline).answer()


class _Solving:
    """Solve one form for one thing after the other; ``best`` is the last answer that stands."""

    def __init__(self, problem: Problem, form: Form, deadline: Deadline) -> None:
        self.problem = problem
        self.form = form
        self.program = form.program
        self.deadline = deadline
        self.best: Solution | None = None
        self.gap: float | None = 0.0
        self.notes: list[str] = []

    def answer(self) -> Answer | None:
        # Enough GPUs can be rented for everything: no need to ask how much can be served.
        everything = self._all_can_be_rented()
        if not everything:
            goodput = self._most_goodput()
            if self.best is None:
                return None
            everything = self.best.objective >= 1 - SLACK
            if not everything:
                self.program.row(goodput.items(), low=self.best.objective - SLACK)
        if everything:
            self._hold_every_rate()
        for what, objective in _thrift(self.problem, self.form):
            if not self._less(what, objective, everything):
                break
        if self.best is None:
            return None
        gpus, _ = _useful(self.form, self.best.values)
        return Answer(gpus=gpus, gap_pct=self.gap, notes=tuple(self.notes))

    def _all_can_be_rented(self) -> bool:
        """Return whether every model can run on a type of which any number may be rented."""
        if not self.problem.elastic:
            return False
        unlimited = {t for t, limit in self.problem.limits.items() if limit is None}
        able = {c.model.name for c in self.form.choices if unlimited & set(c.by_type)}
        return able.issuperset(self.form.reachable)

    def _most_goodput(self) -> FloatByIndex:
        """Look for the most goodput; return it as columns with their coefficients, parts of all that can be
        reached."""
        rates = self.form.reachable
        total = sum(rates.values())
        goodput = {w: rates[self.form.choices[i].model.name] / total for i, w in self.form.served.items()}
        self.best = self.program.solve(goodput, maximise=True, seed=self.problem.seed, deadline=self.deadline)
        if self.best is not None and not self.best.optimal:
            self.notes.append("time ran out before the goodput was proven to be the most")
            self.gap = _gap_pct(self.best)
        return goodput

    def _hold_every_rate(self) -> None:
        """Hold that each model is served all that can be reached."""
        of_model: IndicesByName = {}
        for i, w in self.form.served.items():
            of_model.setdefault(self.form.choices[i].model.name, []).append(w)
        for own in of_model.values():
            reached = 1.0
            if self.best is not None:  # what was reached, where rounding kept it from 1
                reached = min(1.0, sum(self.best.values[w] for w in own))
            self.program.row([(w, 1.0) for w in own], low=reached - SLACK)

    def _less(self, what: str, objective: Mapping[int, float], everything: bool) -> bool:
        """Look for the least of ``objective``; return whether there was an answer that stands."""
        best = self.best
        start = None
        if best is not None:
            start = best.values
        solution = self.program.solve(
            objective,
            seed=self.problem.seed,
            deadline=self.deadline,
            start=start,
        )
        if solution is None:
            if self.deadline.left_s() > 0:
                self.notes.append(
                    f"the solver found no plan again that serves as much: {what} may not be the least"
                )
            else:
                self.notes.append(f"time ran out before {what} was looked at")
            return False
        if not solution.optimal:
            self.notes.append(f"time ran out before {what} was proven to be the least")
            if self.problem.elastic:
                first = "the cost"
            else:
                first = "the number of GPUs"
            if self.problem.objective == "cost" and everything and what == first:
                self.gap = _gap_pct(solution)
        if best is not None:
            goodput = _useful(self.form, solution.values)[1]
            if goodput < _useful(self.form, best.values)[1] * (1 - 1e-9):
                # The solver's tolerance would give goodput away.
                self.notes.append(f"{what} is the least only among the plans that were tried")
                return False
        self.best = solution
        slack = SLACK * max(1.0, abs(solution.objective))
        self.program.row(objective.items(), high=solution.objective + slack)
        return True


def _thrift(problem: Problem, form: Form) -> list[tuple[str, FloatByIndex]]:
    """Return what is to be as little as can be, in order, as columns with their coefficients."""
    number: FloatByIndex = {}
    for columns in form.used.values():
        number |= dict.fromkeys(columns, 1.0)
    stages = [("the number of GPUs", number)]
    prices = problem.known_prices
    if not prices:
        return stages
    cost: FloatByIndex = {}
    dearest = max(prices.values())
    for gpu_type, price in prices.items():
        cost |= dict.fromkeys(form.used[gpu_type], price / dearest)
    alike = len(set(prices.values())) == 1
    if alike and problem.elastic:
        return [("the cost", cost)]  # equal prices: the number is the cost
    if problem.elastic:
        return [("the cost", cost), *stages]
    if alike:
        return stages
    return [*stages, ("the cost", cost)]


def _gap_pct(solution: Solution) -> float | None:
    """Return how far ``solution`` is at most from the best, percent of its bound, which the best does not
    pass; None: no bound."""
    if not math.isfinite(solution.bound) or solution.bound <= 0:
        return None
    return 100 * abs(solution.objective - solution.bound) / solution.bound
