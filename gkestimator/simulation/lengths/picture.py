"""Draw a run: per scheme over time the 98th percentile against the SLO, requests, GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gkestimator.placement.picture import PICTURE_SUFFIXES, check_drawable
from gkestimator.reporting.simulated import drawing
from gkestimator.reporting.style import GREY, INK, saved
from gkestimator.simulation.lengths.running import LengthsRun
from gkestimator.simulation.lengths.serving import TimeWindow
from gkestimator.simulation.lengths.spec import ALL_SCHEMES

__all__ = ["PICTURE_SUFFIXES", "check_drawable", "draw_lengths"]

# Hues that differ for the colour-blind (Tableau 10), and a style each: curves that coincide are seen all the same.
# In the order of the schemes.
_LOOKS: tuple[tuple[str, Any], ...] = (
    ("#e15759", "-"),
    ("#4e79a7", (0, (4, 1.5))),
    ("#59a14f", (0, (1.2, 1.2))),
    ("#f28e2b", (0, (6, 1.5, 1, 1.5))),
    ("#76b7b2", (0, (3, 1, 1, 1))),
    ("#9c755f", "-"),
    ("#b07aa1", (0, (4, 1.5))),
)
_WIDTH = 1.2


def draw_lengths(run: LengthsRun, form: str) -> bytes:
    """Return the picture of ``run`` as ``png``, ``svg`` or ``pdf``.

    Top: the 98th percentile of the requests that came in each window, on a logarithmic scale. Below: requests
    a second; GPUs where their number changes, else the first scheme's instances by runtime. The same run
    gives the same bytes.
    """
    check_drawable()
    spec = run.spec
    scaled = any(s.added or s.removed for s in run.served.values())
    first = next(iter(run.served))
    with drawing() as new_figure:
        figure = new_figure(figsize=(7.2, 5.4), layout="constrained")
        top, middle, bottom = figure.subplots(3, 1, sharex=True, height_ratios=[2.2, 1, 1.2])
        for scheme, served in run.served.items():
            hue, style = _LOOKS[ALL_SCHEMES.index(scheme) % len(_LOOKS)]
            look = {"color": hue, "linestyle": style, "linewidth": _WIDTH}
            known = [w for w in served.windows if w.p98_ms is not None]
            top.plot(_ends_s(known), [w.p98_ms for w in known], label=scheme, **look)
            if scaled:
                gpus = [w.gpus for w in served.windows]
                bottom.step(_ends_s(served.windows), gpus, where="pre", **look)
        top.axhline(spec.slo_ms, color=INK, linewidth=0.8)
        place = {"xycoords": ("axes fraction", "data"), "va": "center"}
        top.annotate(f"SLO\n{spec.slo_ms:g} ms", (1.008, spec.slo_ms), fontsize=7, **place)
        top.set_yscale("log")
        top.set_ylabel("98th percentile, ms")
        lines, names = top.get_legend_handles_labels()
        figure.legend(lines, names, loc="outside upper center", ncols=len(names), fontsize=8)
        windows = run.served[first].windows
        ends = _ends_s(windows)
        seconds = np.diff(ends, prepend=0.0)
        rates = np.array([w.requests for w in windows]) / seconds
        middle.step(ends, rates, where="pre", color=GREY, linewidth=_WIDTH)
        middle.set_ylabel("requests/s")
        middle.set_ylim(bottom=0)
        if scaled:
            bottom.set_ylabel("GPUs")
            bottom.set_ylim(bottom=0)
        else:
            _draw_instances(bottom, run, first)
        bottom.set_xlabel("s")
        bottom.set_xlim(0, spec.duration_ms / 1e3)
        return saved(figure, form)


def _ends_s(windows: Sequence[TimeWindow]) -> list[float]:
    return [w.end_ms / 1e3 for w in windows]


def _draw_instances(axes: Any, run: LengthsRun, scheme: str) -> None:
    """Draw the instances of each runtime of ``scheme`` over time, stacked; longer runtimes are darker."""
    import matplotlib

    windows = run.served[scheme].windows
    lengths = run.ladder.lengths[-len(windows[0].counts) :]
    counts = [windows[0].counts, *(w.counts for w in windows)]
    shades = np.linspace(0.25, 0.95, max(2, len(lengths)))[: len(lengths)]
    axes.stackplot(
        [0.0, *_ends_s(windows)],
        np.array(counts).T,
        colors=[matplotlib.colormaps["Blues"](shade) for shade in shades],
        labels=[f"{n:,}" for n in lengths],
        step="pre",
        edgecolor="white",
        linewidth=0.3,
    )
    axes.set_ylabel(f"instances ({scheme})")
    place = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5)}
    axes.legend(**place, fontsize=6.5, title="length", title_fontsize=6.5)
