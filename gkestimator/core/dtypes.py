"""Name element types of tensors, and the precisions in which kernels calculate."""

from __future__ import annotations

import re
from enum import StrEnum


class DType(StrEnum):
    """Name the element type of a tensor. The names are ONNX's, in lower case; ``bits`` is the size in memory."""

    FLOAT = "float"
    UINT8 = "uint8"
    INT8 = "int8"
    UINT16 = "uint16"
    INT16 = "int16"
    INT32 = "int32"
    INT64 = "int64"
    STRING = "string"
    BOOL = "bool"
    FLOAT16 = "float16"
    DOUBLE = "double"
    UINT32 = "uint32"
    UINT64 = "uint64"
    COMPLEX64 = "complex64"
    COMPLEX128 = "complex128"
    BFLOAT16 = "bfloat16"
    FLOAT8E4M3FN = "float8e4m3fn"
    FLOAT8E4M3FNUZ = "float8e4m3fnuz"
    FLOAT8E5M2 = "float8e5m2"
    FLOAT8E5M2FNUZ = "float8e5m2fnuz"
    UINT4 = "uint4"
    INT4 = "int4"
    FLOAT4E2M1 = "float4e2m1"
    FLOAT8E8M0 = "float8e8m0"
    UINT2 = "uint2"
    INT2 = "int2"

    # Enum hashes in Python code. A member equals its text, so the text's own hash is right, and it is cached in C.
    __hash__ = str.__hash__

    @property
    def bits(self) -> int:
        """Return the bits of one element. A string counts its 64-bit handle."""
        return _BITS[self]

    @property
    def is_floating(self) -> bool:
        """Return True for real floating-point types (not complex)."""
        return self in _FLOATING

    @property
    def is_integer(self) -> bool:
        """Return True for signed and unsigned integers (not bool)."""
        return self.value.startswith(("int", "uint"))

    def nbytes(self, elements: int) -> int:
        """Return the bytes that ``elements`` packed elements take, rounded up."""
        return (elements * _BITS[self] + 7) // 8


# Other names say their bits: float8e4m3fn, bfloat16, uint2. A string is its handle.
_UNNAMED_BITS = {"float": 32, "double": 64, "bool": 8, "string": 64}


def _bits(name: str) -> int:
    digits = re.search(r"[0-9]+", name)
    if digits is None:
        return _UNNAMED_BITS[name]
    return int(digits[0])


_BITS = {dtype: _bits(dtype.value) for dtype in DType}
# ONNX and NumPy call these alike.
_SHARED_NAMES = "float16 bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 complex64 complex128"
NUMPY_NAMES = {DType.FLOAT: "float32", DType.DOUBLE: "float64"}
NUMPY_NAMES |= {DType(name): name for name in _SHARED_NAMES.split()}
"""What NumPy itself calls the types that it has."""
_FLOATING = frozenset(t for t in DType if t.value.startswith(("float", "bfloat")) or t is DType.DOUBLE)


class Precision(StrEnum):
    """Name the arithmetic of a kernel's inner loop; it names the peak rate that bounds it.

    ``FP32`` is strict single precision on the CUDA cores; ``TF32``, ``FP16``, ``BF16``, ``INT8``, ``FP8`` use the
    tensor cores where the GPU has them. ``W8A16`` and ``W4A16`` are products with weights of 8 and 4 bits that are
    widened on their way into half-precision arithmetic. Memory-bound kernels carry the precision of their elements.
    """

    FP64 = "fp64"
    FP32 = "fp32"
    TF32 = "tf32"
    FP16 = "fp16"
    BF16 = "bf16"
    FP8 = "fp8"
    INT8 = "int8"
    W8A16 = "w8a16"
    W4A16 = "w4a16"

    __hash__ = str.__hash__  # as DType's
