"""Rule results by operator signature: a model repeats its operators, and a scheduler its models.

The signature is everything a rule may depend on except constants' values: exact key, opset version, attributes, the
element type, shape and weight flag of every tensor, which of them have a known value, and which operands are the same
tensor. Which values a rule reads is noted while it runs: what it says is remembered under the values that were
read, whole. Equal signatures (and values) share one Lowered, so equal kernels are one object.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import TypeAlias

import numpy as np

from gkestimator.core.dtypes import Precision
from gkestimator.core.errors import ModelError
from gkestimator.core.graph import Attribute, Operator, Tensor
from gkestimator.core.kernels import LIBRARY_FAMILIES, Family, Kernel
from gkestimator.hardware.runtimes import runtime_traits
from gkestimator.lowering.noting import leaf_tensors, with_noting_tensors
from gkestimator.lowering.results import checked_result
from gkestimator.operators.records import OPERATORS, is_built_in
from gkestimator.operators.registry import Kernels, Lowered, LoweringOptions, Shape

CallKey: TypeAlias = "tuple[object, ...]"

_LIMIT = 200_000  # entries; a long-lived process starts over rather than grow
_LONGEST_KEY = 512  # bytes of an array that stand in a key as they are; a digest stands for more


@dataclass(slots=True)
class _ByValues:
    """Hold what a rule says under one signature when it reads values.

    ``read`` are the places, among the operator's tensors, whose value some run of the rule read. It only grows, and
    so do the keys of ``results``: a key of fewer places never equals one of more.
    """

    read: Shape
    results: dict[CallKey, Lowered] = field(default_factory=dict)


Memo: TypeAlias = "dict[tuple[object, ...], Lowered | _ByValues]"
_MEMOS: dict[LoweringOptions, Memo] = {}
_ATTRIBUTES: dict[int, tuple[Mapping[str, Attribute], object]] = {}


def _attribute_key(attributes: Mapping[str, Attribute]) -> object:
    if not attributes:
        return ()
    known = _ATTRIBUTES.get(id(attributes))
    if known is not None and known[0] is attributes:
        return known[1]
    pairs = [(name, _attribute_value(value)) for name, value in attributes.items()]
    key = tuple(sorted(pairs))
    if len(_ATTRIBUTES) >= _LIMIT:
        _ATTRIBUTES.clear()
    _ATTRIBUTES[id(attributes)] = (attributes, key)
    return key


def _attribute_value(value: Attribute) -> str:
    if isinstance(value, np.ndarray):
        return f"array {_array_key(value)!r}"
    return repr(value)


def _array_key(array: np.ndarray) -> CallKey:
    """Return what equals the key of another array only where type, shape and every element agree."""
    if array.dtype == object:
        content = repr(array.tolist()).encode()
    else:
        content = array.tobytes()
    if len(content) > _LONGEST_KEY:
        content = blake2b(content, digest_size=32).digest()
    return (array.dtype.str, array.shape, content)


def _signature(op: Operator) -> CallKey:
    # An Enum hashes in Python code, its value does not: signatures hold values.
    parts: list[object] = [op.domain, op.op_type, op.version, _attribute_key(op.attributes)]
    names: list[str] = []
    for value in op.inputs:
        if value is None:
            parts.append(None)
        elif isinstance(value, Tensor):
            known = value.value is not None
            parts.append((value.dtype._value_, value.shape, value.is_weight, known))
            names.append(value.name)
        else:
            parts.append(tuple((t.dtype, t.shape, t.is_weight, t.value is None) for t in value.elements_))
            names.extend(t.name for t in value.elements_)
    parts.append("->")
    for value in op.outputs:
        if value is None:
            parts.append(None)
        elif isinstance(value, Tensor):
            parts.append((value.dtype._value_, value.shape, value.value is None))
        else:
            parts.append(tuple((t.dtype, t.shape, t.value is None) for t in value.elements_))
    if len(set(names)) != len(names):
        parts.append(tuple(names.index(name) for name in names))
    return tuple(parts)


def _values_read(op: Operator, places: Shape) -> CallKey:
    """Return the key of the values at ``places`` among the tensors of ``op``."""
    tensors = leaf_tensors(op)
    keys: list[object] = []
    for place in places:
        value = tensors[place].value
        keys.append(None if value is None else _array_key(value))
    return tuple(keys)


def interned(kernels: Kernels) -> Kernels:
    """Return ``kernels`` as the objects that equal ones already are: whoever comes after deduplicates by identity."""
    if len(_KERNELS) >= _LIMIT:
        _KERNELS.clear()
        _GROUPS.clear()
    same = tuple(_KERNELS.setdefault(k, k) for k in kernels)
    return _GROUPS.setdefault(tuple(map(id, same)), same)


def of_library(kernels: Kernels, options: LoweringOptions) -> Kernels:
    """Return ``kernels`` as a runtime has them that brings its own products and convolutions: its name is the last word
    of their variants, they know which wider precisions are permitted, and normalisations that write 8 bits calculate
    in half precision. Such a library lays weights out as it likes: how the file has them tells nothing.
    """
    library = runtime_traits(options.runtime).library
    if not library:
        return kernels
    named = []
    for kernel in kernels:
        if kernel.family in LIBRARY_FAMILIES:
            variant = kernel.variant.removesuffix("_nn")
            wider = _wider(kernel.precision, options.permits)
            kernel = replace(kernel, variant=f"{variant}.{library}", permits=wider)
        elif kernel.family in _NEVER_IN_BYTES and kernel.precision in _BYTES and options.half is not None:
            kernel = replace(kernel, precision=options.half)
        named.append(kernel)
    return tuple(named)


_NEVER_IN_BYTES = frozenset({Family.LAYERNORM, Family.SOFTMAX})
_BYTES = frozenset({Precision.INT8, Precision.FP8})


def _wider(precision: Precision, permits: tuple[Precision, ...]) -> tuple[Precision, ...]:
    """Return those of ``permits`` that come after ``precision``; none where it is not among them."""
    if precision not in permits:
        return ()
    return permits[permits.index(precision) + 1 :]


_KERNELS: dict[Kernel, Kernel] = {}
_GROUPS: dict[Shape, Kernels] = {}  # by the ids of kernels in _KERNELS, which keeps them


def memo_of(options: LoweringOptions) -> Memo:
    """Return the results remembered under ``options``, looked up once a model: hashing the options is not free."""
    return _MEMOS.setdefault(options, {})


def lower_operator(op: Operator, options: LoweringOptions, memo: Memo) -> Lowered:
    """Return what the rule of ``op`` says, from memory where it said so before.

    Raises ModelError, which names the node, where the rule cannot digest it or says what no rule may say.
    """
    rule = OPERATORS[op.domain, op.op_type].lowering_rule
    signature = (rule, *_signature(op))
    known = memo.get(signature)
    if known is not None:
        if type(known) is Lowered:
            return known
        assert isinstance(known, _ByValues)
        lowered = known.results.get(_values_read(op, known.read))
        if lowered is not None:
            return lowered
    lowered, read = _run(op, options)
    if len(memo) >= _LIMIT:
        memo.clear()
    if not read and known is None:
        memo[signature] = lowered
        return lowered
    if known is None:
        known = memo[signature] = _ByValues(())
    assert isinstance(known, _ByValues)
    known.read = tuple(sorted(read.union(known.read)))
    if len(known.results) >= _LIMIT:
        known.results.clear()
    known.results[_values_read(op, known.read)] = lowered
    return lowered


def _gives_nothing(op: Operator) -> bool:
    """Return True when every result is unused or an empty tensor: nothing is launched for those."""
    for value in op.outputs:
        if value is None:
            continue
        if not isinstance(value, Tensor) or value.elements > 0:
            return False
    return True


def _run(op: Operator, options: LoweringOptions) -> tuple[Lowered, set[int]]:
    """Return what the rule of ``op`` says, and the places of the tensors whose value it read."""
    rule = OPERATORS[op.domain, op.op_type].lowering_rule
    assert rule is not None
    noting, read = with_noting_tensors(op)
    try:
        result = rule(noting, options)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ModelError(
            f"node {op.name!r} ({op.op_type}): cannot be lowered from these inputs and attributes "
            f"({type(error).__name__}: {error})"
        ) from error
    if is_built_in(rule):
        lowered = result
    else:
        lowered = checked_result(rule, op, result)
    if op.outputs and _gives_nothing(op):
        lowered = replace(lowered, kernels=())
    if lowered.kernels:
        lowered = replace(lowered, kernels=interned(of_library(lowered.kernels, options)))
    return lowered, read
