"""Shape rules: exact keys ``(domain, op_type)`` to a function from input types to output types.

A rule sees one node with concrete input types (and the folded values of small constant inputs) and returns
one type per output of the node. It raises ShapeError when the inputs contradict each other. Rules are pure:
equal contexts give equal results, so the engine may cache them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from gkestimator.core.dtypes import DType
from gkestimator.operators.records import RuleTable, register_rule


class TensorType(NamedTuple):
    """Element type and concrete shape. ``bounded``: the shape is an upper bound of a data-dependent size."""

    dtype: DType
    shape: tuple[int, ...]
    bounded: bool = False


class SequenceType(NamedTuple):
    """A sequence (or an optional: at most one element) by the types of its elements."""

    elements: tuple[TensorType, ...]
    bounded: bool = False
    optional: bool = False


ValueType: TypeAlias = TensorType | SequenceType


class DeclaredType(NamedTuple):
    """What the file declares of a value: dims are ints, names (str) or None where nothing is said."""

    dtype: DType | None
    shape: tuple[int | str | None, ...] | None


@dataclass(slots=True)
class ShapeContext:
    """One node as a shape rule sees it.

    ``types[i]`` and ``values[i]`` belong to input i (None: input omitted; value None: not a known constant).
    ``declared[j]`` is what the file declares of output j, the last resort of rules whose output depends on
    data.
    """

    op_type: str
    domain: str
    version: int
    attributes: Mapping[str, Any]
    types: Sequence[ValueType | None]
    values: Sequence[np.ndarray | None]
    outputs: int
    declared: Sequence[DeclaredType | None]


ShapeRule: TypeAlias = Callable[[ShapeContext], "Sequence[ValueType | None]"]
SHAPE_RULES: RuleTable[ShapeRule] = RuleTable("shape_rule")


def shape_rule(*op_types: str, domain: str = "", **traits: Any) -> Callable[[ShapeRule], ShapeRule]:
    """Register a rule under the exact keys ``(domain, op_type)``.

    A key registered twice is a programming error. ``traits`` are fields of
    :class:`~gkestimator.operators.records.OperatorTraits`.
    """

    def register(rule: ShapeRule) -> ShapeRule:
        register_rule("shape_rule", rule, [(domain, op_type) for op_type in op_types], traits)
        return rule

    return register
