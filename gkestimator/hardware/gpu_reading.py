"""Read strictly one GPU file (TOML), flat or a board on its capability file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gkestimator.core import specfiles as files
from gkestimator.core.dtypes import Precision
from gkestimator.core.specfiles import Quantity, SpecReader
from gkestimator.hardware.gpu_boards import BOARD_VERSION, expand_board
from gkestimator.hardware.gpu_checks import contradiction
from gkestimator.hardware.gpu_spec import FIGURES, GpuSheet, GpuSpec

WHAT = "GPU specification"
SCHEMA_VERSION = 1


def _count(low: float, high: float, *, nullable: bool = False) -> Quantity:
    return Quantity(units=files.COUNT, low=low, high=high, integer=True, nullable=nullable)


def _bytes(low: float, high: float, *, nullable: bool = False) -> Quantity:
    return Quantity(units=files.BYTES, low=low, high=high, integer=True, nullable=nullable)


_CLOCK = Quantity(units=files.CLOCK, low=100, high=10_000, nullable=True)
_FLOPS = Quantity(units=files.FLOP_RATE, low=1e9, high=1e18, nullable=True)
_OPS = Quantity(units=files.INT_RATE, low=1e9, high=1e18, nullable=True)
_RATE = Quantity(units=files.BYTE_RATE, low=1e8, high=1e15, nullable=True)
_PIN = Quantity(units=files.PIN_RATE, low=1e8, high=1e12, nullable=True)
_POWER = Quantity(units=files.POWER, low=1, high=20_000, nullable=True)
PRICE = Quantity(units=files.PRICE, low=0.01, high=1000, nullable=True, extra=("date",))
WHOLE: Mapping[str, Quantity] = {
    "sms": _count(1, 4096, nullable=True),
    "cuda_cores_per_sm": _count(8, 1024),
    "l2_bytes": _bytes(2**16, 2**34, nullable=True),
    "memory_bytes": _bytes(2**28, 2**44),
    "memory_visible_bytes": _bytes(2**28, 2**44, nullable=True),
    "registers_per_sm": _count(1024, 2**22),
    "shared_bytes_per_sm": _bytes(2**12, 2**24),
    "shared_bytes_per_block_max": _bytes(2**12, 2**24),
    "warps_per_sm": _count(1, 1024),
    "blocks_per_sm": _count(1, 1024),
    "threads_per_block_max": _count(32, 65536),
}
MEASURED: Mapping[str, Quantity] = {
    "base_clock_mhz": _CLOCK,
    "boost_clock_mhz": _CLOCK,
    "dram_bytes_per_s": _RATE,
    "pcie_bytes_per_s": _RATE,
    "power_limit_w": _POWER,
}
OPTIONAL: Mapping[str, Quantity] = {
    "memory_bus_bits": _count(32, 65536),
    "memory_pin_rate": _PIN,
    "dram_sustained_bytes_per_s": _RATE,
    "nvlink_bytes_per_s": _RATE,
    "tensor_clock_mhz": _CLOCK,
}
"""Figures that a file may leave out."""
PER_PRECISION = dict.fromkeys(map(str, Precision), _FLOPS) | {Precision.INT8.value: _OPS}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+-]{0,62}[A-Za-z0-9]")
_DATE = re.compile(r"20[0-9]{2}-(0[1-9]|1[0-2])(-(0[1-9]|[12][0-9]|3[01]))?")


def load_gpu_file(path: Path | str) -> GpuSpec:
    """Return the specification of :func:`load_gpu_sheet`. Raises SpecError as it does, UsageError for a file that says
    that a figure is unknown which every estimate needs."""
    return load_gpu_sheet(path).spec()


def load_gpu_sheet(path: Path | str) -> GpuSheet:
    """Read one specification file (TOML, at most 64 KiB). Raises SpecError naming the file and the field.

    Two forms are read: a flat file spells out every figure (``schema_version = 1``), a board file builds on the
    file of its compute capability (``schema_version = 2``, :mod:`gkestimator.hardware.gpu_boards`). Either is
    checked field by field (no unknown key, the right unit, a source, a sane range), and its figures are held
    to each other (:mod:`gkestimator.hardware.gpu_checks`). ``value = "unknown"`` is read as None.
    """
    path = Path(path)
    data = files.read_spec(path, what=WHAT)
    if data.get("schema_version") == BOARD_VERSION and type(data["schema_version"]) is int:
        data = {"schema_version": SCHEMA_VERSION} | expand_board(path, data)
    reader = SpecReader(path, data, what=WHAT)
    reader.schema_version(SCHEMA_VERSION)
    unknown: set[str] = set()
    values = _values(reader, unknown)
    sheet = GpuSheet(
        name=reader.text("name"),
        aliases=reader.texts("aliases"),
        short_names=reader.texts("short_names"),
        architecture=reader.text("architecture"),
        note=reader.text("note", default=""),
        values={name: values[name] for name in FIGURES},
        unknown=frozenset(unknown),
        sources=reader.sources,
    )
    if not _NAME.fullmatch(sheet.name):
        raise reader.fail("name", f"is {sheet.name!r}, expected 2 to 64 letters, digits, '.', '+' and '-'")
    bus = _optional(reader, "memory_bus_bits")
    pin = _optional(reader, "memory_pin_rate")
    problem = contradiction(sheet, bus_bits=bus, pin_bits_per_s=pin)
    if problem is not None:
        raise reader.fail(*problem)
    reader.finish()
    return sheet


def _values(reader: SpecReader, unknown: set[str]) -> dict[str, Any]:
    """Return every figure by its field, None where unknown, and add the names of unknown rates to ``unknown``."""
    values: dict[str, Any] = {"compute_capability": _compute_capability(reader)}
    values |= _price(reader)
    for name, quantity in WHOLE.items():
        count = reader.figure(name, quantity)[0]
        if count is not None:
            count = int(count)
        values[name] = count
    for name, quantity in MEASURED.items():
        values[name] = reader.figure(name, quantity)[0]
    if values["boost_clock_mhz"] is None and reader.has("tensor_clock_mhz"):
        unknown.add("boost_clock_mhz")
        values["boost_clock_mhz"] = reader.figure("tensor_clock_mhz", OPTIONAL["tensor_clock_mhz"])[0]
    for name in ("peak_flops_per_s", "vector_flops_per_s"):
        values[name] = _rates(reader, name, unknown)
    for name in ("dram_sustained_bytes_per_s", "nvlink_bytes_per_s"):
        values[name] = _optional(reader, name)
    return values


def _price(reader: SpecReader) -> dict[str, Any]:
    """Return the price and its date, which a price must have: prices change."""
    price, texts = reader.figure("price_per_hour_usd", PRICE)
    if price is None:
        return {"price_per_hour_usd": None, "price_date": None}
    if not _DATE.fullmatch(texts["date"]):
        raise reader.fail("price_per_hour_usd.date", f"is {texts['date']!r}, expected YYYY-MM or YYYY-MM-DD")
    return {"price_per_hour_usd": price, "price_date": texts["date"]}


def _rates(reader: SpecReader, field: str, unknown: set[str]) -> dict[str, float]:
    """Return the known rates of ``field`` by precision, and add the names of the others to ``unknown``."""
    known = {}
    for precision, rate in reader.figures(field, PER_PRECISION).items():
        if rate is None:
            unknown.add(f"{field}.{precision}")
        else:
            known[precision] = rate
    return known


def _optional(reader: SpecReader, field: str) -> float | None:
    if reader.has(field):
        return reader.figure(field, OPTIONAL[field])[0]
    return None


def _compute_capability(reader: SpecReader) -> tuple[int, int]:
    table = reader.table("compute_capability")
    value = table.get("value")
    if isinstance(value, str):
        match = re.fullmatch(r"([0-9]{1,2})\.([0-9])", value)
    else:
        match = None
    if match is None:
        raise reader.fail("compute_capability", "has no value of the form '8.0'")
    # The text is checked above; the common rules (keys, unit, source) see the number of its first digit.
    major = int(match[1])
    reader.figure_of({**table, "value": major}, "compute_capability", _count(1, 99))
    return major, int(match[2])
