"""Show GPU specifications to people: one line each, or every figure of one with unit and source."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from gkestimator.core.records import frozen
from gkestimator.hardware.gpus import GpuSpec
from gkestimator.tables.layout import TextColumn, printable, text_table
from gkestimator.tables.units import UNKNOWN, number_text

_GIB = 2**30
_LINE = 100


@frozen
class _Shown:
    """Hold the ending of a field's name, the unit it is shown in, and how many of its own unit that is."""

    ending: str
    unit: str
    size: float


_SHOWN = (
    _Shown(ending="_flops_per_s", unit="TFLOP/s", size=1e12),
    _Shown(ending="_bytes_per_s", unit="GB/s", size=1e9),
    _Shown(ending="memory_bytes", unit="GiB", size=2**30),
    _Shown(ending="memory_visible_bytes", unit="MiB", size=2**20),
    _Shown(ending="l2_bytes", unit="MiB", size=2**20),
    _Shown(ending="_mhz", unit="MHz", size=1),
    _Shown(ending="_w", unit="W", size=1),
    _Shown(ending="_per_hour_usd", unit="USD/h", size=1),
    _Shown(ending="bytes_per_sm", unit="KiB/SM", size=2**10),
    _Shown(ending="bytes_per_block_max", unit="KiB/block", size=2**10),
)
_WORDS = ("GPU", "architecture", "as of")
_TEXTS = ("name", "aliases", "short_names", "architecture", "note", "sources", "unknown")


def _peak(spec: GpuSpec, precision: str) -> str:
    rate = spec.peak_flops_per_s.get(precision)
    if rate is None:
        return UNKNOWN
    return number_text(rate / 1e12)


def _price(spec: GpuSpec) -> str:
    if spec.price_per_hour_usd is None:
        return UNKNOWN
    return f"{spec.price_per_hour_usd:.2f}"


def overview(specs: Sequence[GpuSpec]) -> str:
    """Return a table of all ``specs``, in the order given."""
    rows: list[dict[str, str]] = []
    for spec in specs:
        row = {
            "GPU": spec.name,
            "architecture": spec.architecture.split(" (")[0],
            "SMs": str(spec.sms),
            "GiB": number_text(spec.memory_visible_bytes / _GIB),
            "GB/s": number_text(spec.dram_bytes_per_s / 1e9, digits=4),
        }
        for precision in ("fp32", "tf32", "fp16", "int8"):
            row[precision] = _peak(spec, precision)
        row["USD/h"] = _price(spec)
        row["as of"] = spec.price_date or UNKNOWN
        rows.append(row)
    columns = []
    for heading in rows[0] if rows else ():
        cells = [row[heading] for row in rows]
        if heading == "architecture":
            shrink = 8
        else:
            shrink = None
        columns.append(TextColumn(heading=heading, cells=cells, right=heading not in _WORDS, shrink=shrink))
    notes = "GiB: memory visible to programs. Peaks: dense TFLOP/s (int8 TOP/s). Sources: gkest gpus NAME."
    return "\n".join([*text_table(columns), "", notes]) + "\n"


def _figures(spec: GpuSpec) -> list[tuple[str, str, str]]:
    """Return the name, the value and the source of every figure."""
    figures: list[tuple[str, str, str]] = []
    for member in fields(spec):
        name = member.name
        if name in _TEXTS:
            continue
        value: Any = getattr(spec, name)
        entries = {name: value}
        if isinstance(value, Mapping):
            entries = {f"{name}.{key}": figure for key, figure in value.items()}
            entries |= {entry: None for entry in sorted(spec.unknown) if entry.startswith(f"{name}.")}
        elif name in spec.unknown:
            entries = _unsure_clock(spec, value)
        for entry, figure in entries.items():
            source = spec.sources.get(entry) or spec.sources.get(name) or UNKNOWN
            figures.append((entry, _figure_text(name, figure), source))
    return figures


def _unsure_clock(spec: GpuSpec, clock_mhz: float) -> dict[str, float | None]:
    """Return the boost clock as unknown beside the tensor clock that stands for it."""
    entries: dict[str, float | None] = {"boost_clock_mhz": None}
    if "tensor_clock_mhz" in spec.sources:
        entries["tensor_clock_mhz"] = clock_mhz
    return entries


def _figure_text(name: str, value: Any) -> str:
    if value is None:
        return UNKNOWN
    if isinstance(value, tuple):
        return ".".join(map(str, value))
    if not isinstance(value, int | float):
        return str(value)
    for shown in _SHOWN:
        if name.endswith(shown.ending):
            return f"{value / shown.size:,.6g} {shown.unit}"
    return f"{value:,.6g}"


def describe(spec: GpuSpec) -> str:
    """Return every figure of ``spec`` with its unit and its source."""
    figures = _figures(spec)
    lines = [f"{spec.name}, {spec.architecture}"]
    if spec.aliases:
        lines.append("also called " + ", ".join(spec.aliases))
    if spec.note:
        lines.append(spec.note)
    lines.append("")
    names = max(len(f[0]) for f in figures)
    values = max(len(f[1]) for f in figures)
    margin = " " * (names + values + 4)
    for name, value, source in figures:
        wrapped = textwrap.wrap(printable(source), width=_LINE - len(margin)) or [""]
        lines.append(f"{name:<{names}}  {value:>{values}}  {wrapped[0]}".rstrip())
        lines.extend(margin + rest for rest in wrapped[1:])
    return "\n".join(lines) + "\n"
