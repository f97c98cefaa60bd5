"""Say what the host adds to NeuSight's latencies, and how it drifted while they were taken.

Two CUDA events stand around one operator call. The GPU stamps the first at once and then waits for the host
to launch the kernel, and stamps the second when the kernel is done *and* the host has queued that event. So
``measured = gap + max(GPU time, hold)`` with gap the dispatch time of the operator and hold the time to queue
an event. Both show in the data: small kernels of one operator all last gap + hold (the floor), and
elementwise kernels beyond it lie on a line over their bytes whose intercept is gap (plus the 1.5 us that a
kernel itself takes). Hold belongs to the host and the GPU alone, so it is found on the elementwise rows and
taken off the floors of the other operators.

The files keep the order of the measurements, and the gap did not stay the same:

- *Convolutions*: the floor climbs all the way through the file, from 60-110 us to 330-820 us, and rows of
  milliseconds are longer by as much, so it is the gap that grows (the host's search for a plan gets longer
  with every shape that it has seen). Found per GPU as a non-falling piecewise linear function of the place in
  the file, by least absolute deviations over the third of the rows with the least work, beside their work;
  its level is such that the shortest twentieth last, in the median, what the analytical model says, and at most
  such that 1 % of all rows lie below the floor (few convolutions are short enough to show it).
- *All others*: the host switches between speeds for hundreds of calls (T4 elementwise 26 and 33 us, V100
  bmm 40 and 48 us). Kernels that physics says are far shorter than hold show it: the median of the twenty
  around a row is its floor (of products, where physics knows less, the third shortest). A row's own time never enters
  its own gap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gkestimator.core.kernels import Array
from gkestimator.hardware.gpu_spec import GpuSpecs
from gkestimator.hardware.gpus import GpuSpec
from gkestimator.kernel_models.analytical import analytical_duration_us
from gkestimator.kernel_models.roofline import KERNEL_LATENCY_US, roofline
from gkestimator.training.rows import TrainingRows

Part = tuple[str, TrainingRows, Array]
"""Kind of the file, its rows in the order of the file, and the operator's name per row."""

_MATRIX_KINDS = ("linear", "bmm")
_FEWEST = 50  # rows of one GPU and operator, without which nothing is said of their floor
_NEIGHBOURS = 10  # tiny rows before and after a row that show the host's speed at that time
_TINY = 0.5  # of hold: kernels that certainly finish before the host has queued the closing event
_SHALLOW = 128  # a product is tiny only if not even one tile walks far along k
_LOW = 2  # of twenty tiny products the third shortest shows the floor: many are longer than physics says
_KNOTS = 10
_SHORTEST = 0.05
_SLOW_START = 0.01  # share of convolutions below the floor: the shortest are lucky calls


def with_launch_gaps(parts: Sequence[Part], gpus: GpuSpecs) -> list[TrainingRows]:
    """Return the rows of ``parts`` with ``gap_us`` and ``hold_us`` filled in; both stay 0 where no train rows
    show them.
    """
    levels = _levels(parts)
    result = []
    for kind, rows, operators in parts:
        gap = np.zeros(len(rows))
        hold = np.zeros(len(rows))
        for gpu, operator, index in _groups(rows, operators):
            if (gpu, operator) not in levels:
                continue
            level, wait = levels[gpu, operator]
            gap[index], hold[index] = level, wait
            if not _is_train(rows):
                continue
            part = rows.take(index)
            if kind == "conv":
                gap[index] = climb(part, gpus[gpu], wait)
            else:
                floor = local_floor(kind, part, gpus[gpu], wait)
                if floor is not None:
                    gap[index] = np.maximum(floor - wait, 0.0)
        result.append(replace(rows, gap_us=gap, hold_us=hold))
    return result


def climb(rows: TrainingRows, gpu: GpuSpec, hold_us: float) -> Array:
    """Return the gap (us) of each convolution of one GPU, in the order of the file: see the module's
    docstring.
    """
    at = np.linspace(0.0, _KNOTS - 1.0, len(rows))
    hats = np.maximum(0.0, 1.0 - np.abs(at[:, None] - np.arange(_KNOTS)))
    roof = roofline(rows.table, gpu)
    small = np.flatnonzero(roof.roofline_us <= np.quantile(roof.roofline_us, 1 / 3))
    work = np.stack([roof.compute_us, roof.memory_us, np.sqrt(roof.roofline_us)], axis=1)
    design = np.hstack([hats, work])[small]
    # The host never gets faster: a search through more plans takes longer.
    shape = np.maximum.accumulate(_least_absolute(design, rows.measured_us[small])[:_KNOTS])
    curve = hats @ (shape - shape[0])
    beyond = rows.measured_us - curve
    likely = analytical_duration_us(rows.table, gpu)
    shortest = likely <= np.quantile(likely, _SHORTEST)
    expected = np.maximum(likely, hold_us)
    level = np.median((beyond - expected)[shortest])
    most = np.quantile(beyond, _SLOW_START) - hold_us
    return np.asarray(np.maximum(curve + min(level, most), 0.0))


