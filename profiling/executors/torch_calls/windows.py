"""Windows over spatial dimensions, as convolutions and poolings have them: strides, dilations, padding."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gkestimator.profiling.executors.torch_calls.registry import Call

MOST_SPATIAL = 3


def spatial_rank(call: Call) -> int:
    """Return the number of spatial dimensions, 1 to 3. Raises EntryUnsupportedError for others."""
    rank = call.rank - 2
    if not 1 <= rank <= MOST_SPATIAL:
        raise call.unsupported(f"{rank} spatial dimensions, expected 1 to {MOST_SPATIAL}")
    return rank


def spatial(call: Call, name: str, rank: int, default: int) -> list[int]:
    """Return a spatial attribute, filled up with ``default``."""
    numbers = call.integers(name)
    if numbers is None:
        return [default] * rank
    if len(numbers) != rank:
        raise call.unsupported(f"attribute {name} has {len(numbers)} numbers, expected {rank}")
    return numbers


def window_pads(
    call: Call, source: Sequence[int], window: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Return the padding before and after each spatial dimension, by ``pads`` or ``auto_pad``."""
    rank = len(source)
    mode = call.text("auto_pad", "NOTSET")
    if mode in ("NOTSET", ""):
        pads = call.integers("pads") or [0] * (2 * rank)
        if len(pads) != 2 * rank:
            raise call.unsupported(f"attribute pads has {len(pads)} numbers, expected {2 * rank}")
        return pads[:rank], pads[rank:]
    if mode == "VALID":
        return [0] * rank, [0] * rank
    if mode not in ("SAME_UPPER", "SAME_LOWER"):
        raise call.unsupported(f"auto_pad {mode!r}")
    size = np.array(source)
    reach = np.array(dilations) * (np.array(window) - 1)
    results = -(-size // strides)
    covered = (results - 1) * strides + reach + 1
    total = np.maximum(0, covered - size)
    before = total // 2 if mode == "SAME_UPPER" else total - total // 2
    return before.tolist(), (total - before).tolist()


def frame(before: Sequence[int], after: Sequence[int]) -> list[int]:
    """Return the padding as torch.nn.functional.pad takes it: last dimension first."""
    sides = []
    for first, last in zip(reversed(before), reversed(after), strict=True):
        sides += [first, last]
    return sides
