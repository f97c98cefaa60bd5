"""Resampling of images."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gkestimator.profiling.executors.torch_calls.registry import Call, Run, torch_call

__all__: list[str] = []

_LINEAR = {1: "linear", 2: "bilinear", 3: "trilinear"}
_LONGEST = 2**20  # whose indices are compared
_CUBIC = -0.75  # torch's coefficient, and ONNX's default


@torch_call("Resize", "Upsample")
def resize(call: Call) -> Run:
    """F.interpolate, where one of its modes means the same. Raises EntryUnsupportedError otherwise."""
    import torch.nn.functional as F  # noqa: N812

    source = call.shape(0)
    result = call.result().shape
    rank = len(source) - 2
    if not 1 <= rank <= 3 or source[:2] != result[:2]:
        raise call.unsupported(
            f"from {list(source)} to {list(result)}; torch resizes (N, C, spatial...) alone"
        )
    scales, exact = _factors(call, rank)
    for position in range(1, len(call.op.inputs)):
        call.host.add(position)
    mode = str(call.attribute("mode", "nearest"))
    size = list(result[2:])
    if max(*source[2:], *size) > _LONGEST:
        raise call.unsupported(f"more than {_LONGEST:,} elements along one dimension")
    if mode == "nearest":
        how: dict[str, Any] = {"mode": _nearest(call, source[2:], size, scales)}
        exact = True  # the indices were compared with these sizes
    else:
        how = _interpolation(call, mode, rank, source[2:], size)
        if how["align_corners"] and not exact:
            raise call.unsupported("corners aligned by a factor that is not the ratio of the sizes")
    if exact:
        return lambda x, *_: F.interpolate(x, size=size, **how)
    return lambda x, *_: F.interpolate(x, scale_factor=scales, recompute_scale_factor=False, **how)


def _factors(call: Call, rank: int) -> tuple[list[float], bool]:
    """Factors of the spatial dimensions, and whether they are just the ratio of the sizes."""
    source = call.shape(0)
    result = call.result().shape
    ratio = [after / before for before, after in zip(source[2:], result[2:], strict=True)]
    axes = call.integers("axes")
    scales: Any = None
    if call.op.op_type == "Upsample":
        if call.op.version >= 9:
            scales = call.constant(1)
        else:
            scales = call.attribute("scales")
    elif call.op.version < 11:
        scales = call.constant(1)
    elif call.peek(2) is not None and call.peek(2).size:  # type: ignore[union-attr]
        scales = call.constant(2)
    if scales is None:
        return ratio, True
    full = [1.0] * (rank + 2)
    for axis, value in zip(axes or range(rank + 2), np.asarray(scales).reshape(-1).tolist(), strict=True):
        full[axis] = float(value)
    same = all(math.isclose(a, b, rel_tol=1e-6) for a, b in zip(full[2:], ratio, strict=True))
    return full[2:], same


def _transform(call: Call) -> str:
    """How coordinates are mapped; before opset 11 and in Upsample always by the bare factor."""
    if call.op.op_type == "Upsample" or call.op.version < 11:
        return "asymmetric"
    return str(call.attribute("coordinate_transformation_mode", "half_pixel"))


def _coordinates(transform: str, before: int, after: int, scale: float) -> np.ndarray | None:
    x = np.arange(after, dtype=np.float64)
    if transform == "asymmetric":
        return x / scale
    if transform == "half_pixel" or (transform == "pytorch_half_pixel" and after > 1):
        return (x + 0.5) / scale - 0.5
    if transform == "pytorch_half_pixel":
        return np.zeros(after)
    if transform == "align_corners":
        if after > 1:
            return x * (before - 1) / (after - 1)
        return np.zeros(after)
    return None


def _nearest(call: Call, before: Sequence[int], after: Sequence[int], scales: Sequence[float]) -> str:
    """The mode of torch that picks the same source elements."""
    rounding = str(call.attribute("nearest_mode", "round_prefer_floor"))
    if call.op.op_type == "Upsample" or call.op.version < 11:
        rounding = "floor"
    transform = _transform(call)
    known: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "floor": np.floor,
        "ceil": np.ceil,
        "round_prefer_floor": lambda x: np.ceil(x - 0.5),
        "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    }
    rounds = known.get(rounding)
    fits = {"nearest": True, "nearest-exact": True}
    for b, a, scale in zip(before, after, scales, strict=True):
        x = _coordinates(transform, b, a, scale)
        if x is None or rounds is None:
            raise call.unsupported(f"nearest by {transform} and {rounding}")
        wanted = np.clip(rounds(x), 0, b - 1)
        steps = np.arange(a, dtype=np.float32)
        ratio = np.float32(b / a)
        fits["nearest"] &= bool((wanted == np.minimum(np.floor(steps * ratio), b - 1)).all())
        exact = np.minimum(np.floor((steps + np.float32(0.5)) * ratio), b - 1)
        fits["nearest-exact"] &= bool((wanted == exact).all())
    for mode, fit in fits.items():
        if fit:
            return mode
    raise call.unsupported(f"nearest by {transform} and {rounding}, which picks other elements than torch")


def _interpolation(
    call: Call, mode: str, rank: int, before: Sequence[int], after: Sequence[int]
) -> dict[str, Any]:
    transform = _transform(call)
    # To a length of one, ONNX's pytorch_half_pixel takes the first element; torch has ceased to.
    alike = transform == "half_pixel" or (
        transform == "pytorch_half_pixel" and all(a > 1 or b == 1 for a, b in zip(after, before, strict=True))
    )
    if not (alike or transform == "align_corners"):
        raise call.unsupported(f"{mode} by {transform}")
    if call.attribute("antialias", 0):
        raise call.unsupported("antialias, whose weights at the border torch takes otherwise")
    how: dict[str, Any] = {"align_corners": transform == "align_corners"}
    if mode == "linear":
        return {"mode": _LINEAR[rank], **how}
    if mode == "cubic" and rank == 2:
        if call.attribute("exclude_outside", 0) or call.attribute("cubic_coeff_a", _CUBIC) != _CUBIC:
            raise call.unsupported("cubic with another coefficient or weights cut at the border")
        return {"mode": "bicubic", **how}
    raise call.unsupported(f"mode {mode} over {rank} dimensions")


@torch_call("GridSample")
def grid_sample(call: Call) -> Run:
    """F.grid_sample."""
    import torch.nn.functional as F  # noqa: N812

    given = str(call.attribute("mode", "linear"))
    mode = {
        "linear": "bilinear",
        "bilinear": "bilinear",
        "nearest": "nearest",
        "cubic": "bicubic",
        "bicubic": "bicubic",
    }.get(given)
    rank = len(call.shape(0)) - 2
    if mode is None or rank not in (2, 3):
        raise call.unsupported(f"mode {given!r} over {rank} dimensions")
    padding = str(call.attribute("padding_mode", "zeros"))
    corners = bool(call.attribute("align_corners", 0))
    return lambda x, g: F.grid_sample(x, g, mode, padding, corners)


@torch_call("AffineGrid")
def affine_grid(call: Call) -> Run:
    """F.affine_grid."""
    import torch.nn.functional as F  # noqa: N812

    size = call.numbers(1)
    if size is None:
        raise call.unsupported("no size")
    corners = bool(call.attribute("align_corners", 0))
    return lambda theta, *_: F.affine_grid(theta, size, corners)
