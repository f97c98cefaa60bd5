"""Measured entries to rows of the kernel dataset, launch geometry brought to occupancy on the way."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from math import prod
from typing import TypeAlias

import numpy as np

from gkestimator.hardware.gpus import GpuSpec
from gkestimator.kernel_models.launch import Launch as Geometry
from gkestimator.kernel_models.launch import occupancy, sm_utilisation_pct
from gkestimator.profiling.building.describing import Description
from gkestimator.profiling.building.entries import MeasuredEntry, RepeatedLaunch
from gkestimator.profiling.building.families import family_of
from gkestimator.profiling.captures import CapturedLaunch, Dim3
from gkestimator.profiling.type_names import Fields, NumberByName
from gkestimator.profiling.variation import coefficient_of_variation
from gkestimator.tables import KernelMeasurement

_OCCUPANCY = "sm__warps_active.avg.pct_of_peak_sustained_active"
_DRAM_SHARE = "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"
_L2_HITS = "lts__t_sector_hit_rate.pct"
_DRAM_BYTES = (
    ("dram__bytes.sum",),
    ("dram__bytes_read.sum", "dram__bytes_write.sum"),
    ("dram__bytes_op_read.sum", "dram__bytes_op_write.sum"),
)
_DESCRIBED = (
    *("op_type", "op_domain", "attributes", "opset", "graph", "input_shapes", "batch_size"),
    *("weight_bytes", "input_bytes", "output_bytes", "flops"),
)
_MEASURED = ("sm_clock_mhz", "power_w", "tenants", "entry_us", "repeats", "quality")
_ROUNDING_PCT = 0.5  # counters of several passes put a full pipe at 100.01 %


def rows_of(
    entries: Iterable[tuple[MeasuredEntry, Description, GpuSpec]],
) -> list[KernelMeasurement]:
    """Return one row per launch, entries in their order, kernels in launch order."""
    cells: list[Fields] = []
    geometries: dict[str, _Geometries] = {}
    for measured, description, gpu in entries:
        shared = _entry_cells(measured, description, gpu)
        count = len(measured.launches)
        alone = sum(m.kind in ("kernel", "host") for m in measured.launches) == 1
        known = all(m.name is not None for m in measured.launches)
        for index, launch in enumerate(measured.launches):
            row = shared | _launch_cells(launch, description)
            row |= {"kernel_index": index, "kernels_in_op": count if known else None}
            if alone and description.families and launch.kind in ("kernel", "host"):
                row["family"] = description.families[0].value  # it does the operator, whatever its name
            cells.append(row)
            if launch.launch is not None and launch.kind == "kernel":
                geometries.setdefault(gpu.name, _Geometries(gpu)).add(launch.launch, row)
    for each in geometries.values():
        each.finish()
    return [KernelMeasurement(**row) for row in cells]


class _Geometries:
    """Hold launches of one GPU whose geometry is wholly known; their occupancy is calculated at once."""

    def __init__(self, gpu: GpuSpec) -> None:
        self._gpu = gpu
        self._numbers: list[GeometryNumbers] = []
        self._rows: list[Fields] = []

    def add(self, launch: CapturedLaunch, row: Fields) -> None:
        numbers = geometry_numbers(launch)
        if numbers is not None:
            self._numbers.append(numbers)
            self._rows.append(row)

    def finish(self) -> None:
        """Write theoretical occupancy and SM utilisation into the rows."""
        if not self._rows:
            return
        geometry = geometry_of(self._numbers)
        theoretical, _ = occupancy(geometry, self._gpu)
        used = sm_utilisation_pct(geometry, self._gpu)
        for row, limit, share in zip(self._rows, theoretical.tolist(), used.tolist(), strict=True):
            row["theoretical_occupancy_pct"] = limit
            row["sm_util_pct"] = share


def _entry_cells(measured: MeasuredEntry, description: Description, gpu: GpuSpec) -> Fields:
    chunk = measured.chunk
    versions = measured.run.versions
    record = measured.record
    return {
        **_columns(description, _DESCRIBED),
        **_columns(measured, _MEASURED),
        **_columns(chunk, ("collector", "collector_version", "clock_control")),
        "entry_id": measured.entry.id,
        "gpu": gpu.name,
        "driver": chunk.device.driver,
        "cuda": chunk.device.cuda or versions.get("cuda"),
        "runtime": chunk.executor,
        "runtime_version": versions.get(chunk.executor),
        "library_versions": json.dumps(dict(sorted(versions.items()))),
        "dtype": measured.entry.dtype,
        "workspace_bytes": record.workspace_bytes,
        "host_us": statistics.median(record.host_us) if record.host_us else None,
    }


def _columns(record: object, names: Iterable[str]) -> Fields:
    return {name: getattr(record, name) for name in names}


def _launch_cells(measured: RepeatedLaunch, description: Description) -> Fields:
    launch = measured.launch
    cells: Fields = {
        "kernel_name": measured.name,
        "kind": measured.kind,
        "family": family_of(measured.name, measured.kind, description.families).value,
        "duration_us": measured.duration_us,
        "duration_cv": coefficient_of_variation(measured.durations_us),
    }
    if launch is not None:
        cells |= _columns(launch, ("registers_per_thread", "static_smem_bytes", "dynamic_smem_bytes"))
        cells |= {"grid": _triple(launch.grid), "block": _triple(launch.block)}
    return cells | _counters(measured.counters or {})


def _triple(sizes: Dim3 | None) -> str | None:
    return None if sizes is None else ",".join(map(str, sizes))


def _counters(counters: NumberByName) -> Fields:
    """Return the columns of ncu's metrics; a percentage beyond rounding is left out, as its counter cannot be
    believed."""
    cells: Fields = {}
    for metric, column in ((_OCCUPANCY, "achieved_occupancy_pct"), (_L2_HITS, "l2_hit_pct")):
        value = counters.get(metric)
        if value is not None and 0 <= value <= 100 + _ROUNDING_PCT:
            cells[column] = min(100.0, float(value))
    share = counters.get(_DRAM_SHARE)
    if share is not None and share >= 0:
        cells["dram_util_pct"] = float(share)
    for names in _DRAM_BYTES:
        if all(counters.get(n) is not None for n in names):
            cells["dram_bytes"] = round(sum(counters[n] for n in names))
            break
    return cells


# Blocks of the grid, threads of a block, registers of a thread, bytes of shared memory of a block.
GeometryNumbers: TypeAlias = "tuple[float, float, float, float]"


def geometry_numbers(launch: CapturedLaunch) -> GeometryNumbers | None:
    """Return those of a launch; None where one of them was not told."""
    shared = launch.smem_bytes
    if shared is None and launch.static_smem_bytes is not None and launch.dynamic_smem_bytes is not None:
        shared = launch.static_smem_bytes + launch.dynamic_smem_bytes
    registers = launch.registers_per_thread
    if launch.grid is None or launch.block is None or registers is None or shared is None:
        return None
    return _product(launch.grid), _product(launch.block), float(registers), float(shared)


def geometry_of(numbers: Sequence[GeometryNumbers]) -> Geometry:
    """Return several launches (at least one) as columns."""
    grid, block, registers, shared = np.array(numbers).T
    return Geometry(
        grid_blocks=grid, block_threads=block, registers_per_thread=registers, shared_bytes=shared
    )


def _product(sizes: Dim3) -> float:
    return float(prod(max(1, size) for size in sizes))
