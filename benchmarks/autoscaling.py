"""Plan again while the rate rises and falls, for docs/explanation/simulation/autoscaling.md: GPUs used and wait over 1,000 s.

    python benchmarks/autoscaling.py [--seconds 1000] [--seed 0] [--plot docs/explanation/simulation/autoscaling.png]
                                     [--report docs/explanation/simulation/autoscaling.md]

USHER (Shubha et al., OSDI 2024) shows how many GPUs it uses and how long requests wait while the rate varies over 1,000 s: the
policy runs again when a model's rate has moved by 0.5k req/s, and a model takes 0.63 s to load. Its trace is not public; ours
is a reading of it: three vision models, each asked at 500, 1,000, 2,000, 3,000, 2,500, 1,500, 500, 1,500, 2,500 and 1,000 requests
a second, a tenth of the time each, Poisson, with an SLO of 200 ms, on rented V100s (list price). All requests are let in, co-located replicas slow each other down (contention).
Compared: plans that are made once, for the mean and for the peak of the rates; our policy under the same trigger; gpulet's
period of 20 s on moving averages, with 10 to 15 s in the background. ``headroom`` is the factor on the rates that the policy is
given. By table A.1 of the thesis (measured) and by our estimates of the golden networks. The same seed gives the same figures.

"Follows" is the correlation over the windows of a second of GPUs in use and rate. "Settles": the median over the steps up of the
seconds from the step until the mean wait is below 100 ms up to the next step, of those after which it was; "unsettled" are the
others.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

import numpy as np
from _placement_tables import V100, own_estimates, table_a1

from gkestimator.documents.cluster import Cluster, ElasticGpu
from gkestimator.documents.workload import ModelLoad, Workload
from gkestimator.hardware.gpus import gpu_catalogue
from gkestimator.simulation.arrivals.making import make_arrivals
from gkestimator.simulation.arrivals.rates import Profile
from gkestimator.simulation.options import Options
from gkestimator.simulation.replanning.picture import draw_replanned
from gkestimator.simulation.replanning.report import ReplanReport
from gkestimator.simulation.replanning.running import simulate_replanned
from gkestimator.simulation.replanning.settings import Replanning
from gkestimator.tables import Requirement, write_bytes
from gkestimator.tables.layout import TextColumn, markdown_table, text_table

LEVELS = (500.0, 1000.0, 2000.0, 3000.0, 2500.0, 1500.0, 500.0, 1500.0, 2500.0, 1000.0)
SLO_MS = 200.0
SETTLED_MS = 100.0
TABLES = {
    "table A.1": ("resnet50", "densenet121", "inception_v3"),
    "our estimates": ("resnet50", "light_densenet121", "light_inception_v2"),
}
SHARES = (20.0, 40.0, 60.0, 80.0, 100.0)
USHER, GPULET = Replanning(kind="usher"), Replanning(kind="gpulet")
# label: policy, re-planning, which rates the first plan is for
RUNS: Mapping[str, tuple[str, Replanning | None, str]] = {
    "usher": ("usher", USHER, "first"),
    "usher, headroom 1.2": ("usher", Replanning(kind="usher", headroom=1.2), "first"),
    "usher, once for the mean": ("usher", None, "mean"),
    "usher, once for the peak": ("usher", None, "peak"),
    "gkest": ("gkest", USHER, "first"),
    "gkest, headroom 1.2": ("gkest", Replanning(kind="usher", headroom=1.2), "first"),
    "gkest, once for the mean": ("gkest", None, "mean"),
    "gkest, once for the peak": ("gkest", None, "peak"),
    "gpulet every 20 s": ("gpulet", GPULET, "first"),
    "gpulet every 20 s, headroom 1.2": ("gpulet", Replanning(kind="gpulet", headroom=1.2), "first"),
}
DRAWN = ("usher, headroom 1.2", "gkest, headroom 1.2", "usher, once for the mean", "usher, once for the peak")


def profile(seconds: float) -> Profile:
    """The rate of each model: LEVELS in turn."""
    step = seconds / len(LEVELS)
    return Profile(times_s=tuple(i * step for i in range(len(LEVELS))), rates_rps=LEVELS)


def run(
    rows: Sequence[Requirement], names: Sequence[str], label: str, seconds: float, seed: int
) -> ReplanReport:
    """One line of RUNS."""
    policy, replanning, start = RUNS[label]
    rate = {"first": LEVELS[0], "mean": float(np.mean(LEVELS)), "peak": max(LEVELS)}[start]
    spec = gpu_catalogue().spec(V100)
    assert spec.price_per_hour_usd is not None
    return simulate_replanned(
        Workload(models=tuple(ModelLoad(name=n, rate_rps=rate, slo_ms=SLO_MS) for n in names)),
        rows,
        Cluster(elastic=(ElasticGpu(spec=spec, price_per_hour=spec.price_per_hour_usd),)),
        make_arrivals(
            "poisson", [rate] * len(names), names, seed=seed, profiles=dict.fromkeys(names, profile(seconds))
        ),
        Options(duration_ms=1e3 * seconds, interference="contention", seed=seed),
        replanning,
        policy=policy,
        arrivals_name="poisson by steps",
        admission="none",
    )


def follows(report: ReplanReport) -> float | None:
    """Correlation of GPUs in use and arrivals over the windows; None where the GPUs do not change."""
    gpus = np.array(report.timeline.gpus)
    if np.ptp(gpus) == 0:
        return None
    return float(np.corrcoef(gpus, report.timeline.arrived)[0, 1])


def settling(report: ReplanReport, seconds: float) -> tuple[float | None, int, int]:
    """(Median seconds from a step up until the wait is below SETTLED_MS to the next step, of those that it was; steps where it was
    not; steps up)."""
    step = round(seconds / len(LEVELS))
    waits = np.array([0.0 if w is None else w for w in report.timeline.wait_mean_ms])
    ups = [i for i in range(1, len(LEVELS)) if LEVELS[i] > LEVELS[i - 1]]
    took, never = [], 0
    for i in ups:
        high = np.flatnonzero(waits[i * step : (i + 1) * step] > SETTLED_MS)
        last = 0 if not len(high) else int(high[-1]) + 1
        if last >= step:
            never += 1
        else:
            took.append(float(last))
    return (median(took) if took else None), never, len(ups)


def columns(reports: Mapping[str, ReplanReport], seconds: float) -> list[TextColumn]:
    """One line for each run."""
    totals = [r.totals for r in reports.values()]
    settled = [settling(r, seconds) for r in reports.values()]
    texts = {
        "GPUs mean": [f"{t.gpus_mean:.1f}" for t in totals],
        "peak": [f"{t.gpus_peak}" for t in totals],
        "USD": ["?" if t.cost is None else f"{t.cost:.2f}" for t in totals],
        "on time %": ["?" if t.on_time_pct is None else f"{t.on_time_pct:.1f}" for t in totals],
        "wait ms": ["?" if t.wait_mean_ms is None else f"{t.wait_mean_ms:,.0f}" for t in totals],
        "p99 ms": ["?" if t.latency_p99_ms is None else f"{t.latency_p99_ms:,.0f}" for t in totals],
        "plans": [f"{t.changes}" for t in totals],
        "loads": [f"{t.loads}" for t in totals],
        "moves": [f"{t.moves}" for t in totals],
        "follows": ["-" if (f := follows(r)) is None else f"{f:.2f}" for r in reports.values()],
        "settles s": ["-" if s is None else f"{s:.0f}" for s, _, _ in settled],
        "unsettled": [f"{n} of {of}" for _, n, of in settled],
    }
    return [
        TextColumn(heading="run", cells=list(reports), right=False),
        *(TextColumn(heading=name, cells=cells) for name, cells in texts.items()),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=1000.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--plot", type=Path, help="of table A.1; of our estimates beside it, with -estimates in its name"
    )
    parser.add_argument("--report", type=Path, help="Markdown")
    given = parser.parse_args()
    lines = [
        "# Re-planning while the rate rises and falls",
        "",
        f"`python benchmarks/autoscaling.py --seconds {given.seconds:g} --seed {given.seed}`",
        "",
    ]
    lines += [(__doc__ or "").split("\n\n", 2)[2].strip(), ""]
    for table, names in TABLES.items():
        rows = table_a1() if table == "table A.1" else own_estimates(gpus=[V100], sm_shares=SHARES)
        reports = {}
        for label in RUNS:
            reports[label] = run(rows, names, label, given.seconds, given.seed)
            print(f"{table}: {label}: done", file=sys.stderr)
        found = columns(reports, given.seconds)
        requests = next(iter(reports.values())).totals.arrived
        title = f"{table}: {', '.join(names)} ({requests:,} requests)"
        print(f"\n{title}", *text_table(found, limit=160), sep="\n")
        lines += [f"## {title}", "", *markdown_table(found), ""]
        if given.plot is not None:
            path = (
                given.plot if table == "table A.1" else given.plot.with_stem(f"{given.plot.stem}-estimates")
            )
            picture = draw_replanned(
                {k: reports[k] for k in DRAWN},
                path.suffix[1:],
                title=f"Three models by {table}, SLO 200 ms, rented V100s",
            )
            write_bytes(path, picture)
            lines += [f"![rate, GPUs in use and wait over time]({path.name})", ""]
    if given.report is not None:
        write_bytes(given.report, "\n".join(lines).encode())


if __name__ == "__main__":
    main()
