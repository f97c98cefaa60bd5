"""Hold the rows of the report: bars with the figures reached, and what a user may expect."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gkestimator.evaluation.cases import KernelCases
from gkestimator.evaluation.metrics import interval_summary


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Hold one line; ``met`` is None where no figure was measured."""

    what: str
    bar: str
    figure: str
    met: bool | None
    goal: bool = False


def line(
    what: str, bar: float, value: float | None, unit: str = " %", goal: bool = False, more: str = ""
) -> Line:
    """Return the line of a figure that must not exceed ``bar``; None is "not measured"."""
    if value is None:
        return Line(what=what, bar=f"{bar:g}{unit}", figure="not measured", met=None, goal=goal)
    # One decimal would read as met.
    close = value > bar and round(value, 1) <= bar
    figure = f"{value:.1f}"
    if close:
        figure = f"{value:.3f}"
    return Line(what=what, bar=f"{bar:g}{unit}", figure=f"{figure}{unit}{more}", met=value <= bar, goal=goal)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """Hold one row of the first page: what was estimated, on which GPUs, and how far off it was.

    ``what`` and ``where`` are words; ``cases`` how many measurements; ``median``, ``mean`` and ``roofline`` absolute errors in
    percent (the roofline's median); ``inside``: percent of measurements inside the 90 % interval. None is not known.
    """

    what: str
    where: str
    cases: int
    median: float | None
    mean: float | None
    roofline: float | None
    inside: float | None


def expected_of_kernels(what: str, where: str, cases: KernelCases) -> Expected:
    """Return the first page's row of kernels."""
    errors = cases.errors_pct()
    time = cases.gpu_time_us
    known = np.isfinite(time) & cases.trained
    part = cases.take(known)
    inside = interval_summary(part.estimates["estimator"], part.low_us, part.high_us, time[known])
    return Expected(
        what=what,
        where=where,
        cases=len(cases),
        median=float(np.median(errors)),
        mean=float(errors.mean()),
        roofline=float(np.median(cases.errors_pct("roofline"))),
        inside=None if inside is None else inside.inside_pct,
    )


def expected_of_models(
    what: str, where: str, errors: Sequence[float], rooflines: Sequence[float], inside: float | None
) -> Expected:
    """Return the first page's row of whole models, from absolute errors in percent."""
    return Expected(
        what=what,
        where=where,
        cases=len(errors),
        median=float(np.median(errors)),
        mean=float(np.mean(errors)),
        roofline=float(np.median(rooflines)),
        inside=inside,
    )
