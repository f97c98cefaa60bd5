"""How the pictures of reports look: colours and matplotlib settings, for all that draw."""

from __future__ import annotations

import io
from typing import Any

INK, GREY, BLUE = "#333333", "#b0b0b0", "#2a6f97"
STYLE: Any = {  # matplotlib types its settings by their names
    "font.size": 8,
    "axes.titlesize": 8.5,
    "axes.edgecolor": "#888888",
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.grid": True,
    "grid.color": "#ececec",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "text.color": INK,
    "axes.labelcolor": INK,
}
# Files that do not change from run to run: matplotlib would write the date and its version.
_METADATA: dict[str, dict[str, None]] = {
    "png": {"Software": None},
    "svg": {"Date": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}


def saved(figure: Any, form: str, *, dpi: int = 150) -> bytes:
    """``figure`` (matplotlib's) as ``png``, ``svg`` or ``pdf``; the same figure gives the same bytes (for SVG under
    the setting ``svg.hashsalt``).

    Constrained layout solves for the places of the axes in an order that changes from run to run, so their last
    digits do too, and SVG makes names of them: the places are rounded to 1e-5 of the figure."""
    if figure.get_layout_engine() is not None:
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
        for axes in figure.axes:
            axes.set_position([round(v, 5) for v in axes.get_position().bounds])
    buffer = io.BytesIO()
    figure.savefig(buffer, format=form, dpi=dpi, metadata=_METADATA[form])
    return buffer.getvalue()
