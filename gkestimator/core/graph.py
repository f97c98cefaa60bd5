"""The operator graph: what a model computes once every dimension has a number.

``onnx_io`` produces it, ``lowering`` consumes it. Subgraphs are already expanded (``Operator.repeat`` counts the
trips), functions inlined, shape arithmetic and weight-only subgraphs folded away.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field
from typing import TypeAlias

import numpy as np

from gkestimator.core.dtypes import DType
from gkestimator.core.records import frozen

Attribute: TypeAlias = (
    "int | float | str | tuple[int, ...] | tuple[float, ...] | tuple[str, ...] | np.ndarray | None"
)


@frozen
class Tensor:
    """A tensor whose shape is known.

    ``storage`` names the memory it lives in: two weights with one ``storage`` are one allocation (a weight and its
    transposed view); an activation's storage is its own name until lowering finds views. ``value`` holds the folded
    value of a small constant, else None. ``bounded`` says that the shape is the upper bound of a size that depends on
    data (NonZero, NonMaxSuppression, ...).
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    storage: str
    is_weight: bool = False
    bounded: bool = False
    value: np.ndarray | None = field(default=None, compare=False, repr=False)

    @property
    def elements(self) -> int:
        """Number of elements (1 for a scalar)."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return self.dtype.nbytes(math.prod(self.shape))


@frozen
class Sequence:
    """A sequence (or optional) value: its elements, each a tensor. An empty optional has no elements."""

    name: str
    elements_: tuple[Tensor, ...]
    bounded: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes of all elements together."""
        return sum(t.nbytes for t in self.elements_)


Value: TypeAlias = Tensor | Sequence


@frozen
class Operator:
    """One operator that runs: exact key ``(domain, op_type)``, opset ``version`` of its domain, values in and out.

    ``domain`` is ``""`` for the standard domain (``ai.onnx`` is normalised to it). An omitted optional input is None.
    ``name`` is unique in its graph (the node's name, or ``op_type#index`` when it has none; nodes of an inlined
    function or a subgraph are prefixed by ``outer/``). ``repeat`` is the product of the trip counts around it.
    ``signature``: two operators of one graph with equal signatures differ in their names, repeats and in which
    tensors they touch only, so a rule says the same of both; None says nothing.
    """

    name: str
    domain: str
    op_type: str
    version: int
    attributes: Mapping[str, Attribute]
    inputs: tuple[Value | None, ...]
    outputs: tuple[Value | None, ...]
    repeat: int = 1
    signature: int | None = field(default=None, compare=False, repr=False)

    @property
    def key(self) -> tuple[str, str]:
        """``(domain, op_type)``, what rules are looked up by."""
        return (self.domain, self.op_type)


@frozen
class OperatorGraph:
    """A bound model: operators in execution order, every tensor with a concrete shape.

    ``weights`` are the distinct weight storages that some operator reads, with their bytes. ``batch_size`` is the
    number bound to the batch dimension; ``dims`` the other symbolic dimensions with their numbers, sorted.
    ``folded`` counts the nodes that were evaluated or cost nothing because only weights go in. ``structure`` is equal
    for two bindings of one file whose operator lists agree up to shapes (what pattern matching may be cached by);
    a weakly referable object, or None. ``awaited``: control flow whose way depends on data, which the host awaits.
    """

    name: str
    operators: tuple[Operator, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    weights: Mapping[str, int]
    batch_size: int
    dims: tuple[tuple[str, int], ...] = ()
    producer: str = ""
    folded: int = 0
    warnings: tuple[str, ...] = ()
    awaited: tuple[str, ...] = ()
    structure: object = None
