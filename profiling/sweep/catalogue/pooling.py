"""Pooling, reductions and arg-reductions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gkestimator.core.fragments import Fragment
from gkestimator.profiling.sweep.catalogue.making import CatalogueItem, constant, operator, x
from gkestimator.profiling.sweep.catalogue.shapes import ShapeSampler, table

_BATCHES = (1, 8, 32)


def pool(op_type: str, shape: Sequence[int], kernel: int, stride: int) -> Fragment:
    """Return a MaxPool or AveragePool over squares."""
    # Windows that overlap keep the size, as ResNet's stem does.
    pad = kernel // 2 if stride < kernel else 0
    sides = (kernel, kernel)
    return operator(op_type, x(*shape), kernel_shape=sides, pads=(pad,) * 4, strides=(stride, stride))


def _global(batch: int, channels: int, *image: int) -> Fragment:
    return operator("GlobalAveragePool", x(batch, channels, *image))


def reduce(op_type: str, shape: Sequence[int], axes: Sequence[int], *, keep: int = 1) -> Fragment:
    """Return a Reduce* operator; axes are an attribute up to opset 17 (ReduceSum: an input since 13)."""
    if op_type == "ReduceSum":
        return operator(op_type, x(*shape), constant(axes), keepdims=keep)
    return operator(op_type, x(*shape), axes=tuple(axes), keepdims=keep, opset=17)


def _along(kind: str, shape: Sequence[int], axis: int) -> Fragment:
    """Return a mean, a maximum or the place of one along an axis, which goes away."""
    if kind == "arg_max":
        return operator("ArgMax", x(*shape), axis=axis, keepdims=0)
    return reduce({"mean": "ReduceMean", "max": "ReduceMax"}[kind], shape, (axis,), keep=0)


def real() -> Iterator[CatalogueItem]:
    """Yield pools of ResNet, VGG, Inception, DenseNet, SPP of YOLO, global pools."""
    for source, rows in table("pooling").items():
        for op_type, image, kernel, stride in rows:
            for batch in _BATCHES:
                yield CatalogueItem(pool(op_type, (batch, *image), kernel, stride), source)
    for channels, size in table("pooling", "global"):
        for batch in _BATCHES:
            yield CatalogueItem(_global(batch, channels, size, size), "vision")
    yield CatalogueItem(operator("GlobalMaxPool", x(8, 512, 7, 7)), "vision")


def corners() -> Iterator[Fragment]:
    """Yield odd images, one channel, large windows."""
    for op_type in ("MaxPool", "AveragePool"):
        for row in table("pooling", "corners"):
            yield pool(op_type, *row)
    for shape in table("pooling", "global_corners"):
        yield _global(*shape)


def sampled(sampler: ShapeSampler, count: int) -> Iterator[Fragment]:
    """Yield windows of 2, 3 and 5."""
    kinds = (
        ("MaxPool", 2, 2),
        ("MaxPool", 3, 2),
        ("AveragePool", 2, 2),
        ("AveragePool", 3, 1),
        ("MaxPool", 5, 1),
    )
    picked = sampler.pick(count, kinds)
    for n, (batch, channels, size) in enumerate(sampler.sizes(count, table("pooling", "between"))):
        if n % 4 == 0:
            yield _global(batch, channels, size, size)
            continue
        op_type, kernel, stride = picked[n]
        yield pool(op_type, (batch, channels, size, size), kernel, stride)


def reduction_real() -> Iterator[CatalogueItem]:
    """Yield means over tokens and images, sums, maxima over classes."""
    for source, shapes in table("activation").items():
        for shape in shapes:
            axes = (-1,) if len(shape) == 2 else (2, 3)
            for batch in (1, 16):
                yield CatalogueItem(reduce("ReduceMean", (batch, *shape), axes), source)
    for source, kind, shape, axis in table("pooling", "reduction"):
        yield CatalogueItem(_along(kind, shape, axis), source)


def reduction_corners() -> Iterator[Fragment]:
    """Yield whole tensors, first axes, short and long, odd."""
    for op_type in ("ReduceSum", "ReduceMax", "ReduceMean", "ReduceL2"):
        for shape, axes in table("pooling", "reduction_corners"):
            yield reduce(op_type, shape, axes)
    yield _along("arg_max", (1, 1000003), 1)
    yield operator("CumSum", x(64, 4096), constant([1], shape=()))


def reduction_sampled(sampler: ShapeSampler, count: int) -> Iterator[Fragment]:
    """Yield means, sums and maxima along the last, the middle and the first axis."""
    kinds = [(op_type, axis) for op_type in ("ReduceMean", "ReduceSum", "ReduceMax") for axis in (2, 2, 1)]
    picked = sampler.pick(count, kinds)
    for n, shape in enumerate(sampler.sizes(count, table("pooling", "reduction_between"))):
        op_type, axis = picked[n]
        yield reduce(op_type, shape, (axis,))
