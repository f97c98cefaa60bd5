"""Compare Arlo's schedulers with the simple ones for docs/how-to/lengths.md, and time their simulation.

    python benchmarks/arlo_lengths.py [--table examples/lengths/bert-base.csv] [--stretch 4,1] [--gpus 10,20,40]
    [--loads 0.15,0.3,0.45,0.6] [--streams 1] [--seeds 3] [--seconds 200]
    [--bursts 0.5,3:8,2] [--slo-ms 150] [--start expected|even|peak] [--congested ideal|least-load] [--most FACTOR]
    [--no-speed] [--plot FILE] [--traces FOLDER]
    python benchmarks/arlo_lengths.py --against-static [--rates 1000,1500,...] [--ends 1.15,4.86] [--dynamic 1.22,3.56]

Requests of BERT-base (examples/lengths) as a Markov-modulated Poisson process: calm for 8 s at half the mean rate, bursts
of 2 s at three times the mean rate. Lengths: lognormal with the quantiles of the Arlo paper's trace (median 21, 72 at
98 %), as they are and times ``--stretch`` (the ladder of runtimes goes to 512: stretched by 4, the lengths use it all).
Load: what the requests need at their own lengths over what the GPUs give; a burst is three times it. All schemes see the
same requests and begin with the Runtime Scheduler's allocation for the mean rate, which runs every 120 s. 98th percentiles
in ms, exact, mean over the seeds; the share of requests within the SLO of 150 ms. A star: Arlo at or below both.

``--against-static``: Arlo beside the baselines of its paper, as that prints it: the mean latency's reduction at 1,000
requests a second on 10 GPUs against ST (padding, the one static length), DT (dynamic shapes, at ``--dynamic`` times the
latency of a request's own length) and INFaaS. Twice: by the table's latencies, and by a line between ``--ends`` (ms
at 64 and at 512 tokens; those that we recall of the paper, whose text is not at hand). Poisson arrivals and the bursts.

``--traces``: the two Azure LLM hours (context tokens; lengths scaled so that the longest is 512, requests copied for a
mean load of 0.15), even start.
"""

from __future__ import annotations

import argparse
import itertools
import math
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from gkestimator.core.compiled import COMPILED
from gkestimator.reporting.style import INK, STYLE
from gkestimator.simulation.arrivals.making import make_arrivals
from gkestimator.simulation.arrivals.rates import Bursts
from gkestimator.simulation.arrivals.replay import Replay
from gkestimator.simulation.lengths.allocation import allocate, even
from gkestimator.simulation.lengths.dispatch import CONGESTED, SCHEMES
from gkestimator.simulation.lengths.requests import (
    Drawn,
    LengthChunk,
    LengthRequests,
    Lengths,
    ReplayedRequests,
)
from gkestimator.simulation.lengths.runtimes import DynamicShapes, Ladder, Runtime, ladder_of, runtimes_of
from gkestimator.simulation.lengths.serving import (
    Autoscaling,
    Dispatching,
    Reallocation,
    Served,
    ServeOptions,
    serve,
)
from gkestimator.tables import REQUIREMENTS, read_table

