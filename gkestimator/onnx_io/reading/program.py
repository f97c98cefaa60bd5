"""A model in plain Python: what is left of the protobuf once functions are inlined and names are numbered.

Every value of the model, whatever graph it is in, has one slot number; binding works on lists indexed by
slot.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from gkestimator.operators.registry import DeclaredType, TensorType

OMITTED = -1


class Constant(NamedTuple):
    """An initializer or Constant node: its type, and its value where it is small and in the file."""

    type: TensorType
    value: np.ndarray | None


class InputSpec(NamedTuple):
    """A model input.

    ``kind`` is ``tensor``, ``sequence`` or ``optional``; ``declared`` types the tensor or element.
    """

    slot: int
    name: str
    kind: str
    declared: DeclaredType


@dataclass(slots=True, eq=False)
class Node:
    """One node. ``signature`` is equal for nodes that a shape rule cannot tell apart by themselves.

    ``inputs`` and ``outputs`` are slots, ``OMITTED`` where left out. ``blocks`` are the subgraphs by
    attribute name.
    """

    index: int
    name: str
    domain: str
    op_type: str
    version: int
    attributes: Mapping[str, Any]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    signature: int
    blocks: Mapping[str, Block] | None = None
    kind: int = 0  # node_kinds

    def __str__(self) -> str:
        return f"node {self.name} ({self.domain + '.' if self.domain else ''}{self.op_type})"


@dataclass(slots=True, eq=False)
class Block:
    """A graph: slots that come in, nodes in an order that can be executed, slots that go out."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    nodes: list[Node]


@dataclass(slots=True, eq=False)
class Program:
    """A whole model.

    ``names[slot]`` is the value's name; ``declared`` what the file says of values by name.
    """

    producer: str
    names: list[str]
    constants: dict[int, Constant]
    inputs: tuple[InputSpec, ...]
    output_names: tuple[str, ...]
    main: Block
    nodes: int
    constant_nodes: int
    opset: int | None = None
    declared: Mapping[str, DeclaredType] = field(default_factory=dict)
