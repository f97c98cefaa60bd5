"""A measured GPU in a bundle: measured calls as they are, its own regressors where it has rows, the base bundle for
the rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from gkestimator.bundles.corrections import Correction
from gkestimator.bundles.measured_lowering import LAUNCH_COLUMNS, MeasuredLowering
from gkestimator.bundles.models import Chip, chip_of, pairs
from gkestimator.core.kernels import Family, KernelTable
from gkestimator.core.records import frozen
from gkestimator.hardware.gpus import GpuSpec
from gkestimator.kernel_models.achieved import OccupancyModel
from gkestimator.kernel_models.launch import Launch, is_streaming, occupancy, sm_utilisation_pct
from gkestimator.kernel_models.prediction import (
    KernelDetail,
    KernelEstimator,
    KernelPredictions,
    MeasuredLaunch,
)
from gkestimator.kernel_models.roofline import confined
from gkestimator.kernel_models.utilisation import bandwidth_pct

_SAME_CHIP = 0.10  # as for public regressors: SMs and matrix rate of boards of one chip differ by no more
_WIDEST = 5.0


@frozen
class Shift:
    """What all measured families of a GPU have in common: log(time / base) and its 90 % half-width."""

    value: float
    half_width: float


@frozen
class MeasuredContents:
    """What was learned; None where there was too little to learn from."""

    corrections: tuple[Correction, ...]
    lowering: MeasuredLowering | None
    occupancy: OccupancyModel | None
    shift: Shift | None


@frozen
class MeasuredGpu:
    """What a bundle learned of one GPU type. ``bundle``: the bundle's name; ``base``: what the corrections correct;
    ``gpus``: names of the boards measured; ``chip``: theirs; ``read`` gives the contents, from disk when first asked.
    ``runtime``: whose measured lowering is used, None for none (corrections are common to the runtimes they were
    measured under; under another they count as out of range)."""

    bundle: str
    base: KernelEstimator
    gpus: tuple[str, ...]
    chip: Chip
    read: Callable[[], MeasuredContents]
    runtime: str | None = None

    @property
    def corrections(self) -> tuple[Correction, ...]:
        """Its regressors."""
        return self.read().corrections

    @property
    def lowering(self) -> MeasuredLowering | None:
        """Its measured calls."""
        return self.read().lowering

    @property
    def occupancy(self) -> OccupancyModel | None:
        """Its regressor of achieved occupancy."""
        return self.read().occupancy

    @property
    def shift(self) -> Shift | None:
        """What its families have in common, where that carries over to others."""
        return self.read().shift

    def knows(self, gpu: GpuSpec) -> bool:
        """True for the boards measured and for other boards of their chip."""
        if gpu.name in self.gpus:
            return True
        *capability, sms, rate = chip_of(gpu)
        return (
            tuple(capability) == self.chip[:2]
            and abs(self.chip[2] / sms - 1) <= _SAME_CHIP
            and abs(self.chip[3] / max(rate, 1) - 1) <= _SAME_CHIP
        )

    def under(self, runtime: str) -> MeasuredGpu:
        """The same for one runtime."""
        return replace(self, runtime=runtime)

    def predict(self, table: KernelTable, gpu: GpuSpec, *, sm_share_pct: float = 100.0) -> KernelPredictions:
        """As ``Bundle.predict``, on a GPU that this one ``knows``, with ``detail``.

        On a part of the GPU the base says how much longer a kernel takes than on the whole; nothing counts as inside
        the measured range there.
        """
        base = self.base.predict(table, gpu, sm_share_pct=sm_share_pct)
        if not len(table):
            return replace(base, detail=_empty_detail())
        part = confined(gpu, sm_share_pct)
        if part is gpu:
            whole = base
        else:
            whole = self.base.predict(table, gpu)
        answer = _Answer.of_base(whole, self.base.name)
        self._correct(table, gpu, whole, answer)
        calls = self._exact(table, gpu, answer)
        if part is not gpu:
            stretch = np.divide(
                base.duration_us,
                whole.duration_us,
                out=np.ones(len(table)),
                where=whole.duration_us > 0,
            )
            answer.duration_us *= stretch
            answer.width = np.maximum(answer.width, _width(base))
            answer.inside[:] = False
        return self._complete(table, gpu, part, base, answer, calls)

    def _correct(self, table: KernelTable, gpu: GpuSpec, whole: KernelPredictions, answer: _Answer) -> None:
        kinds = pairs(table)
        answered = np.zeros(len(table), dtype=bool)
        runs = whole.duration_us > 0
        for correction in self.corrections:
            index = np.fromiter((i for i, kind in enumerate(kinds) if kind in correction.covers), np.int64)
            index = index[runs[index] & ~answered[index]]
            if not len(index):
                continue
            duration, width, inside = correction.predict(
                table.take(index), gpu, whole.duration_us[index], answer.width[index]
            )
            if self.runtime is not None and self.runtime not in correction.runtimes:
                inside = np.zeros(len(index), dtype=bool)
                width = np.maximum(width, answer.width[index])
            answered[index] = answer.trained[index] = True
            answer.duration_us[index], answer.inside[index] = duration, inside
            answer.width[index] = np.minimum(width, _WIDEST)
            answer.source[index] = f"trained:{self.bundle}"
        shift = self.shift
        if shift is not None:
            rest = np.flatnonzero(runs & ~answered & (table.family != Family.HOST))
            answer.duration_us[rest] *= np.exp(shift.value)
            answer.width[rest] = np.minimum(np.hypot(answer.width[rest], shift.half_width), _WIDEST)
            answer.inside[rest] = False  # moved by what other families showed
            moved = rest[answer.trained[rest]]  # what no regressor answers stays analytical, as its times are
            answer.source[moved] = f"trained:{self.bundle}"

    def _exact(self, table: KernelTable, gpu: GpuSpec, answer: _Answer) -> np.ndarray:
        """Take the time of calls that were measured on this very board; (rows,) their places, -1 for none."""
        if self.lowering is None or self.runtime is None:
            return np.full(len(table), -1, dtype=np.int64)
        calls = self.lowering.find(table, self.runtime)
        if gpu.name not in self.gpus:
            return calls  # another board of the chip: the same kernels, other clocks and memory
        index = np.flatnonzero(calls >= 0)
        answer.duration_us[index] = self.lowering.duration_us[calls[index]]
        answer.width[index] = self.lowering.width[calls[index]]
        answer.slower[index] = _cold_width(table.take(index), gpu, answer.duration_us[index])
        answer.trained[index] = answer.inside[index] = True
        answer.source[index] = "measured"
        return calls

    def _complete(
        self,
        table: KernelTable,
        gpu: GpuSpec,
        part: GpuSpec,
        base: KernelPredictions,
        answer: _Answer,
        calls: np.ndarray,
    ) -> KernelPredictions:
        launch = Launch(
            grid_blocks=base.grid_blocks.copy(),
            block_threads=base.block_threads.copy(),
            registers_per_thread=base.registers_per_thread.copy(),
            shared_bytes=base.shared_bytes.copy(),
        )
        streaming = is_streaming(table)
        achieved = base.occupancy_pct.copy()
        used = base.sm_util_pct.copy()
        occupancy_source = _words(len(table), "analytical")
        if self.occupancy is not None:
            learned = self.occupancy.predict_pct(launch, answer.duration_us, streaming, part)
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
            sequence = self._launches(
                int(calls[row]), gpu, part, bool(streaming[row]), answer.duration_us[row]
            )
            detail.sequence[row], detail.launches[row] = sequence, len(sequence)
            longest = max(sequence, key=lambda one: one.share)
            for name in ("grid_blocks", "block_threads", "registers_per_thread", "shared_bytes"):
                value = getattr(longest, name)
                getattr(launch, name)[row] = np.nan if value is None else value
            if any(one.kind == "kernel" and one.sm_util_pct is None for one in sequence):
                continue  # a launch without geometry: the rules' figure stays
            total = sum(one.share for one in sequence) or 1.0
            used[row] = sum(one.share * (one.sm_util_pct or 0.0) for one in sequence) / total
            achieved[row] = sum(one.share * (one.occupancy_pct or 0.0) for one in sequence) / total
            detail.sm_util_peak_pct[row] = max(one.sm_util_pct or 0.0 for one in sequence)
            detail.occupancy_peak_pct[row] = max(one.occupancy_pct or 0.0 for one in sequence)
            if all(one.occupancy_measured for one in sequence if one.kind == "kernel"):
                occupancy_source[row] = "measured"
        dram, l2 = bandwidth_pct(table, launch, answer.duration_us, gpu)
        return replace(
            base,
            duration_us=answer.duration_us,
            low_us=answer.duration_us * np.exp(-answer.width),
            high_us=answer.duration_us * np.exp(np.maximum(answer.width, answer.slower)),
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
        """The launches of a measured call, with utilisations calculated where no counter gave them."""
        lowering = self.lowering
        assert lowering is not None
        at = slice(int(lowering.first[call]), int(lowering.first[call + 1]))
        columns = {name: lowering.columns[name][at] for name in LAUNCH_COLUMNS}
        launch = _launch_of(columns)
        stream = np.full(len(launch.grid_blocks), streaming)
        achieved = occupancy(launch, part, streaming=stream)[1]
        if self.occupancy is not None:
            learned = self.occupancy.predict_pct(launch, columns["share"] * duration_us, stream, part)
            achieved = np.where(np.isfinite(learned), learned, achieved)
        counted = np.isfinite(columns["occupancy_pct"]) & (part is gpu)
        achieved = np.where(counted, columns["occupancy_pct"], achieved)
        used = sm_utilisation_pct(launch, part, of_sms=gpu.sms)
        told = np.isfinite(launch.grid_blocks)
        return tuple(
            MeasuredLaunch(
                kind=str(lowering.kind[at][i]),
                name=str(lowering.name[at][i]),
                share=float(columns["share"][i]),
                grid_blocks=_told(columns["grid_blocks"][i]),
                block_threads=_told(columns["block_threads"][i]),
                registers_per_thread=_told(columns["registers_per_thread"][i]),
                shared_bytes=_told(columns["shared_bytes"][i]),
                occupancy_pct=_told(achieved[i]) if told[i] else None,
                sm_util_pct=_told(used[i]) if told[i] else None,
                occupancy_measured=bool(counted[i]),
            )
            for i in range(len(told))
        )


def _launch_of(columns: Mapping[str, np.ndarray]) -> Launch:
    """Registers and shared memory that were not told count as none that limit."""
    return Launch(
        grid_blocks=columns["grid_blocks"],
        block_threads=columns["block_threads"],
        registers_per_thread=np.nan_to_num(columns["registers_per_thread"], nan=32.0),
        shared_bytes=np.nan_to_num(columns["shared_bytes"], nan=0.0),
    )


def _cold_width(table: KernelTable, gpu: GpuSpec, duration_us: np.ndarray) -> np.ndarray:
    """(rows,) log of how much longer a call may take than measured: repeats found operands in L2 where they fit there;
    inside a model other kernels have been at the L2 since, and what the call reads may have to come from DRAM."""
    read = table.columns["read_bytes"]
    written = table.columns["write_bytes"]
    from_dram_us = np.where(read + written <= gpu.l2_bytes, read / gpu.dram_bytes_per_s * 1e6, 0.0)
    return np.asarray(np.minimum(np.log1p(from_dram_us / duration_us), _WIDEST))


def _told(value: float) -> float | None:
    if np.isfinite(value):
        return float(value)
    return None


def _words(count: int, word: str) -> np.ndarray:
    result = np.empty(count, dtype=object)
    result[:] = word
    return result


def _width(predictions: KernelPredictions) -> np.ndarray:
    """90 % half-widths of log(time); 0 where there is no time."""
    runs = predictions.duration_us > 0
    ratio = np.divide(predictions.high_us, predictions.duration_us, out=np.ones(len(runs)), where=runs)
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
    """What is known of the whole GPU so far, per kernel; filled from the least to the most certain. ``slower``: how far
    the interval reaches upwards at least, where that is more than ``width``."""

    duration_us: np.ndarray
    width: np.ndarray
    slower: np.ndarray
    trained: np.ndarray
    inside: np.ndarray
    source: np.ndarray

    @classmethod
    def of_base(cls, base: KernelPredictions, name: str) -> _Answer:
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
