"""Lower ONNX's node tests and examples of single operators, and count the arithmetic of their reference."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, helper

from gkestimator.core.dtypes import Precision
from gkestimator.core.errors import GkestimatorError
from gkestimator.core.graph import OperatorGraph
from gkestimator.lowering import LoweringOptions, lower
from gkestimator.onnx_io import read_model

from .counted_numbers import CountedArray, counting

__all__ = ["Key", "NodeCase", "arrays_of", "bound", "count_reference", "lowered", "node_cases"]

Key = tuple[str, str]
_LARGEST_HOST_VALUE = 64  # elements of an input that may steer a shape: axes, sizes, depths


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCase:
    """Hold one operator with inputs and the outputs that its reference must give (None: nobody computed them)."""

    name: str
    key: Key
    model: ModelProto
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...] | None

    @property
    def attributes(self) -> dict[str, Any]:
        """Return the node's attributes as Python values."""
        return {a.name: helper.get_attribute_value(a) for a in self.model.graph.node[0].attribute}


def node_cases() -> Iterator[NodeCase]:
    """Yield ONNX's backend node tests that hold exactly one operator."""
    from onnx.backend.test.loader import load_node_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the reference implementations divide by zero on purpose
        cases = load_node_model_tests()
    for case in cases:
        nodes = case.model.graph.node
        if len(nodes) == 1 and case.data_sets:
            inputs, outputs = case.data_sets[0]
            domain = "" if nodes[0].domain == "ai.onnx" else nodes[0].domain
            yield NodeCase(
                name=case.name,
                key=(domain, nodes[0].op_type),
                model=case.model,
                inputs=tuple(inputs),
                outputs=tuple(outputs),
            )


def arrays_of(case: NodeCase) -> list[Any]:
    """Return the inputs by position of the node, None where one is omitted."""
    by_name = dict(zip((i.name for i in case.model.graph.input), case.inputs, strict=True))
    return [by_name.get(name) for name in case.model.graph.node[0].input]


def bound(case: NodeCase, folder: Path) -> OperatorGraph | None:
    """Return the case as an operator graph, or None for a model that cannot be bound from shapes and small values."""
    path = folder / "case.onnx"
    path.write_bytes(case.model.SerializeToString())
    small = {}
    for info, array in zip(case.model.graph.input, case.inputs, strict=True):
        whole = isinstance(array, np.ndarray) and array.dtype.kind in "iu"
        if whole and array.size <= _LARGEST_HOST_VALUE:
            small[info.name] = array
    for attempt in ({}, {"inputs": small}):
        try:
            return read_model(path, name=case.name).bind(**attempt)
        except GkestimatorError:
            continue
    return None


def lowered(graph: OperatorGraph, runtime: str) -> tuple[int, int]:
    """Return the FLOPs and the host calls of ``graph`` in float32 under ``runtime``."""
    options = LoweringOptions(
        runtime=runtime, dtype="fp32", matmul_precision=Precision.FP32, conv_precision=Precision.FP32
    )
    steps = lower(graph, options).steps
    return sum(k.flops for s in steps for k in s.kernels), sum(s.host_calls for s in steps)


def _counted(array: Any) -> Any:
    return np.asarray(array).view(CountedArray)


def count_reference(case: NodeCase, reference: Callable[..., Any] | None) -> int:
    """Return the operations of ``reference``, or without one of ONNX's evaluator, on the inputs of ``case``.

    Raises AssertionError where the first result is not the expected one: then the reference is another operator.
    """
    with counting() as counter:
        if reference is None:
            from onnx.reference import ReferenceEvaluator

            named = zip((i.name for i in case.model.graph.input), map(_counted, case.inputs), strict=True)
            results = ReferenceEvaluator(case.model).run(None, dict(named))
            result = results[0]
        else:
            operands = [None if a is None else _counted(a) for a in arrays_of(case)]
            result = reference(*operands, **case.attributes)
    if case.outputs is not None:
        result, expected = np.asarray(result), np.asarray(case.outputs[0])
        np.testing.assert_allclose(
            result.astype(np.float64), expected.astype(np.float64), rtol=1e-2, atol=1e-4, err_msg=case.name
        )
    return counter.operations
