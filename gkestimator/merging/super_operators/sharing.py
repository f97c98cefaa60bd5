"""Helper nodes that several super-operators would each write alike are written once."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from gkestimator.merging.editing import EditNode
from gkestimator.merging.naming import OWN_PREFIX

SHARED = frozenset({"Concat", "Gather", "Pad", "Reshape", "Shape", "Slice", "Split"})


def share_helpers(nodes: Iterable[EditNode]) -> list[EditNode]:
    """``nodes`` of emitted super-operators without those that compute what an earlier one has computed.

    Query, key and value of an attention read one activation: their three super-operators stack the same values,
    ask for the same sizes and take apart the same rows. Two nodes compute the same when operator, inputs and
    attributes are equal; all of :data:`SHARED` are deterministic. Each super-operator's nodes must come in an
    order that can be executed, as :func:`emit` gives them. Nodes that write a value of a model itself stay.
    """
    renamed: dict[str, str] = {}
    seen: dict[object, tuple[str, ...]] = {}
    kept: list[EditNode] = []
    for node in nodes:
        inputs = tuple(renamed.get(name, name) for name in node.inputs)
        if node.op_type in SHARED and all(name.startswith(OWN_PREFIX) for name in node.outputs):
            key = (
                node.op_type,
                node.domain,
                inputs,
                tuple(sorted(node.attributes.items())),
                len(node.outputs),
            )
            first = seen.setdefault(key, node.outputs)
            if first is not node.outputs:
                renamed.update(zip(node.outputs, first, strict=True))
                continue
        kept.append(node if inputs == node.inputs else dataclasses.replace(node, inputs=inputs))
    return kept
