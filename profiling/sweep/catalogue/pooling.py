"""Pooling, reductions and arg-reductions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gkestimator.core.fragments import Fragment
from gkestimator.profiling.sweep.catalogue.architectures import ACTIVATIONS
from gkestimator.profiling.sweep.catalogue.making import CatalogueItem, constant, item, operator, x
from gkestimator.profiling.sweep.catalogue.sampling import ShapeSampler

_BATCHES = (1, 8, 32)


def pool(op_type: str, shape: tuple[int, ...], kernel: int, stride: int) -> Fragment:
    """MaxPool or AveragePool over squares."""
    pad = kernel // 2 if stride < kernel else 0
    return operator(
        op_type,
        x(*shape),
        attributes={
            "kernel_shape": (kernel, kernel),
            "pads": (pad, pad, pad, pad),
            "strides": (stride, stride),
        },
    )


def reduce(op_type: str, shape: Sequence[int], axes: Sequence[int], *, keep: int = 1) -> Fragment:
    """A Reduce* operator; axes are an attribute up to opset 17 (ReduceSum: an input since 13)."""
    if op_type == "ReduceSum":
        return operator(op_type, x(*shape), constant(axes), attributes={"keepdims": keep})
    return operator(op_type, x(*shape), attributes={"axes": tuple(axes), "keepdims": keep}, opset=17)


def _arg(op_type: str, shape: Sequence[int], axis: int) -> Fragment:
    return operator(op_type, x(*shape), attributes={"axis": axis, "keepdims": 0})


def real() -> Iterator[CatalogueItem]:
    """Pools of ResNet, VGG, Inception, DenseNet, SPP of YOLO, global pools."""
    for op, shape, kernel, stride, source in (
        ("MaxPool", (64, 112, 112), 3, 2, "vision"),
        ("MaxPool", (64, 224, 224), 2, 2, "vision"),
        ("MaxPool", (128, 112, 112), 2, 2, "vision"),
        ("MaxPool", (512, 28, 28), 2, 2, "vision"),
        ("MaxPool", (288, 35, 35), 3, 2, "vision"),
        ("AveragePool", (192, 35, 35), 3, 1, "vision"),
        ("AveragePool", (768, 17, 17), 3, 1, "vision"),
        ("AveragePool", (128, 56, 56), 2, 2, "vision"),
        ("AveragePool", (512, 14, 14), 2, 2, "vision"),
        ("MaxPool", (512, 20, 20), 5, 1, "detection"),
        ("MaxPool", (256, 20, 20), 13, 1, "detection"),
        ("MaxPool", (256, 200, 304), 1, 2, "detection"),
    ):
        for batch in _BATCHES:
            yield item(pool(op, (batch, *shape), kernel, stride), source)
    for channels, size in (
        (512, 7),
        (2048, 7),
        (1280, 7),
        (960, 7),
        (1024, 7),
        (96, 112),
        (240, 28),
        (672, 14),
    ):
        for batch in _BATCHES:
            yield item(operator("GlobalAveragePool", x(batch, channels, size, size)), "vision")
    yield item(operator("GlobalMaxPool", x(8, 512, 7, 7)), "vision")


def corners() -> Iterator[CatalogueItem]:
    """Odd images, one channel, large windows."""
    for op in ("MaxPool", "AveragePool"):
        for shape, kernel, stride in (
            ((1, 1, 7, 7), 3, 1),
            ((1, 3, 513, 513), 3, 2),
            ((128, 64, 57, 57), 3, 2),
            ((1, 2048, 7, 7), 7, 1),
            ((2, 16, 1024, 1024), 2, 2),
            ((8, 256, 31, 31), 5, 3),
        ):
            yield item(pool(op, shape, kernel, stride), "corner")
    for shape in ((1, 1, 512, 512), (128, 2048, 2, 2), (2, 7, 511, 511)):
        yield item(operator("GlobalAveragePool", x(*shape)), "corner")


def sampled(sampler: ShapeSampler, count: int) -> Iterator[CatalogueItem]:
    """Windows of 2, 3 and 5."""
    kinds = (
        ("MaxPool", 2, 2),
        ("MaxPool", 3, 2),
        ("AveragePool", 2, 2),
        ("AveragePool", 3, 1),
        ("MaxPool", 5, 1),
    )
    picked = sampler.pick(count, kinds)
    for n, (batch, channels, size) in enumerate(sampler.sizes(count, ((1, 128), (8, 1024), (7, 256)))):
        op, kernel, stride = kinds[picked[n]]
        if n % 4 == 0:
            yield item(operator("GlobalAveragePool", x(batch, channels, size, size)), "sampled")
        else:
            yield item(pool(op, (batch, channels, size, size), kernel, stride), "sampled")


def reduction_real() -> Iterator[CatalogueItem]:
    """Means over tokens and images, sums, maxima over classes."""
    for source, shapes in ACTIVATIONS.items():
        for shape in shapes:
            axes = (-1,) if len(shape) == 2 else (2, 3)
            for batch in (1, 16):
                yield item(reduce("ReduceMean", (batch, *shape), axes), source)
    for batch in _BATCHES:
        yield item(reduce("ReduceMean", (batch, 197, 768), (1,), keep=0), "vision")
        yield item(_arg("ArgMax", (batch, 1000), 1), "vision")
        yield item(_arg("ArgMax", (batch, 21, 513, 513), 1), "vision")
        yield item(_arg("ArgMax", (batch, 50257), 1), "language")
        yield item(reduce("ReduceMax", (batch, 8400, 80), (2,), keep=0), "detection")


def reduction_corners() -> Iterator[CatalogueItem]:
    """Whole tensors, first axes, short and long, odd."""
    for op in ("ReduceSum", "ReduceMax", "ReduceMean", "ReduceL2"):
        for shape, axes in (
            ((1, 1000000), (1,)),
            ((1000000, 4), (1,)),
            ((513, 513), (0,)),
            ((4096, 4096), (0,)),
            ((7, 7, 7), (1,)),
            ((64, 256, 33, 33), (0, 2, 3)),
            ((2**24,), (0,)),
            ((16, 1, 65537), (2,)),
        ):
            yield item(reduce(op, shape, axes), "corner")
    yield item(_arg("ArgMax", (1, 1000003), 1), "corner")
    yield item(operator("CumSum", x(64, 4096), constant([1], shape=())), "corner")


def reduction_sampled(sampler: ShapeSampler, count: int) -> Iterator[CatalogueItem]:
    """Means, sums and maxima along the last, the middle and the first axis."""
    kinds = [(op, axis) for op in ("ReduceMean", "ReduceSum", "ReduceMax") for axis in (2, 2, 1)]
    picked = sampler.pick(count, kinds)
    for n, shape in enumerate(sampler.sizes(count, ((1, 128), (4, 2048), (8, 4096)))):
        op, axis = kinds[picked[n]]
        yield item(reduce(op, shape, (axis,)), "sampled")
