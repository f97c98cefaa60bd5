"""``com.microsoft`` operators that ONNX Runtime has CPU kernels for alone: a model on the GPU leaves it for them."""

from __future__ import annotations

from gkestimator.core.graph import Operator
from gkestimator.operators.builders import input_at, output_at
from gkestimator.operators.host import host_kernel
from gkestimator.operators.microsoft.attention import MS
from gkestimator.operators.quantise import DEQUANTIZE_FLOPS
from gkestimator.operators.recurrent import cell_flops
from gkestimator.operators.registry import Lowered, LoweringOptions, lowering_rule

__all__: list[str] = []

_PLAIN = {
    "CropAndResize": "crop_and_resize",
    "MaxpoolWithMask": "masked_max_pool",
    "MurmurHash3": "murmur_hash",
    "QEmbedLayerNormalization": "quantised_embed_layer_norm",
    "Tokenizer": "tokenizer",
}


@lowering_rule(*_PLAIN, domain=MS, kind="host_microsoft")
def plain(op: Operator, options: LoweringOptions) -> Lowered:
    """Work whose operations are not counted: only its traffic is."""
    return Lowered(kernels=(host_kernel(op, _PLAIN[op.op_type]),), host_calls=1)


@lowering_rule("CDist", domain=MS, kind="host_microsoft")
def distances(op: Operator, options: LoweringOptions) -> Lowered:
    """Every row of A against every row of B: subtract, square, add per column; a root per pair (euclidean)."""
    a = input_at(op, 0)
    result = output_at(op)
    root = 1 if op.attributes.get("metric", "sqeuclidean") == "euclidean" else 0
    return Lowered(
        kernels=(host_kernel(op, "cdist", flops=result.elements * (3 * a.shape[1] + root)),), host_calls=1
    )


@lowering_rule("DynamicQuantizeLSTM", domain=MS, kind="host_microsoft", quantised=True)
def dynamic_quantise_lstm(op: Operator, options: LoweringOptions) -> Lowered:
    """An LSTM whose weights are int8, stored (directions, inputs, 4 hidden): the float cell's operations."""
    source = input_at(op, 0)
    recurrence = input_at(op, 2)
    steps, batch, inputs = source.shape
    directions = recurrence.shape[0]
    hidden = recurrence.shape[1]
    per_step = cell_flops(
        "LSTM",
        batch=batch,
        hidden=hidden,
        inputs=inputs,
        bias=len(op.inputs) > 3 and op.inputs[3] is not None,
        peepholes=len(op.inputs) > 7 and op.inputs[7] is not None,
    )
    return Lowered(
        kernels=(host_kernel(op, "dynamic_quantise_lstm", flops=steps * directions * per_step),), host_calls=1
    )


@lowering_rule("MatMulFpQ4", domain=MS, kind="host_microsoft")
def matmul_q4(op: Operator, options: LoweringOptions) -> Lowered:
    """A times a blob of 4-bit weights whose shape is input 2: the product, and each weight dequantised once."""
    a = input_at(op, 0)
    result = output_at(op)
    k = a.shape[-1]
    n = result.shape[-1]
    flops = 2 * result.elements * k + DEQUANTIZE_FLOPS * k * n
    return Lowered(kernels=(host_kernel(op, "matmul_q4", flops=flops),), host_calls=1)
