"""Build the combined graph with super-operators in place of their members."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

from gkestimator.merging.editing import (
    EditableModel,
    EditNode,
    Names,
    Replaces,
    Shapes,
    combine,
    order_nodes,
)
from gkestimator.merging.lifting import lift
from gkestimator.merging.naming import OWN_PREFIX
from gkestimator.merging.operators import SuperOperator
from gkestimator.merging.pricing import Built
from gkestimator.merging.super_operators import emit, share_helpers

_OF_SUPER = re.compile(rf"(?:{OWN_PREFIX})+([0-9]{{1,9}})/")


class Assembler:
    """Build the merged graph of ``models`` for any choice of super-operators.

    ``shapes``: what is static of each value of each model (:func:`gkestimator.merging.editing.value_shapes`).
    """

    def __init__(self, models: Sequence[EditableModel], shapes: Shapes, *, tolerance: float) -> None:
        self._combined = combine(models, "merged")
        self._shapes = shapes
        self._tolerance = tolerance

    def __call__(self, supers: Sequence[SuperOperator], lifted: bool) -> Built:
        """Return all models side by side, the members of ``supers`` replaced; ``lifted``: what follows them
        alike is run once as well. ``replaces`` of the result: the original nodes behind each new node;
        ``parts``: the nodes made for each of ``supers`` (in a lifted graph the helpers among them). None of
        them: the models side by side.
        """
        combined = self._combined
        weights = dict(combined.weights)
        made: list[EditNode] = []
        replaces: dict[str, Names] = {}
        parts: list[Names] = []
        for number, op in enumerate(supers):
            emitted = emit(
                op,
                shapes=self._shapes,
                tolerance=self._tolerance,
                name=f"{OWN_PREFIX}{number}",
                opset=combined.opsets[""],
            )
            made += emitted.nodes
            weights |= {weight.name: weight for weight in emitted.weights}
            replaces |= emitted.replaces
            parts.append(tuple(node.name for node in emitted.nodes))
        if lifted:  # else every super-operator keeps its own, to be priced by itself
            made = share_helpers(made)
            names = {n.name for n in made}
            replaces = {name: originals for name, originals in replaces.items() if name in names}
        # the members go, their results keep their names: whoever reads them notices nothing
        gone = {member.operator.node.name for op in supers for member in op.members}
        nodes = [node for node in combined.nodes if node.name not in gone] + made
        # emitted nodes stand behind all others so far, their readers may stand before them
        ordered = order_nodes(nodes, [*weights, *(value.name for value in combined.inputs)])
        model = dataclasses.replace(combined, nodes=ordered, weights=weights)
        if not (lifted and supers):
            return Built(model=model, replaces=replaces, parts=tuple(parts))
        higher = lift(model, shapes=self._shapes, replaces=replaces, tolerance=self._tolerance)
        helpers = _helpers(higher.replaces, len(supers))
        return Built(model=higher.model, replaces=higher.replaces, parts=helpers)


def _helpers(replaces: Replaces, count: int) -> tuple[Names, ...]:
    """Return of a lifted graph the nodes that help each super-operator, by their names.

    What was lifted has the prefix once more.
    """
    helpers: list[list[str]] = [[] for _ in range(count)]
    for name, originals in replaces.items():
        made = _OF_SUPER.match(name)
        if made and not originals and int(made[1]) < count:
            helpers[int(made[1])].append(name)
    return tuple(map(tuple, helpers))
