"""A product with a weight matrix and the addition of a one-dimensional bias: MatMul, Add.

torch: F.linear with bias is one addmm, the bias added in the GEMM's epilogue, for inputs of any rank.
onnxruntime (MatMulAddFusion, verified on its CPU provider, same pass for CUDA): Gemm where the input is a
matrix. For a higher rank it fuses only where every dimension is a number in the file; a file with a symbolic
batch, the case this assumes, keeps the MatMul and the Add.
"""

from __future__ import annotations

from gkestimator.core.graph import Operator
from gkestimator.lowering.patterns.match import FUSED_DOMAIN, Match, fused
from gkestimator.lowering.patterns.view import GraphView, Mismatch
from gkestimator.operators.builders import input_at, output_at
from gkestimator.operators.matmul import matmul_kernels, matmul_shape
from gkestimator.operators.registry import Lowered, LoweringOptions, lowering_rule


def match_linear(view: GraphView, product: int, options: LoweringOptions) -> Match:
    """The linear layer that starts at the MatMul at index ``product``."""
    x = view.operand(product, 0)
    weight = view.operand(product, 1)
    if not weight.is_weight or len(weight.shape) != 2:
        raise Mismatch(
            f"{view.operators[product].name} multiplies by {weight.name}, expected a weight matrix"
        )
    adding = view.reader(view.result(product), "Add")
    bias = view.other(adding, view.result(product))
    if not bias.is_weight or bias.shape != weight.shape[1:]:
        raise Mismatch(f"{view.operators[adding].name} adds {bias.name} {list(bias.shape)}, expected a bias")
    if options.runtime == "onnxruntime":
        if len(x.shape) != 2:
            raise Mismatch(
                "onnxruntime makes a Gemm of a matrix product with a symbolic batch only at rank 2"
            )
        return fused(view, "gemm", (product, adding), op_type="Gemm", version=13, inputs=(x, weight, bias))
    return fused(
        view, "linear", (product, adding), op_type="Linear", domain=FUSED_DOMAIN, inputs=(x, weight, bias)
    )


@lowering_rule("Linear", domain=FUSED_DOMAIN, kind="gemm", autocast="half")
def lower_linear(op: Operator, options: LoweringOptions) -> Lowered:
    """x (..., K) times W (K, N) plus bias (N): one GEMM, 2 M N K FLOPs and an addition per result."""
    x = input_at(op, 0)
    weight = input_at(op, 1)
    bias = input_at(op, 2)
    result = output_at(op)
    shape = matmul_shape(x.shape, weight.shape)
    kernels = matmul_kernels(shape, (x, weight, bias), result, options, epilogue_flops=result.elements)
    return Lowered(kernels=kernels, host_calls=len(kernels))
