"""Tell the policies of a comparison apart: colours, dashes and labels."""

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
_SHARED = "#444444"
_LEADER = {"arrowstyle": "-", "linewidth": 0.4, "shrinkA": 0, "shrinkB": 0, "relpos": (0, 0.5)}
_ROOM = 0.062  # of the height of a panel: the least distance of two labels
_MANY = 4  # labels from one point, at most
_ALIKE = 0.004  # of the height: lines that end so close are one to the eye


def colour_of(number: int) -> str:
    """Return the colour of the ``number``-th policy."""
    return _COLOURS[number % len(_COLOURS)]


def line_look(number: int) -> dict[str, Any]:
    """Return how the line of the ``number``-th policy looks; the first is bold and on top."""
    return {
        "color": colour_of(number),
        "linestyle": _DASHES[number % len(_DASHES)],
        "linewidth": 1.2 if number else 2.0,
        "zorder": 10 - number * 0.1,
    }


def label_ends(axes: Any, ends: Mapping[str, float], policies: Sequence[str]) -> None:
    """Write the names in ``ends`` beside their last values, moved apart where they would cover each other.

    More than four that end alike share one label.
    """
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
        if len(names) > _MANY:
            lines.append((at, names))
        else:
            lines += [(at, [name]) for name in names]
    places = spread([at for at, _ in lines], _ROOM)
    for (at, names), place in zip(lines, places, strict=True):
        number = policies.index(names[0])
        text = names[0]
        colour = colour_of(number)
        if len(names) == len(policies) > 1:
            text = "all alike"
        elif len(names) > 1:
            text = f"{names[0]} + {len(names) - 1} alike"
        if len(names) > 1:
            colour = _SHARED
        axes.annotate(
            text,
            xy=(1.0, at),
            xytext=(1.05, place),
            xycoords="axes fraction",
            textcoords="axes fraction",
            color=colour,
            fontsize=6.8,
            va="center",
            fontweight="normal" if number else "bold",
            arrowprops=_LEADER | {"color": colour},
            annotation_clip=False,
        )


def spread(places: Sequence[float], room: float) -> list[float]:
    """Return ``places`` (0 to 1) moved as little as keeps them ``room`` apart, in their order.

    They stay within 0 and 1 as far as they fit. Pools of neighbours are centred on the mean of what they
    want.
    """
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
    moved = [0.0] * len(places)
    for pool, start in zip(pools, starts, strict=True):
        for n, k in enumerate(pool):
            moved[k] = start + room * n
    return moved


def _within(start: float, length: float) -> float:
    return max(0.0, min(start, 1.0 - length))
