"""Training: losses, and the optimisers of ``ai.onnx.preview.training`` (one elementwise update per parameter)."""

from __future__ import annotations

from gkestimator.core.graph import Operator, Tensor
from gkestimator.core.kernels import Family, Kernel
from gkestimator.operators.builders import (
    elementwise_kernel,
    input_at,
    memory_kernel,
    output_at,
    present_inputs,
    softmax_kernel,
    tensor_inputs,
    tensor_outputs,
    total_bytes,
)
from gkestimator.operators.registry import Lowered, LoweringOptions, launched, lowering_rule

# op_type: (variant, tensors per parameter after R and T, FLOPs per element). All add the L2 term to the
# gradient (2).
# Adagrad: h' = h + g g (2), x' = x - r g / (sqrt h' + eps) (5). Momentum: v' = a v + b g (3), x' = x - r v'
# (2).
# Adam: v' = a v + (1-a) g (3), h' = b h + (1-b) g g (4), x' = x - r v' / (sqrt h' + eps) (5),
# post-regularisation (1).
_UPDATES = {"Adagrad": ("adagrad", 3, 9), "Momentum": ("momentum", 3, 7), "Adam": ("adam", 4, 15)}


@lowering_rule(*_UPDATES, domain="ai.onnx.preview.training", kind="optimiser")
def update(op: Operator, options: LoweringOptions) -> Lowered:
    """Return one kernel per parameter: its state, gradient and momenta in, parameter and momenta out."""
    variant, per_parameter, flops = _UPDATES[op.op_type]
    operands = tensor_inputs(op)[2:]
    results = tensor_outputs(op)
    count = max(1, len(operands) // per_parameter)
    kernels = tuple(
        elementwise_kernel(variant, operands[i::count], results[i::count], flops_per_element=flops)
        for i in range(count)
    )
    return launched(*kernels, calls=count)


def _nll(op: Operator, scores: Tensor, target: Tensor, result: Tensor) -> Kernel:
    """Return the choice of one score per target, negated; with a weight multiplied, and summed unless it says none."""
    weights = present_inputs(op, 2)
    picked = target.elements * scores.dtype.bits // 8 + target.nbytes + total_bytes(weights)
    per_target = 1 + len(weights)
    if op.attributes.get("reduction", "mean") != "none":
        per_target += 1
    return memory_kernel(
        Family.REDUCTION,
        "nll_loss",
        (target, scores, *weights),
        (result,),
        flops=per_target * target.elements,
        rows=result.elements,
        cols=max(1, target.elements // max(1, result.elements)),
        read_bytes=picked,
    )


@lowering_rule("NegativeLogLikelihoodLoss", kind="loss", autocast="fp32")
def nll_loss(op: Operator, options: LoweringOptions) -> Lowered:
    """Return one score per target, negated, weighed and summed."""
    kernel = _nll(op, input_at(op, 0), input_at(op, 1), output_at(op))
    return launched(kernel)


@lowering_rule("SoftmaxCrossEntropyLoss", kind="loss", autocast="fp32")
def softmax_cross_entropy(op: Operator, options: LoweringOptions) -> Lowered:
    """Return log-softmax over the classes, then the negative log likelihood."""
    scores = input_at(op, 0)
    target = input_at(op, 1)
    writes = tensor_outputs(op)
    if len(writes) > 1:
        probabilities = writes[1]
    else:
        name = f"{writes[0].name}#log_prob"
        probabilities = Tensor(name=name, dtype=scores.dtype, shape=scores.shape, storage=name)
    first = softmax_kernel("log_softmax", scores, probabilities, 1)
    return launched(first, _nll(op, probabilities, target, writes[0]), calls=2)
