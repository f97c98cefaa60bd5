"""Training operators of ``ai.onnx.preview.training``: one elementwise update per parameter."""

from __future__ import annotations

from gkestimator.core.graph import Operator
from gkestimator.operators.builders import elementwise_kernel, tensor_inputs, tensor_outputs
from gkestimator.operators.registry import Lowered, LoweringOptions, lowering_rule

__all__: list[str] = []

# op_type: (variant, tensors per parameter after R and T, FLOPs per element). All add the L2 term to the
# gradient (2).
# Adagrad: h' = h + g g (2), x' = x - r g / (sqrt h' + eps) (5). Momentum: v' = a v + b g (3), x' = x - r v'
# (2).
# Adam: v' = a v + (1-a) g (3), h' = b h + (1-b) g g (4), x' = x - r v' / (sqrt h' + eps) (5),
# post-regularisation (1).
_UPDATES = {"Adagrad": ("adagrad", 3, 9), "Momentum": ("momentum", 3, 7), "Adam": ("adam", 4, 15)}


@lowering_rule(*_UPDATES, domain="ai.onnx.preview.training", kind="optimiser")
def update(op: Operator, options: LoweringOptions) -> Lowered:
    """One kernel per parameter: its state, gradient and momenta in, parameter and momenta out."""
    variant, per_parameter, flops = _UPDATES[op.op_type]
    operands = tensor_inputs(op)[2:]
    results = tensor_outputs(op)
    count = max(1, len(operands) // per_parameter)
    kernels = tuple(
        elementwise_kernel(variant, operands[i::count], results[i::count], flops_per_element=flops)
        for i in range(count)
    )
    return Lowered(kernels=kernels, host_calls=count)
