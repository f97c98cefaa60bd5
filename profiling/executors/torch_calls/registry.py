"""What a builder is given, what it gives, and the tables of builders.

A builder looks at one operator (or fused group) and decides once which torch call eager mode makes for it: numbers
that ONNX passes as tensors (axes, shapes, pads) are taken as host values there, and nothing but the call is left for
the measurement.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from gkestimator.core.dtypes import DType
from gkestimator.core.graph import Attribute, Operator, Tensor
from gkestimator.profiling.executors.base import EntryUnsupportedError

Run: TypeAlias = Callable[..., Any]
"""Takes the operator's inputs in their order (None where omitted, or taken as a host value); gives its output, or a
tuple of outputs."""


@dataclass(frozen=True, slots=True)
class Late:
    """A call that can be built only when the tensors are on the device (a recurrent layer's packed weights): ``make``
    gets the inputs and the device and gives the :data:`Run`. ``keeps``: positions of inputs that the call holds in a
    form of its own from then on; it is not given them again."""

    make: Callable[[list[Any], Any], Run]
    keeps: tuple[int, ...] = ()


@dataclass(slots=True, kw_only=True)
class Call:
    """One operator to be called.

    ``known``: values of tensors that are constants, by name. ``static``: names of the tensors that exist before the
    first call (inputs, weights, constants), which can be laid out beforehand. ``group``: the operators that a pattern
    replaced. ``host``: positions of inputs taken as host values; ``prepared``: what is done to static inputs once,
    before anything is measured, by position.
    """

    op: Operator
    known: Mapping[str, np.ndarray]
    static: frozenset[str]
    group: tuple[Operator, ...] = ()
    host: set[int] = field(default_factory=set)
    prepared: dict[int, Callable[[Any], Any]] = field(default_factory=dict)

    def unsupported(self, why: str) -> EntryUnsupportedError:
        """The error that says what of the operator this executor does not run."""
        return EntryUnsupportedError(f"torch executor: {self.op.op_type}: {why}")

    def has(self, position: int) -> bool:
        """Whether input ``position`` is given."""
        return position < len(self.op.inputs) and self.op.inputs[position] is not None

    def wants(self, position: int) -> bool:
        """Whether output ``position`` is asked for."""
        return position < len(self.op.outputs) and self.op.outputs[position] is not None

    def tensor(self, position: int) -> Tensor:
        """Input ``position``. Raises EntryUnsupportedError where it is omitted or no tensor."""
        if position < len(self.op.inputs):
            value = self.op.inputs[position]
        else:
            value = None
        if not isinstance(value, Tensor):
            raise self.unsupported(f"input {position} is not a tensor")
        return value

    def shape(self, position: int = 0) -> tuple[int, ...]:
        """Shape of input ``position``."""
        return self.tensor(position).shape

    def result(self, position: int = 0) -> Tensor:
        """Output ``position``."""
        if position < len(self.op.outputs):
            value = self.op.outputs[position]
        else:
            value = None
        if not isinstance(value, Tensor):
            raise self.unsupported(f"output {position} is not a tensor")
        return value

    def attribute(self, name: str, default: Attribute = None) -> Any:
        """An attribute, or ``default``."""
        value = self.op.attributes.get(name)
        return default if value is None else value

    def integers(self, name: str) -> list[int] | None:
        """An attribute of whole numbers, None where there is none."""
        value = self.op.attributes.get(name)
        if value is None:
            return None
        if not isinstance(value, tuple):
            raise self.unsupported(f"attribute {name} is {value!r}, expected a list of whole numbers")
        return [int(v) for v in value]

    def peek(self, position: int) -> np.ndarray | None:
        """The value of a constant input, which stays a tensor; None where it is no constant or omitted."""
        if position < len(self.op.inputs):
            value = self.op.inputs[position]
        else:
            value = None
        if not isinstance(value, Tensor):
            return None
        if value.value is not None:
            return value.value
        return self.known.get(value.name)

    def constant(self, position: int) -> np.ndarray | None:
        """The value of an input as a host value (it is not passed to the call); None where it is omitted. Raises
        EntryUnsupportedError where it is given and not constant."""
        if not self.has(position):
            return None
        found = self.peek(position)
        if found is None:
            raise self.unsupported(f"input {position} ({self.tensor(position).name}) is not a constant")
        self.host.add(position)
        return found

    def numbers(self, position: int) -> list[int] | None:
        """Whole numbers of a constant input, None where it is omitted."""
        found = self.constant(position)
        if found is None:
            return None
        return [int(v) for v in np.asarray(found).reshape(-1)]

    def scalar(self, position: int) -> Any:
        """A constant input of one element as a python number, None where it is omitted."""
        found = self.constant(position)
        if found is None:
            return None
        if found.size != 1:
            raise self.unsupported(f"input {position} has {found.size} elements, expected 1")
        return python_number(found)

    def is_static(self, position: int) -> bool:
        """Whether input ``position`` exists before the first call."""
        return self.tensor(position).name in self.static

    def prepare(self, position: int, change: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Lay a static input out beforehand. Gives what the call itself must still apply to its input: nothing for a
        static one, ``change`` for a result of an earlier call."""
        if self.is_static(position):
            self.prepared[position] = change
            return _as_it_is
        return change

    def axis(self, name: str, default: int, rank: int) -> int:
        """An attribute that names one of ``rank`` dimensions, as a number from 0."""
        return self.dimension(int(self.attribute(name, default)), rank)

    def dimension(self, axis: int, rank: int) -> int:
        """``axis``, counted from the front."""
        if not -rank <= axis < max(rank, 1):
            raise self.unsupported(f"axis {axis} of a tensor of {rank} dimensions")
        return axis % rank if rank else 0


def calling(function: Callable[..., Any]) -> Run:
    """``function`` as the call itself."""
    return function


def _as_it_is(value: Any) -> Any:
    return value


def python_number(value: np.ndarray) -> float | int | bool:
    """The only element of ``value`` as Python's number of its kind."""
    only = value.reshape(-1)[0]
    if value.dtype == np.bool_:
        return bool(only)
    if np.issubdtype(value.dtype, np.integer):
        return int(only)
    return float(only)


Builder: TypeAlias = "Callable[[Call], Run | Late]"
CALLS: dict[tuple[str, str], Builder] = {}
PATTERN_CALLS: dict[str, Builder] = {}


def torch_call(*op_types: str, domain: str = "") -> Callable[[Builder], Builder]:
    """Register a builder under exact keys; a key registered twice is a programming error."""

    def register(builder: Builder) -> Builder:
        for op_type in op_types:
            key = (domain, op_type)
            if key in CALLS:
                raise AssertionError(f"two torch calls for {key}")
            CALLS[key] = builder
        return builder

    return register


def pattern_call(*names: str) -> Callable[[Builder], Builder]:
    """Register a builder under the names of fused patterns (``lowering.patterns.Match.name``)."""

    def register(builder: Builder) -> Builder:
        for name in names:
            if name in PATTERN_CALLS:
                raise AssertionError(f"two torch calls for pattern {name}")
            PATTERN_CALLS[name] = builder
        return builder

    return register


def build_call(call: Call, pattern: str = "") -> Run | Late:
    """The call of an operator, or of the group that ``pattern`` names. Raises EntryUnsupportedError."""
    builder = PATTERN_CALLS.get(pattern) if pattern else None
    builder = builder or CALLS.get(call.op.key)
    if builder is None:
        named = f"{call.op.domain}.{call.op.op_type}".lstrip(".")
        raise EntryUnsupportedError(f"torch executor: no call for {named}")
    return builder(call)


_TORCH_DTYPES = {
    DType.FLOAT: "float32", DType.DOUBLE: "float64", DType.FLOAT16: "float16", DType.BFLOAT16: "bfloat16",
    DType.BOOL: "bool", DType.UINT8: "uint8", DType.INT8: "int8", DType.INT16: "int16", DType.INT32: "int32",
    DType.INT64: "int64", DType.UINT16: "uint16", DType.UINT32: "uint32", DType.UINT64: "uint64",
    DType.COMPLEX64: "complex64", DType.COMPLEX128: "complex128",
}  # fmt: skip


def torch_dtype(dtype: DType) -> Any:
    """torch's name of an element type. Raises EntryUnsupportedError for one that eager mode has no kernels for."""
    import torch

    name = _TORCH_DTYPES.get(dtype)
    if name is None:
        raise EntryUnsupportedError(f"torch executor: no tensors of element type {dtype.value}")
    return getattr(torch, name)


def spatial(call: Call, name: str, rank: int, default: int) -> list[int]:
    """A spatial attribute, filled up with ``default``."""
    found = call.integers(name)
    if found is None:
        return [default] * rank
    if len(found) != rank:
        raise call.unsupported(f"attribute {name} has {len(found)} numbers, expected {rank}")
    return found


def window_pads(
    call: Call, source: Sequence[int], window: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Padding before and after each spatial dimension, by ``pads`` or ``auto_pad``."""
    rank = len(source)
    mode = str(call.attribute("auto_pad", "NOTSET"))
    if mode in ("NOTSET", ""):
        pads = call.integers("pads") or [0] * (2 * rank)
        if len(pads) != 2 * rank:
            raise call.unsupported(f"attribute pads has {len(pads)} numbers, expected {2 * rank}")
        return pads[:rank], pads[rank:]
    before = [0] * rank
    after = [0] * rank
    if mode == "VALID":
        return before, after
    if mode not in ("SAME_UPPER", "SAME_LOWER"):
        raise call.unsupported(f"auto_pad {mode!r}")
    for i in range(rank):
        extent = dilations[i] * (window[i] - 1) + 1
        total = max(0, (-(-source[i] // strides[i]) - 1) * strides[i] + extent - source[i])
        before[i] = total // 2 if mode == "SAME_UPPER" else total - total // 2
        after[i] = total - before[i]
    return before, after


def frame(before: Sequence[int], after: Sequence[int]) -> list[int]:
    """torch.nn.functional.pad's argument: last dimension first."""
    return [n for pair in zip(reversed(before), reversed(after), strict=True) for n in pair]
