"""Small fragments in a few words each, for the tests of the torch executor."""

from __future__ import annotations

from typing import Any

import numpy as np

from gkestimator.core.dtypes import DType
from gkestimator.core.fragments import Fragment, FragmentNode, FragmentTensor
from gkestimator.onnx_io.fragment_models import fragment_model
from gkestimator.profiling.executors.data import fill, tensor_rng
from gkestimator.profiling.plan import PlanEntry, entry_id

Shape = tuple[int, ...]


def tensor(
    name: str, *shape: int, dtype: DType = DType.FLOAT, role: str = "input", **more: Any
) -> FragmentTensor:
    """An input of normal numbers, unless told otherwise."""
    return FragmentTensor(name=name, dtype=dtype, shape=shape, role=role, **more)


def weight(name: str, *shape: int, dtype: DType = DType.FLOAT) -> FragmentTensor:
    """A weight."""
    return tensor(name, *shape, dtype=dtype, role="weight")


def constant(
    name: str, *values: float, dtype: DType = DType.FLOAT, shape: Shape | None = None
) -> FragmentTensor:
    """A constant with its values; one value is a scalar."""
    form = shape if shape is not None else (() if len(values) == 1 else (len(values),))
    return tensor(name, *form, dtype=dtype, role="constant", fill="value", values=values)


def node(op_type: str, inputs: str, outputs: str, domain: str = "", **attributes: Any) -> FragmentNode:
    """A node by the names of its values, separated by blanks; ``-`` stands for an omitted one."""
    names = [[n.replace("-", "") for n in text.split()] for text in (inputs, outputs)]
    return FragmentNode(
        op_type=op_type, domain=domain, attributes=attributes, inputs=tuple(names[0]), outputs=tuple(names[1])
    )


def fragment(
    tensors: list[FragmentTensor], *nodes: FragmentNode, pattern: str = "", opset: int = 17, outputs: str = ""
) -> Fragment:
    """A fragment whose outputs are those of its last node, unless named."""
    return Fragment(
        opsets={"": opset},
        nodes=nodes,
        tensors=tuple(tensors),
        outputs=tuple(outputs.split()) or nodes[-1].outputs,
        pattern=pattern,
    )


def entry(found: Fragment, dtype: str = "fp32") -> PlanEntry:
    """An entry of a plan."""
    return PlanEntry(id=entry_id(found, dtype), fragment=found, dtype=dtype, source="test")


def reference(found: Fragment, dtype: str = "fp32", seed: int = 0) -> list[np.ndarray]:
    """What ONNX's reference evaluator (below opset 17 ONNX Runtime) makes of the very data that an executor fills in."""
    from onnx.reference import ReferenceEvaluator

    name = entry_id(found, dtype)
    values = {t.name: fill(t, tensor_rng(name, t.name, seed)) for t in found.tensors}
    model = fragment_model(found, lambda t: values[t.name])
    inputs = {t.name: values[t.name] for t in found.tensors if t.role == "input"}
    if found.opsets[""] < 17:  # old forms, which the evaluator takes for today's, and layers it does not know
        import onnxruntime

        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        return [np.asarray(r) for r in session.run(list(found.outputs), inputs)]
    return [np.asarray(r) for r in ReferenceEvaluator(model).run(list(found.outputs), inputs)]
