"""The specification of one GPU type, and the strict reader of its TOML file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gkestimator import specfiles as files
from gkestimator.dtypes import Precision
from gkestimator.errors import UsageError
from gkestimator.specfiles import Quantity, SpecReader

__all__ = ["GpuSpec", "load_gpu_file"]

WHAT = "GPU specification"
SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSpec:
    """One GPU type. Rates are dense peaks per second; sizes bytes; clocks MHz; price USD per GPU-hour on
    demand.

    ``peak_flops_per_s`` maps a precision (``fp32``, ``tf32``, ``fp16``, ``bf16``, ``fp8``, ``int8``,
    ``fp64``) to the peak of the units that calculate it at the boost clock: tensor cores where they exist,
    else the CUDA cores; a precision that the hardware lacks is absent. ``vector_flops_per_s`` is the same for
    the CUDA cores alone (elementwise work). ``base_clock_mhz`` is None where the vendor publishes none.
    ``price_per_hour_usd`` and ``price_date`` are None where no cloud sells the type. ``pcie_bytes_per_s`` is
    one direction's. ``dram_sustained_bytes_per_s`` is a published measurement of what streaming kernels reach
    (None: none is known). ``sources`` maps each field (``peak_flops_per_s.fp16`` for an entry of a mapping) to
    where its figure is from.
    """

    name: str
    aliases: tuple[str, ...]
    architecture: str
    compute_capability: tuple[int, int]
    sms: int
    cuda_cores_per_sm: int
    base_clock_mhz: float | None
    boost_clock_mhz: float
    peak_flops_per_s: Mapping[str, float] = field(hash=False)
    vector_flops_per_s: Mapping[str, float] = field(hash=False)
    dram_bytes_per_s: float
    l2_bytes: int
    memory_bytes: int
    memory_visible_bytes: int
    registers_per_sm: int
    shared_bytes_per_sm: int
    shared_bytes_per_block_max: int
    warps_per_sm: int
    blocks_per_sm: int
    threads_per_block_max: int
    pcie_bytes_per_s: float
    power_limit_w: float
    price_per_hour_usd: float | None
    price_date: str | None
    sources: Mapping[str, str] = field(hash=False)
    note: str = ""
    short_names: tuple[str, ...] = ()
    dram_sustained_bytes_per_s: float | None = None

    @property
    def stands_in(self) -> bool:
        """Whether this is a CPU described as a GPU, to try profiling without one (``gkest profile build`` writes it):
        launch geometry, occupancy and SM utilisation then mean nothing."""
        return self.architecture == "CPU"

    def peak(self, precision: Precision | str) -> float:
        """Peak FLOP/s of matrix work in ``precision``. Raises UsageError where the hardware lacks it."""
        found = self.peak_flops_per_s.get(str(precision))
        if found is None:
            known = ", ".join(self.peak_flops_per_s)
            raise UsageError(f"{self.name} has no {precision} arithmetic (it has {known})")
        return found

    def vector(self, precision: Precision | str) -> float:
        """Peak FLOP/s of the CUDA cores; a type they do not calculate in is converted to fp32 first."""
        return self.vector_flops_per_s.get(str(precision), self.vector_flops_per_s["fp32"])


def _count(low: float, high: float) -> Quantity:
    return Quantity(units=files.COUNT, low=low, high=high, integer=True)


def _bytes(low: float, high: float) -> Quantity:
    return Quantity(units=files.BYTES, low=low, high=high, integer=True)


_CLOCK = Quantity(units=files.CLOCK, low=100, high=10_000)
_BASE_CLOCK = Quantity(units=files.CLOCK, low=100, high=10_000, nullable=True)
_FLOPS = Quantity(units=files.FLOP_RATE, low=1e9, high=1e18)
_OPS = Quantity(units=files.INT_RATE, low=1e9, high=1e18)
_RATE = Quantity(units=files.BYTE_RATE, low=1e8, high=1e15)
_PRICE = Quantity(units=files.PRICE, low=0.01, high=1000, nullable=True, extra=("date",))
_PER_PRECISION = {p.value: _OPS if p is Precision.INT8 else _FLOPS for p in Precision}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+-]{0,62}[A-Za-z0-9]")
_DATE = re.compile(r"20[0-9]{2}-(0[1-9]|1[0-2])(-(0[1-9]|[12][0-9]|3[01]))?")


def load_gpu_file(path: Path | str) -> GpuSpec:
    """Read one specification file (TOML, at most 64 KiB). Raises SpecError naming the file and the field.

    The file is checked field by field (no unknown key, the right unit, a source, a sane range) and against
    itself: the fp32 vector peak must be 2 x SMs x cores x boost clock, the bandwidth bus width x pin rate
    where both are given.
    """
    path = Path(path)
    reader = SpecReader(
        path, files.parse_spec(path, files.read_spec_text(path, what=WHAT), what=WHAT), what=WHAT
    )
    reader.schema_version(SCHEMA_VERSION)
    price, price_texts = reader.figure("price_per_hour_usd", _PRICE)
    spec = GpuSpec(
        name=reader.text("name"),
        aliases=reader.texts("aliases"),
        short_names=reader.texts("short_names"),
        architecture=reader.text("architecture"),
        note=reader.text("note", default=""),
        compute_capability=_compute_capability(reader),
        sms=reader.integer("sms", _count(1, 4096)),
        cuda_cores_per_sm=reader.integer("cuda_cores_per_sm", _count(8, 1024)),
        base_clock_mhz=reader.figure("base_clock_mhz", _BASE_CLOCK)[0],
        boost_clock_mhz=reader.number("boost_clock_mhz", _CLOCK),
        peak_flops_per_s=reader.numbers("peak_flops_per_s", _PER_PRECISION),
        vector_flops_per_s=reader.numbers("vector_flops_per_s", _PER_PRECISION),
        dram_bytes_per_s=reader.number("dram_bytes_per_s", _RATE),
        dram_sustained_bytes_per_s=(
            reader.number("dram_sustained_bytes_per_s", _RATE)
            if reader.has("dram_sustained_bytes_per_s")
            else None
        ),
        l2_bytes=reader.integer("l2_bytes", _bytes(2**16, 2**34)),
        memory_bytes=reader.integer("memory_bytes", _bytes(2**28, 2**44)),
        memory_visible_bytes=reader.integer("memory_visible_bytes", _bytes(2**28, 2**44)),
        registers_per_sm=reader.integer("registers_per_sm", _count(1024, 2**22)),
        shared_bytes_per_sm=reader.integer("shared_bytes_per_sm", _bytes(2**12, 2**24)),
        shared_bytes_per_block_max=reader.integer("shared_bytes_per_block_max", _bytes(2**12, 2**24)),
        warps_per_sm=reader.integer("warps_per_sm", _count(1, 1024)),
        blocks_per_sm=reader.integer("blocks_per_sm", _count(1, 1024)),
        threads_per_block_max=reader.integer("threads_per_block_max", _count(32, 65536)),
        pcie_bytes_per_s=reader.number("pcie_bytes_per_s", _RATE),
        power_limit_w=reader.number("power_limit_w", Quantity(units=files.POWER, low=1, high=20_000)),
        price_per_hour_usd=price,
        price_date=None if price is None else price_texts["date"],
        sources=reader.sources,
    )
    if price is not None and not _DATE.fullmatch(price_texts["date"]):
        raise reader.fail(
            "price_per_hour_usd.date", f"is {price_texts['date']!r}, expected YYYY-MM or YYYY-MM-DD"
        )
    _check_consistency(reader, spec)
    reader.finish()
    return spec


def _compute_capability(reader: SpecReader) -> tuple[int, int]:
    table = reader.table("compute_capability")
    value = table.get("value")
    match = re.fullmatch(r"([0-9]{1,2})\.([0-9])", value) if isinstance(value, str) else None
    if match is None:
        raise reader.fail("compute_capability", "has no value of the form '8.0'")
    # The text is checked above; the common rules (keys, unit, source) see the number of its first digit.
    major = int(match[1])
    reader.figure_of({**table, "value": major}, "compute_capability", _count(1, 99))
    return major, int(match[2])


def _check_consistency(reader: SpecReader, spec: GpuSpec) -> None:
    """Figures that contradict each other: one of them is wrong, so none can be trusted."""
    if not _NAME.fullmatch(spec.name):
        raise reader.fail("name", f"is {spec.name!r}, expected 2 to 64 letters, digits, '.', '+' and '-'")
    for label, peaks in (("peak", spec.peak_flops_per_s), ("vector", spec.vector_flops_per_s)):
        if "fp32" not in peaks:
            raise reader.fail(f"{label}_flops_per_s.fp32", "is missing, but is required")
    derived = 2.0 * spec.sms * spec.cuda_cores_per_sm * spec.boost_clock_mhz * 1e6
    stated = spec.vector_flops_per_s["fp32"]
    if abs(stated / derived - 1.0) > 0.05:
        raise reader.fail(
            "vector_flops_per_s.fp32",
            f"is {stated:.4g} FLOP/s, but 2 x SMs x cores x boost clock is {derived:.4g}",
        )
    for precision, rate in spec.vector_flops_per_s.items():
        if precision in spec.peak_flops_per_s and rate > 1.05 * spec.peak_flops_per_s[precision]:
            raise reader.fail(
                f"peak_flops_per_s.{precision}", "is below the vector rate of the same precision"
            )
    bus = reader.number("memory_bus_bits", _count(32, 65536)) if reader.has("memory_bus_bits") else None
    pin = Quantity(units=files.PIN_RATE, low=1e8, high=1e12)
    rate_per_pin = reader.number("memory_pin_rate", pin) if reader.has("memory_pin_rate") else None
    if bus is not None and rate_per_pin is not None:
        bandwidth = bus * rate_per_pin / 8.0
        if abs(spec.dram_bytes_per_s / bandwidth - 1.0) > 0.03:
            raise reader.fail(
                "dram_bytes_per_s",
                f"is {spec.dram_bytes_per_s:.4g} B/s, but bus width x pin rate is {bandwidth:.4g}",
            )
    sustained = spec.dram_sustained_bytes_per_s
    if sustained is not None and not 0.3 * spec.dram_bytes_per_s <= sustained <= spec.dram_bytes_per_s:
        raise reader.fail(
            "dram_sustained_bytes_per_s", f"is {sustained:.4g} B/s, expected 0.3 to 1 times dram_bytes_per_s"
        )
    if spec.base_clock_mhz is not None and spec.base_clock_mhz > spec.boost_clock_mhz:
        raise reader.fail("base_clock_mhz", "is above the boost clock")
    if spec.memory_visible_bytes > spec.memory_bytes:
        raise reader.fail("memory_visible_bytes", "is more than memory_bytes")
    if spec.shared_bytes_per_block_max > spec.shared_bytes_per_sm:
        raise reader.fail("shared_bytes_per_block_max", "is more than shared_bytes_per_sm")
