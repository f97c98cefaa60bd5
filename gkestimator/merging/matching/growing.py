"""Grow super-operators: the second model against the first, every further one against what is merged by then."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, TypeAlias

from gkestimator.core.records import frozen
from gkestimator.merging.editing import Models, Names
from gkestimator.merging.matching.assignment import best_assignment
from gkestimator.merging.matching.cycles import Contraction
from gkestimator.merging.matching.units import Unit, Units, equal_but_for_start, joined, pairs_to_compare
from gkestimator.merging.operators import Pair, SuperOperator, WeightOperator
from gkestimator.merging.options import MergeOptions
from gkestimator.merging.similarity import similar_pairs

#: Units that two units would make together.
Joins: TypeAlias = "dict[Pair, Unit]"
Operators: TypeAlias = "Sequence[Sequence[WeightOperator]]"


@frozen
class RefusedOperators:
    """Name operators that are similar enough and stay apart.

    ``operators``: their nodes. ``reason``: ``start`` (their weights are equal, and they start at other
    times), ``cycle`` (one needs the other's result, given what is merged already), ``price`` (they would not
    pay), ``emission`` (no nodes can be written for them; ``detail`` says why).
    """

    operators: Names
    reason: Literal["start", "cycle", "emission", "price"]
    similarity: float
    detail: str = ""


@frozen
class Matching:
    """Hold what is merged, in the order of the first members, and what was refused, in the order it was
    found.

    ``unsure``: pairs of weights of which not every place was compared, so that they may have more in common
    than was found (weights of few distinct values).
    """

    supers: tuple[SuperOperator, ...]
    refused: tuple[RefusedOperators, ...]
    unsure: int = 0


def match_all(
    models: Models,
    operators: Operators,
    groups: Iterable[Sequence[int]],
    options: MergeOptions,
    *,
    can_emit: Callable[[SuperOperator], str | None] | None = None,
) -> Matching:
    """Tell which operators of which models become one super-operator (USHER, section 3.4).

    ``operators[m]``: those of ``models[m]`` (:func:`~gkestimator.merging.matching.candidates.candidates`).
    ``groups``: numbers of the models that are alike; models of different groups are not matched. ``can_emit``
    says why no nodes can be written for a super-operator, or None.

    Within a group the models come in order. A model's operators are matched to what is merged by then: the
    super-operators, and the single operators that are left. Pairs are of one type, precision and geometry,
    start together (within ``options.tau_ms`` of every member, each on its model's own timeline from the
    model's beginning: our reading), and are similar by at least ``options.omega`` (to every member). The
    matching has the largest sum of similarities (to a super-operator: to its least similar member). Of a
    matching's pairs those go first that are most similar, then those that come first; a pair that would close
    a cycle is dropped, and who is free then is matched once more without such pairs.

    Raises ValueError: a model stands in two groups; UsageError: no SciPy; ModelError: a file lost its
    weights.
    """
    groups = [sorted(group) for group in groups]
    every = list(itertools.chain.from_iterable(groups))
    if len(set(every)) < len(every):
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
        self._refused: list[RefusedOperators] = []

    def add_group(self, group: Sequence[int]) -> None:
        """Match the models of ``group`` one after the other."""
        units: list[Unit] = []
        for model in group:
            own = []
            for index, operator in enumerate(self._operators[model]):
                own.append(Unit.single(operator, (model, index)))
            joins = self._joins(units, own)
            taken = {j for _, j in joins}
            left = [unit for j, unit in enumerate(own) if j not in taken]
            grown = {i: unit for (i, _), unit in joins.items()}
            rest = [unit for i, unit in enumerate(units) if i not in grown]
            for unit in equal_but_for_start(rest, left, self._options, apart=self._graph.makes_cycle):
                self._refuse(unit, "start")
            for i, unit in grown.items():
                units[i] = unit
            units += left
        self._done += [unit for unit in units if len(unit.members) > 1]

    def matching(self) -> Matching:
        """Return what is merged by now; of the refused pairs those of which one operator at least stayed
        single.
        """
        supers = [unit.as_super() for unit in sorted(self._done, key=lambda unit: unit.keys)]
        merged: set[str] = set()
        for op in supers:
            merged.update(op.names)
        refused = [refusal for refusal in self._refused if not merged.issuperset(refusal.operators)]
        return Matching(supers=tuple(supers), refused=tuple(refused), unsure=self._unsure)

    def _refuse(self, unit: Unit, reason: Literal["start", "cycle", "emission"], detail: str = "") -> None:
        op = unit.as_super()
        similarity = unit.similarity_of_last()
        self._refused.append(
            RefusedOperators(operators=op.names, reason=reason, similarity=similarity, detail=detail)
        )

    def _joins(self, units: Units, own: Units) -> Joins:
        """Return what comes of the pairs (place in ``units``, place in ``own``) that are merged."""
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
        possible: Joins = {}
        unwritable: Joins = {}
        reasons: dict[Pair, str] = {}
        for (i, j), rectangle in sorted(shared.items()):
            unit = joined(units[i], own[j], rectangle, omega=options.omega)
            if unit is None:
                continue
            reason = self._can_emit(unit.as_super())
            if reason is None:
                possible[i, j] = unit
            else:
                unwritable[i, j] = unit
                reasons[i, j] = reason
        joins = self._assigned(units, own, possible)
        for pair in _best(units, own, _without(unwritable, joins)):
            self._refuse(unwritable[pair], "emission", reasons[pair])
        return joins

    def _assigned(self, units: Units, own: Units, possible: Joins) -> Joins:
        """Return the pairs of the best assignments that close no cycle."""
        joins: Joins = {}
        left = dict(possible)
        while left:
            chosen = _best(units, own, left)
            for pair in sorted(chosen, key=lambda pair: (-left[pair].similarity_of_last(), pair)):
                unit = left[pair]
                a, b = _keys(units, own, pair)
                if self._graph.makes_cycle(a, b):
                    self._refuse(unit, "cycle")
                else:
                    self._graph.contract(a, b)
                    joins[pair] = unit
            # who lost a partner to a cycle may find another one
            free = _without(left, joins)
            left = {}
            for pair, unit in free.items():
                if not self._graph.makes_cycle(*_keys(units, own, pair)):
                    left[pair] = unit
        return joins


def _best(units: Units, own: Units, possible: Joins) -> list[Pair]:
    """Return the pairs with the largest sum of similarities."""
    weights = {pair: unit.similarity_of_last() for pair, unit in possible.items()}
    places = ([unit.place for unit in units], [unit.place for unit in own])
    return best_assignment(weights, places)


def _keys(units: Units, own: Units, pair: Pair) -> tuple[Pair, Pair]:
    i, j = pair
    return units[i].keys[0], own[j].keys[0]


def _without(possible: Joins, joins: Joins) -> Joins:
    """Return the pairs of which neither is in one of ``joins``."""
    lefts = {i for i, _ in joins}
    rights = {j for _, j in joins}
    free = {}
    for (i, j), unit in possible.items():
        if i not in lefts and j not in rights:
            free[i, j] = unit
    return free
