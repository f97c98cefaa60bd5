"""Read rates over time from a small CSV.

Its columns are ``time_s,model,rate_rps`` (each rate holds until the model's next time) or
``time_s,model,ramp_rps`` (straight lines between the points).
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from gkestimator.core.errors import DocumentError, UsageError
from gkestimator.simulation.arrivals.rates import Profile
from gkestimator.simulation.traces.lines import Lines
from gkestimator.simulation.traces.values import decimals

_MAX_POINTS = 1_000_000
_STEPS = {"time_s", "model", "rate_rps"}
_RAMPS = {"time_s", "model", "ramp_rps"}


def has_profiles(path: Path) -> bool:
    """Say whether the file's columns are those of rate profiles. Raises DocumentError where it cannot be read."""
    return set(Lines(path).header) in (_STEPS, _RAMPS)


def read_profiles(path: Path, names: Collection[str]) -> dict[str, Profile]:
    """Return the profile of each model in the file.

    Raises DocumentError, naming the line: a model that is not in ``names``, times of a model that do not
    ascend, a wrong number, more than a million points, none.
    """
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
        times = decimals(block, header.index("time_s"), "time_s")
        rates = decimals(block, header.index(column), column)
        total += len(times)
        if total > _MAX_POINTS:
            raise block.error(0, f"found more than {_MAX_POINTS:,} points, expected fewer")
        for row, (time, rate) in enumerate(zip(times.tolist(), rates.tolist(), strict=True)):
            name = block.text(row, header.index("model"))
            if name not in names:
                raise block.wrong(row, header.index("model"), "model", f"one of {', '.join(names)}")
            times_s, rates_rps = points.setdefault(name, ([], []))
            if times_s and time <= times_s[-1]:
                problem = (
                    f"time_s: found {time:g}, expected more than {times_s[-1]:g}, the time before of {name}"
                )
                raise block.error(row, problem)
            times_s.append(time)
            rates_rps.append(rate)
    if not points:
        raise DocumentError(f"{path}: found no points below the header, expected at least one")
    profiles = {}
    for name, (times_s, rates_rps) in points.items():
        try:
            profiles[name] = Profile(times_s=tuple(times_s), rates_rps=tuple(rates_rps), ramp=ramp)
        except UsageError as e:
            raise DocumentError(f"{path}: {e}") from e
    return profiles
