"""Draw random inputs that a model takes: token numbers within the table they look up, masks that hide
nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import numpy as np

from gkestimator.core.dtypes import NUMPY_NAMES, DType
from gkestimator.core.errors import ModelError
from gkestimator.core.graph import Operator, OperatorGraph, Tensor
from gkestimator.merging.editing import DimSizes, Numbers

# Operators that hand values on as they are, and by which of their inputs.
_FIRST = (
    "Cast",
    "CastLike",
    "CenterCropPad",
    "Clip",
    "Compress",
    "Expand",
    "Flatten",
    "Gather",
    "GatherElements",
    "GatherND",
    "Identity",
    "Pad",
    "Reshape",
    "ReverseSequence",
    "Slice",
    "Split",
    "Squeeze",
    "Tile",
    "TopK",
    "Transpose",
    "Trilu",
    "Unique",
    "Unsqueeze",
    "ReduceMax",
    "ReduceMin",
)
_HANDED_ON: dict[str, Numbers | None] = {
    **dict.fromkeys(_FIRST, (0,)),
    "Where": (1, 2),
    "ScatterElements": (0, 2),
    "ScatterND": (0, 2),
    "Concat": None,  # all
    "Max": None,
    "Min": None,
}
# com.microsoft: positions of (indices, table) pairs.
_EMBEDDINGS = {"EmbedLayerNormalization": ((0, 2), (1, 4), (7, 3))}


def random_inputs(graph: OperatorGraph, *, limits: DimSizes, seed: int, sample: int) -> dict[str, np.ndarray]:
    """Return values for every input of ``graph``, in its shapes; the same for the same seed, sample and
    names.

    Floats: normal (0, 1). What is called a mask, and bool: ones. Integers that a table is looked up by:
    uniform within the table (``limits``: :func:`index_limits` of the graph). 8-bit integers: uniform over
    their range (pixels). Other integers: ones. Raises ModelError where an input is no tensor or of a type
    that NumPy lacks.
    """
    return {name: _values(graph, value, limits, seed, sample) for name, value in _tensors(graph)}


def _tensors(graph: OperatorGraph) -> Iterator[tuple[str, Tensor]]:
    for value in graph.inputs:
        if not isinstance(value, Tensor):
            raise ModelError(
                f"{graph.name}: input {value.name!r} is a sequence: no random values are made of it"
            )
        yield value.name, value


def _values(graph: OperatorGraph, tensor: Tensor, limits: DimSizes, seed: int, sample: int) -> np.ndarray:
    if tensor.dtype not in NUMPY_NAMES:
        raise ModelError(
            f"{graph.name}: input {tensor.name!r} is {tensor.dtype.value}: no random values are made of this type"
        )
    dtype = np.dtype(NUMPY_NAMES[tensor.dtype])
    shape = tensor.shape
    whole = dtype.kind in "iu"
    # by names, not by order: an input gets the same values in the original and in the merged file
    digest = hashlib.sha256(f"{seed}\0{sample}\0{graph.name}\0{tensor.name}".encode()).digest()
    rng = np.random.default_rng(int.from_bytes(digest[:16], "little"))
    # a mask of zeros would hide all positions, and every output would be the same
    if tensor.dtype is DType.BOOL or "mask" in tensor.name.lower():
        return np.ones(shape, dtype)
    if tensor.name in limits:
        below = max(1, limits[tensor.name])
        if whole:
            below = min(below, int(np.iinfo(dtype).max) + 1)
        return rng.integers(0, below, shape).astype(dtype)
    if whole and dtype.itemsize == 1:
        span = np.iinfo(dtype)
        return rng.integers(span.min, int(span.max) + 1, shape).astype(dtype)
    if whole:
        return np.ones(shape, dtype)
    values = rng.standard_normal(shape)
    if dtype.kind == "c":
        values = values + 1j * rng.standard_normal(shape)
    return values.astype(dtype)


def index_limits(graph: OperatorGraph) -> dict[str, int]:
    """Return for each input whose values become indices the rows of the smallest table that they look up.

    Followed through operators that hand values on as they are; what is calculated from an input is not its
    value.
    """
    origin: dict[str, frozenset[str]] = {value.name: frozenset([value.name]) for value in graph.inputs}
    limits: dict[str, int] = {}
    for op in graph.operators:
        sources: list[frozenset[str]] = []
        for value in op.inputs:
            names = frozenset[str]()
            if value is not None:
                names = origin.get(value.name, names)
            sources.append(names)
        for position, rows in _lookups(op):
            for name in sources[position]:
                limits[name] = min(rows, limits.get(name, rows))
        handed_on = frozenset[str]()
        for place in _handed_on(op):
            if place < len(sources):
                handed_on |= sources[place]
        if handed_on:
            for value in op.outputs:
                if value is not None:
                    origin[value.name] = handed_on
    return limits


def _handed_on(op: Operator) -> Sequence[int]:
    """Return which inputs an operator hands on as they are."""
    if op.domain:
        return ()
    places = _HANDED_ON.get(op.op_type, ())
    if places is None:
        return range(len(op.inputs))
    return places


def _lookups(op: Operator) -> Iterator[tuple[int, int]]:
    """Yield (position of an input that holds indices, how many entries it may point at)."""
    if op.key in (("", "Gather"), ("", "GatherElements"), ("", "ScatterElements")):
        shape = _shape(op, 0)
        axis = op.attributes.get("axis", 0)
        if shape and isinstance(axis, int):
            yield 1, shape[axis]
    elif op.key in (("", "GatherND"), ("", "ScatterND")):
        shape = _shape(op, 0)
        indices = _shape(op, 1)
        batch = op.attributes.get("batch_dims", 0)
        if shape and indices and isinstance(batch, int):
            yield 1, min(shape[batch : batch + indices[-1]], default=1)
    elif op.domain == "com.microsoft":
        for position, table in _EMBEDDINGS.get(op.op_type, ()):
            shape = _shape(op, table)
            if shape and position < len(op.inputs):
                yield position, shape[0]


def _shape(op: Operator, position: int) -> Numbers:
    if position >= len(op.inputs):
        return ()
    value = op.inputs[position]
    if isinstance(value, Tensor):
        return value.shape
    return ()
