"""Kernel builders: the exact counts of each kind of kernel, shared by rules, fusion patterns and importers.

Conventions. A multiply-add is two FLOPs; an addition, comparison, exponential or other function value is one.
Traffic is compulsory: each operand once at its true size (a broadcast operand is not multiplied up, an
operand that
appears twice is read once), each result once. Matrix work counts padding positions of a convolution as work,
as the
implicit GEMM does. Sizes are elements; ``*_bytes`` are bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

from gkestimator.core.dtypes import DType, Precision
from gkestimator.core.errors import ShapeError
from gkestimator.core.graph import Operator, Tensor
from gkestimator.core.kernels import Family, GemmShape, Kernel
from gkestimator.operators.precision import element_precision, matrix_precision
from gkestimator.operators.registry import LoweringOptions

# Per element of a row: maximum, subtract, exponential, sum, divide (log-softmax: subtract the logarithm
# instead).
SOFTMAX_FLOPS = 5
LOG_SOFTMAX_FLOPS = 5
HARDMAX_FLOPS = 2  # compare for the maximum, compare with it
# Per element: sum; subtract, square, sum (mean and variance); multiply by 1/sigma. Scale and shift: one each.
LAYERNORM_FLOPS = 5
RMSNORM_FLOPS = 3  # square, sum; multiply by 1/rms


def input_at(op: Operator, index: int) -> Tensor:
    """Input ``index`` as a tensor; ShapeError when the operator lacks it or it is a sequence."""
    if index < len(op.inputs):
        value = op.inputs[index]
    else:
        value = None
    if not isinstance(value, Tensor):
        raise ShapeError(
            f"{op.op_type} {op.name!r}: input {index} is missing or no tensor, expected a tensor"
        )
    return value


def optional_input(op: Operator, index: int) -> Tensor | None:
    """Input ``index`` as a tensor, or None when it is omitted."""
    if index < len(op.inputs):
        value = op.inputs[index]
    else:
        value = None
    if isinstance(value, Tensor):
        return value
    return None


def output_at(op: Operator, index: int = 0) -> Tensor:
    """Output ``index`` as a tensor; ShapeError when nothing uses it or it is a sequence."""
    if index < len(op.outputs):
        value = op.outputs[index]
    else:
        value = None
    if not isinstance(value, Tensor):
        raise ShapeError(
            f"{op.op_type} {op.name!r}: output {index} is missing or no tensor, expected a tensor"
        )
    return value


def tensor_inputs(op: Operator) -> tuple[Tensor, ...]:
    """The inputs that are tensors, elements of sequences included, in order."""
    found: list[Tensor] = []
    for value in op.inputs:
        if isinstance(value, Tensor):
            found.append(value)
        elif value is not None:
            found.extend(value.elements_)
    return tuple(found)


def tensor_outputs(op: Operator) -> tuple[Tensor, ...]:
    """The outputs that are tensors, elements of sequences included, in order."""
    found: list[Tensor] = []
    for value in op.outputs:
        if isinstance(value, Tensor):
            found.append(value)
        elif value is not None:
            found.extend(value.elements_)
    return tuple(found)


def distinct(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """``tensors`` without repetitions of a name, in order: what a kernel reads once."""
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
    """A kernel whose traffic is its operands. ``read_bytes`` overrides where only part of an operand is
    touched.

    ``inputs`` counts the operands that are real tensors: one-element constants travel as kernel arguments.
    """
    operands = distinct(reads)
    total = sum(t.nbytes for t in operands)
    weight = sum(t.nbytes for t in operands if t.is_weight)
    if read_bytes is not None:
        weight = min(weight, read_bytes)
        total = read_bytes
    leading = writes[0] if writes else operands[0]
    counted = sum(1 for t in operands if not (t.is_weight and t.elements <= 1))
    return Kernel(
        name=f"{family.value}.{variant}",
        family=family,
        variant=variant,
        precision=element_precision(leading.dtype) if precision is None else precision,
        flops=flops,
        read_bytes=total,
        write_bytes=sum(t.nbytes for t in writes),
        weight_bytes=weight,
        rows=rows,
        cols=cols,
        element_bytes=leading.dtype.bits / 8,
        inputs=max(1, counted) if operands else 0,
        workspace_bytes=workspace_bytes,
    )


def elementwise_kernel(
    variant: str, reads: Sequence[Tensor], writes: Sequence[Tensor], *, flops_per_element: int
) -> Kernel:
    """One result element per thread: rows = output elements."""
    elements = max((t.elements for t in writes), default=0)
    return memory_kernel(
        Family.ELEMENTWISE, variant, reads, writes, flops=flops_per_element * elements, rows=elements
    )


def copy_kernel(variant: str, reads: Sequence[Tensor], writes: Sequence[Tensor]) -> Kernel:
    """Data movement without arithmetic. Each result element reads at most one source element.

    So a slice reads what it writes, a transpose all of its source, an expansion its small source once.
    """
    written = sum(t.nbytes for t in writes)
    source = sum(t.nbytes for t in distinct(reads))
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
    """``source`` converted to ``dtype``."""
    return Kernel(
        name="copy.cast",
        family=Family.COPY,
        variant="cast",
        precision=element_precision(dtype),
        flops=0,
        read_bytes=source.nbytes,
        write_bytes=dtype.nbytes(source.elements),
        weight_bytes=source.nbytes if source.is_weight else 0,
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
    """A kernel that works on ``rows`` independent rows of ``cols`` elements."""
    return memory_kernel(family, variant, reads, writes, flops=flops, rows=rows, cols=cols)


def softmax_kernel(variant: str, source: Tensor, result: Tensor, axis: int) -> Kernel:
    """Softmax, log-softmax or hardmax of ``source`` along ``axis``."""
    cols = source.shape[axis] if source.shape else 1
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
    """Normalisation over ``rows`` rows of ``cols``; ``affine`` counts scale and shift (0 to 2). ``writes[0]``
    is the result.
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
    """Inference batch normalisation: one multiply-add per element (scale and shift folded per channel, 4
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
    """A reduction of ``source`` to ``kept`` results; ``per_row`` FLOPs finish each (divide, square root,
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
    """Matrix product of ``reads[0]`` and ``reads[1]`` (further reads: bias, scales). FLOPs 2 x batch x m x n
    x k + epilogue.

    ``operand_dtype`` is the type multiplied where the operands are stored otherwise (autocast, weight-only
    quantisation). One product is ``linear``, several are ``bmm``. Variant ``matmul_nn``: neither operand is read
    transposed (libraries pick other tiles then); it is named as ``matmul`` is.
    """
    family = Family.LINEAR if shape.batch == 1 else Family.BMM
    dtype = operand_dtype if operand_dtype is not None else reads[0].dtype
    operands = distinct(reads)
    weight = sum(t.nbytes for t in operands if t.is_weight)
    if read_bytes is None:
        total = sum(t.nbytes for t in operands)
    else:
        total = read_bytes
    return Kernel(
        name=family.value if variant in ("matmul", "matmul_nn") else f"{family.value}.{variant}",
        family=family,
        variant=variant,
        precision=matrix_precision(dtype, options),
        flops=2 * shape.batch * shape.m * shape.n * shape.k + epilogue_flops,
        read_bytes=total,
        write_bytes=sum(t.nbytes for t in writes),
        weight_bytes=min(weight, total),
        rows=shape.batch * shape.m,
        cols=shape.n,
        element_bytes=writes[0].dtype.bits / 8,
        inputs=len(operands),
        gemm=shape,
    )
