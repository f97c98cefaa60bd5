"""Walk a program with concrete input types and list the operators that run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from gkestimator.core.errors import LimitError, ModelError, ShapeError
from gkestimator.core.graph import Operator, Tensor, Value
from gkestimator.core.graph import Sequence as TensorSequence
from gkestimator.core.limits import exceeded
from gkestimator.onnx_io.binding.facts import Fact, Facts
from gkestimator.onnx_io.binding.inference import MALFORMED, Inference, Inferred
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

Control: TypeAlias = "Mapping[tuple[str, str], Callable[[Binder, Node], None]]"
"""How control flow operators are expanded, by ``(domain, op_type)``."""


def _input_facts(facts: Facts, node: Node) -> list[Fact | None]:
    return [facts[i] if i >= 0 else None for i in node.inputs]


def _viewed(node: Node) -> int:
    """Return the slot whose memory the outputs share; below 0 where they have their own."""
    if node.kind == VIEW and node.inputs:
        return node.inputs[0]
    return -1


class Statics:
    """Hold, per slot, what is known before any input is bound.

    ``kinds``: activation, folded value, or weight.
    """

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
            if not self._is_static(node):
                self.dynamic.append(node)
            else:
                self._fold(node, inference, declared)
        # Without subgraphs a slot is one tensor, so operators can be compared by what is known of their slots.
        self.plain = all(node.kind != CONTROL_FLOW for node in program.main.nodes)

    def _is_static(self, node: Node) -> bool:
        if node.blocks or node.kind in (RANDOM, CONTROL_FLOW):
            return False
        kinds = self.kinds
        return all([i < 0 or kinds[i] == WEIGHT for i in node.inputs])  # noqa: C419 (a list is faster here)

    def _fold(self, node: Node, inference: Inference, declared: Any) -> None:
        facts = _input_facts(self.facts, node)
        ids = (node.signature, *[f.id if f is not None else 0 for f in facts])
        outputs, _ = inference.memo.get(ids) or inference.infer(node, facts, declared, ids)
        viewed = _viewed(node)
        for slot, fact in zip(node.outputs, outputs, strict=False):
            if slot < 0:
                continue
            self.facts[slot] = fact
            self.kinds[slot] = WEIGHT
            if viewed >= 0:
                self.storage[slot] = self.storage[viewed]
        self.folded += 1


class Binder:
    """Bind a program once: the state of the walk and the operators listed so far."""

    def __init__(
        self,
        program: Program,
        statics: Statics,
        inference: Inference,
        tensors: dict[tuple[Any, ...], Value],
        dims: Mapping[str, int],
        trip_count: int | None,
        control: Control,
        rebatcher: Rebatcher | Reference | None = None,
    ) -> None:
        self.program = program
        self.statics = statics
        self.inference = inference
        self.intern = inference.pool.intern
        self.cache = tensors
        self.dims = dims
        self.trip_count = trip_count
        self.control = control
        self.rebatcher = rebatcher
        self.facts = list(statics.facts)
        self.kinds = bytearray(statics.kinds)
        self.storage = list(statics.storage)
        self.values: list[Value | None] = [None] * len(program.names)
        self.operators: list[Operator] = []
        self.nodes: list[Node] = []
        # ordered, so that a try which is given up takes its own back
        self.keep: dict[int, None] = {}  # ids of values that must be computed though no operator reads them
        self.folded = statics.folded
        self.warnings: dict[str, None] = {}
        self.awaited: set[str] = set()  # control flow whose way depends on data
        self.signatures: dict[tuple[int, bytes], int] = {}
        self._inferred: list[object] = []  # what signatures name by id
        self.suffix = ""
        self.repeat = 1
        self.steps = 0
        self.bound, self.most = limits.expanded(program.nodes, "operators", "expanded_nodes")
        self.step_bound, self.most_steps = limits.expanded(program.nodes, "steps", "expanded_steps")
        self.edges = limits.BoundedCount("edges")

    def declared(self, slot: int) -> DeclaredType | None:
        """Return the declared type of a slot, bound names replaced by their numbers."""
        said = self.program.declared[self.program.names[slot]]
        if said.shape is None:
            if said.dtype is None:
                return None
            return said
        bound = [self.dims.get(d, d) if isinstance(d, str) else d for d in said.shape]
        return said._replace(shape=tuple(bound))

    def warn_of_data(self, node: Node, text: str) -> None:
        """Add a warning that data decide the way that ``node`` takes."""
        self.awaited.add(node.op_type)
        self.warn(f"{node.name}: {text}")

    def warn(self, text: str) -> None:
        """Add a warning once."""
        self.warnings[text] = None

    def set_input(self, slot: int, fact: Fact) -> None:
        """Give an input its type, or, when the caller knows its value, make it a constant."""
        if fact.value is None:
            kind = ACTIVATION
        else:
            kind = WEIGHT
        self.set_slot(slot, fact, kind=kind)
        self.value(slot)

    def set_slot(self, slot: int, fact: Fact, *, kind: int = ACTIVATION, value: Value | None = None) -> None:
        """Let ``slot`` be ``fact``; ``value`` is the tensor behind it where that exists already."""
        if slot < 0:
            return
        self.facts[slot] = fact
        self.kinds[slot] = kind
        self.values[slot] = value

    def pass_on(self, source: int, target: int) -> None:
        """Let slot ``target`` be the value of slot ``source``: same memory, nothing copied."""
        if target < 0:
            return
        if source < 0:
            raise ShapeError("a subgraph passes on an input that was left out")
        value = self.value(source)
        self.facts[target] = self.facts[source]
        self.kinds[target] = self.kinds[source]
        self.values[target] = value

    def input_fact(self, node: Node, position: int) -> Fact | None:
        """Return what is known of an input of ``node``, None where it is left out."""
        if position >= len(node.inputs) or node.inputs[position] < 0:
            return None
        return self.facts[node.inputs[position]]

    def required(self, node: Node, position: int) -> Fact:
        """Return what is known of an input of ``node``. Raises ShapeError where it is left out."""
        fact = self.input_fact(node, position)
        if fact is None:
            raise ShapeError(f"{node}: input {position} is missing")
        return fact

    def output_fact(self, slot: int) -> Fact:
        """Return what is known of a subgraph's output. Raises ShapeError where nothing wrote it."""
        fact = self.facts[slot]
        if fact is None:
            raise ShapeError(f"tensor {self.program.names[slot]!r} is read before it is written")
        return fact

    def value(self, slot: int) -> Value:
        """Return the Tensor or Sequence in a slot as operators see it."""
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
        weight = self.kinds[slot] == WEIGHT
        type_ = fact.type
        if not isinstance(type_, SequenceType):
            if weight:
                storage = self.storage[slot]
            else:
                storage = name
            return _tensor(name, storage, type_, weight, fact.value)
        self.step(len(type_.elements))
        elements = []
        for i, element in enumerate(type_.elements):
            label = f"{name}[{i}]"
            elements.append(_tensor(label, label, element, weight))
        return TensorSequence(name=name, elements_=tuple(elements), bounded=type_.bounded)

    def step(self, count: int) -> None:
        """Count work done; LimitError when unrolling makes it too much."""
        self.steps += count
        if self.steps > self.most_steps:
            raise LimitError(exceeded(self.step_bound, self.steps))

    def run(self, nodes: Sequence[Node]) -> None:
        """Infer and emit ``nodes`` in order."""
        self.step(len(nodes))
        self.edges.add(sum([len(node.inputs) for node in nodes]))
        facts = self.facts
        memo = self.inference.memo
        for node in nodes:
            if node.kind == CONTROL_FLOW:
                self._expand(node)
                continue
            key = (node.signature, *[facts[i].id if i >= 0 else 0 for i in node.inputs])  # type: ignore[union-attr]
            inferred = memo.get(key)
            if self.rebatcher is not None:
                inferred = self._rebatched(node, self.rebatcher)
            elif inferred is None:
                inferred = self.inference.infer(node, _input_facts(facts, node), self.declared, key)
            outputs, known = inferred
            for slot, fact in zip(node.outputs, outputs, strict=False):
                if slot >= 0:
                    facts[slot] = fact
            if known and node.kind != RANDOM:
                self._fold(node)
            else:
                self.emit(node, inferred)

    def _expand(self, node: Node) -> None:
        try:
            self.control[node.domain, node.op_type](self, node)
        except MALFORMED as e:
            raise ShapeError(f"{node}: its inputs or attributes do not fit the operator ({e})") from e

    def _rebatched(self, node: Node, rebatcher: Rebatcher | Reference) -> Inferred:
        inputs = rebatcher.adjust(node, _input_facts(self.facts, node), self.suffix)
        inferred = self.inference.infer(node, inputs, self.declared)
        rebatcher.check(node, inputs, inferred[0], self.suffix)
        return inferred

    def _fold(self, node: Node) -> None:
        kinds = self.kinds
        weight = all([i < 0 or kinds[i] == WEIGHT for i in node.inputs])  # noqa: C419 (a list is faster here)
        if weight:
            viewed = _viewed(node)
        else:
            viewed = -1
        for slot in node.outputs:
            if slot >= 0:
                if weight:
                    kinds[slot] = WEIGHT
                else:
                    kinds[slot] = FOLDED
                self.values[slot] = None
                if viewed >= 0:
                    self.storage[slot] = self.storage[viewed]
        self.folded += 1

    def emit(self, node: Node, inferred: object) -> None:
        """List ``node`` as an operator that runs; or not, when only weights go in.

        ``inferred`` is what :meth:`Inference.infer` said: one object for equal nodes on equal inputs.
        """
        kinds = self.kinds
        values = self.values
        flags = bytes([kinds[i] if i >= 0 else WEIGHT for i in node.inputs])
        if node.kind != RANDOM and not flags.strip(_WEIGHT):
            # inside a subgraph; weight-only nodes of the main graph are folded when it is read
            self._fold(node)
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
        operator = Operator(
            name=node.name + self.suffix,
            domain=node.domain,
            op_type=node.op_type,
            version=node.version,
            attributes=node.attributes,
            inputs=tuple([(values[i] or value(i)) if i >= 0 else None for i in node.inputs]),
            outputs=tuple([value(i) if i >= 0 else None for i in node.outputs]),
            repeat=self.repeat,
            signature=signature,
        )
        self.append(node, operator)

    def append(self, node: Node, operator: Operator) -> None:
        """Add an operator that stands for ``node``."""
        if len(self.operators) >= self.most:
            raise LimitError(f"{node}: {exceeded(self.bound, self.most + 1)}")
        self.operators.append(operator)
        self.nodes.append(node)

    def live(self, outputs: Sequence[Value]) -> list[bool]:
        """Return which operators contribute to ``outputs`` or to a loop's next trip."""
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
        """Return the bytes of every weight storage that some operator reads on the GPU, each once."""
        sizes: dict[str, int] = {}
        known = self.statics.storage_bytes
        for operator in operators:
            host = traits_of(operator.key).host_inputs
            for index, value in enumerate(operator.inputs):
                if value is None or index in host:
                    continue
                for tensor in tensors_of(value):
                    if tensor.is_weight:
                        storage = tensor.storage
                        sizes[storage] = known.get(storage) or max(sizes.get(storage, 0), tensor.nbytes)
        return sizes


def tensors_of(value: Value) -> Sequence[Tensor]:
    """Return the tensor, or a sequence's tensors."""
    if isinstance(value, Tensor):
        return (value,)
    return value.elements_


def _tensor(name: str, storage: str, type_: TensorType, weight: bool, value: Any = None) -> Tensor:
    dtype, shape, bounded = type_
    return Tensor(
        name=name, dtype=dtype, shape=shape, storage=storage, is_weight=weight, bounded=bounded, value=value
    )


def _identities(value: Value) -> Iterator[int]:
    """Yield the ids of a value and of a sequence's elements: subgraphs read those one by one."""
    yield id(value)
    if not isinstance(value, Tensor):
        yield from map(id, value.elements_)
