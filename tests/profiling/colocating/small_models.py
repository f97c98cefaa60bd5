"""Whole models of a few nodes, as a plan has them."""

from __future__ import annotations

from dataclasses import replace

from gkestimator.core.dtypes import DType
from gkestimator.core.fragments import Fragment, FragmentNode, FragmentTensor
from gkestimator.profiling.plan import ModelPoint, PlanEntry, SweepPlan, entry_id


def mlp(
    name: str,
    width: int = 64,
    *,
    layers: int = 2,
    batch: int = 1,
    dtype: str = "fp32",
    dims: dict[str, int] | None = None,
) -> PlanEntry:
    """Matrix products and Relus in turn."""
    tensors = [FragmentTensor(name="x", dtype=DType.FLOAT, shape=(batch, width))]
    nodes, at = [], "x"
    for i in range(layers):
        tensors.append(FragmentTensor(name=f"w{i}", dtype=DType.FLOAT, shape=(width, width), role="weight"))
        for op, inputs, output in (("MatMul", (at, f"w{i}"), f"p{i}"), ("Relu", (f"p{i}",), f"r{i}")):
            nodes.append(FragmentNode(op_type=op, domain="", attributes={}, inputs=inputs, outputs=(output,)))
            at = output
    fragment = Fragment(
        opsets={"": 17}, nodes=tuple(nodes), tensors=tuple(tensors), outputs=(at,), pattern=f"model:{name}"
    )
    return PlanEntry(
        id=entry_id(fragment, dtype),
        fragment=fragment,
        dtype=dtype,
        source=f"model:{name}",
        model=ModelPoint(name=name, batch_size=batch, dims=dims or {}),
    )


def unsupported(name: str) -> PlanEntry:
    """A model with an operator that no executor knows."""
    entry = mlp(name)
    node = replace(entry.fragment.nodes[0], op_type="Nonesuch")
    fragment = replace(entry.fragment, nodes=(node, *entry.fragment.nodes[1:]))
    return replace(entry, id=entry_id(fragment, "fp32"), fragment=fragment)


def plan(*entries: PlanEntry, runtime: str = "torch") -> SweepPlan:
    """A plan of them."""
    return SweepPlan(runtime=runtime, entries=entries, seed=0)
