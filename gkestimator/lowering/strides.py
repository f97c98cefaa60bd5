"""Strides of torch tensors: which views stay views. Strides are in elements, as torch counts them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

from gkestimator.operators.registry import Shape

Strides = tuple[int, ...]


@lru_cache(maxsize=65_536)
def contiguous(shape: Shape) -> Strides:
    """Return the row-major strides of ``shape``."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(1, size)
    return tuple(reversed(strides))


@lru_cache(maxsize=65_536)
def is_contiguous(shape: Shape, strides: Strides) -> bool:
    """Return True when the elements lie in row-major order without gaps; strides of dimensions of size 1 do not
    matter.
    """
    step = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size == 0:
            return True
        if size != 1:
            if stride != step:
                return False
            step *= size
    return True


def collapsed(shape: Shape, strides: Strides, apart: int) -> int:
    """Return how many dimensions are left when neighbours that lie one inside the other are joined, all but
    ``apart``.

    (``at::cuda::detail::TensorInfo::collapseDims``; dimensions of size 1 vanish.)
    """
    count = 0
    inner: int | None = None  # outermost dimension of the chunk that the next one may join
    for dim in range(len(shape) - 1, -1, -1):
        if dim == apart:
            count = count + 1
            inner = None
        elif shape[dim] != 1:
            if inner is None or strides[dim] != shape[inner] * strides[inner]:
                count += 1
            inner = dim
    return count


def channels_last(shape: Shape, strides: Strides) -> bool:
    """Return True for (N, C, spatial...) stored as (N, spatial..., C)."""
    if len(shape) < 3:
        return False
    return _lies_in_order(shape, strides, (0, *range(2, len(shape)), 1))


def _lies_in_order(shape: Shape, strides: Strides, order: Sequence[int]) -> bool:
    """Return True when the elements lie without gaps where dimensions go from outer to inner by ``order``."""
    sizes = tuple([shape[dim] for dim in order])
    steps = tuple([strides[dim] for dim in order])
    return is_contiguous(sizes, steps)


def outer_to_inner(strides: Strides) -> Shape:
    """Return the dimensions from the outermost to the innermost: the order in which an elementwise result is stored,
    with or without gaps in its operand (aten/src/ATen/TensorIterator.cpp, ``reorder_dimensions``).
    """
    return tuple(sorted(range(len(strides)), key=lambda i: (-strides[i], i)))


def suggests_channels_last(shape: Shape, strides: Strides) -> bool:
    """Return True for images that torch handles in NHWC: stored so, or a part of such an image, with gaps.

    (``is_channels_last_strides_2d`` of c10/core/MemoryFormat.h.)
    """
    if len(shape) != 4:
        return channels_last(shape, strides)
    least = 0
    for dim in (1, 3, 2, 0):
        if shape[dim] == 0 or strides[dim] < least or strides[1] == 0:
            return False
        if dim == 0 and least == strides[1]:
            return False  # one pixel and one channel: either layout, taken as NCHW
        least = strides[dim] * max(1, shape[dim])
    return True


@lru_cache(maxsize=65_536)
def view(shape: Shape, strides: Strides, target: Shape) -> Strides | None:
    """Return the strides of ``shape`` seen as ``target`` (equal element counts), or None where a copy is needed.

    Neighbouring dimensions that lie one inside the other form a chunk; a target dimension must stay within one
    chunk. (The rule of torch.Tensor.view.)
    """
    if math.prod(shape) == 0:
        return contiguous(target)
    if not shape:
        return (1,) * len(target)
    result = [0] * len(target)
    position = len(target) - 1
    base = strides[-1]
    in_chunk = 1
    viewed = 1
    for dim in range(len(shape) - 1, -1, -1):
        in_chunk *= shape[dim]
        # A chunk ends where the next dimension outwards does not lie right around it.
        apart = dim == 0 or (shape[dim - 1] != 1 and strides[dim - 1] != in_chunk * base)
        if apart:
            while position >= 0 and (viewed < in_chunk or target[position] == 1):
                result[position] = viewed * base
                viewed *= target[position]
                position -= 1
            if viewed != in_chunk:
                return None
            if dim > 0:
                base = strides[dim - 1]
                in_chunk = 1
                viewed = 1
    if position == -1:
        return tuple(result)
    return None
