"""Say what keeps a model from being captured in a CUDA graph, which the host then launches by one call.

A graph is a fixed list of kernels with fixed arguments. Nothing can be captured for which the host must look at a
result in between: a condition or a trip count that depends on data, a size that does, an operator that runs on the
CPU. Runtimes that compile a graph keep a loop as a loop, and capture none. Sources: CUDA programming guide, "Prohibited
and Unhandled Operations" of stream capture; TensorRT developer guide, "CUDA Graphs" (loops, conditionals and
data-dependent shapes); ONNX Runtime, CUDA execution provider, ``enable_cuda_graph`` (no If, Loop and Scan; every node
on the GPU).
"""

from __future__ import annotations

from gkestimator.core.graph import OperatorGraph
from gkestimator.core.kernels import Family, KernelGraph
from gkestimator.core.records import Names
from gkestimator.estimation.remarks import origins_of_bounded_sizes
from gkestimator.hardware.runtimes import runtime_traits

_MOST_NAMED = 3


def obstacles(bound: OperatorGraph, graph: KernelGraph) -> Names:
    """Return what keeps a bound model with the kernels of ``graph`` from being captured: operator types, sorted."""
    held_up = {*graph.unknown_operators, *bound.awaited, *origins_of_bounded_sizes(bound)}
    unrolls = runtime_traits(graph.runtime).eager
    for step in graph.steps:
        if any(kernel.family is Family.HOST for kernel in step.kernels):
            held_up.add(step.op_type)
        if step.repeat > 1 and not unrolls:
            held_up.add("Loop")
    return tuple(sorted(held_up))


def capture_remark(not_captured: Names) -> str:
    """Return the remark of a row that was asked for as a CUDA graph; ``not_captured`` as :func:`obstacles` says."""
    if not not_captured:
        return "launched as one CUDA graph"
    named = ", ".join(not_captured[:_MOST_NAMED])
    if len(not_captured) > _MOST_NAMED:
        named += f" and {len(not_captured) - _MOST_NAMED} more"
    return f"no CUDA graph can hold it ({named}): launched call by call"
