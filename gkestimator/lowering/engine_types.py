"""Element types of a graph that a compiler builds for one GPU, as TensorRT does: what lies in 8 bits, and what in half.

A dtype word is a permission there. Under ``fp16`` every float32 tensor between two operators is in half precision;
under ``int8`` (``fp8``) convolutions and linear layers with constant weights read 8 bits, as a calibrator or a tool
that quantises the file makes them, and a tensor lies in 8 bits where who writes it can write them and all who read it
read them. Graph inputs and outputs keep the types of the file: the engine converts them
(:mod:`gkestimator.lowering.reformats`).

A file that holds QuantizeLinear and DequantizeLinear says itself what is in 8 bits, under any word
(:mod:`gkestimator.lowering.quantised_files`): a product reads 8 bits where a DequantizeLinear stood before it, and a
tensor that nothing but QuantizeLinear reads is written in 8 bits, with the sum and the activation that its writer
fuses; one that is read in floating point as well stays in it, and is quantised by a kernel of its own for those who
want 8 bits. Compared with the layers of ten published engines by ``python -m benchmarks.tensorrt_reformats``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from gkestimator.core.dtypes import DType, Precision
from gkestimator.core.graph import Operator, OperatorGraph, Tensor, Value
from gkestimator.lowering.quantised_files import Quantised, Read
from gkestimator.operators.builders import tensors_of
from gkestimator.operators.records import traits_of
from gkestimator.operators.registry import LoweringOptions, half_type

TypeOf: TypeAlias = "Callable[[int, Tensor], DType]"
NARROW_TYPES = {"int8": DType.INT8, "fp8": DType.FLOAT8E4M3FN}
"""What a float model is brought to, by the dtype word that allows it."""
BYTES = frozenset({Precision.INT8, Precision.FP8})


def permitted(quantised: Quantised, options: LoweringOptions) -> LoweringOptions:
    """Return ``options`` for the kernels of a graph: what the file itself has quantised stays so, and no kernel of it
    may take a wider precision."""
    if not quantised.reads:
        return options
    permits = tuple([precision for precision in options.permits if precision not in BYTES])
    return replace(options, permits=permits)


def typed_graph(quantised: Quantised, options: LoweringOptions) -> OperatorGraph:
    """Return the graph in the types that ``options`` permit."""
    narrow = None
    if not quantised.reads:
        narrow = NARROW_TYPES.get(options.dtype)
    planner = _Planner(quantised.graph, options, quantised.reads, narrow)
    typed = planner.typed()
    if narrow is None or not any(planner.products):
        return typed
    remark = (
        f"{options.dtype} of a float model: as in an engine that a calibrator or a tool has quantised, whose accuracy "
        f"is yours to check"
    )
    return replace(typed, warnings=(*typed.warnings, remark))


class _Planner:
    """Decide which tensors lie in 8 bits, and rewrite the types of a graph.

    ``reads`` are the inputs that a file reads quantised; without any, ``narrow`` is what a float model is brought to
    (None: nothing is).
    """

    def __init__(
        self,
        graph: OperatorGraph,
        options: LoweringOptions,
        reads: Mapping[Read, DType],
        narrow: DType | None,
    ) -> None:
        self._graph = graph
        self._reads = reads
        self._narrow = narrow
        self._half = DType.FLOAT
        if options.half is not None:
            self._half = half_type(options)
        self._kinds = [traits_of(op.key).few_bits for op in graph.operators]
        self._readers: dict[str, list[Read]] = {}
        for index, op in enumerate(graph.operators):
            for place, value in enumerate(op.inputs):
                if value is not None:
                    self._readers.setdefault(value.name, []).append((index, place))
        self._producers: dict[str, int] = {}
        for index, op in enumerate(graph.operators):
            for value in op.outputs:
                if value is not None:
                    self._producers[value.name] = index
        self._outputs = frozenset(value.name for value in graph.outputs)
        self.products = [self._product_type(index) for index in range(len(graph.operators))]
        """What each operator multiplies in 8 bits, None where it does not."""
        self._sums = self._sums_bytes()
        self._stored: dict[str, DType] = {}  # tensors in 8 bits
        self._fused: list[DType | None] = [None] * len(self._kinds)
        # Tensors that keep the float32 of the graph's inputs, and of its outputs.
        self._from_inputs: set[str] = set()
        self._to_outputs: set[str] = set()

    def typed(self) -> OperatorGraph:
        """Return the graph with its element types."""
        if self._reads or any(self.products):
            refused: set[int] = set()
            more = {-1}
            while more:
                self._store(refused)
                more = self._without_narrow_source(refused)
                refused |= more
            self._fused = self._fused_types()
        self._keep_wide()
        count = len(self._graph.operators)
        operators = tuple([self._retyped(index) for index in range(count)])
        weights = self._weights(operators)
        return replace(self._graph, operators=operators, weights=weights)

    def _product_type(self, index: int) -> DType | None:
        op = self._graph.operators[index]
        if self._kinds[index] != "product" or len(op.inputs) < 2:
            return None
        left, right = op.inputs[:2]
        if not isinstance(left, Tensor) or not isinstance(right, Tensor):
            return None
        if not self._reads:
            constant = right.is_weight and not left.is_weight
            floating = left.dtype.is_floating and right.dtype.is_floating
            if constant and floating:
                return self._narrow
            return None
        # Binding folds what quantises a weight, whose values it need not have: one beside a quantised activation is.
        if right.is_weight or (index, 1) in self._reads:
            return self._reads.get((index, 0))
        return None

    def _in_bytes(self, weight: Tensor) -> bool:
        """Return whether the file stores ``weight`` in 8 bits: binding folds its DequantizeLinear away."""
        return weight.is_weight and self._graph.weights.get(weight.storage) == weight.elements

    def _store(self, refused: set[int]) -> None:
        """Find the tensors that lie in 8 bits: who writes them can write so, and all who read them read so."""
        self._stored = {}
        for index in range(len(self._graph.operators) - 1, -1, -1):
            for value in tensors_of(self._graph.operators[index].outputs):
                if value.dtype.bits == 8 and value.dtype is not DType.BOOL:
                    self._stored[value.name] = value.dtype  # moved as it is quantised
                    continue
                inside = value.dtype.is_floating and value.name not in self._outputs
                if not inside or not self._writes(index, refused):
                    continue
                dtypes = []
                for read in self._readers.get(value.name, ()):
                    dtypes.append(self._wanted(read, refused))
                if dtypes and dtypes[0] is not None and None not in dtypes:
                    self._stored[value.name] = dtypes[0]

    def _writes(self, index: int, refused: set[int]) -> bool:
        """Return whether an operator can write 8 bits."""
        kind = self._kinds[index]
        if kind == "product":
            return self.products[index] is not None
        if kind == "pools" and self._reads and (index, 0) not in self._reads:
            return False
        if kind == "pointwise" and not self._sums[index]:
            return False
        return bool(kind) and index not in refused

    def _sums_bytes(self) -> list[bool]:
        """Return for each operator whether the sum that a product calculates at it, or at a pointwise operator before
        it, may be written in 8 bits: a shortcut has the type of the result (the layers of published engines).
        """
        of_products = self._of_products()
        allowed = [True] * len(self._kinds)
        for index, kind in enumerate(self._kinds):
            if kind != "pointwise":
                continue
            sources = self._activations(index)
            names = [value.name for _, value in sources]
            adds = self._graph.operators[index].op_type in ("Add", "Sum")
            if adds and len(sources) > 1 and not of_products.isdisjoint(names):
                in_floats = [place for place, _ in sources if (index, place) not in self._reads]
                allowed[index] = not self._reads or len(in_floats) <= 1
            elif len(names) == 1 and len(self._readers[names[0]]) == 1:
                producer = self._producers.get(names[0])
                allowed[index] = producer is None or allowed[producer]
        return allowed

    def _of_products(self) -> set[str]:
        """Return the names of the tensors that a product makes, with pointwise operators of one operand behind it at
        most, and that one operator reads.
        """
        names: set[str] = set()
        for index, op in enumerate(self._graph.operators):
            made = self.products[index] is not None
            if self._kinds[index] == "pointwise":
                sources = self._activations(index)
                made = len(sources) == 1 and sources[0][1].name in names
            for value in tensors_of(op.outputs):
                if made and len(self._readers.get(value.name, ())) == 1:
                    names.add(value.name)
        return names

    def _activations(self, index: int) -> list[tuple[int, Tensor]]:
        """Return the operands of an operator that are no constants, with their places."""
        operands = []
        for place, value in enumerate(self._graph.operators[index].inputs):
            if isinstance(value, Tensor) and not value.is_weight and value.value is None:
                operands.append((place, value))
        return operands

    def _wanted(self, read: Read, refused: set[int]) -> DType | None:
        """Return the type of 8 bits that a reader reads an operand in where it lies so; None: none."""
        index, place = read
        if self._reads:
            if read in self._reads:
                return self._reads[read]
            if self._kinds[index] != "moves":
                return None
        elif self._kinds[index] == "product" and place == 0:
            return self.products[index]
        if self._kinds[index] in ("moves", "pools", "pointwise") and index not in refused:
            return self._result_type(index)
        return None

    def _result_type(self, index: int) -> DType | None:
        """Return the type of 8 bits that all results of an operator lie in, None where one does not."""
        results = tensors_of(self._graph.operators[index].outputs)
        dtypes = [self._stored.get(value.name) for value in results]
        if dtypes and None not in dtypes:
            return dtypes[0]
        return None

    def _fused_types(self) -> list[DType | None]:
        """Return for each operator :meth:`_result_type`, or that of the pointwise operator that alone reads the result:
        they are one kernel.
        """
        types: list[DType | None] = [None] * len(self._kinds)
        for index in range(len(self._kinds) - 1, -1, -1):
            types[index] = self._result_type(index)
            values = tensors_of(self._graph.operators[index].outputs)
            if types[index] is not None or self._kinds[index] != "pointwise" or len(values) != 1:
                continue
            name = values[0].name
            readers = self._readers.get(name, [])
            if len(readers) != 1 or name in self._outputs:
                continue
            reader, _ = readers[0]
            if self._kinds[reader] == "pointwise":
                types[index] = types[reader]
        return types

    def _without_narrow_source(self, refused: set[int]) -> set[int]:
        """Return the moves and pools that would write 8 bits and have a source that is not in them."""
        more = set()
        for index, op in enumerate(self._graph.operators):
            if self._kinds[index] not in ("moves", "pools") or index in refused:
                continue
            if self._result_type(index) is None:
                continue
            sources = [
                (index, place) in self._reads or value.name in self._stored
                for place, value in self._activations(index)
                if value.dtype.is_floating
            ]
            if not all(sources):
                more.add(index)
                for value in tensors_of(op.outputs):  # so that what moves it further sees it
                    self._stored.pop(value.name, None)
        return more

    def _keep_wide(self) -> None:
        """Find the tensors that keep float32: what is moved from the graph's inputs and to its outputs."""
        if self._half is DType.FLOAT:
            return
        for value in tensors_of(self._graph.inputs):
            if value.dtype is DType.FLOAT:
                self._from_inputs.add(value.name)
        for index, op in enumerate(self._graph.operators):
            floats = [v.name for v in tensors_of(op.inputs) if v.dtype is DType.FLOAT]
            if self._kinds[index] == "moves" and floats and self._from_inputs.issuperset(floats):
                self._from_inputs.update([value.name for value in tensors_of(op.outputs)])
        # Towards the outputs only what a product of 8 bits writes: it has float32 in its registers.
        for index, op in enumerate(self._graph.operators):
            if self.products[index] is None:
                continue
            chain = self._chain_to_output(tensors_of(op.outputs[:1]))
            self._to_outputs.update(chain)

    def _chain_to_output(self, values: Sequence[Tensor]) -> list[str]:
        """Return the names of a result and of what moves it to an output of the graph; nothing where it goes elsewhere
        as well."""
        names: list[str] = []
        while len(values) == 1 and values[0].dtype is DType.FLOAT:
            name = values[0].name
            names.append(name)
            if name in self._outputs:
                return names
            readers = self._readers.get(name, [])
            if len(readers) != 1:
                break
            reader, _ = readers[0]
            if self._kinds[reader] not in ("moves", "pointwise"):
                break
            if len(self._activations(reader)) > 1:
                break  # a shortcut has the type of the result
            values = tensors_of(self._graph.operators[reader].outputs)
        return []

    def _retyped(self, index: int) -> Operator:
        op = self._graph.operators[index]
        inputs = self._typed(op.inputs, lambda place, value: self._read_type(index, place, value))
        outputs = self._typed(op.outputs, lambda _, value: self._written_type(value))
        changed = any(self._differs(*pair) for pair in zip(op.inputs, inputs, strict=True))
        changed |= any(self._differs(*pair) for pair in zip(op.outputs, outputs, strict=True))
        signature = op.signature
        if changed:
            signature = None  # equal operators may differ now in what they read
        return replace(op, inputs=inputs, outputs=outputs, signature=signature)

    def _typed(self, values: Sequence[Value | None], type_of: TypeOf) -> tuple[Value | None, ...]:
        """Return ``values`` in the types that ``type_of`` says of a tensor, by its place; sequences in usual ones."""
        typed: list[Value | None] = []
        for place, value in enumerate(values):
            if isinstance(value, Tensor):
                value = _as(value, type_of(place, value))
            elif value is not None:
                elements = tuple([_as(t, self._uniform(t.dtype)) for t in value.elements_])
                value = replace(value, elements_=elements)
            typed.append(value)
        return tuple(typed)

    def _differs(self, before: Value | None, after: Value | None) -> bool:
        """Return whether a tensor became another type than the usual one."""
        if not isinstance(before, Tensor) or not isinstance(after, Tensor):
            return False
        return after.dtype is not self._uniform(before.dtype)

    def _uniform(self, dtype: DType) -> DType:
        """Return what a tensor is in that nothing special is said of."""
        if dtype is DType.FLOAT:
            return self._half
        return dtype

    def _read_type(self, index: int, place: int, value: Tensor) -> DType:
        quantised = (index, place) in self._reads
        if not (value.dtype.is_floating or quantised):
            return value.dtype
        narrow = self.products[index]
        if narrow is not None and place < 2:
            return narrow
        if value.is_weight or value.value is not None:
            return self._uniform(value.dtype)
        stored = self._stored.get(value.name)
        if stored is None and not quantised:
            return self._wide_type(index, value)
        result = self._fused[index]
        if result is not None and self._kinds[index]:
            return stored or result
        if stored is not None and self._kinds[index] == "pointwise" and len(self._activations(index)) == 1:
            return stored
        return self._half  # somebody dequantises it first, or nobody quantises it

    def _wide_type(self, index: int, value: Tensor) -> DType:
        """Return the type in which an operator reads a tensor that does not lie in 8 bits."""
        moved = value.name in self._from_inputs and self._kinds[index] == "moves"
        if moved or value.name in self._to_outputs:
            return value.dtype
        return self._uniform(value.dtype)

    def _written_type(self, value: Tensor) -> DType:
        if value.name in self._stored:
            return self._stored[value.name]
        if value.name in self._from_inputs or value.name in self._to_outputs:
            return value.dtype
        return self._uniform(value.dtype)

    def _weights(self, operators: Sequence[Operator]) -> dict[str, int]:
        """Return the bytes of the weights as they are stored now: the widest that somebody reads."""
        weights = dict(self._graph.weights)
        ratios: dict[str, float] = {}
        for before, after in zip(self._graph.operators, operators, strict=True):
            for old, new in zip(tensors_of(before.inputs), tensors_of(after.inputs), strict=True):
                if not old.is_weight or old.storage not in weights:
                    continue
                bits = old.dtype.bits
                if old.dtype is DType.FLOAT and self._in_bytes(old):
                    bits = 8
                ratio = new.dtype.bits / bits
                ratios[old.storage] = max(ratios.get(old.storage, 0.0), ratio)
        for storage, ratio in ratios.items():
            weights[storage] = round(weights[storage] * ratio)
        return weights


def _as(tensor: Tensor, dtype: DType) -> Tensor:
    if tensor.dtype is dtype:
        return tensor
    return replace(tensor, dtype=dtype)
