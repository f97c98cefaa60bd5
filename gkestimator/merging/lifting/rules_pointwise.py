"""Rules for operators that work element by element, on rows of products, and on channels.

Every rule answers one question: is index i of axis 0 of each result made of index i of axis 0 of the batch operands
alone (and of constants), and is axis 0 as long as theirs? If so, running once on the whole gives every branch its
own result. A rule says yes only where the comment at it is a proof; what has no rule is not lifted.
"""

from __future__ import annotations

from gkestimator.merging.editing import Dims
from gkestimator.merging.lifting.operands import YES, Question, Rewrite, Rule


def broadcast(question: Question) -> Rewrite | None:
    """Element by element under NumPy's broadcasting.

    Batch operands of the result's rank have their axis 0 at the result's axis 0, all of one length. A constant of
    fewer dimensions, or of size 1 there, is repeated over it. A batch operand of lower rank would have its axis 0
    at another axis of the result: refused; so is a constant that is longer than 1 there.
    """
    ranks = [operand.rank for operand in question.operands if operand.role != "absent"]
    if any(r is None for r in ranks):
        return None
    highest = max((r for r in ranks if r is not None), default=0)
    for operand in question.operands:
        if operand.role == "absent":
            continue
        if operand.role == "batch":
            if operand.rank != highest or highest < 1:
                return None
        elif operand.role != "constant" or (operand.rank == highest and not _one_first(operand.dims)):
            return None
    return YES


def _one_first(dims: Dims | None) -> bool:
    """Whether there is no axis 0, or it is of size 1."""
    return dims is not None and (not dims or dims[0] == 1)


def unary(question: Question) -> Rewrite | None:
    """The first input element by element; others are constants of one element, alike for all branches."""
    if question.batch(0) is None:
        return None
    for operand in question.operands[1:]:
        if operand.role == "absent":
            continue
        if operand.role != "constant":
            return None
        if operand.rank is None:
            return None
        if any(size != 1 for size in operand.dims or ()):
            return None
    return YES


def cast_like(question: Question) -> Rewrite | None:
    """CastLike takes nothing but the type of its second input: a batch operand or constant of equal type."""
    second = question.operand(1).role
    if question.batch(0) and second in ("batch", "constant"):
        return YES
    return None


def dropout(question: Question) -> Rewrite | None:
    """The identity where it does not train (opset 12 on: ``training_mode`` absent or constant false)."""
    training = question.operand(2)
    if not question.batch(0) or not question.only_first():
        return None
    off = training.role == "absent" or (training.value is not None and not training.value.any())
    if off and question.steady(1):
        return YES
    return None


def matmul(question: Question) -> Rewrite | None:
    """numpy.matmul. Two batch operands of one rank >= 3: axis 0 is an axis of the stack in both.

    Batch times constant: axis 0 of the first is one of its rows (rank 2) or of the stack (rank >= 3); a constant of
    rank 2 is the same for each; one of rank >= 3 must not reach the batch's axis 0, or be 1 there; one of rank 1
    takes the last axis away, so the batch needs two. Constant times batch: the batch's axis 0 must belong to the
    stack (rank >= 3), the constant as before.
    """
    a = question.operand(0)
    b = question.operand(1)
    if a.rank is None:
        return None
    if b.rank is None:
        return None
    if len(question.operands) != 2:
        return None
    if a.role == b.role == "batch":
        if a.rank == b.rank and a.rank >= 3:
            return YES
        return None
    if a.role == "batch" and b.role == "constant":
        within = 1 <= b.rank <= 2 or b.rank < a.rank or (b.rank == a.rank and _one_first(b.dims))
        if a.rank >= 2 and b.rank >= 1 and within:
            return YES
        return None
    if a.role == "constant" and b.role == "batch":
        within = 1 <= a.rank < b.rank or (a.rank == b.rank and _one_first(a.dims))
        if b.rank >= 3 and within:
            return YES
        return None
    return None


def gemm(question: Question) -> Rewrite | None:
    """A's rows are axis 0 where it is not transposed; B constant; C constant and not along the rows, or batch."""
    if question.batch(0) != 2:
        return None
    if question.operand(1).role != "constant":
        return None
    if question.integer("transA", 0) != 0:
        return None
    c = question.operand(2)
    if c.role == "absent":
        return YES
    if c.role == "batch":
        if c.rank == 2:
            return YES
        return None
    if c.role != "constant" or c.rank is None:
        return None
    if c.rank <= 1 or (c.rank == 2 and _one_first(c.dims)):
        return YES
    return None


