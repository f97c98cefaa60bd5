"""Matrix products: MatMul, Gemm, Einsum and their integer forms."""

from __future__ import annotations

import math
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from gkestimator.core.dtypes import DType
from gkestimator.core.errors import ShapeError
from gkestimator.core.graph import Operator, Tensor
from gkestimator.core.kernels import Family, GemmShape, Kernel
from gkestimator.core.records import frozen
from gkestimator.operators.builders import (
    cast_kernel,
    elementwise_kernel,
    fill_kernel,
    gemm_kernel,
    input_at,
    memory_kernel,
    optional_input,
    output_at,
    present_inputs,
    scratch,
    tensor_inputs,
)
from gkestimator.operators.checks import all_tensors, broadcast, optional_tensor, tensor
from gkestimator.operators.narrow import is_narrow, narrow_kernels
from gkestimator.operators.registry import (
    MS,
    Kernels,
    Lowered,
    LoweringOptions,
    Outputs,
    Shape,
    ShapeContext,
    TensorType,
    half_type,
    launched,
    lowering_rule,
    shape_rule,
)


@shape_rule("MatMul")
def matmul_types(ctx: ShapeContext) -> Outputs:
    """Return batches broadcast; (m, k) x (k, n) gives (m, n)."""
    a = tensor(ctx, 0)
    b = tensor(ctx, 1)
    return [TensorType(a.dtype, matmul_result(a.shape, b.shape))]


def matmul_result(a: Shape, b: Shape) -> Shape:
    """Return the shape of the matrix product of ``a`` and ``b`` by NumPy's rules; one dimension is a vector.

    Raises ShapeError when the inner dimensions differ.
    """
    if not a or not b:
        raise ShapeError("a scalar has no matrix product")
    left = a if len(a) > 1 else (1, *a)
    right = b if len(b) > 1 else (*b, 1)
    if left[-1] != right[-2]:
        raise ShapeError(f"inner dimensions of {list(a)} and {list(b)} differ")
    result = broadcast(left[:-2], right[:-2])
    if len(a) > 1:
        result += left[-2:-1]
    if len(b) > 1:
        result += right[-1:]
    return result


def matmul_shape(a: Shape, b: Shape, *, trans_a: bool = False, trans_b: bool = False) -> GemmShape:
    """Return the GEMM of a NumPy-style product; a two-dimensional right side folds the left side's batch into m.

    Raises ShapeError where the inner dimensions differ or a side is a scalar.
    """
    if not a or not b:
        raise ShapeError("a matrix product needs at least one dimension on each side, found a scalar")
    if len(a) == 1:
        a = (1, *a)
    if len(b) == 1:
        b = (*b, 1)
    *rows, m, k = a
    *columns, depth, n = b
    if trans_a:
        m, k = k, m
    if trans_b:
        depth, n = n, depth
    if k != depth:
        raise ShapeError(f"a matrix product of {list(a)} and {list(b)}: inner sizes {k} and {depth} differ")
    if math.prod(columns) == 1:
        return GemmShape(batch=1, m=math.prod(rows) * m, n=n, k=k)
    batch = math.prod(broadcast(rows, columns))
    return GemmShape(batch=batch, m=m, n=n, k=k)


def autocast_kernels(
    operands: tuple[Tensor, ...], options: LoweringOptions
) -> tuple[Kernels, tuple[Tensor, ...]]:
    """Return return, under ``amp`` the casts of float32 operands to half, and the operands as the product reads
    them.
    """
    if options.dtype != "amp":
        return (), operands
    half = half_type(options)
    casts: list[Kernel] = []
    read: list[Tensor] = []
    for operand in operands:
        if operand.dtype is DType.FLOAT:
            casts.append(cast_kernel(operand, half))
            read.append(replace(operand, dtype=half, value=None))
        else:
            read.append(operand)
    return tuple(casts), tuple(read)


def matmul_kernels(
    shape: GemmShape,
    operands: tuple[Tensor, ...],
    result: Tensor,
    options: LoweringOptions,
    *,
    variant: str = "matmul",
    epilogue_flops: int = 0,
) -> Kernels:
    """Return a product with its autocasts. An empty inner dimension leaves a fill with zeros."""
    if shape.k == 0:
        return (fill_kernel(result),)
    if is_narrow(operands):
        return narrow_kernels(shape, operands, result, options, epilogue_flops=epilogue_flops)
    casts, operands = autocast_kernels(operands, options)
    product = gemm_kernel(shape, operands, (result,), options, variant=variant, epilogue_flops=epilogue_flops)
    return (*casts, product)


