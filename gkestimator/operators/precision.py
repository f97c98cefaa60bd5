"""Say what element type and precision a rule calculates in under a dtype option."""

from __future__ import annotations

from gkestimator.core.dtypes import DType, Precision
from gkestimator.core.errors import UsageError
from gkestimator.core.graph import Tensor
from gkestimator.operators.registry import LoweringOptions

_HALF = {Precision.FP16: DType.FLOAT16, Precision.BF16: DType.BFLOAT16}
_ELEMENT = {
    DType.FLOAT16: Precision.FP16,
    DType.BFLOAT16: Precision.BF16,
    DType.DOUBLE: Precision.FP64,
    DType.COMPLEX128: Precision.FP64,
    DType.INT8: Precision.INT8,
    DType.UINT8: Precision.INT8,
    DType.FLOAT8E4M3FN: Precision.FP8,
    DType.FLOAT8E4M3FNUZ: Precision.FP8,
    DType.FLOAT8E5M2: Precision.FP8,
    DType.FLOAT8E5M2FNUZ: Precision.FP8,
}


def half_type(options: LoweringOptions) -> DType:
    """Return the half type of ``options``; UsageError when ``half`` names none."""
    if options.half not in _HALF:
        raise UsageError(
            f"dtype {options.dtype!r}: expected a half precision of fp16 or bf16, found {options.half}"
        )
    return _HALF[options.half]


def element_precision(dtype: DType) -> Precision:
    """Return the precision that a memory-bound kernel over ``dtype`` elements carries (integers but int8: fp32)."""
    return _ELEMENT.get(dtype, Precision.FP32)


def matrix_precision(dtype: DType, options: LoweringOptions, *, convolution: bool = False) -> Precision:
    """Return what matrix work on ``dtype`` operands calculates in; ``amp`` casts float32 operands to half."""
    if dtype is DType.FLOAT:
        if options.dtype == "amp" and options.half is not None:
            return options.half
        if convolution:
            return options.conv_precision
        return options.matmul_precision
    return element_precision(dtype)


def stored_bytes(tensor: Tensor, options: LoweringOptions) -> int:
    """Return bytes of ``tensor`` in memory under ``options``; exact for tensors of a rewritten graph too."""
    if tensor.dtype is DType.FLOAT and options.dtype in ("fp16", "bf16"):
        return half_type(options).nbytes(tensor.elements)
    return tensor.nbytes
