"""Resampling of images."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from gkestimator.profiling.executors.torch_calls.registry import Call, Run, torch_call
from gkestimator.profiling.type_names import Fields

_LINEAR = {1: "linear", 2: "bilinear", 3: "trilinear"}
_LONGEST = 2**20  # whose indices are compared
_CUBIC = -0.75  # torch's coefficient, and ONNX's default
_UPSAMPLE_TAKES_INPUTS = 9
_RESIZE_SAYS_HOW = 11
_NEAREST_OFFSETS = {"nearest": np.float32(0), "nearest-exact": np.float32(0.5)}
"""torch's modes, and which point of a result's pixel each takes the source of."""
_ROUNDINGS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "floor": np.floor,
    "ceil": np.ceil,
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
}
_GRID_MODES = {
    "linear": "bilinear",
    "bilinear": "bilinear",
    "nearest": "nearest",
    "cubic": "bicubic",
    "bicubic": "bicubic",
}


def _by_bare_factor(call: Call) -> bool:
    """Return True where coordinates always follow from the bare factor: before opset 11, and in Upsample."""
    return call.op_type == "Upsample" or call.version < _RESIZE_SAYS_HOW


@torch_call("Resize", "Upsample")
def resize(call: Call) -> Run:
    """Call F.interpolate, where one of its modes means the same. Raises EntryUnsupportedError otherwise."""
    import torch.nn.functional as F  # noqa: N812

    source = call.shape()
    result = call.result_shape
    rank = len(source) - 2
    if not 1 <= rank <= 3 or source[:2] != result[:2]:
        raise call.unsupported(
            f"from {list(source)} to {list(result)}; torch resizes (N, C, spatial...) alone"
        )
    before = source[2:]
    size = list(result[2:])
    scales, exact = _factors(call, before, size)
    call.drop_inputs()
    if max(*before, *size) > _LONGEST:
        raise call.unsupported(f"more than {_LONGEST:,} elements along one dimension")
    mode = call.text("mode", "nearest")
    if mode == "nearest":
        how: Fields = {"mode": _nearest(call, before, size, scales)}
        exact = True  # the indices were compared with these sizes
    else:
        how = _interpolation(call, mode, before, size)
        if how["align_corners"] and not exact:
            raise call.unsupported("corners aligned by a factor that is not the ratio of the sizes")
    if exact:
        return lambda x, *_: F.interpolate(x, size=size, **how)
    return lambda x, *_: F.interpolate(x, scale_factor=scales, recompute_scale_factor=False, **how)


def _scales(call: Call) -> Any:
    """Return the factors of all dimensions, or of those that ``axes`` names; None where sizes stand instead."""
    if call.op_type == "Upsample" and call.version < _UPSAMPLE_TAKES_INPUTS:
        return call.attribute("scales")
    if _by_bare_factor(call):
        return call.constant(1)
    scales = call.peek(2)
    if scales is None or not scales.size:
        return None
    return call.constant(2)


def _factors(call: Call, before: Sequence[int], after: Sequence[int]) -> tuple[list[float], bool]:
    """Return the factors of the spatial dimensions, and whether they are just the ratio of the sizes."""
    ratios = [b / a for a, b in zip(before, after, strict=True)]
    scales = _scales(call)
    if scales is None:
        return ratios, True
    factors = [1.0] * call.rank
    axes = call.integers("axes") or range(call.rank)
    for axis, factor in zip(axes, np.asarray(scales).reshape(-1).tolist(), strict=True):
        factors[axis] = float(factor)
    factors = factors[2:]
    return factors, all(map(partial(math.isclose, rel_tol=1e-6), factors, ratios))


def _transform(call: Call) -> str:
    """Return the word for how coordinates are mapped."""
    if _by_bare_factor(call):
        return "asymmetric"
    return call.text("coordinate_transformation_mode", "half_pixel")


def _coordinates(transform: str, before: int, after: int, scale: float) -> np.ndarray | None:
    """Return the place in ``before`` elements that each of ``after`` comes from; None for an unknown transform."""
    x = np.arange(after, dtype=np.float64)
    single = after <= 1
    match transform:
        case "asymmetric":
            return x / scale
        case "pytorch_half_pixel" | "align_corners" if single:
            return np.zeros(after)
        case "half_pixel" | "pytorch_half_pixel":
            return (x + 0.5) / scale - 0.5
        case "align_corners":
            return x * (before - 1) / (after - 1)
    return None


def _nearest(call: Call, before: Sequence[int], after: Sequence[int], scales: Sequence[float]) -> str:
    """Return the mode of torch that picks the same source elements."""
    rounding = "floor" if _by_bare_factor(call) else call.text("nearest_mode", "round_prefer_floor")
    rounds = _ROUNDINGS.get(rounding)
    transform = _transform(call)
    modes = dict(_NEAREST_OFFSETS)
    for length, size, scale in zip(before, after, scales, strict=True):
        x = _coordinates(transform, length, size, scale)
        if x is None or rounds is None:
            raise call.unsupported(f"nearest by {transform} and {rounding}")
        wanted = np.clip(rounds(x), 0, length - 1)
        steps = np.arange(size, dtype=np.float32)
        ratio = np.float32(length / size)  # torch calculates in float32, so its indices round as here
        for mode, offset in _NEAREST_OFFSETS.items():
            picked = np.minimum(np.floor((steps + offset) * ratio), length - 1)
            if not (wanted == picked).all():
                modes.pop(mode, None)
    if not modes:
        raise call.unsupported(
            f"nearest by {transform} and {rounding}, which picks other elements than torch"
        )
    return next(iter(modes))


def _interpolation(call: Call, mode: str, before: Sequence[int], after: Sequence[int]) -> Fields:
    """Return what F.interpolate is told to interpolate as ONNX does."""
    rank = len(after)
    transform = _transform(call)
    # To a length of one, ONNX's pytorch_half_pixel takes the first element; torch has ceased to.
    lost = False
    for length, size in zip(before, after, strict=True):
        lost = lost or (size == 1 and length != 1)
    alike = transform == "half_pixel" or (transform == "pytorch_half_pixel" and not lost)
    if not (alike or transform == "align_corners"):
        raise call.unsupported(f"{mode} by {transform}")
    if call.flag("antialias"):
        raise call.unsupported("antialias, whose weights at the border torch takes otherwise")
    corners = transform == "align_corners"
    if mode == "linear":
        return {"mode": _LINEAR[rank], "align_corners": corners}
    if mode == "cubic" and rank == 2:
        if call.flag("exclude_outside") or call.attribute("cubic_coeff_a", _CUBIC) != _CUBIC:
            raise call.unsupported("cubic with another coefficient or weights cut at the border")
        return {"mode": "bicubic", "align_corners": corners}
    raise call.unsupported(f"mode {mode} over {rank} dimensions")


@torch_call("GridSample")
def grid_sample(call: Call) -> Run:
    """Call F.grid_sample."""
    import torch.nn.functional as F  # noqa: N812

    word = call.text("mode", "linear")
    mode = _GRID_MODES.get(word)
    rank = call.rank - 2
    if mode is None or rank not in (2, 3):
        raise call.unsupported(f"mode {word!r} over {rank} dimensions")
    padding = call.text("padding_mode", "zeros")
    corners = call.flag("align_corners")
    return lambda x, g: F.grid_sample(x, g, mode, padding, corners)


@torch_call("AffineGrid")
def affine_grid(call: Call) -> Run:
    """Call F.affine_grid."""
    import torch.nn.functional as F  # noqa: N812

    size = call.numbers(1)
    if size is None:
        raise call.unsupported("no size")
    corners = call.flag("align_corners")
    return lambda theta, *_: F.affine_grid(theta, size, corners)
