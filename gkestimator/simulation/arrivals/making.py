"""Arrivals by name: a process that is drawn, or the file of a trace or of rate profiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from gkestimator.errors import UsageError
from gkestimator.simulation.arrivals.base import Arrivals
from gkestimator.simulation.arrivals.processes import Process
from gkestimator.simulation.arrivals.rates import Bursts, Profile
from gkestimator.simulation.arrivals.streams import Streams

__all__ = ["make_arrivals"]


def make_arrivals(
    kind: str | Path,
    rates_rps: Sequence[float],
    names: Sequence[str],
    *,
    seed: int = 0,
    rate_scale: float = 1.0,
    bursts: Bursts | None = None,
    profiles: Mapping[str, Profile] | None = None,
) -> Arrivals:
    """Arrivals for the sources ``names`` with mean rates ``rates_rps`` (in the system's order).

    ``kind``: one of PROCESSES (see :class:`Process`), else the path of a trace. ``rate_scale`` multiplies every rate.
    ``bursts``: the states of ``mmpp``. ``profiles``: sources whose rate varies in time, in place of their mean rate
    (``poisson`` and ``constant``). Raises UsageError: lists of unlike lengths, a negative rate, a scale not above 0, a
    profile for an unknown source.
    """
    if len(rates_rps) != len(names):
        raise UsageError(f"arrivals: found {len(rates_rps)} rates and {len(names)} names, expected as many")
    if not 0 < rate_scale < float("inf"):
        raise UsageError(f"rate scale: found {rate_scale:g}, expected a finite factor above 0")
    unknown = sorted(set(profiles or {}) - set(names))
    if unknown:
        raise UsageError(f"rate profile for {unknown[0]!r}, expected one of {', '.join(names)}")
    processes = [
        Process(
            kind=str(kind),
            rate=profiles[name].scaled(rate_scale) if profiles and name in profiles else rate * rate_scale,
            source=number,
            seed=seed,
            bursts=bursts or Bursts(),
        )
        for number, (name, rate) in enumerate(zip(names, rates_rps, strict=True))
    ]
    return Streams([p.blocks for p in processes], peak_rps=sum(p.peak_rps for p in processes))
