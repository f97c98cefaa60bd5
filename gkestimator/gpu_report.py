"""GPU specifications for people: one line each, or every figure of one with unit and source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from gkestimator.gpus import GpuSpec
from gkestimator.tables.layout import TextColumn, text_table
from gkestimator.tables.units import UNKNOWN, number_text

__all__ = ["describe", "overview"]

_GIB = 2**30
_SUFFIX_UNITS = (
    ("_flops_per_s", "FLOP/s"), ("_bytes_per_s", "bytes/s"), ("_bytes", "bytes"), ("_mhz", "MHz"),
    ("_w", "W"),
    ("_per_hour_usd", "USD/h"), ("bytes_per_sm", "bytes/SM"), ("bytes_per_block_max", "bytes/block"),
)  # fmt: skip
_TEXTS = ("name", "aliases", "short_names", "architecture", "note", "sources")


def overview(specs: Sequence[GpuSpec]) -> str:
    """A table of all ``specs``, in the order given."""

    def peak(spec: GpuSpec, precision: str) -> str:
        rate = spec.peak_flops_per_s.get(precision)
        return UNKNOWN if rate is None else number_text(rate / 1e12)

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


def _unit(name: str) -> str:
    for ending, unit in _SUFFIX_UNITS:
        if name.endswith(ending):
            return unit
    return ""


def _figures(spec: GpuSpec) -> list[tuple[str, str, str]]:
    found: list[tuple[str, str, str]] = []
    for f in fields(spec):
        if f.name in _TEXTS:
            continue
        value: Any = getattr(spec, f.name)
        entries = (
            {f"{f.name}.{k}": v for k, v in value.items()} if hasattr(value, "items") else {f.name: value}
        )
        for name, figure in entries.items():
            source = spec.sources.get(name) or spec.sources.get(f.name) or UNKNOWN
            found.append((name, f"{_figure_text(figure)} {_unit(f.name)}".strip(), source))
    return found


def _figure_text(value: object) -> str:
    if value is None:
        return UNKNOWN
    if isinstance(value, tuple):
        return ".".join(str(part) for part in value)
    if isinstance(value, float):
        return f"{value:,.0f}" if value.is_integer() and value < 1e15 else f"{value:,.6g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def describe(spec: GpuSpec) -> str:
    """Every figure of ``spec`` with its unit and its source."""
    figures = _figures(spec)
    lines = [f"{spec.name}, {spec.architecture}"]
    if spec.aliases:
        lines.append("also called " + ", ".join(spec.aliases))
    if spec.note:
        lines.append(spec.note)
    columns = [
        TextColumn(heading="figure", cells=[f[0] for f in figures], right=False),
        TextColumn(heading="value", cells=[f[1] for f in figures]),
        TextColumn(heading="source", cells=[f[2] for f in figures], right=False),
    ]
    return "\n".join([*lines, "", *text_table(columns, limit=10_000)]) + "\n"
