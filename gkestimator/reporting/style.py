"""One look for the pictures of reports: colours, matplotlib settings, and files that do not change from run
to run."""

from __future__ import annotations

import functools
import io
from contextlib import AbstractContextManager
from typing import Any

from gkestimator.core.errors import UsageError
from gkestimator.core.extras import install_extra

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
PICTURE_SUFFIXES = {".png": "png", ".svg": "svg", ".pdf": "pdf"}
# Files that do not change from run to run: matplotlib would write the date and its version.
_METADATA: dict[str, dict[str, None]] = {
    "png": {"Software": None},
    "svg": {"Date": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}


def check_drawable() -> None:
    """Raise UsageError without matplotlib (extra ``plot``): to be known before a result is computed, not
    after."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as e:
        raise UsageError(f"a picture needs matplotlib: {install_extra('plot')}") from e


def drawing() -> AbstractContextManager[None]:
    """Return the context in which a report's picture is drawn and :func:`saved`. Raises UsageError without
    matplotlib."""
    check_drawable()
    import matplotlib

    settings = {**STYLE, "svg.hashsalt": "gkestimator"}
    return matplotlib.rc_context(settings)


def new_figure(width: float, height: float) -> Any:
    """Return an empty figure of ``width`` by ``height`` inches whose axes make room for their texts.

    A notebook shows it: IPython asks for ``_repr_png_``, and knows figures by itself only once pyplot is imported.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    figure._repr_png_ = functools.partial(saved, figure, "png", dpi=80)  # type: ignore[attr-defined]
    return figure


def saved(figure: Any, form: str, *, dpi: int = 150) -> bytes:
    """Return ``figure`` (matplotlib's) as ``png``, ``svg`` or ``pdf``; the same figure gives the same bytes
    (for SVG under the setting ``svg.hashsalt``).

    Constrained layout solves for the places of the axes in an order that changes from run to run, so their
    last digits do too, and SVG makes names of them: the places are rounded to 1e-5 of the figure."""
    if figure.get_layout_engine() is not None:
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
        for axes in figure.axes:
            axes.set_position([round(v, 5) for v in axes.get_position().bounds])
    buffer = io.BytesIO()
    figure.savefig(buffer, format=form, dpi=dpi, metadata=_METADATA[form])
    return buffer.getvalue()
