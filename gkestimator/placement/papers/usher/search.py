"""The best configuration of a group: branch and bound over what USHER enumerates, with the enumeration's
answer.

A configuration is one batch size and one replication degree for each model; packed greedily, model by model
in the order that its batch sizes give. Best is most goodput, then fewest GPUs (least cost, where they are
rented), then the first by number. The search places model after model, so that configurations with a common
beginning are packed once. It leaves out only what cannot matter: degrees of which no more replicas find room
than of a smaller one (the same placement), and beginnings whose bound on (goodput, GPUs or cost, number) is
not better than the best configuration known. Nothing is left out for using more room than another: greedy
packing is not monotone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from gkestimator.core.records import frozen
from gkestimator.placement.papers.usher.bounds import Bounds, Demand
from gkestimator.placement.papers.usher.configurations import C_HEAVY, M_HEAVY, Choices, UsherChoice, then
from gkestimator.placement.papers.usher.packing import Garage, Packing, fits, put
from gkestimator.placement.problem import FloatPair, IntRow

Step = tuple[UsherChoice, int]  # what is placed next, and how many replicas at most

Steps: TypeAlias = tuple[Step, ...]


@frozen
class Best:
    """Hold the steps of the best configuration in order, how many beginnings were looked at, and whether the
    search was cut off."""

    steps: Steps
    nodes: int
    cut: bool


def search(
    choices: Sequence[Choices],
    packing: Packing,
    garage: Garage,
    *,
    rented: bool,
    most_nodes: float = math.inf,
) -> Best:
    """Return the best configuration for ``choices`` (by model; none of them empty) on top of ``packing``.
    ``most_nodes``: give up proving after so many beginnings and return the best found."""
    if not choices:
        return Best(steps=(), nodes=0, cut=False)
    finder = _Finder(choices, packing, garage, rented=rented, most_nodes=most_nodes)
    root = Packing([], finder.bounds.usable(packing.outside), packing.opened)
    finder.visit(root, finder.rest(dict(enumerate(choices)), C_HEAVY), (), 0.0, 0)
    return Best(steps=finder.steps, nodes=finder.nodes, cut=finder.nodes > most_nodes)


@dataclass(slots=True)
class _Rest:
    """Hold models still to place: ``left`` by model the choices that keep the order, whose ``turn`` it is,
    their bounds, the number of their first configuration, and (once asked for) what may be placed next and
    what remains then."""

    left: Mapping[int, Choices]
    turn: int
    demand: Demand
    number: int
    children: list[tuple[UsherChoice, _Rest]] | None = None


class _Finder:
    def __init__(
        self,
        choices: Sequence[Choices],
        packing: Packing,
        garage: Garage,
        *,
        rented: bool,
        most_nodes: float,
    ) -> None:
        self.garage = garage
        self.rented = rented
        self.most_nodes = most_nodes
        self.before = packing.opened
        self.bounds = Bounds(choices, garage, rented=rented)
        self.unit = self.bounds.unit
        self.rests: dict[object, _Rest] = {}
        self.counted: dict[IntRow, FloatPair] = {}
        self.radix: list[int] = []
        size = 1
        for of_model in reversed(choices):
            self.radix.insert(0, size)
            size *= len(of_model) * len(of_model[0].degrees)
        self.steps: Steps = ()
        self.goodput = -1.0  # of the best known, and its value
        self.value: tuple[float, float, float, int] = (math.inf, math.inf, math.inf, 0)
        self.gains = [0.0] * len(choices)
        self.nodes = 0

    def rest(self, left: Mapping[int, Choices], turn: int) -> _Rest:
        """Return one object for all beginnings after which the same remains."""
        key = (turn, *((m, *map(id, c)) for m, c in left.items()))
        rest = self.rests.get(key)
        if rest is None:
            number = sum(c[0].number * self.radix[m] for m, c in left.items())
            rest = self.rests[key] = _Rest(left, turn, self.bounds.demand(left), number)
        return rest

    def children(self, rest: _Rest) -> list[tuple[UsherChoice, _Rest]]:
        """Return what may be placed next and what remains then; likely best first."""
        if rest.children is None:
            children = []
            for model, choices in rest.left.items():
                others = {m: c for m, c in rest.left.items() if m != model}
                for choice in choices:
                    left = then(rest.turn, choice, others)
                    if left is not None:
                        children.append((choice, self.rest(left, _other(rest.turn, choice))))
            children.sort(key=lambda c: self.bounds.promise(c[0]))
            rest.children = children
        return rest.children

    def secondary(self, opened: IntRow) -> FloatPair:
        """Return what new GPUs count: number, then cost; cost, then number where they are rented."""
        counted = self.counted.get(opened)
        if counted is None:
            new = cost = 0.0
            for now, before, price in zip(opened, self.before, self.garage.prices, strict=True):
                new += now - before
                cost += (now - before) * price
            cost = round(cost, 9)
            if self.rented:
                counted = (cost, new)
            else:
                counted = (new, cost)
            self.counted[opened] = counted
        return counted

    def visit(self, packing: Packing, rest: _Rest, steps: Steps, goodput: float, number: int) -> None:
        """Visit every configuration that begins with ``steps``. ``number``: of the first one, as far as it is
        known."""
        if len(rest.left) == 1:
            self.last(packing, next(iter(rest.left.values())), steps, goodput, number)
            return
        self.nodes += 1
        if self.nodes > self.most_nodes and self.steps:
            return
        room = None
        bounds = self.bounds
        for choice, after in self.children(rest):
            upper = after.demand.most
            needed = self.goodput - self.unit - goodput - upper
            if bounds.most(choice) < needed:
                continue
            for i, degree, served, count, opened in self.degrees(packing, choice, needed):
                here = number + (choice.number + i) * self.radix[choice.model]
                first = here + after.number
                reach = goodput + served + upper
                if self.hopeless(reach, opened, first, 0.0):
                    continue
                if reach <= self.goodput + self.unit:
                    room = room or bounds.room(rest.demand, packing)
                    least = bounds.least(after.demand, room, packing.opened, choice, count)
                    if self.hopeless(reach, packing.opened, first, least):
                        continue
                packed, _ = put(packing, choice.creq, choice.mreq, degree, self.garage)
                if reach > self.goodput + self.unit:
                    # Tighter than what was compared above; new GPUs are not counted beside it.
                    reach = goodput + served + bounds.most_in(after.demand, packed)
                    if self.hopeless(reach, opened, first, 0.0):
                        continue
                else:
                    inside = bounds.room(after.demand, packed)
                    least = bounds.least(after.demand, inside, opened)
                    if self.hopeless(reach, opened, first, least):
                        continue
                self.gains[choice.model] = served
                self.visit(packed, after, (*steps, (choice, degree)), goodput + served, here)

    def degrees(
        self, packing: Packing, choice: UsherChoice, needed: float
    ) -> list[tuple[int, int, float, int, IntRow]]:
        """Return the degrees that differ in what is placed and serve at least ``needed``, first the one that
        just serves the rate: place, degree, what it serves, replicas placed, and GPUs opened then."""
        used, new = fits(packing, choice.creq, choice.mreq, choice.degrees[-1], self.garage)
        places = [(t, count, False) for t, count in used] + [(t, count, True) for t, count in new]
        room = sum([count for _, count, _ in places])
        degrees = []
        for i, degree in enumerate(choice.degrees):
            placed = left = degree if degree < room else room
            served = 0.0
            opened = packing.opened
            for t, count, is_new in places:
                take = count if count < left else left
                served += take * choice.rps[t]
                left -= take
                if is_new:
                    opened = (*opened[:t], opened[t] + take, *opened[t + 1 :])
                if not left:
                    break
            if served > choice.rate_rps:
                served = choice.rate_rps
            if served >= needed:
                degrees.append((i, degree, served, placed, opened))
            if degree >= room:
                break
        enough = self.bounds.enough(choice)
        if degrees and degrees[0][1] < enough:
            degrees.sort(key=lambda d: (d[1] < enough, abs(d[1] - enough)))
        return degrees

    def hopeless(self, reach: float, opened: IntRow, number: int, least: float) -> bool:
        """Return whether nothing better than the best known serves at most ``reach``, opens at least
        ``opened`` and GPUs that count ``least`` more, and has at least ``number``."""
        if reach < self.goodput - self.unit:
            return True
        if reach > self.goodput + self.unit:
            return False
        first, second = self.secondary(opened)
        first += least
        if first > self.value[1] + 1e-9:
            return True
        if first < self.value[1] - 1e-9:
            return False
        return (second, number) >= self.value[2:]

    def last(
        self,
        packing: Packing,
        choices: Choices,
        steps: Steps,
        goodput: float,
        number: int,
    ) -> None:
        """Visit every configuration of ``steps`` and one more model: only what it would serve and open is
        counted."""
        for choice in choices:
            needed = self.goodput - self.unit - goodput
            if self.bounds.most(choice) < needed:
                continue
            for i, degree, served, _, opened in self.degrees(packing, choice, needed):
                self.nodes += 1
                here = number + (choice.number + i) * self.radix[choice.model]
                if self.hopeless(goodput + served, opened, here, 0.0):
                    continue
                self.gains[choice.model] = served
                self.offer((*steps, (choice, degree)), opened, here)

    def offer(self, steps: Steps, opened: IntRow, number: int) -> None:
        """Take a whole configuration: the best known if it is better."""
        goodput = sum(self.gains)  # in the order of the models, so that equal gains have equal sums
        first, second = self.secondary(opened)
        value = (-float(round(goodput / self.unit)), first, second, number)
        if value < self.value:
            self.value = value
            self.goodput = goodput
            self.steps = steps


def _other(turn: int, chosen: UsherChoice) -> int:
    if chosen.heavy == C_HEAVY:
        return M_HEAVY
    if chosen.heavy == M_HEAVY:
        return C_HEAVY
    return turn
