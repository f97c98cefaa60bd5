"""Define what rules take and give, and the two decorators that register them under exact keys ``(domain, op_type)``.

A shape rule sees one node with concrete input types (and the folded values of small constant inputs) and returns one
type per output of the node; it raises ShapeError when the inputs contradict each other. A lowering rule sees an
operator with concrete shapes and returns the kernels that a runtime launches for it. Rules are pure: equal arguments
give equal results, so results are remembered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from gkestimator.core.dtypes import DType, Precision
from gkestimator.core.errors import UsageError
from gkestimator.core.graph import Operator, Tensor
from gkestimator.core.kernels import Kernel
from gkestimator.core.records import frozen
from gkestimator.operators.records import RuleTable, register_rule

MS = "com.microsoft"
NCHWC = "com.microsoft.nchwc"
ML = "ai.onnx.ml"


Shape: TypeAlias = "tuple[int, ...]"
Kernels: TypeAlias = "tuple[Kernel, ...]"


class TensorType(NamedTuple):
    """Hold an element type and a concrete shape. ``bounded``: the shape bounds a data-dependent size from above."""

    dtype: DType
    shape: Shape
    bounded: bool = False

    def __str__(self) -> str:
        """Return the shape as texts of errors show it."""
        return str(list(self.shape))


class SequenceType(NamedTuple):
    """Hold the types of the elements of a sequence, or of an optional (at most one element)."""

    elements: tuple[TensorType, ...]
    bounded: bool = False
    optional: bool = False


ValueType: TypeAlias = TensorType | SequenceType
Outputs: TypeAlias = "Sequence[ValueType | None]"


class DeclaredType(NamedTuple):
    """Hold what the file declares of a value: dims are ints, names (str) or None where nothing is said."""

    dtype: DType | None
    shape: tuple[int | str | None, ...] | None


@dataclass(slots=True)
class ShapeContext:
    """Show one node to its shape rule.

    ``types[i]`` and ``values[i]`` belong to input i (None: input omitted; value None: not a known constant).
    ``declared[j]`` is what the file declares of output j, the last resort of rules whose output depends on data.
    """

    op_type: str
    domain: str
    version: int
    attributes: Mapping[str, Any]
    types: Sequence[ValueType | None]
    values: Sequence[np.ndarray | None]
    outputs: int
    declared: Sequence[DeclaredType | None]


@frozen
class LoweringOptions:
    """Say what decides which kernels an operator becomes, besides the operator.

    Hashable: lowerings are cached by it.

    ``runtime`` is ``torch`` or ``onnxruntime``; ``dtype`` the effective dtype word (``fp32``, ``tf32``, ``fp16``,
    ``bf16``, ``amp``, ``int8``, ``fp8``, ``w8a16``, ``w4a16``; ``auto`` is already resolved by the caller:
    ``matmul_precision`` and ``conv_precision`` say what float32 matrix work and convolutions calculate in; ``int8`` is
    for files that hold quantised operators). ``attention`` is ``auto``, ``fused`` or ``eager``. ``half`` is the half
    type that all but ``fp32``, ``tf32`` and ``int8`` store activations in, else None. ``amp_norms`` is what
    normalisations calculate in under ``amp``: ``fp32``, ``half``, or ``images`` (half over images, fp32 over tokens).
    ``unfold_batchnorm`` (torch): convolutions that an exporter folded a BatchNorm into run it as a kernel of its own,
    as the author's model does; False where the model that runs is folded as well. ``layout`` (torch) is ``nchw`` or
    ``nhwc``: how the program stores images and the weights of convolutions. ``graph_level``:
    ``extended``, or ``basic``, without the fusions that the runtime's record calls extended. ``permits``: the
    precisions that the runtime chooses from for each kernel, the narrowest first; empty where a word is an order.
    """

    runtime: str
    dtype: str
    matmul_precision: Precision
    conv_precision: Precision
    half: Precision | None = None
    attention: str = "auto"
    amp_norms: str = "fp32"
    unfold_batchnorm: bool = True
    graph_level: str = "extended"
    layout: str = "nchw"
    permits: tuple[Precision, ...] = ()


@frozen
class Lowered:
    """Say what one operator becomes.

    ``kernels`` in launch order. ``aliases`` maps output index to the input index whose storage it shares: a view
    (no kernel) or an operation done in place. ``host_calls`` counts framework calls: 0 for a view that the runtime
    resolves while it plans, 1 for an ordinary call, more where eager mode composes.
    """

    kernels: Kernels
    host_calls: int
    aliases: Mapping[int, int] = field(default_factory=dict)


def launched(*kernels: Kernel, calls: int = 1) -> Lowered:
    """Return what an operator becomes that launches ``kernels`` by ``calls`` framework calls and is no view."""
    return Lowered(kernels=kernels, host_calls=calls)


def same_storage(op: Operator) -> Lowered:
    """Return what an operator becomes whose results all share the storage of its first operand."""
    aliases = {place: 0 for place, value in enumerate(op.outputs) if value is not None}
    return Lowered(kernels=(), host_calls=0, aliases=aliases)


NO_KERNEL = Lowered(kernels=(), host_calls=0)
"""What an operator becomes that is answered on the host before anything runs."""

SAME_STORAGE = Lowered(kernels=(), host_calls=0, aliases={0: 0})
"""What an operator becomes whose first result is its first operand."""

ShapeRule: TypeAlias = Callable[[ShapeContext], Outputs]
LoweringRule: TypeAlias = Callable[[Operator, LoweringOptions], Lowered]
SHAPE_RULES: RuleTable[ShapeRule] = RuleTable("shape_rule")
LOWERINGS: RuleTable[LoweringRule] = RuleTable("lowering_rule")


def shape_rule(*op_types: str, domain: str = "", **traits: Any) -> Callable[[ShapeRule], ShapeRule]:
    """Register a shape rule; a key registered twice is a programming error.

    ``traits`` are fields of :class:`~gkestimator.operators.records.OperatorTraits`.
    """

    def register(rule: ShapeRule) -> ShapeRule:
        register_rule("shape_rule", rule, [(domain, op_type) for op_type in op_types], traits)
        return rule

    return register


def lowering_rule(
    *op_types: str, domain: str = "", kind: str | None = None, **traits: Any
) -> Callable[[LoweringRule], LoweringRule]:
    """Register a lowering rule; a key registered twice is a programming error.

    ``kind`` says in a word what the rule does (``gemm``, ``copy``, ``view``, ...); by default the function's name.
    ``traits`` are fields of :class:`~gkestimator.operators.records.OperatorTraits`.
    """

    def register(rule: LoweringRule) -> LoweringRule:
        keys = [(domain, op_type) for op_type in op_types]
        register_rule("lowering_rule", rule, keys, traits, kind if kind is not None else rule.__name__)
        return rule

    return register


HALF_TYPES = frozenset({DType.FLOAT16, DType.BFLOAT16})
HALF_WORDS = frozenset({"fp16", "bf16", "fp8", "w8a16", "w4a16"})
"""Dtype words under which float32 tensors are stored in half precision."""
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
    if tensor.dtype is DType.FLOAT and options.dtype in HALF_WORDS:
        return half_type(options).nbytes(tensor.elements)
    return tensor.nbytes
