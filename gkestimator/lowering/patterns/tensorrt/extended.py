"""A kernel of TensorRT with element-wise operators before or after its own work, calculated in the same launch.

The group is described by its core, an operator with a lowering rule, and by what is added to that: FLOPs, and further
tensors that are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from gkestimator.core.graph import Attribute, Operator, Tensor, Value
from gkestimator.core.kernels import Family, Kernel
from gkestimator.lowering.patterns.match import FUSED_DOMAIN, Match, fused
from gkestimator.lowering.patterns.tensorrt.regions import flops_of, read_from_outside
from gkestimator.lowering.patterns.view import GraphView
from gkestimator.operators.builders import int_of, output_at, tensor_inputs, total_bytes, weight_bytes
from gkestimator.operators.registry import LOWERINGS, Lowered, LoweringOptions, lowering_rule

SUM = "sum"
"""Word of a convolution's variant that reads a second image and adds it (a shortcut)."""
_PREFIX = "tensorrt_"
_CORES = (
    *("Conv", "ConvTranspose", "MatMul", "Gemm", "FusedMatMul"),
    *("LayerNormalization", "RMSNormalization", "GroupNormalization", "InstanceNormalization"),
    *("Softmax", "LogSoftmax"),
    *("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin"),
    *("ReduceProd", "ReduceSum", "ReduceSumSquare"),
)


def extended(
    view: GraphView,
    name: str,
    core: Operator,
    own: Iterable[int],
    added: Iterable[int],
    options: LoweringOptions,
    *,
    prologue: bool = False,
) -> Match:
    """Return the match of ``core`` (which stands for the operators ``own``) with the element-wise operators ``added``.

    ``prologue``: they make input 0 of the core, at least in part.
    """
    added = sorted(added)
    covered = sorted({*own, *added})
    inputs: list[Value | None] = list(core.inputs)
    attributes: dict[str, Attribute] = {
        **core.attributes,
        f"{_PREFIX}domain": core.domain,
        f"{_PREFIX}version": core.version,
        f"{_PREFIX}inputs": len(inputs),
        f"{_PREFIX}flops": flops_of(view, added, options),
    }
    if prologue and isinstance(inputs[0], Tensor):
        attributes[f"{_PREFIX}made"] = inputs[0].shape
        inputs[0] = None
    present = {value.name for value in inputs if value is not None}
    inside = set(covered)
    result = view.result(covered[-1])
    extras = []
    for value in read_from_outside(view, added):
        maker = view.producer.get(value.name, -1)
        if maker in inside or value.name in present:
            continue
        extras.append(_as_summed(view, value, result))
    return fused(
        view,
        name,
        covered,
        op_type=core.op_type,
        domain=FUSED_DOMAIN,
        inputs=(*inputs, *extras),
        attributes=attributes,
    )


def _as_summed(view: GraphView, value: Tensor, result: Tensor) -> Tensor:
    """Return ``value`` in the type in which a kernel that writes ``result`` reads it.

    A shortcut that lies in the type of the sum is read so: one in 8 bits, which an Add of its own would read in half
    precision, is not converted before the kernel that writes 8 bits.
    """
    maker = view.producer.get(value.name)
    if maker is None or value.shape != result.shape:
        return value
    for stored in view.operators[maker].outputs:
        if isinstance(stored, Tensor) and stored.name == value.name and stored.dtype is result.dtype:
            return stored
    return value


@lowering_rule(*_CORES, domain=FUSED_DOMAIN, kind="fused")
def lower_extended(op: Operator, options: LoweringOptions) -> Lowered:
    """Return the kernels of the core; the last of them reads and calculates what was added."""
    count = int_of(op, f"{_PREFIX}inputs", 0)
    made = op.attributes.get(f"{_PREFIX}made")
    result = output_at(op)
    inputs = list(op.inputs[:count])
    if isinstance(made, tuple):
        shape = tuple([int(size) for size in made])
        inputs[0] = Tensor(name=f"{result.name}#made", dtype=result.dtype, shape=shape, storage=result.name)
    core = replace(
        op,
        domain=str(op.attributes.get(f"{_PREFIX}domain", "")),
        version=int_of(op, f"{_PREFIX}version", 1),
        attributes={name: value for name, value in op.attributes.items() if not name.startswith(_PREFIX)},
        inputs=tuple(inputs),
        signature=None,
    )
    lowered = LOWERINGS[core.key](core, options)
    if not lowered.kernels:
        return lowered
    extras = tensor_inputs(replace(op, inputs=op.inputs[count:]))
    kernel = _with_extras(lowered.kernels[-1], extras, result, int_of(op, f"{_PREFIX}flops", 0))
    if isinstance(made, tuple):
        kernel = replace(kernel, read_bytes=kernel.read_bytes - total_bytes(tensor_inputs(core)[:1]))
    return replace(lowered, kernels=(*lowered.kernels[:-1], kernel))


def _with_extras(kernel: Kernel, extras: Sequence[Tensor], result: Tensor, flops: int) -> Kernel:
    """Return ``kernel`` with the ``extras`` that it reads besides, and ``flops`` more."""
    variant = kernel.variant
    name = kernel.name
    sums = any(extra.shape == result.shape and not extra.is_weight for extra in extras)
    if sums and kernel.family in (Family.CONV, Family.DEPTHWISE, Family.CONV_TRANSPOSE):
        variant = f"{variant}.{SUM}"
        name = f"{name}.{SUM}"
    return replace(
        kernel,
        name=name,
        variant=variant,
        flops=kernel.flops + flops,
        read_bytes=kernel.read_bytes + total_bytes(extras),
        weight_bytes=kernel.weight_bytes + weight_bytes(extras),
        inputs=kernel.inputs + len(extras),
    )
