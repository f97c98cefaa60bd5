"""Tell what the inputs of a decoder's ONNX file are, and what each of their open dimensions stands for.

Exporters agree on little: dimensions are called ``past_sequence_length``, ``s53``, ``past + sequence`` or nothing at
all. Structure says more than names do: keys and values come as floats of rank 4, (batch, heads, past, size), with an
open third axis and a fixed last one; tokens as whole numbers of rank 2, (batch, tokens). Names decide what is left.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from gkestimator.core.dtypes import NUMPY_NAMES, DType
from gkestimator.core.errors import UsageError
from gkestimator.core.graph import Tensor
from gkestimator.core.options import spelled
from gkestimator.core.records import Names, frozen
from gkestimator.onnx_io import Model
from gkestimator.onnx_io.binding.derived import derived_size
from gkestimator.onnx_io.reading.program import InputSpec

BATCH = "batch"
TOKENS = "tokens"
PAST = "past"
TOTAL = "total"
ROLES = (BATCH, TOKENS, PAST, TOTAL)
"""Sequences, new tokens of each, tokens in the cache, and past and new ones together."""
_CACHE_RANK = 4
_LENGTH_AXIS = 2
_SIZE_AXIS = 3
_SIZE = "size"  # of a head: what attention makes of the weights' shapes
# Inputs of one element that carry a length, by what their name holds.
_LENGTHS = (("total", TOTAL), ("past", PAST))
_CACHED = ("GroupQueryAttention",)


@frozen
class Sizes:
    """Hold the numbers of one pass by role."""

    batch: int
    tokens: int
    past: int

    def of(self, role: str | int) -> int:
        """Return the number that a role stands for; a number stands for itself."""
        if isinstance(role, int):
            return role
        if role == TOTAL:
            return self.past + self.tokens
        return {BATCH: self.batch, TOKENS: self.tokens, PAST: self.past}[role]


@frozen
class Roles:
    """Hold what was told of a file: ``dims``, the role (or the number) of each symbolic dimension; ``batch``, the one
    that is the batch (None: it is fixed in the file); ``tokens``, the input of token numbers; ``caches``, the inputs of
    keys and values; ``sums``, the dimensions that are sums of others by their names; ``lengths``, the inputs of one
    number, each with its role; ``flags``, inputs that must be true.

    ``buffers``: past and present keys and values are one buffer, as long as all tokens need.
    """

    dims: Mapping[str, str | int]
    batch: str | None
    tokens: str
    caches: tuple[InputSpec, ...]
    sums: Names
    lengths: Mapping[str, tuple[InputSpec, str]]
    flags: Names
    buffers: bool

    def numbers(self, sizes: Sizes) -> dict[str, int]:
        """Return a number for each symbolic dimension."""
        said = {name: sizes.of(role) for name, role in self.dims.items()}
        # Sums count the tokens in the cache, whatever room a buffer has beside.
        sums = {name: derived_size(name, said) for name in self.sums}
        if self.buffers:
            said |= {name: sizes.of(TOTAL) for name, role in self.dims.items() if role == PAST}
        return said | {name: size for name, size in sums.items() if size is not None}

    @property
    def cache_elements(self) -> int:
        """Return the elements of all keys and values of one token."""
        elements = 0
        for spec in self.caches:
            heads, size = (self.dims.get(str(dim), dim) for dim in _shape(spec)[1::2])
            elements += int(heads) * int(size)
        return elements

    def values(self, sizes: Sizes) -> dict[str, np.ndarray]:
        """Return the inputs whose values a pass is given."""
        given: dict[str, np.ndarray] = {name: np.ones(1, bool) for name in self.flags}
        for name, (spec, role) in self.lengths.items():
            dtype, shape = spec.declared
            assert dtype is not None and shape is not None  # only such inputs are taken
            given[name] = np.full([1] * len(shape), sizes.of(role), NUMPY_NAMES[dtype])
        return given


def roles_of(model: Model, asked: Sequence[str]) -> Roles:
    """Return the roles in ``model``. ``asked`` are ``NAME=ROLE`` or ``NAME=number``, which come first.

    Raises UsageError in one line: no decoder, sizes that are fixed, or a dimension that could not be told.
    """
    roles = _Telling(model, _asked(model, asked)).roles()
    open_sizes = [name for name, role in roles.dims.items() if role == _SIZE]
    if not open_sizes:
        return roles
    tried = replace(roles, dims={**roles.dims, **dict.fromkeys(open_sizes, 1)})
    return replace(roles, dims={**roles.dims, **dict.fromkeys(open_sizes, _head_size(model, tried))})


def _head_size(model: Model, roles: Roles) -> int:
    """Return the size of a head that the file's attention has, whatever size its caches are given."""
    trial = Sizes(batch=1, tokens=1, past=1)
    graph = model.bind(
        batch_size=1, batch_dim=roles.batch, dims=roles.numbers(trial), inputs=roles.values(trial)
    )
    for op in graph.operators:
        result = op.outputs[0]
        heads = op.attributes.get("num_heads")
        if op.op_type in _CACHED and isinstance(result, Tensor) and isinstance(heads, int) and heads > 0:
            return result.shape[-1] // heads
    raise UsageError(f"{model.name}: found no attention with a cache, expected one of {', '.join(_CACHED)}")


