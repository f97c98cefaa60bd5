"""Write the operators of one part of a decoder as a fragment: nodes in order, weights by name and shape alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gkestimator.core.dtypes import DType
from gkestimator.core.fragments import Fragment, FragmentNode, FragmentTensor

MS = "com.microsoft"
_OPSETS = {"": 24, MS: 1}

Shape = tuple[int, ...]


class PartBuilder:
    """Collect nodes and tensors of one part; every name gets ``prefix``, so that parts can be joined.

    ``dtype`` is the element type of activations and weights.
    """

    def __init__(self, prefix: str, dtype: DType) -> None:
        self.prefix = prefix
        self.dtype = dtype
        self._nodes: list[FragmentNode] = []
        self._tensors: dict[str, FragmentTensor] = {}
        self._shapes: dict[str, Shape] = {}

    def activation(self, name: str, shape: Shape, dtype: DType | None = None) -> str:
        """Return the name of a new input of ``shape``."""
        return self._tensor(name, shape, dtype or self.dtype, "input", None)

    def weight(self, name: str, *shape: int) -> str:
        """Return the name of a weight of ``shape``."""
        return self._tensor(name, shape, self.dtype, "weight", None)

    def constant(self, name: str, values: Sequence[float | int], dtype: DType | None = None) -> str:
        """Return the name of a constant vector; one value alone is a scalar."""
        shape: Shape = () if len(values) == 1 else (len(values),)
        return self._tensor(name, shape, dtype or self.dtype, "constant", tuple(values))

    def axes(self, *values: int) -> str:
        """Return the name of a constant vector of whole numbers, one for all nodes that ask for the same."""
        name = "axes" + "".join(f"_{value}" for value in values)
        if f"{self.prefix}{name}" not in self._tensors:
            self._put(name, (len(values),), DType.INT64, "constant", values)
        return f"{self.prefix}{name}"

    def _tensor(
        self, name: str, shape: Shape, dtype: DType, role: str, values: tuple[float | int, ...] | None
    ) -> str:
        full = f"{self.prefix}{name}"
        if full not in self._tensors:
            self._put(name, shape, dtype, role, values)
        return full

    def _put(
        self, name: str, shape: Shape, dtype: DType, role: str, values: tuple[float | int, ...] | None
    ) -> None:
        full = f"{self.prefix}{name}"
        self._tensors[full] = FragmentTensor(name=full, dtype=dtype, shape=shape, role=role, values=values)

    def node(
        self, op_type: str, inputs: Sequence[str], *, domain: str = "", outputs: int = 1, **attributes: Any
    ) -> str:
        """Append a node and return the name of its first output; the others end in ``_1``, ``_2``, ..."""
        return self.nodes(op_type, inputs, domain=domain, outputs=outputs, **attributes)[0]

    def nodes(
        self, op_type: str, inputs: Sequence[str], *, domain: str = "", outputs: int, **attributes: Any
    ) -> tuple[str, ...]:
        """Append a node and return the names of its outputs."""
        stem = f"{self.prefix}{op_type}{len(self._nodes)}"
        names = (stem, *(f"{stem}_{at}" for at in range(1, outputs)))
        self._nodes.append(
            FragmentNode(
                op_type=op_type, domain=domain, attributes=attributes, inputs=tuple(inputs), outputs=names
            )
        )
        return names

    def linear(self, x: str, name: str, sizes: tuple[int, int], *, bias: bool) -> str:
        """Return the product of ``x`` with a weight of ``sizes`` (in, out), and its bias where there is one."""
        y = self.node("MatMul", (x, self.weight(f"{name}.weight", *sizes)))
        if bias:
            y = self.node("Add", (y, self.weight(f"{name}.bias", sizes[1])))
        return y

    def fragment(self, outputs: Sequence[str], pattern: str) -> Fragment:
        """Return all that was collected."""
        used = {name for node in self._nodes for name in node.inputs}
        tensors = tuple(tensor for name, tensor in self._tensors.items() if name in used)
        opsets: Mapping[str, int] = _OPSETS
        return Fragment(
            opsets=opsets, nodes=tuple(self._nodes), tensors=tensors, outputs=tuple(outputs), pattern=pattern
        )
