"""Hold a model as it is edited: nodes, weights and ends by name; what nobody edits stays as the file has it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from gkestimator.core.dtypes import DType
from gkestimator.core.records import frozen
from gkestimator.merging.editing.values import Numbers, Values

Names: TypeAlias = "tuple[str, ...]"
Dims: TypeAlias = "tuple[int | None, ...]"
DimSizes: TypeAlias = "Mapping[str, int]"
Weights: TypeAlias = "dict[str, Weight]"
Models: TypeAlias = "Sequence[EditableModel]"
BatchSizes: TypeAlias = "Sequence[int | None]"
Shapes: TypeAlias = "Mapping[str, ValueShape]"
Replaces: TypeAlias = "Mapping[str, Names]"
AttributeValue: TypeAlias = "int | float | str | tuple[int, ...] | tuple[float, ...] | tuple[str, ...]"


@frozen
class Weight:
    """Hold an initializer. ``values`` are read when they are looked at; ``dtype`` is ONNX's element type."""

    name: str
    dtype: DType
    shape: Numbers
    values: Values

    @property
    def elements(self) -> int:
        """Number of elements (1 for a scalar)."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Return the bytes that the values take."""
        return self.dtype.nbytes(math.prod(self.shape))


@frozen
class EditNode:
    """Hold one node of the main graph; ``""`` among ``inputs`` or ``outputs`` is one left out.

    ``attributes`` are the plain ones (numbers, text, lists of them). ``opaque`` are serialised
    AttributeProtos of all others (tensors, subgraphs, types), which nobody changes. ``outer`` are the names
    of this graph that its subgraphs read besides ``inputs``. ``domain`` is ``""`` for the standard domain.
    """

    name: str
    op_type: str
    inputs: Names
    outputs: Names
    domain: str = ""
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)
    # serialised: equal bytes are equal attributes, and nothing here has to understand them
    opaque: tuple[bytes, ...] = ()
    outer: Names = ()

    @property
    def key(self) -> tuple[str, str]:
        """Return the domain and the type, by which operators are registered."""
        return self.domain, self.op_type

    @property
    def reads(self) -> Names:
        """Return every name that must exist before the node runs."""
        return tuple(n for n in (*self.inputs, *self.outer) if n)

    @property
    def writes(self) -> Names:
        """Return every name that the node defines."""
        return tuple(n for n in self.outputs if n)


@frozen
class ValueInfo:
    """Describe an input or output of a model.

    ``shape``: numbers, names, None for unknown; None: nothing is said.

    ``opaque`` is the serialised TypeProto of what is no tensor (sequence, optional); ``dtype`` is None then.
    """

    name: str
    dtype: DType | None
    shape: tuple[int | str | None, ...] | None
    opaque: bytes | None = None


@dataclass(slots=True, kw_only=True)
class EditableModel:
    """Hold a model: ``nodes`` in an order that can be executed (each reads what stands before it), no local
    functions.

    Every name begins with the prefix it was read under, so that two models share none. ``name`` is what the
    user calls it. ``opsets`` by domain (``""`` the standard one). ``prefixes``: one a model that is in it.
    """

    name: str
    nodes: list[EditNode]
    weights: Weights
    inputs: list[ValueInfo]
    outputs: list[ValueInfo]
    opsets: dict[str, int]
    ir_version: int
    producer: str = ""
    prefixes: Names = ()

    @property
    def weight_bytes(self) -> int:
        """Return the bytes that all weights take."""
        return sum(weight.nbytes for weight in self.weights.values())

    def defined(self) -> Iterator[str]:
        """Yield every name of the main graph that something defines: weights, inputs, results of nodes."""
        yield from self.weights
        for value in self.inputs:
            yield value.name
        for node in self.nodes:
            yield from node.writes


@frozen
class ValueShape:
    """Say what holds of a tensor whatever the symbolic dimensions are: its rank, and the sizes that never
    change.

    ``dims[i]`` is None where the size depends on a symbolic dimension (the batch, a sequence's length) or on
    data.
    """

    dtype: DType
    dims: Dims
