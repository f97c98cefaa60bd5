"""Read the file of ``gkest lengths`` (YAML): model, GPUs, requests, schedulers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gkestimator.core.errors import GkestimatorError
from gkestimator.core.records import frozen
from gkestimator.documents.checking import Fields, load_yaml
from gkestimator.simulation.arrays import Names, Wholes
from gkestimator.simulation.arrivals.processes import PROCESSES
from gkestimator.simulation.arrivals.rates import Bursts
from gkestimator.simulation.arrivals.replay import Replay
from gkestimator.simulation.lengths.dispatch import SCHEMES
from gkestimator.simulation.lengths.requests import Lengths
from gkestimator.simulation.lengths.serving import Autoscaling, Dispatching, Reallocation

# ``padding``: every request padded to the longest runtime, the only one there is; ``dynamic``: one runtime for any
# length. The Arlo paper's ST and DT.
ALL_SCHEMES = (*SCHEMES, "padding", "dynamic")
# Between 1.22 and 3.56, which we recall from the Arlo paper; measured on nothing here.
DYNAMIC_SLOWDOWN = 1.5
DEFAULT_SCHEMES = ("arlo", "least-padding", "least-load", "padding")
# The Runtime Scheduler's program takes seconds from here on.
_MAX_GPUS = 2000
_MAX_S = 1e7
_LEAST_S = 0.01
_MAX_WINDOWS = 100_000
# What a run does beside its requests: programs solved, looks at the percentile, states of the bursts.
_MAX_PERIODS = 100_000
_MAX_CHECKS = 1_000_000
_MAX_STATES = 10_000_000


@dataclass(frozen=True, kw_only=True)
class DrawnArrivals:
    """Hold arrivals of a process at ``rate_rps`` in the mean, as ``streams`` independent streams of equal
    rate that divide the distribution of ``lengths`` between them (1: the mix of lengths does not move with
    bursts).
    """

    kind: str
    rate_rps: float
    streams: int
    bursts: Bursts
    lengths: Lengths


@frozen
class TraceArrivals:
    """Hold the requests of a trace with lengths; ``rate_rps`` None: as recorded.

    ``truncate``: longer requests than the longest runtime takes are cut to it.
    """

    path: Path
    replay: Replay
    rate_rps: float | None
    truncate: bool


@dataclass(frozen=True, kw_only=True)
class LengthsSpec:
    """Hold what is served and how.

    ``lengths`` None: every length the table knows. ``start``: instances of each runtime at the beginning,
    ``even`` or ``expected`` (the program's answer for the distribution and the mean rate). ``dynamic_slowdown``: how
    much longer a request takes in the runtime of scheme ``dynamic`` than in one of just its length.
    """

    path: Path
    model: str
    gpu: str
    gpus: int
    slo_ms: float
    lengths: Wholes | None
    dimension: str | None
    runtime: str | None
    dtype: str | None
    schemes: Names
    arrivals: DrawnArrivals | TraceArrivals
    duration_ms: float
    warmup_ms: float
    window_ms: float
    seed: int
    start: str | Wholes
    dispatching: Dispatching
    reallocation: Reallocation | None
    autoscaling: Autoscaling | None
    dynamic_slowdown: float = DYNAMIC_SLOWDOWN


def read_lengths_spec(path: Path) -> LengthsSpec:
    """Return the file at ``path``. Raises DocumentError naming the field."""
    fields = load_yaml(path, what="a lengths spec")
    fields.whole("schema_version", 1, low=1, high=1)
    lengths = fields.items("lengths", None, limit=1000)
    if lengths is not None:
        lengths = _wholes(fields, "lengths", lengths, 1)
    schemes = _schemes(fields)
    start = fields.take("start", "even")
    if isinstance(start, list):
        start = _wholes(fields, "start", start, 0)
    elif start not in ("even", "expected"):
        raise fields.fail("start", f"found {start!r}, expected even, expected, or a list of instances")
    arrivals = _arrivals(fields, path)
    if start == "expected" and isinstance(arrivals, TraceArrivals):
        raise fields.fail("start", "found expected, which needs request_lengths: expected even or a list")
    duration = fields.number("duration_s", above=True, high=_MAX_S)
    warmup = fields.number("warmup_s", 0.0)
    if warmup >= duration:
        raise fields.fail("warmup_s", f"found {warmup:g}, expected less than the duration, {duration:g}")
    window = fields.number("window_s", 10.0, above=True, high=_MAX_S)
    if duration / window > _MAX_WINDOWS:
        raise fields.fail("window_s", f"found {window:g}, expected at most {_MAX_WINDOWS:,} windows")
    spec = LengthsSpec(
        path=path,
        model=fields.name("model"),
        gpu=fields.text("gpu", limit=100),
        gpus=fields.whole("gpus", high=_MAX_GPUS),
        slo_ms=fields.number("slo_ms", above=True, high=1e9),
        lengths=lengths,
        dimension=fields.text("dimension", None, limit=100),
        runtime=fields.text("runtime", None, limit=100),
        dtype=fields.text("dtype", None, limit=100),
        schemes=schemes,
        arrivals=arrivals,
        duration_ms=1e3 * duration,
        warmup_ms=1e3 * warmup,
        window_ms=1e3 * window,
        seed=fields.whole("seed", 0, low=0, high=2**63 - 1),
        start=start,
        dispatching=_part(fields, "request_scheduler", _dispatching) or Dispatching(),
        reallocation=_reallocation(fields),
        autoscaling=_part(fields, "autoscaling", _autoscaling),
        dynamic_slowdown=fields.number("dynamic_slowdown", DYNAMIC_SLOWDOWN, low=1, high=1000),
    )
    fields.finish()
    _bounded(fields, spec)
    return spec


def _bounded(fields: Fields, spec: LengthsSpec) -> None:
    """Refuse what would keep a run busy for ever with other things than requests."""
    limits = []
    if spec.reallocation is not None:
        limits.append(("runtime_scheduler", spec.reallocation.period_ms, _MAX_PERIODS, "periods"))
    if spec.autoscaling is not None:
        limits.append(("autoscaling", spec.autoscaling.check_ms, _MAX_CHECKS, "checks"))
    if isinstance(spec.arrivals, DrawnArrivals):
        sojourns = spec.arrivals.bursts.sojourns_s
        mean_s = sum(sojourns) / len(sojourns)
        limits.append(("arrivals", 1e3 * mean_s, _MAX_STATES, "states of the bursts"))
    for name, each_ms, limit, what in limits:
        if spec.duration_ms / each_ms > limit:
            raise fields.fail(
                name,
                f"found one every {each_ms / 1e3:g} s in {spec.duration_ms / 1e3:g} s, "
                f"expected at most {limit:,} {what}",
            )


def _wholes(fields: Fields, name: str, values: list[Any], low: int) -> Wholes:
    if not values or any(
        isinstance(v, bool) or not isinstance(v, int) or not low <= v <= 10**7 for v in values
    ):
        raise fields.fail(name, f"expected a list of whole numbers of at least {low}")
    return tuple(values)


def _schemes(fields: Fields) -> Names:
    schemes = fields.items("schemes", list(DEFAULT_SCHEMES), limit=len(ALL_SCHEMES))
    for scheme in schemes:
        if scheme not in ALL_SCHEMES:
            raise fields.fail("schemes", f"found {str(scheme)[:40]!r}, expected of {', '.join(ALL_SCHEMES)}")
    if not schemes or len(set(schemes)) < len(schemes):
        raise fields.fail("schemes", "expected at least one scheme, each once")
    return tuple(schemes)


def _part(fields: Fields, name: str, make: Callable[[Fields], Any]) -> Any:
    """Return what ``make`` makes of the mapping ``name``; None where there is none.

    Its errors name the field.
    """
    if not fields.has(name):
        fields.take(name, None, null=True)
        return None
    inner = fields.object(name, what=f"the settings of {name}")
    with _naming(fields, name):
        settings = make(inner)
    inner.finish()
    return settings


@contextmanager
def _naming(fields: Fields, name: str) -> Iterator[None]:
    """Name the field ``name`` in errors of the block that do not name the file."""
    try:
        yield
    except GkestimatorError as e:
        if str(e).startswith(fields.where):
            raise
        raise fields.fail(name, str(e)) from e


def _dispatching(fields: Fields) -> Dispatching:
    return Dispatching(
        threshold=fields.number("threshold", 0.85, above=True, high=1e6),
        decay=fields.number("decay", 0.9, above=True, high=1),
        levels=fields.whole("levels", 6, high=1000),
        congested=fields.text("congested", "ideal"),
    )


def _reallocation(fields: Fields) -> Reallocation | None:
    if not _flag(fields, "reallocate", True):
        if fields.has("runtime_scheduler"):
            raise fields.fail("reallocate", "found false beside runtime_scheduler, expected one of them")
        return None
    reallocation: Reallocation | None = _part(
        fields,
        "runtime_scheduler",
        lambda inner: Reallocation(
            period_ms=1e3 * inner.number("period_s", 120.0, low=_LEAST_S, high=_MAX_S),
            at_once=inner.whole("at_once", 2, high=_MAX_GPUS),
            load_ms=1e3 * inner.number("load_s", 1.0, high=_MAX_S),
        ),
    )
    return reallocation or Reallocation()


def _autoscaling(fields: Fields) -> Autoscaling:
    return Autoscaling(
        least=fields.whole("least", 1, high=_MAX_GPUS),
        most=fields.whole("most", high=_MAX_GPUS),
        high_pct=fields.number("high_pct", 95.0, above=True, high=1e6),
        low_pct=fields.number("low_pct", 50.0, high=1e6),
        low_window_ms=1e3 * fields.number("low_window_s", 60.0, low=_LEAST_S, high=_MAX_S),
        check_ms=1e3 * fields.number("check_s", 5.0, low=_LEAST_S, high=_MAX_S),
        start_ms=1e3 * fields.number("start_s", 0.0, high=_MAX_S),
    )


def _arrivals(fields: Fields, path: Path) -> DrawnArrivals | TraceArrivals:
    inner = fields.object("arrivals", what="arrivals")
    with _naming(fields, "arrivals"):
        if inner.has("trace"):
            if fields.has("request_lengths"):
                raise fields.fail(
                    "request_lengths", "found beside a trace, which has its own: expected one of them"
                )
            arrivals: DrawnArrivals | TraceArrivals = _trace(inner, path)
        else:
            lengths = _part(fields, "request_lengths", _lengths)
            if lengths is None:
                raise fields.fail("request_lengths", "found nothing, expected a distribution (or a trace)")
            arrivals = _drawn(inner, lengths)
    inner.finish()
    return arrivals


def _trace(inner: Fields, path: Path) -> TraceArrivals:
    longer = inner.text("longer", "refuse")
    if longer not in ("refuse", "truncate"):
        raise inner.fail("longer", f"found {longer!r}, expected refuse or truncate")
    return TraceArrivals(
        path=path.parent / inner.text("trace"),
        replay=Replay(
            form=inner.text("format", None),
            start_s=inner.number("start_s", 0.0, high=1e9),
            loop=_flag(inner, "loop"),
            scaling=inner.text("scaling", "copies"),
        ),
        rate_rps=inner.number("rate_rps", None, above=True, high=1e9),
        truncate=longer == "truncate",
    )


def _drawn(inner: Fields, lengths: Lengths) -> DrawnArrivals:
    kind = inner.text("kind")
    if kind not in PROCESSES:
        raise inner.fail("kind", f"found {kind!r}, expected one of {', '.join(PROCESSES)}")
    if inner.has("bursts") and kind != "mmpp":
        raise inner.fail("bursts", f"found beside {kind}, expected mmpp")
    bursts = _part(
        inner,
        "bursts",
        lambda some: Bursts(
            factors=tuple(_numbers(some, "factors")), sojourns_s=tuple(_numbers(some, "sojourns_s"))
        ),
    )
    return DrawnArrivals(
        kind=kind,
        rate_rps=inner.number("rate_rps", above=True, high=1e9),
        streams=inner.whole("streams", 1, high=1000),
        bursts=bursts or Bursts(),
        lengths=lengths,
    )


def _flag(fields: Fields, name: str, default: bool = False) -> bool:
    flag = fields.take(name, default)
    if not isinstance(flag, bool):
        raise fields.fail(name, f"found {str(flag)[:40]!r}, expected true or false")
    return flag


def _numbers(fields: Fields, name: str) -> list[float]:
    numbers = fields.items(name, limit=1000)
    if any(isinstance(v, bool) or not isinstance(v, (int, float)) or not 0 <= v <= 1e9 for v in numbers):
        raise fields.fail(name, "expected a list of numbers of at least 0")
    return [float(v) for v in numbers]


def _lengths(fields: Fields) -> Lengths:
    if fields.has("values"):
        values = _wholes(fields, "values", fields.items("values", limit=100_000), 1)
        return Lengths.listed(values, _numbers(fields, "weights"))
    return Lengths.lognormal(
        median=fields.number("median", low=1, high=1e7),
        quantile=fields.number("quantile", high=1),
        value=fields.number("value", low=1, high=1e7),
        maximum=fields.whole("maximum", high=10**7),
    )
