"""Calculate the interval of a change of latency: how much slower a model became, where most of it stayed as it was.

Two files are estimated for one GPU, by one bundle, behind one host, so a kernel that stands in both errs alike in
both: whatever its true time is, it is the same time before and after. With ``n`` the launches and ``t exp(e)`` the
true time of a kernel, the GPU's change is the sum over distinct kernels of ``(n_after - n_before) t exp(e)``.
Kernels launched equally often drop out, however wide their intervals are; files of the same kernels differ by
nothing, for sure.

What is left is the signed sum over kernels that differ, and its half-width follows the rule of a model's interval
(:mod:`gkestimator.estimation.intervals`), applied to those kernels alone:

- What kernels have in common adds up over the added ones and over the removed ones. The two sums are added in
  squares: errors of kernels are known to be alike or independent, never opposed, so that taking them for
  independent gives the wider interval of a difference.
- What each kernel errs by itself is added in squares.
- ``STRUCTURE``, what lowering may get wrong, is of what was added and of what was removed, in squares.
- ``MACHINE``, a machine that is faster or slower throughout, is of the change itself, for one machine runs both.

The latency is not the GPU's time alone, so both timelines are replayed with the added kernels at one end and the
removed ones at the other. Whether the host or the GPU binds is common to both files and not known either: each
replay is made with the host and the kernels of both files as estimated and at each of their ends. The interval
holds all replays.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from gkestimator.core.kernels import Array
from gkestimator.core.records import frozen
from gkestimator.estimation.intervals import MACHINE, STRUCTURE, shares_in_common
from gkestimator.estimation.requirement import reaches
from gkestimator.estimation.timeline import LaunchProgram, schedule
from gkestimator.kernel_models.prediction import KernelPredictions


@frozen
class LaunchedKernels:
    """Hold a model's launches with their predictions; ``rows[i]`` says which kernel of the pool prediction i is of.
    ``part``: on a part of a GPU.
    """

    program: LaunchProgram
    predictions: KernelPredictions
    rows: Array
    part: bool = False


@frozen
class BothKernels:
    """Hold every kernel of two models once: ``rows`` of the pool, ascending, and an entry each in the other arrays.

    ``before`` and ``after``: how often it is launched; ``duration_us``: of one launch; ``down`` and ``up``:
    half-widths of its log(time); ``least_us``: what no kernel is faster than (0: not known); ``common_down`` and
    ``common_up``: how far its log(time) goes for the ends of its model's interval.
    """

    rows: Array
    before: Array
    after: Array
    duration_us: Array
    down: Array
    up: Array
    least_us: Array
    in_range: Array
    learned: Array
    common_down: Array
    common_up: Array

    @property
    def more(self) -> Array:
        """Return how many launches more there are after than before; negative: fewer."""
        return np.asarray(self.after - self.before)


@frozen
class HostPace:
    """Hold microseconds per framework call: as assumed, and the 90 % range that it lies in; and the streams."""

    overhead_us: float
    range_us: tuple[float, float]
    streams: int = 1


def both_kernels(before: LaunchedKernels, after: LaunchedKernels) -> BothKernels:
    """Return the kernels of both models, each once."""
    rows = np.union1d(before.rows, after.rows)
    columns = {name: np.zeros(rows.size) for name in _COLUMNS}
    counts = []
    for model in (before, after):
        place = np.searchsorted(rows, model.rows)
        counts.append(np.zeros(rows.size))
        launches = np.bincount(model.program.kernel, weights=model.program.repeat, minlength=len(model.rows))
        counts[-1][place] = launches
        for name, values in _columns(model).items():
            columns[name][place] = values
    return BothKernels(
        rows=rows,
        before=counts[0],
        after=counts[1],
        in_range=columns.pop("in_range") > 0,
        learned=columns.pop("learned") > 0,
        **columns,
    )


_COLUMNS = ("duration_us", "down", "up", "least_us", "in_range", "learned", "common_down", "common_up")


def _columns(model: LaunchedKernels) -> dict[str, Array]:
    """Return what is known of each prediction of a model, by the fields of :class:`BothKernels`."""
    known = model.predictions
    duration = known.duration_us
    at_least = np.maximum(duration, 1e-9)
    up = np.where(duration > 0, np.log(known.high_us / at_least), 0.0)
    down = up
    in_range = known.in_range
    if known.detail is not None:
        lowest = np.maximum(known.low_us, 1e-9)
        down = np.where(duration > 0, np.log(at_least / lowest), 0.0)
        # What a model adds to one kernel that was measured alone, it adds to all of them.
        in_range = in_range & ~known.detail.may_be_slower
    common = np.zeros((2, len(duration)))
    row = model.program.kernel
    for values, reach in zip(
        common, reaches(model.program, known, duration[row], part=model.part), strict=True
    ):
        values[row] = reach
    least = np.zeros(len(duration)) if known.least_us is None else known.least_us
    return {
        "duration_us": duration,
        "down": down,
        "up": up,
        "least_us": np.minimum(least, duration),
        "in_range": in_range,
        # No part of a GPU was measured, so nothing was learned of one.
        "learned": known.trained & (not model.part),
        "common_down": common[0],
        "common_up": common[1],
    }


def change_interval_us(
    before: LaunchedKernels, after: LaunchedKernels, host: HostPace
) -> tuple[float, float]:
    """Return the 90 % interval of latency after minus latency before, in microseconds."""
    kernels = both_kernels(before, after)
    machine = MACHINE
    if after.predictions.detail is not None:  # the machine is the one that was measured
        machine = 0.0
    changes = []
    for times in _times(kernels, machine):
        for overhead in (host.overhead_us, *host.range_us):
            total = partial(_total_us, kernels.rows, times, overhead, host.streams)
            changes.append(total(after) - total(before))
    return min(changes), max(changes)


def _total_us(rows: Array, times: Array, overhead_us: float, streams: int, model: LaunchedKernels) -> float:
    place = np.searchsorted(rows, model.rows)
    durations = times[place][model.program.kernel]
    return schedule(model.program, durations, host_overhead_us=overhead_us, streams=streams).total_us


def _times(kernels: BothKernels, machine: float) -> Iterator[Array]:
    """Yield the times of all kernels in each replay: those in common at three places, those that differ at three."""
    more = kernels.more
    for common in (np.zeros(more.size), -kernels.common_down, kernels.common_up):
        for dearer in (0.0, 1.0, -1.0):
            direction = np.sign(more) * dearer
            width = np.where(direction > 0, kernels.up, kernels.down)
            own = direction * width * _factor(kernels, width, machine)
            shift = np.where(more == 0, common, own)
            times = kernels.duration_us * np.exp(shift)
            yield np.maximum(times, kernels.least_us)


def _factor(kernels: BothKernels, width: Array, machine: float) -> float:
    """Return the factor of every half-width at which moving all kernels that differ gives the change's half-width."""
    moved = kernels.more * kernels.duration_us
    reach = np.abs(moved) * width
    everything = float(reach.sum())
    if everything <= 0:
        return 1.0
    shares = shares_in_common(kernels.in_range, kernels.learned)
    together = reach * np.sqrt(shares)
    alone = reach * np.sqrt(1 - shares)
    added = moved > 0
    variance = _in_squares(together, added) + float(np.dot(alone, alone))
    variance += STRUCTURE**2 * _in_squares(moved, added)
    variance += (machine * float(moved[kernels.in_range].sum())) ** 2
    return float(np.sqrt(variance)) / everything


def _in_squares(values: Array, added: Array) -> float:
    """Return the square of the sum over what was added plus that over what was removed."""
    return float(values[added].sum()) ** 2 + float(values[~added].sum()) ** 2
