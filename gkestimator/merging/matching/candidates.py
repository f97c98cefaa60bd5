"""Find the operators of a model that can be merged: products and convolutions by a constant weight."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from gkestimator.core.dtypes import DType
from gkestimator.core.records import frozen
from gkestimator.merging.editing import (
    AttributeValue,
    Dims,
    EditableModel,
    EditNode,
    Numbers,
    Rearranged,
    Shapes,
    Values,
    Weight,
    Weights,
)
from gkestimator.merging.operators import Kind, WeightMatrix, WeightOperator

ConstantWeights: TypeAlias = "Mapping[str, Weight]"

DTYPES = frozenset({DType.FLOAT, DType.FLOAT16, DType.BFLOAT16})
_CONV_ATTRIBUTES = frozenset({"auto_pad", "dilations", "group", "kernel_shape", "pads", "strides"})


def candidates(
    model: EditableModel, index: int, shapes: Shapes, starts: Mapping[str, float]
) -> list[WeightOperator]:
    """Return the operators of ``model`` that multiply an activation by a constant weight, in the nodes'
    order.

    - MatMul whose right operand is a constant matrix, the left one an activation of rank 2 or more.
    - Gemm with alpha = beta = 1, transA = 0, a constant B (transB 0 or 1), and C absent or a constant of [N] or
      [1, N]. (beta does not matter without C.)
    - Conv with a constant W and a constant bias or none, any number of spatial dimensions and groups; ``auto_pad``
      must be resolvable (:func:`window_of`).

    Constant: an initializer that is no input of the model (such a one may be replaced by the caller), also
    behind Identity and Transpose nodes. Weights of fp32, fp16, bf16 that are not empty. ``index``: the
    model's number. ``starts``: by node name, in ms; a node that it lacks starts at NaN, that is together with
    nobody. All else is no candidate, and stays as it is.
    """
    constants = _constants(model)
    operators: list[WeightOperator] = []
    for position, node in enumerate(model.nodes):
        if node.domain or node.op_type not in _READERS:
            continue
        if len(node.inputs) < 2:
            continue
        if len(node.writes) != 1:
            continue
        if not node.outputs[0]:
            continue
        x, weight_name = node.inputs[:2]
        shape = shapes.get(x)
        weight = constants.get(weight_name)
        if shape is None:
            continue
        if weight is None:
            continue
        if x in constants:
            continue
        if weight.dtype not in DTYPES:
            continue
        if weight.dtype is not shape.dtype:
            continue
        if weight.elements < 1:
            continue
        seen = _READERS[node.op_type](node, shape.dims, weight, constants)
        if seen is None:
            continue
        operator = WeightOperator(
            model=index,
            node=node,
            kind=seen.kind,
            x=x,
            y=node.outputs[0],
            weight_name=weight_name,
            matrix=seen.matrix,
            bias=seen.bias,
            geometry=seen.geometry,
            start_ms=starts.get(node.name, math.nan),
            position=position,
        )
        operators.append(operator)
    return operators


@frozen
class _Seen:
    """Say what a reader made of a node."""

    kind: Kind
    matrix: WeightMatrix
    bias: Weight | None = None
    geometry: tuple[Numbers, ...] = ()


def _constants(model: EditableModel) -> Weights:
    """Return initializers that nobody can replace, and what Identity and Transpose make of them, by name."""
    # an initializer that is an input too may be replaced by whoever runs the model
    constants = dict(model.weights)
    for value in model.inputs:
        constants.pop(value.name, None)
    for node in model.nodes:
        if node.key not in (("", "Identity"), ("", "Transpose")):
            continue
        if len(node.inputs) != 1:
            continue
        if len(node.writes) != 1:
            continue
        if node.opaque:
            continue
        weight = constants.get(node.inputs[0])
        if weight is None or weight.dtype not in DTYPES:
            continue
        if node.op_type == "Transpose":
            turned = _transposed(node, weight)
            if turned is None:
                continue
            weight = turned
        name = node.outputs[0]
        constants[name] = dataclasses.replace(weight, name=name)
    return constants


def _transposed(node: EditNode, weight: Weight) -> Weight | None:
    """Return the weight behind a Transpose; None where its axes are not those of the weight."""
    every = tuple(range(len(weight.shape)))
    axes = node.attributes.get("perm", every[::-1])
    if not isinstance(axes, tuple):
        return None
    numbers = tuple(axis for axis in axes if type(axis) is int)
    if tuple(sorted(numbers)) != every:
        return None
    shape = tuple(weight.shape[axis] for axis in numbers)
    return dataclasses.replace(weight, shape=shape, values=Rearranged(base=weight.values, axes=numbers))


def _matmul(node: EditNode, x: Dims, weight: Weight, constants: ConstantWeights) -> _Seen | None:
    if len(node.inputs) != 2:
        return None
    if node.attributes:
        return None
    if node.opaque:
        return None
    if len(x) < 2:
        return None
    if len(weight.shape) != 2:
        return None
    if x[-1] not in (None, weight.shape[0]):
        return None
    return _Seen(kind="matmul", matrix=_product(weight, weight.values, *weight.shape))


def _gemm(node: EditNode, x: Dims, weight: Weight, constants: ConstantWeights) -> _Seen | None:
    get = node.attributes.get
    if not set(node.attributes) <= {"alpha", "beta", "transA", "transB"}:
        return None
    if node.opaque:
        return None
    if len(x) != 2:
        return None
    if len(weight.shape) != 2:
        return None
    if get("alpha", 1.0) != 1.0:
        return None
    if get("transA", 0) != 0:
        return None
    turned = get("transB", 0)
    if turned not in (0, 1):
        return None
    values = weight.values
    rows, columns = weight.shape
    if turned:
        rows, columns = columns, rows
        values = Rearranged(base=values, axes=(1, 0))
    if x[1] not in (None, rows):
        return None
    usable, bias = _bias(node, constants, weight.dtype, columns, shapes=((columns,), (1, columns)))
    if not usable or (bias is not None and get("beta", 1.0) != 1.0):
        return None
    return _Seen(kind="gemm", matrix=_product(weight, values, rows, columns), bias=bias)


def _conv(node: EditNode, x: Dims, weight: Weight, constants: ConstantWeights) -> _Seen | None:
    if len(weight.shape) < 3 or len(x) != len(weight.shape):
        return None
    window = window_of(node, weight.shape, x[2:])
    if window is None:
        return None
    out, into = weight.shape[:2]
    groups = window.groups
    if x[1] not in (None, into * groups):
        return None
    usable, bias = _bias(node, constants, weight.dtype, out, shapes=((out,),))
    if not usable:
        return None
    kind: Kind = "conv"
    size: Numbers = ()
    axes: Numbers | None = (1, 0, *range(2, len(weight.shape)))
    shape = (into, out, math.prod(window.kernel))
    if groups > 1:
        kind = "grouped_conv"
        size = (into, out // groups)
        axes = None
        shape = (groups, 1, weight.elements // groups)
    return _Seen(
        kind=kind,
        matrix=_matrix(weight.dtype, Rearranged(base=weight.values, axes=axes, shape=shape), shape),
        bias=bias,
        geometry=(window.kernel, window.strides, window.dilations, window.pads, size),
    )


_READERS = {"MatMul": _matmul, "Gemm": _gemm, "Conv": _conv}


def _product(weight: Weight, values: Values, rows: int, columns: int) -> WeightMatrix:
    shape = (rows, columns, 1)
    return _matrix(weight.dtype, Rearranged(base=values, shape=shape), shape)


def _matrix(dtype: DType, values: Values, shape: tuple[int, int, int]) -> WeightMatrix:
    rows, columns, taps = shape
    return WeightMatrix(rows=rows, columns=columns, taps=taps, dtype=dtype, values=values)


def _bias(
    node: EditNode,
    constants: ConstantWeights,
    dtype: DType,
    count: int,
    *,
    shapes: tuple[Numbers, ...],
) -> tuple[bool, Weight | None]:
    """Return True where the third input is absent or a constant that fits, and in that case its ``count``
    values.
    """
    if len(node.inputs) < 3 or not node.inputs[2]:
        return True, None
    bias = constants.get(node.inputs[2])
    if len(node.inputs) > 3 or bias is None or bias.dtype is not dtype or bias.shape not in shapes:
        return False, None
    if len(bias.shape) == 1:
        return True, bias
    flat = Rearranged(base=bias.values, shape=(count,))
    return True, dataclasses.replace(bias, shape=(count,), values=flat)


@frozen
class SlidingWindow:
    """Say how a convolution slides: one number per spatial dimension; pads: all before, then all behind."""

    kernel: Numbers
    strides: Numbers
    dilations: Numbers
    pads: Numbers
    groups: int


def window_of(node: EditNode, weight: Sequence[int], spatial: Dims) -> SlidingWindow | None:
    """Return the window of a Conv by a weight of shape [M, C / groups, *kernel] over the sizes ``spatial``.

    ``auto_pad`` becomes explicit pads. None where that needs a size that is not known (SAME_* with a stride),
    or where an attribute does not fit the weight or is not ONNX's.
    """
    rank = len(weight) - 2
    if rank < 1:
        return None
    if len(spatial) != rank:
        return None
    if node.opaque:
        return None
    if not _CONV_ATTRIBUTES.issuperset(node.attributes):
        return None
    kernel = tuple(weight[2:])
    # said by the weight already: another value would be a contradiction
    if _numbers(node, "kernel_shape", kernel, least=1) != kernel:
        return None
    groups = node.attributes.get("group", 1)
    if type(groups) is not int:
        return None
    if groups < 1:
        return None
    if weight[0] % groups:
        return None
    strides = _numbers(node, "strides", (1,) * rank, least=1)
    dilations = _numbers(node, "dilations", (1,) * rank, least=1)
    if strides is None or dilations is None:
        return None
    pads = _numbers(node, "pads", (0,) * (2 * rank), least=0)
    auto_pad = node.attributes.get("auto_pad", "NOTSET")
    if pads is not None and auto_pad not in ("NOTSET", ""):
        sizes = list(zip(spatial, kernel, strides, dilations, strict=True))
        pads = _automatic(auto_pad, [_zeros(auto_pad, *size) for size in sizes])
    if pads is None:
        return None
    return SlidingWindow(kernel=kernel, strides=strides, dilations=dilations, pads=pads, groups=groups)


def _automatic(auto_pad: AttributeValue, zeros: Sequence[int | None]) -> Numbers | None:
    """Return pads by half of the zeros along each axis, the larger half behind for SAME_UPPER."""
    less: list[int] = []
    more: list[int] = []
    for count in zeros:
        if count is None:
            return None
        less.append(count // 2)
        more.append(count - count // 2)
    if auto_pad == "SAME_UPPER":
        return (*less, *more)
    return (*more, *less)


def _zeros(auto_pad: AttributeValue, size: int | None, kernel: int, stride: int, dilation: int) -> int | None:
    """Return the zeros along an axis: SAME_* makes ceil(size / stride) positions; with stride 1 no size is
    needed.
    """
    if auto_pad == "VALID":
        return 0
    if auto_pad not in ("SAME_UPPER", "SAME_LOWER"):
        return None
    reach = (kernel - 1) * dilation + 1
    if stride == 1:
        return reach - 1
    if size is None:
        return None
    positions = -(-size // stride)
    return max((positions - 1) * stride + reach - size, 0)


def _numbers(node: EditNode, key: str, default: Numbers, *, least: int) -> Numbers | None:
    value = node.attributes.get(key, default)
    if not isinstance(value, tuple) or len(value) != len(default):
        return None
    numbers = tuple(n for n in value if type(n) is int and n >= least)
    if len(numbers) == len(default):
        return numbers
    return None