def channels(question: Question) -> Rewrite | None:
    """[N, C, ...] with everything else constant: convolutions and normalisation of each sample by itself."""
    if question.batch(0, 3) and question.steady_from(1) and question.only_first():
        return YES
    return None


def fused_conv(question: Question) -> Rewrite | None:
    """com.microsoft.FusedConv: a convolution, then Z of the result's shape is added, then an activation."""
    z = question.operand(3)
    alike = z.role == "absent" or (z.role == "batch" and z.rank == question.operand(0).rank)
    steady = question.steady(1, 2) and len(question.operands) <= 4
    if question.batch(0, 3) and steady and alike:
        return YES
    return None


def pool(question: Question) -> Rewrite | None:
    """[N, C, ...], windows over the spatial axes alone. MaxPool's indices count from the first sample: refused."""
    if question.batch(0, 3) and len(question.operands) == 1 and question.only_first():
        return YES
    return None


def batch_norm(question: Question) -> Rewrite | None:
    """Inference: scale, bias, mean and variance of each channel (axis 1) are constants."""
    if question.integer("training_mode", 0) != 0:
        return None
    if not question.only_first():
        return None
    if question.batch(0, 2) and question.steady_from(1):
        return YES
    return None


def layer_norm(question: Question) -> Rewrite | None:
    """Mean and variance over the axes from ``axis`` on, 0 not among them; scale and bias broadcast to X."""
    rank = question.batch(0, 2)
    if rank is None or not question.axis(rank, -1):
        return None
    for operand in question.operands[1:]:
        if operand.role == "absent":
            continue
        if operand.role != "constant":
            return None
        if operand.rank is None:
            return None
        if operand.rank > rank:
            return None
        if operand.rank == rank and not _one_first(operand.dims):
            return None
    return YES


def skip_layer_norm(question: Question) -> Rewrite | None:
    """com.microsoft: input and skip of one rank added, normalised over the last axis, the rest constants.

    Mean and inverse deviation (outputs 1 and 2) are not lifted, the sum (3) is.
    """
    rank = question.batch(0, 2)
    if rank is None:
        return None
    if question.batch(1, 2) != rank:
        return None
    if not question.steady_from(2):
        return None
    if any(question.used[1:3]):
        return None
    return YES


def quantize(question: Question) -> Rewrite | None:
    """QuantizeLinear, DequantizeLinear: constant scale and zero point, of one value or along an axis other than 0."""
    rank = question.batch(0)
    scale = question.operand(1)
    if rank is None:
        return None
    if scale.role != "constant":
        return None
    if scale.rank is None:
        return None
    if not question.steady_from(1):
        return None
    if scale.rank == 0:
        return YES
    if scale.rank == 1 and question.axis(rank, 1) and not question.integer("block_size", 0):
        return YES
    return None


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
_MICROSOFT = "com.microsoft"

POINTWISE: dict[tuple[str, str], Rule] = {
    **{("", op): unary for op in _UNARY},
    **{("", op): broadcast for op in _BROADCAST},
    ("", "CastLike"): cast_like,
    ("", "Dropout"): dropout,
    ("", "MatMul"): matmul,
    ("", "Gemm"): gemm,
    **{("", op): channels for op in ("Conv", "ConvTranspose", "InstanceNormalization", "GroupNormalization")},
    **{("", op): pool for op in ("MaxPool", "AveragePool", "LpPool")},
    **{("", f"Global{op}"): pool for op in ("MaxPool", "AveragePool", "LpPool")},
    **{("", op): pool for op in ("LRN", "DepthToSpace", "SpaceToDepth")},
    ("", "BatchNormalization"): batch_norm,
    ("", "LayerNormalization"): layer_norm,
    ("", "RMSNormalization"): layer_norm,
    ("", "QuantizeLinear"): quantize,
    ("", "DequantizeLinear"): quantize,
    **{(_MICROSOFT, op): unary for op in ("Gelu", "QuickGelu")},
    **{(_MICROSOFT, op): broadcast for op in ("BiasGelu", "FastGelu")},
    (_MICROSOFT, "FusedConv"): fused_conv,
    (_MICROSOFT, "SkipLayerNormalization"): skip_layer_norm,
}
