"""Which dimension is the batch, and which number each symbolic dimension gets."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from gkestimator.core.errors import LimitError, UnboundDimensionError, UsageError
from gkestimator.core.records import frozen
from gkestimator.onnx_io.reading import limits
from gkestimator.onnx_io.reading.program import InputSpec
from gkestimator.operators.registry import DeclaredType

_BATCH_NAMES = frozenset(
    {
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
    }
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


@frozen
class BatchChoice:
    """How the batch is bound.

    ``names`` are symbolic dims that stand for it; none: the inputs' first fixed dim does.
    ``fixed`` is the size that the file was exported at, where no name stands for it (None: no batch at all).
    """

    names: tuple[str, ...]
    fixed: int | None
    reason: str

    @property
    def name(self) -> str | None:
        """The name to show, or None for a fixed batch."""
        if self.names:
            return self.names[0]
        return None


def name_dims(inputs: Sequence[InputSpec]) -> tuple[InputSpec, ...]:
    """Inputs with every anonymous dimension named ``<input>.<axis>``."""
    named = []
    for spec in inputs:
        shape = spec.declared.shape
        if shape is not None and None in shape:
            filled = tuple(f"{spec.name}.{axis}" if d is None else d for axis, d in enumerate(shape))
            spec = spec._replace(declared=DeclaredType(spec.declared.dtype, filled))
        named.append(spec)
    return tuple(named)


def _is_batch_name(name: str) -> bool:
    return name.lower().strip("_") in _BATCH_NAMES or "batch" in re.split(r"[^a-z]+", name.lower())


def _is_other_name(name: str) -> bool:
    return not _OTHER_WORDS.isdisjoint(re.split(r"[^a-z]+", name.lower()))


def choose_batch(inputs: Sequence[InputSpec], batch_dim: str | None = None) -> BatchChoice:
    """Find the batch dimension. Raises UsageError when ``batch_dim`` names none of the model's dimensions."""
    shapes = [(i.name, i.declared.shape) for i in inputs if i.declared.shape]
    symbols = list(dict.fromkeys(d for _, shape in shapes for d in shape or () if isinstance(d, str)))
    if batch_dim is not None:
        if batch_dim not in symbols:
            raise UsageError(
                f"batch dimension {batch_dim!r} is not in the model; its symbolic dimensions are "
                f"{', '.join(symbols) or 'none'}"
            )
        return BatchChoice(names=(batch_dim,), fixed=None, reason=f"named by the caller: {batch_dim}")
    first = list(dict.fromkeys(s[0] for _, s in shapes if s and isinstance(s[0], str)))
    for candidates, where in ((first, "the inputs' first dimension"), (symbols, "an input's dimension")):
        for name in candidates:
            if _is_batch_name(str(name)):
                return BatchChoice(names=(str(name),), fixed=None, reason=f"{where} is called {name}")
    anonymous = tuple(f"{name}.0" for name, s in shapes if s and s[0] == f"{name}.0")
    if anonymous:
        return BatchChoice(
            names=anonymous, fixed=None, reason="the inputs' first dimension has no fixed size"
        )
    plausible = [str(n) for n in first if not _is_other_name(str(n))]
    if plausible:
        return BatchChoice(
            names=(plausible[0],), fixed=None, reason="the inputs' first dimension is symbolic"
        )
    plausible = [n for n in symbols if not _is_other_name(n)]
    tensors = (i.declared.shape for i in inputs if i.kind == "tensor")
    fixed = next((s[0] for s in tensors if s and isinstance(s[0], int)), None)
    if len(plausible) == 1 and len(symbols) == 1 and fixed is None:
        return BatchChoice(names=(plausible[0],), fixed=None, reason="the only symbolic dimension")
    if fixed is None and len(first) == 1:
        return BatchChoice(names=(str(first[0]),), fixed=None, reason="the inputs' only first dimension")
    return BatchChoice(
        names=(), fixed=fixed if isinstance(fixed, int) else None, reason="exported at a fixed batch"
    )


def bind_dims(
    inputs: Sequence[InputSpec],
    batch: BatchChoice,
    batch_size: int | None,
    dims: Mapping[str, int],
    given: frozenset[str] = frozenset(),
) -> tuple[dict[str, int], list[str]]:
    """A number for every symbolic dimension, and warnings about numbers that nobody gave.

    ``given`` are the inputs whose whole type the caller gives. Raises UsageError on an unknown name or an
    impossible number, UnboundDimensionError on a dimension without one.
    """
    names = list(
        dict.fromkeys(
            d for i in inputs for d in i.declared.shape or () if isinstance(d, str) and i.name not in given
        )
    )
    lengths = [f"{i.name}.length" for i in inputs if i.kind == "sequence"]
    for name, size in dims.items():
        if name not in names and name not in lengths and name not in batch.names:
            raise UsageError(
                f"dimension {name!r} is not in the model; known: {', '.join(names + lengths) or 'none'}"
            )
        check_size(f"dimension {name}", size, allow_zero=True)
    bound = dict(dims)
    warnings = []
    if batch.names:
        if batch_size is not None:
            for name in batch.names:
                if bound.get(name, batch_size) != batch_size:
                    raise UsageError(
                        f"dimension {name} is the batch: {bound[name]} and batch size {batch_size} differ"
                    )
                bound[name] = batch_size
        else:
            for name in batch.names:
                if name not in bound:
                    bound[name] = 1
                    warnings.append(f"batch size not given: {name} = 1")
    unbound = [name for name in names if name not in bound]
    if unbound:
        raise UnboundDimensionError(
            f"dimension {', '.join(unbound)} has no size; give it with --dim {unbound[0]}=<number>"
        )
    for name in lengths:
        if name not in bound and name.removesuffix(".length") not in given:
            bound[name] = 1
            warnings.append(f"length of input sequence not given: {name} = 1")
    return bound, warnings


def check_size(what: str, size: object, *, allow_zero: bool = False) -> None:
    """UsageError unless ``size`` is a positive integer; LimitError when it is absurd."""
    if isinstance(size, bool) or not isinstance(size, int):
        raise UsageError(f"{what} is {size!r}; a whole number was expected")
    if size < 0 or (size == 0 and not allow_zero):
        raise UsageError(f"{what} is {size}; a positive number was expected")
    if size >= limits.MAX_ELEMENTS:
        raise LimitError(f"{what} is {size}; fewer than 2^63 are supported")
