"""Answer for a measured GPU of a bundle: measured calls as they are, its own regressors where it has rows,
the base bundle for the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gkestimator.bundles.corrections import Correction
from gkestimator.bundles.measured_lowering import LAUNCH_COLUMNS, MeasuredLowering
from gkestimator.bundles.models import WIDEST, Chip, chip_of, is_pair_of, same_chip
from gkestimator.core.kernels import Array, Arrays, Family, KernelTable
from gkestimator.core.records import frozen
from gkestimator.hardware.gpus import GpuSpec
from gkestimator.kernel_models.achieved import OccupancyModel
from gkestimator.kernel_models.launch import (
    LAUNCH_FIELDS,
    Launch,
    bandwidth_pct,
    is_streaming,
    occupancy,
    sm_utilisation_pct,
)
from gkestimator.kernel_models.prediction import (
    KernelDetail,
    KernelEstimator,
    KernelPredictions,
    MeasuredLaunch,
)
from gkestimator.kernel_models.roofline import confined


@frozen
class Shift:
    """Hold what all measured families of a GPU have in common: log(time / base) and its 90 % half-width."""

    value: float
    half_width: float


@frozen
class MeasuredContents:
    """Hold what was learned; None where there was too little to learn from."""

    corrections: tuple[Correction, ...]
    lowering: MeasuredLowering | None
    occupancy: OccupancyModel | None
    shift: Shift | None


@frozen
class MeasuredGpu:
    """Hold what a bundle learned of one GPU type. ``bundle``: the bundle's name; ``base``: what the
    corrections correct; ``gpus``: names of the boards measured; ``chip``: theirs; ``read`` gives the
    contents, from disk when first asked. ``runtime``: whose measured lowering is used, None for none
    (corrections are common to the runtimes they were measured under; under another they count as out of range)."""

    bundle: str
    base: KernelEstimator
    gpus: tuple[str, ...]
    chip: Chip
    read: Callable[[], MeasuredContents]
    runtime: str | None = None

    @property
    def corrections(self) -> tuple[Correction, ...]:
        """Return its regressors."""
        return self.read().corrections

    @property
    def lowering(self) -> MeasuredLowering | None:
        """Return its measured calls."""
        return self.read().lowering

    @property
    def occupancy(self) -> OccupancyModel | None:
        """Return its regressor of achieved occupancy."""
        return self.read().occupancy

    @property
    def shift(self) -> Shift | None:
        """Return what its families have in common, where that carries over to others."""
        return self.read().shift

    def knows(self, gpu: GpuSpec) -> bool:
        """Return True for the boards measured and for other boards of their chip."""
        return gpu.name in self.gpus or same_chip(self.chip, chip_of(gpu), matrix=True)

    def under(self, runtime: str, version: str | None = None) -> MeasuredGpu:
        """Return the same for one runtime, and one version of it where the base knows versions."""
        base = self.base.under(runtime, version)
        return replace(self, runtime=runtime, base=base)

    def predict(self, table: KernelTable, gpu: GpuSpec, *, sm_share_pct: float = 100.0) -> KernelPredictions:
        """Predict as ``Bundle.predict`` does, on a GPU that this one ``knows``, with ``detail``.

        On a part of the GPU the base says how much longer a kernel takes than on the whole; nothing counts as inside
        the measured range there.
        """
        base = self.base.predict(table, gpu, sm_share_pct=sm_share_pct)
        if not len(table):
            return replace(base, detail=_empty_detail())
        part = confined(gpu, sm_share_pct)
        whole = base
        if part is not gpu:
            whole = self.base.predict(table, gpu)
        answer = _Answer.of_base(whole, self.base.name)
        self._correct(table, gpu, whole, answer)
        calls = self._exact(table, gpu, answer)
        if part is not gpu:
            answer.duration_us *= _ratio(base.duration_us, whole.duration_us)
            answer.width = np.maximum(answer.width, _width(base))
            answer.inside[:] = False
        return self._complete(table, gpu, part, base, answer, calls)

    def _correct(self, table: KernelTable, gpu: GpuSpec, whole: KernelPredictions, answer: _Answer) -> None:
        rest = whole.duration_us > 0
        for correction in self.corrections:
            index = np.flatnonzero(rest & is_pair_of(table, correction.covers))
            if not len(index):
                continue
            rest[index] = False
            rows = table.take(index)
            base_width = answer.width[index]
            duration, width, inside = correction.predict(rows, gpu, whole.duration_us[index], base_width)
            if self.runtime is not None and self.runtime not in correction.runtimes:
                inside = np.zeros(len(index), dtype=bool)
                width = np.maximum(width, base_width)
            answer.trained[index] = True
            answer.duration_us[index] = duration
            answer.inside[index] = inside
            answer.width[index] = np.minimum(width, WIDEST)
            answer.source[index] = f"trained:{self.bundle}"
        shift = self.shift
        if shift is not None:
            index = np.flatnonzero(rest & (table.family != Family.HOST))
            answer.duration_us[index] *= np.exp(shift.value)
            answer.width[index] = np.minimum(np.hypot(answer.width[index], shift.half_width), WIDEST)
            answer.inside[index] = False  # moved by what other families showed
            moved = index[
                answer.trained[index]
            ]  # what no regressor answers stays analytical, as its times are
            answer.source[moved] = f"trained:{self.bundle}"

    def _exact(self, table: KernelTable, gpu: GpuSpec, answer: _Answer) -> Array:
        """Take the time of calls that were measured on this very board; (rows,) their places, -1 for none."""
        lowering = self.lowering
        if lowering is None or self.runtime is None:
            return np.full(len(table), -1, dtype=np.int64)
        calls = lowering.find(table, self.runtime)
        if gpu.name not in self.gpus:
            return calls  # another board of the chip: the same kernels, other clocks and memory
        index = np.flatnonzero(calls >= 0)
        measured = calls[index]
        duration = lowering.duration_us[measured]
        answer.duration_us[index] = duration
        answer.width[index] = lowering.width[measured]
        answer.slower[index] = _cold_width(table.take(index), gpu, duration)
        answer.trained[index] = True
        answer.inside[index] = True
        answer.source[index] = "measured"
        return calls

    def _complete(
        self,
        table: KernelTable,
        gpu: GpuSpec,
        part: GpuSpec,
        base: KernelPredictions,
        answer: _Answer,
        calls: Array,
    ) -> KernelPredictions:
        launch = base.launch.copy()
        duration = answer.duration_us
        streaming = is_streaming(table)
        achieved = base.occupancy_pct.copy()
        used = base.sm_util_pct.copy()
        occupancy_source = _words(len(table), "analytical")
        if self.occupancy is not None:
            learned = self.occupancy.predict_pct(launch, duration, streaming, part)
            known = np.isfinite(learned)
            achieved[known] = learned[known]
            occupancy_source[known] = f"trained:{self.bundle}"
        detail = KernelDetail(
            source=answer.source,
            occupancy_source=occupancy_source,
            launches=np.ones(len(table)),
            sequence=np.full(len(table), None, dtype=object),
            occupancy_peak_pct=achieved.copy(),
            sm_util_peak_pct=used.copy(),
            may_be_slower=answer.slower > answer.width,
        )
        for row in np.flatnonzero(calls >= 0).tolist():
            sequence = self._launches(int(calls[row]), gpu, part, bool(streaming[row]), duration[row])
            detail.sequence[row] = sequence
            detail.launches[row] = len(sequence)
            longest = max(sequence, key=lambda member: member.share)
            for name in LAUNCH_FIELDS:
                value = getattr(longest, name)
                if value is None:
                    getattr(launch, name)[row] = np.nan
                else:
                    getattr(launch, name)[row] = value
            kernels = [member for member in sequence if member.kind == "kernel"]
            if any(member.sm_util_pct is None for member in kernels):
                continue  # a launch without geometry: the rules' figure stays
            used[row], detail.sm_util_peak_pct[row] = _mean_and_peak(sequence, "sm_util_pct")
            achieved[row], detail.occupancy_peak_pct[row] = _mean_and_peak(sequence, "occupancy_pct")
            if all(member.occupancy_measured for member in kernels):
                occupancy_source[row] = "measured"
        dram, l2 = bandwidth_pct(table, launch, duration, gpu)
        return replace(
            base,
            duration_us=duration,
            low_us=duration * np.exp(-answer.width),
            high_us=duration * np.exp(np.maximum(answer.width, answer.slower)),
            trained=answer.trained,
            in_range=answer.inside,
            grid_blocks=launch.grid_blocks,
            block_threads=launch.block_threads,
            registers_per_thread=launch.registers_per_thread,
            shared_bytes=launch.shared_bytes,
            occupancy_pct=achieved,
            sm_util_pct=used,
            dram_util_pct=dram,
            l2_util_pct=l2,
            detail=detail,
        )

    def _launches(
        self, call: int, gpu: GpuSpec, part: GpuSpec, streaming: bool, duration_us: float
    ) -> tuple[MeasuredLaunch, ...]:
        """Return the launches of a measured call, with utilisations calculated where no counter gave them."""
        lowering = self.lowering
        assert lowering is not None
        at = slice(int(lowering.first[call]), int(lowering.first[call + 1]))
        columns = {name: lowering.columns[name][at] for name in LAUNCH_COLUMNS}
        launch = _launch_of(columns)
        stream = np.full(len(launch.grid_blocks), streaming)
        _, achieved = occupancy(launch, part, streaming=stream)
        if self.occupancy is not None:
            learned = self.occupancy.predict_pct(launch, columns["share"] * duration_us, stream, part)
            achieved = np.where(np.isfinite(learned), learned, achieved)
        counted = np.isfinite(columns["occupancy_pct"]) & (part is gpu)
        achieved = np.where(counted, columns["occupancy_pct"], achieved)
        used = sm_utilisation_pct(launch, part, of_sms=gpu.sms)
        # What is drawn from the geometry is unknown where that is.
        shown = np.where(np.isfinite(launch.grid_blocks), [achieved, used], np.nan)
        members = []
        for i, share in enumerate(columns["share"]):
            geometry = {name: _known(columns[name][i]) for name in LAUNCH_FIELDS}
            member = MeasuredLaunch(
                kind=str(lowering.kind[at][i]),
                name=str(lowering.name[at][i]),
                share=float(share),
                occupancy_pct=_known(shown[0, i]),
                sm_util_pct=_known(shown[1, i]),
                occupancy_measured=bool(counted[i]),
                **geometry,
            )
            members.append(member)
        return tuple(members)


def _mean_and_peak(sequence: Sequence[MeasuredLaunch], figure: str) -> tuple[float, float]:
    """Return a percentage of a sequence of launches, weighted by time, and the largest; unknown counts as none."""
    total = weighted = peak = 0.0
    for member in sequence:
        value = getattr(member, figure) or 0.0
        total += member.share
        weighted += member.share * value
        peak = max(peak, value)
    return weighted / (total or 1.0), peak


def _launch_of(columns: Arrays) -> Launch:
    """Return the geometry; registers and shared memory that were not told count as none that limit."""
    return Launch(
        grid_blocks=columns["grid_blocks"],
        block_threads=columns["block_threads"],
        registers_per_thread=np.nan_to_num(columns["registers_per_thread"], nan=32.0),
        shared_bytes=np.nan_to_num(columns["shared_bytes"], nan=0.0),
    )


def _cold_width(table: KernelTable, gpu: GpuSpec, duration_us: Array) -> Array:
    """Return (rows,) log of how much longer a call may take than measured: repeats found operands in L2 where
    they fit there; inside a model other kernels have been at the L2 since, and what the call reads may have
    to come from DRAM."""
    read = table.columns["read_bytes"]
    written = table.columns["write_bytes"]
    from_dram_us = np.where(read + written <= gpu.l2_bytes, read / gpu.dram_bytes_per_s * 1e6, 0.0)
    return np.asarray(np.minimum(np.log1p(from_dram_us / duration_us), WIDEST))


def _known(value: float) -> float | None:
    if np.isfinite(value):
        return float(value)
    return None


def _words(count: int, word: str) -> Array:
    result = np.empty(count, dtype=object)
    result[:] = word
    return result


def _ratio(longer_us: Array, shorter_us: Array) -> Array:
    """Return one time over the other; 1 where there is no time."""
    ratio = np.ones(len(longer_us))
    np.divide(longer_us, shorter_us, out=ratio, where=shorter_us > 0)
    return ratio


def _width(predictions: KernelPredictions) -> Array:
    """Return the 90 % half-widths of log(time); 0 where there is no time."""
    ratio = _ratio(predictions.high_us, predictions.duration_us)
    return np.asarray(np.log(np.maximum(ratio, 1.0)))


def _empty_detail() -> KernelDetail:
    none = np.empty(0, dtype=object)
    nothing = np.empty(0)
    return KernelDetail(
        source=none,
        occupancy_source=none,
        launches=nothing,
        sequence=none,
        occupancy_peak_pct=nothing,
        sm_util_peak_pct=nothing,
        may_be_slower=np.empty(0, dtype=bool),
    )


@dataclass(slots=True, kw_only=True)
class _Answer:
    """Hold what is known of the whole GPU so far, per kernel; filled from the least to the most certain.
    ``slower``: how far the interval reaches upwards at least, where that is more than ``width``."""

    duration_us: Array
    width: Array
    slower: Array
    trained: Array
    inside: Array
    source: Array

    @classmethod
    def of_base(cls, base: KernelPredictions, name: str) -> _Answer:
        """Return the base's answer, to be overwritten."""
        source = _words(len(base.duration_us), "analytical")
        source[base.trained] = f"trained:{name}"
        return cls(
            duration_us=base.duration_us.copy(),
            width=_width(base),
            slower=np.zeros(len(source)),
            trained=base.trained.copy(),
            inside=base.in_range.copy(),
            source=source,
        )