def _least_absolute(design: Array, y: Array) -> Array:
    """Return coefficients that minimise the sum of |y - design @ b|, by iteratively reweighted least squares."""
    scale = np.maximum(np.abs(design).max(axis=0), 1e-12)
    x = design / scale
    weight = np.ones(len(y))
    result = np.zeros(x.shape[1])
    # The last of them change nothing any more; the bound ends what does not settle.
    for _ in range(50):
        root = np.sqrt(weight)
        result = np.linalg.lstsq(x * root[:, None], y * root, rcond=1e-9)[0]
        off = np.abs(y - x @ result)
        weight = 1.0 / np.maximum(off, 1e-3 * (np.median(off) + 1e-9))
    return np.asarray(result / scale)


def local_floor(kind: str, rows: TrainingRows, gpu: GpuSpec, hold_us: float) -> Array | None:
    """Return what calls of the shortest kernels took (us) around each row; None if too few rows are that
    short.

    ``rows`` are those of one operator on one GPU in the order of the file.
    """
    depth = np.nan_to_num(rows.table.columns["gemm_k"], nan=0.0)
    short = (analytical_duration_us(rows.table, gpu) < _TINY * hold_us) & (depth <= _SHALLOW)
    tiny = np.flatnonzero(short)
    if len(tiny) < _FEWEST:
        return None
    place = np.arange(len(rows))
    before = np.searchsorted(tiny, place, side="left")
    # A tiny row is no neighbour of its own: its time must not enter its gap.
    own = np.isin(place, tiny)
    start = np.clip(before - _NEIGHBOURS, 0, len(tiny) - 2 * _NEIGHBOURS - own)
    near = start[:, None] + np.arange(2 * _NEIGHBOURS)
    near += (near >= before[:, None]) & own[:, None]
    times = np.sort(rows.measured_us[tiny][near], axis=1)
    if kind in _MATRIX_KINDS:
        return np.asarray(times[:, _LOW])
    return np.asarray((times[:, _NEIGHBOURS - 1] + times[:, _NEIGHBOURS]) / 2)


def _is_train(rows: TrainingRows) -> bool:
    return len(rows) > 0 and str(rows.source[0]).endswith("train")


def _groups(rows: TrainingRows, operators: Array) -> list[tuple[str, str, Array]]:
    """Return (GPU, operator, ascending indices) of every combination that occurs."""
    keys = np.char.add(np.char.add(rows.gpu.astype(str), "\n"), operators.astype(str))
    groups = []
    for key in np.unique(keys).tolist():
        gpu, operator = key.split("\n")
        groups.append((gpu, operator, np.flatnonzero(keys == key)))
    return groups


def _levels(parts: Sequence[Part]) -> dict[tuple[str, str], tuple[float, float]]:
    """Return (gap, hold) in microseconds of every (GPU, operator) over its whole train file."""
    floors: dict[tuple[str, str], float] = {}
    holds: dict[str, list[float]] = {}
    for kind, rows, operators in parts:
        if not _is_train(rows):
            continue
        total = rows.table.columns["read_bytes"] + rows.table.columns["write_bytes"]
        for gpu, operator, index in _groups(rows, operators):
            if len(index) < _FEWEST:
                continue
            measured = rows.measured_us[index]
            size = total[index]
            floor = _floor(kind, measured, size)
            floors[gpu, operator] = floor
            line = (measured > 1.5 * floor) & (measured < 6 * floor)
            if kind == "elem" and line.sum() >= _FEWEST:
                _, intercept = np.polyfit(size[line], measured[line], 1, w=1 / measured[line])
                holds.setdefault(gpu, []).append(floor - intercept + KERNEL_LATENCY_US)
    # A GPU whose elementwise rows show no hold is taken for a typical one.
    typical = [hold for mine in holds.values() for hold in mine] or [0.0]
    levels = {}
    for (gpu, operator), floor in floors.items():
        hold = float(np.clip(np.median(holds.get(gpu, typical)), 0.0, floor))
        levels[gpu, operator] = (floor - hold, hold)
    return levels


def _floor(kind: str, measured: Array, size: Array) -> float:
    """Return what the shortest calls of one operator on one GPU take, microseconds."""
    if kind == "conv":
        return float(np.min(measured))
    if kind in _MATRIX_KINDS:
        return float(np.quantile(measured, 0.002))
    return float(np.median(measured[size <= np.quantile(size, 0.05)]))
