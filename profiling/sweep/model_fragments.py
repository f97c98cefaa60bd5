"""A whole bound model as one fragment: what the runtimes are given to measure its latency and memory.

The fragment must launch what the file launches: what operators make at every call may not become a constant that the
runtimes calculate beforehand, and what was exported for one batch has to fit another.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import onnx

from gkestimator.core.dtypes import DType
from gkestimator.core.fragments import MODEL_PREFIX, Fragment, FragmentTensor
from gkestimator.core.graph import Attribute, Operator, OperatorGraph, Tensor, Value
from gkestimator.core.graph import Sequence as TensorSequence
from gkestimator.operators.records import traits_of
from gkestimator.profiling.sweep.extraction import (
    NotAFragmentError,
    constant_of,
    entering,
    fragment_of,
    index_bound,
    tensor_of,
)
from gkestimator.profiling.type_names import CountByName, Ints, Names, Texts

_MOST_VALUES = 4096  # a fragment's own limit; tables of relative positions have 2,401
_MOST_FLOATS = 64
"""Ones and zeros among the weights say which pattern operators are: the scale of the normalisation that a GroupNorm was
exported as. Longer weights are drawn at random."""
_FEW = 8
"""Elements of what is made from shapes and stays a constant all the same: rules want to know exponents and axes."""
_LONGEST_PATTERN = 100
_MASK_BELOW = 2
"""Whole numbers that look nothing up are 0 or 1: they are attention masks, and their sums stay below the sequence."""
_BYTES_BELOW = 128  # integers of eight bits are quantised numbers, not masks
_SPLIT_TAKES_SIZES = 13  # the opset from which they are an input
_ALL = (-1,)
_HAND_ON = (
    "Cast CastLike Clip Compress DepthToSpace Dropout Expand Flatten Gather GatherElements GatherND Identity Pad "
    "ReduceMax ReduceMin Reshape ReverseSequence Slice SpaceToDepth Split Squeeze Tile TopK Transpose Trilu "
    "Unique Unsqueeze"
)
_CARRIES: Mapping[str, Ints] = MappingProxyType(
    dict.fromkeys(_HAND_ON.split(), (0,))
    | dict.fromkeys(("Concat", "Max", "Min"), _ALL)
    | {"Where": (1, 2), "ScatterElements": (0, 2), "ScatterND": (0, 2)}
)
"""Operators whose results hold no numbers but those of their inputs at these positions."""


def model_patterns(names: Iterable[str]) -> Names:
    """Return what the fragments of models of these names are called: as far as a pattern may hold the name, all
    different."""
    patterns: list[str] = []
    for name in names:
        own = MODEL_PREFIX + re.sub(r"[^A-Za-z0-9_.:/-]", "_", name)
        pattern = own[:_LONGEST_PATTERN]
        number = 1
        while pattern in patterns:
            number += 1
            end = f"-{number}"
            pattern = own[: _LONGEST_PATTERN - len(end)] + end
        patterns.append(pattern)
    return tuple(patterns)


def model_fragment(graph: OperatorGraph, pattern: str) -> Fragment:
    """All of ``graph`` as one fragment called ``pattern`` (``model:NAME``); its outputs are the graph's.

    Weights are filled at random, but whole numbers up to 4,096 of them keep their values. What looks something up
    stays below the smallest table that it reaches. Positions and the like, which the file makes from the shapes of its
    inputs at every call, are inputs with values where operators work on them, so that those are not calculated
    beforehand. Sequences that only split a tensor become Split. Raises NotAFragmentError (loops that repeat, other
    sequences, tensors as attributes) and ModelError (beyond the bounds of a fragment).
    """
    if any(op.repeat != 1 for op in graph.operators):
        raise NotAFragmentError("loops that repeat")
    operators, renamed = _without_sequences(graph.operators)
    operators = _one_opset(_sharing(operators, graph.weights))
    operators = [_with_own_target(op) for op in operators]
    bounds = index_bounds(operators)
    inputs = {value.name for value in graph.inputs}
    changing = _changing(operators, inputs)

    def enters(op: Operator, position: int, tensor: Tensor, name: str) -> FragmentTensor:
        fixed = tensor.name not in changing
        floats = _MOST_FLOATS if fixed else _MOST_VALUES
        constant = constant_of(op, position, tensor, name, most=_MOST_VALUES, floats=floats)
        if constant is not None:
            return constant if fixed else replace(constant, role="input")
        drawn = entering(op, position, tensor, name)
        role = "weight" if fixed and tensor.name not in inputs else "input"
        if not tensor.dtype.is_integer:
            return replace(drawn, role=role)
        usual = _BYTES_BELOW if tensor.dtype.bits <= 8 else _MASK_BELOW
        below = bounds.get(tensor.name) or usual
        return replace(drawn, role=role, fill="index", below=below, values=None)

    # A graph may name one value twice among its outputs, a fragment may not; the order stays.
    results: dict[str, None] = {}
    for value in graph.outputs:
        name = tensor_of(value).name
        results[renamed.get(name, name)] = None
    fragment = fragment_of(operators, pattern, results=results, enters=enters)
    return Fragment.from_document(fragment.document(), where=graph.name)


def _tensors_read(op: Operator) -> Iterator[tuple[int, Tensor]]:
    """Yield the tensors that ``op`` reads, with their positions."""
    for position, value in enumerate(op.inputs):
        if isinstance(value, Tensor):
            yield position, value


def index_bounds(operators: Iterable[Operator]) -> dict[str, int]:
    """Return, by name of a tensor of whole numbers, the length of the smallest table that its numbers look up, through
    operators that hand them on unchanged."""
    bounds: dict[str, int] = {}

    def lower(tensor: Tensor, bound: int) -> None:
        bounds[tensor.name] = min(bound, bounds.get(tensor.name, bound))

    # From results to inputs: a bound is known before what hands the numbers on is reached.
    for op in reversed(tuple(operators)):
        for position, tensor in _tensors_read(op):
            below = index_bound(op, position) if tensor.dtype.is_integer else None
            if below is not None:
                lower(tensor, below)
        if op.domain:
            continue
        names = [value.name for value in op.outputs if value is not None]
        wanted = [bounds[name] for name in names if name in bounds]
        if not wanted:
            continue
        carried = _CARRIES.get(op.op_type, ())
        for position, tensor in _tensors_read(op):
            if carried == _ALL or position in carried:
                lower(tensor, min(wanted))
    return bounds


def _changing(operators: Sequence[Operator], inputs: Collection[str]) -> frozenset[str]:
    """Return the names of tensors that go in as inputs, though callers do not give them.

    These are what the file makes from shapes at every call (positions up to the sequence's length), and where an
    operator has otherwise nothing but weights and such small constants, its largest. As weights they would have it
    calculated before the first call, which the file's own operator is not.
    """
    on_host = _read_on_host(operators)
    opened = _made_from_shapes(operators) - set(inputs) - on_host
    alive = {*inputs, *opened}
    settled = set[str]()
    for op in operators:
        read = [tensor.name for _, tensor in _tensors_read(op)]
        changes = not read or not alive.isdisjoint(read)
        if not changes:
            largest = _largest_free(op, on_host | settled)
            if largest is not None:
                opened.add(largest)
                alive.add(largest)
                changes = True
        results = alive if changes else settled
        results.update(value.name for value in op.outputs if value is not None)
    return frozenset(opened)


def _read_on_host(operators: Iterable[Operator]) -> set[str]:
    """Return the names of values that runtimes read on the host: shapes, axes, bounds."""
    names = set()
    for op in operators:
        host_inputs = traits_of(op.key).host_inputs
        for position, value in enumerate(op.inputs):
            if value is not None and position in host_inputs:
                names.add(value.name)
    return names


def _made_from_shapes(operators: Iterable[Operator]) -> set[str]:
    """Return the names of larger tensors that are no weights and that no operator writes."""
    read: set[str] = set()
    written: set[str] = set()
    for op in operators:
        written.update(value.name for value in op.outputs if value is not None)
        for _, tensor in _tensors_read(op):
            if not tensor.is_weight and tensor.elements > _FEW:
                read.add(tensor.name)
    return read - written


def _largest_free(op: Operator, taken: Collection[str]) -> str | None:
    """Return the name of the largest tensor that ``op`` reads on the device, no weight if there is another."""
    host_inputs = traits_of(op.key).host_inputs
    free = [
        tensor
        for position, tensor in _tensors_read(op)
        if position not in host_inputs and tensor.name not in taken
    ]
    if not free:
        return None
    return min(free, key=lambda tensor: (tensor.is_weight, -tensor.elements)).name


def _without_sequences(operators: Iterable[Operator]) -> tuple[list[Operator], Texts]:
    """Return SplitToSequence whose pieces are taken out by SequenceAt as the Split that it is, and what the pieces are
    called now. Raises NotAFragmentError for every other sequence."""
    pieces: dict[str, tuple[Tensor, ...]] = {}
    renamed: dict[str, Tensor] = {}
    plain = []
    for op in operators:
        inputs = tuple(renamed.get(v.name, v) if v is not None else None for v in op.inputs)
        source = inputs[0].name if inputs and inputs[0] is not None else ""
        made = op.outputs[0] if op.outputs else None
        if op.key == ("", "SplitToSequence"):
            sequence, split = _split(op, inputs)
            pieces[sequence.name] = sequence.elements_
            plain.append(split)
        elif op.key == ("", "SequenceAt") and source in pieces:
            renamed[tensor_of(made).name] = _piece(pieces[source], inputs[1])
        elif any(isinstance(v, TensorSequence) for v in (*inputs, *op.outputs)):
            raise NotAFragmentError("sequences")
        else:
            plain.append(replace(op, inputs=inputs, signature=None))
    return plain, {name: tensor.name for name, tensor in renamed.items()}


def _piece(pieces: tuple[Tensor, ...], place: Value | None) -> Tensor:
    """Return the piece that a SequenceAt takes. Raises NotAFragmentError where the file does not say which."""
    value = tensor_of(place).value
    if value is None:
        raise NotAFragmentError("sequences")
    number = int(value.reshape(-1)[0])
    if not -len(pieces) <= number < len(pieces):
        raise NotAFragmentError("sequences")
    return pieces[number]


def _split(op: Operator, inputs: tuple[Value | None, ...]) -> tuple[TensorSequence, Operator]:
    """Return the sequence that a SplitToSequence makes, and the Split that makes its pieces."""
    made = op.outputs[0]
    source = tensor_of(inputs[0])
    if not isinstance(made, TensorSequence) or made.bounded:
        raise NotAFragmentError("sequences")
    axis = op.attributes.get("axis", 0)
    rank = len(source.shape)
    if not isinstance(axis, int) or any(len(t.shape) != rank for t in made.elements_):
        raise NotAFragmentError("sequences of pieces without the axis they were split along")
    sizes = [t.shape[axis] for t in made.elements_]
    attributes: dict[str, Attribute] = {"axis": axis}
    reads = [source]
    if op.version < _SPLIT_TAKES_SIZES:
        attributes["split"] = tuple(sizes)
    else:
        reads.append(_known_sizes(f"{made.name}#sizes", sizes))
    split = replace(
        op,
        op_type="Split",
        attributes=attributes,
        inputs=tuple(reads),
        outputs=made.elements_,
        signature=None,
    )
    return made, split


def _known_sizes(name: str, sizes: Sequence[int]) -> Tensor:
    value = np.array(sizes, dtype=np.int64)
    return Tensor(name=name, dtype=DType.INT64, shape=value.shape, storage=name, is_weight=True, value=value)


def _with_own_target(op: Operator) -> Operator:
    """Return ``op`` with the shape that it gives here as its target, where the file's is another: one exported at a
    fixed batch holds that, and binding to another batch scales what the operators give."""
    if op.key not in (("", "Reshape"), ("", "Expand")) or len(op.inputs) < 2:
        return op
    source = op.inputs[0]
    target = op.inputs[1]
    result = op.outputs[0]
    if not (isinstance(source, Tensor) and isinstance(target, Tensor) and isinstance(result, Tensor)):
        return op
    if target.value is None or result.bounded:
        return op
    asked = target.value.reshape(-1).tolist()
    if op.op_type == "Reshape":
        gives = _reshaped(op, asked, result.shape)
    else:
        gives = np.broadcast_shapes(source.shape, tuple(asked)) == result.shape
    if gives:
        return op
    shape = _known_sizes(f"{result.name}#shape", result.shape)
    own = replace(target, name=shape.name, storage=shape.name, shape=shape.shape, value=shape.value)
    return replace(op, inputs=(source, own, *op.inputs[2:]))


def _reshaped(op: Operator, asked: Sequence[int], shape: Ints) -> bool:
    """Return True where a Reshape that asks for ``asked`` may give ``shape``."""
    if len(asked) != len(shape):
        return False
    copies_zeros = not op.attributes.get("allowzero")
    for wanted, size in zip(asked, shape, strict=True):
        if wanted not in (-1, size) and not (wanted == 0 and copies_zeros):
            return False
    return True


def _sharing(operators: Iterable[Operator], weights: CountByName) -> list[Operator]:
    """Return the operators with views of a whole weight in one shape as one tensor, as they are one allocation.

    Which of them it is matters to nothing but the values, and those are drawn at random. A view of a part stays apart.
    """
    first: dict[tuple[str, DType, Ints], Tensor] = {}

    def canonical(value: Value | None) -> Value | None:
        if not isinstance(value, Tensor) or not value.is_weight or value.nbytes != weights.get(value.storage):
            return value
        if value.value is not None and value.elements <= _MOST_VALUES and not value.dtype.is_floating:
            return value
        return first.setdefault((value.storage, value.dtype, value.shape), value)

    return [replace(op, inputs=tuple(map(canonical, op.inputs))) for op in operators]


def _one_opset(operators: list[Operator]) -> list[Operator]:
    """Return operators of one opset a domain: those of inlined functions may be of an older one, and what did
    not change since is of the newest, too. Raises NotAFragmentError for what changed."""
    # A fragment has one opset a domain, as an ONNX file has.
    newest: dict[str, int] = {}
    for op in operators:
        newest[op.domain] = max(op.version, newest.get(op.domain, 0))
    return [_raised(op, newest[op.domain]) for op in operators]


def _raised(op: Operator, opset: int) -> Operator:
    if op.version == opset:
        return op
    try:
        versions = (op.version, opset)
        schemas = [onnx.defs.get_schema(op.op_type, version, op.domain) for version in versions]
        changed = schemas[0].since_version != schemas[1].since_version
    except (onnx.defs.SchemaError, RuntimeError):
        changed = True
    if changed:
        raise NotAFragmentError(
            f"{op.op_type} of opset {op.version} beside operators of opset {opset}, which changed it"
        )
    return replace(op, version=opset)