def _asked(model: Model, asked: Sequence[str]) -> dict[str, str | int]:
    dims: dict[str, str | int] = {}
    for text in asked:
        name, _, word = text.rpartition("=")
        if name not in model.dims:
            known = ", ".join(model.dims) or "none"
            raise UsageError(f"{model.name}: dimension {name or text!r} is not in the model; known: {known}")
        if word in ROLES:
            dims[name] = word
        elif word.isascii() and word.isdigit() and 0 < len(word) <= 9:
            dims[name] = int(word)
        else:
            expected = f"{', '.join(ROLES)} or a number below a billion"
            raise UsageError(f"{model.name}: dimension {name}: found {word!r}, expected {expected}")
    return dims


class _Telling:
    """Tell the roles of one model's dimensions."""

    def __init__(self, model: Model, asked: dict[str, str | int]) -> None:
        self.name = model.name
        self.inputs = model.inputs
        self.known = asked
        self.sums = model.derived_dims
        attended = {slot for node in model.nodes if node.op_type in _CACHED for slot in node.inputs}
        self.caches = tuple(spec for spec in model.inputs if _is_cache(spec))
        self.buffers = any(spec.slot in attended for spec in self.caches)

    def roles(self) -> Roles:
        """Return them all."""
        tokens = self._tokens_input()
        self._refuse_others(tokens)
        for spec in (tokens, *self.caches):
            self._tell(spec, 0, BATCH)
        for spec in self.caches:
            self._tell(spec, _LENGTH_AXIS, PAST)
            if self.buffers:
                self._tell(spec, _SIZE_AXIS, _SIZE)
        self._tell(tokens, 1, TOKENS)
        for spec in self.inputs:
            self._tell_other(spec)
        self._check(tokens)
        first = _shape(tokens)[0]
        return Roles(
            dims=self.known,
            batch=first if isinstance(first, str) else None,
            tokens=tokens.name,
            caches=self.caches,
            sums=tuple(dim for dim in self.sums if dim not in self.known),
            lengths=dict(self._lengths()),
            flags=tuple(spec.name for spec in self.inputs if _single(spec) is DType.BOOL),
            buffers=self.buffers,
        )

    def _tokens_input(self) -> InputSpec:
        """Return the input of token numbers: the one called so, or the only one of its form."""
        whole = [spec for spec in self.inputs if _is_whole(spec) and len(_shape(spec)) == 2]
        named = [spec for spec in whole if spec.name.rpartition(".")[2] == "input_ids"]
        if len(named or whole) != 1:
            listed = ", ".join(spec.name for spec in whole) or "none"
            raise UsageError(
                f"{self.name}: no language model's decoder: found {listed}, expected one input of token numbers "
                f"(input_ids, whole numbers of shape [batch, tokens])"
            )
        tokens = (named or whole)[0]
        length = _shape(tokens)[1]
        if isinstance(length, int):
            what = "decoding steps alone" if self.caches and length == 1 else f"{length} tokens alone"
            raise UsageError(
                f"{self.name}: {tokens.name} has a fixed length of {length}, so the file answers for {what}: export it "
                f"with an open one, or ask gkest estimate for that pass"
            )
        return tokens

    def _refuse_others(self, tokens: InputSpec) -> None:
        """Raise UsageError for an input that a decoder alone does not have."""
        for spec in self.inputs:
            dtype = spec.declared.dtype
            masks = len(_shape(spec)) == _CACHE_RANK and "mask" in spec.name
            if spec in self.caches and "encoder" not in spec.name:
                continue
            if "encoder" in spec.name or (dtype is not None and dtype.is_floating and not masks):
                said = f"{dtype.value if dtype else 'unknown'} [{', '.join(map(str, _shape(spec)))}]"
                raise UsageError(
                    f"{self.name}: found input {spec.name} {said}, expected a decoder alone, whose inputs are tokens "
                    f"({tokens.name}), masks, and keys and values with an open length: gkest estimate takes any file"
                )

    def _tell(self, spec: InputSpec, axis: int, role: str) -> None:
        """Note the role of an axis; one that was told before stays."""
        dim = _shape(spec)[axis]
        if isinstance(dim, str):
            self.known.setdefault(dim, role)

    def _tell_other(self, spec: InputSpec) -> None:
        """Note the roles in a mask, positions, or the like."""
        shape = _shape(spec)
        for axis, dim in enumerate(shape):
            if not isinstance(dim, str) or dim in self.known or dim in self.sums:
                continue
            role = self._named(spec, dim, axis)
            if role is not None:
                self.known[dim] = role

    def _named(self, spec: InputSpec, dim: str, axis: int) -> str | None:
        """Return the role by place and name: first axes are the batch, last ones of masks are all tokens."""
        rank = len(_shape(spec))
        if axis == 0 and (rank > 1 or "len" in spec.name):
            return BATCH
        if "mask" in spec.name:
            return TOTAL if axis == rank - 1 else TOKENS
        if "position" in spec.name or "token_type" in spec.name:
            return TOKENS
        if self.caches and "total" in dim:
            return TOTAL
        return None

    def _check(self, tokens: InputSpec) -> None:
        """Raise UsageError where a dimension has no role, or the tokens have another one's."""
        for spec in self.inputs:
            for dim in _shape(spec):
                if isinstance(dim, str) and dim not in self.known and dim not in self.sums:
                    asked = spelled(f"dims={[f'{dim}=ROLE']}", f"--dim {dim}=ROLE")
                    raise UsageError(
                        f"{self.name}: dimension {dim} of input {spec.name} could not be told: give {asked}, ROLE "
                        f"being {', '.join(ROLES)} or a number"
                    )
        lengths: list[tuple[InputSpec, str, Names]] = [(tokens, str(_shape(tokens)[1]), (TOKENS,))]
        lengths += [(spec, str(_shape(spec)[_LENGTH_AXIS]), (PAST, TOTAL)) for spec in self.caches]
        for spec, dim, expected in lengths:
            if self.known[dim] not in expected:
                raise UsageError(
                    f"{self.name}: dimension {dim} of {spec.name}: found {self.known[dim]}, expected "
                    f"{' or '.join(expected)}: new tokens and those in the cache have lengths of their own"
                )

    def _lengths(self) -> Iterator[tuple[str, tuple[InputSpec, str]]]:
        """Yield the inputs of one whole number that is a length."""
        for spec in self.inputs:
            if not _is_whole(spec) or _single(spec) is None:
                continue
            role = next((role for word, role in _LENGTHS if word in spec.name), None)
            if role is not None:
                yield spec.name, (spec, role)


def _shape(spec: InputSpec) -> tuple[str | int, ...]:
    """Return the shape of an input; every open dimension has a name by now."""
    return tuple(0 if dim is None else dim for dim in spec.declared.shape or ())


def _is_whole(spec: InputSpec) -> bool:
    dtype = spec.declared.dtype
    return spec.kind == "tensor" and dtype is not None and dtype in (DType.INT64, DType.INT32)


def _single(spec: InputSpec) -> DType | None:
    """Return the element type of an input of one element; None for others."""
    if spec.kind == "tensor" and spec.declared.shape in ((), (1,)):
        return spec.declared.dtype
    return None


def _is_cache(spec: InputSpec) -> bool:
    """Return whether an input holds keys or values: numbers of a model, with an open length, and a size that is fixed
    or whose input is called past.
    """
    dtype = spec.declared.dtype
    shape = _shape(spec)
    if dtype is None or len(shape) != _CACHE_RANK:
        return False
    narrow = dtype.is_floating or dtype in (DType.INT8, DType.UINT8)
    sized = isinstance(shape[_SIZE_AXIS], int) or "past" in spec.name
    return narrow and isinstance(shape[_LENGTH_AXIS], str) and sized