SLO_MS = 150.0
TRACE_S = 3300
STATIC_GPUS = 10
MEDIAN, QUANTILE, VALUE = 21, 0.98, 72
LOOKS = {
    "arlo": ("#e15759", "-"),
    "least-padding": ("#4e79a7", "--"),
    "least-load": ("#59a14f", ":"),
    "earliest": ("#f28e2b", "-."),
    "infaas": ("#76b7b2", (0, (3, 1, 1, 1))),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--table", type=Path, default=Path("examples/lengths/bert-base.csv"))
    parser.add_argument("--stretch", default="4,1")
    parser.add_argument("--gpus", default="10,20,40")
    parser.add_argument("--loads", default="0.15,0.3,0.45,0.6")
    parser.add_argument("--streams", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=200.0)
    parser.add_argument("--bursts", default="0.5,3:8,2", help="factors of the rate:mean seconds of each")
    parser.add_argument("--slo-ms", type=float, default=SLO_MS)
    parser.add_argument("--start", choices=["expected", "even", "peak"], default="expected")
    parser.add_argument("--congested", choices=list(CONGESTED), default="ideal")
    parser.add_argument("--most", type=float, help="autoscaling, to at most so many times the GPUs")
    parser.add_argument("--no-speed", action="store_true")
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--traces", type=Path)
    parser.add_argument("--against-static", action="store_true")
    parser.add_argument("--rates", default="1000")
    parser.add_argument("--ends", default="1.15,4.86")
    parser.add_argument("--dynamic", default="1.22,3.56")
    given = parser.parse_args()
    rows = read_table(given.table, REQUIREMENTS)
    ladder = ladder_of(runtimes_of(rows, model="bert-base", gpu="RTX-3090"), given.slo_ms)
    if given.against_static:
        against_static(ladder, given)
        return
    print("latencies ms: " + ", ".join(f"{r.length}: {r.latency_ms:.2f}" for r in ladder.runtimes))
    cells: dict[tuple[float, int, float], dict[str, float]] = {}
    loads, sizes = [float(x) for x in given.loads.split(",")], [int(x) for x in given.gpus.split(",")]
    for stretch in [float(x) for x in given.stretch.split(",")]:
        print(
            f"\nlengths x {stretch:g} (median {MEDIAN * stretch:g}, {VALUE * stretch:g} at 98 %), {given.streams} streams"
        )
        print(f"GPUs load   req/s  {'  '.join(f'{s:>20}' for s in SCHEMES)}")
        for gpus in sizes:
            for load in loads:
                cells[stretch, gpus, load] = measure(ladder, stretch, gpus, load, given)
        stars = [ordered(cells[stretch, gpus, load]) for gpus in sizes for load in loads]
        print(f"a star in {sum(stars)} of {len(stars)} cells")
    if not given.no_speed:
        speed(ladder, given)
    if given.traces is not None:
        traces(ladder, given.traces, sizes)
    if given.plot is not None:
        draw(cells, given.plot, sizes, loads)


def workload(
    ladder: Ladder, stretch: float, gpus: int, load: float
) -> tuple[Lengths, float, tuple[int, ...]]:
    """Lengths, mean rate (requests per second), and the program's allocation for them."""
    lengths = Lengths.lognormal(
        median=MEDIAN * stretch, quantile=QUANTILE, value=VALUE * stretch, maximum=ladder.lengths[-1]
    )
    shares = lengths.shares(ladder.lengths)
    rate = 1e3 * load * gpus / float(shares @ np.array(ladder.latencies_ms))
    return lengths, rate, allocate(ladder, (shares * rate * ladder.slo_ms / 1e3).tolist(), gpus).counts


def against_static(ladder: Ladder, given: argparse.Namespace) -> None:
    """Mean latencies of Arlo and its paper's baselines, and by how much Arlo's is below each."""
    shortest, longest = (float(x) for x in given.ends.split(","))
    lengths = ladder.lengths
    line = np.interp(lengths, [lengths[0], lengths[-1]], [shortest, longest])
    recalled = ladder_of(
        [Runtime(length=n, latency_ms=float(t)) for n, t in zip(lengths, line, strict=True)], given.slo_ms
    )
    slowdowns = [float(x) for x in given.dynamic.split(",")]
    headings = [
        "latencies",
        "arrivals",
        "lengths",
        "req/s",
        "Arlo ms",
        "ST ms",
        *(f"DT x {x:g} ms" for x in slowdowns),
        "INFaaS ms",
    ]
    beside = [f"against {heading.removesuffix(' ms')} %" for heading in headings[5:]]
    print("| " + " | ".join([*headings, *beside]) + " |")
    print("|---|---|---|" + "---:|" * (len(headings) - 3 + len(beside)))
    rates = [float(x) for x in given.rates.split(",")]
    ladders = {"recalled": recalled, "table": ladder}
    for name, kind, stretch, rate in itertools.product(ladders, ("poisson", "mmpp"), (1.0, 4.0), rates):
        means = baselines(ladders[name], stretch, rate, kind, slowdowns, given)
        arlo, *others = means
        cells = [f"{mean:,.2f}" for mean in means]
        cells += [f"{100 * (arlo / other - 1):+.1f}" for other in others]
        arrivals = "bursts" if kind == "mmpp" else kind
        print(f"| {name} | {arrivals} | x {stretch:g} | {rate:,.0f} | {' | '.join(cells)} |", flush=True)


def baselines(
    ladder: Ladder, stretch: float, rate: float, kind: str, slowdowns: list[float], given: argparse.Namespace
) -> list[float]:
    """Mean latency in ms of Arlo, ST, DT at each slowdown, INFaaS: means over the seeds, the same requests for all."""
    gpus = STATIC_GPUS
    lengths = Lengths.lognormal(
        median=MEDIAN * stretch, quantile=QUANTILE, value=VALUE * stretch, maximum=ladder.lengths[-1]
    )
    demand = (lengths.shares(ladder.lengths) * rate * ladder.slo_ms / 1e3).tolist()
    start = allocate(ladder, demand, gpus).counts
    plain = ServeOptions(gpus=gpus, duration_ms=1e3 * given.seconds, start=start)
    one = replace(plain, start=(gpus,), dispatching=Dispatching(scheme="least-padding"))
    ways = [(ladder, plain), (ladder.largest(), one)]
    for slowdown in slowdowns:
        shapes = DynamicShapes(ladder=ladder, slowdown=slowdown)
        ways.append((shapes.single(), replace(one, dynamic=shapes)))
    ways.append((ladder, replace(plain, dispatching=Dispatching(scheme="infaas"))))
    factors, sojourns = ([float(x) for x in part.split(",")] for part in given.bursts.split(":"))
    bursts = Bursts(factors=tuple(factors), sojourns_s=tuple(sojourns))
    means = []
    for own, options in ways:
        found = []
        for seed in range(given.seeds):
            arrivals = make_arrivals(kind, [rate], ["all"], seed=seed, bursts=bursts)
            served = serve(own, Drawn(arrivals, lengths, seed=seed), options)
            found.append(served.sum_ms / served.requests)
        means.append(float(np.mean(found)))
    return means


def measure(
    ladder: Ladder, stretch: float, gpus: int, load: float, given: argparse.Namespace
) -> dict[str, float]:
    lengths, rate, start = workload(ladder, stretch, gpus, load)
    if given.start == "even":
        start = even(len(ladder.runtimes), gpus)
    factors, sojourns = ([float(x) for x in part.split(",")] for part in given.bursts.split(":"))
    bursts = Bursts(factors=tuple(factors), sojourns_s=tuple(sojourns))
    if given.start == "peak":
        peak = rate * max(bursts.relative) * ladder.slo_ms / 1e3
        start = allocate(ladder, (lengths.shares(ladder.lengths) * peak).tolist(), gpus).counts
    scaling = None if given.most is None else Autoscaling(least=gpus, most=math.ceil(given.most * gpus))
    p98, on_time, held = {}, {}, {}
    for scheme in SCHEMES:
        found = []
        for seed in range(given.seeds):
            arrivals = make_arrivals(
                "mmpp",
                [rate / given.streams] * given.streams,
                [str(k) for k in range(given.streams)],
                seed=seed,
                bursts=bursts,
            )
            options = ServeOptions(
                gpus=gpus,
                duration_ms=1e3 * given.seconds,
                start=start,
                keep=True,
                autoscaling=scaling,
                reallocation=None if given.start == "peak" else Reallocation(),
                dispatching=Dispatching(scheme=scheme, congested=given.congested),
            )
            found.append(serve(ladder, Drawn(arrivals, lengths, seed=seed), options))
        p98[scheme] = float(np.mean([f.quantile_ms(0.98) for f in found]))
        on_time[scheme] = float(np.mean([100 * f.on_time / f.requests for f in found]))
        held[scheme] = float(np.mean([f.gpu_ms for f in found])) / (1e3 * given.seconds)
    cells = "  ".join(f"{p98[s]:10.2f} ({on_time[s]:6.2f} %)" for s in SCHEMES)
    if scaling is not None:
        cells += "  GPUs " + " ".join(f"{held[s]:.1f}" for s in SCHEMES)
    print(f"{gpus:4d} {load:4.2f} {rate:7.0f}  {cells} {'*' if ordered(p98) else ''}", flush=True)
    return p98


def ordered(p98: dict[str, float]) -> bool:
    """Whether Arlo is at or below both simple schemes."""
    return all(p98["arlo"] <= p98[s] * (1 + 1e-9) for s in ("least-padding", "least-load"))


def run(
    ladder: Ladder, requests: LengthRequests, gpus: int, start: tuple[int, ...], scheme: str, seconds: float
) -> Served:
    options = ServeOptions(
        gpus=gpus, duration_ms=1e3 * seconds, start=start, keep=True, dispatching=Dispatching(scheme=scheme)
    )
    return serve(ladder, requests, options)


def speed(ladder: Ladder, given: argparse.Namespace) -> None:
    """Requests simulated per second of processor time, arrivals and lengths drawn on the way; median of five."""
    for gpus in (10, 100, 1000):
        lengths, rate, start = workload(ladder, 4.0, gpus, 0.3)
        seconds = 1e6 / rate
        times = []
        for _ in range(5):
            begin = time.process_time()
            found = run(
                ladder,
                Drawn(make_arrivals("mmpp", [rate], ["x"], seed=0), lengths, seed=0),
                gpus,
                start,
                "arlo",
                seconds,
            )
            times.append(found.requests / (time.process_time() - begin))
        print(
            f"{gpus:5d} GPUs: {np.median(times):,.0f} requests simulated per second of processor time ({found.requests:,}; compiled: {COMPILED})"
        )


class Scaled(LengthRequests):
    """The requests of a trace, lengths times ``factor`` (rounded up)."""

    def __init__(self, path: Path, rate: float | None, factor: float) -> None:
        self.trace = ReplayedRequests(
            path, replay=Replay(), rate_rps=rate, seed=0, longest=10**7, truncate=True
        )
        self.factor = factor

    def chunks(self, until_ms: float) -> Iterator[LengthChunk]:
        for chunk in self.trace.chunks(until_ms):
            yield replace(chunk, lengths=np.ceil(chunk.lengths * self.factor - 1e-9).astype(np.int64))


def traces(ladder: Ladder, folder: Path, sizes: list[int]) -> None:
    """The Azure LLM hours, their longest requests as long as the longest runtime."""
    for kind in ("code", "conv"):
        path = folder / f"AzureLLMInferenceTrace_2023_{kind}.csv"
        tokens = np.concatenate([c.lengths for c in Scaled(path, None, 1.0).chunks(TRACE_S * 1e3)])
        factor = ladder.lengths[-1] / tokens.max()
        levels = np.searchsorted(ladder.lengths, np.ceil(tokens * factor - 1e-9))
        mean = float(np.array(ladder.latencies_ms)[levels].mean())
        quantiles = np.quantile(tokens * factor, [0.5, 0.98])
        print(
            f"\nAzure LLM {kind}: {len(tokens):,} requests in {TRACE_S:,} s, lengths x {factor:.4f}: median "
            f"{quantiles[0]:.0f}, {quantiles[1]:.0f} at 98 %"
        )
        for gpus in sizes:
            rate = 1e3 * 0.15 * gpus / mean
            cells = []
            for scheme in (*SCHEMES, "padding"):
                own = ladder.largest() if scheme == "padding" else ladder
                name = "least-padding" if scheme == "padding" else scheme
                found = run(
                    own, Scaled(path, rate, factor), gpus, even(len(own.runtimes), gpus), name, TRACE_S
                )
                cells.append(
                    f"{scheme} {found.quantile_ms(0.98):,.1f} ({100 * found.on_time / found.requests:.2f} %)"
                )
            print(f"{gpus:4d} GPUs {rate:7.0f} req/s  " + "  ".join(cells), flush=True)


def draw(
    cells: dict[tuple[float, int, float], dict[str, float]], path: Path, sizes: list[int], loads: list[float]
) -> None:
    """98th percentile against load: a column for each number of GPUs, a row for each stretch."""
    import matplotlib
    from matplotlib.figure import Figure

    stretches = list(dict.fromkeys(s for s, _, _ in cells))
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7.2, 2.3 * len(stretches) + 0.5), layout="constrained")
        axes = figure.subplots(len(stretches), len(sizes), sharex=True, sharey=True, squeeze=False)
        for row, stretch in enumerate(stretches):
            for column, gpus in enumerate(sizes):
                one = axes[row, column]
                for scheme, (hue, style) in LOOKS.items():
                    values = [cells[stretch, gpus, load][scheme] for load in loads]
                    one.plot(
                        loads,
                        values,
                        color=hue,
                        linestyle=style,
                        marker=".",
                        markersize=4,
                        linewidth=1.3,
                        label=scheme,
                    )
                one.axhline(SLO_MS, color=INK, linewidth=0.8)
                one.set_yscale("log")
                one.set_title(f"{gpus} GPUs, lengths x {stretch:g}")
        figure.supxlabel("load in the mean (bursts: three times it)", fontsize=8)
        figure.supylabel("98th percentile, ms (line: SLO)", fontsize=8)
        figure.legend(
            *axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=len(LOOKS), fontsize=8
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150, metadata={"Software": None})
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
