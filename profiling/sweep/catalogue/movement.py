"""Data movement: transposes, concatenation, slices, splits, padding, tiling, casts and the copies of eager mode."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from gkestimator.core.fragments import Fragment
from gkestimator.profiling.sweep.catalogue.making import (
    CatalogueItem,
    chain,
    constant,
    operator,
    x,
)
from gkestimator.profiling.sweep.catalogue.shapes import ShapeSampler, table


def transpose(shape: Sequence[int], perm: Sequence[int]) -> Fragment:
    """Return a Transpose: a kernel in onnxruntime, a view in torch."""
    return operator("Transpose", x(*shape), perm=tuple(perm))


def transpose_copy(shape: Sequence[int], perm: Sequence[int]) -> Fragment:
    """Return a Transpose and a flattening Reshape: what torch's eager mode copies."""
    operands = [x(*shape), constant([-1])]
    turned = ("Transpose", ["x0"], "t", {"perm": tuple(perm)})
    return chain("contiguous_copy", operands, turned, ("Reshape", ["t", "c1"], "y", {}))


def concat(shapes: Sequence[Sequence[int]], axis: int) -> Fragment:
    """Return a Concat of activations."""
    return operator("Concat", *(x(*s) for s in shapes), axis=axis)


def _equal_parts(shape: Sequence[int], count: int, axis: int) -> Fragment:
    return concat([shape] * count, axis)


def _slice(shape: Sequence[int], axis: int, start: int, stop: int, step: int = 1) -> Fragment:
    bounds = [constant([n]) for n in (start, stop, axis, step)]
    return operator("Slice", x(*shape), *bounds)


def _split(shape: Sequence[int], axis: int, parts: int) -> Fragment:
    sizes = constant([shape[axis] // parts] * parts)
    return operator("Split", x(*shape), sizes, axis=axis, outputs=parts)


def _pad(shape: Sequence[int], pads: Sequence[int]) -> Fragment:
    return operator("Pad", x(*shape), constant(pads))


def _tile(shape: Sequence[int], repeats: Sequence[int]) -> Fragment:
    return operator("Tile", x(*shape), constant(repeats))


def _expand(shape: Sequence[int], target: Sequence[int]) -> Fragment:
    return operator("Expand", x(*shape), constant(target))


def _depth_to_space(shape: Sequence[int]) -> Fragment:
    return operator("DepthToSpace", x(*shape), blocksize=2, mode="CRD")


def _trilu(shape: Sequence[int]) -> Fragment:
    return operator("Trilu", x(*shape), upper=0)


_MAKERS: Mapping[str, tuple[Callable[..., Fragment], ...]] = {
    "turn": (transpose, transpose_copy),
    "concat": (concat,),
    "equal_parts": (_equal_parts,),
    "slice": (_slice,),
    "split": (_split,),
    "pad": (_pad,),
    "tile": (_tile,),
    "expand": (_expand,),
    "depth_to_space": (_depth_to_space,),
    "trilu": (_trilu,),
}
"""What the operations of ``shapes.toml`` are measured as."""


def real() -> Iterator[CatalogueItem]:
    """Yield heads of attention, channels-last and back, skip connections, detection heads, rotary halves."""
    for source, operation, *arguments in table("movement", "real"):
        for make in _MAKERS[operation]:
            yield CatalogueItem(make(*arguments), source)


def corners() -> Iterator[Fragment]:
    """Yield matrices of odd and large sizes, thin ones, many axes, strided slices, one element."""
    for operation, *arguments in table("movement", "corners"):
        for make in _MAKERS[operation]:
            yield make(*arguments)


def sampled(sampler: ShapeSampler, count: int) -> Iterator[Fragment]:
    """Yield transposes (and their copies) of three and four axes, concatenations, slices."""
    kinds = ("heads", "heads_copy", "last", "last_copy", "concat", "concat_last", "slice", "pad")
    picked = sampler.pick(count, kinds)
    for n, (batch, a, b) in enumerate(sampler.sizes(count, table("movement", "between"))):
        kind, _, form = picked[n].partition("_")
        turn = transpose_copy if form == "copy" else transpose
        match kind:
            case "heads":
                yield turn((batch, a, max(1, b // 64), 64), (0, 2, 1, 3))
            case "last":
                yield turn((batch, a, b), (0, 2, 1))
            case "concat":
                axis = 2 if form == "last" else 1
                yield _equal_parts((batch, a, b), 2 + n % 3, axis)
            case "slice":
                axis = 1 + n % 2
                length = (a, b)[n % 2]
                yield _slice((batch, a, b), axis, 1, length - 1)
            case _:
                yield _pad((batch, a, b), (0, 1, 1, 0, 1, 1))
