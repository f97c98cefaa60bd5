"""What surrounds a matrix product: scalar factors and transpositions of its operands.

A product with a weight matrix and the addition of a one-dimensional bias: MatMul, Add.

torch: F.linear with bias is one addmm, the bias added in the GEMM's epilogue, for inputs of any rank.
onnxruntime (MatMulAddFusion, verified on its CPU provider, same pass for CUDA): Gemm where the input is a
matrix. For a higher rank it fuses only where every dimension is a number in the file; a file with a symbolic
batch, the case this assumes, keeps the MatMul and the Add.

Scalar factors and transpositions around a MatMul: onnxruntime's FusedMatMul.

onnxruntime only (MatMulScaleFusion, MatmulTransposeFusion, verified on its CPU provider, same passes for
CUDA): a Mul or Div by a one-element constant before either operand or after the product, and a Transpose of
an operand's last two dimensions, become attributes of the product. cuBLAS reads transposed operands and
scales for nothing.
"""

from __future__ import annotations

from gkestimator.core.graph import Operator, Tensor
from gkestimator.lowering.patterns.match import FUSED_DOMAIN, Match, fused
from gkestimator.lowering.patterns.view import GraphView, Indices, Mismatch, Traced, is_scalar
from gkestimator.operators.builders import input_at, output_at
from gkestimator.operators.matmul import matmul_kernels, matmul_shape
from gkestimator.operators.registry import Lowered, LoweringOptions, lowering_rule


def bare_operand(view: GraphView, value: Tensor) -> tuple[Tensor, Indices, int]:
    """Return the operand before factors and transpositions that only this product reads, those, and whether it is
    flipped.
    """
    members: Indices = []
    flipped = 0
    while view.sole_reader(value) is not None:
        index = view.made_by(value, "Mul", "Div", "Transpose")
        if index is None:
            break
        op = view.operators[index]
        if op.op_type == "Transpose":
            rank = len(value.shape)
            swapped = (*range(rank - 2), rank - 1, rank - 2)
            reverse = tuple(range(rank - 1, -1, -1))
            if rank < 2 or op.attributes.get("perm", reverse) != swapped:
                break
            flipped ^= 1
        elif not scales(view, index, value):
            break
        members.append(index)
        if op.op_type != "Mul":
            value = view.operand(index, 0)
        else:
            value = view.split_scalar(index)[0]
    return value, members, flipped


def bare_factors(view: GraphView, value: Tensor) -> Traced:
    """Return the operand before constant factors that only this product reads, and those."""
    members: Indices = []
    while view.sole_reader(value) is not None:
        index = view.made_by(value, "Mul", "Div")
        if index is None or not scales(view, index, value):
            break
        members.append(index)
        if view.operators[index].op_type == "Div":
            value = view.operand(index, 0)
        else:
            value = view.split_scalar(index)[0]
    return value, members


def flattened_transpose(view: GraphView, value: Tensor) -> Traced:
    """Return the (B, H, S, D) behind ``value`` (B, H, D, S), where Reshape to (B*H, S, D), Transpose and Reshape
    back lie between, as torch.onnx.export(dynamo=True) turns the keys; ``value`` itself and no operators otherwise.
    """
    members: Indices = []
    at = value
    for op_type in ("Reshape", "Transpose", "Reshape"):
        index = None
        if view.sole_reader(at) is not None:
            index = view.made_by(at, op_type)
        if index is None:
            return value, []
        members.append(index)
        at = view.operand(index, 0)
    batch, heads, size, length = value.shape
    turned = view.operators[members[1]].attributes.get("perm", (2, 1, 0))
    flat = view.operand(members[1], 0).shape
    if (
        turned != (0, 2, 1)
        or at.shape != (batch, heads, length, size)
        or flat != (batch * heads, length, size)
    ):
        return value, []
    return at, members


def scales(view: GraphView, index: int, value: Tensor) -> bool:
    """Return True where a Mul or Div changes nothing but the magnitude."""
    op = view.operators[index]
    first = view.operand(index, 0)
    second = view.operand(index, 1)
    if is_scalar(second) and first.shape == value.shape:
        return True
    return op.op_type != "Div" and is_scalar(first) and second.shape == value.shape


def scaling_after(view: GraphView, value: Tensor) -> int | None:
    """Return the Mul or Div by a one-element constant that alone reads the product ``value``."""
    index = view.optional_reader(value, "Mul", "Div")
    if index is None or not scales(view, index, view.result(index)):
        return None
    divides = view.operators[index].op_type == "Div"
    if divides and not view.reads(index, 0, value):
        return None
    return index


def match_linear(view: GraphView, product: int, options: LoweringOptions) -> Match:
    """Return the linear layer that starts at the MatMul at index ``product``."""
    x = view.operand(product, 0)
    weight = view.operand(product, 1)
    if not weight.is_weight or len(weight.shape) != 2:
        raise view.mismatch(product, f"multiplies by {weight.name}, expected a weight matrix")
    adding = view.next(product, "Add")
    bias = view.partner(adding, product)
    if not bias.is_weight or bias.shape != weight.shape[1:]:
        raise view.mismatch(adding, f"adds {bias.name} {list(bias.shape)}, expected a bias")
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
    """Return x (..., K) times W (K, N) plus bias (N): one GEMM, 2 M N K FLOPs and an addition per result."""
    x = input_at(op, 0)
    weight = input_at(op, 1)
    bias = input_at(op, 2)
    result = output_at(op)
    shape = matmul_shape(x.shape, weight.shape)
    kernels = matmul_kernels(shape, (x, weight, bias), result, options, epilogue_flops=result.elements)
    return Lowered(kernels=kernels, host_calls=len(kernels))


def match_scaled_matmul(view: GraphView, product: int, options: LoweringOptions) -> Match:
    """Return the FusedMatMul around the MatMul at index ``product``."""
    covered = [product]
    operands: list[Tensor] = []
    transposed: Indices = []
    for position in (0, 1):
        value, members, flipped = bare_operand(view, view.operand(product, position))
        covered += members
        operands.append(value)
        transposed.append(flipped)
    following = scaling_after(view, view.result(product))
    if following is not None:
        covered.append(following)
    if len(covered) == 1:
        raise view.mismatch(product, "has no constant factor and no transposed operand")
    return fused(
        view,
        "fused_matmul",
        covered,
        op_type="FusedMatMul",
        domain="com.microsoft",
        inputs=tuple(operands),
        attributes={"transA": transposed[0], "transB": transposed[1], "alpha": 1.0},
    )
