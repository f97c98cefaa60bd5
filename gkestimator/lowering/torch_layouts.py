"""What torch in eager mode does that onnxruntime does not: views, the copies they cause later, in-place
activations.

Transpose, Expand, Slice and Split only change strides. The price comes due where a consumer needs contiguous
memory:
a Reshape that no stride can express, a batched product whose batch dimensions cannot be merged, a
convolution, a
normalisation. :class:`Layouts` follows the strides of every tensor that is not contiguous and says which
copies are made.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TypeAlias

from gkestimator.core.dtypes import DType
from gkestimator.core.graph import Operator, Tensor, Value
from gkestimator.core.kernels import Family, Kernel
from gkestimator.lowering import strides as st
from gkestimator.lowering.memo import interned
from gkestimator.lowering.sectors import fetched_per_byte
from gkestimator.operators.builders import (
    elementwise_kernel,
    int_of,
    ints_of,
    operator_axis,
    optional_input,
    optional_output,
)
from gkestimator.operators.records import traits_of
from gkestimator.operators.registry import Kernels, Shape, element_precision

Layout: TypeAlias = "st.Strides | None"
Values: TypeAlias = "Sequence[Value | None]"

# What torch.onnx.export(dynamo=True) calls a Conv that its optimiser made and the result of a normalisation.
_RENAMED = re.compile(
    r"onnx::Conv_\d+(#\d+)?"
)  # a quantised one has words behind it, and torch runs no such network
_REWRITTEN = re.compile(r"node_Conv_[0-9]+")
_NORMALISED = re.compile(r"getitem(_[0-9]+)?|_native_batch_norm\w*")

_NEEDS_CONTIGUOUS = frozenset(
    {
        Family.LAYERNORM,
        Family.SOFTMAX,
        Family.RNN,
        Family.FFT,
        Family.SORT,
        Family.SCAN,
    }
)
_CONVOLUTIONS = frozenset({Family.CONV, Family.DEPTHWISE, Family.CONV_TRANSPOSE})
# They take images in either layout and write the same one; an image with gaps is copied first.
_NEEDS_IMAGE = _CONVOLUTIONS | {Family.POOLING, Family.BATCHNORM, Family.RESAMPLE}
IMAGE_DIMENSIONS = 4  # torch.channels_last is of these alone
_SMALL_INDEX, _MOST_DIMENSIONS = 16, 3  # of index_select's special cases


def folded_batchnorm(op: Operator) -> bool:
    """Return True for a Conv that BatchNorm was folded into, as torch's exporters leave it.

    The TorchScript exporter renames weight and bias to ``onnx::Conv_<n>``. The newer one names the bias it invents
    ``<weight>_bias`` and keeps the name of the normalisation's result (``getitem``, the first of its three), which
    no convolution's result has: that of a module's own call is ``conv2d``. A merged graph has the model's name and
    a slash before each of them. Where all shifts are zero, as before any training, the newer one leaves no bias.
    """
    if op.op_type != "Conv" or op.domain:
        return False
    weight = op.inputs[1]
    if not isinstance(weight, Tensor) or not weight.is_weight:
        return False
    bias = op.inputs[2] if len(op.inputs) > 2 else None
    if bias is None:
        return _rewritten(op)
    if not isinstance(bias, Tensor) or not bias.is_weight:
        return False
    # Both are new where a BatchNorm went in; a weight alone is new where another sum was folded (weight_norm's).
    renamed = [_RENAMED.fullmatch(tensor.name.rpartition("/")[2]) for tensor in (weight, bias)]
    if all(renamed) or bias.name == f"{weight.name}_bias":
        return True
    return _rewritten(op)


def folded_bias(op: Operator) -> bool:
    """Return True if the convolution of :func:`folded_batchnorm` had a bias of its own, as far as names tell."""
    bias = op.inputs[2] if len(op.inputs) > 2 else None
    return bias is not None and _rewritten(op) and bias.name.endswith(".bias")


def with_bias(op: Operator) -> Operator:
    """Return the convolution of :func:`folded_batchnorm` with the bias that the normalisation has in any case."""
    weight = op.inputs[1]
    if len(op.inputs) > 2 or not isinstance(weight, Tensor):
        return op
    name = f"{weight.storage}_bias"
    bias = Tensor(name=name, dtype=weight.dtype, shape=weight.shape[:1], storage=name, is_weight=True)
    return replace(op, inputs=(*op.inputs, bias))


def _rewritten(op: Operator) -> bool:
    result = op.outputs[0]
    return (
        result is not None
        and _REWRITTEN.fullmatch(op.name.rpartition("/")[2]) is not None
        and _NORMALISED.fullmatch(result.name.rpartition("/")[2]) is not None
    )


@lru_cache(maxsize=65_536)
def contiguous_copy(dtype: DType, shape: Shape, stored: int, weight: bool, fetched: int = 1) -> Kernel:
    """Return the kernel of ``Tensor.contiguous()``, which reads the ``stored`` distinct elements behind the view,
    writes them all. ``fetched``: bytes that come from L2 for each that is read.
    """
    elements = math.prod(shape)
    read = dtype.nbytes(min(stored, elements))
    if weight:
        weight_bytes = read
    else:
        weight_bytes = 0
    return Kernel(
        name="copy.contiguous",
        family=Family.COPY,
        variant="contiguous",
        precision=element_precision(dtype),
        flops=0,
        read_bytes=read,
        write_bytes=dtype.nbytes(elements),
        weight_bytes=weight_bytes,
        rows=elements,
        cols=fetched,
        element_bytes=dtype.bits / 8,
    )


# What an operator, whose source has a shape and strides, makes of them for a result of another shape; None: a copy.


def _reshaped(op: Operator, shape: Shape, strides: st.Strides, target: Shape) -> Layout:
    return st.view(shape, strides, target)


def _transposed(op: Operator, shape: Shape, strides: st.Strides, target: Shape) -> Layout:
    order = ints_of(op, "perm")
    if not order:
        return strides[::-1]
    return tuple([strides[dim] for dim in order])


def _expanded(op: Operator, shape: Shape, strides: st.Strides, target: Shape) -> Layout:
    extra = len(target) - len(shape)
    widened = [0] * extra
    for before, after, stride in zip(shape, target[extra:], strides, strict=True):
        repeats = before == 1 and after != 1
        widened.append(0 if repeats else stride)
    return tuple(widened)


def _sliced(op: Operator, shape: Shape, strides: st.Strides, target: Shape) -> Layout:
    steps = optional_input(op, 4)
    if steps is None or steps.value is None:
        return strides
    if (steps.value < 0).any():
        return None  # torch has no negative strides: flip copies
    axes = optional_input(op, 3)
    factors = steps.value.reshape(-1).tolist()
    chosen: Sequence[int] = range(len(factors))
    if axes is not None and axes.value is not None:
        chosen = axes.value.reshape(-1).tolist()
    stretched = list(strides)
    for axis, factor in zip(chosen, factors, strict=False):
        dim = int(axis) % len(shape)
        stretched[dim] = strides[dim] * int(factor)
    return tuple(stretched)


def _selected(op: Operator, shape: Shape, strides: st.Strides, target: Shape) -> Layout:
    axis = int_of(op, "axis", 0)
    if shape:
        index = axis % len(shape)
    else:
        index = 0
    return strides[:index] + strides[index + 1 :]


_VIEWS = {
    "reshape": _reshaped,
    "transpose": _transposed,
    "expand": _expanded,
    "slice": _sliced,
    "select": _selected,
}


class Layouts:
    """Hold the strides of the tensors that are not contiguous, by name.

    ``channels_last_weights``: the program stores the weights of convolutions in NHWC, so that every convolution
    calculates in NHWC, whatever its image is (aten/src/ATen/native/ConvUtils.h, ``cudnn_conv_suggest_memory_format``).
    """

    def __init__(self, *, channels_last_weights: bool = False) -> None:
        self.strides: dict[str, st.Strides] = {}
        self._channels_last_weights = channels_last_weights

    def of(self, tensor: Tensor) -> st.Strides:
        """Return the strides of ``tensor``."""
        return self.strides.get(tensor.name) or st.contiguous(tensor.shape)

    def strided(self, values: Values) -> bool:
        """Return True when one of ``values`` is a tensor (or holds one) that is not contiguous."""
        known = self.strides
        if not known:
            return False
        for value in values:
            if value is None:
                continue
            if isinstance(value, Tensor):
                if value.name in known:
                    return True
            elif any(t.name in known for t in value.elements_):
                return True
        return False

    def set(self, tensor: Tensor, strides: Layout) -> None:
        """Note the strides of ``tensor``; contiguous ones are not kept."""
        if strides is not None and not st.is_contiguous(tensor.shape, strides):
            self.strides[tensor.name] = strides

    def channels_last(self, value: Value | None) -> bool:
        """Return True when ``value`` is an image that lies in NHWC (and, contiguous, does not)."""
        if not isinstance(value, Tensor) or value.name not in self.strides:
            return False
        return st.channels_last(value.shape, self.strides[value.name])

    def store_channels_last(self, value: Value | None) -> None:
        """Let the image ``value`` lie in NHWC, as ``Tensor.to(memory_format=torch.channels_last)`` does."""
        if isinstance(value, Tensor) and len(value.shape) == IMAGE_DIMENSIONS:
            self._dense(value, (0, 2, 3, 1))

    def copy_of(self, tensor: Tensor, *, channels_last: bool = False) -> Kernel:
        """Return the kernel that makes ``tensor`` contiguous, or an image in NHWC."""
        strides = self.of(tensor)
        stored = 1
        for size, stride in zip(tensor.shape, strides, strict=True):
            if stride != 0:
                stored *= size
        dims = tuple(range(len(tensor.shape)))
        if channels_last:
            dims = (0, *dims[2:], 1)
        fetched = fetched_per_byte(tensor.shape, strides, max(1, tensor.dtype.bits // 8), dims)
        return contiguous_copy(tensor.dtype, tensor.shape, stored, tensor.is_weight, fetched)

    def view(self, op: Operator) -> Kernel | None:
        """Follow a view operator; the copy kernel where it cannot stay a view."""
        source = op.inputs[0]
        results = [value for value in op.outputs if isinstance(value, Tensor)]
        if not isinstance(source, Tensor) or not results:
            return None
        kind = traits_of(op.key).strides
        strides = self.of(source)
        if kind == "same":
            for part in results:
                if len(part.shape) == len(strides):
                    self.set(part, strides)
            return None
        if kind == "reshape" and source.name not in self.strides:
            return None
        result = results[0]
        seen = _VIEWS[kind](op, source.shape, strides, result.shape)
        if seen is None:
            return self.copy_of(source)
        self.set(result, seen)
        return None

    def copies(self, family: Family, values: Values) -> tuple[Kernel, ...]:
        """Return the ``contiguous`` copies that a kernel of ``family`` needs of its strided operands."""
        kernels = []
        for index, value in enumerate(values):
            if not isinstance(value, Tensor):
                continue
            if index == 0 and self.runs_in_channels_last(family, value):
                if not st.channels_last(value.shape, self.of(value)):
                    kernels.append(self.copy_of(value, channels_last=True))
            elif value.name in self.strides and not self._accepts(family, index, value):
                kernels.append(self.copy_of(value))
        return tuple(kernels)

    def runs_in_channels_last(self, family: Family, image: Value | None) -> bool:
        """Return True when an operator of ``family`` reads ``image`` in NHWC and writes its result so."""
        if family not in _NEEDS_IMAGE or not isinstance(image, Tensor):
            return False
        if self._channels_last_weights and family in _CONVOLUTIONS and len(image.shape) == IMAGE_DIMENSIONS:
            return True
        strides = self.strides.get(image.name)
        return strides is not None and st.suggests_channels_last(image.shape, strides)

    def _accepts(self, family: Family, index: int, tensor: Tensor) -> bool:
        shape = tensor.shape
        strides = self.strides[tensor.name]
        if family in _NEEDS_IMAGE:
            return index > 0
        if family in _NEEDS_CONTIGUOUS:
            return index > 0
        if family is Family.LINEAR:
            flat = (math.prod(shape[:-1]), shape[-1])
            if len(shape) != 2:
                seen = st.view(shape, strides, flat)
            else:
                seen = strides
            return seen is not None and 1 in seen
        if family is Family.BMM:
            if len(shape) < 3:
                return True
            *batches, rows, columns = shape
            seen = st.view(shape, strides, (math.prod(batches), rows, columns))
            return seen is not None and 1 in seen[-2:]
        if family in (Family.ATTENTION, Family.DECODE):
            return strides[-1] == 1
        return True

    def scattered(self, op: Operator) -> bool:
        """Return True if torch's index_select walks ``op``, a Gather, slice by slice instead of along the indices.

        Its CUDA kernel has a version in which neighbouring threads take neighbouring indices, for source and result
        that collapse to equally many dimensions, at most three; else, and always with more than 16 indices, one in
        which each thread takes a slice (aten/src/ATen/native/cuda/Indexing.cu, ``index_select_out_cuda_impl``:
        ``LARGE_INDEX(..., -1, -1, -1, true)``). That one coalesces nothing where the indexed dimension is the
        inner.
        """
        source = optional_input(op, 0)
        index = optional_input(op, 1)
        result = optional_output(op, 0)
        if source is None or index is None or result is None:
            return False
        if len(index.shape) != 1 or index.elements <= _SMALL_INDEX:
            return False
        strides = self.of(source)
        last = len(source.shape) - 1
        axis = operator_axis(op, len(source.shape), 0)
        if axis != last or strides[axis] != 1:
            return False
        before = st.collapsed(source.shape, strides, axis)
        after = st.collapsed(result.shape, st.contiguous(result.shape), axis)
        return before != after or after > _MOST_DIMENSIONS

    def result(self, family: Family, keeps: bool, values: Values, results: Values) -> None:
        """Set the layout of an operator's results: elementwise results, and those of an operator that ``keeps`` the
        layout, follow their first full-size operand, convolutions their image.
        """
        if results:
            result = results[0]
        else:
            result = None
        if not isinstance(result, Tensor):
            return
        if family is Family.ELEMENTWISE or keeps:
            for value in values:
                if isinstance(value, Tensor) and value.shape == result.shape and not value.is_weight:
                    self._follow(value, result)
                    break
        elif family in _NEEDS_IMAGE and self.runs_in_channels_last(family, values[0]):
            self._dense(result, (0, *range(2, len(result.shape)), 1))

    def image_result(self, values: Values, result: Value | None) -> None:
        """Set the layout of a concatenation or padding: NHWC where that is the layout of every operand."""
        images = [
            value for value in values if isinstance(value, Tensor) and len(value.shape) == IMAGE_DIMENSIONS
        ]
        agree = all(st.suggests_channels_last(image.shape, self.of(image)) for image in images)
        if images and agree:
            self.store_channels_last(result)

    def attention_result(self, result: Value | None) -> None:
        """Set the layout of what the fused kernels write: (batch, sequence, heads, size) and return it with heads
        and sequence swapped, so that the usual ``transpose(1, 2).reshape`` after them copies nothing.
        """
        if isinstance(result, Tensor) and len(result.shape) == 4:
            self._dense(result, (0, 2, 1, 3))

    def _follow(self, leading: Tensor, result: Tensor) -> None:
        strides = self.strides.get(leading.name)
        if strides is None:
            return
        self._dense(result, st.outer_to_inner(strides))

    def _dense(self, result: Tensor, order: Shape) -> None:
        inner = st.contiguous(tuple(result.shape[i] for i in order))
        strides = [0] * len(order)
        for position, dim in enumerate(order):
            strides[dim] = inner[position]
        self.set(result, tuple(strides))

    def alias(self, pairs: Mapping[str, Tensor]) -> None:
        """Give results (by name) the strides of the very tensors that they are: a sequence's element taken out
        again.
        """
        for name, tensor in pairs.items():
            strides = self.strides.get(tensor.name)
            if strides is not None:
                self.strides[name] = strides


def bias_apart(linear: Kernel, op: Operator) -> Kernels:
    """Return torch's linear on a tensor that is not contiguous: a product of the copy, then an addition of its own."""
    bias = op.inputs[2]
    result = op.outputs[0]
    assert isinstance(bias, Tensor) and isinstance(result, Tensor), "match_linear gives both"
    product = replace(
        linear,
        flops=linear.flops - result.elements,
        read_bytes=linear.read_bytes - bias.nbytes,
        weight_bytes=linear.weight_bytes - bias.nbytes,
        inputs=linear.inputs - 1,
    )
    addition = elementwise_kernel("add", (result, bias), (result,), flops_per_element=1)
    return interned((product, addition))
