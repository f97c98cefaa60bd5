"""From a fragment to the calls that eager mode makes for it, in order.

The groups are those that the lowering rules predict for torch, so what is measured is what is predicted.
"""

from __future__ import annotations

import numpy as np

from gkestimator.core.dtypes import DType, Precision
from gkestimator.core.fragments import Fragment
from gkestimator.core.graph import Operator, OperatorGraph, Tensor
from gkestimator.core.kernels import Arrays
from gkestimator.core.records import frozen
from gkestimator.lowering import LoweringOptions, lower
from gkestimator.lowering.patterns import find_matches
from gkestimator.onnx_io.fragment_models import fragment_graph
from gkestimator.profiling.executors.base import EntryUnsupportedError
from gkestimator.profiling.executors.torch_calls.registry import Call, Late, Run, build_call
from gkestimator.profiling.type_names import Names

_PRECISIONS = {
    "fp32": (Precision.FP32, None),
    "tf32": (Precision.TF32, None),
    "fp16": (Precision.FP16, Precision.FP16),
    "bf16": (Precision.BF16, Precision.BF16),
}


@frozen
class CallStep:
    """Hold one call: what it is called with and what it gives, by name (an empty name for what is omitted,
    taken as a host value, or not asked for)."""

    call: Call
    run: Run | Late
    inputs: Names
    outputs: Names


@frozen
class CallProgram:
    """Hold the calls of a fragment. ``outputs``: names of its results. ``folded``: names of tensors that
    depend on weights alone, which the graph therefore holds as weights."""

    steps: tuple[CallStep, ...]
    outputs: Names
    folded: frozenset[str]


def lowering_options(dtype: str) -> LoweringOptions:
    """Return how eager mode runs an entry of that arithmetic."""
    matrix, half = _PRECISIONS[dtype]
    return LoweringOptions(
        runtime="torch", dtype=dtype, matmul_precision=matrix, conv_precision=matrix, half=half
    )


def program_of(fragment: Fragment, dtype: str) -> CallProgram:
    """Return the calls of ``fragment``. Raises EntryUnsupportedError for what eager mode has no call for, or
    where nothing is launched; ModelError for a fragment that is no valid model."""
    graph = fragment_graph(fragment)
    options = lowering_options(dtype)
    # What launches nothing would be measured as the Python call around it.
    if not any(step.kernels or step.unknown for step in lower(graph, options, allow_unknown=True).steps):
        raise EntryUnsupportedError(f"torch executor: {fragment.op_type} launches nothing in eager mode")
    # Axes, shapes and pads are numbers to an author: the calls take them as Python's.
    known = {
        t.name: np.asarray(t.values).astype(kind).reshape(t.shape)
        for t in fragment.tensors
        if t.values is not None and t.elements and (kind := _host_type(t.dtype)) is not None
    }
    made = {v.name for op in graph.operators for v in op.outputs if v is not None}
    named = {v.name for op in graph.operators for v in op.inputs if v is not None}
    static = frozenset(named - made)
    steps = tuple(_steps(graph, options, known, static))
    own = {t.name for t in fragment.tensors}
    needed = {name for step in steps for name in step.inputs if name}
    return CallProgram(
        steps=steps,
        outputs=tuple(v.name for v in graph.outputs),
        folded=frozenset((needed & static) - own),
    )


def _steps(
    graph: OperatorGraph, options: LoweringOptions, known: Arrays, static: frozenset[str]
) -> list[CallStep]:
    # The same matches as the lowering's: what is measured is what is predicted.
    matches = find_matches(graph, options)
    at = {match.position: match for match in matches}
    covered = {index for match in matches for index in match.covered}
    steps = []
    for index, op in enumerate(graph.operators):
        match = at.get(index)
        if match is not None:
            group = tuple(graph.operators[i] for i in match.covered)
            steps.append(_step(match.operator, match.name, group, known, static))
        elif index not in covered:
            # A loop's body runs as often as its counter says, which one call cannot stand for.
            if op.repeat != 1:
                raise EntryUnsupportedError(f"torch executor: {op.op_type} runs {op.repeat} times, in a loop")
            steps.append(_step(op, "", (), known, static))
    return steps


def _step(
    op: Operator,
    pattern: str,
    group: tuple[Operator, ...],
    known: Arrays,
    static: frozenset[str],
) -> CallStep:
    for value in (*op.inputs, *op.outputs):
        if value is not None and not isinstance(value, Tensor):
            raise EntryUnsupportedError(f"torch executor: {op.op_type}: {value.name} is a sequence")
    call = Call(op=op, known=known, static=static, group=group)
    run = build_call(call, pattern)
    return CallStep(
        call=call,
        run=run,
        inputs=tuple(
            "" if value is None or position in call.host else value.name
            for position, value in enumerate(op.inputs)
        ),
        outputs=tuple("" if value is None else value.name for value in op.outputs),
    )


def _host_type(dtype: DType) -> str | None:
    """Return a type of numpy's own that holds host values of an element type; None where numbers cannot."""
    if dtype.is_floating:
        return {DType.DOUBLE: "float64", DType.FLOAT16: "float16"}.get(dtype, "float32")
    if dtype is DType.BOOL:
        return "bool"
    if not dtype.is_integer:
        return None
    if dtype.bits >= 8:
        return dtype.value
    return "int8"
