"""Walk a program with concrete input types and list the operators that run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gkestimator.core.errors import LimitError, ModelError, ShapeError
from gkestimator.core.graph import Operator, Tensor, Value
from gkestimator.core.graph import Sequence as TensorSequence
from gkestimator.onnx_io.binding.control import CONTROL
from gkestimator.onnx_io.binding.facts import Fact
from gkestimator.onnx_io.binding.inference import MALFORMED, Inference
from gkestimator.onnx_io.binding.node_kinds import CONTROL_FLOW, RANDOM, VIEW
from gkestimator.onnx_io.binding.rebatch import Rebatcher, Reference
from gkestimator.onnx_io.reading import limits
from gkestimator.onnx_io.reading.program import Node, Program
from gkestimator.operators.records import traits_of
from gkestimator.operators.registry import DeclaredType, SequenceType, TensorType

# WEIGHT: depends on no input at all. FOLDED: a known value made from the inputs' shapes; it changes with the
# batch size, so it is no weight, though no operator writes it.
ACTIVATION = 0
FOLDED = 1
WEIGHT = 2
_WEIGHT = bytes([WEIGHT])


class Statics:
    """Per slot: what is known before any input is bound. ``kinds``: activation, folded value, or weight."""

    def __init__(self, program: Program, inference: Inference, declared: Any) -> None:
        slots = len(program.names)
        self.facts: list[Fact | None] = [None] * slots
        self.kinds = bytearray(slots)
        self.storage: list[str] = list(program.names)
        self.storage_bytes: dict[str, int] = {}
        self.folded = program.constant_nodes
        for slot, (type_, value) in program.constants.items():
            self.facts[slot] = inference.pool.intern(type_, value)
            self.kinds[slot] = WEIGHT
        self.dynamic: list[Node] = []
        for node in program.main.nodes:
            if not self._fold(node, inference, declared):
                self.dynamic.append(node)
        # Without subgraphs a slot is one tensor, so operators can be compared by what is known of their slots.
        self.plain = all(node.kind != CONTROL_FLOW for node in program.main.nodes)

    def _fold(self, node: Node, inference: Inference, declared: Any) -> bool:
        if node.blocks or node.kind in (RANDOM, CONTROL_FLOW):
            return False
        kinds = self.kinds
        for slot in node.inputs:
            if slot >= 0 and kinds[slot] != WEIGHT:
                return False
        facts = [self.facts[i] if i >= 0 else None for i in node.inputs]
        ids = (node.signature, *[f.id if f is not None else 0 for f in facts])
        outputs, _ = inference.memo.get(ids) or inference.infer(node, facts, declared, ids)
        view = node.kind == VIEW and bool(node.inputs) and node.inputs[0] >= 0
        for slot, fact in zip(node.outputs, outputs, strict=False):
            if slot >= 0:
                self.facts[slot] = fact
                kinds[slot] = WEIGHT
                if view:
                    self.storage[slot] = self.storage[node.inputs[0]]
        self.folded += 1
        return True


class Binder:
    """One binding: the state of the walk and the operators listed so far."""

    def __init__(
        self,
        program: Program,
        statics: Statics,
        inference: Inference,
        tensors: dict[tuple[Any, ...], Value],
        dims: Mapping[str, int],
        trip_count: int | None,
        rebatcher: Rebatcher | Reference | None = None,
    ) -> None:
        self.program = program
        self.statics = statics
        self.inference = inference
        self.cache = tensors
        self.dims = dims
        self.trip_count = trip_count
        self.rebatcher = rebatcher
        self.facts = list(statics.facts)
        self.kinds = bytearray(statics.kinds)
        self.storage = list(statics.storage)
        self.values: list[Value | None] = [None] * len(program.names)
        self.operators: list[Operator] = []
        self.nodes: list[Node] = []
        self.keep: set[int] = set()  # ids of values that must be computed though no operator reads them
        self.folded = statics.folded
        self.warnings: list[str] = []
        self.signatures: dict[tuple[int, bytes], int] = {}
        self._inferred: list[object] = []  # what signatures name by id
        self.suffix = ""
        self.repeat = 1
        self.steps = 0
        self.most = limits.expanded(program.nodes, limits.MAX_OPERATORS)
        self.most_steps = limits.expanded(program.nodes, limits.MAX_STEPS, limits.MAX_EXPANDED_STEPS)

    def declared(self, slot: int) -> DeclaredType | None:
        """The declared type of a slot, bound names replaced by their numbers."""
        said = self.program.declared[self.program.names[slot]]
        if said.shape is None:
            if said.dtype is not None:
                return said
            return None
        return said._replace(
            shape=tuple(self.dims.get(d, d) if isinstance(d, str) else d for d in said.shape)
        )

    def warn(self, text: str) -> None:
        """Add a warning once."""
        if text not in self.warnings:
            self.warnings.append(text)

    def set_input(self, slot: int, fact: Fact) -> None:
        """Give an input its type, or, when the caller knows its value, make it a constant."""
        self.facts[slot] = fact
        self.kinds[slot] = ACTIVATION if fact.value is None else WEIGHT
        self.values[slot] = None
        self.value(slot)

    def value(self, slot: int) -> Value:
        """The Tensor or Sequence in a slot as operators see it."""
        value = self.values[slot]
        if value is None:
            fact = self.facts[slot]
            if fact is None:
                raise ModelError(f"tensor {self.program.names[slot]!r} is read before it is written")
            kind = self.kinds[slot]
            if kind == ACTIVATION:  # another binding hardly ever has the same
                value = self._build(slot, fact)
            else:
                key = (slot, self.suffix, fact.id, kind)
                value = self.cache.get(key)
                if value is None:
                    value = self.cache[key] = self._build(slot, fact)
            self.values[slot] = value
        return value

    def _build(self, slot: int, fact: Fact) -> Value:
        name = self.program.names[slot] + self.suffix
        kind = self.kinds[slot]
        if isinstance(fact.type, SequenceType):
            self.step(len(fact.type.elements))
            elements = tuple(
                _tensor(f"{name}[{i}]", f"{name}[{i}]", t, kind == WEIGHT)
                for i, t in enumerate(fact.type.elements)
            )
            return TensorSequence(name=name, elements_=elements, bounded=fact.type.bounded)
        dtype, shape, bounded = fact.type
        weight = kind == WEIGHT
        storage = self.storage[slot] if weight else name
        return Tensor(
            name=name,
            dtype=dtype,
            shape=shape,
            storage=storage,
            is_weight=weight,
            bounded=bounded,
            value=fact.value,  # type: ignore[arg-type]  # of a tensor, so no tuple
        )

    def step(self, count: int) -> None:
        """Count work done; LimitError when unrolling makes it too much."""
        self.steps += count
        if self.steps > self.most_steps:
            raise LimitError(f"more than {self.most_steps} nodes once loops are unrolled")

    def run(self, nodes: Sequence[Node]) -> None:
        """Infer and emit ``nodes`` in order."""
        self.step(len(nodes))
        facts = self.facts
        memo = self.inference.memo
        infer = self.inference.infer
        for node in nodes:
            inputs = node.inputs
            if node.kind == CONTROL_FLOW:
                try:
                    CONTROL[node.domain, node.op_type](self, node)
                except MALFORMED as e:
                    raise ShapeError(f"{node}: its inputs or attributes do not fit the operator ({e})") from e
                continue
            key = (node.signature, *[facts[i].id if i >= 0 else 0 for i in inputs])  # type: ignore[union-attr]
            found = memo.get(key)
            if found is None or self.rebatcher is not None:
                given = [facts[i] if i >= 0 else None for i in inputs]
                if self.rebatcher is not None:
                    given = self.rebatcher.adjust(node, given, self.suffix)
                    found = infer(node, given, self.declared)
                    self.rebatcher.check(node, given, found[0], self.suffix)
                else:
                    found = infer(node, given, self.declared, key)
            outputs, known = found
            for slot, fact in zip(node.outputs, outputs, strict=False):
                if slot >= 0:
                    facts[slot] = fact
            if known and node.kind != RANDOM:
                self._fold(node)
            else:
                self.emit(node, found)

    def _fold(self, node: Node) -> None:
        kinds = self.kinds
        values = self.values
        weight = all([i < 0 or kinds[i] == WEIGHT for i in node.inputs])  # noqa: C419 (a list is faster here)
        view = weight and node.kind == VIEW and bool(node.inputs) and node.inputs[0] >= 0
        for slot in node.outputs:
            if slot >= 0:
                kinds[slot] = WEIGHT if weight else FOLDED
                values[slot] = None
                if view:
                    self.storage[slot] = self.storage[node.inputs[0]]
        self.folded += 1

    def emit(self, node: Node, inferred: object) -> None:
        """List ``node`` as an operator that runs; or not, when only weights go in.

        ``inferred`` is what :meth:`Inference.infer` said: one object for equal nodes on equal inputs.
        """
        kinds = self.kinds
        values = self.values
        flags = bytes([kinds[i] if i >= 0 else WEIGHT for i in node.inputs])
        if node.kind != RANDOM and not flags.strip(_WEIGHT):
            self._fold(
                node
            )  # inside a subgraph; weight-only nodes of the main graph are folded when it is read
            return
        for slot in node.outputs:
            if slot >= 0:
                kinds[slot] = ACTIVATION
                values[slot] = None
        value = self.value
        signature = None
        if self.statics.plain:
            same = (id(inferred), flags)
            signature = self.signatures.get(same)
            if signature is None:
                signature = self.signatures[same] = len(self.signatures)
                self._inferred.append(inferred)
        self.append(
            node,
            Operator(
                name=node.name + self.suffix,
                domain=node.domain,
                op_type=node.op_type,
                version=node.version,
                attributes=node.attributes,
                inputs=tuple([(values[i] or value(i)) if i >= 0 else None for i in node.inputs]),
                outputs=tuple([value(i) if i >= 0 else None for i in node.outputs]),
                repeat=self.repeat,
                signature=signature,
            ),
        )

    def append(self, node: Node, operator: Operator) -> None:
        """Add an operator that stands for ``node``."""
        if len(self.operators) >= self.most:
            raise LimitError(f"{node}: more than {self.most} operators once loops are unrolled")
        self.operators.append(operator)
        self.nodes.append(node)

    def live(self, outputs: Sequence[Value]) -> list[bool]:
        """Which operators contribute to ``outputs`` or to a loop's next trip."""
        needed = set(self.keep)
        for value in outputs:
            needed.update(_identities(value))
        alive = [False] * len(self.operators)
        for index in range(len(self.operators) - 1, -1, -1):
            operator = self.operators[index]
            if any(v is not None and not needed.isdisjoint(_identities(v)) for v in operator.outputs):
                alive[index] = True
                for read in operator.inputs:
                    if read is not None:
                        needed.update(_identities(read))
        return alive

    def weights(self, operators: Sequence[Operator]) -> dict[str, int]:
        """Bytes of every weight storage that some operator reads on the GPU, each once."""
        found: dict[str, int] = {}
        known = self.statics.storage_bytes
        for operator in operators:
            host = traits_of(operator.key).host_inputs
            for index, value in enumerate(operator.inputs):
                if value is None or index in host:
                    continue
                for tensor in (value,) if isinstance(value, Tensor) else value.elements_:
                    if tensor.is_weight:
                        storage = tensor.storage
                        found[storage] = known.get(storage) or max(found.get(storage, 0), tensor.nbytes)
        return found


def _tensor(name: str, storage: str, type_: TensorType, weight: bool, value: Any = None) -> Tensor:
    return Tensor(
        name=name,
        dtype=type_.dtype,
        shape=type_.shape,
        storage=storage,
        is_weight=weight,
        bounded=type_.bounded,
        value=value,
    )


def _identities(value: Value) -> list[int]:
    """Of a value, and of a sequence's elements: subgraphs read those one by one."""
    return [id(value)] if type(value) is Tensor else [id(value), *map(id, value.elements_)]  # type: ignore[union-attr]
