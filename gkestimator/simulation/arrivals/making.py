"""Make arrivals by name: a process that is drawn, or the file of a trace or of rate profiles."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from gkestimator.core.errors import UsageError
from gkestimator.documents import Application, ModelLoad, Workload
from gkestimator.simulation.arrays import Series, Texts
from gkestimator.simulation.arrivals.base import Arrivals
from gkestimator.simulation.arrivals.closed import ClosedArrivals, clients_of
from gkestimator.simulation.arrivals.processes import PROCESSES, ArrivalProcess
from gkestimator.simulation.arrivals.profiles import has_profiles, read_profiles
from gkestimator.simulation.arrivals.rates import Bursts, Profile
from gkestimator.simulation.arrivals.replay import Replay, ReplayedArrivals
from gkestimator.simulation.arrivals.streams import Streams


def sources_of(workload: Workload) -> tuple[ModelLoad | Application, ...]:
    """Return what requests come for, in the order of arrivals' streams: models by themselves, then applications."""
    return (*workload.models, *workload.applications)


def is_trace(kind: str | Path) -> bool:
    """Say whether ``kind`` of arrivals stands in a file: it is neither a process nor clients that wait."""
    return kind not in PROCESSES and clients_of(kind) is None


def make_arrivals(
    kind: str | Path,
    rates_rps: Series,
    names: Texts,
    *,
    seed: int = 0,
    rate_scale: float = 1.0,
    bursts: Bursts | None = None,
    profiles: Mapping[str, Profile] | None = None,
    replay: Replay | None = None,
) -> Arrivals:
    """Return arrivals for the sources ``names`` with mean rates ``rates_rps`` (in the system's order).

    ``kind``: one of PROCESSES (see :class:`ArrivalProcess`), ``closed:N`` for N clients of each source that wait for
    their answers (:class:`~gkestimator.simulation.arrivals.closed.ClosedArrivals`; rates have no use), else the
    path of a trace, replayed as ``replay`` says (:class:`~gkestimator.simulation.arrivals.replay.Replay`; gives a
    ``ReplayedArrivals``), or of rate profiles (:func:`~gkestimator.simulation.arrivals.profiles.read_profiles`),
    which are Poisson. ``rate_scale`` multiplies every rate. ``bursts``: the states of ``mmpp``. ``profiles``:
    sources whose rate varies in time, in place of their mean rate (``poisson`` and ``constant``).

    Raises UsageError: lists of unlike lengths, a negative rate, a scale not above 0, a profile for an unknown
    source; DocumentError: a trace that is malformed or has too little.
    """
    _check(rates_rps, names, seed, rate_scale)
    clients = clients_of(kind)
    if clients is not None:
        if rate_scale != 1 or profiles:
            raise UsageError(f"arrivals {kind}: rates have no use where clients wait for their answers")
        return ClosedArrivals((clients,) * len(names))
    profiles = dict(profiles or {})
    if kind not in PROCESSES:
        path = _trace_path(kind)
        if not has_profiles(path):
            return ReplayedArrivals(
                path, names, rates_rps, replay=replay or Replay(), seed=seed, rate_scale=rate_scale
            )
        kind = "poisson"
        profiles = read_profiles(path, names) | profiles
    unknown = sorted(set(profiles) - set(names))
    if unknown:
        raise UsageError(f"rate profile for {unknown[0]!r}, expected one of {', '.join(names)}")
    processes = []
    for number, (name, mean_rps) in enumerate(zip(names, rates_rps, strict=True)):
        rate: float | Profile = mean_rps * rate_scale
        if name in profiles:
            rate = profiles[name].scaled(rate_scale)
        process = ArrivalProcess(
            kind=str(kind), rate=rate, source=number, seed=seed, bursts=bursts or Bursts()
        )
        processes.append(process)
    return _side_by_side(processes)


def _side_by_side(processes: Sequence[ArrivalProcess]) -> Streams:
    """Return the streams of independent processes; the mean rate is that of those which follow no profile."""
    return Streams(
        [p.blocks for p in processes],
        rate_rps=sum(p.peak_rps for p in processes),
        mean_rps=sum(p.rate for p in processes if not isinstance(p.rate, Profile)),
        changes_per_s=sum(p.changes_per_s for p in processes),
    )


def _check(rates_rps: Series, names: Texts, seed: int, rate_scale: float) -> None:
    if len(rates_rps) != len(names):
        raise UsageError(f"arrivals: found {len(rates_rps)} rates and {len(names)} names, expected as many")
    for name, rate in zip(names, rates_rps, strict=True):
        if not 0 <= rate < math.inf:
            raise UsageError(f"rate of {name!r}: found {rate:g} req/s, expected at least 0")
    if seed < 0:
        raise UsageError(f"seed of arrivals: found {seed}, expected at least 0")
    if not 0 < rate_scale < math.inf:
        raise UsageError(f"rate scale: found {rate_scale:g}, expected a finite factor above 0")


def _trace_path(kind: str | Path) -> Path:
    path = Path(kind)
    if not path.exists():
        raise UsageError(
            f"arrivals {str(kind)!r}: found neither a process nor a file, expected one of {', '.join(PROCESSES)}, "
            "closed:N or the path of a trace"
        )
    return path
