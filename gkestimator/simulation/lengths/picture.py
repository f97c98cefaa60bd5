"""The picture of a run: per scheme over time the 98th percentile against the SLO, requests, GPUs."""

from __future__ import annotations

from typing import Any

from gkestimator.placement.picture import PICTURE_SUFFIXES, check_drawable
from gkestimator.reporting.style import GREY, INK, STYLE, saved
from gkestimator.simulation.lengths.running import LengthsRun

__all__ = ["PICTURE_SUFFIXES", "check_drawable", "draw_lengths"]

# Hues that differ for the colour-blind (Tableau 10), and a style each: curves that coincide are seen all the same.
_LOOKS: dict[str, tuple[str, Any]] = {
    "arlo": ("#e15759", "-"),
    "least-padding": ("#4e79a7", (0, (4, 1.5))),
    "least-load": ("#59a14f", (0, (1.2, 1.2))),
    "earliest": ("#f28e2b", (0, (6, 1.5, 1, 1.5))),
    "padding": ("#9c755f", "-"),
}


def draw_lengths(run: LengthsRun, form: str) -> bytes:
    """``run`` as ``png``, ``svg`` or ``pdf``. Top: the 98th percentile of the requests that came in each window, on a
    logarithmic scale. Below: requests a second; GPUs where their number changes, else the first scheme's instances by
    runtime. The same run gives the same bytes."""
    check_drawable()
    import matplotlib
    from matplotlib.figure import Figure

    spec = run.spec
    scaled = any(s.added or s.removed for s in run.served.values())
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": "gkestimator"}):
        figure = Figure(figsize=(7.2, 5.4), layout="constrained")
        top, middle, bottom = figure.subplots(3, 1, sharex=True, height_ratios=[2.2, 1, 1.2])
        for scheme, served in run.served.items():
            hue, style = _LOOKS[scheme]
            windows = [w for w in served.windows if w.p98_ms is not None]
            ends = [w.end_ms / 1e3 for w in windows]
            top.plot(
                ends, [w.p98_ms for w in windows], color=hue, linestyle=style, linewidth=1.2, label=scheme
            )
            if scaled:
                steps = [w.gpus for w in served.windows]
                times = [w.end_ms / 1e3 for w in served.windows]
                bottom.step(times, steps, where="pre", color=hue, linestyle=style, linewidth=1.2)
        top.axhline(spec.slo_ms, color=INK, linewidth=0.8)
        top.annotate(
            f"SLO\n{spec.slo_ms:g} ms",
            (1.008, spec.slo_ms),
            xycoords=("axes fraction", "data"),
            va="center",
            fontsize=7,
        )
        top.set_yscale("log")
        top.set_ylabel("98th percentile, ms")
        figure.legend(
            *top.get_legend_handles_labels(), loc="outside upper center", ncols=len(run.served), fontsize=8
        )
        first, served = next(iter(run.served.items()))
        begin = 0.0
        rates = []
        for w in served.windows:
            rates.append(1e3 * w.requests / (w.end_ms - begin))
            begin = w.end_ms
        middle.step([w.end_ms / 1e3 for w in served.windows], rates, where="pre", color=GREY, linewidth=1.2)
        middle.set_ylabel("requests/s")
        middle.set_ylim(bottom=0)
        if scaled:
            bottom.set_ylabel("GPUs")
            bottom.set_ylim(bottom=0)
        else:
            _instances(bottom, run, first)
        bottom.set_xlabel("s")
        bottom.set_xlim(0, spec.duration_ms / 1e3)
        return saved(figure, form)


def _instances(axes: Any, run: LengthsRun, scheme: str) -> None:
    """Instances of each runtime of ``scheme`` over time, stacked; longer runtimes are darker."""
    import matplotlib

    windows = run.served[scheme].windows
    lengths = run.ladder.lengths[-len(windows[0].counts) :]
    shades = matplotlib.colormaps["Blues"]
    axes.stackplot(
        [0.0, *(w.end_ms / 1e3 for w in windows)],
        [[windows[0].counts[i], *(w.counts[i] for w in windows)] for i in range(len(lengths))],
        colors=[shades(0.25 + 0.7 * i / max(1, len(lengths) - 1)) for i in range(len(lengths))],
        labels=[f"{n:,}" for n in lengths],
        step="pre",
        edgecolor="white",
        linewidth=0.3,
    )
    axes.set_ylabel(f"instances ({scheme})")
    axes.legend(
        loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=6.5, title="length", title_fontsize=6.5
    )
