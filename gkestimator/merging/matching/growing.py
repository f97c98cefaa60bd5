"""Grows super-operators: the second model against the first, every further one against what is merged by then."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, TypeAlias

from gkestimator.core.records import frozen
from gkestimator.merging.editing import Models, Names
from gkestimator.merging.matching.assignment import best_assignment
from gkestimator.merging.matching.cycles import Contraction
from gkestimator.merging.matching.units import Unit, equal_but_for_start, joined, pairs_to_compare
from gkestimator.merging.operators import Pair, SuperOperator, WeightOperator
from gkestimator.merging.options import MergeOptions
from gkestimator.merging.similarity import similar_pairs

Operators: TypeAlias = "Sequence[Sequence[WeightOperator]]"


@frozen
class Refused:
    """Operators that are similar enough and stay apart.

    ``names``: their nodes. ``reason``: ``start`` (their weights are equal, and they start at other times),
    ``cycle`` (one needs the other's result, given what is merged already), ``emission`` (no nodes can be written
    for them; ``detail`` says why).
    """

    names: Names
    reason: Literal["start", "cycle", "emission"]
    similarity: float
    detail: str = ""


@frozen
class Matching:
    """What is merged, in the order of the first members, and what was refused, in the order it was found.

    ``unsure``: pairs of weights of which not every place was compared, so that they may have more in common than was
    found (weights of few distinct values).
    """

    supers: tuple[SuperOperator, ...]
    refused: tuple[Refused, ...]
    unsure: int = 0


def match_all(
    models: Models,
    operators: Operators,
    groups: Iterable[Sequence[int]],
    options: MergeOptions,
    *,
    can_emit: Callable[[SuperOperator], str | None] | None = None,
) -> Matching:
    """Which operators of which models become one super-operator (USHER, section 3.4).

    ``operators[m]``: those of ``models[m]`` (:func:`~gkestimator.merging.matching.candidates.candidates`).
    ``groups``: numbers of the models that are alike; models of different groups are not matched. ``can_emit`` says
    why no nodes can be written for a super-operator, or None.

    Within a group the models come in order. A model's operators are matched to what is merged by then: the
    super-operators, and the single operators that are left. Pairs are of one type, precision and geometry, start
    together (within ``options.tau_ms`` of every member, each on its model's own timeline from the model's beginning:
    our reading), and are similar by at least ``options.omega`` (to every member). The matching has the largest sum
    of similarities (to a super-operator: to its least similar member). Of a matching's pairs those go first that are
    most similar, then those that come first; a pair that would close a cycle is dropped, and who is free then is
    matched once more without such pairs.

    Raises ValueError: a model stands in two groups; UsageError: no SciPy; ModelError: a file lost its weights.
    """
    groups = [sorted(group) for group in groups]
    if len({m for group in groups for m in group}) < sum(map(len, groups)):
        raise ValueError(f"groups are {groups}: expected each model at most once")
    grown = _Grown(models, operators, options, can_emit or (lambda _: None))
    for group in groups:
        grown.add_group(group)
    return grown.matching()


class _Grown:
    def __init__(
        self,
        models: Models,
        operators: Operators,
        options: MergeOptions,
        can_emit: Callable[[SuperOperator], str | None],
    ) -> None:
        self._operators = operators
        self._options = options
        self._can_emit = can_emit
        self._unsure = 0
        self._graph = Contraction(models, operators)
        self._done: list[Unit] = []
        self._refused: list[Refused] = []

    def add_group(self, group: Sequence[int]) -> None:
        """Match the models of ``group`` one after the other."""
        units: list[Unit] = []
        for model in group:
            own = [Unit.single(o, (model, k)) for k, o in enumerate(self._operators[model])]
            partner = self._partners(units, own)
            for place, (_, unit) in partner.items():
                units[place] = unit
            taken = {k for k, _ in partner.values()}
            left = [u for k, u in enumerate(own) if k not in taken]
            rest = [u for place, u in enumerate(units) if place not in partner]
            self._refused += [
                _refused(unit, "start")
                for unit in equal_but_for_start(rest, left, self._options, apart=self._graph.makes_cycle)
            ]
            units += left
        self._done += [unit for unit in units if len(unit.members) > 1]

    def matching(self) -> Matching:
        """What is merged by now; of the refused pairs those of which one operator at least stayed single."""
        merged = {member.operator.node.name for u in self._done for member in u.members}
        return Matching(
            supers=tuple(u.as_super() for u in sorted(self._done, key=lambda u: u.keys)),
            refused=tuple(r for r in self._refused if not merged.issuperset(r.names)),
            unsure=self._unsure,
        )

    def _partners(self, units: Sequence[Unit], own: Sequence[Unit]) -> dict[int, tuple[int, Unit]]:
        """By place in ``units`` who of ``own`` joins it, and what comes of it."""
        options = self._options
        unsure: set[Pair] = set()
        shared = similar_pairs(
            [unit.block for unit in units],
            [unit.block for unit in own],
            pairs_to_compare(units, own, options),
            omega=options.omega,
            tolerance=options.tolerance,
            unsure=unsure,
        )
        self._unsure += len(unsure)
        possible: dict[Pair, tuple[float, Unit]] = {}
        unwritable: dict[Pair, tuple[float, Unit, str]] = {}
        for (i, j), rectangle in sorted(shared.items()):
            unit = joined(units[i], own[j], rectangle, omega=options.omega)
            if unit is None:
                continue
            why = self._can_emit(unit.as_super())
            if why is None:
                possible[i, j] = (unit.similarity_of_last(), unit)
            else:
                unwritable[i, j] = (unit.similarity_of_last(), unit, why)
        found = self._assigned(units, own, possible)
        taken = {j for j, _ in found.values()}
        left = {(i, j): v for (i, j), v in unwritable.items() if i not in found and j not in taken}
        places = [unit.place for unit in units], [unit.place for unit in own]
        for pair in best_assignment({p: v[0] for p, v in left.items()}, places):
            self._refused.append(_refused(left[pair][1], "emission", left[pair][2]))
        return found

    def _assigned(
        self, units: Sequence[Unit], own: Sequence[Unit], possible: Mapping[Pair, tuple[float, Unit]]
    ) -> dict[int, tuple[int, Unit]]:
        found: dict[int, tuple[int, Unit]] = {}
        left = dict(possible)
        places = [unit.place for unit in units], [unit.place for unit in own]
        while left:
            chosen = best_assignment({pair: weight for pair, (weight, _) in left.items()}, places)
            for i, j in sorted(chosen, key=lambda p: (-left[p][0], p)):
                a = units[i].keys[0]
                b = own[j].keys[0]
                unit = left[i, j][1]
                if self._graph.makes_cycle(a, b):
                    self._refused.append(_refused(unit, "cycle"))
                else:
                    self._graph.contract(a, b)
                    found[i] = (j, unit)
            taken = {j for j, _ in found.values()}
            left = {
                (i, j): v
                for (i, j), v in left.items()
                if i not in found and j not in taken
                if not self._graph.makes_cycle(units[i].keys[0], own[j].keys[0])
            }
        return found


def _refused(unit: Unit, reason: Literal["start", "cycle", "emission"], detail: str = "") -> Refused:
    return Refused(
        names=unit.as_super().names, reason=reason, similarity=unit.similarity_of_last(), detail=detail
    )
