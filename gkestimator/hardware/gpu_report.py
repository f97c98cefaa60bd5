"""Show GPU specifications to people: one line each, or every figure of one with unit and source."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from gkestimator.core.escaping import printable
from gkestimator.core.records import frozen
from gkestimator.hardware.gpus import GpuSheet
from gkestimator.tables.layout import TextColumn, text_table
from gkestimator.tables.units import number_text

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
_WORDS = ("GPU", "as of")
_DROP = {"as of": 1, "int8": 2, "tf32": 3, "SMs": 4}
_NONE = "–"
"""What the hardware lacks, and a price that is not known."""
_UNKNOWN = "unknown"
"""A figure that no source states."""


def overview(sheets: Sequence[GpuSheet]) -> str:
    """Return a table of all ``sheets``, those of one compute capability together, the newest last."""
    ordered = sorted(sheets, key=lambda sheet: (sheet.values["compute_capability"], sheet.name.casefold()))
    rows = [_row(sheet) for sheet in ordered]
    columns = []
    for heading in rows[0] if rows else ():
        cells = [row[heading] for row in rows]
        drop = _DROP.get(heading, 0)
        columns.append(TextColumn(heading=heading, cells=cells, right=heading not in _WORDS, drop=drop))
    lines = text_table(columns)
    parts = lines[:2]
    group = ""
    for sheet, line in zip(ordered, lines[2:], strict=False):
        if _group(sheet) != group:
            group = _group(sheet)
            parts += ["", group]
        parts.append(line)
    parts += lines[2 + len(ordered) :]  # which columns a narrow terminal does without
    notes = (
        "GiB: memory visible to programs. Peaks: dense TFLOP/s (int8 TOP/s). unknown: no source states it. –: the GPU\n"
        "lacks it, or no price with its month is known. Sources: gkest gpus NAME."
    )
    return "\n".join([*parts, "", notes]) + "\n"


def _group(sheet: GpuSheet) -> str:
    """Return the heading of a type's group: its architecture and compute capability."""
    generation = sheet.architecture.split(" (")[0]
    return f"{generation}, compute capability {_figure_text('', sheet.values['compute_capability'])}"


def _row(sheet: GpuSheet) -> dict[str, str]:
    """Return the cells of one type by heading."""
    sms = _UNKNOWN
    if sheet.values["sms"] is not None:
        sms = str(sheet.values["sms"])
    row = {
        "GPU": sheet.name,
        "SMs": sms,
        "GiB": _scaled(sheet, "memory_visible_bytes", _GIB),
        "GB/s": _scaled(sheet, "dram_bytes_per_s", 1e9, digits=4),
    }
    for precision in ("fp32", "tf32", "fp16", "int8"):
        row[precision] = _peak(sheet, precision)
    price = sheet.values["price_per_hour_usd"]
    row["USD/h"] = _NONE
    if price is not None:
        row["USD/h"] = f"{price:.2f}"
    row["as of"] = sheet.values["price_date"] or _NONE
    return row


def _scaled(sheet: GpuSheet, name: str, size: float, *, digits: int = 3) -> str:
    value = sheet.values[name]
    if value is None:
        return _UNKNOWN
    return number_text(value / size, digits=digits)


def _peak(sheet: GpuSheet, precision: str) -> str:
    rate = sheet.values["peak_flops_per_s"].get(precision)
    if rate is not None:
        return number_text(rate / 1e12)
    if f"peak_flops_per_s.{precision}" in sheet.unknown:
        return _UNKNOWN
    return _NONE


def _figures(sheet: GpuSheet) -> list[tuple[str, str, str]]:
    """Return the name, the value and the source of every figure."""
    figures: list[tuple[str, str, str]] = []
    for name, value in sheet.values.items():
        entries = {name: value}
        if isinstance(value, Mapping):
            entries = {f"{name}.{key}": figure for key, figure in value.items()}
            entries |= {entry: None for entry in sorted(sheet.unknown) if entry.startswith(f"{name}.")}
        elif name in sheet.unknown:  # the tensor clock stands for an unknown boost clock
            entries = {name: None, "tensor_clock_mhz": value}
        for entry, figure in entries.items():
            source = sheet.sources.get(entry) or sheet.sources.get(name) or ""
            figures.append((entry, _figure_text(entry, figure), source))
    return figures


def _figure_text(name: str, value: Any) -> str:
    if value is None:
        return _UNKNOWN
    if isinstance(value, tuple):
        return ".".join(map(str, value))
    if not isinstance(value, int | float):
        return str(value)
    for shown in _SHOWN:
        if name.split(".")[0].endswith(shown.ending):
            return f"{value / shown.size:,.6g} {shown.unit}"
    return f"{value:,.6g}"


def describe(sheet: GpuSheet) -> str:
    """Return every figure of ``sheet`` with its unit and its source, and what it lacks for an estimate."""
    figures = _figures(sheet)
    lines = [f"{sheet.name}, {sheet.architecture}"]
    if sheet.aliases:
        lines.append("also called " + ", ".join(sheet.aliases))
    if sheet.note:
        lines.append(sheet.note)
    if sheet.missing():
        lines.append(f"No estimates: no source states {', '.join(sheet.missing())}.")
    lines.append("")
    names = max(len(f[0]) for f in figures)
    values = max(len(f[1]) for f in figures)
    margin = " " * (names + values + 4)
    for name, value, source in figures:
        wrapped = textwrap.wrap(printable(source), width=_LINE - len(margin)) or [""]
        lines.append(f"{name:<{names}}  {value:>{values}}  {wrapped[0]}".rstrip())
        lines.extend(margin + rest for rest in wrapped[1:])
    return "\n".join(lines) + "\n"
