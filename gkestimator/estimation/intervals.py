"""Calculate the interval of a model from the intervals of its kernels.

Kernel errors of one model are neither independent (one GPU, one library, one regressor) nor one and the same.
Two sums bound the truth: the *common* one, where every kernel errs by its full half-width in the same
direction, and the *independent* one, the root of the sum of squares over distinct kernels (repetitions of one
kernel err alike). On GPUs, precisions and sizes that were trained on, a share ``COMMON_SHARE`` of the
variance is common; of what regressors say elsewhere (another GPU, beyond the training range) ``COMMON_ELSEWHERE``; what
the analytical model says is taken as wholly common, because what is wrong there is wrong for all kernels. What lowering
itself may get wrong is ``STRUCTURE``, and how much another machine on another day runs faster or slower throughout is
``MACHINE``; both are added in squares. Kernels on GPUs that were not measured hold the machine already: they were
calibrated on machines left out.
"""

from __future__ import annotations

import math

import numpy as np

from gkestimator.core.kernels import Array

COMMON_SHARE = 0.1
COMMON_ELSEWHERE = 0.3
"""What kernels of a chip left out share of their errors' variance, pooled over regressors (single ones from 0.06 to
0.58): ``python -m benchmarks.accuracy --only machines`` prints them."""
STRUCTURE = 0.05
MACHINE = 0.14
"""90 % half-width of log(time): what ``python -m benchmarks.accuracy --only machines`` prints of kernels that two
laboratories measured on one chip."""
HOST_FACTOR = 1.2
"""How far, up and down, a model's mean time per framework call lies from a host's figure: calls differ.

``COMMON_SHARE``, ``STRUCTURE`` and this were fitted by ``python benchmarks/model_intervals.py`` on the development
group of the published whole models, before ``MACHINE`` was a term of its own: the narrowest intervals that hold nine
rows in ten, the structure term at least 0.05."""


def host_range_us(given_us: float | None, known_us: tuple[float, float]) -> tuple[float, float]:
    """Return the 90 % range of microseconds per framework call: about the host's figure where it is
    ``given_us``, else about all hosts known (``known_us``: fastest and slowest).

    Which host it is and how a model's calls differ from other models' on one host are independent, so their logarithms
    add in squares.
    """
    if given_us is not None:
        return given_us / HOST_FACTOR, given_us * HOST_FACTOR
    fastest, slowest = known_us
    if fastest <= 0:
        return fastest, slowest * HOST_FACTOR
    half_width = math.hypot(math.log(slowest / fastest) / 2, math.log(HOST_FACTOR))
    middle = math.sqrt(fastest * slowest)
    return middle * math.exp(-half_width), middle * math.exp(half_width)


def widen(
    spans_us: Array,
    rows: Array,
    half_width: Array,
    in_range: Array,
    learned: Array | None = None,
    *,
    common_share: float = COMMON_SHARE,
    elsewhere: float = COMMON_ELSEWHERE,
    structure: float = STRUCTURE,
    machine: float = MACHINE,
) -> float:
    """Return the factor of every kernel's half-width at which moving all kernels together gives the model's
    interval.

    Half-widths are of log(time), 90 %.

    ``spans_us``: (launches,) time of each launch, its repetitions included; ``rows``: which distinct kernel
    each launch is; ``half_width``, ``in_range`` and ``learned`` (a regressor answered; None: none did beyond
    the range): per launch. Returns 1 for a model without GPU time.
    """
    total = float(spans_us.sum())
    if total <= 0:
        return 1.0
    reach = spans_us / total * half_width
    common = float(reach.sum())
    if common <= 0:
        return 1.0
    shares = shares_in_common(in_range, learned, common_share=common_share, elsewhere=elsewhere)
    correlated = float(np.dot(reach, np.sqrt(shares)))
    # Repetitions of one kernel err alike, so they add up before they are squared.
    alone = np.bincount(rows, weights=reach * np.sqrt(1 - shares))
    measured_share = float(spans_us[in_range].sum()) / total
    variance = correlated**2 + float(np.dot(alone, alone))
    variance += structure**2 + (machine * measured_share) ** 2
    return float(np.sqrt(variance)) / common


def shares_in_common(
    in_range: Array,
    learned: Array | None,
    *,
    common_share: float = COMMON_SHARE,
    elsewhere: float = COMMON_ELSEWHERE,
) -> Array:
    """Return the share of each kernel's variance that it has in common with the other kernels of a model."""
    shares = np.where(in_range, common_share, 1.0)
    if learned is None:
        return shares
    return np.where(learned & ~in_range, elsewhere, shares)
