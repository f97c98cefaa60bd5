"""Rule on operators that work element by element, on rows of products, and on channels.

Every rule answers one question: is index i of axis 0 of each result made of index i of axis 0 of the batch
operands alone (and of constants), and is axis 0 as long as theirs? If so, running once on the whole gives
every branch its own result. A rule says yes only where the comment at it is a proof; what has no rule is not
lifted.
"""

from __future__ import annotations

from gkestimator.merging.editing import Dims
from gkestimator.merging.lifting.operands import Operand, Question, Rule, proves


@proves
def broadcast(question: Question) -> bool:
    """Say yes element by element under NumPy's broadcasting.

    Batch operands of the result's rank have their axis 0 at the result's axis 0, all of one length. A
    constant of fewer dimensions, or of size 1 there, is repeated over it. A batch operand of lower rank would
    have its axis 0 at another axis of the result: refused; so is a constant that is longer than 1 there.
    """
    ranks = [operand.rank for operand in question.operands if operand.role != "absent"]
    if any(r is None for r in ranks):
        return False
    highest = max((r for r in ranks if r is not None), default=0)
    for operand in question.operands:
        if operand.role == "absent":
            continue
        if operand.role == "batch":
            if operand.rank != highest or highest < 1:
                return False
        elif operand.role != "constant" or (operand.rank == highest and not _one_first(operand.dims)):
            return False
    return True


def _one_first(dims: Dims | None) -> bool:
    """Return True where there is no axis 0, or it is of size 1."""
    return dims is not None and (not dims or dims[0] == 1)


@proves
def unary(question: Question) -> bool:
    """Say yes to the first input element by element; others are constants of one element, alike for all
    branches.
    """
    if question.batch(0) is None:
        return False
    for operand in question.operands[1:]:
        if operand.role == "absent":
            continue
        if operand.role != "constant":
            return False
        if operand.rank is None:
            return False
        if any(size != 1 for size in operand.dims or ()):
            return False
    return True


@proves
def cast_like(question: Question) -> bool:
    """Say yes: CastLike takes nothing but the type of its second input: a batch operand or constant of equal
    type.
    """
    second = question.operand(1).role
    return bool(question.batch(0) and second in ("batch", "constant"))


@proves
def dropout(question: Question) -> bool:
    """Say yes to the identity where it does not train (opset 12 on: ``training_mode`` absent or constant
    false).
    """
    training = question.operand(2)
    if not question.batch(0) or not question.only_first():
        return False
    # trained, it draws other numbers for the whole than for the branches
    off = training.role == "absent" or (training.value is not None and not training.value.any())
    return off and question.steady(1)


@proves
def matmul(question: Question) -> bool:
    """Say yes as numpy.matmul has it.

    Two batch operands of one rank >= 3: axis 0 is an axis of the stack in both.

    Batch times constant: axis 0 of the first is one of its rows (rank 2) or of the stack (rank >= 3); a
    constant of rank 2 is the same for each; one of rank >= 3 must not reach the batch's axis 0, or be 1
    there; one of rank 1 takes the last axis away, so the batch needs two. Constant times batch: the batch's
    axis 0 must belong to the stack (rank >= 3), the constant as before.
    """
    a = question.operand(0)
    b = question.operand(1)
    if a.rank is None:
        return False
    if b.rank is None:
        return False
    if len(question.operands) != 2:
        return False
    roles = (a.role, b.role)
    if roles == ("batch", "batch"):
        return a.rank == b.rank and a.rank >= 3
    if roles == ("batch", "constant"):
        same_for_all = 1 <= b.rank <= 2 or _beside(b, a.rank)
        return a.rank >= 2 and b.rank >= 1 and same_for_all
    if roles == ("constant", "batch"):
        return b.rank >= 3 and a.rank >= 1 and _beside(a, b.rank)
    return False


def _beside(constant: Operand, rank: int) -> bool:
    """Return True where a constant does not reach axis 0 of a batch of that rank, or is 1 there."""
    if constant.rank == rank:
        return _one_first(constant.dims)
    return constant.rank is not None and constant.rank < rank


@proves
def gemm(question: Question) -> bool:
    """Say yes where A's rows are axis 0 where it is not transposed; B constant; C constant and not along the
    rows, or batch.
    """
    if question.batch(0) != 2:
        return False
    if question.operand(1).role != "constant":
        return False
    if question.integer("transA", 0) != 0:
        return False
    c = question.operand(2)
    if c.role == "absent":
        return True
    if c.role == "batch":
        return c.rank == 2
    if c.role != "constant" or c.rank is None:
        return False
    return c.rank <= 1 or (c.rank == 2 and _one_first(c.dims))


@proves
def channels(question: Question) -> bool:
    """Say yes to [N, C, ...] with everything else constant: convolutions and normalisation of each sample by
    itself.
    """
    return bool(question.batch(0, 3) and question.steady_from(1) and question.only_first())


