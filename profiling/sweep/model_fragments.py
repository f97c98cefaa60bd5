"""A whole bound model as one fragment: what the runtimes are given to measure its latency and memory.

The fragment must launch what the file launches: what operators make at every call may not become a constant that the
runtimes calculate beforehand, and what was exported for one batch has to fit another.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import onnx

from gkestimator.core.dtypes import DType
from gkestimator.core.fragments import MODEL_PREFIX, Fragment, FragmentTensor
from gkestimator.core.graph import Attribute, Operator, OperatorGraph, Sequence, Tensor
from gkestimator.operators.records import traits_of
from gkestimator.profiling.sweep.extraction import (
    NotAFragmentError,
    constant_of,
    entering,
    fragment_of,
    index_bound,
)

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
_CARRIES: Mapping[str, tuple[int, ...]] = MappingProxyType(
    dict.fromkeys(
        (
            "Cast", "CastLike", "Clip", "Compress", "DepthToSpace", "Dropout", "Expand", "Flatten", "Gather",
            "GatherElements", "GatherND", "Identity", "Pad", "ReduceMax", "ReduceMin", "Reshape", "ReverseSequence",
            "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile", "TopK", "Transpose", "Trilu", "Unique", "Unsqueeze",
        ),
        (0,),
    )
    | {"Concat": _ALL, "Max": _ALL, "Min": _ALL, "Where": (1, 2), "ScatterElements": (0, 2), "ScatterND": (0, 2)}
)  # fmt: skip
"""Operators whose results hold no numbers but those of their inputs at these positions."""


def model_patterns(names: Iterable[str]) -> tuple[str, ...]:
    """What the fragments of models of these names are called: as far as a pattern may hold the name, all different."""
    patterns: list[str] = []
    for name in names:
        clean = "".join(c if c.isascii() and (c.isalnum() or c in "_.:/-") else "_" for c in name)
        pattern = (MODEL_PREFIX + clean)[:_LONGEST_PATTERN]
        number = 1
        while pattern in patterns:
            number += 1
            end = f"-{number}"
            pattern = (MODEL_PREFIX + clean)[: _LONGEST_PATTERN - len(end)] + end
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
    operators = [_with_own_target(op) for op in _one_opset(_sharing(operators, graph.weights))]
    bounds = index_bounds(operators)
    inputs = {value.name for value in graph.inputs}
    changing = _changing(operators, inputs)

    def enters(op: Operator, position: int, tensor: Tensor, name: str) -> FragmentTensor:
        fixed = tensor.name not in changing
        floats = _MOST_FLOATS if fixed else _MOST_VALUES
        constant = constant_of(op, position, tensor, name, most=_MOST_VALUES, floats=floats)
        if constant is not None:
            if fixed:
                return constant
            return replace(constant, role="input")
        role = "weight" if fixed and tensor.name not in inputs else "input"
        if not tensor.dtype.is_integer:
            return replace(entering(op, position, tensor, name), role=role)
        below = bounds.get(tensor.name) or (_BYTES_BELOW if tensor.dtype.bits <= 8 else _MASK_BELOW)
        return replace(
            entering(op, position, tensor, name), role=role, fill="index", below=below, values=None
        )

    results = []
    for value in graph.outputs:
        if not isinstance(value, Tensor):
            raise NotAFragmentError("sequences")
        results.append(renamed.get(value.name, value.name))
    made = fragment_of(operators, pattern, results=tuple(dict.fromkeys(results)), enters=enters)
    return Fragment.from_document(made.document(), where=graph.name)


def index_bounds(operators: Iterable[Operator]) -> dict[str, int]:
    """By name of a tensor of whole numbers: the length of the smallest table that its numbers look up, through
    operators that hand them on unchanged."""
    bounds: dict[str, int] = {}

    def lower(value: object, bound: int) -> None:
        if isinstance(value, Tensor):
            bounds[value.name] = min(bound, bounds.get(value.name, bound))

    for op in reversed(tuple(operators)):
        for position, value in enumerate(op.inputs):
            if isinstance(value, Tensor) and value.dtype.is_integer:
                below = index_bound(op, position)
                if below is not None:
                    lower(value, below)
        if op.domain:
            continue
        wanted = [bounds[v.name] for v in op.outputs if isinstance(v, Tensor) and v.name in bounds]
        carried = _CARRIES.get(op.op_type, ())
        if not wanted:
            continue
        for position, value in enumerate(op.inputs):
            if carried == _ALL or position in carried:
                lower(value, min(wanted))
    return bounds


def _changing(operators: Iterable[Operator], inputs: Collection[str]) -> frozenset[str]:
    """Names of tensors that go in as inputs, though callers do not give them: what the file makes from shapes at every
    call (positions up to the sequence's length), and where an operator has otherwise nothing but weights and such
    small constants, its largest. As weights they would have it calculated before the first call, which the file's own
    operator is not."""
    operators = tuple(operators)
    on_host = {
        value.name
        for op in operators
        for at, value in enumerate(op.inputs)
        if value is not None and at in traits_of(op.key).host_inputs
    }
    written = {value.name for op in operators for value in op.outputs if value is not None}
    opened = {
        value.name
        for op in operators
        for value in op.inputs
        if isinstance(value, Tensor) and not value.is_weight and value.elements > _FEW
    } - {*written, *inputs, *on_host}
    alive = {*inputs, *opened}
    settled = set[str]()
    for op in operators:
        host = traits_of(op.key).host_inputs
        read = [(at, value) for at, value in enumerate(op.inputs) if isinstance(value, Tensor)]
        changes = not read or any(value.name in alive for _, value in read)
        if not changes:
            free = [v for at, v in read if at not in host and v.name not in on_host and v.name not in settled]
            chosen = min(free, key=lambda v: (v.is_weight, -v.elements), default=None)
            if chosen is not None:
                opened.add(chosen.name)
                alive.add(chosen.name)
                changes = True
        (alive if changes else settled).update(value.name for value in op.outputs if value is not None)
    return frozenset(opened)


def _without_sequences(operators: Iterable[Operator]) -> tuple[list[Operator], dict[str, str]]:
    """SplitToSequence whose pieces are taken out by SequenceAt as the Split that it is, and what the pieces are called
    now. Raises NotAFragmentError for every other sequence."""
    pieces: dict[str, tuple[Tensor, ...]] = {}
    renamed: dict[str, Tensor] = {}
    kept = []
    for op in operators:
        inputs = tuple(renamed.get(v.name, v) if v is not None else None for v in op.inputs)
        if op.key == ("", "SplitToSequence"):
            split = _split(op, inputs)
            pieces[op.outputs[0].name] = tuple(v for v in split.outputs if isinstance(v, Tensor))  # type: ignore[union-attr]
            kept.append(split)
        elif op.key == ("", "SequenceAt") and inputs[0] is not None and inputs[0].name in pieces:
            held = pieces[inputs[0].name]
            place = inputs[1]
            out = op.outputs[0]
            known = place.value if isinstance(place, Tensor) else None
            if known is None or out is None or not -len(held) <= int(known.reshape(-1)[0]) < len(held):
                raise NotAFragmentError("sequences")
            renamed[out.name] = held[int(known.reshape(-1)[0])]
        elif any(isinstance(v, Sequence) for v in (*inputs, *op.outputs)):
            raise NotAFragmentError("sequences")
        else:
            kept.append(replace(op, inputs=inputs, signature=None))
    return kept, {name: tensor.name for name, tensor in renamed.items()}


def _split(op: Operator, inputs: tuple[Tensor | Sequence | None, ...]) -> Operator:
    made = op.outputs[0]
    source = inputs[0]
    if not isinstance(made, Sequence) or not isinstance(source, Tensor) or made.bounded:
        raise NotAFragmentError("sequences")
    axis = op.attributes.get("axis", 0)
    if not isinstance(axis, int) or any(len(t.shape) != len(source.shape) for t in made.elements_):
        raise NotAFragmentError("sequences of pieces without the axis they were split along")
    sizes = np.array([t.shape[axis] for t in made.elements_], dtype=np.int64)
    attributes: dict[str, Attribute] = {"axis": axis}
    reads = [source]
    if op.version < _SPLIT_TAKES_SIZES:
        attributes["split"] = tuple(int(n) for n in sizes)
    else:
        name = f"{made.name}#sizes"
        reads.append(
            Tensor(name=name, dtype=DType.INT64, shape=sizes.shape, storage=name, is_weight=True, value=sizes)
        )
    return replace(
        op,
        op_type="Split",
        attributes=attributes,
        inputs=tuple(reads),
        outputs=made.elements_,
        signature=None,
    )


def _with_own_target(op: Operator) -> Operator:
    """``op`` with the shape that it gives here as its target, where the file's is another: one exported at a fixed
    batch holds that, and binding to another batch scales what the operators give."""
    if op.key not in (("", "Reshape"), ("", "Expand")) or len(op.inputs) < 2:
        return op
    source = op.inputs[0]
    target = op.inputs[1]
    result = op.outputs[0]
    if not (isinstance(source, Tensor) and isinstance(target, Tensor) and isinstance(result, Tensor)):
        return op
    if target.value is None or result.bounded:
        return op
    asked = [int(v) for v in target.value.reshape(-1)]
    if op.op_type == "Reshape":
        same = len(asked) == len(result.shape) and all(
            a in (-1, n) or (a == 0 and not op.attributes.get("allowzero"))
            for a, n in zip(asked, result.shape, strict=True)
        )
    else:
        same = np.broadcast_shapes(source.shape, tuple(asked)) == result.shape
    if same:
        return op
    shape = np.array(result.shape, dtype=np.int64)
    own = replace(
        target, name=f"{result.name}#shape", storage=f"{result.name}#shape", shape=shape.shape, value=shape
    )
    return replace(op, inputs=(source, own, *op.inputs[2:]))


def _sharing(operators: Iterable[Operator], weights: Mapping[str, int]) -> list[Operator]:
    """Views of a whole weight in one shape are one tensor, as they are one allocation: which of them it is matters to
    nothing but the values, and those are drawn at random. A view of a part stays apart."""
    first: dict[tuple[str, DType, tuple[int, ...]], Tensor] = {}

    def canonical(value: Tensor | Sequence | None) -> Tensor | Sequence | None:
        if not isinstance(value, Tensor) or not value.is_weight or value.nbytes != weights.get(value.storage):
            return value
        if value.value is not None and value.elements <= _MOST_VALUES and not value.dtype.is_floating:
            return value
        return first.setdefault((value.storage, value.dtype, value.shape), value)

    return [replace(op, inputs=tuple(canonical(v) for v in op.inputs)) for op in operators]


def _one_opset(operators: list[Operator]) -> list[Operator]:
    """Operators of inlined functions may be of an older opset: one that did not change since is of the newest, too."""
    newest: dict[str, int] = {}
    for op in operators:
        newest[op.domain] = max(op.version, newest.get(op.domain, 0))

    def raised(op: Operator) -> Operator:
        wanted = newest[op.domain]
        if op.version == wanted:
            return op
        try:
            since = [
                onnx.defs.get_schema(op.op_type, v, op.domain).since_version for v in (op.version, wanted)
            ]
        except (onnx.defs.SchemaError, RuntimeError):
            since = [op.version, wanted]
        if since[0] != since[1]:
            raise NotAFragmentError(
                f"{op.op_type} of opset {op.version} beside operators of opset {wanted}, which changed it"
            )
        return replace(op, version=wanted)

    return [raised(op) for op in operators]
