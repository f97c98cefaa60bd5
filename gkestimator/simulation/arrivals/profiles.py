"""Rates over time from a small CSV: ``time_s,model,rate_rps`` (each rate holds until the model's next time) or
``time_s,model,ramp_rps`` (straight lines between the points)."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from gkestimator.core.errors import DocumentError, UsageError
from gkestimator.simulation.arrivals.rates import Profile
from gkestimator.simulation.traces.lines import Lines, quoted
from gkestimator.simulation.traces.values import decimals

_MAX_POINTS = 1_000_000
_STEPS = {"time_s", "model", "rate_rps"}
_RAMPS = {"time_s", "model", "ramp_rps"}


def has_profiles(path: Path) -> bool:
    """Whether the file's columns are those of rate profiles. Raises DocumentError where it cannot be read."""
    return set(Lines(path).header) in (_STEPS, _RAMPS)


def read_profiles(path: Path, names: Collection[str]) -> dict[str, Profile]:
    """The profile of each model in the file. Raises DocumentError, naming the line: a model that is not in ``names``,
    times of a model that do not ascend, a wrong number, more than a million points, none."""
    lines = Lines(path)
    header = lines.header
    if set(header) not in (_STEPS, _RAMPS) or len(header) != 3:
        raise DocumentError(
            f"{path}: line 1: found columns {','.join(header)}, expected time_s,model,rate_rps or time_s,model,ramp_rps"
        )
    ramp = "ramp_rps" in header
    column = "ramp_rps" if ramp else "rate_rps"
    points: dict[str, tuple[list[float], list[float]]] = {}
    total = 0
    for block in lines.blocks():
        times = decimals(path, block, header.index("time_s"), "time_s")
        rates = decimals(path, block, header.index(column), column)
        total += len(times)
        if total > _MAX_POINTS:
            raise DocumentError(
                f"{path}: line {block.lines[0]}: found more than {_MAX_POINTS:,} points, expected fewer"
            )
        for row, (time, rate) in enumerate(zip(times.tolist(), rates.tolist(), strict=True)):
            name = block.text(row, header.index("model"))
            if name not in names:
                raise DocumentError(
                    f"{path}: line {block.lines[row]}: model: found {quoted(name)}, expected one of {', '.join(names)}"
                )
            at, what = points.setdefault(name, ([], []))
            if at and time <= at[-1]:
                raise DocumentError(
                    f"{path}: line {block.lines[row]}: time_s: found {time:g}, expected more than {at[-1]:g}, the time "
                    f"before of {name}"
                )
            at.append(time)
            what.append(rate)
    if not points:
        raise DocumentError(f"{path}: found no points below the header, expected at least one")
    try:
        return {
            name: Profile(times_s=tuple(at), rates_rps=tuple(what), ramp=ramp)
            for name, (at, what) in points.items()
        }
    except UsageError as e:
        raise DocumentError(f"{path}: {e}") from e
