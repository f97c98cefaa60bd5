"""Kernel builders: the exact counts of each kind of kernel, shared by rules, fusion patterns and importers.

Conventions. A multiply-add is two FLOPs; an addition, comparison, exponential or other function value is one.
Traffic is compulsory: each operand once at its true size (a broadcast operand is not multiplied up, an
operand that
appears twice is read once), each result once. Matrix work counts padding positions of a convolution as work,
as the
implicit GEMM does. Sizes are elements; ``*_bytes`` are bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from gkestimator.core.dtypes import DType, Precision
from gkestimator.core.errors import ShapeError
from gkestimator.core.graph import Operator, Tensor, Value
from gkestimator.core.kernels import Family, GemmShape, Kernel
from gkestimator.operators.registry import LoweringOptions, Shape, element_precision, matrix_precision

# Per element of a row: maximum, subtract, exponential, sum, divide (log-softmax: subtract the logarithm
# instead).
SOFTMAX_FLOPS = 5
LOG_SOFTMAX_FLOPS = 5
HARDMAX_FLOPS = 2  # compare for the maximum, compare with it
# Per element: sum; subtract, square, sum (mean and variance); multiply by 1/sigma. Scale and shift: one each.
LAYERNORM_FLOPS = 5
RMSNORM_FLOPS = 3  # square, sum; multiply by 1/rms


def input_at(op: Operator, index: int) -> Tensor:
    """Return input ``index`` as a tensor; ShapeError when the operator lacks it or it is a sequence."""
    value = optional_input(op, index)
    if value is None:
        raise ShapeError(
            f"{op.op_type} {op.name!r}: input {index} is missing or no tensor, expected a tensor"
        )
    return value


def optional_input(op: Operator, index: int) -> Tensor | None:
    """Return input ``index`` as a tensor, or None when it is omitted."""
    if index < len(op.inputs):
        value = op.inputs[index]
    else:
        value = None
    if isinstance(value, Tensor):
        return value
    return None


def present_inputs(op: Operator, *indices: int) -> tuple[Tensor, ...]:
    """Return those of the inputs ``indices`` that are tensors and not omitted, in order."""
    tensors = [optional_input(op, index) for index in indices]
    return tuple([tensor for tensor in tensors if tensor is not None])


def optional_output(op: Operator, index: int) -> Tensor | None:
    """Return output ``index`` as a tensor, or None when nothing uses it."""
    if index < len(op.outputs):
        value = op.outputs[index]
    else:
        value = None
    if isinstance(value, Tensor):
        return value
    return None


def output_at(op: Operator, index: int = 0) -> Tensor:
    """Return output ``index`` as a tensor; ShapeError when nothing uses it or it is a sequence."""
    value = optional_output(op, index)
    if value is None:
        raise ShapeError(
            f"{op.op_type} {op.name!r}: output {index} is missing or no tensor, expected a tensor"
        )
    return value


def int_of(op: Operator, name: str, default: int) -> int:
    """Return the attribute ``name``; ``default`` where it is absent or no integer."""
    value = op.attributes.get(name, default)
    if isinstance(value, int):
        return value
    return default


def ints_of(op: Operator, name: str) -> Shape:
    """Return the attribute ``name``, a list of integers; empty where it is absent or no list."""
    value = op.attributes.get(name)
    if isinstance(value, tuple):
        return tuple([int(v) for v in value])
    return ()


def operator_axis(op: Operator, rank: int, default: int) -> int:
    """Return the attribute ``axis`` as a non-negative index into ``rank`` dimensions."""
    axis = int_of(op, "axis", default)
    if axis < 0:
        return axis + rank
    return axis


def tensors_of(values: Iterable[Value | None]) -> list[Tensor]:
    """Return the tensors among ``values``, elements of sequences included, in order."""
    tensors: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            tensors.append(value)
        elif value is not None:
            tensors.extend(value.elements_)
    return tensors


def tensor_inputs(op: Operator) -> tuple[Tensor, ...]:
    """Return the inputs that are tensors, elements of sequences included, in order."""
    return tuple(tensors_of(op.inputs))


def tensor_outputs(op: Operator) -> tuple[Tensor, ...]:
    """Return the outputs that are tensors, elements of sequences included, in order."""
    return tuple(tensors_of(op.outputs))


def scratch(base: Tensor, suffix: str, shape: Shape, dtype: DType | None = None) -> Tensor:
    """Return a tensor that a call makes for itself on the way to (or from) ``base``, in its type by default."""
    name = f"{base.name}#{suffix}"
    return Tensor(name=name, dtype=dtype or base.dtype, shape=shape, storage=name)


def total_bytes(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of ``tensors`` together."""
    return sum([tensor.nbytes for tensor in tensors])


