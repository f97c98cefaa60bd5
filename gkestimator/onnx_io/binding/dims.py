"""Say which dimension is the batch, and which number each symbolic dimension gets."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import filterfalse

from gkestimator.core.errors import LimitError, UnboundDimensionError, UsageError
from gkestimator.core.naming import nearest_name
from gkestimator.core.options import spelled
from gkestimator.core.records import frozen
from gkestimator.onnx_io.binding.derived import derived_size
from gkestimator.onnx_io.reading import limits
from gkestimator.onnx_io.reading.program import InputSpec
from gkestimator.operators.registry import DeclaredType

_BATCH_NAMES = frozenset(
    [
        "n",
        "b",
        "bs",
        "batch",
        "batches",
        "batch_size",
        "batchsize",
        "batch_dim",
        "num_batch",
        "nbatch",
        "batch_axis",
    ]
)
_OTHER_WORDS = frozenset(
    [
        "seq",
        "sequence",
        "sequences",
        "length",
        "len",
        "time",
        "times",
        "frames",
        "height",
        "width",
        "h",
        "w",
        "l",
        "t",
        "s",
        "token",
        "tokens",
        "past",
        "cache",
        "total",
        "channels",
        "channel",
        "depth",
        "text",
        "max",
        "chars",
        "words",
        "points",
        "boxes",
        "samples",
    ]
)
_IMAGE_RANK = 3
_COLOURS = 3
_LEAST_SIDE = 16
_SIDES = frozenset(["height", "width", "h", "w"])


@frozen
class BatchChoice:
    """Hold how the batch is bound.

    ``names`` are symbolic dims that stand for it; none: the inputs' first fixed dim does.
    ``fixed`` is the size that the file was exported at, where no name stands for it (None: no batch at all).
    ``single``: the input that is one sample, for which there is no batch.
    """

    names: tuple[str, ...]
    fixed: int | None
    reason: str
    single: str | None = None

    @property
    def name(self) -> str | None:
        """Return the name to show, or None for a fixed batch."""
        if self.names:
            return self.names[0]
        return None


def name_dims(inputs: Sequence[InputSpec]) -> tuple[InputSpec, ...]:
    """Return the inputs with every anonymous dimension named ``<input>.<axis>``."""
    named = []
    for spec in inputs:
        shape = spec.declared.shape
        if shape is not None and None in shape:
            filled = tuple(f"{spec.name}.{axis}" if d is None else d for axis, d in enumerate(shape))
            spec = spec._replace(declared=DeclaredType(spec.declared.dtype, filled))
        named.append(spec)
    return tuple(named)


def _words(name: str) -> list[str]:
    return re.split(r"[^a-z]+", name.lower())


def _is_batch_name(name: str) -> bool:
    return name.lower().strip("_") in _BATCH_NAMES or "batch" in _words(name)


def _is_other_name(name: str) -> bool:
    return not _OTHER_WORDS.isdisjoint(_words(name))


def symbols_of(inputs: Sequence[InputSpec]) -> list[str]:
    """Return the symbolic dimensions of ``inputs``, each once, in their order."""
    symbols: dict[str, None] = {}
    for spec in inputs:
        for dim in spec.declared.shape or ():
            if isinstance(dim, str):
                symbols[dim] = None
    return list(symbols)


def lengths_of(inputs: Sequence[InputSpec]) -> list[str]:
    """Return the names of the lengths of inputs that are sequences."""
    return [f"{spec.name}.length" for spec in inputs if spec.kind == "sequence"]


def choose_batch(
    inputs: Sequence[InputSpec], batch_dim: str | None = None, leads: Mapping[str, bool] | None = None
) -> BatchChoice:
    """Find the batch dimension. Raises UsageError when ``batch_dim`` names none of the model's dimensions.

    ``leads``: what the graph tells of inputs' first axes (:func:`leading_batches`); without it their shapes do.
    """
    symbols = symbols_of(inputs)
    if batch_dim in symbols:
        return _named(batch_dim, f"named by the caller: {batch_dim}")
    if batch_dim is not None:
        known = ", ".join(symbols) or "none"
        raise UsageError(
            f"batch dimension {batch_dim!r} is not in the model; its symbolic dimensions are {known}"
        )
    return _likely_batch(inputs, symbols, leads or {})


def _likely_batch(
    inputs: Sequence[InputSpec], symbols: Sequence[str], leads: Mapping[str, bool]
) -> BatchChoice:
    """Return the batch dimension that names, then places of dimensions, speak for."""
    batched = [spec for spec in inputs if leads.get(spec.name, not _is_image(spec))]
    leading = [(spec, next(iter(spec.declared.shape or ()), None)) for spec in batched]
    first = list(dict.fromkeys(dim for _, dim in leading if isinstance(dim, str)))
    for name in filter(_is_batch_name, first):
        return _named(name, _first_named(name, first))
    for name in filter(_is_batch_name, symbols):
        return _named(name, f"an input's dimension is called {name}")
    anonymous = tuple(f"{spec.name}.0" for spec, dim in leading if dim == f"{spec.name}.0")
    if anonymous:
        return BatchChoice(
            names=anonymous, fixed=None, reason="the inputs' first dimension has no fixed size"
        )
    for name in filterfalse(_is_other_name, first):
        return _named(name, "the inputs' first dimension is symbolic")
    fixed = [dim for spec, dim in leading if spec.kind == "tensor" and isinstance(dim, int)]
    if fixed:
        return BatchChoice(names=(), fixed=fixed[0], reason="exported at a fixed batch")
    if len(batched) < len(inputs):
        name = next(spec.name for spec in inputs if spec not in batched)
        return BatchChoice(names=(), fixed=None, reason=f"{name} is one sample", single=name)
    return _only_dimension(list(symbols), first)


def _is_image(spec: InputSpec) -> bool:
    """Return whether the shape is that of one image: three channels, first or last, beside height and width."""
    shape = spec.declared.shape or ()
    if spec.kind != "tensor" or len(shape) != _IMAGE_RANK:
        return False
    for channels, height, width in (shape, (shape[2], shape[0], shape[1])):
        square = height == width and isinstance(height, int) and height >= _LEAST_SIDE
        named = not _SIDES.isdisjoint(_words(f"{height} {width}"))
        if channels == _COLOURS and (square or named):
            return True
    return False


def _first_named(name: str, first: Sequence[str]) -> str:
    """Return why ``name`` is the batch, and which of the inputs' other ``first`` dimensions looks like one too."""
    reason = f"the inputs' first dimension is called {name}"
    others = [other for other in first if other != name and _is_batch_name(other)]
    if others:
        reason += f"; {', '.join(others)} is a dimension of its own"
    return reason


