"""Give ``measured_gpu.py`` operators of kernel datasets: their sizes, parts of them, errors of single estimates."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from gkestimator.bundles.bundle import Bundle, load_bundle
from gkestimator.core.errors import UsageError
from gkestimator.core.kernels import Kernel, KernelTable
from gkestimator.evaluation.metrics import absolute_errors_pct
from gkestimator.hardware.gpus import GpuSpec, gpu_catalogue
from gkestimator.tables import KERNEL_DATASET, KernelMeasurement, read_table, write_table
from gkestimator.training.calls import DOMINATED, MeasuredCall, read_calls
from gkestimator.training.dataset_rows import dataset_files, specification_files
from gkestimator.training.rows import size_hash

__all__ = [
    "Errors",
    "Operators",
    "Split",
    "judged",
    "read_operators",
    "sizes_of",
    "split",
    "without",
    "write_part",
]

SEVERAL = "several kernels"
"""The family of a call of which no kernel takes nearly all of the time."""


def sizes_of(kernels: Sequence[Kernel]) -> np.ndarray:
    """A number per kernel, equal for kernels of one family and one size, whatever operator and precision."""
    table = KernelTable.from_kernels(kernels)
    columns = {**table.columns, "element_bytes": np.ones(len(table))}
    return size_hash(replace(table, columns=columns))


@dataclass(frozen=True, kw_only=True)
class Operators:
    """What the datasets hold of one GPU. ``measured``: distinct operators of which every launch is of quality ok;
    ``counted``: those of them with achieved occupancy by counters; ``calls``: what training and estimates can use, each
    ``found_in`` a file; ``skipped``: what they cannot, by reason."""

    files: tuple[Path, ...]
    specs: tuple[Path, ...]
    gpu: GpuSpec
    entries: int
    measured: int
    counted: int
    calls: tuple[MeasuredCall, ...]
    found_in: tuple[Path, ...]
    skipped: Mapping[str, int]

    @cached_property
    def sizes(self) -> tuple[frozenset[float], ...]:
        """Of every call, the sizes of its kernels."""
        found = sizes_of([kernel for call in self.calls for kernel in call.kernels])
        parts = np.split(found, np.cumsum([len(call.kernels) for call in self.calls])[:-1])
        return tuple(frozenset(part.tolist()) for part in parts)

    @cached_property
    def main(self) -> tuple[tuple[str, float], ...]:
        """Of every call, the family of the kernel that takes nearly all of its time by the package's bundle (else
        ``SEVERAL``), and the size of its longest kernel."""
        kernels = [kernel for call in self.calls for kernel in call.kernels]
        times = load_bundle().predict(KernelTable.from_kernels(kernels), self.gpu).duration_us
        sizes, at, found = sizes_of(kernels), 0, []
        for call in self.calls:
            each = slice(at, at + len(call.kernels))
            at = each.stop
            longest = int(np.argmax(times[each]))
            alone = times[each][longest] >= DOMINATED * times[each].sum()
            family = call.kernels[longest].family.value if alone else SEVERAL
            found.append((family, float(sizes[each][longest])))
        return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Places of calls: ``train``, ``test``, and ``neither``: they hold a size that a call of the other side has."""

    train: tuple[int, ...]
    test: tuple[int, ...]
    neither: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Of calls (arrays of one length): the family, what was measured and what was estimated. Times in us, occupancy and
    SM utilisation in percent, NaN where it was not measured. ``roofline_us``: of the call's kernels together."""

    family: np.ndarray
    precision: np.ndarray
    measured_us: np.ndarray
    roofline_us: np.ndarray
    estimated_us: np.ndarray
    low_us: np.ndarray
    high_us: np.ndarray
    occupancy: np.ndarray
    estimated_occupancy: np.ndarray
    sm_util: np.ndarray
    estimated_sm_util: np.ndarray

    def errors_pct(self, roofline: bool = False) -> np.ndarray:
        """Absolute percentage errors of the estimates or of the roofline."""
        return absolute_errors_pct(self.roofline_us if roofline else self.estimated_us, self.measured_us)

    @property
    def inside(self) -> np.ndarray:
        """Which measurements lie in the 90 % interval."""
        return np.asarray((self.low_us <= self.measured_us) & (self.measured_us <= self.high_us))


