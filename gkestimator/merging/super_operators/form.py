"""Write down the nodes of a super-operator one after the other."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gkestimator.core.dtypes import DType
from gkestimator.core.records import frozen
from gkestimator.merging.editing import EditNode, Names, Replaces, Values, Weight, Weights
from gkestimator.merging.editing.form import AttributeValue
from gkestimator.merging.naming import SHAPE_ENDS, unused_name, whole_numbers


@frozen
class Emitted:
    """Hold what stands for the members of a super-operator.

    ``nodes`` in an order that can be executed; they write every member's output under the name it had.
    ``weights`` are new: parts of the members' (views; what is put together of two parts is copied when it is
    read) and small constants. A constant has one name for one value in all super-operators, so that they can
    be put into one table. ``replaces``: for each node the names of the original nodes whose products it
    computes; () for those that only move or add.
    """

    nodes: tuple[EditNode, ...]
    weights: tuple[Weight, ...]
    replaces: Replaces


@dataclass(slots=True)
class Sheet:
    """Collect nodes and weights; every method returns names of values. ``name`` is the super-operator's."""

    name: str
    opset: int
    nodes: list[EditNode] = field(default_factory=list)
    weights: Weights = field(default_factory=dict)
    replaces: dict[str, Names] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)

    def emitted(self) -> Emitted:
        """Return all that was collected."""
        return Emitted(
            nodes=tuple(self.nodes), weights=tuple(self.weights.values()), replaces=dict(self.replaces)
        )

    def node(
        self,
        op_type: str,
        inputs: Sequence[str],
        hint: str,
        *,
        replaces: Names = (),
        attributes: Mapping[str, AttributeValue] | None = None,
    ) -> str:
        """Add a node of one output and return the output's name.

        ``replaces``: the original nodes whose products it computes.
        """
        name = self._free(hint)
        self.nodes.append(
            EditNode(
                name=name,
                op_type=op_type,
                inputs=tuple(inputs),
                outputs=(name,),
                attributes=dict(attributes or {}),
            )
        )
        self.replaces[name] = replaces
        return name

    def _free(self, hint: str) -> str:
        return unused_name(f"{self.name}/{hint}", self.taken)

    def whole_numbers(self, values: Sequence[int]) -> str:
        """Return the name of a constant list of int64."""
        return whole_numbers(values, self.weights)

    def weight(self, hint: str, dtype: DType, shape: Sequence[int], values: Values) -> str:
        """Add a new weight, made of parts of others."""
        name = self._free(hint)
        self.weights[name] = Weight(name=name, dtype=dtype, shape=tuple(shape), values=values)
        return name

    def joined(self, values: Sequence[str], axis: int, hint: str) -> str:
        """Join by Concat along ``axis``, without the empty names; a single value as it stands."""
        present = list(filter(None, values))
        if len(present) == 1:
            return present[0]
        return self.node("Concat", present, hint, attributes={"axis": axis})

    def parted(self, value: str, sizes: Sequence[int] | str, axis: int, hint: str, count: int) -> list[str]:
        """Split along ``axis`` into ``count`` parts of ``sizes`` (numbers, or the name of a value)."""
        name = self._free(hint)
        names = [f"{name}:{i}" for i in range(count)]
        if isinstance(sizes, str):
            given = sizes
        else:
            given = self.whole_numbers(sizes)
        self.nodes.append(
            EditNode(
                name=name,
                op_type="Split",
                inputs=(value, given),
                outputs=tuple(names),
                attributes={"axis": axis},
            )
        )
        self.replaces[name] = ()
        return names

    def spans(self, value: str, sizes: Sequence[int], axis: int, hint: str) -> list[str]:
        """Return ``value`` taken apart along ``axis`` into parts of ``sizes``; "" for one of size 0, itself
        if it is alone.
        """
        present = [size for size in sizes if size]
        # a Split into one part would be a copy
        if len(present) == 1:
            return [value if size else "" for size in sizes]
        parts = iter(self.parted(value, present, axis, hint, len(present)))
        return [next(parts) if size else "" for size in sizes]

    def leading(self, value: str, stop: int, hint: str) -> str:
        """Return the sizes of ``value``'s axes before ``stop`` (negative: counted from the end), at run time:
        [n] int64.
        """
        if self.opset >= SHAPE_ENDS:
            return self.node("Shape", [value], hint, attributes={"start": 0, "end": stop})
        shape = self.node("Shape", [value], hint)
        if stop == 1:
            return self.node(
                "Gather", [shape, self.whole_numbers([0])], f"{hint}_first", attributes={"axis": 0}
            )
        ends = [self.whole_numbers([0]), self.whole_numbers([stop])]
        return self.node("Slice", [shape, *ends], f"{hint}_leading")

    def finish(self, value: str, output: str) -> None:
        """Give the result ``value``, which no node here reads, the name ``output`` that the model's others
        read.
        """
        for index, node in enumerate(self.nodes):
            if value in node.outputs:
                written = tuple(output if name == value else name for name in node.outputs)
                self.nodes[index] = dataclasses.replace(node, outputs=written)
                return
        raise AssertionError(f"{self.name}: nothing writes {value}")


def unstack(sheet: Sheet, value: str, sources: Sequence[str], counts: Sequence[int | None]) -> list[str]:
    """Return ``value`` taken apart along axis 0, one part for each of the stacked ``sources``.

    ``counts``: their sizes along axis 0, None where they are known at run time alone; they are read from the
    sources then.
    """
    known = [count for count in counts if count is not None]
    if len(known) == len(counts):
        return sheet.parted(value, known, 0, "parts", len(counts))
    sizes = [
        sheet.whole_numbers([count]) if count is not None else sheet.leading(source, 1, "size")
        for source, count in zip(sources, counts, strict=True)
    ]
    return sheet.parted(value, sheet.joined(sizes, 0, "sizes"), 0, "parts", len(counts))
