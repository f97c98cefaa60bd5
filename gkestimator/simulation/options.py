"""Hold how a simulation is run, and the words that its options know."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from gkestimator.core.errors import UsageError
from gkestimator.core.records import frozen
from gkestimator.documents.plan import BATCHINGS, PlacementPlan
from gkestimator.interference.registry import MODELS

_MOST_WINDOWS = 100_000  # each holds three numbers for every model

ROUTINGS = ("round-robin", "least-load")
SERVICES = ("deterministic", "exponential", "interval")
COPIES = ("none", "serial", "overlap")
DROPS = ("none", "late")
ADMISSIONS = ("plan", "expected", "none")
ASSIGNMENTS = ("auto", "names", "streams", "requests")
RATES = ("plan", "trace")
SCALINGS = ("copies", "time")
PREFILLS = ("plan", "first", "chunked")
OPTION_WORDS: Mapping[str, Sequence[str]] = {
    "routing": ROUTINGS,
    "service": SERVICES,
    "copy": COPIES,
    "interference": tuple(MODELS),
    "drop": DROPS,
    "batching": BATCHINGS,
}


def batching_for(asked: str, plan: PlacementPlan) -> str:
    """Return the law of batching that ``plan`` is served by: ``asked``, or its own where that is ``plan``."""
    if asked == "plan":
        return plan.batching
    return asked


def check_known(what: str, value: object, known: Sequence[str]) -> None:
    """Raise UsageError where ``value`` is none of ``known``."""
    if value not in known:
        raise UsageError(f"{what} {value!r} is not known, expected one of {', '.join(known)}")


def check_fields(record: object, words: Mapping[str, Sequence[str]], prefix: str = "") -> None:
    """Raise UsageError for the first field of ``record`` whose value is none of its ``words``."""
    for name, known in words.items():
        check_known(f"{prefix}{name}", getattr(record, name), known)


@frozen
class Options:
    """Hold how long is simulated, and by which rules.

    ``duration_ms`` of arrivals are simulated and all that came are served to the end; requests that come
    before ``warmup_ms`` are served and not counted.

    ``routing``: which replica the next batch of a model is for. ``service``: ``deterministic`` (the curve's
    latency), ``exponential`` (that mean), ``interval`` (the curve times one lognormal factor for each model
    and run, by the replica's sigmas: the estimate is wrong in one way, not anew for each batch). ``copy``:
    moving inputs and outputs is not counted, added to the service, or done by the GPU's copy engine (one
    batch at a time, in order) before the service, beside other batches' compute. ``interference``: one of
    the registry's; the replicas' features and GPUs' terms are that kind's. ``drop``: ``late`` drops requests,
    the earliest first, that could not be answered within their model's SLO any more when their batch is about
    to be served (by its latency alone on the GPU, as estimated). ``batching``: ``early`` fills batches at the router,
    ``late`` gives each request to a replica as it comes, whose server forms a batch of up to ``batch_size`` of what
    waits whenever it is free. ``window_ms`` of the timeline.
    ``keep_requests``: the result has every request. ``seed``: one seed, one result, the same with and without
    numba.
    """

    duration_ms: float
    warmup_ms: float = 0.0
    routing: str = "round-robin"
    service: str = "deterministic"
    copy: str = "none"
    interference: str = "none"
    drop: str = "none"
    batching: str = "early"
    window_ms: float = 1000.0
    keep_requests: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        check_fields(self, OPTION_WORDS)
        if not 0 <= self.warmup_ms < self.duration_ms:
            raise UsageError(
                f"warm-up of {self.warmup_ms / 1e3:g} s, expected less than the duration, {self.duration_ms / 1e3:g} s"
            )
        if not 0 < self.window_ms < math.inf or self.duration_ms / self.window_ms > _MOST_WINDOWS:
            raise UsageError(
                f"window of {self.window_ms / 1e3:g} s over {self.duration_ms / 1e3:g} s, expected at most "
                f"{_MOST_WINDOWS:,} windows"
            )