@lowering_rule("MatMul", kind="gemm", autocast="half")
def matmul(op: Operator, options: LoweringOptions) -> Lowered:
    """Return one GEMM, or one batched GEMM."""
    a = input_at(op, 0)
    b = input_at(op, 1)
    # torch's exporters store the weight of a Linear transposed, so its product reads W^T; a runtime that takes
    # the file as it is multiplies by what it finds.
    if options.runtime == "onnxruntime":
        variant = "matmul_nn"
    else:
        variant = "matmul"
    shape = matmul_shape(a.shape, b.shape)
    kernels = matmul_kernels(shape, (a, b), output_at(op), options, variant=variant)
    return launched(*kernels, calls=len(kernels))


@shape_rule("Gemm")
def gemm_types(ctx: ShapeContext) -> Outputs:
    """Return A (m, k) or transposed times B (k, n) or transposed; C broadcasts to (m, n)."""
    a = tensor(ctx, 0)
    result = gemm_result(ctx, a.shape, tensor(ctx, 1).shape)
    bias = optional_tensor(ctx, 2)
    if bias is not None and ctx.version >= 7 and broadcast(bias.shape, result) != result:
        raise ShapeError(f"C of shape {bias} does not broadcast to {list(result)}")
    return [TensorType(a.dtype, result)]


def gemm_result(ctx: ShapeContext, a: Shape, b: Shape) -> Shape:
    """Return the shape of the product of two matrices, each transposed where transA or transB say so."""
    if len(a) != 2 or len(b) != 2:
        raise ShapeError(f"{list(a)} and {list(b)} are not both matrices")
    if ctx.attributes.get("transA"):
        a = a[::-1]
    if ctx.attributes.get("transB"):
        b = b[::-1]
    return matmul_result(a, b)


def gemm_shape(op: Operator) -> GemmShape:
    """Return the GEMM of a Gemm-like operator with ``transA`` and ``transB``."""
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
    """Return alpha A B + beta C with the bias in the epilogue (cublasLt, addmm): one kernel."""
    shape = gemm_shape(op)
    bias = optional_input(op, 2)
    elements = shape.m * shape.n
    if bias is not None:
        epilogue = elements
    else:
        epilogue = 0
    if op.attributes.get("alpha", 1.0) != 1.0:
        epilogue += elements
    if bias is not None and op.attributes.get("beta", 1.0) != 1.0:
        epilogue += bias.elements
    if op.attributes.get("transB", 0):
        variant = "matmul"
    else:
        variant = "matmul_nn"
    kernels = matmul_kernels(
        shape, tensor_inputs(op), output_at(op), options, variant=variant, epilogue_flops=epilogue
    )
    return launched(*kernels, calls=len(kernels))


_EQUATION = frozenset(f"{string.ascii_letters}.,-> ")


