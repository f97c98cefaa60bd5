"""Simulate from files to a report: what ``gkest lengths`` does, for programs too."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gkestimator.core.errors import GkestimatorError, UsageError
from gkestimator.hardware.gpus import gpu_catalogue
from gkestimator.simulation.arrays import Names, NumberOrNone, Wholes
from gkestimator.simulation.arrivals.making import make_arrivals
from gkestimator.simulation.conditions import Progress, rows_of_models
from gkestimator.simulation.lengths.allocation import allocate, even
from gkestimator.simulation.lengths.requests import Drawn, LengthRequests, ReplayedRequests
from gkestimator.simulation.lengths.runtimes import DynamicShapes, Ladder, ladder_of, runtimes_of
from gkestimator.simulation.lengths.serving import Served, ServeOptions, serve
from gkestimator.simulation.lengths.spec import LengthsSpec, TraceArrivals
from gkestimator.tables import Requirement


@dataclass(frozen=True, kw_only=True)
class LengthsRun:
    """Hold what every scheme came to.

    ``ladder``: all runtimes. ``price_per_hour``: USD of one GPU, None where unknown.
    """

    spec: LengthsSpec
    ladder: Ladder
    served: dict[str, Served]
    price_per_hour: NumberOrNone
    notes: Names


def simulate_lengths_files(
    spec: LengthsSpec,
    tables: Sequence[Path],
    *,
    seed: int | None = None,
    rate_scale: float = 1.0,
    progress: Progress | None = None,
) -> LengthsRun:
    """Run ``spec`` with the runtimes that ``tables`` (requirement tables) know.

    ``seed`` None: the spec's. Raises TableError, DocumentError and UsageError for what is wrong with a file.
    """
    rows = rows_of_models(tables, [spec.model])
    if seed is not None:
        spec = replace(spec, seed=seed)
    return simulate_lengths(
        spec, rows, rate_scale=rate_scale, table=", ".join(map(str, tables)), progress=progress
    )


def simulate_lengths(
    spec: LengthsSpec,
    rows: Iterable[Requirement],
    *,
    rate_scale: float = 1.0,
    table: str = "table",
    progress: Progress | None = None,
) -> LengthsRun:
    """Run every scheme of ``spec`` on the same requests. Raises as :func:`simulate_lengths_files`."""
    if not 0 < rate_scale < float("inf"):
        raise UsageError(f"rate scale: found {rate_scale:g}, expected a finite factor above 0")
    runtimes = runtimes_of(
        rows,
        model=spec.model,
        gpu=spec.gpu,
        lengths=spec.lengths,
        dimension=spec.dimension,
        runtime=spec.runtime,
        dtype=spec.dtype,
        table=table,
    )
    try:
        ladder = ladder_of(runtimes, spec.slo_ms)
        requests = requests_of(spec, ladder, rate_scale)
        start = start_of(spec, ladder, rate_scale)
        options = ServeOptions(
            gpus=spec.gpus,
            duration_ms=spec.duration_ms,
            warmup_ms=spec.warmup_ms,
            reallocation=spec.reallocation,
            autoscaling=spec.autoscaling,
            start=start,
            window_ms=spec.window_ms,
        )
    except UsageError as e:
        raise UsageError(f"{spec.path}: {e}") from e
    served = {}
    for number, scheme in enumerate(spec.schemes):

        def report_progress(done_ms: float, scheme: str = scheme, number: int = number) -> None:
            if progress is not None:
                part = 100 * (number + done_ms / spec.duration_ms)
                progress(scheme, int(part), 100 * len(spec.schemes))

        own_ladder = ladder
        own_start = start
        rule = scheme
        if scheme == "padding":
            # One runtime: nothing to allocate, and what a new GPU loads is clear.
            own_ladder = ladder.largest()
            own_start = (spec.gpus,)
            rule = "least-padding"
        dynamic = None
        if scheme == "dynamic":
            dynamic = DynamicShapes(ladder=ladder, slowdown=spec.dynamic_slowdown)
            own_ladder = dynamic.single()
            own_start = (spec.gpus,)
            rule = "least-padding"
        dispatching = replace(spec.dispatching, scheme=rule)
        own = replace(options, dispatching=dispatching, start=own_start, dynamic=dynamic)
        served[scheme] = serve(own_ladder, requests, own, progress=report_progress)
    return LengthsRun(
        spec=spec,
        ladder=ladder,
        served=served,
        price_per_hour=_price(spec.gpu),
        notes=_notes(ladder, requests),
    )


def requests_of(spec: LengthsSpec, ladder: Ladder, rate_scale: float) -> LengthRequests:
    """Return the requests that ``spec`` describes."""
    asked = spec.arrivals
    if isinstance(asked, TraceArrivals):
        rate_rps = asked.rate_rps
        if rate_rps is not None:
            rate_rps *= rate_scale
        elif rate_scale != 1:
            raise UsageError(
                "rate scale: expected arrivals with a rate_rps (the trace is replayed as recorded)"
            )
        return ReplayedRequests(
            asked.path,
            replay=asked.replay,
            rate_rps=rate_rps,
            seed=spec.seed,
            longest=ladder.lengths[-1],
            truncate=asked.truncate,
        )
    asked.lengths.shares(ladder.lengths)  # refuses lengths that no runtime takes
    arrivals = make_arrivals(
        asked.kind,
        [asked.rate_rps / asked.streams] * asked.streams,
        [f"stream {number}" for number in range(asked.streams)],
        seed=spec.seed,
        rate_scale=rate_scale,
        bursts=asked.bursts,
    )
    return Drawn(arrivals, asked.lengths, seed=spec.seed)


def start_of(spec: LengthsSpec, ladder: Ladder, rate_scale: float) -> Wholes:
    """Return the instances of each runtime at the beginning."""
    if isinstance(spec.start, tuple):
        if len(spec.start) != len(ladder.runtimes):
            raise UsageError(
                f"start: found {len(spec.start)} counts, expected one for each of {len(ladder.runtimes)} runtimes"
            )
        return spec.start
    if spec.start == "even" or isinstance(spec.arrivals, TraceArrivals):
        return even(len(ladder.runtimes), spec.gpus)
    per_slo = spec.arrivals.rate_rps * rate_scale * ladder.slo_ms / 1e3
    shares = spec.arrivals.lengths.shares(ladder.lengths)
    return allocate(ladder, [float(s) * per_slo for s in shares], spec.gpus).counts


def _price(gpu: str) -> NumberOrNone:
    try:
        return gpu_catalogue().spec(gpu).price_per_hour_usd
    except GkestimatorError:
        return None  # a GPU that only the table knows


def _notes(ladder: Ladder, requests: LengthRequests) -> Names:
    notes = []
    latencies = ladder.latencies_ms
    if any(a > b for a, b in itertools.pairwise(latencies)):
        notes.append("a longer runtime is faster than a shorter one in the table")
    if isinstance(requests, ReplayedRequests) and requests.truncated:
        notes.append(
            f"{requests.truncated:,} requests were longer than {ladder.lengths[-1]:,} tokens and cut to it"
        )
    return tuple(notes)
