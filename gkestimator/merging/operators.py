"""Hold what is merged: operators with constant weights, seen as matrices, and the super-operators made of
them.
"""

from __future__ import annotations

from dataclasses import field
from typing import Literal, TypeAlias

import numpy as np

from gkestimator.core.dtypes import DType
from gkestimator.core.records import frozen
from gkestimator.merging.editing import EditNode, Names, Numbers, Values, Weight

Pair: TypeAlias = "tuple[int, int]"
Kind: TypeAlias = Literal["matmul", "gemm", "conv", "grouped_conv"]
PRODUCTS: frozenset[Kind] = frozenset({"matmul", "gemm"})
"""Kinds that can be merged with one another: a Gemm is a MatMul with a bias."""


@frozen
class WeightMatrix:
    """Hold a weight as rows x columns x taps: row = channel that comes in, column = channel that goes out.

    MatMul and Gemm: taps 1. Conv of one group: taps = the kernel's positions, ``array()[c, m, t]`` is
    ``W[m, c].ravel()[t]``. Conv of several groups: row = group, columns 1, taps = all that one group has.
    ``values.array()`` is of shape [rows, columns, taps], usually a strided view of the file.
    """

    rows: int
    columns: int
    taps: int
    dtype: DType
    values: Values

    @property
    def elements(self) -> int:
        """Return |W|: how many values the weight has."""
        return self.rows * self.columns * self.taps

    def array(self) -> np.ndarray:
        """Return [rows, columns, taps], read-only; bfloat16 as uint16."""
        return self.values.array()


@frozen
class WeightOperator:
    """Hold a node that multiplies an activation by a constant weight, and what merging needs to know of it.

    ``model``: index of its model. ``x`` and ``y``: names of the activation and of the result.
    ``weight_name``: the node's weight input (for a weight behind Transpose or Identity: that node's output).
    ``bias``: a constant bias of one value per column ([columns]), or None. ``geometry``: what two
    convolutions must have in common (kernel, strides, dilations, pads, group size) besides the channels; ()
    for products. ``start_ms``: start of its first kernel on its model's timeline
    (:mod:`gkestimator.estimation.timeline`). ``position``: index among its model's nodes.
    """

    model: int
    node: EditNode
    kind: Kind
    x: str
    y: str
    weight_name: str
    matrix: WeightMatrix
    bias: Weight | None
    geometry: tuple[Numbers, ...]
    start_ms: float
    position: int


@frozen
class Rectangle:
    """Place a block that two weights have in common: ``rows`` x ``columns`` (all taps) at an offset in each.

    ``exact`` False: the search gave up before it had seen every place, so a larger one may exist.
    """

    rows: int
    columns: int
    row_a: int
    column_a: int
    row_b: int
    column_b: int
    exact: bool = True

    @property
    def cells(self) -> int:
        """Return rows x columns."""
        return self.rows * self.columns


def similarity(a: WeightMatrix, b: WeightMatrix, shared: Rectangle | None) -> float:
    """Return 2 |largest common submatrix| / (|Wa| + |Wb|), in [0, 1] (USHER, section 3.4); 0: nothing is
    common.
    """
    if shared is None:
        return 0.0
    return 2 * shared.cells * a.taps / (a.elements + b.elements)


@frozen
class MergedMember:
    """Hold one operator of a super-operator: the shared block is its weight's [row:row+rows,
    column:column+columns].
    """

    operator: WeightOperator
    row: int
    column: int


@frozen
class SuperOperator:
    """Hold operators of different models that multiply by one shared block (the first member's values), once
    for all.

    ``whole``: the block is every member's whole weight.
    """

    members: tuple[MergedMember, ...]
    rows: int
    columns: int
    similarity: float = field(compare=False)

    @property
    def names(self) -> Names:
        """Return the names of the members' nodes."""
        return tuple(member.operator.node.name for member in self.members)

    @property
    def whole(self) -> bool:
        """Return True where nothing is left over of any member's weight."""
        block = (self.rows, self.columns)
        matrices = [member.operator.matrix for member in self.members]
        return all((matrix.rows, matrix.columns) == block for matrix in matrices)