def read_operators(paths: Sequence[Path], specs: Sequence[Path]) -> Operators:
    """The operators in kernel datasets (files or folders), all of one GPU. Raises TableError, UsageError."""
    files = tuple(file for path in paths for file in dataset_files(path))
    every = list(dict.fromkeys([*specs, *(found for path in paths for found in specification_files(path))]))
    catalogue = gpu_catalogue(every)
    ok: dict[tuple[Path, str, str], bool] = {}  # by where an operator was measured, under which runtime
    counted: set[tuple[Path, str, str]] = set()
    calls: dict[str, tuple[MeasuredCall, Path]] = {}
    skipped: Counter[str] = Counter()
    gpus: dict[str, GpuSpec] = {}
    for file in files:
        for row in read_table(file, KERNEL_DATASET):
            key = (file, row.runtime, row.entry_id)
            ok[key] = ok.get(key, True) and row.quality == "ok"
            if row.achieved_occupancy_pct is not None:
                counted.add(key)
        found = read_calls(file, catalogue)
        gpus |= found.gpus
        for reasons in found.skipped.values():
            skipped.update(reasons)
        for call in found.calls:
            calls.setdefault(f"{call.runtime} {call.entry_id}", (call, file))
    if len(gpus) != 1:
        named = ", ".join(sorted(gpus)) or "none"
        raise UsageError(f"{files[0] if files else paths[0]}: found operators of {named}; expected one GPU")
    (gpu,) = gpus.values()
    if not calls:
        words = "; ".join(f"{n} {reason}" for reason, n in skipped.most_common()) or "no row"
        raise UsageError(
            f"{files[0]}: holds no operator call that an estimate can be compared with ({words})"
        )
    ordered = [calls[key] for key in sorted(calls)]
    return Operators(
        files=files,
        specs=tuple(every),
        gpu=gpu,
        entries=len({entry for _, _, entry in ok}),
        measured=len({key[2] for key, good in ok.items() if good}),
        counted=len({key[2] for key in counted if ok[key]}),
        calls=tuple(call for call, _ in ordered),
        found_in=tuple(file for _, file in ordered),
        skipped=dict(skipped.most_common()),
    )


def split(operators: Operators, *, share: float, seed: int) -> Split:
    """Leave out ``share`` of the sizes, drawn by a hash of size and ``seed``. Tested are the calls whose longest kernel
    has such a size; no call that holds any size of a tested one is trained on."""

    def left_out(size: float) -> bool:
        return zlib.crc32(f"{seed} {size!r}".encode()) / 2**32 < share

    test = [i for i, (_, size) in enumerate(operators.main) if left_out(size)]
    hidden = frozenset(size for i in test for size in operators.sizes[i])
    tested = frozenset(test)
    rest = [i for i in range(len(operators.calls)) if i not in tested]
    return Split(
        train=tuple(i for i in rest if not operators.sizes[i] & hidden),
        test=tuple(test),
        neither=tuple(i for i in rest if operators.sizes[i] & hidden),
    )


def without(operators: Operators, sizes: Collection[float]) -> tuple[int, ...]:
    """Places of the calls that hold none of ``sizes``."""
    gone = frozenset(sizes)
    return tuple(i for i, found in enumerate(operators.sizes) if not found & gone)


def write_part(operators: Operators, places: Sequence[int], folder: Path) -> list[Path]:
    """Datasets of the calls at ``places`` alone, with the GPU's specification beside the first; none where there is no
    call. Of an operator that several datasets hold the one that was read counts: nothing says that another's has the
    same sizes."""
    wanted = {
        (operators.found_in[i], operators.calls[i].runtime, operators.calls[i].entry_id) for i in places
    }
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for number, file in enumerate(operators.files):
        rows: list[KernelMeasurement] = [
            row for row in read_table(file, KERNEL_DATASET) if (file, row.runtime, row.entry_id) in wanted
        ]
        if rows:
            target = folder / f"part{number}.parquet"
            write_table(KERNEL_DATASET, rows, target)
            written.append(target)
    return written


def judged(operators: Operators, places: Sequence[int], bundle: Bundle) -> Errors:
    """The calls at ``places`` as ``bundle`` estimates them: the sum over the kernels that the rules make of each, its
    interval from the sum of the lower to the sum of the upper ends (their errors taken as common)."""
    calls = [operators.calls[i] for i in places]
    columns: dict[str, np.ndarray] = {name: np.full(len(calls), np.nan) for name in _SUMS}
    for runtime in sorted({call.runtime for call in calls}):
        at = np.array([i for i, call in enumerate(calls) if call.runtime == runtime])
        kernels = [kernel for i in at for kernel in calls[i].kernels]
        first = np.concatenate([[0], np.cumsum([len(calls[i].kernels) for i in at])[:-1]]).astype(int)
        p = bundle.under(runtime).predict(KernelTable.from_kernels(kernels), operators.gpu)
        values = (
            p.duration_us,
            p.low_us,
            p.high_us,
            p.roofline_us,
            p.duration_us * p.occupancy_pct,
            p.duration_us * p.sm_util_pct,
        )
        for name, value in zip(_SUMS, values, strict=True):
            columns[name][at] = np.add.reduceat(value, first)
    total = columns["duration"]
    return Errors(
        family=np.array([operators.main[i][0] for i in places], dtype=object),
        precision=np.array([operators.calls[i].rows[0].dtype for i in places], dtype=object),
        measured_us=np.array([call.total_us for call in calls]),
        roofline_us=columns["roofline"],
        estimated_us=total,
        low_us=columns["low"],
        high_us=columns["high"],
        occupancy=np.array([_weighted(call, "achieved_occupancy_pct") for call in calls]),
        estimated_occupancy=columns["occupancy"] / total,
        sm_util=np.array([_weighted(call, "sm_util_pct") for call in calls]),
        estimated_sm_util=columns["sm_util"] / total,
    )


_SUMS = ("duration", "low", "high", "roofline", "occupancy", "sm_util")


def _weighted(call: MeasuredCall, name: str) -> float:
    """Mean over the call's kernels by their time; NaN unless it was measured of each."""
    kernels = [row for row in call.rows if row.kind == "kernel"]
    values = [getattr(row, name) for row in kernels]
    if not values or any(value is None for value in values):
        return float("nan")
    return float(np.average(values, weights=[row.duration_us or 0.0 for row in kernels]))
