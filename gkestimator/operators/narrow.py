"""Linear layers whose weights have 8 or 4 bits: how they are stored, and the kernels that runtimes launch.

What the words mean is what serving frameworks make of a float model. Linear layers alone are narrowed; the layer that
gives a model's outputs (``lm_head``), embeddings, norms and attention scores stay in half precision (the defaults of
NVIDIA ModelOpt, ``_default_disabled_quantizer_cfg``, and of vLLM's checkpoints, ``ignore: ["lm_head"]``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from gkestimator.core.dtypes import DType, Precision
from gkestimator.core.graph import Operator, Tensor
from gkestimator.core.kernels import Family, GemmShape
from gkestimator.core.records import frozen
from gkestimator.operators.builders import gemm_kernel, memory_kernel, scratch
from gkestimator.operators.quantise import DEQUANTIZE_FLOPS, QUANTIZE_FLOPS
from gkestimator.operators.registry import HALF_TYPES, Kernels, LoweringOptions

SCALED_VARIANT = "scaled.vllm"
"""What products of scaled 8-bit floats run under torch: vLLM's kernels. Nothing else has an eager FP8 linear layer in
common use, and frameworks differ by half on one shape."""
WEIGHT_ONLY_VARIANT = "weight_only"
# torch._scaled_mm refuses sizes that 16 does not divide (aten/src/ATen/native/cuda/Blas.cpp).
_DIVISOR = 16


@frozen
class NarrowFormat:
    """Hold how weights are stored: their type, the type of their scales, and how many elements along k share one.

    ``group`` is None where a whole column does.
    """

    weights: DType
    scale: DType
    group: int | None = None

    def scale_tensor(self, weight: Tensor, k: int, n: int) -> Tensor:
        """Return the scales of a weight of ``k`` x ``n`` elements, which lie beside it."""
        groups = 1
        if self.group is not None:
            groups = -(-k // self.group)
        return replace(weight, name=f"{weight.name}#scales", dtype=self.scale, shape=(groups, n), value=None)


NARROW_FORMATS: Mapping[str, NarrowFormat] = MappingProxyType(
    {
        # A scale a column (vLLM, ``--quantization fp8``; TensorRT-LLM's int8 weights), and one for 128 weights of
        # 4 bits (the default of AutoGPTQ and AutoAWQ).
        "fp8": NarrowFormat(weights=DType.FLOAT8E4M3FN, scale=DType.FLOAT),
        "w8a16": NarrowFormat(weights=DType.INT8, scale=DType.FLOAT16),
        "w4a16": NarrowFormat(weights=DType.INT4, scale=DType.FLOAT16, group=128),
    }
)
"""By the dtype word that asks for them."""
_BY_TYPE = {narrow.weights: narrow for narrow in NARROW_FORMATS.values()}
_WEIGHT_ONLY = {DType.INT8: Precision.W8A16, DType.INT4: Precision.W4A16}
PRODUCTS = frozenset(
    {
        ("", "MatMul"),
        ("", "Gemm"),
        ("com.microsoft", "FusedMatMul"),
        ("com.microsoft", "TransposeMatMul"),
        ("com.microsoft", "FusedGemm"),
        ("com.microsoft", "GemmFastGelu"),
    }
)
"""Operators that multiply by the weight at their input 1."""


def narrow_shape(op: Operator, weight: Tensor) -> tuple[int, int] | None:
    """Return k and n of ``weight`` where ``op`` is a linear layer that may be narrowed, else None."""
    half = weight.dtype in HALF_TYPES
    if op.key not in PRODUCTS or not half or len(weight.shape) != 2:
        return None
    k, n = weight.shape
    if op.attributes.get("transB"):
        k, n = n, k
    if k % _DIVISOR or n % _DIVISOR:
        return None
    return k, n


def is_narrow(operands: tuple[Tensor, ...]) -> bool:
    """Return whether a product of half-precision activations reads weights of fewer bits."""
    return operands[0].dtype in HALF_TYPES and operands[1].is_weight and operands[1].dtype in _BY_TYPE


def narrow_kernels(
    shape: GemmShape,
    operands: tuple[Tensor, ...],
    result: Tensor,
    options: LoweringOptions,
    *,
    epilogue_flops: int = 0,
) -> Kernels:
    """Return the kernels of a linear layer on ``operands`` of which the second, the weight, is narrow."""
    activations, weight, *others = operands
    scales = _BY_TYPE[weight.dtype].scale_tensor(weight, shape.k, shape.n)
    if weight.dtype in _WEIGHT_ONLY:
        reads = (activations, weight, scales, *others)
        precision = _WEIGHT_ONLY[weight.dtype]
        return weight_only_kernels(shape, reads, result, options, precision, epilogue_flops=epilogue_flops)
    quantised = scratch(result, "quantised", activations.shape, weight.dtype)
    convert = memory_kernel(
        Family.QUANTIZE,
        "quantize",
        (activations,),
        (quantised,),
        flops=QUANTIZE_FLOPS * activations.elements,
        rows=activations.elements,
        workspace_bytes=quantised.nbytes,
    )
    product = gemm_kernel(
        shape,
        (quantised, weight, scales, *others),
        (result,),
        options,
        variant=SCALED_VARIANT,
        epilogue_flops=epilogue_flops + 2 * result.elements,
    )
    return convert, replace(product, workspace_bytes=quantised.nbytes)


def weight_only_kernels(
    shape: GemmShape,
    reads: tuple[Tensor, ...],
    result: Tensor,
    options: LoweringOptions,
    precision: Precision,
    *,
    epilogue_flops: int = 0,
) -> Kernels:
    """Return a product of half-precision activations, ``reads[0]``, with weights of few bits, ``reads[1]``.

    Further reads: scales, zero points, bias. torch's kernels (Marlin, CUTLASS's mixed ones) widen weights on their way
    to the tensor cores. ONNX Runtime does so for a single row alone; for more it writes the weight in half precision
    and multiplies by that (onnxruntime/contrib_ops/cuda/quantization/matmul_nbits.cc, ``TryMatMulNBits``).
    """
    elements = shape.n * shape.k
    if options.runtime == "onnxruntime" and shape.m > 1:
        wide = scratch(result, "weight", (shape.k, shape.n), reads[0].dtype)
        widen = memory_kernel(
            Family.QUANTIZE,
            "dequantize",
            reads[1:4],
            (wide,),
            flops=DEQUANTIZE_FLOPS * elements,
            rows=elements,
            workspace_bytes=wide.nbytes,
        )
        product = gemm_kernel(shape, (reads[0], wide), (result,), options, epilogue_flops=epilogue_flops)
        return widen, replace(product, workspace_bytes=wide.nbytes)
    product = gemm_kernel(
        shape,
        reads,
        (result,),
        options,
        variant=WEIGHT_ONLY_VARIANT,
        epilogue_flops=epilogue_flops + DEQUANTIZE_FLOPS * elements,
        operand_dtype=reads[0].dtype,
    )
    return (replace(product, precision=precision),)
