"""Bind a model that was exported at a fixed batch to another batch size, where that is provably sound.

The model is walked twice: at the exported batch (:class:`Reference` records every shape), then at the new
one. Exporters bake the batch into targets of Reshape and Expand; there the axis that carries the batch is
found by comparing the input with its reference shape, and the target's matching axis is scaled. At every node
the outputs must have the reference's shape with exactly one axis scaled by new / exported when one of its
inputs was scaled, and the same shape otherwise; so must the model's outputs. The first node that breaks this
is named in the refusal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from gkestimator.core.errors import ModelError
from gkestimator.core.graph import Tensor, Value
from gkestimator.onnx_io.binding.facts import Fact, Facts
from gkestimator.onnx_io.reading.program import Node
from gkestimator.operators.registry import SequenceType, TensorType, ValueType

_BAKED = frozenset({("", "Reshape"), ("", "Expand")})
_Key = tuple[int, str]


def _types(facts: Facts) -> list[ValueType | None]:
    return [f.type if f is not None else None for f in facts]


class Reference:
    """Record the shapes of every node's inputs and outputs at the exported batch."""

    def __init__(self, exported: int) -> None:
        self.exported = exported
        self.inputs: dict[_Key, list[ValueType | None]] = {}
        self.outputs: dict[_Key, list[ValueType | None]] = {}

    def adjust(self, node: Node, facts: list[Fact | None], suffix: str) -> list[Fact | None]:
        """Record the inputs; they stay as they are."""
        self.inputs[node.index, suffix] = _types(facts)
        return facts

    def check(self, node: Node, facts: Facts, outputs: Facts, suffix: str) -> None:
        """Record the outputs."""
        self.outputs[node.index, suffix] = _types(outputs)


class Rebatcher:
    """Adjust baked targets in the second walk, and check every node against the reference."""

    def __init__(self, reference: Reference, batch_size: int) -> None:
        self.reference = reference
        self.old = reference.exported
        self.new = batch_size

    def refuse(self, what: str, why: str) -> ModelError:
        """Return the error that says why the batch cannot be changed."""
        return ModelError(
            f"exported at batch {self.old} and cannot be re-batched to {self.new}: {what} {why}; export it "
            f"with a symbolic batch dimension"
        )

    def scaled_axis(self, before: TensorType, after: TensorType) -> int | None:
        """Return the axis of ``after`` that is scaled by new / old, None when the shapes agree.

        Raises ValueError otherwise.
        """
        old = before.shape
        new = after.shape
        if old == new:
            return None
        if len(old) == len(new):
            changed = [axis for axis, size in enumerate(old) if size != new[axis]]
            axis = changed[0]
            if len(changed) == 1 and old[axis] * self.new == new[axis] * self.old:
                return axis
        raise ValueError(f"{list(old)} became {list(new)}")

    def adjust(self, node: Node, facts: list[Fact | None], suffix: str) -> list[Fact | None]:
        """Scale the batch in a constant target of Reshape or Expand."""
        if (node.domain, node.op_type) not in _BAKED or len(facts) < 2:
            return facts
        data, target = facts[:2]
        if data is None or target is None or not isinstance(target.value, np.ndarray):
            return facts
        key = (node.index, suffix)
        before = self.reference.inputs.get(key)
        after = self.reference.outputs.get(key)
        if not before or not after:
            return facts
        dims = self._scaled_target(node.op_type, before[0], data.type, after[0], target.value.copy())
        if dims is None:
            return facts
        dims.flags.writeable = False
        return [data, Fact(-1, target.type, dims), *facts[2:]]

    def _scaled_target(
        self,
        op_type: str,
        before: ValueType | None,
        data: ValueType,
        after: ValueType | None,
        dims: np.ndarray,
    ) -> np.ndarray | None:
        """Return the target ``dims`` with the batch scaled; None where the data's batch is not the only thing that
        changed. ``before`` and ``after``: data and output at the exported batch."""
        if not isinstance(data, TensorType) or not isinstance(before, TensorType):
            return None
        if not isinstance(after, TensorType):
            return None
        try:
            axis = self.scaled_axis(before, data)
        except ValueError:
            return None  # check() names the node that did this
        if axis is None:
            return None
        if op_type == "Expand":
            at = axis - len(before.shape) + dims.size
            if 0 <= at < dims.size and int(dims[at]) == self.old and before.shape[axis] == self.old:
                dims[at] = self.new
            return dims
        place = _matching_axis(before.shape, axis, after.shape, self.old)
        if place is not None and int(dims[place]) == after.shape[place]:
            dims[place] = after.shape[place] * self.new // self.old
        return dims

    def check(self, node: Node, facts: Facts, outputs: Facts, suffix: str) -> None:
        """Refuse when an output does not scale as its inputs do."""
        key = (node.index, suffix)
        before_in = self.reference.inputs.get(key)
        before_out = self.reference.outputs.get(key)
        if before_in is None or before_out is None:
            raise self.refuse(str(node), "only runs at one of the two batch sizes")
        if all(f is None or f.value is not None for f in outputs):
            return  # shape arithmetic; its readers are checked
        scaled = False
        for old, fact in zip(before_in, facts, strict=False):
            scaled = scaled or self._scales(node, old, fact)
        problem = "scales though none of its inputs does"
        if scaled:
            problem = "mixes the samples of a batch"
        for old, fact in zip(before_out, outputs, strict=False):
            if fact is not None and self._scales(node, old, fact) != scaled:
                raise self.refuse(str(node), problem)

    def _scales(self, node: Node, old: ValueType | None, fact: Fact | None) -> bool:
        if old is None or fact is None:
            return False
        if isinstance(old, SequenceType) != isinstance(fact.type, SequenceType):
            raise self.refuse(str(node), "changes the kind of a value")
        before = _tensor_types(old)
        after = _tensor_types(fact.type)
        if len(before) != len(after):
            raise self.refuse(str(node), "splits the batch into a sequence")
        pairs = list(zip(before, after, strict=True))
        if fact.value is not None and all(a.shape == b.shape for a, b in pairs):
            return False
        try:
            axes = [self.scaled_axis(a, b) for a, b in pairs]
        except ValueError as e:
            raise self.refuse(str(node), f"does not scale with the batch: {e}") from e
        return any(axis is not None for axis in axes)

    def check_outputs(self, names: Sequence[str], outputs: Sequence[Value]) -> None:
        """Refuse when no output of the model carries the batch."""
        for output in outputs:
            if isinstance(output, Tensor) and any(d and d % self.new == 0 for d in output.shape):
                return
        if outputs:
            raise self.refuse(f"output {names[0]!r}", "does not carry the batch")


def _tensor_types(type_: ValueType) -> tuple[TensorType, ...]:
    if isinstance(type_, SequenceType):
        return type_.elements
    return (type_,)


def _matching_axis(source: tuple[int, ...], axis: int, target: tuple[int, ...], exported: int) -> int | None:
    """Return the axis of a reshaped tensor that begins with the elements of ``axis``.

    What lies before it has equal size.
    """
    outside = math.prod(source[:axis])
    for place in range(len(target)):
        if math.prod(target[:place]) == outside and target[place] % exported == 0 and target[place]:
            return place
    return None
