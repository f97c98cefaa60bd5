"""What a builder is given, what it gives, and the tables of builders.

A builder looks at one operator (or fused group) and decides once which torch call eager mode makes for it: numbers
that ONNX passes as tensors (axes, shapes, pads) are taken as host values there, and nothing but the call is left for
the measurement.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

import numpy as np

from gkestimator.core.dtypes import DType
from gkestimator.core.graph import Attribute, Operator, Tensor
from gkestimator.core.kernels import Arrays
from gkestimator.profiling.executors.base import EntryUnsupportedError
from gkestimator.profiling.type_names import Ints

Run: TypeAlias = Callable[..., Any]
"""Takes the operator's inputs in their order (None where omitted, or taken as a host value); gives its output, or a
tuple of outputs."""


Change: TypeAlias = Callable[[Any], Any]
"""What is done to one tensor."""


@dataclass(frozen=True, slots=True)
class Late:
    """A call that can be built only when the tensors are on the device (a recurrent layer's packed weights): ``make``
    gets the inputs and the device and gives the :data:`Run`. ``keeps``: positions of inputs that the call holds in a
    form of its own from then on; it is not given them again."""

    make: Callable[[list[Any], Any], Run]
    keeps: Ints = ()


@dataclass(slots=True, kw_only=True)
class Call:
    """One operator to be called.

    ``known``: values of tensors that are constants, by name. ``static``: names of the tensors that exist before the
    first call (inputs, weights, constants), which can be laid out beforehand. ``group``: the operators that a pattern
    replaced. ``host``: positions of inputs taken as host values; ``prepared``: what is done to static inputs once,
    before anything is measured, by position.
    """

    op: Operator
    known: Arrays
    static: frozenset[str]
    group: tuple[Operator, ...] = ()
    host: set[int] = field(default_factory=set)
    prepared: dict[int, Change] = field(default_factory=dict)

    @property
    def op_type(self) -> str:
        """Return the operator's type."""
        return self.op.op_type

    @property
    def version(self) -> int:
        """Return the opset that defines the operator."""
        return self.op.version

    def unsupported(self, why: str) -> EntryUnsupportedError:
        """Return the error that says what of the operator this executor does not run."""
        return EntryUnsupportedError(f"torch executor: {self.op_type}: {why}")

    def has(self, position: int) -> bool:
        """Return True where input ``position`` is there."""
        return _at(self.op.inputs, position) is not None

    def wants(self, position: int) -> bool:
        """Return True where output ``position`` is asked for."""
        return _at(self.op.outputs, position) is not None

    def tensor(self, position: int) -> Tensor:
        """Return input ``position``. Raises EntryUnsupportedError where it is omitted or no tensor."""
        value = _at(self.op.inputs, position)
        if not isinstance(value, Tensor):
            raise self.unsupported(f"input {position} is not a tensor")
        return value

    def shape(self, position: int = 0) -> Ints:
        """Return the shape of input ``position``."""
        return self.tensor(position).shape

    @property
    def rank(self) -> int:
        """Return the number of dimensions of the first input."""
        return len(self.shape())

    @property
    def dtype(self) -> DType:
        """Return the element type of the first input."""
        return self.tensor(0).dtype

    def result(self, position: int = 0) -> Tensor:
        """Return output ``position``."""
        value = _at(self.op.outputs, position)
        if not isinstance(value, Tensor):
            raise self.unsupported(f"output {position} is not a tensor")
        return value

    @property
    def result_shape(self) -> Ints:
        """Return the shape of the first output."""
        return self.result().shape

    @property
    def result_kind(self) -> Any:
        """Return torch's element type of the first output."""
        return torch_dtype(self.result().dtype)

    def attribute(self, name: str, default: Attribute = None) -> Any:
        """Return an attribute, or ``default``."""
        value = self.op.attributes.get(name)
        return default if value is None else value

    def real(self, name: str, default: float) -> float:
        """Return an attribute as a float."""
        return float(self.attribute(name, default))

    def whole(self, name: str, default: int) -> int:
        """Return an attribute as a whole number."""
        return int(self.attribute(name, default))

    def text(self, name: str, default: str) -> str:
        """Return an attribute as a text."""
        return str(self.attribute(name, default))

    def flag(self, name: str, default: int = 0) -> bool:
        """Return an attribute as a truth value."""
        return bool(self.attribute(name, default))

    def integers(self, name: str) -> list[int] | None:
        """Return an attribute of whole numbers, None where there is none."""
        value = self.op.attributes.get(name)
        if value is None:
            return None
        if not isinstance(value, tuple):
            raise self.unsupported(f"attribute {name} is {value!r}, expected a list of whole numbers")
        return [int(v) for v in value]

    def peek(self, position: int) -> np.ndarray | None:
        """Return the value of a constant input, which stays a tensor; None where it is no constant or omitted."""
        value = _at(self.op.inputs, position)
        if not isinstance(value, Tensor):
            return None
        if value.value is not None:
            return value.value
        return self.known.get(value.name)

    def peek_number(self, position: int) -> float | int | bool | None:
        """Return a constant input of one element as a python number, None where it is none; it stays a tensor."""
        value = self.peek(position)
        if value is None or value.size != 1:
            return None
        return python_number(value)

    def constant(self, position: int) -> np.ndarray | None:
        """Return the value of an input as a host value (it is not passed to the call); None where it is omitted. Raises
        EntryUnsupportedError where it is there and not constant."""
        if not self.has(position):
            return None
        value = self.peek(position)
        if value is None:
            raise self.unsupported(f"input {position} ({self.tensor(position).name}) is not a constant")
        self.host.add(position)
        return value

    def numbers(self, position: int) -> list[int] | None:
        """Return the whole numbers of a constant input, None where it is omitted."""
        value = self.constant(position)
        if value is None:
            return None
        return [int(v) for v in np.asarray(value).reshape(-1)]

    def scalar(self, position: int) -> Any:
        """Return a constant input of one element as a python number, None where it is omitted."""
        value = self.constant(position)
        if value is None:
            return None
        if value.size != 1:
            raise self.unsupported(f"input {position} has {value.size} elements, expected 1")
        return python_number(value)

    def drop_inputs(self, first: int = 1) -> None:
        """Take the inputs from ``first`` on as host values: shapes say all that the call needs of them."""
        self.host.update(range(first, len(self.op.inputs)))

    def is_static(self, position: int) -> bool:
        """Return True where input ``position`` exists before the first call."""
        return self.tensor(position).name in self.static

    def prepare(self, position: int, change: Change) -> Change:
        """Lay a static input out beforehand. Returns what the call itself must still apply to its input: nothing for a
        static one, ``change`` for a result of an earlier call."""
        # Exporters store weights in ONNX's layout; an author's module holds them ready, so laying out is not
        # measured.
        if self.is_static(position):
            self.prepared[position] = change
            return as_it_is
        return change

    def axis(self, name: str, default: int, rank: int | None = None) -> int:
        """Return an attribute that names one of ``rank`` dimensions (None: of the first input), as a number from 0."""
        return self.dimension(self.whole(name, default), rank)

    def dimension(self, axis: int, rank: int | None = None) -> int:
        """Return ``axis``, counted from the front, of ``rank`` dimensions (None: of the first input)."""
        if rank is None:
            rank = self.rank
        if not -rank <= axis < max(rank, 1):
            raise self.unsupported(f"axis {axis} of a tensor of {rank} dimensions")
        return axis % rank if rank else 0


def _at(values: Sequence[Any], position: int) -> Any:
    """Return the operand at ``position``; None for one that is omitted, at the end or in between."""
    if position < len(values):
        return values[position]
    return None


def calling(function: Callable[..., Any]) -> Run:
    """Return ``function`` as the call itself: torch types many of its functions as Any."""
    return function


def as_it_is(value: Any) -> Any:
    """Return ``value``: what is left to do to a tensor that was laid out beforehand."""
    return value


def python_number(value: np.ndarray) -> float | int | bool:
    """Return the only element of ``value`` as Python's number of its kind."""
    only = value.reshape(-1)[0]
    if value.dtype == np.bool_:
        return bool(only)
    if np.issubdtype(value.dtype, np.integer):
        return int(only)
    return float(only)


Builder: TypeAlias = "Callable[[Call], Run | Late]"
Key = TypeVar("Key", str, tuple[str, str])
CALLS: dict[tuple[str, str], Builder] = {}
PATTERN_CALLS: dict[str, Builder] = {}


def _registering(table: dict[Key, Builder], keys: Sequence[Key]) -> Callable[[Builder], Builder]:
    def register(builder: Builder) -> Builder:
        for key in keys:
            # The later one would win silently, and its file's order of import decide what is measured.
            if key in table:
                raise AssertionError(f"two torch calls for {key}")
            table[key] = builder
        return builder

    return register


def torch_call(*op_types: str, domain: str = "") -> Callable[[Builder], Builder]:
    """Register a builder under exact keys; a key registered twice is a programming error."""
    return _registering(CALLS, [(domain, op_type) for op_type in op_types])


def pattern_call(*names: str) -> Callable[[Builder], Builder]:
    """Register a builder under the names of fused patterns (``lowering.patterns.Match.name``)."""
    return _registering(PATTERN_CALLS, names)


def build_call(call: Call, pattern: str = "") -> Run | Late:
    """Return the call of an operator, or of the group that ``pattern`` names. Raises EntryUnsupportedError."""
    # A pattern without a call of its own is called as the operator that it was fused into.
    builder = PATTERN_CALLS.get(pattern) if pattern else None
    builder = builder or CALLS.get(call.op.key)
    if builder is None:
        named = f"{call.op.domain}.{call.op_type}".lstrip(".")
        raise EntryUnsupportedError(f"torch executor: no call for {named}")
    return builder(call)


_SAME_NAMES = [
    "float16",
    "bfloat16",
    "bool",
    "uint8",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint16",
    "uint32",
    "uint64",
    "complex64",
    "complex128",
]
_TORCH_DTYPES = {DType.FLOAT: "float32", DType.DOUBLE: "float64"} | {
    DType(name): name for name in _SAME_NAMES
}


def torch_dtype(dtype: DType) -> Any:
    """Return torch's name of an element type. Raises EntryUnsupportedError where eager mode has no kernels for it."""
    import torch

    name = _TORCH_DTYPES.get(dtype)
    if name is None:
        raise EntryUnsupportedError(f"torch executor: no tensors of element type {dtype.value}")
    return getattr(torch, name)
