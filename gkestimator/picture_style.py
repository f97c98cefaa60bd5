"""How the pictures of reports look: colours and matplotlib settings, for all that draw."""

from __future__ import annotations

from typing import Any

__all__ = ["BLUE", "GREY", "INK", "STYLE"]

INK, GREY, BLUE = "#333333", "#b0b0b0", "#2a6f97"
STYLE: Any = {  # matplotlib types its settings by their names
    "font.size": 8, "axes.titlesize": 8.5, "axes.edgecolor": "#888888", "axes.linewidth": 0.6,
    "axes.spines.top": False, "axes.spines.right": False, "xtick.color": INK, "ytick.color": INK,
    "axes.grid": True, "grid.color": "#ececec", "grid.linewidth": 0.6, "axes.axisbelow": True,
    "legend.frameon": False, "text.color": INK, "axes.labelcolor": INK,
}  # fmt: skip
