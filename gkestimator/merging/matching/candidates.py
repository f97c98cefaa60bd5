"""The operators of a model that can be merged: products and convolutions by a constant weight."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from gkestimator.core.dtypes import DType
from gkestimator.core.records import frozen
from gkestimator.merging.editing import (
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

DTYPES = frozenset({DType.FLOAT, DType.FLOAT16, DType.BFLOAT16})


def candidates(
    model: EditableModel, index: int, shapes: Shapes, starts: Mapping[str, float]
) -> list[WeightOperator]:
    """The operators of ``model`` that multiply an activation by a constant weight, in the nodes' order.

    - MatMul whose right operand is a constant matrix, the left one an activation of rank 2 or more.
    - Gemm with alpha = beta = 1, transA = 0, a constant B (transB 0 or 1), and C absent or a constant of [N] or
      [1, N]. (beta does not matter without C.)
    - Conv with a constant W and a constant bias or none, any number of spatial dimensions and groups; ``auto_pad``
      must be resolvable (:func:`window_of`).

    Constant: an initializer that is no input of the model (such a one may be replaced by the caller), also behind
    Identity and Transpose nodes. Weights of fp32, fp16, bf16 that are not empty. ``index``: the model's number.
    ``starts``: by node name, in ms; a node that it lacks starts at NaN, that is together with nobody.
    All else is no candidate, and stays as it is.
    """
    constants = _constants(model)
    found: list[WeightOperator] = []
    for position, node in enumerate(model.nodes):
        if node.domain or node.op_type not in _READERS:
            continue
        if len(node.inputs) < 2:
            continue
        if len(node.writes) != 1:
            continue
        if not node.inputs[0]:
            continue
        if not node.outputs[0]:
            continue
        x = shapes.get(node.inputs[0])
        weight = constants.get(node.inputs[1])
        if x is None:
            continue
        if weight is None:
            continue
        if node.inputs[0] in constants:
            continue
        if weight.dtype not in DTYPES:
            continue
        if x.dtype is not weight.dtype:
            continue
        if weight.elements < 1:
            continue
        seen = _READERS[node.op_type](node, x.dims, weight, constants)
        if seen is not None:
            found.append(
                WeightOperator(
                    model=index,
                    node=node,
                    kind=seen.kind,
                    x=node.inputs[0],
                    y=node.outputs[0],
                    weight_name=node.inputs[1],
                    matrix=seen.matrix,
                    bias=seen.bias,
                    geometry=seen.geometry,
                    start_ms=starts.get(node.name, math.nan),
                    position=position,
                )
            )
    return found


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    kind: Kind
    matrix: WeightMatrix
    bias: Weight | None = None
    geometry: tuple[Numbers, ...] = ()


def _constants(model: EditableModel) -> Weights:
    """Initializers that nobody can replace, and what Identity and Transpose make of them, by name."""
    fed = {value.name for value in model.inputs}
    found = {name: w for name, w in model.weights.items() if name not in fed}
    for node in model.nodes:
        if node.domain or node.op_type not in ("Identity", "Transpose"):
            continue
        if len(node.inputs) != 1:
            continue
        if len(node.writes) != 1:
            continue
        if node.opaque:
            continue
        weight = found.get(node.inputs[0])
        if weight is None or weight.dtype not in DTYPES:
            continue
        values = weight.values
        shape = weight.shape
        if node.op_type == "Transpose":
            perm = node.attributes.get("perm", tuple(reversed(range(len(shape)))))
            if isinstance(perm, tuple):
                axes = tuple(a for a in perm if type(a) is int)
            else:
                axes = ()
            if sorted(axes) != list(range(len(shape))):
                continue
            shape = tuple(shape[axis] for axis in axes)
            values = Rearranged(base=values, axes=axes)
        name = node.outputs[0]
        found[name] = Weight(name=name, dtype=weight.dtype, shape=shape, values=values)
    return found


def _matmul(node: EditNode, x: Dims, weight: Weight, constants: Mapping[str, Weight]) -> _Seen | None:
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


def _gemm(node: EditNode, x: Dims, weight: Weight, constants: Mapping[str, Weight]) -> _Seen | None:
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
    if turned:
        rows, columns = (weight.shape[1], weight.shape[0])
    else:
        rows, columns = weight.shape
    values: Values
    if turned:
        values = Rearranged(base=weight.values, axes=(1, 0))
    else:
        values = weight.values
    if x[1] not in (None, rows):
        return None
    usable, bias = _bias(node, constants, weight.dtype, columns, shapes=((columns,), (1, columns)))
    if not usable or (bias is not None and get("beta", 1.0) != 1.0):
        return None
    return _Seen(kind="gemm", matrix=_product(weight, values, rows, columns), bias=bias)


def _conv(node: EditNode, x: Dims, weight: Weight, constants: Mapping[str, Weight]) -> _Seen | None:
    if len(weight.shape) < 3 or len(x) != len(weight.shape):
        return None
    window = window_of(node, weight.shape, x[2:])
    if window is None:
        return None
    out, into = weight.shape[:2]
    groups = window.groups
    taps = math.prod(window.kernel)
    size: Numbers
    if x[1] not in (None, into * groups):
        return None
    usable, bias = _bias(node, constants, weight.dtype, out, shapes=((out,),))
    if not usable:
        return None
    if groups == 1:
        swapped = (1, 0, *range(2, len(weight.shape)))
        values = Rearranged(base=weight.values, axes=swapped, shape=(into, out, taps))
        rows = into
        columns = out
        size = ()
    else:
        rows = groups
        columns = 1
        taps = weight.elements // groups
        values = Rearranged(base=weight.values, shape=(rows, columns, taps))
        size = (into, out // groups)
    return _Seen(
        kind="conv" if groups == 1 else "grouped_conv",
        matrix=WeightMatrix(rows=rows, columns=columns, taps=taps, dtype=weight.dtype, values=values),
        bias=bias,
        geometry=(window.kernel, window.strides, window.dilations, window.pads, size),
    )


_READERS = {"MatMul": _matmul, "Gemm": _gemm, "Conv": _conv}


def _product(weight: Weight, values: Values, rows: int, columns: int) -> WeightMatrix:
    return WeightMatrix(
        rows=rows,
        columns=columns,
        taps=1,
        dtype=weight.dtype,
        values=Rearranged(base=values, shape=(rows, columns, 1)),
    )


def _bias(
    node: EditNode,
    constants: Mapping[str, Weight],
    dtype: DType,
    count: int,
    *,
    shapes: tuple[Numbers, ...],
) -> tuple[bool, Weight | None]:
    """Whether the third input is absent or a constant that fits; and, in that case, its ``count`` values."""
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
    """How a convolution slides: one number per spatial dimension; pads: all before, then all behind."""

    kernel: Numbers
    strides: Numbers
    dilations: Numbers
    pads: Numbers
    groups: int


def window_of(node: EditNode, weight: Sequence[int], spatial: Dims) -> SlidingWindow | None:
    """The window of a Conv by a weight of shape [M, C / groups, *kernel] over the sizes ``spatial``.

    ``auto_pad`` becomes explicit pads. None where that needs a size that is not known (SAME_* with a stride), or
    where an attribute does not fit the weight or is not ONNX's.
    """
    rank = len(weight) - 2
    known = {"auto_pad", "dilations", "group", "kernel_shape", "pads", "strides"}
    if rank < 1:
        return None
    if node.opaque:
        return None
    if not set(node.attributes) <= known:
        return None
    if len(spatial) != rank:
        return None
    kernel = tuple(weight[2:])
    groups = node.attributes.get("group", 1)
    strides = _numbers(node, "strides", (1,) * rank, least=1)
    dilations = _numbers(node, "dilations", (1,) * rank, least=1)
    pads = _numbers(node, "pads", (0,) * (2 * rank), least=0)
    if strides is None:
        return None
    if dilations is None:
        return None
    if pads is None:
        return None
    if type(groups) is not int:
        return None
    if groups < 1:
        return None
    if weight[0] % groups:
        return None
    if _numbers(node, "kernel_shape", kernel, least=1) != kernel:
        return None
    auto = node.attributes.get("auto_pad", "NOTSET")
    if auto == "VALID":
        pads = (0,) * (2 * rank)
    elif auto in ("SAME_UPPER", "SAME_LOWER"):
        found = [_same(*sizes) for sizes in zip(spatial, kernel, strides, dilations, strict=True)]
        same = [n for n in found if n is not None]
        if len(same) < rank:
            return None
        less = [n // 2 for n in same]
        more = [n - n // 2 for n in same]
        if auto == "SAME_UPPER":
            pads = (*less, *more)
        else:
            pads = (*more, *less)
    elif auto not in ("NOTSET", ""):
        return None
    return SlidingWindow(kernel=kernel, strides=strides, dilations=dilations, pads=pads, groups=groups)


def _same(size: int | None, kernel: int, stride: int, dilation: int) -> int | None:
    """Zeros that make ceil(size / stride) positions; with stride 1 the size does not matter."""
    reach = (kernel - 1) * dilation + 1
    if stride == 1:
        return reach - 1
    if size is None:
        return None
    return max((-(-size // stride) - 1) * stride + reach - size, 0)


def _numbers(node: EditNode, key: str, default: Numbers, *, least: int) -> Numbers | None:
    value = node.attributes.get(key, default)
    if not isinstance(value, tuple) or len(value) != len(default):
        return None
    numbers = tuple(n for n in value if type(n) is int and n >= least)
    if len(numbers) == len(default):
        return numbers
    return None
