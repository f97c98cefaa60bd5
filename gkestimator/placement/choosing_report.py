"""Write choices of GPUs: a table for people, CSV, JSON, and a closing line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, fields
from operator import attrgetter

from gkestimator.placement.choosing import GpuChoice
from gkestimator.reporting.simulated import REPORT_SUFFIXES, rendered, text_of
from gkestimator.tables.csv_text import csv_text
from gkestimator.tables.layout import TextColumn, text_table
from gkestimator.tables.units import UNKNOWN, number_text

CHOICE_SUFFIXES = REPORT_SUFFIXES
Choices = Sequence[GpuChoice]


def render_choices(choices: Choices, form: str) -> bytes:
    """Return ``choices`` as ``form``: table, csv or json."""
    return rendered(choices, form, {"table": _text, "csv": _csv, "json": _json})


def _text(choices: Choices) -> str:
    columns = [
        TextColumn(heading="GPU", cells=[choice.gpu for choice in choices], right=False, shrink=12),
        TextColumn(heading="GPUs", cells=[_count(choice.gpus) for choice in choices]),
        TextColumn(heading="to be sure", cells=[_count(choice.careful_gpus) for choice in choices]),
        TextColumn(heading="USD/h", cells=[number_text(choice.cost_per_hour) for choice in choices]),
        TextColumn(
            heading="to be sure", cells=[number_text(choice.careful_cost_per_hour) for choice in choices]
        ),
        TextColumn(heading="price of", cells=[choice.price_date or UNKNOWN for choice in choices], drop=2),
        TextColumn(heading="batch", cells=[_count(choice.batch_size) for choice in choices]),
        TextColumn(
            heading="slowest ms", cells=[number_text(choice.slowest_ms) for choice in choices], drop=3
        ),
        TextColumn(heading="margin %", cells=[number_text(choice.margin_pct) for choice in choices]),
        TextColumn(heading="known %", cells=[number_text(choice.coverage_pct) for choice in choices], drop=1),
    ]
    return text_of(text_table(columns))


def _count(value: int | None) -> str:
    if value is None:
        return UNKNOWN
    return f"{value:,}"


def _csv(choices: Choices) -> str:
    names = [field.name for field in fields(GpuChoice)]
    return csv_text(names, map(attrgetter(*names), choices))


def _json(choices: Choices) -> str:
    return json.dumps([asdict(choice) for choice in choices], indent=1, allow_nan=False) + "\n"


def choice_words(choices: Choices, *, rate_rps: float, slo_ms: float) -> list[str]:
    """Return closing lines: the cheapest that holds, and whether that is sure."""
    load = f"{rate_rps:,.6g} requests a second within {slo_ms:g} ms"
    holding = [choice for choice in choices if choice.gpus is not None]
    if not holding:
        return [f"No GPU holds {load}: {choices[0].reason}"] if choices else []
    lines = []
    likely = min(holding, key=lambda choice: (choice.cost_per_hour is None, choice.cost_per_hour or 0.0))
    sure = [choice for choice in holding if choice.careful_cost_per_hour is not None]
    if sure:
        best = sure[0]  # choices are sorted by this cost
        lines.append(
            f"Cheapest that holds {load} even where every estimate is as slow as its interval says: "
            f"{best.careful_gpus} x {best.gpu}, {number_text(best.careful_cost_per_hour)} USD an hour."
        )
    if not sure or likely.gpu != best.gpu or likely.gpus != best.careful_gpus:
        cost = number_text(likely.cost_per_hour)
        lines.append(f"By the estimates themselves: {likely.gpus} x {likely.gpu}, {cost} USD an hour.")
    lines.append(
        "to be sure: every batch at the slow end of its 90 % interval · slowest: a batch's longest wait and its run · "
        "margin: what that leaves of the objective"
    )
    return lines
