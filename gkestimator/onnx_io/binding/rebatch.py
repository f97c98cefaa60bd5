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
from gkestimator.onnx_io.binding.facts import Fact
from gkestimator.onnx_io.reading.program import Node
from gkestimator.operators.registry import SequenceType, TensorType, ValueType

_BAKED = frozenset({("", "Reshape"), ("", "Expand")})
_Key = tuple[int, str]


class Reference:
    """Shapes of every node's inputs and outputs at the exported batch."""

    def __init__(self, exported: int) -> None:
        self.exported = exported
        self.inputs: dict[_Key, list[ValueType | None]] = {}
        self.outputs: dict[_Key, list[ValueType | None]] = {}

    def adjust(self, node: Node, facts: list[Fact | None], suffix: str) -> list[Fact | None]:
        """Record the inputs; they stay as they are."""
        self.inputs[node.index, suffix] = [f.type if f is not None else None for f in facts]
        return facts

    def check(
        self, node: Node, facts: Sequence[Fact | None], outputs: Sequence[Fact | None], suffix: str
    ) -> None:
        """Record the outputs."""
        self.outputs[node.index, suffix] = [f.type if f is not None else None for f in outputs]


class Rebatcher:
    """The second walk: adjusts baked targets and checks every node against the reference."""

    def __init__(self, reference: Reference, batch_size: int) -> None:
        self.reference = reference
        self.old = reference.exported
        self.new = batch_size

    def refuse(self, what: str, why: str) -> ModelError:
        """The error that says why the batch cannot be changed."""
        return ModelError(
            f"exported at batch {self.old} and cannot be re-batched to {self.new}: {what} {why}; export it "
            f"with a symbolic batch dimension"
        )

    def scaled_axis(self, before: TensorType, after: TensorType) -> int | None:
        """The axis of ``after`` that is scaled by new / old, None when the shapes agree.

        ValueError otherwise.
        """
        if before.shape == after.shape:
            return None
        if len(before.shape) == len(after.shape):
            changed = [i for i, (a, b) in enumerate(zip(before.shape, after.shape, strict=True)) if a != b]
            if (
                len(changed) == 1
                and before.shape[changed[0]] * self.new == after.shape[changed[0]] * self.old
            ):
                return changed[0]
        raise ValueError(f"{list(before.shape)} became {list(after.shape)}")

    def adjust(self, node: Node, facts: list[Fact | None], suffix: str) -> list[Fact | None]:
        """Scale the batch in a constant target of Reshape or Expand."""
        if (node.domain, node.op_type) not in _BAKED or len(facts) < 2:
            return facts
        data = facts[0]
        target = facts[1]
        before = self.reference.inputs.get((node.index, suffix))
        after = self.reference.outputs.get((node.index, suffix))
        if (
            not before
            or not after
            or data is None
            or target is None
            or not isinstance(target.value, np.ndarray)
        ):
            return facts
        old_data = before[0]
        old_out = after[0]
        if not isinstance(data.type, TensorType) or not isinstance(old_data, TensorType):
            return facts
        if not isinstance(old_out, TensorType):
            return facts
        try:
            axis = self.scaled_axis(old_data, data.type)
        except ValueError:
            return facts  # check() names the node that did this
        if axis is None:
            return facts
        dims = target.value.copy()
        if node.op_type == "Expand":
            at = axis - len(old_data.shape) + dims.size
            if 0 <= at < dims.size and int(dims[at]) == self.old and old_data.shape[axis] == self.old:
                dims[at] = self.new
        else:
            place = _matching_axis(old_data.shape, axis, old_out.shape, self.old)
            if place is not None and int(dims[place]) == old_out.shape[place]:
                dims[place] = old_out.shape[place] * self.new // self.old
        dims.flags.writeable = False
        changed = list(facts)
        changed[1] = Fact(-1, target.type, dims)
        return changed

    def check(
        self, node: Node, facts: Sequence[Fact | None], outputs: Sequence[Fact | None], suffix: str
    ) -> None:
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
        for old, fact in zip(before_out, outputs, strict=False):
            if fact is not None and self._scales(node, old, fact) != scaled:
                raise self.refuse(
                    str(node),
                    "mixes the samples of a batch" if scaled else "scales though none of its inputs does",
                )

    def _scales(self, node: Node, old: ValueType | None, fact: Fact | None) -> bool:
        if old is None or fact is None:
            return False
        pairs: list[tuple[TensorType, TensorType]]
        if isinstance(old, TensorType) and isinstance(fact.type, TensorType):
            pairs = [(old, fact.type)]
        elif isinstance(old, SequenceType) and isinstance(fact.type, SequenceType):
            if len(old.elements) != len(fact.type.elements):
                raise self.refuse(str(node), "splits the batch into a sequence")
            pairs = list(zip(old.elements, fact.type.elements, strict=True))
        else:
            raise self.refuse(str(node), "changes the kind of a value")
        if fact.value is not None and all(a.shape == b.shape for a, b in pairs):
            return False
        try:
            return any(axis is not None for axis in [self.scaled_axis(a, b) for a, b in pairs])
        except ValueError as e:
            raise self.refuse(str(node), f"does not scale with the batch: {e}") from e

    def check_outputs(self, names: Sequence[str], outputs: Sequence[Value]) -> None:
        """Refuse when no output of the model carries the batch."""
        if outputs and not any(
            isinstance(o, Tensor) and any(d and d % self.new == 0 for d in o.shape) for o in outputs
        ):
            raise self.refuse(f"output {names[0]!r}", "does not carry the batch")


def _matching_axis(source: tuple[int, ...], axis: int, target: tuple[int, ...], exported: int) -> int | None:
    """The axis of a reshaped tensor that begins with the elements of ``axis``.

    What lies before it has equal size.
    """
    outside = math.prod(source[:axis])
    for place in range(len(target)):
        if math.prod(target[:place]) == outside and target[place] % exported == 0 and target[place]:
            return place
    return None