def einsum_terms(equation: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """Return the operands' terms and the result's, every ellipsis spelled out in letters that nothing else uses.

    Raises ShapeError where the equation does not fit operands of ``ranks``.
    """
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    misfit = f"equation {equation[:80]!r} does not fit operands of rank {list(ranks)}"
    if len(terms) != len(ranks) or not _EQUATION.issuperset(equation):
        raise ShapeError(misfit)
    letters = "".join(c for c in string.ascii_letters if c not in equation)
    longest = 0
    for term, rank in zip(terms, ranks, strict=True):
        hidden = rank - len(term.replace("...", ""))
        # Without an ellipsis every dimension has its letter.
        if not 0 <= hidden <= len(letters) or (hidden and "..." not in term):
            raise ShapeError(misfit)
        longest = max(longest, hidden)
    dots = letters[:longest]
    spelled = []
    for term, rank in zip(terms, ranks, strict=True):
        hidden = rank - len(term.replace("...", ""))
        spelled.append(term.replace("...", dots[longest - hidden :]))
    if arrow:
        return spelled, right.replace("...", dots)
    counts = Counter("".join(spelled))
    once = sorted(letter for letter, count in counts.items() if count == 1 and letter not in dots)
    return spelled, dots + "".join(once)


@shape_rule("Einsum")
def einsum_types(ctx: ShapeContext) -> Outputs:
    """Return the output's letters with the sizes that the operands give them (1 broadcasts under an ellipsis)."""
    operands = all_tensors(ctx)
    equation = str(ctx.attributes["equation"])
    terms, result = einsum_terms(equation, [len(operand.shape) for operand in operands])
    sizes: dict[str, int] = {}
    for term, operand in zip(terms, operands, strict=True):
        for letter, size in zip(term, operand.shape, strict=True):
            known = sizes.get(letter, 1)
            if known != 1 and size not in (1, known):
                raise ShapeError(f"index {letter} is {known} and {size}")
            sizes[letter] = max(size, known) if size else 0
    shape = tuple([sizes[letter] for letter in result])
    return [TensorType(operands[0].dtype, shape)]


@lowering_rule("Einsum", kind="gemm", autocast="half")
def einsum(op: Operator, options: LoweringOptions) -> Lowered:
    """Return the contraction from left to right, two operands at a time, as both runtimes do it.

    A single operand is a reduction or a view.
    """
    operands = tensor_inputs(op)
    result = output_at(op)
    equation = str(op.attributes.get("equation", ""))
    terms, final = einsum_terms(equation, [len(operand.shape) for operand in operands])
    sizes: dict[str, int] = {}
    for term, operand in zip(terms, operands, strict=True):
        for letter, size in zip(term, operand.shape, strict=True):
            sizes[letter] = max(size, sizes.get(letter, size))
    if len(operands) == 1:
        summed = math.prod(sizes[letter] for letter in set(terms[0]) - set(final))
        return launched(_single_einsum(operands[0], result, summed))
    kernels: list[Kernel] = []
    left = operands[0]
    left_term = terms[0]
    last_read: dict[str, int] = {}  # the last operand that has each letter
    for index, term in enumerate(terms):
        last_read.update(dict.fromkeys(term, index))
    last_read.update(dict.fromkeys(final, len(terms)))
    for index, right in enumerate(operands[1:], start=1):
        pair = set(left_term).union(terms[index])
        later = {letter for letter in pair if last_read[letter] > index}
        product = _Contraction(sizes=sizes, left=left_term, right=terms[index], later=later)
        left_term = product.term
        into = result
        if index < len(operands) - 1:
            into = scratch(result, str(index), tuple([sizes[letter] for letter in left_term]))
        if product.inner:
            kernels += matmul_kernels(product.shape, (left, right), into, options)
        else:
            kernels.append(elementwise_kernel("mul", (left, right), (into,), flops_per_element=1))
        left = into
    return launched(*kernels, calls=len(kernels))


def _single_einsum(source: Tensor, result: Tensor, summed: int) -> Kernel:
    """Return the sum over ``summed`` elements for each of the result's, or the transposition where it is 1."""
    if summed > 1:
        flops = source.elements
    else:
        flops = 0
    return memory_kernel(
        Family.REDUCTION if summed > 1 else Family.COPY,
        "sum" if summed > 1 else "transpose",
        (source,),
        (result,),
        flops=flops,
        rows=result.elements,
        cols=max(1, summed),
    )


@frozen
class _Contraction:
    """Hold the product of two terms of an equation, of whose letters only those in ``later`` are needed further on."""

    sizes: Mapping[str, int]
    left: str
    right: str
    later: set[str]

    @property
    def inner(self) -> set[str]:
        """Return the letters that the product sums over."""
        return (set(self.left) & set(self.right)) - self.later

    @property
    def term(self) -> str:
        """Return the letters of the result, in the order in which the equation names them."""
        either = set(self.left) | set(self.right)
        return "".join(letter for letter in self.sizes if letter in self.later & either)

    @property
    def shape(self) -> GemmShape:
        """Return the batched matrix product that the contraction is."""
        left = set(self.left)
        right = set(self.right)
        return GemmShape(
            batch=max(1, self._size(left & right & self.later)),
            m=self._size(left - right),
            n=self._size(right - left),
            k=self._size(self.inner),
        )

    def _size(self, letters: set[str]) -> int:
        return math.prod(self.sizes[letter] for letter in letters)


@shape_rule("MatMulInteger")
@shape_rule("MatMulInteger16", domain=MS, quantised=True)
def matmul_integer_types(ctx: ShapeContext) -> Outputs:
    """Return the product in int32."""
    shape = matmul_result(tensor(ctx, 0).shape, tensor(ctx, 1).shape)
    return [TensorType(DType.INT32, shape)]


@lowering_rule("MatMulInteger", kind="integer_gemm", quantised=True)
def matmul_integer(op: Operator, options: LoweringOptions) -> Lowered:
    """Return int8 x int8 to int32 in one kernel; zero points are subtracted in its prologue."""
    a = input_at(op, 0)
    b = input_at(op, 1)
    kernel = gemm_kernel(
        matmul_shape(a.shape, b.shape), tensor_inputs(op), (output_at(op),), options, variant="integer"
    )
    return launched(kernel)


@shape_rule("QLinearMatMul")
def qlinear_matmul_types(ctx: ShapeContext) -> Outputs:
    """Return the product of inputs 0 and 3 in the type of the result's zero point."""
    shape = matmul_result(tensor(ctx, 0).shape, tensor(ctx, 3).shape)
    return [TensorType(tensor(ctx, 7).dtype, shape)]


@lowering_rule("QLinearMatMul", kind="integer_gemm", quantised=True)
def qlinear_matmul(op: Operator, options: LoweringOptions) -> Lowered:
    """Return int8 product, requantised in the epilogue: multiply, round, add the zero point, saturate (5 per
    element).
    """
    a = input_at(op, 0)
    b = input_at(op, 3)
    result = output_at(op)
    others = present_inputs(op, 1, 2, 4, 5, 6, 7)
    kernel = gemm_kernel(
        matmul_shape(a.shape, b.shape),
        (a, b, *others),
        (result,),
        options,
        variant="qlinear",
        epilogue_flops=5 * result.elements,
    )
    return launched(kernel)
