"""GPU specifications for people: one line each, or every figure of one with unit and source."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from gkestimator.hardware.gpus import GpuSpec
from gkestimator.tables.layout import TextColumn, printable, text_table
from gkestimator.tables.units import UNKNOWN, number_text

_GIB = 2**30
_LINE = 100
# Ending of a field's name, the unit it is shown in, and how many of its own unit that is.
_SHOWN_IN: tuple[tuple[str, str, float], ...] = (
    ("_flops_per_s", "TFLOP/s", 1e12), ("_bytes_per_s", "GB/s", 1e9), ("memory_bytes", "GiB", 2**30),
    ("memory_visible_bytes", "MiB", 2**20), ("l2_bytes", "MiB", 2**20), ("_mhz", "MHz", 1), ("_w", "W", 1),
    ("_per_hour_usd", "USD/h", 1), ("bytes_per_sm", "KiB/SM", 2**10), ("bytes_per_block_max", "KiB/block", 2**10),
)  # fmt: skip
_TEXTS = ("name", "aliases", "short_names", "architecture", "note", "sources")


def overview(specs: Sequence[GpuSpec]) -> str:
    """A table of all ``specs``, in the order given."""

    def peak(spec: GpuSpec, precision: str) -> str:
        rate = spec.peak_flops_per_s.get(precision)
        if rate is None:
            return UNKNOWN
        return number_text(rate / 1e12)

    columns = [
        TextColumn(heading="GPU", cells=[s.name for s in specs], right=False),
        TextColumn(
            heading="architecture",
            cells=[s.architecture.split(" (")[0] for s in specs],
            right=False,
            shrink=8,
        ),
        TextColumn(heading="SMs", cells=[str(s.sms) for s in specs]),
        TextColumn(heading="GiB", cells=[number_text(s.memory_visible_bytes / _GIB) for s in specs]),
        TextColumn(heading="GB/s", cells=[number_text(s.dram_bytes_per_s / 1e9, digits=4) for s in specs]),
        TextColumn(heading="fp32", cells=[peak(s, "fp32") for s in specs]),
        TextColumn(heading="tf32", cells=[peak(s, "tf32") for s in specs]),
        TextColumn(heading="fp16", cells=[peak(s, "fp16") for s in specs]),
        TextColumn(heading="int8", cells=[peak(s, "int8") for s in specs]),
        TextColumn(
            heading="USD/h",
            cells=[UNKNOWN if s.price_per_hour_usd is None else f"{s.price_per_hour_usd:.2f}" for s in specs],
        ),
        TextColumn(heading="as of", cells=[s.price_date or UNKNOWN for s in specs], right=False),
    ]
    notes = "GiB: memory visible to programs. Peaks: dense TFLOP/s (int8 TOP/s). Sources: gkest gpus NAME."
    return "\n".join([*text_table(columns), "", notes]) + "\n"


def _figures(spec: GpuSpec) -> list[tuple[str, str, str]]:
    found: list[tuple[str, str, str]] = []
    for f in fields(spec):
        if f.name in _TEXTS:
            continue
        value: Any = getattr(spec, f.name)
        if hasattr(value, "items"):
            entries = {f"{f.name}.{k}": v for k, v in value.items()}
        else:
            entries = {f.name: value}
        for name, figure in entries.items():
            source = spec.sources.get(name) or spec.sources.get(f.name) or UNKNOWN
            found.append((name, _figure_text(f.name, figure), source))
    return found


def _figure_text(name: str, value: Any) -> str:
    if value is None:
        return UNKNOWN
    if isinstance(value, tuple):
        return ".".join(str(part) for part in value)
    if not isinstance(value, int | float):
        return str(value)
    unit, size = next(((u, n) for ending, u, n in _SHOWN_IN if name.endswith(ending)), ("", 1.0))
    return f"{value / size:,.6g} {unit}".strip()


def describe(spec: GpuSpec) -> str:
    """Every figure of ``spec`` with its unit and its source."""
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
