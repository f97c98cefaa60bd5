"""Write an evaluation as a folder: ``report.md``, ``rows.csv``, ``summary.csv`` and, with matplotlib, two
pictures.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np

from gkestimator.core.escaping import printable, utf8
from gkestimator.core.extras import install_extra
from gkestimator.evaluation.api import Evaluation
from gkestimator.evaluation.compared import COMPARED, SUMMARIES, ComparedRow
from gkestimator.evaluation.host import HostFit
from gkestimator.evaluation.text import host_words, render_evaluation, trust_words
from gkestimator.reporting.style import BLUE, GREY, INK, STYLE
from gkestimator.reporting.text import picture_text
from gkestimator.tables.together import write_folder
from gkestimator.tables.writing import encode_csv

REPORT_FILES = ("report.md", "rows.csv", "summary.csv", "latency.png", "models.png")
_COLOURS = (BLUE, "#c8553d", "#588157", "#8e6c8a", "#b08968", "#457b9d")
# More bars than that cannot be told apart on a screen.
_MOST_BARS = 60


def write_report(
    result: Evaluation, folder: Path | str, *, fits: Sequence[HostFit] = ()
) -> tuple[list[Path], list[str]]:
    """Write the report into ``folder``, which is made where it is missing; the files written and lines worth
    saying.

    Without matplotlib there are no pictures, and a line says how to get them. Raises OutputError.
    """
    pictures, notes = _pictures(result)
    remarks = list(trust_words(result))
    for fit in fits:
        remarks += host_words(fit)
    remarks += result.messages
    remarks += [f"not estimated: {failure}" for failure in result.failures]
    lines = [f"# {printable(result.name)} against estimates", ""]
    lines += [printable(f"- {remark}") for remark in remarks]
    lines += ["", *(f"![{caption}]({name})\n" for name, caption, _ in pictures)]
    text = "\n".join(lines) + "\n"
    files = {
        "report.md": utf8(text) + render_evaluation(result, "markdown"),
        "rows.csv": encode_csv(COMPARED, result.compared),
        "summary.csv": encode_csv(SUMMARIES, result.summarised),
        **{name: data for name, _, data in pictures},
    }
    return write_folder(Path(folder), files), notes


def _pictures(result: Evaluation) -> tuple[list[tuple[str, str, bytes]], list[str]]:
    """Return (file name, caption, PNG) of every picture there is something to show in."""
    rows = [r for r in result.compared if r.measured_ms and r.estimated_ms]
    if not rows:
        return [], ["no pictures: no latency was compared"]
    try:
        import matplotlib as mpl
    except ImportError:
        missing = f"matplotlib is missing ({install_extra('plot')})"
        return [], [f"no pictures: {missing}; the rest is written"]
    with mpl.rc_context(STYLE):
        return [
            ("latency.png", "Estimated against measured latency", _scatter(rows)),
            ("models.png", "Error per model", _bars(result)),
        ], []


def _figure(width: float, height: float) -> tuple[Any, Any]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    return figure, figure.add_subplot()


def _png(figure: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110, metadata={"Software": None})
    return buffer.getvalue()


def _scatter(rows: Sequence[ComparedRow]) -> bytes:
    """Return a log-log picture with the 90 % intervals as bars, one colour per GPU."""
    figure, axis = _figure(5.2, 4.8)
    values = np.array([(r.measured_ms, r.estimated_ms) for r in rows], dtype=float)
    ends = np.array([values.min() / 1.4, values.max() * 1.4])
    axis.fill_between(ends, ends / 1.25, ends * 1.25, color="#f1f1f1", lw=0)
    axis.plot(ends, ends, color=GREY, lw=0.8)
    by_gpu: dict[str, list[ComparedRow]] = {}
    for r in rows:
        by_gpu.setdefault(r.gpu, []).append(r)
    for (gpu, mine), colour in zip(by_gpu.items(), chain(_COLOURS, repeat("#777777")), strict=False):
        measured = [r.measured_ms for r in mine]
        low = [r.low_ms or r.estimated_ms for r in mine]
        high = [r.high_ms or r.estimated_ms for r in mine]
        axis.vlines(measured, low, high, color=colour, alpha=0.25, lw=1)
        estimated = [r.estimated_ms for r in mine]
        axis.scatter(measured, estimated, s=10, color=colour, lw=0, label=picture_text(gpu), zorder=3)
    axis.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
    axis.set(xlabel="measured latency, ms", ylabel="estimated, ms (bars: 90 % interval; band: ± 25 %)")
    axis.set_title(f"Latency: {len(rows)} rows", loc="left")
    if len(by_gpu) > 1:
        axis.legend(loc="upper left")
    return _png(figure)


def _bars(result: Evaluation) -> bytes:
    """Return a picture of the median absolute error per model with its worst row, the largest first."""
    models = [s for s in result.summarised if s.measure == "latency_ms" and s.scope == "model"]
    models = sorted(models, key=lambda s: s.median)[-_MOST_BARS:]
    figure, axis = _figure(5.6, 0.9 + 0.2 * len(models))
    places = range(len(models))
    axis.barh(places, [s.median for s in models], height=0.62, color=BLUE, label="median")
    axis.scatter([s.worst for s in models], places, marker="|", s=50, color=INK, label="worst row", zorder=3)
    axis.set_yticks(places, [picture_text(s.name, 36) for s in models])
    axis.grid(axis="y", visible=False)
    axis.set(xlabel="absolute error of the latency, %", xlim=(0, None))
    axis.set_title("Error per model", loc="left")
    axis.legend(loc="lower right")
    return _png(figure)
