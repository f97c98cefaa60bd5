"""Rule results by operator signature: a model repeats its operators, and a scheduler its models.

The signature is everything a rule may depend on: exact key, opset version, attributes, the element type,
shape and weight
flag of every value, which operands are the same tensor, and the values of small constants for the operators
that
look at them. Equal signatures share one Lowered, so equal kernels are one object.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np

from gkestimator.errors import ModelError
from gkestimator.graph import Attribute, Operator, Tensor, Value
from gkestimator.kernels import Kernel
from gkestimator.lowering.registry import LOWERINGS, Lowered, LoweringOptions

__all__ = ["interned", "lower_operator", "memo_of"]

_LIMIT = 200_000  # entries; a long-lived process starts over rather than grow
Memo: TypeAlias = "dict[tuple[object, ...], Lowered]"
_MEMOS: dict[LoweringOptions, Memo] = {}
_ATTRIBUTES: dict[int, tuple[Mapping[str, Attribute], object]] = {}
# Operators whose work depends on the value of a small constant, not only on shapes.
_VALUE_KEYED = frozenset({"Pow", "CumSum", "CumProd", "DFT", "Dropout"})
_MOST_VALUES = 64  # elements of a constant that take part in a signature


def _attribute_key(attributes: Mapping[str, Attribute]) -> object:
    if not attributes:
        return ()
    known = _ATTRIBUTES.get(id(attributes))
    if known is not None and known[0] is attributes:
        return known[1]
    key = tuple(sorted((name, _attribute_value(value)) for name, value in attributes.items()))
    if len(_ATTRIBUTES) >= _LIMIT:
        _ATTRIBUTES.clear()
    _ATTRIBUTES[id(attributes)] = (attributes, key)
    return key


def _attribute_value(value: Attribute) -> str:
    if isinstance(value, np.ndarray):
        small = value.tobytes() if value.size <= _MOST_VALUES and value.dtype != object else b""
        return f"array {value.dtype} {value.shape} {small!r}"
    return repr(value)


def _signature(op: Operator) -> tuple[object, ...]:
    # An Enum hashes in Python code, its value does not: signatures hold values.
    parts: list[object] = [op.domain, op.op_type, op.version, _attribute_key(op.attributes)]
    names: list[str] = []
    for value in op.inputs:
        if value is None:
            parts.append(None)
        elif isinstance(value, Tensor):
            parts.append((value.dtype._value_, value.shape, value.is_weight))
            names.append(value.name)
        else:
            parts.append(tuple((t.dtype, t.shape, t.is_weight) for t in value.elements_))
            names.extend(t.name for t in value.elements_)
    parts.append("->")
    for value in op.outputs:
        if value is None:
            parts.append(None)
        elif isinstance(value, Tensor):
            parts.append((value.dtype._value_, value.shape))
        else:
            parts.append(tuple((t.dtype, t.shape) for t in value.elements_))
    if len(set(names)) != len(names):
        parts.append(tuple(names.index(name) for name in names))
    if op.op_type in _VALUE_KEYED:
        parts.extend(_value_key(value) for value in op.inputs)
    return tuple(parts)


def _value_key(value: Value | None) -> object:
    if isinstance(value, Tensor) and value.value is not None and value.value.size <= _MOST_VALUES:
        return value.value.tobytes()
    return None


def interned(kernels: tuple[Kernel, ...]) -> tuple[Kernel, ...]:
    """``kernels`` as the objects that equal ones already are: whoever comes after deduplicates by identity."""
    if len(_KERNELS) >= _LIMIT:
        _KERNELS.clear()
        _GROUPS.clear()
    same = tuple(_KERNELS.setdefault(k, k) for k in kernels)
    return _GROUPS.setdefault(tuple(map(id, same)), same)


_KERNELS: dict[Kernel, Kernel] = {}
_GROUPS: dict[tuple[int, ...], tuple[Kernel, ...]] = {}  # by the ids of kernels in _KERNELS, which keeps them


def memo_of(options: LoweringOptions) -> Memo:
    """The results remembered under ``options``, looked up once a model: hashing the options is not free."""
    return _MEMOS.setdefault(options, {})


def lower_operator(op: Operator, options: LoweringOptions, memo: Memo) -> Lowered:
    """What the rule of ``op`` says, from memory where it said so before. ModelError names the node a rule
    cannot digest.
    """
    rule = LOWERINGS[(op.domain, op.op_type)]
    signature = (rule, *_signature(op))
    lowered = memo.get(signature)
    if lowered is None:
        try:
            lowered = rule(op, options)
        except (
            ArithmeticError, AttributeError, LookupError, TypeError, ValueError
        ) as error:  # fmt: skip
            raise ModelError(
                f"node {op.name!r} ({op.op_type}): cannot be lowered from these inputs and attributes "
                f"({type(error).__name__}: {error})"
            ) from error
        if all(v is None or (isinstance(v, Tensor) and v.elements == 0) for v in op.outputs) and op.outputs:
            lowered = Lowered(kernels=(), host_calls=lowered.host_calls, aliases=lowered.aliases)
        if lowered.kernels:
            lowered = Lowered(
                kernels=interned(lowered.kernels), host_calls=lowered.host_calls, aliases=lowered.aliases
            )
        if len(memo) >= _LIMIT:
            memo.clear()
        memo[signature] = lowered
    return lowered
