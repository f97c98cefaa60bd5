"""Control flow, sequences and optionals. Bodies are expanded before lowering; what is left is the host's
part.
"""

from __future__ import annotations

from gkestimator.core.graph import Operator
from gkestimator.core.kernels import Family, Kernel
from gkestimator.operators.builders import memory_kernel, tensor_inputs, tensor_outputs
from gkestimator.operators.registry import Lowered, LoweringOptions, lowering_rule

__all__: list[str] = []


@lowering_rule("If", "Loop", "Scan", "SequenceMap", kind="control_flow")
def control_flow(op: Operator, options: LoweringOptions) -> Lowered:
    """The host waits for the condition (or drives the iteration): one call, no kernel."""
    return Lowered(kernels=(), host_calls=1)


def _aliased(op: Operator) -> Lowered:
    return Lowered(
        kernels=(), host_calls=0, aliases={i: 0 for i, v in enumerate(op.outputs) if v is not None}
    )


@lowering_rule(
    "SequenceConstruct",
    "SequenceAt",
    "Optional",
    "OptionalGetElement",
    kind="sequence",
    sequence=True,
    keeps_layout=True,
)
@lowering_rule("SequenceInsert", "SequenceErase", kind="sequence", sequence=True)
def sequence(op: Operator, options: LoweringOptions) -> Lowered:
    """Handles move, elements stay where they are."""
    return _aliased(op)


@lowering_rule("SequenceEmpty", "SequenceLength", "OptionalHasElement", "Shape", "Size", kind="metadata")
def metadata(op: Operator, options: LoweringOptions) -> Lowered:
    """Answered on the host from what it knows of the value: no kernel."""
    return Lowered(kernels=(), host_calls=0)


@lowering_rule("SplitToSequence", kind="sequence_split", sequence=True, keeps_layout=True)
def split_to_sequence(op: Operator, options: LoweringOptions) -> Lowered:
    """Views in torch, copies in onnxruntime."""
    if options.runtime == "torch":
        return _aliased(op)
    reads = tensor_inputs(op)[:1]
    writes = tensor_outputs(op)
    rows = sum(t.elements for t in writes)
    kernel = memory_kernel(Family.COPY, "split", reads, writes, flops=0, rows=rows)
    return Lowered(kernels=(kernel,), host_calls=1)


@lowering_rule("ConcatFromSequence", kind="copy")
def concat_from_sequence(op: Operator, options: LoweringOptions) -> Lowered:
    """One copy of every element."""
    writes = tensor_outputs(op)
    rows = sum(t.elements for t in writes)
    kernel: Kernel = memory_kernel(Family.COPY, "concat", tensor_inputs(op), writes, flops=0, rows=rows)
    return Lowered(kernels=(kernel,), host_calls=1)
