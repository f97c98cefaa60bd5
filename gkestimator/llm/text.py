"""Show rows of language models: a table for people, CSV, JSON, Parquet, and closing lines in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gkestimator.core.errors import UsageError
from gkestimator.core.escaping import utf8
from gkestimator.llm.objectives import Objectives, fits
from gkestimator.tables.files import json_bytes
from gkestimator.tables.layout import (
    TextColumn,
    markdown_table,
    note_column,
    note_lines,
    number_columns,
    text_table,
    word_column,
    wrapped,
)
from gkestimator.tables.llm_requirement import LLM_TABLE, LlmRequirement
from gkestimator.tables.notes import Footnotes
from gkestimator.tables.units import UNKNOWN, bytes_text, number_text, percent_text, whole_text
from gkestimator.tables.writing import encode_csv, encode_parquet

Rows = Sequence[LlmRequirement]
_WIDTH = 130
_NUMBERS = (
    ("tok/s each", "tokens_per_s_request", number_text),
    ("tok/s all", "tokens_per_s", number_text),
    ("USD/M tok", "usd_per_million_tokens", number_text),
    ("memory", "mreq_bytes", bytes_text),
    ("most at once", "largest_batch", whole_text),
    ("known %", "coverage_pct", percent_text),
)
_DROP = {
    "known %": 1,
    "USD/M tok": 2,
    "tok/s each": 3,
    "binds": 4,
    "most at once": 5,
    "memory": 6,
    "tok/s all": 7,
}
"""Which columns a narrow terminal does without, the first first."""
_SHARED = ("model", "engine", "dtype", "kv_dtype", "gpus", "input_tokens", "output_tokens")
_WORDS = {"engine": "runtime", "kv_dtype": "cache", "input_tokens": "prompt", "output_tokens": "answer"}


def render_llm(rows: Rows, form: str) -> bytes:
    """Return the table as ``form``: table, markdown, csv, json or parquet. Raises TableError, UsageError."""
    LLM_TABLE.check(rows, where="llm")
    if form == "json":
        return json_bytes({"schema_version": LLM_TABLE.version, "rows": [LLM_TABLE.record(r) for r in rows]})
    if form == "csv":
        return encode_csv(LLM_TABLE, rows)
    if form == "parquet":
        return encode_parquet(LLM_TABLE, rows)
    shared, columns = _columns(rows)
    notes = note_lines(_notes(rows).texts)
    if form == "markdown":
        listed = [f"- {note}" if note else note for note in notes]
        return utf8("\n".join(["  \n".join(shared), "", *markdown_table(columns), *listed]) + "\n")
    if form == "table":
        return utf8("\n".join([*shared, "", *text_table(columns, limit=_WIDTH), *notes]) + "\n")
    raise UsageError(f"format {form!r}: expected table, markdown, csv, json or parquet")


def _columns(rows: Rows) -> tuple[list[str], list[TextColumn]]:
    """Return what all rows share, in lines of words, and the columns that differ or matter."""
    shared = []
    columns = [word_column("GPU", rows, "gpu", shrink=10)]
    for name in _SHARED:
        heading = _WORDS.get(name, name)
        cells = [str(getattr(row, name)) for row in rows]
        if len(set(cells)) > 1:
            columns.append(TextColumn(heading=heading, cells=cells, right=name.endswith("tokens"), shrink=8))
        elif name == "gpus":
            shared.append("1 GPU" if cells[0] == "1" else f"{cells[0]} GPUs together")
        else:
            shared.append(cells[0] if name == "model" else f"{heading} {cells[0]}")
    columns += number_columns(rows, [("batch", "batch_size", whole_text)])
    for heading, field in (("TTFT ms (90 %)", "ttft"), ("TPOT ms (90 %)", "tpot")):
        columns.append(TextColumn(heading=heading, cells=[_range(row, field) for row in rows]))
    binds = [row.binds or UNKNOWN for row in rows]
    columns.append(TextColumn(heading="binds", cells=binds, right=False, drop=_DROP["binds"]))
    columns += number_columns(rows, _NUMBERS, _DROP)
    if not all(map(fits, rows)):
        columns.append(TextColumn(heading="fits", cells=list(map(_fits_words, rows)), right=False))
    columns += note_column(_notes(rows).marks)
    return wrapped(shared), columns


def _range(row: LlmRequirement, field: str) -> str:
    value, low, high = (getattr(row, f"{field}{end}_ms") for end in ("", "_low", "_high"))
    if value is None:
        return UNKNOWN
    return f"{number_text(value)} ({number_text(low)}–{number_text(high)})"


def _fits_words(row: LlmRequirement) -> str:
    if fits(row):
        return "yes"
    if row.mreq_pct is None:
        return "unknown"
    if row.gpus_needed is None:
        return "no"
    return f"needs {row.gpus_needed}"


def _notes(rows: Rows) -> Footnotes:
    """Return what rows warn of, but for what the column ``fits`` says."""
    warnings = []
    for row in rows:
        parts = row.warnings.split("; ")
        warnings.append("; ".join(part for part in parts if not part.startswith("does not fit")))
    return Footnotes.of(warnings)


def llm_words(rows: Rows, objectives: Objectives) -> list[str]:
    """Return closing lines: what fits, the best batch within the objectives, the cheapest, and how far to trust it."""
    lines = []
    if all(row.mreq_pct is None for row in rows):
        lines.append("Whether anything fits is not known: no source states the memory that programs see.")
    elif not any(map(fits, rows)):
        lines.append("Nothing fits: fewer requests at once, a shorter context, or more GPUs together.")
    kept = [row for row in rows if objectives.kept(row)]
    if objectives.named:
        lines += _best_words(rows, kept)
    priced = [row for row in kept if row.usd_per_million_tokens is not None]
    if priced:
        best = min(priced, key=lambda row: row.usd_per_million_tokens or 0.0)
        lines.append(
            f"Cheapest{' within the objectives' if objectives.named else ''}: {_named(best)}, "
            f"{number_text(best.usd_per_million_tokens)} USD for a million tokens of answers."
        )
    known = [row.coverage_pct for row in rows if row.coverage_pct is not None]
    if known:
        ends = dict.fromkeys((percent_text(min(known)), percent_text(max(known))))
        lines.append(
            f"Trust: {' to '.join(ends)} % of the GPU's time lies inside the trained range; memory and what GPUs "
            "exchange are calculated. TTFT is that of a batch whose prompts arrive together."
        )
    return lines


def _best_words(rows: Rows, kept: Rows) -> Iterator[str]:
    """Yield, per GPU type, the asked batch with the most tokens a second within the objectives."""
    for gpu in dict.fromkeys(row.gpu for row in rows):
        mine = [row for row in kept if row.gpu == gpu]
        if not mine:
            yield f"{gpu}: no batch that was asked for keeps the objectives."
            continue
        best = max(mine, key=lambda row: row.tokens_per_s or 0.0)
        yield f"{gpu}: best is {_named(best)}, {number_text(best.tokens_per_s)} tokens a second."


def _named(row: LlmRequirement) -> str:
    together = f"{row.gpus} x " if row.gpus > 1 else ""
    return f"{together}{row.gpu}, {row.dtype}, batch {row.batch_size:,}"
