"""The one place that checks what a lowering rule of a plug-in returned.

What a rule may return is small, so a mistake in it is found here, with the rule's name and file, and not as a
wrong figure or a traceback far away. Built-in rules are held to the same by a test, which costs no estimate time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gkestimator.core.dtypes import Precision
from gkestimator.core.errors import ModelError
from gkestimator.core.graph import Operator
from gkestimator.core.kernels import ConvShape, Family, GemmShape, Kernel
from gkestimator.operators.records import rule_location
from gkestimator.operators.registry import Lowered

_COUNTS = (
    "flops",
    "read_bytes",
    "write_bytes",
    "weight_bytes",
    "rows",
    "cols",
    "inputs",
    "workspace_bytes",
    "sequences",
)
_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "name": str,
    "family": Family,
    "variant": str,
    "precision": Precision,
    "gemm": (GemmShape, type(None)),
    "conv": (ConvShape, type(None)),
}


def checked_result(rule: Callable[..., Any], op: Operator, result: object) -> Lowered:
    """Return ``result`` when it is what a rule may say of ``op``.

    Raises ModelError naming the node, the rule and the file it stands in.
    """
    fault = _fault(op, result)
    if fault:
        if op.domain:
            title = f"{op.domain}.{op.op_type}"
        else:
            title = op.op_type
        raise ModelError(f"node {op.name!r} ({title}): {rule_location(rule)} {fault}")
    assert isinstance(result, Lowered)
    return result


def _fault(op: Operator, result: object) -> str:
    """Return what is wrong with ``result``; empty when nothing is."""
    if type(result) is not Lowered:
        return f"returned {_named(result)}, expected Lowered"
    if type(result.kernels) is not tuple:
        return f"returned kernels of type {_named(result.kernels)}, expected a tuple of Kernel"
    for place, kernel in enumerate(result.kernels):
        fault = _kernel_fault(kernel)
        if fault:
            return f"returned kernel {place} {fault}"
    if not _is_count(result.host_calls):
        return f"returned host_calls {result.host_calls!r}, expected an integer of at least 0"
    return _alias_fault(op, result.aliases)


def _kernel_fault(kernel: object) -> str:
    if type(kernel) is not Kernel:
        return f"of type {_named(kernel)}, expected Kernel"
    for name in _COUNTS:
        count = getattr(kernel, name)
        if not _is_count(count):
            return f"with {name} {count!r}, expected an integer of at least 0"
    for name, expected in _TYPES.items():
        value = getattr(kernel, name)
        if not isinstance(value, expected):
            return f"with {name} {value!r}, which is {_named(value)}"
    size = kernel.element_bytes
    if not isinstance(size, int | float) or not math.isfinite(size) or size < 0:
        return f"with element_bytes {size!r}, expected a finite number of at least 0"
    return ""


def _alias_fault(op: Operator, aliases: object) -> str:
    if not isinstance(aliases, Mapping):
        return f"returned aliases {aliases!r}, expected a mapping"
    for output, source in aliases.items():
        if not (_is_count(output) and output < len(op.outputs)):
            return f"returned an alias of output {output!r}, expected one of the {len(op.outputs)} outputs"
        if not (_is_count(source) and source < len(op.inputs)):
            return f"returned an alias to input {source!r}, expected one of the {len(op.inputs)} inputs"
    return ""


def _is_count(value: object) -> bool:
    if type(value) is int:
        return value >= 0
    return isinstance(value, np.integer) and int(value) >= 0  # of a product of NumPy's; bool is no count


def _named(value: object) -> str:
    return type(value).__name__
