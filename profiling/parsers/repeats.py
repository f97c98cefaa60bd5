"""The launches of an entry's range, cut into its repeats."""

from __future__ import annotations

from collections.abc import Sequence

from gkestimator.core.errors import one_line
from gkestimator.profiling.captures import CapturedLaunch, EntryRange

Repeats = tuple[tuple[CapturedLaunch, ...], ...]


def _signature(launch: CapturedLaunch) -> tuple[object, ...]:
    return launch.kind, launch.name, launch.grid, launch.block


def geometry_text(launch: CapturedLaunch) -> str:
    """Return the launch for a message: name (cut), grid and block."""
    name = one_line(launch.name, limit=60)
    return name if launch.grid is None else f"{name} {launch.grid}x{launch.block}"


def split_repeats(measured: EntryRange) -> tuple[Repeats | None, str | None]:
    """Return the launches of each repeat, and a problem in one line.

    The launches must be ``measured.repeats`` times the same sequence of kinds, names, grids and blocks. Where
    only a few launches before the first repeat stand in the way (something that a runtime does once), the
    repeats come without them and the problem says how many were left out. Where the repeats differ in any
    other way there are none: None and the first difference. No launches at all: as many empty repeats, no
    problem.
    """
    launches = measured.launches
    repeats = measured.repeats
    if not launches:
        return ((),) * repeats, None
    extra = len(launches) % repeats
    parts = _cut(launches, repeats)
    if parts is not None:
        return parts, None
    if extra and len(launches) > repeats:
        parts = _cut(launches[extra:], repeats)
        # Where the extra ones are as the later repeats begin, nobody can tell which launches are the odd ones.
        if parts is not None and extra <= len(parts[0]) and _cut(launches[:-extra], repeats) is None:
            once = ", ".join(geometry_text(launch) for launch in launches[: min(extra, 3)])
            more = ", ..." if extra > 3 else ""
            return parts, (
                f"{measured.entry_id}: {extra} of {len(launches)} launches come once, before {repeats} equal repeats "
                f"of {len(parts[0])}; left out: {once}{more}"
            )
    problem = f"the {repeats} repeats differ"
    if extra:
        problem = f"{len(launches)} launches cannot be {repeats} equal repeats"
    return None, f"{measured.entry_id}: {problem}{_difference(launches, repeats)}"


def _cut(launches: Sequence[CapturedLaunch], repeats: int) -> Repeats | None:
    length, extra = divmod(len(launches), repeats)
    if extra or not length:
        return None
    signatures = list(map(_signature, launches))
    if signatures[length:] != signatures[:-length]:
        return None
    starts = range(0, len(launches), length)
    return tuple(tuple(launches[i : i + length]) for i in starts)


def _difference(launches: Sequence[CapturedLaunch], repeats: int) -> str:
    """Say where the sequence departs from a repetition of its first part (as long as a repeat would be,
    rounded down)."""
    length = max(1, len(launches) // repeats)
    for i in range(length, len(launches)):
        launch = launches[i]
        before = launches[i - length]
        if _signature(launch) != _signature(before):
            return (
                f": launch {i + 1} is {geometry_text(launch)}, expected {geometry_text(before)} as {length} launches "
                "before"
            )
    return ""
