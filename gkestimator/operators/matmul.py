"""Matrix products: MatMul, Gemm, Einsum and their integer forms."""

from __future__ import annotations

import math

from gkestimator.core.dtypes import DType
from gkestimator.core.errors import ShapeError
from gkestimator.core.graph import Operator, Tensor
from gkestimator.core.kernels import Family, GemmShape, Kernel
from gkestimator.operators.builders import (
    cast_kernel,
    elementwise_kernel,
    gemm_kernel,
    input_at,
    memory_kernel,
    optional_input,
    output_at,
    tensor_inputs,
)
from gkestimator.operators.precision import half_type
from gkestimator.operators.registry import Lowered, LoweringOptions, lowering_rule


def matmul_shape(
    a: tuple[int, ...], b: tuple[int, ...], *, trans_a: bool = False, trans_b: bool = False
) -> GemmShape:
    """The GEMM of a NumPy-style product; a two-dimensional right side folds the left side's batch into m.

    Raises ShapeError where the inner dimensions differ or a side is a scalar.
    """
    if not a or not b:
        raise ShapeError("a matrix product needs at least one dimension on each side, found a scalar")
    a = (1, *a) if len(a) == 1 else a
    b = (*b, 1) if len(b) == 1 else b
    m, k = (a[-1], a[-2]) if trans_a else (a[-2], a[-1])
    k_right, n = (b[-1], b[-2]) if trans_b else (b[-2], b[-1])
    if k != k_right:
        raise ShapeError(f"a matrix product of {list(a)} and {list(b)}: inner sizes {k} and {k_right} differ")
    batch_a = a[:-2]
    batch_b = b[:-2]
    if math.prod(batch_b) == 1:
        return GemmShape(batch=1, m=math.prod(batch_a) * m, n=n, k=k)
    width = max(len(batch_a), len(batch_b))
    left = (1,) * (width - len(batch_a)) + batch_a
    right = (1,) * (width - len(batch_b)) + batch_b
    batch = math.prod(y if x == 1 else x for x, y in zip(left, right, strict=True))
    return GemmShape(batch=batch, m=m, n=n, k=k)


def autocast_kernels(
    operands: tuple[Tensor, ...], options: LoweringOptions
) -> tuple[tuple[Kernel, ...], tuple[Tensor, ...]]:
    """Under ``amp`` the casts of float32 operands to half, and the operands as the product reads them."""
    if options.dtype != "amp":
        return (), operands
    half = half_type(options)
    casts = []
    cast: list[Tensor] = []
    for tensor in operands:
        if tensor.dtype is DType.FLOAT:
            casts.append(cast_kernel(tensor, half))
            tensor = Tensor(
                name=tensor.name,
                dtype=half,
                shape=tensor.shape,
                storage=tensor.storage,
                is_weight=tensor.is_weight,
            )
        cast.append(tensor)
    return tuple(casts), tuple(cast)


def matmul_kernels(
    shape: GemmShape,
    operands: tuple[Tensor, ...],
    result: Tensor,
    options: LoweringOptions,
    *,
    variant: str = "matmul",
    epilogue_flops: int = 0,
) -> tuple[Kernel, ...]:
    """A product with its autocasts. An empty inner dimension leaves a fill with zeros."""
    if shape.k == 0:
        return (elementwise_kernel("fill", (), (result,), flops_per_element=0),)
    casts, operands = autocast_kernels(operands, options)
    product = gemm_kernel(shape, operands, (result,), options, variant=variant, epilogue_flops=epilogue_flops)
    return (*casts, product)


@lowering_rule("MatMul", kind="gemm", autocast="half")
def matmul(op: Operator, options: LoweringOptions) -> Lowered:
    """One GEMM, or one batched GEMM."""
    a = input_at(op, 0)
    b = input_at(op, 1)
    # torch's exporters store the weight of a Linear transposed, so its product reads W^T; a runtime that takes
    # the file as it is multiplies by what it finds.
    variant = "matmul_nn" if options.runtime == "onnxruntime" else "matmul"
    kernels = matmul_kernels(matmul_shape(a.shape, b.shape), (a, b), output_at(op), options, variant=variant)
    return Lowered(kernels=kernels, host_calls=len(kernels))


def gemm_shape(op: Operator) -> GemmShape:
    """The GEMM of a Gemm-like operator with ``transA`` and ``transB``."""
    a = input_at(op, 0)
    b = input_at(op, 1)
    return matmul_shape(
        a.shape,
        b.shape,
        trans_a=bool(op.attributes.get("transA", 0)),
        trans_b=bool(op.attributes.get("transB", 0)),
    )


@lowering_rule("Gemm", kind="gemm", autocast="half", feeds_in_place=True)
def gemm(op: Operator, options: LoweringOptions) -> Lowered:
    """alpha A B + beta C with the bias in the epilogue (cublasLt, addmm): one kernel."""
    shape = gemm_shape(op)
    bias = optional_input(op, 2)
    elements = shape.m * shape.n
    epilogue = elements if bias is not None else 0
    if op.attributes.get("alpha", 1.0) != 1.0:
        epilogue += elements
    if bias is not None and op.attributes.get("beta", 1.0) != 1.0:
        epilogue += bias.elements
    variant = "matmul" if op.attributes.get("transB", 0) else "matmul_nn"
    kernels = matmul_kernels(
        shape, tensor_inputs(op), output_at(op), options, variant=variant, epilogue_flops=epilogue
    )
    return Lowered(kernels=kernels, host_calls=len(kernels))


