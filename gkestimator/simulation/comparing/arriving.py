"""Read the arrivals of a comparison strictly, processes and traces with their options, and make them."""

from __future__ import annotations

from pathlib import Path

from gkestimator.core.errors import UsageError
from gkestimator.core.records import frozen
from gkestimator.documents import Workload
from gkestimator.documents.checking import Fields
from gkestimator.simulation.arrays import AnyByName, ValuesByName
from gkestimator.simulation.arrivals.base import Arrivals
from gkestimator.simulation.arrivals.making import make_arrivals, sources_of
from gkestimator.simulation.arrivals.processes import PROCESSES
from gkestimator.simulation.arrivals.rates import Bursts
from gkestimator.simulation.arrivals.replay import ASSIGNMENTS, SCALINGS, Replay
from gkestimator.simulation.comparing.reading import MANY, distinct, file_of, label_of
from gkestimator.simulation.traces.formats import FORMATS

# Of a burst: times the mean rate, share of the time, mean length in seconds.
_BURST = ("burst_factor", "burst_share", "burst_s")


@frozen
class ArrivalsEntry:
    """Hold a process (``kind``) or a trace (``trace``, its file).

    ``options``: the fields of a ``Replay``, or the three of ``Bursts.of`` for ``mmpp``, as they stand.
    """

    label: str
    kind: str | None
    trace: Path | None
    options: AnyByName


def read_arrivals(fields: Fields, here: Path) -> tuple[ArrivalsEntry, ...]:
    """Return the field ``arrivals``: names of processes, or mappings. Raises DocumentError naming the field."""
    read = []
    for part in fields.entries("arrivals", ["poisson"], short="kind", what="arrivals", limit=MANY):
        trace = file_of(part, "trace", here)
        kind = part.choice("kind", None, PROCESSES)
        if (trace is None) == (kind is None):
            raise part.fail("kind", f"expected either a trace or a kind ({', '.join(PROCESSES)})")
        options = {}
        name = str(kind)
        if trace is not None:
            name = trace.stem[:60]
        label = label_of(part, name)
        if trace is not None:
            options = _replay(part)
        elif kind == "mmpp":
            options = _bursts(part)
        part.finish()
        read.append(ArrivalsEntry(label=label, kind=kind, trace=trace, options=options))
    return distinct(fields, "arrivals", read)


def _replay(part: Fields) -> ValuesByName:
    return {
        "form": part.choice("format", None, tuple(f.name for f in FORMATS)),
        "start_s": part.number("start_s", 0.0),
        "duration_s": part.number("duration_s", None, above=True, null=True),
        "loop": part.flag("loop", False),
        "assign": part.choice("assign", "auto", ASSIGNMENTS),
        "scaling": part.choice("scaling", "copies", SCALINGS),
    }


def _bursts(part: Fields) -> ValuesByName:
    options = {name: part.number(name, None, null=True) for name in _BURST}
    missing = [name for name, value in options.items() if value is None]
    if len(missing) == len(_BURST):
        return {}
    if missing:
        raise part.fail(missing[0], f"expected all of {', '.join(_BURST)}, or none")
    try:
        _states(options)
    except UsageError as e:
        raise part.fail(_BURST[0], str(e)) from e
    return options


def _states(options: AnyByName) -> Bursts | None:
    if not options:
        return None
    factor, share, seconds = (options[name] for name in _BURST)
    return Bursts.of(factor=factor, share=share, burst_s=seconds)


def made(entry: ArrivalsEntry, workload: Workload, seed: int) -> Arrivals:
    """Return the arrivals of ``entry`` at the rates of ``workload`` (models, then applications).

    Raises what :func:`gkestimator.simulation.arrivals.making.make_arrivals` raises.
    """
    sources = sources_of(workload)
    bursts = replay = None
    if entry.trace is not None:
        replay = Replay(**entry.options)
    elif entry.kind == "mmpp":
        bursts = _states(entry.options)
    return make_arrivals(
        entry.trace or str(entry.kind),
        [s.rate_rps for s in sources],
        [s.name for s in sources],
        seed=seed,
        bursts=bursts,
        replay=replay,
    )