def _only_dimension(symbols: list[str], first: list[str]) -> BatchChoice:
    """Return the dimension that must be the batch where no input has a fixed first one."""
    if len(symbols) == 1 and not _is_other_name(symbols[0]):
        return _named(symbols[0], "the only symbolic dimension")
    if len(first) == 1:
        return _named(first[0], "the inputs' only first dimension")
    return BatchChoice(names=(), fixed=None, reason="exported at a fixed batch")


def _named(name: str, reason: str) -> BatchChoice:
    return BatchChoice(names=(name,), fixed=None, reason=reason)


def bind_dims(
    inputs: Sequence[InputSpec],
    batch: BatchChoice,
    batch_size: int | None,
    dims: Mapping[str, int],
    given: frozenset[str] = frozenset(),
) -> tuple[dict[str, int], list[str]]:
    """Return a number for every symbolic dimension, and warnings about numbers that nobody gave.

    A dimension that the file names as an expression of others (``past + 1``) follows from them.

    ``given`` are the inputs whose whole type the caller gives. Raises UsageError on an unknown name or an
    impossible number, UnboundDimensionError on a dimension without one.
    """
    names = symbols_of([spec for spec in inputs if spec.name not in given])
    lengths = lengths_of(inputs)
    known = names + lengths
    for name, size in dims.items():
        if name not in known and name not in batch.names:
            listed = ", ".join(known) or "none"
            raise UsageError(
                f"dimension {name!r} is not in the model; known: {listed}{nearest_name(name, known)}"
            )
        check_size(f"dimension {name}", size, allow_zero=True)
    bound = dict(dims)
    warnings = _bind_batch(batch, batch_size, bound)
    for name in names:
        derived = None if name in bound else derived_size(name, bound)
        if derived is not None:
            check_size(f"dimension {name}", derived, allow_zero=True)
            bound[name] = derived
    unbound = [name for name in names if name not in bound]
    if unbound:
        raise UnboundDimensionError(
            f"dimension {', '.join(unbound)} has no size; give it with "
            + spelled(f"dims={{{unbound[0]!r}: <number>}}", f"--dim {unbound[0]}=<number>")
        )
    for name in lengths:
        if name not in bound and name.removesuffix(".length") not in given:
            bound[name] = 1
            warnings.append(f"length of input sequence not given: {name} = 1")
    return bound, warnings


def _bind_batch(batch: BatchChoice, batch_size: int | None, bound: dict[str, int]) -> list[str]:
    """Give the batch its number in ``bound``, and return warnings."""
    warnings = []
    if batch.single is not None:
        warnings.append(f"no batch dimension ({batch.single} is one sample): estimated as it is")
    for name in batch.names:
        if batch_size is None:
            if name not in bound:
                bound[name] = 1
                warnings.append(f"batch size not given: {name} = 1")
        elif bound.setdefault(name, batch_size) != batch_size:
            raise UsageError(
                f"dimension {name} is the batch: {bound[name]} and batch size {batch_size} differ"
            )
    return warnings


def check_size(what: str, size: object, *, allow_zero: bool = False) -> None:
    """Raise UsageError unless ``size`` is a positive integer; LimitError when it is absurd."""
    if isinstance(size, bool) or not isinstance(size, int):
        raise UsageError(f"{what} is {size!r}; a whole number was expected")
    if size < 0 or (size == 0 and not allow_zero):
        raise UsageError(f"{what} is {size}; a positive number was expected")
    if size >= limits.MAX_ELEMENTS:
        raise LimitError(f"{what} is {size}; fewer than 2^63 are supported")
