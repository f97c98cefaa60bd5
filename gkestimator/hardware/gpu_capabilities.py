"""Read capability files: what every GPU of one compute capability shares, written once in
``datasets/gpus/capabilities/sm_XY.toml``.

A capability file holds the limits of a streaming multiprocessor (SM), the arithmetic rates per SM and clock, and the
bounds that the figures of a board of that capability must keep (:mod:`gkestimator.hardware.gpu_checks`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from fractions import Fraction
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from gkestimator.core.errors import SpecError
from gkestimator.core.records import frozen
from gkestimator.core.specfiles import BYTES, COUNT, Quantity, SpecReader, read_spec

_WHAT = "GPU capability file"
_FORM = re.compile(r"([0-9]{1,2})\.([0-9])")
# Multiples of the fp32 rate in the table "Throughput of Native Arithmetic Instructions"; of 8-bit integers DP4A's.
_RATIOS = {
    "fp64": ("1/2", "1/3", "1/4", "1/8", "1/24", "1/32", "1/64"),
    "fp16": ("1", "2", "4"),
    "bf16": ("1", "2", "4"),
    "int8": ("4",),
}
_COUNT = Quantity(units=COUNT, low=1, high=2**22, integer=True)
_SIZE = Quantity(units=BYTES, low=2**12, high=2**24, integer=True)
# 32 (Fermi) to 192 (Kepler) have been built.
_CORES = Quantity(units=COUNT, low=32, high=256, integer=True)
_LIMITS: Mapping[str, Quantity] = {
    "cuda_cores_per_sm": _CORES,
    "registers_per_sm": _COUNT,
    "shared_bytes_per_sm": _SIZE,
    "shared_bytes_per_block_max": _SIZE,
    "warps_per_sm": _COUNT,
    "blocks_per_sm": _COUNT,
    "threads_per_block_max": _COUNT,
}


@frozen
class VectorRate:
    """Hold the rate of the CUDA cores in one precision as a multiple of fp32's, with its source.

    ``peak_source`` is the source that the peak rate names where no tensor core calculates in that precision.
    """

    ratio: float
    source: str
    peak_source: str


@frozen
class Capability:
    """Hold what every GPU of one compute capability shares.

    ``limits`` are in base units (counts, bytes); ``figures`` are the same entries as they stand in the file, with
    unit and source. ``tensor`` is in dense operations per clock and SM (a multiply-add counts as two) with 32-bit
    accumulation. ``l2_kib_per_bus_bit`` and ``watts_per_tflops`` (board power over the fp32 rate) are the least and
    the most among boards.
    """

    version: tuple[int, int]
    architecture: str
    limits: Mapping[str, int] = field(hash=False)
    figures: Mapping[str, Mapping[str, Any]] = field(hash=False)
    vector: Mapping[str, VectorRate] = field(hash=False)
    tensor: Mapping[str, int] = field(hash=False)
    l2_kib_per_bus_bit: tuple[float, float]
    watts_per_tflops: tuple[float, float]


def packaged_folder() -> Path:
    """Return the folder of the capability files that come with the package."""
    return Path(str(files("gkestimator.datasets"))) / "gpus" / "capabilities"


def _file_name(version: tuple[int, int]) -> str:
    return f"sm_{version[0]}{version[1]}.toml"


@lru_cache(maxsize=64)
def capability_of(version: tuple[int, int]) -> Capability | None:
    """Return the packaged capability ``version`` (major, minor), or None where the package has no file of it."""
    path = packaged_folder() / _file_name(version)
    if path.is_file():
        return load_capability(path)
    return None


def packaged_capabilities() -> tuple[Capability, ...]:
    """Return every packaged capability, the oldest first. Raises SpecError for a bad file."""
    capabilities = [load_capability(path) for path in packaged_folder().glob("sm_*.toml")]
    return tuple(sorted(capabilities, key=lambda capability: capability.version))


def find_capability(text: str, folder: Path) -> Capability | None:
    """Return the capability ``text`` (``8.0``) from the package, else from ``folder``/capabilities, else None.

    Raises SpecError for a bad file.
    """
    match = _FORM.fullmatch(text)
    if match is None:
        return None
    version = int(match[1]), int(match[2])
    packaged = capability_of(version)
    own = folder / "capabilities" / _file_name(version)
    if packaged is None and own.is_file():
        return load_capability(own)
    return packaged


def load_capability(path: Path) -> Capability:
    """Read one capability file. Raises SpecError, one line that names the file and the field."""
    reader = SpecReader(path, read_spec(path, what=_WHAT), what=_WHAT)
    reader.schema_version(1)
    text = reader.text("capability")
    match = _FORM.fullmatch(text)
    if match is None or path.name != _file_name((int(match[1]), int(match[2]))):
        raise reader.fail("capability", f"is {text!r}, expected the one that the file is named after")
    figures = reader.table("limits")
    limits = {}
    for name, quantity in _LIMITS.items():
        limits[name] = int(reader.number_of(figures.get(name), f"limits.{name}", quantity))
    capability = Capability(
        version=(int(match[1]), int(match[2])),
        architecture=reader.text("architecture"),
        limits=limits,
        figures={name: figures[name] for name in _LIMITS},
        vector=_vector_rates(reader),
        tensor=_tensor(reader),
        l2_kib_per_bus_bit=_bounds(reader, "l2_kib_per_bus_bit", spread=2),
        watts_per_tflops=_bounds(reader, "watts_per_tflops", spread=4),
    )
    reader.finish()
    problem = limits_problem(capability.limits) or _rates_problem(capability)
    if problem is not None:
        raise reader.fail(*problem)
    return capability


def limits_problem(limits: Mapping[str, float]) -> tuple[str, str] | None:
    """Return the first limit of an SM that the others contradict and the message, or None.

    The ranges are those of the tables "Technical Specifications per Compute Capability" from 3.0 to 12.0, widened:
    32 to 64 registers a thread, 1 or 2 blocks of the largest size, 2 to 4 warps a block, and shared memory of 0.19 to
    0.89 times the register file, of which a block gets 0.43 or more.
    """
    threads = 32 * limits["warps_per_sm"]
    ratios = (
        ("registers_per_sm", "warps_per_sm x 32 threads", limits["registers_per_sm"] / threads, 20.0, 100.0),
        (
            "threads_per_block_max",
            "warps_per_sm x 32 threads",
            limits["threads_per_block_max"] / threads,
            0.2,
            1.0,
        ),
        ("blocks_per_sm", "warps_per_sm", limits["blocks_per_sm"] / limits["warps_per_sm"], 0.125, 1.0),
        (
            "shared_bytes_per_sm",
            "registers_per_sm x 4 bytes",
            limits["shared_bytes_per_sm"] / (4 * limits["registers_per_sm"]),
            0.1,
            1.5,
        ),
        (
            "shared_bytes_per_block_max",
            "shared_bytes_per_sm",
            limits["shared_bytes_per_block_max"] / limits["shared_bytes_per_sm"],
            0.2,
            1.0,
        ),
    )
    for name, other, ratio, least, most in ratios:
        if not least <= ratio <= most:
            return name, f"is {limits[name]:g}, {ratio:.3g} of {other}, expected {least:g} to {most:g}"
    return None


def _rates_problem(capability: Capability) -> tuple[str, str] | None:
    """Return the first rate that the others contradict and the message, or None.

    NVIDIA's white papers have each narrower type of a tensor core at twice the rate of the next wider, and fp64 at
    twice the CUDA cores'.
    """
    tensor = capability.tensor
    cores = 2 * capability.limits["cuda_cores_per_sm"]
    expected = {"tf32": 0.5, "bf16": 1.0, "fp8": 2.0, "int8": 2.0}
    for name, factor in expected.items():
        if name in tensor and "fp16" in tensor and tensor[name] != factor * tensor["fp16"]:
            return f"tensor_per_sm_clock.{name}", f"is {tensor[name]}, expected {factor:g} x fp16"
    if (
        "fp64" in tensor
        and "fp64" in capability.vector
        and tensor["fp64"] != 2 * capability.vector["fp64"].ratio * cores
    ):
        return "tensor_per_sm_clock.fp64", f"is {tensor['fp64']}, expected twice the CUDA cores' fp64 rate"
    for name, least, most in (("fp16", 3, 40), ("int8", 6, 80)):
        if name in tensor and not least * cores <= tensor[name] <= most * cores:
            return (
                f"tensor_per_sm_clock.{name}",
                f"is {tensor[name]}, expected {least} to {most} times the CUDA cores' {cores}",
            )
    return None


def _vector_rates(reader: SpecReader) -> dict[str, VectorRate]:
    table = reader.table("vector")
    return {name: _vector(reader, name, entry) for name, entry in table.items()}


def _vector(reader: SpecReader, name: str, entry: object) -> VectorRate:
    where = f"vector.{name}"
    needed = {"ratio", "source"}
    if not isinstance(entry, dict) or not needed <= set(entry) <= needed | {"peak_source"}:
        raise reader.fail(where, "is no table of ratio, source and optionally peak_source")
    texts = {key: str(value) for key, value in entry.items()}
    ratio = texts["ratio"]
    source = texts["source"]
    ratios = _RATIOS.get(name, ("no such precision",))
    if ratio not in ratios:
        raise reader.fail(where, f"has the ratio {ratio[:20]!r}, expected {', '.join(ratios)}")
    peak_source = texts.get("peak_source", f"CUDA cores: {source}")
    return VectorRate(ratio=float(Fraction(ratio)), source=source, peak_source=peak_source)


def _tensor(reader: SpecReader) -> dict[str, int]:
    table = reader.table("tensor_per_sm_clock")
    for name, rate in table.items():
        if type(rate) is not int or not 1 <= rate <= 2**20:
            raise reader.fail(
                f"tensor_per_sm_clock.{name}", f"is {rate!r}, expected a whole number up to 2^20"
            )
    return table


def _bounds(reader: SpecReader, name: str, *, spread: float) -> tuple[float, float]:
    """Return a range, refused where it is so wide that a figure ten times off could lie in it once it is widened."""
    table = reader.table(name)
    least = table.get("least")
    most = table.get("most")
    if set(table) != {"least", "most", "source"}:
        raise reader.fail(name, "is no table of least, most and source")
    if not isinstance(least, int | float) or not isinstance(most, int | float) or not 0 < least <= most:
        raise reader.fail(name, f"has least {least!r} and most {most!r}, expected two rising numbers above 0")
    if most > spread * least:
        raise reader.fail(
            name, f"has least {least:g} and most {most:g}, expected at most {spread:g} times the least"
        )
    return float(least), float(most)


def unknown_capability(path: Path, text: str) -> SpecError:
    """Return the error for a board whose capability has no file."""
    known = sorted(p.stem for p in packaged_folder().glob("sm_*.toml"))
    return SpecError(
        f"{path}: [capability] is {text!r}, expected one with a capability file ({', '.join(known)}, or your own in "
        f"{path.parent / 'capabilities'})"
    )
