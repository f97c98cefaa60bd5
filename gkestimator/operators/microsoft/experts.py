"""``com.microsoft`` mixtures of experts, in floating point and with weights of a few bits."""

from __future__ import annotations

from dataclasses import replace

from gkestimator.core.graph import Operator, Tensor
from gkestimator.core.kernels import GemmShape, Kernel
from gkestimator.operators.builders import (
    elementwise_kernel,
    gemm_kernel,
    input_at,
    optional_input,
    output_at,
    softmax_kernel,
)
from gkestimator.operators.elementwise import FLOPS
from gkestimator.operators.matmul import matmul_kernels
from gkestimator.operators.quantise import DEQUANTIZE_FLOPS
from gkestimator.operators.registry import MS, Lowered, LoweringOptions, launched, lowering_rule

_ACTIVATIONS = {
    "relu": FLOPS["Relu"][1],
    "gelu": FLOPS["Gelu"][1],
    "silu": FLOPS["Swish"][1],
    "swiglu": FLOPS["Swish"][1],
    "identity": 0,
}


def touched_experts(count: int, chosen: int, tokens: int) -> int:
    """Return how many of ``count`` experts are expected to be taken by at least one of ``tokens``, each of which takes
    ``chosen`` of them, all as likely: a token misses one with probability 1 - chosen / count.
    """
    missed = (1 - min(chosen / max(1, count), 1.0)) ** tokens
    return max(round(count * (1 - missed)), min(chosen, count))


def _share_read(weight: Tensor, experts: int) -> Tensor:
    """Return the part of ``weight`` that the first ``experts`` experts take."""
    return replace(weight, shape=(min(experts, weight.shape[0]), *weight.shape[1:]), value=None)


@lowering_rule("MoE", "QMoE", domain=MS, kind="mixture_of_experts")
def experts(op: Operator, options: LoweringOptions) -> Lowered:
    """Return router softmax, each row through its ``k`` experts (two or, gated, three grouped products), weighted
    sum.

    Which experts a batch needs is data: read are as many as are expected (:func:`touched_experts`). Widths
    follow from the number of weights, so that packed and transposed layouts count alike; a first product that holds the
    gate as well (``swiglu_fusion``) is as wide as its weights say. QMoE dequantises every weight once (2 FLOPs) on its
    way into the product.
    """
    quantised = op.op_type == "QMoE"
    if quantised:
        places = (2, 5, 8)
    else:
        places = (2, 4, 6)
    extras = 2 if quantised else 1  # scales and bias, or the bias, behind each weight
    source = input_at(op, 0)
    router = input_at(op, 1)
    result = output_at(op)
    first = input_at(op, places[0])
    second = input_at(op, places[1])
    third = optional_input(op, places[2])
    chosen = op.attributes.get("k", 1)
    bits = op.attributes.get("expert_weight_bits", 4)
    if isinstance(chosen, int):
        k = chosen
    else:
        k = 1
    if quantised and isinstance(bits, int) and bits in (2, 4, 8):
        packed = 8 // bits
    else:
        packed = 1
    hidden = source.shape[-1]
    count = first.shape[0]
    rows = source.elements // max(1, hidden) * k
    touched = touched_experts(count, k, rows // max(1, k))

    def width(weight: Tensor) -> int:
        return weight.elements * packed // max(1, count * hidden)

    def scratch(suffix: str, columns: int) -> Tensor:
        name = f"{result.name}#{suffix}"
        return Tensor(name=name, dtype=source.dtype, shape=(rows, columns), storage=name)

    def product(a: Tensor, place: int, weight: Tensor, out: Tensor, n: int, depth: int) -> tuple[Kernel, ...]:
        shape = GemmShape(batch=1, m=rows, n=n, k=depth)
        behind = (optional_input(op, place + 1 + i) for i in range(extras))
        reads = (a, *(_share_read(t, touched) for t in (weight, *behind) if t is not None))
        if optional_input(op, place + extras) is not None:
            epilogue = rows * n
        else:
            epilogue = 0
        if not quantised:
            return matmul_kernels(shape, reads, out, options, variant="grouped", epilogue_flops=epilogue)
        epilogue += DEQUANTIZE_FLOPS * reads[1].elements * packed
        kernel = gemm_kernel(
            shape, reads, (out,), options, variant="grouped", epilogue_flops=epilogue, operand_dtype=a.dtype
        )
        return (kernel,)

    inner = width(second)
    outer = width(first)
    wide = scratch("experts", outer)
    narrow = scratch("activated", inner)
    kernels: list[Kernel] = [softmax_kernel("softmax", router, router, -1)]
    kernels.extend(product(source, places[0], first, wide, outer, hidden))
    operands: tuple[Tensor, ...] = (wide,)
    if third is not None:
        gate = scratch("gate", width(third))
        kernels.extend(product(source, places[2], third, gate, width(third), hidden))
        operands = (wide, gate)
    flops = _ACTIVATIONS.get(str(op.attributes.get("activation_type", "relu")), FLOPS["Relu"][1])
    if third is not None or outer == 2 * inner:
        gated = 1
    else:
        gated = 0
    kernels.append(elementwise_kernel("activation", operands, (narrow,), flops_per_element=flops + gated))
    summed = scratch("rows", hidden)
    kernels.extend(product(narrow, places[1], second, summed, hidden, inner))
    kernels.append(elementwise_kernel("weighted_sum", (summed, router), (result,), flops_per_element=2 * k))
    return launched(*kernels)
