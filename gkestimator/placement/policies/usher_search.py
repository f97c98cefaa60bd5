"""The best configuration of a group: branch and bound over what USHER enumerates, with the enumeration's answer.

A configuration is one batch size and one replication degree for each model; packed greedily, model by model in
the order that its batch sizes give. Best is most goodput, then fewest GPUs (least cost, where they are
rented), then the first by number. The search places model after model, so that configurations with a common
beginning are packed once. It leaves out only what cannot matter: degrees of which no more replicas find room
than of a smaller one (the same placement), and beginnings whose bound on (goodput, GPUs or cost, number) is
not better than the best configuration known. Nothing is left out for using more room than another: greedy
packing is not monotone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gkestimator.placement.policies.usher_bounds import Bounds, Open
from gkestimator.placement.policies.usher_configurations import C_HEAVY, M_HEAVY, Choice, then
from gkestimator.placement.policies.usher_packing import Garage, Packing, fits, put

__all__ = ["Best", "search"]

Step = tuple[Choice, int]  # what is placed next, and how many replicas at most


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """The steps of the best configuration in order, how many beginnings were looked at, and whether the search
    was cut off."""

    steps: tuple[Step, ...]
    nodes: int
    cut: bool


def search(
    choices: Sequence[Sequence[Choice]],
    packing: Packing,
    garage: Garage,
    *,
    rented: bool,
    most_nodes: float = math.inf,
) -> Best:
    """The best configuration for ``choices`` (by model; none of them empty) on top of ``packing``.
    ``most_nodes``: give up proving after so many beginnings and return the best found."""
    if not choices:
        return Best(steps=(), nodes=0, cut=False)
    finder = _Finder(choices, garage, rented=rented, most_nodes=most_nodes, packing=packing)
    root = Packing([], finder.bounds.usable(packing.outside), packing.opened)
    finder.visit(root, dict(enumerate(choices)), C_HEAVY, (), 0.0, 0, finder.bounds.root(root))
    return Best(steps=finder.steps, nodes=finder.nodes, cut=finder.nodes > most_nodes)


class _Finder:
    def __init__(
        self,
        choices: Sequence[Sequence[Choice]],
        garage: Garage,
        *,
        rented: bool,
        most_nodes: float,
        packing: Packing,
    ) -> None:
        self.garage, self.rented, self.most_nodes = garage, rented, most_nodes
        self.before = packing.opened
        self.bounds = Bounds(choices, garage, rented=rented, opened=packing.opened)
        self.unit = self.bounds.unit
        self.radix: list[int] = []
        size = 1
        for of_model in reversed(choices):
            self.radix.insert(0, size)
            size *= len(of_model) * len(of_model[0].degrees)
        self.steps: tuple[Step, ...] = ()
        self.goodput = -1.0  # of the best known, and its value in whole
        self.value: tuple[float, float, float, int] = (math.inf, math.inf, math.inf, 0)
        self.gains = [0.0] * len(choices)
        self.nodes = 0

    def secondary(self, opened: Sequence[int]) -> tuple[float, float]:
        """What new GPUs count: number, then cost; cost, then number where they are rented."""
        new = [a - b for a, b in zip(opened, self.before, strict=True)]
        cost = round(sum(n * p for n, p in zip(new, self.garage.prices, strict=True)), 9)
        return (cost, float(sum(new))) if self.rented else (float(sum(new)), cost)

    def visit(
        self,
        packing: Packing,
        left: dict[int, Sequence[Choice]],
        turn: int,
        steps: tuple[Step, ...],
        goodput: float,
        number: int,
        room: Open,
    ) -> None:
        """Every configuration that begins with ``steps``. ``left``: choices of the models still to place;
        ``number``: of the first configuration of this beginning as far as it is known; ``room``: of the used
        GPUs."""
        if len(left) == 1:
            self.last(packing, next(iter(left.values())), steps, goodput, number)
            return
        self.nodes += 1
        if self.nodes > self.most_nodes and self.steps:
            return
        for choice, rest in self.children(left, turn):
            upper = self.bounds.most(rest)
            if goodput + choice_most(choice) + upper < self.goodput - self.unit:
                continue
            following = _other(turn, choice)
            for i, degree in self.degrees(packing, choice):
                gain_most = min(choice.rate_rps, degree * max(choice.rps))
                if goodput + gain_most + upper < self.goodput - self.unit:
                    continue
                packed, taken = put(packing, choice.creq, choice.mreq, degree, self.garage)
                gain = min(choice.rate_rps, sum(run[3] * choice.rps[run[0]] for run in taken))
                self.gains[choice.model] = gain
                here = number + (choice.number + i) * self.radix[choice.model]
                room_after = self.bounds.after(room, packing, packed)
                if self.hopeless(packed, rest, goodput + gain, here, room_after):
                    continue
                self.visit(
                    packed, rest, following, (*steps, (choice, degree)), goodput + gain, here, room_after
                )

    def children(
        self, left: dict[int, Sequence[Choice]], turn: int
    ) -> list[tuple[Choice, dict[int, Sequence[Choice]]]]:
        """What may be placed next and what remains then; likely best first."""
        found: list[tuple[Choice, dict[int, Sequence[Choice]]]] = []
        for model, choices in left.items():
            others = {m: c for m, c in left.items() if m != model}
            for choice in choices:
                rest = then(turn, choice, others)
                if rest is not None:
                    found.append((choice, dict(rest)))
        found.sort(key=lambda c: self.bounds.promise(c[0]))
        return found

    def degrees(self, packing: Packing, choice: Choice) -> list[tuple[int, int]]:
        """(place, degree) of the degrees that differ in what is placed; first the one that just serves the rate."""
        used, new = fits(packing, choice.creq, choice.mreq, choice.degrees[-1], self.garage)
        room = sum(n for _, n in used) + sum(n for _, n in new)
        found: list[tuple[int, int]] = []
        for i, degree in enumerate(choice.degrees):
            found.append((i, degree))
            if degree >= room:
                break
        enough = self.bounds.enough(choice)
        return sorted(found, key=lambda f: (f[1] < enough, abs(f[1] - enough)))

    def hopeless(
        self, packing: Packing, rest: dict[int, Sequence[Choice]], goodput: float, number: int, room: Open
    ) -> bool:
        """Whether no configuration of this beginning is better than the best known."""
        upper = goodput + self.bounds.most(rest)
        if upper < self.goodput - self.unit:
            return True
        if upper > self.goodput + self.unit:
            upper = goodput + self.bounds.most_in(rest, packing, room)
            if upper > self.goodput + self.unit:
                return False
            if upper < self.goodput - self.unit:
                return True
            first, second = self.secondary(packing.opened)
        else:
            first, second = self.secondary(packing.opened)
            if first <= self.value[1]:
                first += self.bounds.least(rest, packing, room)
        if first > self.value[1] + 1e-9:
            return True
        if first < self.value[1] - 1e-9:
            return False
        least = number + sum(c[0].number * self.radix[m] for m, c in rest.items())
        return (second, least) >= self.value[2:]

    def last(
        self,
        packing: Packing,
        choices: Sequence[Choice],
        steps: tuple[Step, ...],
        goodput: float,
        number: int,
    ) -> None:
        """Every configuration of ``steps`` and one more model: only what it would serve and open is counted."""
        for choice in choices:
            if goodput + choice_most(choice) < self.goodput - self.unit:
                continue
            used, new = fits(packing, choice.creq, choice.mreq, choice.degrees[-1], self.garage)
            room = sum(n for _, n in used) + sum(n for _, n in new)
            for i, degree in enumerate(choice.degrees):
                self.nodes += 1
                served, opened, left = 0.0, list(packing.opened), degree
                for t, count in used:
                    take = min(count, left)
                    served += take * choice.rps[t]
                    left -= take
                for t, count in new:
                    take = min(count, left)
                    served += take * choice.rps[t]
                    opened[t] += take
                    left -= take
                self.gains[choice.model] = min(choice.rate_rps, served)
                self.offer(
                    (*steps, (choice, degree)),
                    opened,
                    number + (choice.number + i) * self.radix[choice.model],
                )
                if degree >= room:
                    break

    def offer(self, steps: tuple[Step, ...], opened: Sequence[int], number: int) -> None:
        """A whole configuration: the best known if it is better."""
        goodput = sum(self.gains)  # in the order of the models, so that equal gains have equal sums
        first, second = self.secondary(opened)
        value = (-float(round(goodput / self.unit)), first, second, number)
        if value < self.value:
            self.value, self.goodput, self.steps = value, goodput, steps


def choice_most(choice: Choice) -> float:
    """The most that ``choice`` can serve."""
    return min(choice.rate_rps, choice.degrees[-1] * max(choice.rps))


def _other(turn: int, chosen: Choice) -> int:
    if chosen.heavy == C_HEAVY:
        return M_HEAVY
    return C_HEAVY if chosen.heavy == M_HEAVY else turn
