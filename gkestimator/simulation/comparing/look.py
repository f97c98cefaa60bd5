"""How the policies of a comparison are told apart: colours, dashes and labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

# By colour and by dashes, since colours alone fail some readers; the first policy is drawn on top.
_COLOURS = (
    "#2a6f97",
    "#c8553d",
    "#588157",
    "#9d4edd",
    "#b5838d",
    "#e09f3e",
    "#6c757d",
    "#3d405b",
    "#4fa3a5",
    "#a3753b",
)
_DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (2, 1)), (0, (6, 1.5, 1, 1.5)), (0, (1, 1)))
_ROOM = 0.062  # of the height of a panel: the least distance of two labels
_MANY = 4  # labels from one point, at most
_ALIKE = 0.004  # of the height: lines that end so close are one to the eye


def look(number: int) -> tuple[str, Any]:
    """Colour and dashes of the ``number``-th policy."""
    return _COLOURS[number % len(_COLOURS)], _DASHES[number % len(_DASHES)]


def labelled(axes: Any, ends: Mapping[str, float], policies: Sequence[str]) -> None:
    """The names in ``ends`` beside their last values, moved apart where they would cover each other; more than
    four that end alike share one label."""
    low, high = axes.get_ylim()
    groups: list[tuple[float, list[str]]] = []
    for policy, value in sorted(ends.items(), key=lambda e: e[1]):
        at = (value - low) / (high - low)
        if groups and at - groups[-1][0] <= _ALIKE:
            groups[-1][1].append(policy)
        else:
            groups.append((at, [policy]))
    lines: list[tuple[float, list[str]]] = []
    for at, names in groups:
        names.sort(key=policies.index)
        lines += [(at, names)] if len(names) > _MANY else [(at, [n]) for n in names]
    places = spread([at for at, _ in lines], _ROOM)
    for (at, names), place in zip(lines, places, strict=True):
        number = policies.index(names[0])
        colour = look(number)[0] if len(names) == 1 else "#444444"
        if len(names) == 1:
            text = names[0]
        else:
            text = _together(names, len(policies))
        axes.annotate(
            text,
            xy=(1.0, at),
            xytext=(1.05, place),
            xycoords="axes fraction",
            textcoords="axes fraction",
            color=colour,
            fontsize=6.8,
            va="center",
            fontweight="bold" if number == 0 else "normal",
            arrowprops={
                "arrowstyle": "-",
                "color": colour,
                "linewidth": 0.4,
                "shrinkA": 0,
                "shrinkB": 0,
                "relpos": (0, 0.5),
            },
            annotation_clip=False,
        )


def _together(names: Sequence[str], policies: int) -> str:
    if len(names) == policies:
        return "all alike"
    return f"{names[0]} + {len(names) - 1} alike"


def spread(places: Sequence[float], room: float) -> list[float]:
    """``places`` (0 to 1) moved as little as keeps them ``room`` apart, in their order, within 0 and 1 as far as they
    fit: pools of neighbours are centred on the mean of what they want."""
    order = sorted(range(len(places)), key=lambda i: (places[i], i))
    pools: list[list[int]] = []
    starts: list[float] = []
    for i in order:
        pools.append([i])
        starts.append(_within(places[i], 0.0))
        while len(pools) > 1 and starts[-1] < starts[-2] + room * len(pools[-2]):
            last = pools.pop()
            starts.pop()
            pools[-1] += last
            wanted = [places[k] - room * n for n, k in enumerate(pools[-1])]
            starts[-1] = _within(sum(wanted) / len(wanted), room * (len(wanted) - 1))
    found = [0.0] * len(places)
    for pool, start in zip(pools, starts, strict=True):
        for n, k in enumerate(pool):
            found[k] = start + room * n
    return found


def _within(start: float, length: float) -> float:
    return max(0.0, min(start, 1.0 - length))