@lowering_rule("Einsum", kind="gemm", autocast="half")
def einsum(op: Operator, options: LoweringOptions) -> Lowered:
    """Contracted from left to right, two operands at a time, as both runtimes do; a single operand is a
    reduction or a view.
    """
    equation = str(op.attributes.get("equation", ""))
    operands = tensor_inputs(op)
    result = output_at(op)
    terms, sizes, final = _parse_einsum(op, equation, operands, result)
    if len(operands) == 1:
        summed = math.prod(sizes[c] for c in set(terms[0]) - set(final))
        flops = operands[0].elements if summed > 1 else 0
        kernel = memory_kernel(
            Family.REDUCTION if summed > 1 else Family.COPY,
            "sum" if summed > 1 else "transpose",
            operands,
            (result,),
            flops=flops,
            rows=result.elements,
            cols=max(1, summed),
        )
        return Lowered(kernels=(kernel,), host_calls=1)
    kernels: list[Kernel] = []
    left = operands[0]
    left_term = terms[0]
    for i, right in enumerate(operands[1:], start=1):
        later = set(final).union(*terms[i + 1 :])
        right_term = terms[i]
        both = set(left_term) & set(right_term)
        batch = [c for c in left_term if c in both and c in later]
        inner = both - later
        rows = set(left_term) - both
        cols = set(right_term) - both
        shape = GemmShape(
            batch=max(1, math.prod(sizes[c] for c in set(batch))),
            m=math.prod(sizes[c] for c in rows),
            n=math.prod(sizes[c] for c in cols),
            k=math.prod(sizes[c] for c in inner),
        )
        left_term = "".join(c for c in sizes if (c in later) and (c in left_term or c in right_term))
        product = result
        if i < len(operands) - 1:
            name = f"{result.name}#{i}"
            product = Tensor(
                name=name, dtype=result.dtype, shape=tuple(sizes[c] for c in left_term), storage=name
            )
        if shape.k == 1 and not inner:
            kernels.append(elementwise_kernel("mul", (left, right), (product,), flops_per_element=1))
        else:
            kernels.extend(matmul_kernels(shape, (left, right), product, options))
        left = product
    return Lowered(kernels=tuple(kernels), host_calls=len(kernels))


def _parse_einsum(
    op: Operator, equation: str, operands: tuple[Tensor, ...], result: Tensor
) -> tuple[list[str], dict[str, int], str]:
    """Terms with the ellipsis written out (as capital private letters), the size of each index, and the
    result's term.
    """
    text = equation.replace(" ", "")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    if len(terms) != len(operands):
        raise ShapeError(
            f"Einsum {op.name!r}: equation {equation!r} has {len(terms)} terms, found {len(operands)} inputs"
        )
    sizes: dict[str, int] = {}
    hidden = [chr(0x2460 + i) for i in range(32)]
    longest = 0
    written: list[str] = []
    for term, tensor in zip(terms, operands, strict=True):
        if "..." in term:
            extra = len(tensor.shape) - (len(term) - 3)
            if not 0 <= extra <= len(hidden):
                raise ShapeError(f"Einsum {op.name!r}: term {term!r} does not fit shape {list(tensor.shape)}")
            longest = max(longest, extra)
            term = term.replace("...", "".join(hidden[len(hidden) - extra :]) if extra else "")
        if len(term) != len(tensor.shape):
            raise ShapeError(f"Einsum {op.name!r}: term {term!r} does not fit shape {list(tensor.shape)}")
        for letter, size in zip(term, tensor.shape, strict=True):
            sizes[letter] = max(size, sizes.get(letter, size))
        written.append(term)
    if longest:
        ellipsis = "".join(hidden[len(hidden) - longest :])
    else:
        ellipsis = ""
    if arrow:
        final = right.replace("...", ellipsis)
    else:
        joined = "".join(written)
        final = ellipsis + "".join(sorted(c for c in sizes if c not in hidden and joined.count(c) == 1))
    return written, sizes, final


@lowering_rule("MatMulInteger", kind="integer_gemm", quantised=True)
def matmul_integer(op: Operator, options: LoweringOptions) -> Lowered:
    """int8 x int8 to int32 in one kernel; zero points are subtracted in its prologue."""
    a = input_at(op, 0)
    b = input_at(op, 1)
    kernel = gemm_kernel(
        matmul_shape(a.shape, b.shape), tensor_inputs(op), (output_at(op),), options, variant="integer"
    )
    return Lowered(kernels=(kernel,), host_calls=1)


@lowering_rule("QLinearMatMul", kind="integer_gemm", quantised=True)
def qlinear_matmul(op: Operator, options: LoweringOptions) -> Lowered:
    """int8 product, requantised in the epilogue: multiply, round, add the zero point, saturate (5 per
    element).
    """
    a = input_at(op, 0)
    b = input_at(op, 3)
    result = output_at(op)
    others = tuple(t for i in (1, 2, 4, 5, 6, 7) if (t := optional_input(op, i)) is not None)
    kernel = gemm_kernel(
        matmul_shape(a.shape, b.shape),
        (a, b, *others),
        (result,),
        options,
        variant="qlinear",
        epilogue_flops=5 * result.elements,
    )
    return Lowered(kernels=(kernel,), host_calls=1)
