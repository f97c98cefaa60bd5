"""Draw rows of language models: what a larger batch gives (tokens a second) and what it costs (time per token)."""

from __future__ import annotations

import textwrap
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from gkestimator.reporting.requirements_picture import HUES
from gkestimator.reporting.style import INK, drawing, new_figure, saved
from gkestimator.reporting.text import picture_text
from gkestimator.tables.llm_requirement import LlmRequirement

_MOST_LINES = 2 * len(HUES)
_LINE = ("gpu", "gpus", "dtype", "kv_dtype", "input_tokens", "output_tokens")
_CAPTION_LETTERS = 130


def draw_llm(rows: Sequence[LlmRequirement], form: str = "png") -> bytes:
    """Return the picture as ``png``, ``svg`` or ``pdf``.

    Left, tokens a second of all requests together against the time per token that each of them sees: a line for every
    GPU, a point for every batch. Right, the time to the first token against the batch. Bands are 90 % intervals; hollow
    points do not fit. Raises UsageError without matplotlib.
    """
    with drawing():
        return saved(llm_figure(rows), form)


def llm_figure(rows: Sequence[LlmRequirement]) -> Any:
    """Return the same as a matplotlib figure, for notebooks. Raises UsageError without matplotlib."""
    with drawing():
        figure = new_figure(8.6, 3.6)
        figure.suptitle(picture_text(_title(rows), 110), x=0.01, ha="left", fontsize=9.5, weight="bold")
        answering, beginning = figure.subplots(1, 2)
        for at, (name, mine) in enumerate(list(_lines(rows).items())[:_MOST_LINES]):
            style = {"color": HUES[at % len(HUES)], "linestyle": "-" if at < len(HUES) else "--"}
            _draw_answering(answering, name, mine, style)
            _draw_beginning(beginning, mine, style)
        answering.set_title("while answering (log scales); up and left is better", loc="left")
        answering.set_xlabel("time per output token, ms (each request)")
        answering.set_ylabel("tokens a second (all requests)")
        beginning.set_title("until the first token, ms (log scale)", loc="left")
        beginning.set_xlabel("requests at once")
        answering.loglog()
        beginning.loglog()
        beginning.set_xscale("log", base=2)
        for axis in (answering.xaxis, answering.yaxis, beginning.xaxis, beginning.yaxis):
            axis.set_major_formatter("{x:,g}")
            axis.set_minor_formatter("")
        answering.xaxis.set_minor_formatter(_first_digits)
        figure.legend(loc="outside center right", fontsize=7.5)
        caption = (
            "Estimated, not measured. A point is a number of requests at once; bands are 90 % intervals; hollow points "
            "do not fit into the memory."
        )
        figure.supxlabel("\n".join(textwrap.wrap(caption, _CAPTION_LETTERS)), x=0.01, ha="left", fontsize=7)
        return figure


def _first_digits(value: float, _: int) -> str:
    """Return the label of a minor tick: only those of 2 and 5 have one."""
    digit = f"{value:e}"[0]
    return f"{value:,g}" if digit in "25" else ""


def _title(rows: Sequence[LlmRequirement]) -> str:
    """Return what all rows have in common, in words."""
    words = []
    for name, text in (
        ("model", "{}"),
        ("engine", "runtime {}"),
        ("dtype", "{}"),
        ("input_tokens", "prompts of {:,}"),
        ("output_tokens", "answers of {:,} tokens"),
    ):
        values = {getattr(row, name) for row in rows}
        if len(values) == 1:
            words.append(text.format(values.pop()))
    return ", ".join(words)


def _lines(rows: Sequence[LlmRequirement]) -> dict[str, list[LlmRequirement]]:
    """Return the rows of each line by its name, ascending batches; only what differs is named."""
    differing = [name for name in _LINE[1:] if len({getattr(row, name) for row in rows}) > 1]
    lines: dict[str, list[LlmRequirement]] = defaultdict(list)
    for row in rows:
        if row.tpot_ms is None or row.ttft_ms is None:
            continue
        words = [f"{row.gpus} x {row.gpu}" if row.gpus > 1 else row.gpu]
        words += [f"{getattr(row, name):,} tokens" for name in differing if name.endswith("tokens")]
        words += [str(getattr(row, name)) for name in differing if name.endswith("dtype")]
        lines[", ".join(words)].append(row)
    return {name: sorted(mine, key=lambda row: row.batch_size) for name, mine in lines.items()}


def _draw_answering(axes: Any, name: str, rows: Sequence[LlmRequirement], style: dict[str, Any]) -> None:
    times = [row.tpot_ms for row in rows]
    # Tokens of a second of answering: every request gets one token a step.
    rates = [1e3 * row.batch_size / (row.tpot_ms or 1.0) for row in rows]
    axes.plot(times, rates, label=picture_text(name, 34), linewidth=1.4, **style)
    slow = [row.tpot_high_ms for row in rows]
    fast = [row.tpot_low_ms for row in rows]
    axes.fill_betweenx(rates, fast, slow, color=style["color"], alpha=0.13, linewidth=0)
    _mark(axes, times, rates, rows, style)
    for time, rate, row in zip(times, rates, rows, strict=True):
        axes.annotate(
            f"{row.batch_size:,}", (time, rate), (3, -8), textcoords="offset points", fontsize=6.5, color=INK
        )


def _draw_beginning(axes: Any, rows: Sequence[LlmRequirement], style: dict[str, Any]) -> None:
    batches = [row.batch_size for row in rows]
    times = [row.ttft_ms for row in rows]
    axes.plot(batches, times, linewidth=1.4, **style)
    low = [row.ttft_low_ms for row in rows]
    high = [row.ttft_high_ms for row in rows]
    axes.fill_between(batches, low, high, color=style["color"], alpha=0.13, linewidth=0)
    _mark(axes, batches, times, rows, style)


def _mark(
    axes: Any, x: Sequence[Any], y: Sequence[Any], rows: Sequence[LlmRequirement], style: dict[str, Any]
) -> None:
    """Draw the points; hollow where the row does not fit."""
    faces = ["white" if (row.mreq_pct or 0) > 100 else style["color"] for row in rows]
    axes.scatter(x, y, s=16, c=faces, edgecolors=style["color"], linewidths=1.0, zorder=3)