def weight_bytes(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of those of ``tensors`` that are weights."""
    return sum([tensor.nbytes for tensor in tensors if tensor.is_weight])


def distinct(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return ``tensors`` without repetitions of a name, in order: what a kernel reads once."""
    return tuple({t.name: t for t in tensors}.values())


def memory_kernel(
    family: Family,
    variant: str,
    reads: Sequence[Tensor],
    writes: Sequence[Tensor],
    *,
    flops: int,
    rows: int,
    cols: int = 1,
    precision: Precision | None = None,
    workspace_bytes: int = 0,
    read_bytes: int | None = None,
) -> Kernel:
    """Return a kernel whose traffic is its operands.

    ``read_bytes`` overrides where only part of an operand is touched.

    ``inputs`` counts the operands that are real tensors: one-element constants travel as kernel arguments.
    """
    operands = distinct(reads)
    total = total_bytes(operands)
    weight = weight_bytes(operands)
    if read_bytes is not None:
        weight = min(weight, read_bytes)
        total = read_bytes
    if writes:
        leading = writes[0]
    else:
        leading = operands[0]
    counted = sum(1 for t in operands if not (t.is_weight and t.elements <= 1))
    if operands:
        inputs = max(1, counted)
    else:
        inputs = 0
    return Kernel(
        name=f"{family.value}.{variant}",
        family=family,
        variant=variant,
        precision=element_precision(leading.dtype) if precision is None else precision,
        flops=flops,
        read_bytes=total,
        write_bytes=total_bytes(writes),
        weight_bytes=weight,
        rows=rows,
        cols=cols,
        element_bytes=leading.dtype.bits / 8,
        inputs=inputs,
        workspace_bytes=workspace_bytes,
    )


def elementwise_kernel(
    variant: str, reads: Sequence[Tensor], writes: Sequence[Tensor], *, flops_per_element: int
) -> Kernel:
    """Return one result element per thread: rows = output elements."""
    elements = max((t.elements for t in writes), default=0)
    kernel = memory_kernel(
        Family.ELEMENTWISE, variant, reads, writes, flops=flops_per_element * elements, rows=elements
    )
    if len(reads) < 2 or len(writes) != 1:
        return kernel
    again, window = read_again(distinct(reads), writes[0])
    if not again:
        return kernel
    return replace(kernel, again_bytes=again, again_window=window)


def read_again(operands: Sequence[Tensor], result: Tensor) -> tuple[int, int]:
    """Return the bytes of broadcast operands that are read beyond once, and those touched between two readings.

    A mask (T, T) on scores (N, H, T, T) is read N x H times, with a part of the scores and of the result in between.
    An operand that is repeated along its innermost dimensions alone stays in registers or L1.
    """
    full = result.shape
    total = 0
    window = 0
    touched = result.nbytes + total_bytes(t for t in operands if t.shape == full)
    for operand in operands:
        shape = (1,) * (len(full) - len(operand.shape)) + operand.shape
        passes = 1
        inner = 0
        for dim, size in enumerate(full):
            if shape[dim] == 1 < size and math.prod(shape[dim + 1 :]) > 1:
                passes *= size
                inner = dim + 1
        if passes == 1 or len(shape) != len(full):
            continue
        total += (passes - 1) * operand.nbytes
        block = operand.nbytes // max(1, math.prod(shape[:inner]))
        window = max(window, block + touched // math.prod(full[:inner]))
    return total, window


def fill_kernel(result: Tensor) -> Kernel:
    """Return the kernel that writes one value everywhere."""
    return elementwise_kernel("fill", (), (result,), flops_per_element=0)


def copy_kernel(variant: str, reads: Sequence[Tensor], writes: Sequence[Tensor]) -> Kernel:
    """Return a data movement without arithmetic. Each result element reads at most one source element.

    So a slice reads what it writes, a transpose all of its source, an expansion its small source once.
    """
    written = total_bytes(writes)
    source = total_bytes(distinct(reads))
    return memory_kernel(
        Family.COPY,
        variant,
        reads,
        writes,
        flops=0,
        rows=sum(t.elements for t in writes),
        read_bytes=min(source, written),
    )


def cast_kernel(source: Tensor, dtype: DType) -> Kernel:
    """Return ``source`` converted to ``dtype``."""
    if source.is_weight:
        weight_bytes = source.nbytes
    else:
        weight_bytes = 0
    return Kernel(
        name="copy.cast",
        family=Family.COPY,
        variant="cast",
        precision=element_precision(dtype),
        flops=0,
        read_bytes=source.nbytes,
        write_bytes=dtype.nbytes(source.elements),
        weight_bytes=weight_bytes,
        rows=source.elements,
        element_bytes=dtype.bits / 8,
    )


def row_kernel(
    family: Family,
    variant: str,
    reads: Sequence[Tensor],
    writes: Sequence[Tensor],
    *,
    rows: int,
    cols: int,
    flops: int,
) -> Kernel:
    """Return a kernel that works on ``rows`` independent rows of ``cols`` elements."""
    return memory_kernel(family, variant, reads, writes, flops=flops, rows=rows, cols=cols)


def softmax_kernel(variant: str, source: Tensor, result: Tensor, axis: int) -> Kernel:
    """Return softmax, log-softmax or hardmax of ``source`` along ``axis``."""
    if source.shape:
        cols = source.shape[axis]
    else:
        cols = 1
    per_element = {"softmax": SOFTMAX_FLOPS, "log_softmax": LOG_SOFTMAX_FLOPS, "hardmax": HARDMAX_FLOPS}[
        variant
    ]
    elements = source.elements
    return row_kernel(
        Family.SOFTMAX,
        variant,
        (source,),
        (result,),
        rows=elements // max(1, cols),
        cols=cols,
        flops=per_element * elements,
    )


def layernorm_kernel(
    variant: str,
    reads: Sequence[Tensor],
    writes: Sequence[Tensor],
    *,
    rows: int,
    cols: int,
    affine: int,
    per_element: int = LAYERNORM_FLOPS,
) -> Kernel:
    """Return a normalisation over ``rows`` rows of ``cols``; ``affine`` counts scale and shift (0 to 2).

    ``writes[0]`` is the result.
    """
    return row_kernel(
        Family.LAYERNORM,
        variant,
        reads,
        writes,
        rows=rows,
        cols=cols,
        flops=(per_element + affine) * rows * cols,
    )


def batchnorm_kernel(source: Tensor, result: Tensor, parameters: Sequence[Tensor]) -> Kernel:
    """Return inference batch normalisation: one multiply-add per element (scale and shift folded per channel, 4
    FLOPs each).
    """
    if len(source.shape) > 1:
        channels = source.shape[1]
    else:
        channels = 1
    return memory_kernel(
        Family.BATCHNORM,
        "batch_norm",
        (source, *parameters),
        (result,),
        flops=2 * source.elements + 4 * channels,
        rows=source.elements,
        cols=1,
    )


def reduction_kernel(
    variant: str, source: Tensor, writes: Sequence[Tensor], *, kept: int, per_element: int, per_row: int = 0
) -> Kernel:
    """Return a reduction of ``source`` to ``kept`` results; ``per_row`` FLOPs finish each (divide, square root,
    logarithm).
    """
    rows = max(1, kept)
    return row_kernel(
        Family.REDUCTION,
        variant,
        (source,),
        writes,
        rows=rows,
        cols=max(1, source.elements // rows),
        flops=per_element * source.elements + per_row * kept,
    )


def gemm_kernel(
    shape: GemmShape,
    reads: Sequence[Tensor],
    writes: Sequence[Tensor],
    options: LoweringOptions,
    *,
    variant: str = "matmul",
    epilogue_flops: int = 0,
    operand_dtype: DType | None = None,
    read_bytes: int | None = None,
) -> Kernel:
    """Return the matrix product of ``reads[0]`` and ``reads[1]`` (further reads: bias, scales).

    FLOPs 2 x batch x m x n x k + epilogue.

    ``operand_dtype`` is the type multiplied where the operands are stored otherwise (autocast, weight-only
    quantisation). One product is ``linear``, several are ``bmm``. Variant ``matmul_nn``: neither operand is read
    transposed (libraries pick other tiles then); it is named as ``matmul`` is.
    """
    if shape.batch == 1:
        family = Family.LINEAR
    else:
        family = Family.BMM
    if operand_dtype is not None:
        dtype = operand_dtype
    else:
        dtype = reads[0].dtype
    operands = distinct(reads)
    weight = weight_bytes(operands)
    if read_bytes is None:
        total = total_bytes(operands)
    else:
        total = read_bytes
    if variant in ("matmul", "matmul_nn"):
        name = family.value
    else:
        name = f"{family.value}.{variant}"
    return Kernel(
        name=name,
        family=family,
        variant=variant,
        precision=matrix_precision(dtype, options),
        flops=2 * shape.batch * shape.m * shape.n * shape.k + epilogue_flops,
        read_bytes=total,
        write_bytes=total_bytes(writes),
        weight_bytes=min(weight, total),
        rows=shape.batch * shape.m,
        cols=shape.n,
        element_bytes=writes[0].dtype.bits / 8,
        inputs=len(operands),
        gemm=shape,
    )