@proves
def fused_conv(question: Question) -> bool:
    """Say yes to com.microsoft.FusedConv: a convolution, then Z of the result's shape is added, then an
    activation.
    """
    z = question.operand(3)
    alike = z.role == "absent" or (z.role == "batch" and z.rank == question.operand(0).rank)
    steady = question.steady(1, 2) and len(question.operands) <= 4
    return bool(question.batch(0, 3) and steady and alike)


@proves
def pool(question: Question) -> bool:
    """Say yes to [N, C, ...], windows over the spatial axes alone.

    MaxPool's indices count from the first sample: refused.
    """
    return bool(question.batch(0, 3) and len(question.operands) == 1 and question.only_first())


@proves
def batch_norm(question: Question) -> bool:
    """Say yes for inference: scale, bias, mean and variance of each channel (axis 1) are constants."""
    if question.integer("training_mode", 0) != 0:
        return False
    if not question.only_first():
        return False
    return bool(question.batch(0, 2) and question.steady_from(1))


@proves
def layer_norm(question: Question) -> bool:
    """Say yes to mean and variance over the axes from ``axis`` on, 0 not among them; scale and bias broadcast
    to X.
    """
    rank = question.batch(0, 2)
    if rank is None or not question.axis(rank, -1):
        return False
    for operand in question.operands[1:]:
        if operand.role == "absent":
            continue
        if operand.role != "constant":
            return False
        if operand.rank is None:
            return False
        if operand.rank > rank:
            return False
        if operand.rank == rank and not _one_first(operand.dims):
            return False
    return True


@proves
def skip_layer_norm(question: Question) -> bool:
    """Say yes to com.microsoft: input and skip of one rank added, normalised over the last axis, the rest
    constants.

    Mean and inverse deviation (outputs 1 and 2) are not lifted, the sum (3) is.
    """
    rank = question.batch(0, 2)
    if rank is None:
        return False
    if question.batch(1, 2) != rank:
        return False
    if not question.steady_from(2):
        return False
    return not any(question.used[1:3])


@proves
def quantize(question: Question) -> bool:
    """Say yes to QuantizeLinear, DequantizeLinear: constant scale and zero point, of one value or along an
    axis other than 0.
    """
    rank = question.batch(0)
    scale = question.operand(1)
    if rank is None:
        return False
    if scale.role != "constant":
        return False
    if scale.rank is None:
        return False
    if not question.steady_from(1):
        return False
    if scale.rank == 0:
        return True
    return bool(scale.rank == 1 and question.axis(rank, 1) and not question.integer("block_size", 0))


_UNARY = (
    "Abs",
    "Acos",
    "Acosh",
    "Asin",
    "Asinh",
    "Atan",
    "Atanh",
    "BitwiseNot",
    "Cast",
    "Ceil",
    "Celu",
    "Cos",
    "Cosh",
    "Elu",
    "Erf",
    "Exp",
    "Floor",
    "Gelu",
    "HardSigmoid",
    "HardSwish",
    "Identity",
    "IsInf",
    "IsNaN",
    "LeakyRelu",
    "Log",
    "Mish",
    "Neg",
    "Not",
    "Reciprocal",
    "Relu",
    "Round",
    "Selu",
    "Shrink",
    "Sigmoid",
    "Sign",
    "Sin",
    "Sinh",
    "Softplus",
    "Softsign",
    "Sqrt",
    "Swish",
    "Tan",
    "Tanh",
    "ThresholdedRelu",
    "Clip",
)
_BROADCAST = (
    "Add",
    "And",
    "BitShift",
    "BitwiseAnd",
    "BitwiseOr",
    "BitwiseXor",
    "Div",
    "Equal",
    "Greater",
    "GreaterOrEqual",
    "Less",
    "LessOrEqual",
    "Max",
    "Mean",
    "Min",
    "Mod",
    "Mul",
    "Or",
    "PRelu",
    "Pow",
    "Sub",
    "Sum",
    "Where",
    "Xor",
)
_POOLS = ("MaxPool", "AveragePool", "LpPool", "GlobalMaxPool", "GlobalAveragePool", "GlobalLpPool")
_CHANNELS = ("Conv", "ConvTranspose", "InstanceNormalization", "GroupNormalization")

#: Rules for operators of ONNX's standard domain.
POINTWISE: dict[str, Rule] = {
    **dict.fromkeys(_UNARY, unary),
    **dict.fromkeys(_BROADCAST, broadcast),
    **dict.fromkeys(_CHANNELS, channels),
    **dict.fromkeys((*_POOLS, "LRN", "DepthToSpace", "SpaceToDepth"), pool),
    "CastLike": cast_like,
    "Dropout": dropout,
    "MatMul": matmul,
    "Gemm": gemm,
    "BatchNormalization": batch_norm,
    "LayerNormalization": layer_norm,
    "RMSNormalization": layer_norm,
    "QuantizeLinear": quantize,
    "DequantizeLinear": quantize,
}
#: Rules for operators of ONNX Runtime's own domain.
MICROSOFT: dict[str, Rule] = {
    "Gelu": unary,
    "QuickGelu": unary,
    "BiasGelu": broadcast,
    "FastGelu": broadcast,
    "FusedConv": fused_conv,
    "SkipLayerNormalization": skip_layer_norm,
}
